"""The sections of an input file: their keys, what values these may have, and their defaults.

What can be said of one section alone is checked here, the whole file in `config`. Lengths are in m,
times in s, velocities in m/s.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Literal, Self, TypeVar

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

from hpcfwi.model import FASTEST

Dataset = Literal["marmousi2", "marmousi1", "marmousi-window", "dome"]

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


# Larger numbers are slips of the pen, and what is computed from them would overflow.
Count = Annotated[int, Field(gt=0, le=10**9)]
Position = Annotated[float, Field(ge=-1e9, le=1e9)]
"""m"""
Length = Annotated[float, Field(gt=0.0, le=1e9)]
"""m"""
Seconds = Annotated[float, Field(gt=0.0, le=1e9)]
Velocity = Annotated[float, Field(gt=0.0, le=FASTEST)]
"""m/s"""
FileName = Annotated[str, AfterValidator(_check_name)]


class Section(BaseModel):
    """A table of the file: unknown keys are errors, "2" is no number, and nan is none either."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Initial(Section):
    """The starting model: a smoothed true one, or a file."""

    smooth: Length | None = None
    """Standard deviation of the Gaussian that smooths the true model, m."""
    file: FileName | None = None
    """A model file."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        _exactly_one(self, "smooth", "file")
        return self


class ModelSection(Section):
    """The earth: a known model or a file."""

    dataset: Dataset | None = None
    file: FileName | None = None
    """A model file; the true model where data are simulated, else the grid to invert on."""
    spacing: Length | None = None
    """Resample to this, m; the model's own spacing where not given."""
    initial: Initial

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        _exactly_one(self, "dataset", "file")
        return self


class Points(Section):
    """Points at one depth, evenly spaced along x, or along y and x for a 3-D model."""

    count: EachAxis[Count]
    depth: Position
    first: EachAxis[Position] | None = None
    """Where the first point is along each axis, m; the model's first where not given."""
    last: EachAxis[Position] | None = None
    """Where the last point is along each axis, m; the model's last where not given."""

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
    frequency: Annotated[float, Field(gt=0.0, le=1e12)]
    """Peak frequency, Hz."""
    delay: Annotated[float, Field(ge=-1e9, le=1e9)]
    """Time of the peak, s."""


class SurveySection(Section):
    """A gathers file with observed data, or a survey to simulate them for."""

    file: FileName | None = None
    sources: Points | None = None
    receivers: Points | None = None
    wavelet: Wavelet | None = None
    dt: Seconds | None = None
    """Of wavelet and traces, s."""
    duration: Seconds | None = None
    """Of the record, s."""

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
    """A history told exactly; keys not given are the defaults of `wave.history`."""

    kind: Literal["snapshots", "boundary", "recompute"] = "snapshots"
    interval: Count | None = None
    """Steps from one sampled step to the next; 1 gives the exact gradient."""
    format: Literal["full", "float32", "bfloat16", "float16", "int8"] | None = None
    """How numbers are kept."""
    states: Count | None = None
    """Whole states that recomputation starts from."""

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
    order: Literal[2, 4, 6, 8] = 8
    boundary: Annotated[int, Field(ge=0, le=1000)] = 20
    """Cells of absorbing boundary."""
    aperture: Length | None = None
    """Simulate a shot in the part of the model this near to its source and receivers, m."""
    free_surface: bool = False
    engine: Literal["auto", "eager", "cpu", "gpu", "deepwave"] = "auto"
    history: Annotated[
        Annotated[Literal["auto", "snapshots", "boundary", "recompute"], Tag("a name")]
        | Annotated[Kept, Tag("a table")],
        Discriminator(_tag_history),
    ] = "auto"
    memory: Annotated[str, BeforeValidator(_check_size)] | None = None
    """What the simulations of one rank may take, with its unit; what is free where not given."""


class Optimizer(Section):
    """torch.optim's Adam or SGD; keys not given are torch's defaults."""

    name: Literal["adam", "sgd"]
    # What is beyond these is infinite, or zero, in single precision.
    lr: Annotated[float, Field(gt=0.0, le=1e30)]
    eps: Annotated[float, Field(ge=1e-37, le=1e30)] | None = None
    betas: Annotated[tuple[float, float], Field(strict=False)] | None = None
    momentum: float | None = Field(None, ge=0.0, lt=1.0)

    @model_validator(mode="after")
    def _keys_of_its_own(self) -> Self:
        foreign = {"adam": ("momentum",), "sgd": ("eps", "betas")}[self.name]
        for key in foreign:
            if getattr(self, key) is not None:
                raise ValueError(f"{self.name} has no {key}")
        if self.betas and not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas are {list(self.betas)}; expected two numbers from 0 up to 1")
        return self


class InversionSection(Section):
    """The updates."""

    epochs: Annotated[int, Field(gt=0, le=999_999)]
    batch: Count
    """Shots of an epoch."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    optimizer: Optimizer
    fixed_above: Position | None = None
    """Depth down to which the model is known and kept, m."""
    bounds: Annotated[tuple[Velocity, Velocity], Field(strict=False)] | None = None
    """Smallest and largest velocity, m/s."""
    schedule: Literal["static", "dynamic"] = "static"
    """Equal parts for all ranks, or the next shots to whichever has finished its last."""
    reproducible: bool = True
    """The same bits for any number of ranks and any schedule."""
    max_failed_shots: float = Field(0.05, ge=0.0, lt=1.0)
    """Share of the survey's shots that may be set aside because their results are not finite."""
    max_offset: Length | None = None
    """Leave out the traces of receivers further than this from the source, m."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.bounds and self.bounds[0] >= self.bounds[1]:
            raise ValueError(f"bounds are {list(self.bounds)}; expected the smaller one first")
        return self


class OutputSection(Section):
    """The run directory."""

    directory: FileName
    every: Count = 10
    """Epochs from one set of figures to the next."""
    checkpoint: Count = 5
    """Epochs from one checkpoint to the next."""


def _exactly_one(section: Section, *keys: str) -> None:
    if sum(getattr(section, key) is not None for key in keys) != 1:
        raise ValueError(f"expected exactly one of {' and '.join(keys)}")
