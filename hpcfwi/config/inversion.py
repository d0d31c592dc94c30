"""The sections [inversion] and [migration], with their tables, and the tables [[stage]].

`Inversion` describes the updates of the model, `Migration` an image of reflectors in the model with
which an inversion begins, and `Stage` what a part of an inversion has otherwise than the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from hpcfwi.config.sections import Spacing
from hpcfwi.config.values import (
    Choice,
    Count,
    FileName,
    Length,
    OneOrPair,
    Position,
    Section,
    Unit,
    exactly_one,
    name_of,
)
from hpcfwi.model import PARAMETERS
from hpcfwi.registry import (
    DENOISERS,
    MISFITS,
    OPTIMIZERS,
    REGULARIZERS,
    SAMPLINGS,
    WAVELETS,
    EncodingName,
    ScheduleName,
)

KEYS = ("illumination", "smooth", "depth", "taper")


class PreconditionSection(Section):
    """Preconditioning of the gradient before a step is made from it; at least one key.

    `illumination`, `depth` and `taper` are weights of cells; `smooth` is applied to the weighted
    gradient, as it would otherwise spread the large values around sources and receivers. The whole
    is symmetric, with half of the weights and of the smoothing on either side, so that line
    searches can begin with it. Figures show the result.
    """

    illumination: Annotated[float, Field(gt=0.0, le=1e3)] | None = None
    """Divide by the illumination plus this.

    The illumination is the root of the product of those of sources and receivers, as a share of its
    largest value: 0.01 strengthens poorly illuminated cells a hundredfold at most.
    """
    smooth: Annotated[float, Field(gt=0.0, le=10.0)] | None = None
    """Smooth by a Gaussian whose standard deviation is this share of the wavelength.

    The wavelength is that of the wavelet's peak frequency at the mean velocity of each depth.
    """
    depth: Annotated[float, Field(gt=-10.0, le=10.0)] | None = None
    """Multiply by the depth to this power."""
    taper: Length | None = None
    """Multiply by 0 at each source and receiver, and by 1 from this distance on.

    The factor grows by half a period of a cosine of the distance to the nearest of them. `adam`
    divides each cell by the size of its own gradients, which undoes factors other than 0.
    """

    @model_validator(mode="after")
    def _something(self) -> Self:
        if all(getattr(self, key) is None for key in KEYS):
            raise ValueError(f"expected at least one of {', '.join(KEYS)}")
        return self


class PriorSection(Section):
    """A denoiser that is applied to the model between updates (plug and play): docs/priors.md."""

    denoiser: Annotated[str, AfterValidator(name_of(DENOISERS, "function"))]
    """`"tv"` (total variation), `"nlm"` (nonlocal means), or a function of your own.

    The last is "module:function", from `folder` or from the path of Python. It takes images
    (image, 1, z, x) or (image, 1, z, y, x), torch tensors, and the strength, and returns images of
    the same shape. A value is 0 at the lower bound of the model and 1 at the upper one or, without
    bounds, at its smallest and largest value.
    """
    strength: Annotated[float, Field(gt=0.0, le=1e3)]
    """Strength of the denoiser, on the scale of 0 to 1."""
    every: Count = 1
    """Number of epochs from one application to the next."""
    patch: Count | None = None
    """Points along each axis of the tiles that ranks share; by default the whole model."""
    overlap: Annotated[int, Field(ge=0, le=100_000)] = 64
    """Number of points around a tile that the denoiser sees as well."""
    folder: FileName | None = None
    """Folder of the module of a function of your own; by default that of the input file."""


if TYPE_CHECKING:
    MisfitName = str
    OptimizerName = str
    ParameterName = str
    RegularizerName = str
    SamplingName = str
    WaveletName = str
else:
    MisfitName = Literal[*MISFITS]
    OptimizerName = Literal[*OPTIMIZERS]
    ParameterName = Literal[*PARAMETERS]
    RegularizerName = Literal[*REGULARIZERS]
    SamplingName = Literal[*SAMPLINGS]
    WaveletName = Literal[*WAVELETS]

Bound = Annotated[float, Field(gt=0.0, le=max(p.highest for p in PARAMETERS.values()))]
Bounds = Annotated[tuple[Bound, Bound], Field(strict=False)]


class Optimizer(Choice):
    """The optimizer, which makes an update of the model from the gradient."""

    registry = OPTIMIZERS
    name: OptimizerName
    sharded: bool = False
    """If true, each rank keeps its part of the optimizer's state.

    For `"adam"`, `"sgd"`, `"lbfgs"` and `"gauss-newton"`. The result has the same bits.
    docs/optimizers.md says how much memory it saves, and what it costs.
    """

    @model_validator(mode="after")
    def _can_be_sharded(self) -> Self:
        if self.sharded and not self.takes("slabs"):
            raise ValueError(
                f"sharded = true, but what {self.name!r} remembers is not kept in parts: leave it "
                'out, or take "adam", "sgd", "lbfgs" or "gauss-newton"'
            )
        return self


class Misfit(Choice):
    """The misfit of simulated and observed data: docs/misfits.md says what each is for."""

    registry = MISFITS
    name: MisfitName


class SourceWavelet(Choice):
    """The wavelet of the sources: that of the survey, or an estimate from the data."""

    registry = WAVELETS
    name: WaveletName


class Regularizer(Choice):
    """The regularizer, a penalty of the model that is added to the misfit."""

    registry = REGULARIZERS
    name: RegularizerName
    prior: FileName | None = None
    """A model file with the model m0 of penalty 0, by default the initial model.

    It is resampled as `model.initial.file` is.
    """
    weights: FileName | None = None
    """A file with `/weights`, factors of 0 or more for the share of each cell; by default 1.

    It has the layout of a model file, and is resampled as `prior`.
    """


class Fixed(Section):
    """Cells that keep their initial velocity, such as water or salt; one of the keys."""

    file: FileName | None = None
    """A file with a mask of cells (`.h5`, `.hdf5`), or a text file with a surface (other names).

    A mask is `/fixed`, 1 for each cell that is kept and 0 for the others, in the layout of a model
    file. If its grid is another, the nearest cell counts. A surface is a row `x depth` for each
    place, `y x depth` for a 3-D model, in m, with blanks between the numbers; text after a `#` is
    ignored. It is linear between places, and beyond them as deep as at the nearest one. Cells above
    it are kept.
    """
    above_velocity: Annotated[Bound, Unit("m/s")] | None = None
    """Keep each column above its first cell that is faster than this.

    The velocities are those of the starting model before it is smoothed. A column that is nowhere
    so fast is kept whole.
    """

    _one_of_both = exactly_one("file", "above_velocity")


def _tag_bounds(value: object) -> str:
    return "a table" if isinstance(value, Mapping) else "a pair"


class InversionSection(Section):
    """The updates of the model."""

    epochs: Annotated[int, Field(gt=0, le=999_999)]
    """Number of updates of the model.

    An epoch is one update from `batch` shots; it is not a pass through the survey.
    """
    batch: OneOrPair[Count] | None = None
    """Number of shots of an epoch, at most that of the survey; ignored with `sampling = "all"`.

    A pair, such as `[8, 32]`, grows evenly from the first epoch to the last. With an encoding, it
    is the number of encoded shots.
    """
    sampling: SamplingName = "sweep"
    """Choice of the shots of an epoch.

    `"sweep"`: every shot of the survey once before any is repeated, in another order each time.
    `"random"`: drawn independently for each epoch, so that a shot may be repeated before another is
    drawn. `"all"`: all shots, for `"lbfgs"` and `"ncg"`, which learn from one epoch for the next.
    """
    encoding: EncodingName = "none"
    """`"signs"`: all sources are simulated at once, with random signs.

    The result is compared with the observed data of all shots, added up with the same signs. The
    receivers must be the same for all shots. docs/stages.md says when to use it, and what it costs.
    """
    hold: Count = 1
    """Number of epochs with the same shots, or the same signs, before others are drawn."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the draws. The shots of an epoch are a function of it and of the epoch's number."""
    optimizer: Optimizer
    """The optimizer and its keys."""
    fixed_above: Position | None = None
    """Depth of cells that keep their initial velocity, as do those above them (the water)."""
    fixed: Fixed | None = None
    """Cells that keep their initial velocity, above a surface or anywhere, instead."""
    parameters: Annotated[tuple[ParameterName, ...], Field(strict=False, min_length=1)] = (
        next(iter(PARAMETERS)),
    )
    """Parameters of the model that are inverted for."""
    misfit: Misfit = Misfit(name="least-squares")
    """The misfit and its keys."""
    wavelet: SourceWavelet = SourceWavelet(name="known")
    """Whether the wavelet of the sources is known, and the keys of its estimate."""
    precondition: PreconditionSection | None = None
    """Preconditioning of the gradient; by default none."""
    regularize: Regularizer | None = None
    """The regularizer and its keys; by default none."""
    prior: PriorSection | None = None
    """A denoiser that is applied to the model between updates; by default none."""
    bounds: (
        Annotated[
            Annotated[Bounds, Tag("a pair")]
            | Annotated[dict[ParameterName, Bounds], Tag("a table")],
            Discriminator(_tag_bounds),
        ]
        | None
    ) = None
    """Smallest and largest value of the cells that may change, in the unit of the parameter.

    A pair belongs to the first of `parameters`; a table has pairs by their names. The absorbing
    boundary is tuned to the largest velocity, which without bounds is that of the initial model.
    """
    linear: bool = False
    """If true, traces change with the model to first order only (Born).

    `hpcfwi migrate` does this: docs/migration.md.
    """
    schedule: ScheduleName = "static"
    """`"static"`: equal parts for all ranks. `"dynamic"`: the next shots for the next free rank.

    The second is for ranks or shots that differ. The result is the same.
    """
    reproducible: bool = True
    """If true, the bits are the same for any number of ranks and any schedule.

    `false` adds gradients in float32, in any order.
    """
    max_failed_shots: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05
    """Share of the survey's shots that may be set aside before the run stops.

    A shot whose misfit or gradient is not finite is set aside for that epoch.
    """
    max_offset: Length | None = None
    """Largest horizontal distance from the source at which receivers count in the misfit.

    With `wave.aperture`, windows do not include receivers beyond it, which makes them small where
    every shot has all receivers. Observed data are simulated for all receivers.
    """

    @model_validator(mode="after")
    def _one_floor(self) -> Self:
        if self.fixed is not None and self.fixed_above is not None:
            raise ValueError("fixed and fixed_above exclude each other")
        return self

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        for lowest, highest in self.bounds_by_name.values():
            if lowest >= highest:
                raise ValueError(f"bounds are {[lowest, highest]}; expected the smaller one first")
        return self

    @model_validator(mode="after")
    def _batch_or_all(self) -> Self:
        if self.batch is None and self.sampling != "all":
            raise ValueError("batch is missing: how many shots an epoch has")
        if self.encoding != "none" and self.sampling == "all":
            raise ValueError(
                'an encoded shot has all sources: give batch instead of sampling = "all"'
            )
        return self

    def batch_ends(self, n_shots: int) -> tuple[int, int]:
        """Return the number of shots of the first and of the last epoch of a survey."""
        if self.batch is None or self.sampling == "all":
            return n_shots, n_shots
        return self.batch if isinstance(self.batch, tuple) else (self.batch, self.batch)

    def largest_batch(self, n_shots: int) -> int:
        """Return the largest number of shots of an epoch of a survey."""
        return max(self.batch_ends(n_shots))

    @property
    def bounds_by_name(self) -> Mapping[str, tuple[float, float]]:
        """The bounds of each parameter that has any."""
        if isinstance(self.bounds, tuple):
            return {self.parameters[0]: self.bounds}
        return self.bounds or {}


DAMPING = 0.001
# Keys of [inversion] that a migration has as well, where it does not name them itself
SHARED = (
    "fixed_above",
    "fixed",
    "seed",
    "wavelet",
    "schedule",
    "reproducible",
    "max_failed_shots",
    "max_offset",
)


class MigrationSection(Section):
    """An image of reflectors in the initial model: `hpcfwi migrate`; docs/migration.md.

    It is a linear inversion by conjugate gradients. If there is a section `[inversion]`, its keys
    for the cells that are kept, `seed`, `wavelet`, `schedule`, `reproducible`, `max_failed_shots`
    and `max_offset` hold as well.
    """

    iterations: Annotated[int, Field(gt=0, le=999_999)] = 1
    """Number of steps of conjugate gradients; 1 is reverse-time migration, more least squares."""
    batch: Count | None = None
    """Number of shots of an iteration, every shot once before any is repeated; by default all."""
    illumination: Annotated[float, Field(gt=0.0, le=1e3)] = DAMPING
    """Gradients are divided by the energy of the waves plus this share of its largest value."""
    fixed_above: Position | None = None
    """As `inversion.fixed_above`: there are no reflectors at this depth or above it."""
    fixed: Fixed | None = None
    """As `inversion.fixed`."""


def invert_linearly(migration: Mapping[str, Any], inversion: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table [inversion] of a migration, with the keys that the two sections share."""
    own = {key: migration[key] for key in ("fixed_above", "fixed") if key in migration}
    shared = {key: inversion[key] for key in SHARED if key in inversion and not own.get(key)}
    if own:
        shared = {key: value for key, value in shared.items() if not key.startswith("fixed")}
    shots = {"sampling": "all"}
    if migration.get("batch") is not None:
        shots = {"batch": migration["batch"]}
    return {
        **shared,
        **own,
        **shots,
        "epochs": migration.get("iterations", 1),
        "linear": True,
        "optimizer": {"name": "cg", "balance": True},
        "precondition": {"illumination": migration.get("illumination", DAMPING)},
    }


# Sections of which a stage may have keys of its own
SECTIONS = ("data", "inversion", "wave")


class StageSection(Section):
    """A part of the inversion, which begins with the model of the one before it.

    Its tables `data`, `inversion` and `wave` have the keys of these sections that differ from the
    whole: `inversion = { epochs = 20, batch = 16 }`. The optimizer begins anew, and so does the
    sweep through the shots. An inversion without stages is one stage.
    """

    name: str | None = None
    """Name in the metrics and figures; by default its number."""
    spacing: Spacing | None = None
    """As `wave.spacing`."""
    data: dict[str, Any] = Field(default_factory=dict)
    """Keys of `[data]`."""
    inversion: dict[str, Any] = Field(default_factory=dict)
    """Keys of `[inversion]`."""
    wave: dict[str, Any] = Field(default_factory=dict)
    """Keys of `[wave]`."""

    def override(self, tables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tables of a whole input with the changes of this stage."""
        changes = {name: getattr(self, name) for name in SECTIONS}
        if self.spacing is not None:
            changes["wave"] = {"spacing": self.spacing, **changes["wave"]}
        return _merge({**tables, "stage": []}, changes)


def _merge(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables with changed keys; a table that names another method replaces the old one."""
    merged = dict(tables)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = value
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            name = old.get("name")
            if value.get("name", name) == name:
                merged[key] = _merge(old, value)
    return merged
