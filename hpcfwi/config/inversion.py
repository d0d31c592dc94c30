"""The sections [inversion] and [migration], with their tables, and the tables [[stage]].

`InversionSection` describes the updates of the model, `MigrationSection` an image of the reflectors
in the initial model, and `StageSection` the keys that a part of an inversion changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from hpcfwi.config.values import (
    Choice,
    Count,
    FileName,
    Length,
    Names,
    OneOf,
    OneOrPair,
    Pair,
    Position,
    Section,
    Spacing,
    Unit,
    exactly_one,
    name_of,
)
from hpcfwi.model import PARAMETERS
from hpcfwi.registry import (
    DENOISERS,
    MISFITS,
    OPTIMIZERS,
    PARAMETRIZATIONS,
    REGULARIZERS,
    SAMPLINGS,
    WAVELETS,
    EncodingName,
    ScheduleName,
)


class PreconditionSection(Section):
    """Preconditioning of the gradient before each step; at least one key is required.

    `illumination`, `depth` and `taper` are weights of cells. `smooth` is applied to the weighted
    gradient, because it would otherwise spread the large values around sources and receivers. The
    operator is symmetric, as line searches require: the root of the weights is applied before the
    smoothing and again after it. Figures show the preconditioned gradient.
    """

    illumination: Annotated[float, Field(gt=0.0, le=1e3)] | None = None
    """Divide by the illumination plus this value.

    The illumination is the square root of the product of the source and receiver illuminations,
    divided by its largest value. The value 0.01 strengthens poorly illuminated cells by a factor of
    100 at most.
    """
    smooth: Annotated[float, Field(gt=0.0, le=10.0)] | None = None
    """Smooth with a Gaussian whose standard deviation is this fraction of the wavelength.

    The wavelength is the mean velocity of the slowest waves at each depth, divided by the peak
    frequency of the wavelet.
    """
    depth: Annotated[float, Field(gt=-10.0, le=10.0)] | None = None
    """Multiply by this power of the depth."""
    taper: Length | None = None
    """Multiply by a factor that grows from 0 at each source and receiver to 1 at this distance.

    The factor follows half a period of a cosine of the distance to the nearest source or receiver.
    `adam` divides the gradients of each cell by their magnitude, which undoes all factors except 0.
    """

    @model_validator(mode="after")
    def _something(self) -> Self:
        keys = type(self).model_fields
        if all(getattr(self, key) is None for key in keys):
            raise ValueError(f"expected at least one of {', '.join(keys)}")
        return self


class PriorSection(Section):
    """A denoiser that is applied to the model between updates (plug and play); docs/priors.md."""

    denoiser: Annotated[str, AfterValidator(name_of(DENOISERS, "function"))]
    """`"tv"` (total variation), `"nlm"` (nonlocal means), or your own function.

    Your own function is given as `"module:function"`; the module is in `folder` or on Python's
    path. The function takes images and the strength, and returns images of the same shape. Images
    are torch tensors of shape (image, 1, z, x) or (image, 1, z, y, x). Their values are scaled so
    that the bounds of the model are 0 and 1; without bounds, the smallest and the largest value of
    the model are.
    """
    strength: Annotated[float, Field(gt=0.0, le=1e3)]
    """Strength of the denoiser, for values that are scaled to 0 to 1."""
    every: Count = 1
    """Number of epochs from one application to the next."""
    patch: Count | None = None
    """Number of points along each axis of the tiles into which the model is divided among ranks.

    By default the model is not divided.
    """
    overlap: Annotated[int, Field(ge=0, le=100_000)] = 64
    """Number of points around each tile that are passed to the denoiser with the tile."""
    folder: FileName | None = None
    """Folder of the module of your own function; by default the folder of the input file."""


ParameterName = Annotated[str, OneOf(PARAMETERS)]
ParameterNames = Names[ParameterName]
FIRST = next(iter(PARAMETERS))
Scale = dict[ParameterName, Annotated[float, Field(ge=1e-6, le=1e6)]]
Bound = Annotated[float, Field(le=max(p.highest for p in PARAMETERS.values()))]
Bounds = Pair[Bound]


class Optimizer(Choice):
    """The optimizer, which computes the update of the model from the gradient."""

    registry = OPTIMIZERS
    name: Annotated[str, OneOf(OPTIMIZERS)]
    sharded: bool = False
    """If true, the state of the optimizer is divided among the ranks.

    Not all optimizers have this. The result is identical to the last bit. docs/optimizers.md
    describes how much memory it saves, and what it costs.
    """

    @model_validator(mode="after")
    def _can_be_sharded(self) -> Self:
        if self.sharded and not self.takes("shards"):
            raise ValueError(
                f"sharded = true, but the state of {self.name!r} cannot be sharded; leave it out, "
                "or choose another optimizer (docs/optimizers.md)"
            )
        return self


class Misfit(Choice):
    """The misfit between simulated and observed data; docs/misfits.md says when to use which."""

    registry = MISFITS
    name: Annotated[str, OneOf(MISFITS)]


class SourceWavelet(Choice):
    """The wavelet of the sources: the wavelet of the survey, or an estimate from the data."""

    registry = WAVELETS
    name: Annotated[str, OneOf(WAVELETS)]


class Regularizer(Choice):
    """The regularizer, a penalty of the model that is added to the misfit."""

    registry = REGULARIZERS
    name: Annotated[str, OneOf(REGULARIZERS)]
    prior: FileName | None = None
    """A model file with the model m0 whose penalty is 0; by default the initial model.

    It is resampled in the same way as `model.initial.file`.
    """
    weights: FileName | None = None
    """A file with `/weights`, factors of 0 or more for the penalty of each cell; by default 1.

    It has the layout of a model file, and is resampled in the same way as `prior`.
    """


class Fixed(Section):
    """Cells that keep their initial velocity, such as water or salt; give one of the keys."""

    file: FileName | None = None
    """A file with a mask of cells (`.h5`, `.hdf5`), or a text file with a surface (other names).

    A mask is an array `/fixed` in the layout of a model file: 1 for fixed cells, 0 for the
    others. If it has a different grid, the value of the nearest cell is used. A surface has one row
    per point: `x depth`, or `y x depth` for a 3-D model, in m, separated by blanks; text after a
    `#` is ignored. Depths are interpolated linearly between the points; beyond them the depth of
    the nearest point is used. Cells above the surface are kept.
    """
    above_velocity: Annotated[float, Field(gt=0.0, le=1e5), Unit("m/s")] | None = None
    """Keep the cells of each column above its first cell that is faster than this velocity.

    The velocities are those of the starting model before it is smoothed. A column without such a
    cell is kept completely.
    """

    _one_of_both = exactly_one("file", "above_velocity")


class Tied(Section):
    """Parameters that follow the P velocity in each cell; they change, but have no unknown.

    The values of the initial model fix the factors, so that it satisfies the relations.
    """

    vs: Literal["ratio"] | None = None
    """`"ratio"`: the ratio of P and S velocity does not change."""
    rho: Literal["gardner"] | None = None
    """`"gardner"`: the density changes as the P velocity to the power 0.25."""


class InversionSection(Section):
    """The updates of the model."""

    epochs: Annotated[int, Field(gt=0, le=999_999)]
    """Number of updates of the model.

    An epoch is one update from `batch` shots; it is not a pass through the survey.
    """
    batch: OneOrPair[Count] | None = None
    """Number of shots per epoch, at most those of the survey; ignored with `sampling = "all"`.

    With a pair, such as `[8, 32]`, the number grows evenly from the first epoch to the last. With
    an encoding, it is the number of encoded shots.
    """
    sampling: Annotated[str, OneOf(SAMPLINGS)] = "sweep"
    """How the shots of an epoch are chosen.

    `"sweep"`: every shot of the survey is used once before any is repeated, in a new random order
    each time. `"random"`: shots are drawn independently for each epoch, so that a shot may be
    repeated before another is drawn. `"all"`: all shots are used. This is for `"lbfgs"` and
    `"ncg"`, which compare the gradients of successive epochs.
    """
    encoding: EncodingName = "none"
    """With `"signs"`, all sources are simulated at once, with random signs.

    The result is compared with the sum of the observed data of all shots with the same signs. All
    shots must have the same receivers. docs/stages.md describes when to use it, and what it costs.
    """
    hold: Count = 1
    """Number of epochs that use the same shots, or the same signs, before new ones are drawn."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Random seed. The shots of an epoch depend on it and other keys, not on ranks or restarts."""
    optimizer: Optimizer
    """The optimizer and its keys."""
    fixed_above: Position | None = None
    """Depth down to which cells keep their initial velocity, such as the depth of the sea floor."""
    fixed: Fixed | None = None
    """Cells that keep their initial velocity, in place of `fixed_above`."""
    parameters: ParameterNames = (FIRST,)
    """Parameters of the model that are inverted for; stages may have different ones."""
    parametrization: Annotated[str, OneOf(PARAMETRIZATIONS)] = "velocity"
    """The unknowns in place of the parameters.

    `"velocity"`: the parameters themselves. `"impedance"`: impedances, the products of density and
    velocity, in place of velocities. `"lame"`: lambda and mu in place of velocities. `"log"`:
    logarithms of the parameters, except `epsilon`, `delta` and `theta`. Limits, penalties, files
    and figures have the parameters themselves in any case; docs/equations.md describes when to use
    which.
    """
    tied: Tied | None = None
    """Parameters that follow the P velocity; by default none.

    `tied = {}` in a stage means none, in place of those of `[inversion]`.
    """
    misfit: Misfit = Misfit(name="least-squares")
    """The misfit and its keys."""
    wavelet: SourceWavelet = SourceWavelet(name="known")
    """The wavelet of the sources, known or estimated, and the keys of the method."""
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
            Discriminator(lambda value: "a table" if isinstance(value, Mapping) else "a pair"),
        ]
        | None
    ) = None
    """Smallest and largest value of the cells that may change, in the unit of the parameter.

    A pair applies to the first of `parameters`; a table has a pair for each name, which may be that
    of a tied parameter. The absorbing boundary is tuned to the upper bound of the velocity or,
    without bounds, to the largest velocity of the initial model.
    """
    scale: Scale = Field(default_factory=dict)
    """Typical sizes of changes, by parameter, in its unit.

    The optimizer updates each parameter divided by its size relative to that of the first of
    `parameters`, rounded to a power of two. `lr` and `step` are therefore in the unit of the first
    one. By default the sizes are 100 m/s, 100 kg/m3, 0.05 for `epsilon` and `delta`, 10 degrees for
    `theta`, and 20 for quality factors. Sizes of other unknowns follow from those of the parameters
    whose place they take. The weights of a network are not scaled.
    """
    linear: bool = False
    """If true, simulations are linearized in the model (Born approximation).

    `hpcfwi migrate` does this; see docs/migration.md.
    """
    schedule: ScheduleName = "static"
    """The assignment of shots to ranks.

    `"static"`: all ranks get equal parts. `"dynamic"`: the next shots go to the next free rank,
    which is faster if ranks differ in speed or shots in size. The result is the same.
    """
    reproducible: bool = True
    """If true, results are identical to the last bit for any number of ranks and any schedule.

    If false, gradients are summed in float32 in any order.
    """
    max_failed_shots: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05
    """Fraction of the survey's shots that may be left out before the run stops.

    A shot whose misfit or gradient is not finite is left out of that epoch.
    """
    max_offset: Length | None = None
    """Largest horizontal distance from the source of receivers that are used.

    With `wave.aperture`, the windows of shots do not include receivers beyond this distance, which
    keeps them small if every shot has all receivers. Observed data are simulated for all receivers.
    """

    @model_validator(mode="after")
    def _keys_agree(self) -> Self:
        if self.fixed is not None and self.fixed_above is not None:
            raise ValueError("fixed and fixed_above exclude each other")
        if self.batch is None and self.sampling != "all":
            raise ValueError("batch is missing; expected the number of shots of an epoch")
        if self.encoding != "none" and self.sampling == "all":
            raise ValueError(
                'an encoded shot has all sources: give batch instead of sampling = "all"'
            )
        if self.linear and (self.parametrization != "velocity" or self.ties):
            raise ValueError(
                'linear = true requires parametrization = "velocity" and no tied parameters'
            )
        return self

    @model_validator(mode="after")
    def _tables_of_parameters(self) -> Self:
        for name in self.ties:
            if name in self.parameters:
                raise ValueError(
                    f"tied has {name}, which is one of parameters; leave it out of one of them"
                )
            if FIRST not in self.parameters:
                raise ValueError(
                    f"tied has {name}, which follows {FIRST}, but parameters are "
                    f"{', '.join(self.parameters)}; add {FIRST} to them"
                )
        for key, table, names in (
            ("bounds", self.bounds_by_name, self.changing),
            ("scale", self.scale, self.parameters),
        ):
            _refuse_others(key, table, names, "; parameters has all that a stage may change")
        for name, (lowest, highest) in self.bounds_by_name.items():
            limits = PARAMETERS[name]
            if lowest >= highest:
                raise ValueError(f"bounds are {[lowest, highest]}; expected the smaller one first")
            if lowest < limits.lowest or highest > limits.highest:
                raise ValueError(
                    f"bounds of {name} are {[lowest, highest]}; expected values from "
                    f"{limits.lowest:g} to {limits.highest:g} {limits.unit}".rstrip()
                )
        return self

    def batch_ends(self, n_shots: int) -> tuple[int, int]:
        """Return the number of shots in the first and in the last epoch; n_shots: of the survey."""
        if self.batch is None or self.sampling == "all":
            return n_shots, n_shots
        return self.batch if isinstance(self.batch, tuple) else (self.batch, self.batch)

    def largest_batch(self, n_shots: int) -> int:
        """Return the largest number of shots of any epoch; n_shots: of the survey."""
        return max(self.batch_ends(n_shots))

    @property
    def ties(self) -> Mapping[str, str]:
        """The relation of each tied parameter."""
        return {} if self.tied is None else self.tied.model_dump(exclude_none=True)

    @property
    def changing(self) -> tuple[str, ...]:
        """The names of the parameters that the inversion changes: inverted and tied ones."""
        return (*self.parameters, *self.ties)

    @property
    def changes_variables(self) -> bool:
        """True if an optimizer updates other numbers than the values of the model."""
        is_plain = self.parametrization == "velocity" and set(self.scales.values()) == {1.0}
        return not is_plain or bool(self.ties)

    @property
    def bounds_by_name(self) -> Mapping[str, tuple[float, float]]:
        """The bounds of each parameter that has any."""
        if isinstance(self.bounds, tuple):
            return {self.parameters[0]: self.bounds}
        return self.bounds or {}

    @property
    def scales(self) -> Mapping[str, float]:
        """The size of each parameter relative to that of the first, a power of two.

        Scaled values then have the same digits, so that a continued run has the same bits.
        """
        sizes = {name: self.scale.get(name, PARAMETERS[name].scale) for name in self.parameters}
        first = sizes[self.parameters[0]]
        return {name: 2.0 ** round(log2(size / first)) for name, size in sizes.items()}


DAMPING = 0.001
FIXED = ("fixed_above", "fixed")
# Keys of [inversion] that also apply to a migration, unless [migration] has them
SHARED = (*FIXED, "seed", "wavelet", "schedule", "reproducible", "max_failed_shots", "max_offset")


class MigrationSection(Section):
    """Images of the reflectors in the initial model, by `hpcfwi migrate`; see docs/migration.md.

    They are a linear inversion by conjugate gradients. If there is a section `[inversion]`, its
    keys `fixed_above`, `fixed`, `seed`, `wavelet`, `schedule`, `reproducible`, `max_failed_shots`
    and `max_offset` also apply to the migration.
    """

    iterations: Annotated[int, Field(gt=0, le=999_999)] = 1
    """Number of conjugate-gradient steps; 1 is reverse-time migration, more is least-squares."""
    parameters: ParameterNames = (FIRST,)
    """Parameters of the model of which images are made, from one change of all of them."""
    scale: Scale = Field(default_factory=dict)
    """Like `inversion.scale`, for the parameters of the migration."""
    batch: Count | None = None
    """Number of shots per iteration; by default all.

    Every shot is used once before any is repeated.
    """
    illumination: Annotated[float, Field(gt=0.0, le=1e3)] = DAMPING
    """Gradients are divided by the energy of the waves plus this fraction of its largest value."""
    fixed_above: Position | None = None
    """Like `inversion.fixed_above`: there are no reflectors at this depth or above it."""
    fixed: Fixed | None = None
    """Like `inversion.fixed`."""

    @model_validator(mode="after")
    def _sizes_of_parameters(self) -> Self:
        _refuse_others("scale", self.scale, self.parameters)
        return self


def _refuse_others(
    key: str, table: Mapping[str, Any], names: tuple[str, ...], hint: str = ""
) -> None:
    """Raise ValueError if a table by parameter has other names than these."""
    for name in table:
        if name not in names:
            raise ValueError(
                f"{key} has {name}; expected only names of parameters, which are "
                f"{', '.join(names)}{hint}"
            )


def invert_linearly(migration: Mapping[str, Any], inversion: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table [inversion] of a migration, with the keys that the two sections share."""
    own = {key: migration[key] for key in FIXED if key in migration}
    shared = [key for key in SHARED if key in inversion and not (own and key in FIXED)]
    batch = migration.get("batch")
    return {
        **{key: inversion[key] for key in shared},
        **own,
        **{key: migration[key] for key in ("parameters", "scale") if key in migration},
        **({"sampling": "all"} if batch is None else {"batch": batch}),
        "epochs": migration.get("iterations", 1),
        "linear": True,
        "optimizer": {"name": "cg", "balance": True},
        "precondition": {"illumination": migration.get("illumination", DAMPING)},
    }


# Sections whose keys a stage may change
SECTIONS = ("data", "inversion", "wave")


class StageSection(Section):
    """A part of the inversion, which starts from the model of the previous stage.

    Its tables `data`, `inversion` and `wave` override keys of these sections, as in
    `inversion = { epochs = 20, batch = 16 }`. Each stage starts with a new optimizer and a new
    sweep through the shots. An inversion without stages is a single stage.
    """

    name: str | None = None
    """Name of the stage in the metrics and figures; by default its number.

    No other stage may have it.
    """
    spacing: Spacing | None = None
    """Like `wave.spacing`."""
    data: dict[str, Any] = Field(default_factory=dict)
    """Keys of `[data]`."""
    inversion: dict[str, Any] = Field(default_factory=dict)
    """Keys of `[inversion]`."""
    wave: dict[str, Any] = Field(default_factory=dict)
    """Keys of `[wave]`."""

    def override(self, tables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tables of an input with the changes of this stage.

        If the stage has `parameters`, it inherits limits, scales and ties of these parameters only.
        With `tied = {}` it inherits no ties, and no limits of tied parameters.
        """
        changes = {name: getattr(self, name) for name in SECTIONS}
        if self.spacing is not None:
            changes["wave"] = {"spacing": self.spacing, **changes["wave"]}
        inherited = tables["inversion"]
        if self.inversion.get("tied") == {}:
            inherited = _select({**inherited, "tied": {}}, inherited["parameters"])
        inherited = _select(inherited, self.inversion.get("parameters"))
        return _merge({**tables, "inversion": inherited, "stage": []}, changes)


def _select(inversion: Mapping[str, Any], names: Any) -> Mapping[str, Any]:
    """Return the keys of [inversion] without the entries of other parameters than these.

    names: not validated yet; with any other type than a list, nothing is left out.
    """
    if not isinstance(names, list | tuple):
        return inversion
    tied, bounds = inversion.get("tied", {}), inversion.get("bounds", {})
    if not isinstance(bounds, Mapping):
        bounds = {inversion["parameters"][0]: bounds}
    tied = {n: r for n, r in tied.items() if FIRST in names and n not in names}
    selected = {
        **inversion,
        "tied": tied,
        "bounds": {n: pair for n, pair in bounds.items() if n in names or n in tied},
        "scale": {n: size for n, size in inversion.get("scale", {}).items() if n in names},
    }
    return {key: value for key, value in selected.items() if value != {}}


def _merge(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables with the changes merged in.

    A changed table that names another method replaces the old table as a whole.
    """
    merged = dict(tables)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = value
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            name = old.get("name")
            if value.get("name", name) == name:
                merged[key] = _merge(old, value)
    return merged
