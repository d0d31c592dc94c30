"""The request for a conversion: the options of `hpcfwi convert`, and the kinds of the files.

`cli` imports this module to parse the command line, so that it imports others only when they are
needed. `to_gathers` carries the request out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from hpcfwi.errors import InputError, quote

if TYPE_CHECKING:
    from hpcfwi.convert.layout import Field, Headers

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


# Functions that parse the texts of options. Typer adds the option to their errors.


def _bad(found: object, expected: str) -> typer.BadParameter:
    return typer.BadParameter(f"found {quote(found)}, expected {expected}")


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        raise _bad(text, "a finite number")
    return number


def _size(text: str) -> float:
    number = _number(text)
    if not abs(number) < 1e9:
        raise _bad(text, "a number between -1e9 and 1e9")
    return number


def _named(text: str, names: Collection[str]) -> tuple[str, str]:
    """Split a text like "name=rest"."""
    name, equals, rest = text.partition("=")
    if not equals or name not in names:
        raise _bad(text, f"NAME=..., where NAME is one of {', '.join(names)}")
    return name, rest


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) < 16


def parse_field(text: str) -> tuple[str, Field]:
    """Parse the position of a header field, like "source_x=73:i4"."""
    from hpcfwi.convert.layout import FIELDS, TYPES, Field

    name, where = _named(text, FIELDS)
    at, _, kind = where.partition(":")
    kind = kind or (FIELDS[name].kind if FIELDS[name].at else "i4")
    if kind not in TYPES or not at.isdecimal() or len(at) > 3:
        raise _bad(text, f"a position and, if need be, a type: {', '.join(TYPES)}")
    if not 1 <= int(at) <= 241 - int(kind[1]):
        raise _bad(text, "a position from 1 within the 240 bytes of a trace header")
    return name, Field(int(at), kind)


def parse_value(text: str) -> tuple[str, float]:
    """Parse the value of a header field, like "coordinate_scalar=-100"."""
    from hpcfwi.convert.layout import FIELDS

    name, number = _named(text, FIELDS)
    return name, _number(number)


def _keep(text: str) -> tuple[str, Any]:
    """Parse a text like "time=0:4.0", "shots=0:100:2", "code=11" or "repeat=0"."""
    name, ends = _named(text, ("time", "offset", "shots", "traces", "code", "repeat"))
    parts = [part.strip() or None for part in ends.split(":")]
    if name in ("time", "offset"):
        if len(parts) != 2:
            raise _bad(text, f"{name}=FIRST:LAST")
        return name, tuple(None if part is None else _number(part) for part in parts)
    if name in ("code", "repeat"):
        numbers = [part.strip() for part in ends.split(",")]
        whole = [_is_count(n.removeprefix("-" * (name == "code"))) for n in numbers]
        if not all(whole) or (name == "repeat" and len(whole) > 1):
            raise _bad(text, "code=NUMBER,... or repeat=NUMBER, from 0")
        return name, tuple(map(int, numbers)) if name == "code" else int(numbers[0])
    if not 2 <= len(parts) <= 3 or not all(p is None or _is_count(p) for p in parts):
        raise _bad(text, f"{name}=FIRST:END or {name}=FIRST:END:STEP, from 0")
    found = slice(*(None if part is None else int(part) for part in parts))
    if found.step == 0:
        raise _bad(text, "a step of 1 or more")
    return name, found


def _numbers(*counts: int) -> Callable[[str], tuple[float, ...]]:
    """Return a function that parses one of these counts of numbers, like "25,12.5"."""

    def parse(text: str) -> tuple[float, ...]:
        numbers = tuple(_number(part) for part in text.split(","))
        if len(numbers) not in counts:
            raise _bad(text, f"{' or '.join(map(str, counts))} numbers, separated by commas")
        return numbers

    return parse


def _shape(text: str) -> tuple[int, ...]:
    numbers = _numbers(2, 3)(text)
    if any(n < 1 or n != int(n) or n > 1e9 for n in numbers):
        raise _bad(text, "whole numbers of points from 1 to 1e9, along z, (y,) x")
    return tuple(map(int, numbers))


def _spacing(text: str) -> tuple[float, ...]:
    numbers = _numbers(1, 2, 3)(text)
    if not 1e-6 <= min(numbers) <= max(numbers) <= 1e6:
        raise _bad(text, "numbers from 1e-6 to 1e6, in m")
    return numbers


def _order(text: str) -> str:
    if sorted(text) not in (["x", "z"], ["x", "y", "z"]):
        raise _bad(text, "each of z, (y,) x once, the slowest first")
    return text


def _parameter(text: str) -> str:
    from hpcfwi.model import PARAMETERS

    if text not in PARAMETERS:
        raise _bad(text, f"one of {', '.join(PARAMETERS)}")
    return text


Numbers = Sequence[float]  # typer would take a tuple for an option of several words


class Selection(NamedTuple):
    """The part of the data that is kept.

    time: first and last time of the record, s; the first sample is written at the first time;
    offset: least and largest horizontal offset, m; shots, traces: numbers from 0, in the order of
    the written shots and of the file; code: trace codes; repeat: which of several traces of a shot
    at one receiver position is kept, from 0. The ranges of time and offset include their ends, and
    None means no limit.
    """

    time: tuple[float | None, float | None] = (None, None)
    offset: tuple[float | None, float | None] = (None, None)
    shots: slice = slice(None)
    traces: slice = slice(None)
    code: tuple[int, ...] | None = None
    repeat: int | None = None


@dataclass(frozen=True)
class Request:
    """The arguments and options of `hpcfwi convert`, whose help describes them.

    Shapes, spacings and origins are in the order (z, x) or (z, y, x), whatever the order of a file.
    """

    sources: Annotated[
        list[Path],
        typer.Argument(metavar="FROM", help="The file to read; several for SEG-Y data in parts."),
    ]
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TO",
            help="The file to write. The ends of the names give the kinds of the files.",
        ),
    ]
    wavelet: Annotated[
        Path | None, typer.Option(help="File with the wavelet of SEG-Y data: .npy, text or .h5.")
    ] = None
    dt: Annotated[float | None, typer.Option(help="Sampling interval, s.")] = None
    parts: Annotated[
        list[Any] | None,
        typer.Option(
            "--keep",
            metavar="NAME=PART",
            parser=_keep,
            help="Part of the data: time=FIRST:LAST (s), offset=NEAR:FAR (m), shots=0:60:2, "
            "traces=0:5000, code=11, repeat=0.",
        ),
    ] = None
    fields: Annotated[
        list[Any] | None,
        typer.Option(
            "--bytes",
            metavar="NAME=POSITION",
            parser=parse_field,
            help="Bytes of a header field: source_x=POSITION[:i4].",
        ),
    ] = None
    values: Annotated[
        list[Any] | None,
        typer.Option(
            "--value",
            metavar="NAME=NUMBER",
            parser=parse_value,
            help="Value of a header field: coordinate_scalar=-100.",
        ),
    ] = None
    endian: Annotated[
        Literal["big", "little"] | None, typer.Option(help="Byte order of SEG-Y and raw files.")
    ] = None
    axes: Annotated[
        Literal["zx", "zyx"] | None,
        typer.Option(
            help="Axes of positions: zx, along a line, or zyx, in an area; by default, zx if all "
            "points lie near a line."
        ),
    ] = None
    line: Annotated[
        Numbers | None,
        typer.Option(
            metavar="X0,Y0,X1,Y1",
            parser=_numbers(4),
            help="Two points of the line of a 2-D survey or model, m; x = 0 at the first.",
        ),
    ] = None
    datum: Annotated[
        float, typer.Option(metavar="NUMBER", parser=_size, help="Elevation of z = 0, m.")
    ] = 0.0
    depths: Annotated[
        Literal["positive-elevation"] | None,
        typer.Option(help="The fields of elevations hold depths."),
    ] = None
    model: Annotated[bool, typer.Option("--model", help="The SEG-Y file holds a model.")] = False
    parameter: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            parser=_parameter,
            help="Parameter of a model, such as vs, rho or qp; P velocity by default.",
        ),
    ] = None
    shape: Annotated[
        Sequence[int] | None,
        typer.Option(metavar="NZ,NX", parser=_shape, help="Shape of a model: NZ,NX or NZ,NY,NX."),
    ] = None
    spacing: Annotated[
        Numbers | None,
        typer.Option(
            metavar="NUMBERS", parser=_spacing, help="Spacing, m: one number, or one per axis."
        ),
    ] = None
    origin: Annotated[
        Numbers | None,
        typer.Option(
            metavar="NUMBERS",
            parser=_numbers(2, 3),
            help="Position of the first point, m: one number per axis.",
        ),
    ] = None
    order: Annotated[
        str | None,
        typer.Option(
            metavar="AXES",
            parser=_order,
            help="Axes of an array file, the slowest first, such as xz; by default zx or zyx.",
        ),
    ] = None
    variable: Annotated[str | None, typer.Option(help="Name of the array in a .mat file.")] = None
    scale: Annotated[
        float, typer.Option(metavar="NUMBER", parser=_size, help="Factor of the values of a model.")
    ] = 1.0
    quantity: Annotated[
        Literal["velocity", "slowness", "slowness-squared"],
        typer.Option(help="Quantity in the file, which is converted to a velocity."),
    ] = "velocity"
    reciprocity: Annotated[
        bool, typer.Option("--reciprocity", help="Exchange sources and receivers.")
    ] = False
    source_kind: Annotated[
        Literal["explosive", "force-z", "force-y", "force-x"],
        typer.Option(help="Kind of the sources."),
    ] = "explosive"

    @property
    def source(self) -> Path:
        """The file to read, the first one of several."""
        return self.sources[0]

    @property
    def array(self) -> str:
        """The name of the model's array, that of P velocity if it is not given."""
        from hpcfwi.model import PARAMETERS

        return self.parameter or next(iter(PARAMETERS))

    @cached_property
    def keep(self) -> Selection:
        """The part of the data that is kept."""
        return Selection(**dict(self.parts or []))

    @cached_property
    def headers(self) -> Headers:
        """The rules by which the headers of SEG-Y are read."""
        from hpcfwi.convert.layout import FIELDS, Headers

        fields = {**FIELDS, **dict(self.fields or [])}
        endian = {"big": ">", "little": "<", None: ""}[self.endian]
        return Headers(fields, dict(self.values or []), endian)
