"""One inversion as the user wrote it: TOML in, frozen and validated objects out.

What can be checked without reading a model or a survey is checked here; the rest is checked in
`inversion.experiment`. Lengths are in m, times in s, velocities in m/s.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import tomli_w
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
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from hpcfwi.errors import LONGEST_QUOTE, InputError, quote
from hpcfwi.host import check_regular
from hpcfwi.model import FASTEST

Dataset = Literal["marmousi2", "marmousi1", "marmousi-window", "dome"]

# Samples of a trace, which no recorder has
MOST_SAMPLES = 10**6
# tomllib leaves it to Python to refuse integers of thousands of digits and thousands of brackets
_NO_TOML = (ValueError, RecursionError)

_T = TypeVar("_T")


def _tag(value: object) -> str:
    # In an error's path tags stand among the keys; no key has a space
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


class Config(Section):
    """A whole input file."""

    model: ModelSection
    survey: SurveySection
    wave: WaveSection = WaveSection()
    inversion: InversionSection
    output: OutputSection

    def to_toml(self) -> str:
        """The file that gives this config."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def load_config(path: Path, settings: Sequence[str] = ()) -> Config:
    """Read a config, changed by settings "section.key=value" whose values are TOML.

    path: a file, or a run directory, which has its own. Files that it names are relative to it.
    Raises `InputError` for anything that is not as this module says.
    """
    try:
        if path.is_dir():
            path = path / "config.toml"
        check_regular(path)
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(
            str(path), f"the config cannot be read ({reason})", "Check its name and permissions."
        ) from error
    try:
        tables = tomllib.loads(content)
    except _NO_TOML as error:
        raise InputError(
            str(path), f"not valid TOML ({error})", "Mend the line it names."
        ) from error
    for setting in settings:
        _change(tables, setting)
    try:
        config = Config.model_validate(tables)
    except ValidationError as error:
        raise _explain(path, error) from error
    return _with_files_of(config, path.parent)


def changed_keys(old: Config, new: Config) -> list[str]:
    """The keys, as section.key, whose values differ between two configs."""
    before, after = dict(_leaves(old.model_dump())), dict(_leaves(new.model_dump()))
    return sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def _exactly_one(section: Section, *keys: str) -> None:
    if sum(getattr(section, key) is not None for key in keys) != 1:
        raise ValueError(f"expected exactly one of {' and '.join(keys)}")


def _change(tables: dict[str, Any], setting: str) -> None:
    where = f"--set {setting if len(setting) <= LONGEST_QUOTE else quote(setting)}"
    name, equals, text = setting.partition("=")
    keys = name.strip().split(".")
    if not equals or len(keys) < 2 or not all(keys):
        raise InputError(where, "not a setting", "Write --set section.key=value.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except _NO_TOML:
        value = text.strip()
    table = tables
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise InputError(where, f"{key} is a value, not a table", "Name a key that exists.")
    table[keys[-1]] = value


def _explain(path: Path, error: ValidationError) -> InputError:
    """The first thing that is wrong, in one sentence."""
    first = error.errors()[0]
    # Where a value may have one of several types, pydantic appends the type that it tried.
    *parents, last = (str(part) for part in first["loc"] or ("the file",))
    sections = [part for part in parents if not _is_type(part)]
    kind, found = first["type"], first["input"]
    if kind == "extra_forbidden":
        name, section = quote(last)[1:-1], ".".join(sections)
        known = ", ".join(_known_keys(sections))
        return InputError(
            f"{path}: {'.'.join([*sections, name])}",
            "unknown key",
            f"{section or 'The file'} has the keys {known}.",
        )
    key = ".".join([*sections, *([] if _is_type(last) else [last])])
    if kind == "missing":
        return InputError(f"{path}: {key}", "missing", "Add the key.")
    message = first["msg"]
    for start in ("Value error, ", "Input should be ", "Tuple should have "):
        message = message.removeprefix(start)
    if kind == "value_error":
        return InputError(f"{path}: {key}", message, "Change the section.")
    return InputError(
        f"{path}: {key}", f"found {quote(found)}, expected {message}", "Change the value."
    )


def _is_type(part: str) -> bool:
    return part in ("a name", "a table", "a number", "a pair")


def _known_keys(sections: list[str]) -> list[str]:
    table: type[BaseModel] = Config
    for key in sections:
        kinds = [table.model_fields[key].annotation]
        while kinds:
            kind = kinds.pop()
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                table = kind
                break
            kinds.extend(getattr(kind, "__args__", ()))
    return sorted(table.model_fields)


def _with_files_of(config: Config, directory: Path) -> Config:
    """The config with the files that it names as absolute paths."""

    def absolute(file: str | None) -> str | None:
        if file is None:
            return None
        # A link keeps its name, by which the user knows it. realpath, unlike Path.resolve, leaves
        # links that lead in a circle to whoever opens the file.
        given = directory / file
        return str(Path(os.path.realpath(given.parent), given.name))

    initial = config.model.initial.model_copy(update={"file": absolute(config.model.initial.file)})
    model = config.model.model_copy(
        update={"file": absolute(config.model.file), "initial": initial}
    )
    survey = config.survey.model_copy(update={"file": absolute(config.survey.file)})
    return config.model_copy(update={"model": model, "survey": survey})
