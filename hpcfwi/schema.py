"""The sections of an input file: their keys, what values these may have, and their defaults.

What can be said of one section alone is checked here, the whole file in `config`. What the strings
under the keys say is what users read, in messages and in docs/input.md, which is made of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    model_validator,
)
from pydantic_core import PydanticCustomError

from hpcfwi.model import PARAMETERS
from hpcfwi.registry import DATASETS, ENGINES, MISFITS, OPTIMIZERS, SAMPLINGS

if TYPE_CHECKING:
    DatasetName = str
    EngineName = str
    MisfitName = str
    OptimizerName = str
    ParameterName = str
    SamplingName = str
else:
    DatasetName = Literal[*DATASETS]
    EngineName = Literal["auto", *ENGINES]
    MisfitName = Literal[*MISFITS]
    OptimizerName = Literal[*OPTIMIZERS]
    ParameterName = Literal[*PARAMETERS]
    SamplingName = Literal[*SAMPLINGS]

# Samples of a trace, which no recorder has
MOST_SAMPLES = 10**6

_T = TypeVar("_T")


# In an error's path these stand among the keys, to say which of several types was tried.
TAGS = ("a name", "a table", "a number", "a pair")


def _tag(value: object) -> str:
    return "a pair" if isinstance(value, list | tuple) else "a number"


EachAxis = Annotated[
    Annotated[_T, Tag("a number")] | Annotated[tuple[_T, _T], Field(strict=False), Tag("a pair")],
    Discriminator(_tag),
]
"""One number, along x, for a 2-D model; a pair, along y and x, for a 3-D one."""


def _check_name(name: str) -> str:
    try:
        possible = bool(name) and b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise PydanticCustomError("name", "the name of a file or directory")
    return name


@dataclass(frozen=True)
class Unit:
    """What a number counts, beside its type."""

    name: str


# Larger numbers are slips of the pen, and what is computed from them would overflow.
Count = Annotated[int, Field(gt=0, le=10**9)]
Position = Annotated[float, Field(ge=-1e9, le=1e9), Unit("m")]
Length = Annotated[float, Field(gt=0.0, le=1e9), Unit("m")]
Time = Annotated[float, Field(ge=-1e9, le=1e9), Unit("s")]
Seconds = Annotated[float, Field(gt=0.0, le=1e9), Unit("s")]
Hertz = Annotated[float, Field(gt=0.0, le=1e12), Unit("Hz")]
Bound = Annotated[float, Field(gt=0.0, le=max(p.highest for p in PARAMETERS.values()))]
Bounds = Annotated[tuple[Bound, Bound], Field(strict=False)]
FileName = Annotated[str, AfterValidator(_check_name)]


class Section(BaseModel):
    """A table of the file: unknown keys are errors, "2" is no number, and nan is none either."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class Initial(Section):
    """The starting model: either `smooth` or `file`."""

    smooth: Length | None = None
    """Smooth the model by a Gaussian of this standard deviation.

    Cells above `inversion.fixed_above` are kept.
    """
    file: FileName | None = None
    """A model file on the same grid."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        _exactly_one(self, "smooth", "file")
        return self


class ModelSection(Section):
    """The earth: either `dataset` or `file`.

    Positions count from the zero of the model's own coordinates, its `origin`. The window of
    Marmousi begins at z = x = 800 m: a source at its top has the depth 800.
    """

    dataset: DatasetName | None = None
    """A known model; `"dome"`, which is 3-D, and `"dome-section"` are computed: nothing is fetched.
    """
    file: FileName | None = None
    """A model file: the true model where observed data are simulated, else the grid to invert on.
    """
    spacing: Length | None = None
    """Resample to this along all axes; low-pass filtered first where that coarsens.

    Where not given, the model keeps its own.
    """
    initial: Initial
    """Where the inversion starts."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        _exactly_one(self, "dataset", "file")
        return self


class Points(Section):
    """Points at one depth, evenly spaced along x, or along y and x for a 3-D model.

    For a 3-D model `count`, `first` and `last` are pairs, along y and along x:
    `{ count = [4, 6], depth = 25.0, first = [200.0, 0.0], last = [800.0, 1500.0] }` are four lines
    along x of six points each, numbered line by line, and `count = [1, 40]` is a single line in the
    middle of y. A number where the model asks for a pair is an error, and so is a pair where it
    asks for a number.
    """

    count: EachAxis[Count]
    """How many points; a single one is placed in the middle."""
    depth: Position
    """Of all points."""
    first: EachAxis[Position] | None = None
    """Where the first point is along each axis; the model's first where not given."""
    last: EachAxis[Position] | None = None
    """Where the last point is along each axis; the model's last where not given."""

    @model_validator(mode="after")
    def _all_of_one_dimension(self) -> Self:
        for key in ("first", "last"):
            value = getattr(self, key)
            if value is not None and _tag(value) != _tag(self.count):
                raise ValueError(
                    f"count is {_tag(self.count)} and {key} {_tag(value)}; expected numbers "
                    "for a 2-D model, pairs [y, x] for a 3-D one"
                )
        return self


class Wavelet(Section):
    """What each source emits."""

    kind: Literal["ricker"]
    """The second derivative of a Gaussian."""
    frequency: Hertz
    """Peak frequency."""
    delay: Time
    """Time of the peak."""


class SurveySection(Section):
    """Who shoots, who listens, what is emitted and for how long.

    Either `file`, or all of the others, for data that hpcfwi simulates itself.
    """

    file: FileName | None = None
    """A gathers file of observed data."""
    sources: Points | None = None
    """Points along a line or in an area; each is one shot."""
    receivers: Points | None = None
    """Points, the same for all shots."""
    wavelet: Wavelet | None = None
    """What each source emits."""
    dt: Seconds | None = None
    """Sampling of wavelet and traces.

    Where it is too long for a stable scheme, each step is divided into substeps.
    """
    duration: Seconds | None = None
    """Length of the record: duration / dt samples, rounded, and two at least."""

    @model_validator(mode="after")
    def _file_or_all_others(self) -> Self:
        keys = ("sources", "receivers", "wavelet", "dt", "duration")
        given = [key for key in keys if getattr(self, key) is not None]
        if self.file is not None and given:
            raise ValueError(f"file and {given[0]} exclude each other")
        if self.file is None and len(given) < len(keys):
            missing = [key for key in keys if key not in given]
            raise ValueError(f"{', '.join(missing)} missing, or else file")
        if self.dt and self.duration and self.wavelet:
            _check_times(self.dt, self.duration, self.wavelet.frequency)
        return self


def _check_times(dt: float, duration: float, frequency: float) -> None:
    samples = duration / dt
    if samples < 2.0:
        raise ValueError("duration is shorter than two samples")
    if samples > MOST_SAMPLES:
        raise ValueError(
            f"duration holds {samples:.3g} samples of dt; expected at most {MOST_SAMPLES}"
        )
    if not 1.0 / duration <= frequency <= 0.5 / dt:
        raise ValueError(
            f"wavelet.frequency is {frequency:g} Hz; expected {1.0 / duration:.3g} Hz or more, one "
            f"period in duration, and {0.5 / dt:.3g} Hz or less, two samples of dt in a period"
        )


class Kept(Section):
    """A history told exactly.

    The choice is made when an inversion starts, for the largest window of the survey, and is the
    same on all ranks; a reproducible inversion keeps it when it goes on. The log names it:
    `History: snapshots, every 14 steps, float16, 84.7 MB a shot; 1 shot at a time`.
    docs/decisions/014-memory.md has the rules, and what happens when memory runs out.
    """

    kind: Literal["snapshots", "boundary", "recompute"] = "snapshots"
    """Keep the sampled steps, rebuild them from the model's perimeter, or compute them again."""
    interval: Count | None = None
    """Steps from one sampled step to the next; 1 gives the exact gradient of the discrete scheme.

    By default the Nyquist rate of the wavelet, which changes the gradient by some tenths of a per
    cent.
    """
    format: Literal["full", "float32", "bfloat16", "float16", "int8"] | None = None
    """How numbers are kept, by default in full; not for `recompute`."""
    states: Count | None = None
    """How many whole states recomputation starts from, by default 8; only for `recompute`."""

    @model_validator(mode="after")
    def _keys_of_its_own(self) -> Self:
        foreign = "format" if self.kind == "recompute" else "states"
        if getattr(self, foreign) is not None:
            raise ValueError(f"{self.kind} has no {foreign}")
        return self


def count_bytes(size: str) -> int:
    """Bytes of a size with its unit, such as "12 GB" (1e9 bytes each) or "12 GiB" (2^30).

    Raises ValueError for any other text.
    """
    if size.strip()[-1:].upper() != "B":
        raise ValueError(f"{size!r} has no unit")
    return int(TypeAdapter(ByteSize).validate_python(size))


def _check_size(size: object) -> object:
    try:
        possible = isinstance(size, str) and count_bytes(size) > 0
    except (ValueError, OverflowError):
        possible = False
    if not possible:
        raise PydanticCustomError("size", 'a size with its unit, such as "12 GB" or "500 MiB"')
    return size


def _tag_history(value: object) -> str:
    return "a table" if isinstance(value, Mapping | Kept) else "a name"


class WaveSection(Section):
    """The equation and how it is solved."""

    equation: Literal["acoustic"] = "acoustic"
    """The constant-density acoustic equation, the only one so far."""
    order: Literal[2, 4, 6, 8] = 8
    """Order of the differences in space."""
    boundary: Annotated[int, Field(ge=0, le=1000), Unit("cells")] = 20
    """Absorbing boundary (CPML) outside the model."""
    aperture: Length | None = None
    """Simulate each shot only in the part of the model around its source and its receivers.

    All depths, and along each horizontal axis from the first of them to the last, with this much
    more on both sides, in whole cells, as far as the model goes. The part has an absorbing boundary
    of its own. Where not given, every shot has the whole model. docs/physics.md says what is lost.
    It concerns the inversion; observed data are always simulated in the whole model.
    """
    free_surface: bool = False
    """Whether p = 0 at the top of the model, in place of the boundary there."""
    engine: EngineName = "auto"
    """What computes the waves.

    `"cpu"` is compiled, for CPUs, `"gpu"` made with Triton, for GPUs, `"eager"` the reference, for
    any device, and `"deepwave"` needs that package. `"auto"` takes `"cpu"` on CPUs and `"gpu"` on
    GPUs, where Triton is not installed `"eager"`.
    """
    history: Annotated[
        Annotated[Literal["auto", "snapshots", "boundary", "recompute"], Tag("a name")]
        | Annotated[Kept, Tag("a table")],
        Discriminator(_tag_history),
    ] = "auto"
    """What the backward pass keeps of the forward one.

    `"auto"`: the fastest that fits into the memory, of those the engine has. Where there is plenty
    that is snapshots as float16, which changes the gradient by 0.02 % beside what the sampling
    does. `"snapshots"`, `"boundary"`, `"recompute"`: the same among those of one kind. A table:
    exactly this one.
    """
    memory: Annotated[str, BeforeValidator(_check_size)] | None = None
    """What the simulations of one rank may take, about, with its unit.

    `"12 GB"` (10^9 bytes each) or `"12 GiB"` (2^30). It is the limit by which `history` and the
    number of shots at a time are chosen; what is free where not given.
    """


class Optimizer(Section):
    """Adam or SGD of `torch.optim`; keys not given have torch's defaults."""

    name: OptimizerName
    """Adam has `eps` and `betas`, SGD has `momentum`."""
    # What is beyond these is infinite, or zero, in single precision.
    lr: Annotated[float, Field(gt=0.0, le=1e30)]
    """Learning rate; for Adam about the largest change of a cell in an epoch, m/s."""
    eps: Annotated[float, Field(ge=1e-37, le=1e30)] | None = None
    """What Adam adds to the denominator.

    Gradients are often below 1e-8, Adam's default, which then slows the inversion down: give a tiny
    one such as 1e-22.
    """
    betas: Annotated[tuple[float, float], Field(strict=False)] | None = None
    """Decay of Adam's means of the gradient and of its square, from 0 up to 1."""
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Share of its last step that SGD goes on with."""

    @model_validator(mode="after")
    def _keys_of_its_own(self) -> Self:
        foreign = {"adam": ("momentum",), "sgd": ("eps", "betas")}.get(self.name, ())
        for key in foreign:
            if getattr(self, key) is not None:
                raise ValueError(f"{self.name} has no {key}")
        if self.betas and not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas are {list(self.betas)}; expected two numbers from 0 up to 1")
        return self


def _tag_bounds(value: object) -> str:
    return "a table" if isinstance(value, Mapping) else "a pair"


class InversionSection(Section):
    """The updates."""

    epochs: Annotated[int, Field(gt=0, le=999_999)]
    """Updates of the model.

    An epoch is one update, made of `batch` shots; it is not a pass through the survey.
    """
    batch: Count
    """Shots of an epoch, at most those of the survey."""
    sampling: SamplingName = "sweep"
    """Which shots an epoch has.

    `"sweep"`: every shot of the survey once before any comes again, in another order each time.
    `"random"`: those of each epoch drawn anew; a shot may come again before another has come.
    """
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of the draw. The shots of an epoch are a function of it and of the epoch's number."""
    optimizer: Optimizer
    """What makes an update of a gradient."""
    fixed_above: Position | None = None
    """Cells at this depth or above it keep their initial velocity (the water)."""
    parameters: Annotated[tuple[ParameterName, ...], Field(strict=False, min_length=1)] = (
        next(iter(PARAMETERS)),
    )
    """What of the model is inverted for."""
    misfit: MisfitName = "least-squares"
    """How far simulated data are from observed ones."""
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
    schedule: Literal["static", "dynamic"] = "static"
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
    def _bounds_in_order(self) -> Self:
        for lowest, highest in self.bounds_by_name.values():
            if lowest >= highest:
                raise ValueError(f"bounds are {[lowest, highest]}; expected the smaller one first")
        return self

    @property
    def bounds_by_name(self) -> Mapping[str, tuple[float, float]]:
        """The bounds of each parameter that has any."""
        if isinstance(self.bounds, tuple):
            return {self.parameters[0]: self.bounds}
        return self.bounds or {}


class OutputSection(Section):
    """The run directory."""

    directory: FileName
    """The run directory, relative to where the command is given."""
    every: Count = 10
    """Epochs from one set of figures to the next."""
    checkpoint: Count = 5
    """Epochs from one checkpoint to the next."""


def _exactly_one(section: Section, *keys: str) -> None:
    if sum(getattr(section, key) is not None for key in keys) != 1:
        raise ValueError(f"expected exactly one of {' and '.join(keys)}")
