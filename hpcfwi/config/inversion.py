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
    """What is done to a gradient before a step is made of it; one key at least.

    `illumination`, `depth` and `taper` are weights of cells, `smooth` spreads what they leave:
    otherwise it would spread what is large around sources and receivers. All together are
    symmetric: half of the weights and of the smoothing on either side, so that searches along lines
    can begin with it. Figures show what came of it.
    """

    illumination: Annotated[float, Field(gt=0.0, le=1e3)] | None = None
    """Divide by how well a cell is lit, plus this.

    That is the root of the source and receiver illuminations' product, as a share of its largest:
    0.01 strengthens what is poorly lit a hundredfold at most.
    """
    smooth: Annotated[float, Field(gt=0.0, le=10.0)] | None = None
    """Smooth by a Gaussian, whose standard deviation is this share of the wavelength.

    At the wavelet's peak, and the mean velocity of each depth.
    """
    depth: Annotated[float, Field(gt=-10.0, le=10.0)] | None = None
    """Multiply by the depth to this power."""
    taper: Length | None = None
    """Multiply by 0 at each source and receiver of the survey, by 1 from this distance on.

    Between them by half a period of a cosine, of the distance to the nearest of them. `adam`
    divides each cell by the size of its own gradients, and so keeps of it only what is 0, and what
    `smooth` no longer spreads.
    """

    @model_validator(mode="after")
    def _something(self) -> Self:
        if all(getattr(self, key) is None for key in KEYS):
            raise ValueError(f"expected at least one of {', '.join(KEYS)}")
        return self


class PriorSection(Section):
    """A denoiser that models go through between updates (plug and play): docs/priors.md."""

    denoiser: Annotated[str, AfterValidator(name_of(DENOISERS, "function"))]
    """`"tv"` (total variation), `"nlm"` (nonlocal means), or a function of your own.

    That is "module:function", from `folder` or from where else Python finds it: of images
    (image, 1, z, x) or (image, 1, z, y, x), torch tensors, and the strength, it returns images of
    the same shape. Their values are those of the model, 0 at the lower of its bounds and 1 at the
    upper one or, without bounds, at its smallest and largest value.
    """
    strength: Annotated[float, Field(gt=0.0, le=1e3)]
    """How much the denoiser takes for noise, on the scale of 0 to 1."""
    every: Count = 1
    """Epochs from one time to the next."""
    patch: Count | None = None
    """Points along each axis of the tiles that ranks share; the whole model where not given."""
    overlap: Annotated[int, Field(ge=0, le=100_000)] = 64
    """Points that the denoiser sees around a tile."""
    folder: FileName | None = None
    """Folder of the module of a function of your own; that of the input file where not given."""


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
    """What makes an update of a gradient."""

    registry = OPTIMIZERS
    name: OptimizerName
    sharded: bool = False
    """Each rank keeps its part of what the optimiser remembers.

    Of `"adam"`, `"sgd"`, `"lbfgs"` and `"gauss-newton"`. The answer is the same, to the bit;
    docs/optimizers.md says what it spares, and what it costs.
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
    """How far simulated data are from observed ones: docs/misfits.md says what each is for."""

    registry = MISFITS
    name: MisfitName


class SourceWavelet(Choice):
    """What the sources emit: that of the survey, or what the data say."""

    registry = WAVELETS
    name: WaveletName


class Regularizer(Choice):
    """What is asked of a model beside its data."""

    registry = REGULARIZERS
    name: RegularizerName
    prior: FileName | None = None
    """A model file in place of the initial model, as the model m0 that costs nothing.

    Resampled as `model.initial.file` is.
    """
    weights: FileName | None = None
    """A file with `/weights`, a number of 0 or more by which each cell's share is multiplied.

    All are 1 where it is not given. Laid out as a model file is, and resampled as `prior`.
    """


class Fixed(Section):
    """Cells that keep their initial velocity, such as water or salt; one of the keys."""

    file: FileName | None = None
    """Any cells, or those above a surface that need not be level, by how the file's name ends.

    `.h5` or `.hdf5`: a file with `/fixed`, 1 for each cell that is kept and 0 for the others, laid
    out as a model file is. On another grid, each cell of the model is as the nearest one. Any other
    name: text with a surface, down to which cells are kept: a row `x depth` for each place,
    `y x depth` for a 3-D model. In m, with blanks between the numbers; what follows a `#` is not
    looked at. Linear between places, and as deep as the nearest one beyond them.
    """
    above_velocity: Annotated[Bound, Unit("m/s")] | None = None
    """Keep each column down to its first cell that is faster than this, which may change.

    Of the starting model, before it is smoothed. A column that is nowhere so fast is kept.
    """

    _one_of_both = exactly_one("file", "above_velocity")


def _tag_bounds(value: object) -> str:
    return "a table" if isinstance(value, Mapping) else "a pair"


class InversionSection(Section):
    """The updates."""

    epochs: Annotated[int, Field(gt=0, le=999_999)]
    """Updates of the model.

    An epoch is one update, made of `batch` shots; it is not a pass through the survey.
    """
    batch: OneOrPair[Count] | None = None
    """Shots of an epoch, at most those of the survey; not looked at with `sampling = "all"`.

    A pair, as `[8, 32]`, grows evenly from the first epoch to the last. With an encoding, how many
    encoded shots an epoch has.
    """
    sampling: SamplingName = "sweep"
    """Which shots an epoch has.

    `"sweep"`: every shot of the survey once before any comes again, in another order each time.
    `"random"`: those of each epoch drawn anew; a shot may come again before another has come.
    `"all"`: all of them, which is what `"lbfgs"` and `"ncg"` want, which learn from one epoch for
    the next.
    """
    encoding: EncodingName = "none"
    """`"signs"`: each shot that is simulated is all sources at once, with random signs.

    It is compared with the observed data of all shots, added up with the same signs. For surveys
    whose receivers are the same for all shots. docs/stages.md says when, and what it costs.
    """
    hold: Count = 1
    """Epochs that keep the same shots, or the same signs, before others are drawn."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of the draw. The shots of an epoch are a function of it and of the epoch's number."""
    optimizer: Optimizer
    """What makes an update of a gradient, and its keys."""
    fixed_above: Position | None = None
    """Cells at this depth or above it keep their initial velocity (the water)."""
    fixed: Fixed | None = None
    """The same down to a surface that is not level, such as the sea floor, instead."""
    parameters: Annotated[tuple[ParameterName, ...], Field(strict=False, min_length=1)] = (
        next(iter(PARAMETERS)),
    )
    """What of the model is inverted for."""
    misfit: Misfit = Misfit(name="least-squares")
    """How far simulated data are from observed ones, and its keys."""
    wavelet: SourceWavelet = SourceWavelet(name="known")
    """Whether the sources' wavelet is known, and the keys of how it is found."""
    precondition: PreconditionSection | None = None
    """What is done to a gradient before a step is made of it. Nothing where not given."""
    regularize: Regularizer | None = None
    """What is asked of a model beside its data, and its keys. Nothing where not given."""
    prior: PriorSection | None = None
    """A denoiser that the model goes through between updates. None where not given."""
    bounds: (
        Annotated[
            Annotated[Bounds, Tag("a pair")]
            | Annotated[dict[ParameterName, Bounds], Tag("a table")],
            Discriminator(_tag_bounds),
        ]
        | None
    ) = None
    """Smallest and largest value, within which the cells that may change are kept.

    In the parameter's unit; a pair for the first of `parameters`, or a table of pairs by their
    names. The absorbing boundary is tuned to the largest velocity, which without bounds is the
    initial model's.
    """
    linear: bool = False
    """Traces change with the model to first order only, around the initial one (Born).

    What `hpcfwi migrate` does: docs/migration.md.
    """
    schedule: ScheduleName = "static"
    """`"static"`: equal parts for all ranks. `"dynamic"`: the next shots to whichever rank is free.

    The second is for ranks or shots that differ. The answer is the same.
    """
    reproducible: bool = True
    """The same bits for any number of ranks and any schedule.

    `false` adds gradients in float32, in whatever order.
    """
    max_failed_shots: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05
    """Share of the survey's shots that may be set aside before the run stops.

    A shot whose misfit or gradient is not finite is set aside for that epoch.
    """
    max_offset: Length | None = None
    """Leave receivers that are further from the source, horizontally, out of the misfit.

    Whatever their traces hold, they do not count. With `wave.aperture`, windows do not reach for
    such receivers: that is what makes them small where every shot has all receivers. Observed data
    are simulated for all receivers.
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
        """Shots of the first epoch and of the last one, where the survey has so many."""
        if self.batch is None or self.sampling == "all":
            return n_shots, n_shots
        return self.batch if isinstance(self.batch, tuple) else (self.batch, self.batch)

    def largest_batch(self, n_shots: int) -> int:
        """Most shots of an epoch, where the survey has so many."""
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

    It is a linear inversion by conjugate gradients, and has these keys of `[inversion]` too, where
    there is that section: those of the cells that are kept, `seed`, `wavelet`, `schedule`,
    `reproducible`, `max_failed_shots` and `max_offset`.
    """

    iterations: Annotated[int, Field(gt=0, le=999_999)] = 1
    """Steps of conjugate gradients. 1 is reverse-time migration, more are least squares."""
    batch: Count | None = None
    """Shots of an iteration, every shot once before any comes again; all where not given."""
    illumination: Annotated[float, Field(gt=0.0, le=1e3)] = DAMPING
    """Gradients are divided by the waves' energy and this share of its largest."""
    fixed_above: Position | None = None
    """As `inversion.fixed_above`: no reflectors are looked for at this depth or above it."""
    fixed: Fixed | None = None
    """As `inversion.fixed`."""


def invert_linearly(migration: Mapping[str, Any], inversion: Mapping[str, Any]) -> dict[str, Any]:
    """The table [inversion] that makes a migration, of that and of what an inversion would have."""
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

    Its tables `data`, `inversion` and `wave` have the keys of these sections that are others than
    in the whole: `inversion = { epochs = 20, batch = 16 }`. An optimiser begins anew, so does a
    sweep through the shots. Where there is no stage, the inversion is one.
    """

    name: str | None = None
    """What the metrics and figures call it; its number where not given."""
    spacing: Spacing | None = None
    """As `wave.spacing`."""
    data: dict[str, Any] = Field(default_factory=dict)
    """Keys of `[data]`."""
    inversion: dict[str, Any] = Field(default_factory=dict)
    """Keys of `[inversion]`."""
    wave: dict[str, Any] = Field(default_factory=dict)
    """Keys of `[wave]`."""

    def override(self, tables: Mapping[str, Any]) -> dict[str, Any]:
        """The tables of a whole input as this stage has them."""
        changes = {name: getattr(self, name) for name in SECTIONS}
        if self.spacing is not None:
            changes["wave"] = {"spacing": self.spacing, **changes["wave"]}
        return _merge({**tables, "stage": []}, changes)


def _merge(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with changed keys. A table that names another method takes the old one's place."""
    merged = dict(tables)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = value
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            name = old.get("name")
            if value.get("name", name) == name:
                merged[key] = _merge(old, value)
    return merged
