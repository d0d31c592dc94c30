"""The request for a conversion: the kinds of the files, and the parsed options of the command.

The kind of a file follows from its name and, for HDF5, from its contents. `layout` defines the
header fields that a request may name, and `to_gathers` carries the request out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from hpcfwi.convert.layout import FIELDS, TYPES, Field, Headers
from hpcfwi.errors import InputError, quote
from hpcfwi.model import AXES, PARAMETERS
from hpcfwi.storage.models import read_attribute
from hpcfwi.storage.unfinished import FORMAT

SEGY, UNIX, HDF5, NPY, RAW, VTK = "SEG-Y", "Seismic Unix", "HDF5", "NumPy", "raw", "VTK"
MATLAB = "MATLAB"
KINDS = {
    **dict.fromkeys((".sgy", ".segy"), SEGY),
    ".su": UNIX,
    **dict.fromkeys((".h5", ".hdf5"), HDF5),
    ".npy": NPY,
    ".mat": MATLAB,
    **dict.fromkeys((".bin", ".raw", ".f32"), RAW),
    ".vti": VTK,
}


def kind_of(path: Path) -> str:
    """Return the kind of a file from its suffix; raises `InputError`."""
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise InputError(
            str(path),
            f"its name ends with {path.suffix!r}, expected one of {', '.join(KINDS)}",
            "Give it the suffix of its kind: SEG-Y, Seismic Unix, HDF5, NumPy, MATLAB, raw or VTK.",
        )
    return kind


def holds_gathers(path: Path) -> bool:
    """Return True if an HDF5 file holds gathers, and False for a model; raises `InputError`."""
    return bool(read_attribute(path, "format") == FORMAT)


KEEPS = ("time", "offset", "shots", "traces", "code", "repeat")
ENDIANS = {"big": ">", "little": "<"}


@dataclass(frozen=True)
class Keep:
    """The part of the data that is kept.

    time: first and last time of the record, s; the first sample is written at the first time;
    offset: least and largest horizontal offset, m; shots, traces: numbers from 0, in the order of
    the written shots and of the file; code: trace codes; repeat: which of several traces of a shot
    at one receiver position is kept, from 0. The ranges of time and offset include their ends, and
    None means no limit.
    """

    time: tuple[float | None, float | None] = (None, None)
    offset: tuple[float | None, float | None] = (None, None)
    shots: slice = field(default_factory=lambda: slice(None))
    traces: slice = field(default_factory=lambda: slice(None))
    code: tuple[int, ...] | None = None
    repeat: int | None = None


@dataclass(frozen=True)
class Request:
    """A request for a conversion.

    sources: files to read, several only of SEG-Y data; target: file to write; headers: rules for
    the headers of SEG-Y; wavelet: file with the wavelet; dt: sampling interval, s; keep: part of
    the data; axes: "zx", "zyx", or None to choose by the positions; line: x, y of two points of the
    line of a 2-D survey, m, the first at x = 0; datum: elevation of z = 0, m; depths:
    "positive-elevation" if fields of elevations hold depths; model: True if SEG-Y holds a model;
    parameter: of the values of the model, if it is named; shape, spacing (m), origin (m): of a
    model, in the order (z, x) or (z, y, x); order: axes of the array in a file, the slowest first;
    quantity: quantity of the values; scale: factor by which the values, converted to velocities,
    are multiplied; variable: name of the array in a MATLAB file; reciprocity: True to exchange
    sources and receivers; source_kind: of all sources.
    """

    sources: tuple[Path, ...]
    target: Path
    headers: Headers
    wavelet: Path | None = None
    dt: float | None = None
    keep: Keep = field(default_factory=Keep)
    axes: str | None = None
    line: tuple[float, ...] | None = None
    datum: float = 0.0
    model: bool = False
    parameter: str | None = None
    shape: tuple[int, ...] | None = None
    spacing: tuple[float, ...] | None = None
    origin: tuple[float, ...] | None = None
    order: str | None = None
    scale: float = 1.0
    reciprocity: bool = False
    depths: str | None = None
    quantity: str = "velocity"
    variable: str | None = None
    source_kind: str = "explosive"

    @property
    def source(self) -> Path:
        """The file to read, the first one of several."""
        return self.sources[0]

    @property
    def array(self) -> str:
        """The name of the model's array, that of P velocity if it is not given."""
        return self.parameter or next(iter(PARAMETERS))


def parse_headers(positions: Sequence[str], values: Sequence[str], endian: str | None) -> Headers:
    """Parse positions like "source_x=73:i4" and values like "coordinate_scalar=-100"."""
    fields, constants = dict(FIELDS), {}
    for text in positions:
        name, where = _named("--bytes", text, fields)
        at, _, kind = where.partition(":")
        kind = kind or (fields[name].kind if fields[name].at else "i4")
        if kind not in TYPES or not at.isdecimal() or len(at) > 3:
            raise _bad("--bytes", text, f"a position and, if need be, a type: {', '.join(TYPES)}")
        if not 1 <= int(at) <= 241 - int(kind[1]):
            raise _bad("--bytes", text, "a position from 1 within the 240 bytes of a trace header")
        fields[name] = Field(int(at), kind)
    for text in values:
        name, number = _named("--value", text, fields)
        constants[name] = _number("--value", number)
    return Headers(
        fields, constants, ENDIANS[choose("--endian", endian, ENDIANS)] if endian else ""
    )


def parse_keep(texts: Sequence[str]) -> Keep:
    """Parse texts like "time=0:4.0", "shots=0:100:2", "code=11" and "repeat=0"."""
    found: dict[str, Any] = {}
    for text in texts:
        name, ends = _named("--keep", text, KEEPS)
        parts = [part.strip() or None for part in ends.split(":")]
        if name in ("time", "offset"):
            if len(parts) != 2:
                raise _bad("--keep", text, f"{name}=FIRST:LAST")
            found[name] = tuple(None if p is None else _number("--keep", p) for p in parts)
            continue
        if name in ("code", "repeat"):
            numbers = [part.strip() for part in ends.split(",")]
            whole = [_is_count(n.removeprefix("-" * (name == "code"))) for n in numbers]
            if not all(whole) or (name == "repeat" and len(whole) > 1):
                raise _bad("--keep", text, "code=NUMBER,... or repeat=NUMBER, from 0")
            found[name] = tuple(map(int, numbers)) if name == "code" else int(numbers[0])
            continue
        if not 2 <= len(parts) <= 3 or not all(p is None or _is_count(p) for p in parts):
            raise _bad("--keep", text, f"{name}=FIRST:END or {name}=FIRST:END:STEP, from 0")
        found[name] = slice(*(None if p is None else int(p) for p in parts))
        if found[name].step == 0:
            raise _bad("--keep", text, "a step of 1 or more")
    return Keep(**found)


def parse_numbers(option: str, text: str | None, counts: Sequence[int]) -> tuple[float, ...] | None:
    """Parse a text like "25,12.5".

    counts: allowed numbers of values.
    """
    if text is None:
        return None
    numbers = tuple(_number(option, part) for part in text.split(","))
    if len(numbers) not in counts:
        raise _bad(option, text, f"{' or '.join(map(str, counts))} numbers, separated by commas")
    return numbers


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """Parse a text like "141,681"."""
    numbers = parse_numbers("--shape", text, sorted(AXES))
    if numbers is None:
        return None
    if any(n < 1 or n != int(n) or n > 1e9 for n in numbers):
        raise _bad("--shape", text, "whole numbers of points from 1 to 1e9, along z, (y,) x")
    return tuple(map(int, numbers))


def parse_spacing(text: str | None) -> tuple[float, ...] | None:
    """Parse a text like "25" or "25,12.5", of numbers above 0."""
    numbers = parse_numbers("--spacing", text, (1, *AXES))
    if numbers is not None and not 1e-6 <= min(numbers) <= max(numbers) <= 1e6:
        raise _bad("--spacing", text, "numbers from 1e-6 to 1e6, in m")
    return numbers


def parse_size(option: str, number: float) -> float:
    """Return a number, or raise `InputError` if its magnitude is not below 1e9."""
    if not abs(number) < 1e9:
        raise _bad(option, str(number), "a number between -1e9 and 1e9")
    return number


def parse_order(text: str | None) -> str | None:
    """Check a text like "xz", the axes of an array with the slowest first."""
    if text is not None and sorted(text) not in map(sorted, AXES.values()):
        raise _bad("--order", text, "each of z, (y,) x once, the slowest first")
    return text


def choose(option: str, text: str, names: Sequence[str] | Mapping[str, Any]) -> str:
    """Return a text, or raise `InputError` if it is not one of the names."""
    if text not in names:
        raise _bad(option, text, f"one of {', '.join(names)}")
    return text


def _named(option: str, text: str, names: Sequence[str] | dict[str, Field]) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not equals or name not in names:
        raise _bad(option, text, f"NAME=..., where NAME is one of {', '.join(names)}")
    return name, rest


def _number(option: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        raise _bad(option, text, "a finite number")
    return number


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) < 16


def _bad(option: str, found: str | None, expected: str) -> InputError:
    return InputError(option, f"found {quote(found)}, expected {expected}", "See docs/convert.md.")
