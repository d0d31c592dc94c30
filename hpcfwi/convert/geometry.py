"""Positions of sources and receivers in m, from the numbers in trace headers, and slips of units.

A slip is a length or a time that is a number and cannot be meant; it is refused with what it may
be. `storage.models` looks at the velocities of models. `choosing` makes shots of traces.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfwi.convert.layout import Headers, Layout
from hpcfwi.convert.request import Request
from hpcfwi.convert.segy import Files
from hpcfwi.errors import InputError

# s: no record of waves in the ground has longer samples, and few of those in a model shorter ones
LONGEST, SHORTEST = 0.1, 2e-5
# m/s: what waves in rock are within, generously
SLOWEST, FASTEST = 1.5e3, 1e4
# Of the way that the slowest wave goes in a record, what the furthest receiver is away at least
NEAREST = 1e-3
# Of a sample, how far samples may be off the times of others
ON_SAMPLE = 0.01
# Times that a distance may differ from the one that the header tells
ASTRAY = 5.0

log = logging.getLogger("hpcfwi")


def find_interval(given: float | None, columns: Columns, layout: Layout, headers: Headers) -> float:
    """The time between samples, s: what is given, or what the headers say, in microseconds.

    Raises `InputError` where they say nothing, or different things, or what cannot be meant.
    """
    if given is not None:
        if not 0.0 < given <= LONGEST:
            likely = f"; it looks like milliseconds: --dt {given / 1000:g}" * (given > LONGEST)
            expected = f"expected a number above 0, up to {LONGEST:g} s{likely}"
            raise InputError("--dt", f"found {given:g} s, {expected}", "Correct it.")
        return given
    told = columns["interval"].astype(np.float64)
    places = filter(None, (layout.interval_at, headers.where("interval")))
    where = f"{layout.path}, {' and '.join(places)}"
    if not 0.0 <= layout.interval <= 1e6 * LONGEST:
        raise InputError(
            where,
            f"found {layout.interval:g} microseconds between samples, expected up to "
            f"{1e6 * LONGEST:g}",
            "Give the interval with --dt, in s.",
        )
    if layout.interval % 1.0:  # which the headers of traces have to whole microseconds
        told = told[np.abs(told - layout.interval) >= 1.0]
    said = np.unique(np.append(told, layout.interval))
    said = said[said > 0]
    if said.size != 1:
        many = ", ".join(f"{1e-6 * us:g} s" for us in said[:4]) + ", ..." * (said.size > 4)
        raise InputError(
            where,
            f"they say {many} between samples" if said.size else "they hold no sample interval",
            "Give it with --dt, in s.",
        )
    dt = float(said[0]) / 1e6
    if dt < SHORTEST:
        raise InputError(
            where,
            f"found {dt:g} s between samples; it looks as if {1e6 * dt:g} were milliseconds, where "
            "the standard has microseconds",
            f"Give --dt {1000 * dt:g}, or --dt {dt:g} if that is right.",
        )
    return dt


def check_distances(
    places: Places, offsets: NDArray, duration: float, layout: Layout, headers: Headers
) -> None:
    """Compare distances from sources to receivers with what waves go in a record.

    offsets: from the headers, m; duration: s. Raises `InputError` where no wave could be seen to
    travel, unless the user has said what the scalar is, and warns where headers tell other
    distances.
    """
    distances = np.linalg.norm(places.receivers - places.sources, axis=1)
    furthest, middle = float(distances.max()), float(np.median(distances))
    if furthest == 0.0 or "coordinate_scalar" in headers.constants:
        return
    where = f"{layout.path}, {headers.where('source_x', 'receiver_x', 'coordinate_scalar')}"
    record = f"the record is {duration:.4g} s long"
    remedy = (
        "Give --value coordinate_scalar=NUMBER, a factor if above 0, a divisor if below; or --dt, "
        "where the record's time is wrong."
    )
    if furthest < NEAREST * SLOWEST * duration:
        raise InputError(
            where,
            f"no receiver is further than {furthest:.4g} m from its source, and {record}: the "
            "coordinates look like km",
            f"{remedy} Of km it is 1000.",
        )
    if middle > FASTEST * duration:
        raise InputError(
            where,
            f"most receivers are {middle:.4g} m or further from their source, where no wave comes "
            f"in time: {record}; the coordinates look like cm or mm, or the record's time is wrong",
            f"{remedy} Of cm it is -100.",
        )
    told = np.abs(offsets.astype(np.float64))
    both = (told > 0.0) & (distances > 0.0)
    if both.any():
        ratio = float(np.median(distances[both] / told[both]))
        if not 1.0 / ASTRAY < ratio < ASTRAY:
            log.warning(
                "%s: positions are %.3g times as far apart as %s say: see whether the scalar of "
                "the coordinates is right",
                layout.path,
                ratio,
                headers.where("offset"),
            )


Columns = Mapping[str, NDArray[Any]]

FOOT = 0.3048  # m
HIGHEST = 2e4  # m, above or below the datum
FURTHEST = 1e8  # m, of coordinates: the earth is smaller
# Of the length of the points, how far they may be spread across it to be taken for a line
STRAIGHT = 0.1
# What the unit of coordinates says where they are no lengths
ANGLES = {2: "seconds of arc", 3: "degrees", 4: "degrees, minutes and seconds"}
NAMES = (
    *("source_x", "source_y", "receiver_x", "receiver_y", "coordinate_scalar", "unit"),
    *("source_elevation", "source_depth", "receiver_elevation", "receiver_depth"),
    "elevation_scalar",
)


@dataclass(frozen=True)
class Places:
    """Sources and receivers of traces, (trace, 3), as x, y, z, in m; z is down from the datum."""

    sources: NDArray[np.float64]
    receivers: NDArray[np.float64]

    @property
    def offsets(self) -> NDArray[np.float64]:
        """Horizontal distances (trace,), m."""
        return np.asarray(np.linalg.norm((self.receivers - self.sources)[:, :2], axis=1))

    def select(self, traces: NDArray) -> Places:
        """Return the places of some traces."""
        return Places(self.sources[traces], self.receivers[traces])


def find_places(columns: Columns, layout: Layout, request: Request) -> Places:
    """Return places from the fields `NAMES` of trace headers; raises `InputError`."""
    headers = request.headers
    _check_units(columns["unit"], layout, headers)
    ends = []
    for of in ("source", "receiver"):
        x, y, elevation, depth = read_map(columns, of, layout, request).T
        ends.append(np.stack([x, y, depth - elevation + request.datum], axis=1))
    for of, points in zip(("source", "receiver"), ends, strict=True):
        heights = f"{of}_elevation", f"{of}_depth", "elevation_scalar"
        _check_size(points[:, 2], HIGHEST, "depth", of, heights, layout, headers)
        across = f"{of}_x", f"{of}_y", "coordinate_scalar"
        _check_size(points[:, :2], FURTHEST, "coordinate", of, across, layout, headers)
    return Places(*ends)


def read_map(columns: Columns, of: str, layout: Layout, request: Request) -> NDArray[np.float64]:
    """Positions on the map (trace, 4): x, y, elevation of the surface, and depth below it, m.

    of: "source" or "receiver".
    """
    metres = FOOT if layout.in_feet else 1.0

    def length(name: str, scalar: str) -> NDArray[np.float64]:
        return metres * scale(columns[f"{of}_{name}"].astype(np.float64), columns[scalar])

    height = length("elevation", "elevation_scalar")
    lengths = [
        *(length(axis, "coordinate_scalar") for axis in "xy"),
        -height if request.depths else height,
        length("depth", "elevation_scalar"),
    ]
    return np.stack(lengths, axis=1)


def scale(numbers: NDArray[np.float64], scalars: NDArray) -> NDArray[np.float64]:
    """Apply scalars of the standard: factors if above 0, divisors if below.

    Numbers are divided, not multiplied by an inverse, so that 125 with -10 is 12.5 to the bit.
    """
    scalars = scalars.astype(np.float64)
    factors = np.where(scalars > 0.0, scalars, 1.0)
    return numbers * factors / np.where(scalars < 0.0, -scalars, 1.0)


def _check_units(units: NDArray, layout: Layout, headers: Headers) -> None:
    for code, name in ANGLES.items():
        if (units == code).any():
            raise InputError(
                f"{layout.path}, {headers.where('unit')}",
                f"found {code}: coordinates in {name}, expected lengths",
                "Project them to metres; if they are lengths already, give --value unit=1.",
            )


def _check_size(
    numbers: NDArray[np.float64],
    most: float,
    what: str,
    of: str,
    names: tuple[str, ...],
    layout: Layout,
    headers: Headers,
) -> None:
    bad = ~(np.abs(numbers) <= most)
    if bad.any():
        first = int(bad.nonzero()[0][0])
        found = numbers[bad].flat[0]
        raise InputError(
            f"{layout.path}, {headers.where(*names)}",
            f"trace {first + 1} has a {of} {what} of {found:.6g} m, expected at most {most:g} m",
            f"Say what they are (--value {names[1]}=NUMBER, of each) or where (--bytes), or leave "
            "traces out with --keep traces=FIRST:END.",
        )


@dataclass(frozen=True)
class Line:
    """A line on the map: x, y of the point at x = 0, and its direction, of length 1."""

    start: NDArray[np.float64]
    direction: NDArray[np.float64]

    def along(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Positions (n, 2), z and x, of points (n, 3), x, y, z, projected to the line."""
        if self.direction.tolist() == [1.0, 0.0]:
            return np.stack([points[:, 2], points[:, 0] - self.start[0]], axis=1)
        return np.stack([points[:, 2], (points[:, :2] - self.start) @ self.direction], axis=1)

    def on_map(self, along: NDArray[np.float64]) -> NDArray[np.float64]:
        """Place distances (n,) from its start on the map, (n, 2)."""
        return self.start + along[:, None] * self.direction

    def away(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the distances of points (n, 3) from the line, (n,)."""
        across = np.array([-self.direction[1], self.direction[0]])
        return np.asarray(np.abs((points[:, :2] - self.start) @ across))

    def azimuth(self) -> float:
        """Direction in which x grows, in degrees clockwise from north (the y of the map)."""
        east, north = self.direction
        return float(np.degrees(np.arctan2(east, north)) % 360.0)

    def __str__(self) -> str:
        """Return the text for `--line`."""
        return ",".join(repr(float(v)) for v in (*self.start, *(self.start + self.direction)))


def make_line(numbers: Sequence[float]) -> Line:
    """Make the line that `--line` gives by x, y of two points; raises `InputError`."""
    x0, y0, x1, y1 = numbers
    start, way = np.array([x0, y0]), np.array([x1 - x0, y1 - y0])
    if not 0.0 < np.linalg.norm(way) < np.inf:
        raise InputError("--line", "its two points are the same", "Give two different points.")
    return Line(start, way / np.linalg.norm(way))


def choose_line(places: Places, request: Request, files: Files) -> Line | None:
    """The line of a 2-D survey; None where positions are to be in three dimensions.

    As `axes` says; by default a line, if the points are spread across it less than `STRAIGHT`
    of their length. Raises `InputError` where they are neither on one nor asked for in 3-D.
    """
    if request.axes == "zyx":
        return None
    if request.line is not None:
        return make_line(request.line)
    points = np.concatenate([places.sources, places.receivers])
    line = _fit_line(points)
    along, away = line.along(points)[:, 1], line.away(points)
    across = 2.0 * float(away.max())
    if request.axes is None and across > STRAIGHT * np.ptp(along):
        raise InputError(
            f"{files.path}, {request.headers.where('source_x', 'source_y')} and on",
            f"sources and receivers cover {np.ptp(along):.6g} m by {across:.6g} m: no line",
            "Give --axes zyx for a 3-D survey, or --axes zx to project them to their line.",
        )
    return line


def _fit_line(points: NDArray[np.float64]) -> Line:
    """The line of least squared distances (Pearson 1901), towards the east, from its first point.

    Where all y are the same it is the x of the headers.
    """
    places = points[:, :2]
    if not np.ptp(places[:, 1]):
        return Line(np.array([0.0, places[0, 1]]), np.array([1.0, 0.0]))
    middle = places.mean(axis=0)
    _, vectors = np.linalg.eigh((places - middle).T @ (places - middle))
    direction = vectors[:, -1] * (1.0 if tuple(vectors[:, -1]) > (0.0, 0.0) else -1.0)
    along = (places - middle) @ direction
    return Line(middle + along.min() * direction, direction)
