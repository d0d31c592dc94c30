"""Trace headers and samples of SEG-Y and Seismic Unix files, and positions from headers.

Several files are read as one. They may come from any program, in either byte order and any sample
format, and are checked. Positions of sources and receivers are in m. Lengths and times that are
not plausible are errors, whose messages name the likely unit. `choosing` sorts traces into shots,
and `writing` writes SEG-Y files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hpcfwi.convert.layout import (
    FORMATS,
    HEADER,
    IBM,
    IEEE,
    FileLayout,
    Headers,
    open_binary,
    read_layout,
)
from hpcfwi.convert.request import Request
from hpcfwi.errors import InputError, refusing

log = logging.getLogger("hpcfwi")

AT_ONCE = 2**22  # bytes of headers, or of traces, that are read at a time
LOOKED_AT = 256  # largest number of traces whose samples are compared with the format
LARGEST = 2**26  # bytes of a trace; the samples of longer ones are not compared with the format
FEWEST = 40  # different numbers that are needed to distinguish the kinds of floats


def find_layout(path: Path, headers: Headers) -> FileLayout:
    """Read the layout of a file, and compare its samples with the format in its header.

    Raises `InputError` if headers have impossible values or contradict the contents.
    """
    layout = read_layout(path, headers)
    if "format" not in headers.constants:
        _check_floats(layout)
    return layout


def _check_floats(layout: FileLayout) -> None:
    """Raise `InputError` if the header says IBM floats and the samples are IEEE, or vice versa."""
    if layout.code not in (IBM, IEEE) or layout.trace_size > LARGEST:
        return
    most = min(layout.n_traces, LOOKED_AT, max(1, AT_ONCE // layout.trace_size))
    chosen = np.unique(np.linspace(0, layout.n_traces - 1, most).astype(np.int64))
    words = np.concatenate([*_read_runs(layout, chosen)])
    found = tell_floats(words.view(f"{layout.endian}u4").astype(np.uint32))
    if found not in (None, layout.code):
        names = {IBM: "IBM", IEEE: "IEEE"}
        raise InputError(
            f"{layout.path}, bytes 3225-3226",
            f"found {layout.code} as format, {names[layout.code]} floats, but the bits of the "
            f"samples are those of {names[found]} floats",
            f"Give --value format={found}, or --value format={layout.code} if that is right.",
        )


def tell_floats(words: NDArray[np.uint32]) -> int | None:
    """Distinguish IBM from IEEE floats by their bits.

    Both formats begin with a sign and an exponent, and their magnitudes grow with the other 31
    bits. In normalized IBM floats the first hexadecimal digit of the 24 bits of the fraction is not
    0. In IEEE floats the first bit of the same digit is the last one of the exponent, so that a
    digit of 0 is about as frequent as the neighbouring values.

    Each different number is counted once, by exponent and digit, however frequent it is. A digit of
    0 counts only if the neighbouring values below and above occur too, since numbers in a narrow
    range have no 0 in either format. In IEEE floats a power of 2 begins at the digit 8, whose
    numbers cover twice the range of those with the digit 7.

    Returns the code of the format, or None if there are too few different numbers to decide.
    """
    numbers = np.unique(words & 0x7FFFFFFF)
    counts = np.bincount(numbers >> 20, minlength=2048).astype(np.float64)
    below, zero, above = counts[15:-1:16], counts[16::16], counts[17::16]
    expected = np.minimum(2.0 * below, above).sum()
    found = zero[np.minimum(below, above) > 0.0].sum()
    seventh, eighth = counts[7::16].sum(), counts[8::16].sum()
    if expected < FEWEST or seventh < FEWEST / 4.0:
        return None
    if found <= 0.02 * expected and eighth < 1.35 * seventh:
        return IBM
    if found >= 0.5 * expected and eighth > 1.35 * seventh:
        return IEEE
    return None


def read_headers(layout: FileLayout, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read fields (trace,) of all trace headers; raises `InputError`."""
    parts: dict[str, list[NDArray]] = {name: [] for name in names}
    width = min(layout.header, 2 * HEADER)
    rows = AT_ONCE // width
    with open_binary(layout.path) as file:
        for start in range(0, layout.n_traces, rows):
            raw = np.empty((min(rows, layout.n_traces - start), width), dtype=np.uint8)
            for number, row in enumerate(raw, start):
                file.seek(layout.first + number * layout.trace_size)
                _fill(layout, file, row)
            for name, part in parts.items():
                part.append(layout.headers.read(name, raw, layout.endian))
    return {name: np.concatenate(part) for name, part in parts.items()}


def read_traces(layout: FileLayout, traces: NDArray[np.int64]) -> NDArray[np.float32]:
    """Read the traces (trace, time) with these numbers, from 0, in the given order.

    Raises `InputError`.
    """
    found, done = np.empty((len(traces), layout.n_samples), dtype=np.float32), 0
    for raw in _read_runs(layout, traces):
        found[done : done + len(raw)] = _decode(raw, layout)
        done += len(raw)
    return found


def _read_runs(layout: FileLayout, traces: NDArray[np.int64]) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes (trace, byte) of the samples of traces, consecutive ones together."""
    most = max(1, AT_ONCE // layout.trace_size)
    with open_binary(layout.path) as file:
        for run in np.split(traces, np.flatnonzero(np.diff(traces) != 1) + 1):
            for start in range(0, run.size, most):
                raw = np.empty((min(most, run.size - start), layout.trace_size), dtype=np.uint8)
                file.seek(layout.first + int(run[start]) * layout.trace_size)
                _fill(layout, file, raw)
                yield np.ascontiguousarray(raw[:, layout.header :])


def _decode(raw: NDArray[np.uint8], layout: FileLayout) -> NDArray[np.float32]:
    values = raw.view(layout.endian + FORMATS[layout.code])
    # Values that are too large for float32 become infinite.
    with np.errstate(over="ignore", invalid="ignore"):
        if layout.code == IBM:
            values = _from_ibm(values.astype(np.uint32))
        return values.astype(np.float32)


def _from_ibm(bits: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Decode IBM floats: a sign, 7 bits of an exponent of 16 plus 64, and 24 bits of a fraction.

    The function of segyio is not used: it is wrong if the first digit of the fraction is 0.
    """
    fraction = (bits & 0xFFFFFF).astype(np.float64)
    exponent = ((bits >> 24) & 0x7F).astype(np.int32)
    return np.where(bits >> 31, -1.0, 1.0) * np.ldexp(fraction, 4 * (exponent - 64) - 24)


def _fill(layout: FileLayout, file: BinaryIO, buffer: NDArray[np.uint8]) -> None:
    """Fill an array from the file; raises `InputError` if the file ends before."""
    with refusing(str(layout.path), "it cannot be read", "Check its file system."):
        view, done = memoryview(buffer.data).cast("B"), 0
        while done < len(view):
            count = file.readinto(view[done:])  # type: ignore[attr-defined]
            if not count:
                raise InputError(
                    str(layout.path), "it became shorter while it was read", "Copy it again."
                )
            done += count


Table = Mapping[str, NDArray[Any]]
"""Columns (trace, ...) of the traces that are chosen.

They are the fields of trace headers by name, and what follows from these: the numbers of the
"trace" and, from 0, of its "file"; its first time "begin", s; the index of its "component"; the
positions of its "source" and "receiver", (trace, 3): x, y, z, m, where z points down from the
datum.
"""


def pick(table: Table, which: NDArray) -> dict[str, NDArray[Any]]:
    """Return some rows of a table."""
    return {name: column[which] for name, column in table.items()}


def find_offsets(table: Table) -> NDArray[np.float64]:
    """Return the horizontal distances (trace,) from source to receiver, m."""
    across = (table["receiver"] - table["source"])[:, :2]
    return np.asarray(np.linalg.norm(across, axis=1))


@dataclass(frozen=True)
class Files:
    """SEG-Y files with traces of one length, whose traces are numbered across all files."""

    layouts: tuple[FileLayout, ...]

    @property
    def headers(self) -> Headers:
        """The rules by which the headers of all files are read."""
        return self.layouts[0].headers

    @property
    def path(self) -> str:
        """The names of all files, shortened for messages."""
        return self.name(range(len(self.layouts)))

    def where(self, *names: str, which: NDArray[np.int64] | None = None) -> str:
        """Return the places of fields, and all or some files, as a text for messages."""
        files = self.path if which is None else self.name(which)
        return f"{files}, {self.headers.where(*names)}"

    @property
    def size(self) -> int:
        """The total size of the files, bytes."""
        return sum(layout.size for layout in self.layouts)

    @property
    def n_samples(self) -> int:
        return self.layouts[0].n_samples

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The number of the first trace of each file, and at the end that of all traces."""
        counts = [layout.n_traces for layout in self.layouts]
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def name(self, which: Sequence[int] | NDArray[np.int64]) -> str:
        """Return a text for messages with the first of these files and the number of the others."""
        numbers = np.unique(which)
        first = str(self.layouts[numbers[0]].path)
        return first if numbers.size == 1 else f"{first} and {numbers.size - 1} more of the files"

    def read(self, traces: NDArray[np.int64]) -> NDArray[np.float32]:
        """Read the traces (trace, time) with these numbers, in the given order.

        Files are opened in each call, as there may be more files than a process may have open.
        Raises `InputError`.
        """
        found = np.empty((traces.size, self.n_samples), dtype=np.float32)
        files = np.searchsorted(self.starts, traces, side="right") - 1
        for file in np.unique(files):
            these = files == file
            found[these] = read_traces(self.layouts[file], traces[these] - self.starts[file])
        return found


def check_alike(layouts: Sequence[FileLayout], intervals: Sequence[float]) -> None:
    """Raise `InputError` if files differ in sampling interval, trace length or unit of length.

    intervals: sampling interval of each file, s.
    """
    for what, found, remedy in (
        (
            "the sampling interval in s",
            [f"{dt:g}" for dt in intervals],
            "Give --dt if it is the same in all of them, or leave the file out.",
        ),
        (
            "the number of samples",
            [layout.n_samples for layout in layouts],
            "Leave the file out, or make its traces as long as those of the others.",
        ),
        (
            "the unit of lengths (bytes 3255-3256)",
            ["feet" if layout.in_feet else "metres" for layout in layouts],
            "Give --value measurement=1 (metres) or 2 (feet) if it is the same in all of them.",
        ),
    ):
        for layout, value in zip(layouts, found, strict=True):
            if value != found[0]:
                raise InputError(
                    str(layout.path),
                    f"found {value} for {what}, expected {found[0]} as in {layouts[0].path}",
                    remedy,
                )


# Plausible sampling intervals, s: field records have no longer ones, and only records of small
# models have shorter ones.
LONGEST, SHORTEST = 0.1, 2e-5
# Generous limits of the velocities of waves in water and rock, m/s.
SLOWEST, FASTEST = 1.5e3, 1e4
# Smallest plausible value of the largest offset, as a share of the distance that the slowest wave
# travels in a record.
NEAREST = 1e-3
# Largest deviation of a time from a multiple of the sampling interval, in samples.
ON_SAMPLE = 0.01
# Largest ratio, either way, of a distance to the offset in the header that gives no warning.
ASTRAY = 5.0


def check_interval(dt: float, where: str) -> None:
    """Raise `InputError` for a sampling interval (s) that is not plausible."""
    if not 0.0 < dt <= LONGEST:
        likely = f"; it looks like milliseconds: {dt / 1000:g} s" * (dt > LONGEST)
        raise InputError(
            where,
            f"found a sampling interval of {dt:g} s, expected a number above 0, up to {LONGEST:g} s"
            f"{likely}",
            "Give it in s.",
        )


def find_interval(given: float | None, table: Table, layout: FileLayout) -> float:
    """Return the sampling interval, s: the given one, or that of the headers.

    Raises `InputError` if the headers have no interval, different ones, or one that is not
    plausible.
    """
    if given is not None:
        check_interval(given, "--dt")
        return given
    intervals = table["interval"].astype(np.float64)
    places = filter(None, (layout.interval_at, layout.headers.where("interval")))
    where = f"{layout.path}, {' and '.join(places)}"
    if not 0.0 <= layout.interval <= 1e6 * LONGEST:
        raise InputError(
            where,
            f"found a sampling interval of {layout.interval:g} microseconds, expected up to "
            f"{1e6 * LONGEST:g}",
            "Give the interval with --dt, in s.",
        )
    if layout.interval % 1.0:  # trace headers hold whole microseconds only
        intervals = intervals[np.abs(intervals - layout.interval) >= 1.0]
    found = np.unique(np.append(intervals, layout.interval))
    found = found[found > 0]
    if found.size != 1:
        many = ", ".join(f"{1e-6 * us:g} s" for us in found[:4]) + ", ..." * (found.size > 4)
        raise InputError(
            where,
            f"found the sampling intervals {many}" if found.size else "found no sampling interval",
            "Give it with --dt, in s.",
        )
    dt = float(found[0]) / 1e6
    if dt < SHORTEST:
        raise InputError(
            where,
            f"found a sampling interval of {dt:g} s; {1e6 * dt:g} looks like milliseconds, but the "
            "standard has microseconds",
            f"Give --dt {1000 * dt:g}, or --dt {dt:g} if that is right.",
        )
    return dt


def check_distances(table: Table, duration: float, layout: FileLayout) -> None:
    """Compare offsets from positions with the distances that waves travel, and with the headers.

    duration: length of a record, s.

    Raises `InputError` if the offsets are too short or too long for the duration, and warns if
    those of the headers are very different. Neither is done if the user gives the coordinate
    scalar.
    """
    distances = np.linalg.norm(table["receiver"] - table["source"], axis=1)
    furthest, middle = float(distances.max()), float(np.median(distances))
    if furthest == 0.0 or "coordinate_scalar" in layout.headers.constants:
        return
    where = layout.where("source_x", "receiver_x", "coordinate_scalar")
    record = f"the record is {duration:.4g} s long"
    remedy = (
        "Give --value coordinate_scalar=NUMBER, a factor if above 0, a divisor if below; or --dt, "
        "if the length of the record is wrong."
    )
    if furthest < NEAREST * SLOWEST * duration:
        raise InputError(
            where,
            f"no receiver is further than {furthest:.4g} m from its source, and {record}: the "
            "coordinates look like km",
            f"{remedy} For km the scalar is 1000.",
        )
    if middle > FASTEST * duration:
        raise InputError(
            where,
            f"most receivers are {middle:.4g} m or further from their source, too far for any "
            f"wave to arrive in time: {record}; the coordinates look like cm or mm, or the length "
            "of the record is wrong",
            f"{remedy} For cm the scalar is -100.",
        )
    recorded = np.abs(table["offset"].astype(np.float64))
    both = (recorded > 0.0) & (distances > 0.0)
    if both.any():
        ratio = float(np.median(distances[both] / recorded[both]))
        if not 1.0 / ASTRAY < ratio < ASTRAY:
            log.warning(
                "%s: positions are %.3g times as far apart as the offsets in %s; check the scalar "
                "of the coordinates",
                layout.path,
                ratio,
                layout.headers.where("offset"),
            )


FOOT = 0.3048  # m
HIGHEST = 2e4  # m, largest depth or elevation relative to the datum
FURTHEST = 1e8  # m, largest coordinate; no map of the earth has larger ones
# Largest width of the strip of points that is taken for a line, as a share of its length.
STRAIGHT = 0.1
# Codes of units of coordinates that are not lengths.
ANGLES = {2: "seconds of arc", 3: "degrees", 4: "degrees, minutes and seconds"}
NAMES = (
    *("source_x", "source_y", "receiver_x", "receiver_y", "coordinate_scalar", "unit"),
    *("source_elevation", "source_depth", "receiver_elevation", "receiver_depth"),
    "elevation_scalar",
)


def find_positions(
    table: Table, layout: FileLayout, request: Request
) -> dict[str, NDArray[np.float64]]:
    """Return the columns "source" and "receiver" of a table; raises `InputError`."""
    for code, name in ANGLES.items():
        if (table["unit"] == code).any():
            raise InputError(
                layout.where("unit"),
                f"found {code}: coordinates in {name}, expected lengths",
                "Project them to metres; if they are lengths already, give --value unit=1.",
            )
    found = {}
    for of in ("source", "receiver"):
        x, y, elevation, depth = read_map(table, of, layout, request).T
        found[of] = np.stack([x, y, depth - elevation + request.datum], axis=1)
    for of, points in found.items():
        for what, numbers, most, names in (
            ("depth", points[:, 2:], HIGHEST, (f"{of}_elevation", f"{of}_depth")),
            ("coordinate", points[:, :2], FURTHEST, (f"{of}_x", f"{of}_y")),
        ):
            bad = ~(np.abs(numbers) <= most)
            if bad.any():
                scalar = "elevation_scalar" if what == "depth" else "coordinate_scalar"
                raise InputError(
                    layout.where(*names, scalar),
                    f"trace {int(bad.nonzero()[0][0]) + 1} has a {of} {what} of "
                    f"{numbers[bad][0]:.6g} m, expected at most {most:g} m",
                    f"Give the right values (--value {names[1]}=NUMBER and so on) or bytes "
                    "(--bytes), or leave traces out with --keep traces=FIRST:END.",
                )
    return found


def read_map(table: Table, of: str, layout: FileLayout, request: Request) -> NDArray[np.float64]:
    """Return positions (trace, 4) on the map: x, y, elevation of the surface, depth below it, m.

    of: "source" or "receiver".
    """
    metres = FOOT if layout.in_feet else 1.0

    def length(name: str, scalar: str) -> NDArray[np.float64]:
        return metres * scale(table[f"{of}_{name}"].astype(np.float64), table[scalar])

    height = length("elevation", "elevation_scalar")
    lengths = [
        *(length(axis, "coordinate_scalar") for axis in "xy"),
        -height if request.depths else height,
        length("depth", "elevation_scalar"),
    ]
    return np.stack(lengths, axis=1)


def scale(numbers: NDArray[np.float64], scalars: NDArray) -> NDArray[np.float64]:
    """Apply scalars of the standard, which are factors if positive and divisors if negative.

    Numbers are divided, not multiplied by an inverse, so that 125 with -10 is exactly 12.5.
    """
    scalars = scalars.astype(np.float64)
    factors = np.where(scalars > 0.0, scalars, 1.0)
    return numbers * factors / np.where(scalars < 0.0, -scalars, 1.0)


@dataclass(frozen=True)
class Line:
    """A line on the map through two points (x, y). Along the line, the first is at x = 0."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]

    @cached_property
    def direction(self) -> NDArray[np.float64]:
        """The unit vector from the first point to the second."""
        way = self.end - self.start
        return np.asarray(way / np.linalg.norm(way))

    def along(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Project points (n, 3), x, y, z, to the line and return their z and x, (n, 2)."""
        if self.direction.tolist() == [1.0, 0.0]:
            return np.stack([points[:, 2], points[:, 0] - self.start[0]], axis=1)
        return np.stack([points[:, 2], (points[:, :2] - self.start) @ self.direction], axis=1)

    def on_map(self, along: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the map coordinates (n, 2) of points at distances (n,) from the start."""
        return self.start + along[:, None] * self.direction

    def away(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the distances of points (n, 3) from the line, (n,)."""
        across = np.array([-self.direction[1], self.direction[0]])
        return np.asarray(np.abs((points[:, :2] - self.start) @ across))

    def azimuth(self) -> float:
        """Return the direction of growing x, in degrees clockwise from north (y of the map)."""
        east, north = self.direction
        return float(np.degrees(np.arctan2(east, north)) % 360.0)

    def __str__(self) -> str:
        """Return the value of `--line` for this line."""
        return ",".join(repr(float(v)) for v in (*self.start, *self.end))


def make_line(numbers: Sequence[float]) -> Line:
    """Make a line from x, y of its two points in `--line`; raises `InputError`."""
    start, end = np.array(numbers, dtype=np.float64).reshape(2, 2)
    if not 0.0 < np.linalg.norm(end - start) < np.inf:
        raise InputError("--line", "its two points are the same", "Give two different points.")
    return Line(start, end)


def choose_line(table: Table, request: Request, files: Files) -> Line | None:
    """Return the line of a 2-D survey, or None if positions are to be in three dimensions.

    `request.axes` or `request.line` decides. Without them the survey is 2-D if the width of the
    points across their line is at most `STRAIGHT` times their length along it, and an `InputError`
    is raised otherwise.
    """
    if request.axes == "zyx":
        return None
    if request.line is not None:
        return make_line(request.line)
    points = np.concatenate([table["source"], table["receiver"]])
    line = _fit_line(points)
    along, away = line.along(points)[:, 1], line.away(points)
    across = 2.0 * float(away.max())
    if request.axes is None and across > STRAIGHT * np.ptp(along):
        raise InputError(
            f"{files.where('source_x', 'source_y')} and others",
            f"sources and receivers cover {np.ptp(along):.6g} m by {across:.6g} m, not a line",
            "Give --axes zyx for a 3-D survey, or --axes zx to project them to their line.",
        )
    return line


def _fit_line(points: NDArray[np.float64]) -> Line:
    """Fit the line of least squared distances (Pearson 1901), towards the east.

    It goes from the first point to the last. If all y are the same, positions along it are the x of
    the map.
    """
    places = points[:, :2]
    if not np.ptp(places[:, 1]):
        return Line(*np.array([[0.0, places[0, 1]], [1.0, places[0, 1]]]))
    middle = places.mean(axis=0)
    _, vectors = np.linalg.eigh((places - middle).T @ (places - middle))
    direction = vectors[:, -1] * (1.0 if tuple(vectors[:, -1]) > (0.0, 0.0) else -1.0)
    along = (places - middle) @ direction
    return Line(middle + along.min() * direction, middle + along.max() * direction)
