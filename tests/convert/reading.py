"""A slow reader of small SEG-Y files after the standard and docs/convert.md, without hpcfwi.

Files that hpcfwi has converted are compared with it.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import groupby
from math import atan2, cos, dist, floor, fsum, hypot, inf, sin
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.convert.examples import DTYPES, PLACES

FOOT = 0.3048
ANGLES = (2, 3, 4)  # values of the coordinate unit
# Relative rounding error of sums of squares
ROUNDING = 1e-12
Point = tuple[float, float, float]
"""x, y, z, m."""

OPTIONS = ArgumentParser()
for _name in ("--axes", "--dt", "--line", "--endian", "--shape", "--spacing", "--origin"):
    OPTIONS.add_argument(_name)
for _name in ("--keep", "--value", "--bytes"):
    OPTIONS.add_argument(_name, action="append", default=[])
OPTIONS.add_argument("--datum", type=float, default=0.0)
OPTIONS.add_argument("--scale", type=float, default=1.0)
OPTIONS.add_argument("--model", action="store_true")


class Reading:
    """The traces of a file and their header fields, read with the given options."""

    def __init__(self, content: bytes, options: Sequence[str]) -> None:
        self.options = asked = OPTIONS.parse_args(options)
        self.content = content
        self.values = {n: float(v) for n, v in (text.split("=") for text in asked.value)}
        self.places = dict(PLACES)
        for name, place in (text.split("=") for text in asked.bytes):
            at, kind = place.split(":")
            self.places[name] = int(at), kind
        self.keep = dict(text.split("=") for text in asked.keep)
        self.revision, minor = (
            (content[3500], content[3501]) if content[3500] else (content[3501], 0)
        )
        self.revision = int(self.values.get("revision", self.revision))
        assert self.revision <= 2
        orders = {"big": ">", "little": "<", None: "><"}[asked.endian]
        if self.revision == 2 and asked.endian is None:
            orders = {b"\1\2\3\4": ">", b"\4\3\2\1": "<"}.get(content[3296:3300], orders)
        self.endian = next(o for o in orders if self._number(3225, "u2", o) in DTYPES)
        self.code = self._number(3225, "u2")
        self.n_samples = self._number(3221, "u2")
        self.interval: float = self._number(3217, "u2")
        texts = self._number(3505, "i2") if self.revision else 0
        self._first, extra, told, trailers = 3600 + 3200 * texts, 0, 0, 0
        if self.revision == 2:
            self.n_samples = self._number(3269, "u4") or self.n_samples
            self.interval = self._real(3273) or self.interval
            extra = self._number(3507, "i2" if minor else "u4")
            told = self._number(3513, "u8")
            self._first = self._number(3521, "u8") or self._first
            trailers = self._number(3529, "i4")
            if trailers == -1:
                trailers = 0
                while content[len(content) - 3200 * (trailers + 1) :][:3200].isascii():
                    trailers += 1
        kind = np.dtype(self.endian + DTYPES[self.code])
        self._header = 240 * (1 + extra)
        self._size = self._header + self.n_samples * kind.itemsize
        self.n_traces, rest = divmod(len(content) - self._first - 3200 * trailers, self._size)
        assert not rest
        assert told in (0, self.n_traces)
        self._samples = self._column(self._header + 1, f"{self.n_samples}{kind.str}")
        self._samples = self._samples.reshape(-1, self.n_samples)
        self.in_feet = self._number(3255, "i2") == 2

    def _number(self, at: int, kind: str, endian: str = "") -> int:
        return int(np.frombuffer(self.content, (endian or self.endian) + kind, 1, at - 1)[0])

    def _real(self, at: int) -> float:
        return float(np.frombuffer(self.content, self.endian + "f8", 1, at - 1)[0])

    def _column(self, at: int, kind: Any) -> np.ndarray:
        """Return the values at a byte, counted from 1, of the header and samples of each trace."""
        parts = {"names": ["it"], "formats": [kind], "offsets": [at - 1], "itemsize": self._size}
        return np.frombuffer(self.content, np.dtype(parts), self.n_traces, self._first)["it"]

    @cache  # noqa: B019
    def field(self, name: str) -> list[Any]:
        """Return a field of all trace headers."""
        if name in self.values:
            return [self.values[name]] * self.n_traces
        at, kind = self.places[name]
        return self._column(at, self.endian + kind).tolist()

    def samples(self) -> np.ndarray:
        """Return the samples (trace, time) in float32."""
        found = self._samples
        with np.errstate(over="ignore", invalid="ignore"):
            if self.code == 1:
                bits = found.astype(np.int64)
                power = 16.0 ** ((bits >> 24 & 127) - 70).astype(np.float64)
                found = np.where(bits >> 31, -1.0, 1.0) * (bits % 2**24) * power
            return found.astype(np.float32)

    def lengths(self, name: str, scalar: str) -> list[float]:
        return [
            (FOOT if self.in_feet else 1.0) * (n * s if s > 0 else n / -s if s < 0 else float(n))
            for n, s in zip(self.field(name), self.field(scalar), strict=True)
        ]

    def points(self, of: str) -> list[Point]:
        """Return the source or the receiver of each trace."""
        x, y = (self.lengths(f"{of}_{axis}", "coordinate_scalar") for axis in "xy")
        height = self.lengths(f"{of}_elevation", "elevation_scalar")
        depth = [0.0] * self.n_traces
        if of == "source":
            depth = self.lengths("source_depth", "elevation_scalar")
        z = [d - h + self.options.datum for d, h in zip(depth, height, strict=True)]
        return list(zip(x, y, z, strict=True))


def check_gathers(path: Path, content: bytes, options: Sequence[str]) -> None:
    """Assert that a gathers file has the shots, positions, times and bits of a SEG-Y file."""
    read = Reading(content, options)
    sources, receivers = read.points("source"), read.points("receiver")
    shots = _find_shots(read, sources, receivers)
    kept = [trace for shot in shots for trace in shot]
    assert not {read.field("unit")[trace] for trace in kept} & {*ANGLES}
    if read.n_samples < 2**16:
        assert {read.field("samples")[trace] for trace in kept} <= {0, read.n_samples}

    dt, starts, n_samples = _find_times(read, kept)
    samples = read.samples()
    most = max(map(len, shots))
    expected = np.zeros((len(shots), most, n_samples), np.float32)
    for shot, traces in zip(expected, shots, strict=True):
        for target, trace in zip(shot, traces, strict=False):
            first, last = max(starts[trace], 0), min(starts[trace] + read.n_samples, n_samples)
            begin = first - starts[trace]
            target[first:last] = samples[trace, begin : begin + max(0, last - first)]
    with h5py.File(path) as file:
        assert file.attrs["dt"] == float(dt)
        data = file["data"][...]
        np.testing.assert_array_equal(data.view(np.uint32), expected.view(np.uint32))
        assert file["wavelet"].shape == (n_samples,)
        assert not file["wavelet"][...].any()
        there = np.array([[n < len(shot) for n in range(most)] for shot in shots])
        assert ("mask" in file) == (not there.all())
        if "mask" in file:
            np.testing.assert_array_equal(file["mask"][...], there)
        found = file["receivers"][...]
        found = np.broadcast_to(found, (len(shots), *found.shape[-2:]))[there]
        found = np.concatenate([file["sources"][...], found])
        line = file.attrs["line"]
    points = [sources[shot[0]] for shot in shots] + [receivers[trace] for trace in kept]
    ends = [sources[trace] for trace in kept] + [receivers[trace] for trace in kept]
    _check_positions(found, points, ends, read, line)


def _find_shots(
    read: Reading, sources: list[Point], receivers: list[Point]
) -> list[tuple[int, ...]]:
    """Return the trace numbers of each kept shot, in their order in the gathers.

    Positions are compared as (z, y, x), the order in which gathers have them.
    """
    records, channels, codes = (read.field(name) for name in ("record", "channel", "code"))
    near, far = (float(v or inf) for v in read.keep.get("offset", "0:").split(":"))
    near = 0.0 if near == inf else near

    def shot_of(trace: int) -> Any:
        return records[trace], sources[trace][::-1]

    def place_of(trace: int) -> Any:
        component = {12: 1, 13: 2, 14: 3}.get(codes[trace], 0)
        return *shot_of(trace), component, channels[trace], receivers[trace][::-1], trace

    aside = {*range(2, 11), *range(18, 23), *(range(23, 42) if read.revision == 2 else ())}
    chosen = [
        trace
        for trace in range(read.n_traces)[_slice(read.keep.get("traces", ":"))]
        if codes[trace] not in aside
    ]
    assert not {codes[trace] for trace in chosen} & {15, 16, 17}, "no rotated component"
    nowhere = _find_nowhere(read, chosen, sources, receivers)
    chosen = [
        trace
        for trace in chosen
        if trace not in nowhere and near <= dist(sources[trace][:2], receivers[trace][:2]) <= far
    ]
    shots = [tuple(t) for _, t in groupby(sorted(chosen, key=place_of), shot_of)]
    shots = shots[_slice(read.keep.get("shots", ":"))]
    for shot in shots:
        assert len({receivers[trace] for trace in shot}) == len(shot), "one trace a receiver"
    return shots


def _find_nowhere(
    read: Reading, chosen: list[int], sources: list[Point], receivers: list[Point]
) -> set[int]:
    """Return the traces with source and receiver at 0, 0 that have no coordinates.

    These are all of them if the other traces are further from the origin than their own extent,
    else the silent ones.
    """
    ends = {trace: (*sources[trace][:2], *receivers[trace][:2]) for trace in chosen}
    nowhere = {trace for trace, end in ends.items() if not any(end)}
    there = [end for trace, end in ends.items() if trace not in nowhere]
    if not there or {"source_x", "receiver_x"} & read.values.keys():
        return set()
    x, y = ([c for end in there for c in end[axis::2]] for axis in (0, 1))
    if max(min(x), min(y), -max(x), -max(y)) > max(max(x) - min(x), max(y) - min(y)):
        return nowhere
    samples = read.samples()
    return {trace for trace in nowhere if not samples[trace].any()}


def _slice(text: str) -> slice:
    return slice(*(int(part) if part else None for part in text.split(":")))


def _find_times(read: Reading, kept: list[int]) -> tuple[Fraction, dict[int, int], int]:
    """Return the sampling interval, the first sample of each trace, and the number of samples."""
    intervals = {read.interval, *(read.field("interval")[trace] for trace in kept)} - {0}
    if read.options.dt is not None:
        dt = Fraction(read.options.dt)
    else:
        if read.interval % 1:
            intervals = {i for i in intervals if i == read.interval or abs(i - read.interval) >= 1}
        (interval,) = intervals
        dt = Fraction(interval) / 10**6
    first, last = read.keep.get("time", "0:").split(":")
    begin = Fraction(first or 0)
    starts = {}
    for trace in kept:
        delay, scalar = (Fraction(read.field(n)[trace]) for n in ("delay", "time_scalar"))
        if delay:
            assert scalar in (0, 1) or read.revision
            delay *= scalar if scalar > 0 else Fraction(-1, scalar) if scalar else 1
        start = (delay / 1000 - begin) / dt
        starts[trace] = round(start)
        assert abs(start - starts[trace]) < Fraction(1, 90)
    n_samples = max(starts.values()) + read.n_samples
    if last:
        n_samples = min(n_samples, floor((Fraction(last) - begin) / dt + Fraction(1, 100)) + 1)
    return dt, starts, n_samples


def _check_positions(
    found: np.ndarray, points: list[Point], ends: list[Point], read: Reading, line: str
) -> None:
    """Assert that positions are as expected; ends: sources and receivers of all kept traces."""
    there = np.array(points)
    largest = float(np.abs(ends).max())
    if read.options.axes == "zyx":
        assert line == ""
        np.testing.assert_allclose(found, there[:, ::-1], rtol=1e-14, atol=0.0)
        return
    np.testing.assert_allclose(found[:, 0], there[:, 2], rtol=1e-14, atol=0.0)
    told = [float(number) for number in line.split(",")]
    if read.options.line is not None:
        x0, y0, x1, y1 = map(float, read.options.line.split(","))
        length = hypot(x1 - x0, y1 - y0)
        along = ((there[:, 0] - x0) * (x1 - x0) + (there[:, 1] - y0) * (y1 - y0)) / length
        np.testing.assert_allclose(found[:, 1], along, rtol=0.0, atol=ROUNDING * largest)
        return
    x, y = ([end[axis] for end in ends] for axis in (0, 1))
    if len(set(y)) == 1:
        np.testing.assert_array_equal(found[:, 1], there[:, 0])
        return
    middle = fsum(x) / len(x), fsum(y) / len(y)
    xx = fsum((a - middle[0]) ** 2 for a in x)
    yy = fsum((b - middle[1]) ** 2 for b in y)
    xy = fsum((a - middle[0]) * (b - middle[1]) for a, b in zip(x, y, strict=True))
    turn, length = atan2(2.0 * xy, xx - yy) / 2.0, hypot(2.0 * xy, xx - yy)
    blur = ROUNDING * (xx + yy) / length if length else inf
    ways = [(cos(turn), sin(turn))]
    if abs(ways[0][0]) <= max(blur, ROUNDING):
        # On a line from north to south, neither end is the western one
        ways.append((-ways[0][0], -ways[0][1]))
    if blur > 1e-6:
        # The area is as wide as long, so that every line fits equally well
        ways, blur = [(told[2] - told[0], told[3] - told[1])], 1e-6
    misses = []
    for way in ways:
        along = np.array(ends)[:, :2] @ way
        across = (np.array(ends)[:, :2] - middle) @ (-way[1], way[0])
        expected = there[:, 0] * way[0] + there[:, 1] * way[1] - along.min()
        misses.append(float(np.abs(found[:, 1] - expected).max()))
        if read.options.axes is None:
            assert 2.0 * np.abs(across).max() <= 0.1 * np.ptp(along) * (1.0 + 1e-6)
    assert min(misses) <= 10.0 * ROUNDING * largest + 10.0 * blur * largest


def check_model(path: Path, content: bytes, options: Sequence[str]) -> None:
    """Assert that a model file has the columns of a SEG-Y file in their places."""
    read = Reading(content, options)
    asked = read.options
    assert not read.in_feet
    columns = read.samples().astype(np.float64) * asked.scale
    inline, crossline = read.field("inline"), read.field("crossline")
    rows, ranks = sorted(set(inline)), sorted(set(crossline))
    shape: tuple[int, ...] = (read.n_traces,)
    order = list(range(read.n_traces))
    if asked.shape is not None:
        n_z, *shape = map(int, asked.shape.split(","))
        assert n_z == read.n_samples
    elif len(rows) > 1 and len(ranks) > 1:
        shape = len(rows), len(ranks)
        at = {pair: n for n, pair in enumerate(zip(inline, crossline, strict=True))}
        order = [at[row, rank] for row in rows for rank in ranks]
    expected = np.moveaxis(columns[order].reshape(*shape, -1), -1, 0)
    told = None if asked.shape is not None else _find_placement(read, order, shape)
    spacing, origin = told or (None, (0.0,) * (1 + len(shape)))
    if asked.spacing is not None:
        spacing = [float(s) for s in asked.spacing.split(",")]
        spacing = spacing * (1 + len(shape)) if len(spacing) == 1 else spacing
    if asked.origin is not None:
        origin = [float(o) for o in asked.origin.split(",")]
    assert spacing is not None
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["vp"][...], expected.astype(np.float32))
        np.testing.assert_allclose(file.attrs["spacing"], spacing, rtol=1e-12)
        np.testing.assert_allclose(file.attrs["origin"], origin, rtol=1e-12)


def _find_placement(
    read: Reading, order: list[int], shape: tuple[int, ...]
) -> tuple[list[float], list[float]] | None:
    """Return spacing and origin of evenly spaced columns, or None if the headers do not have
    both."""
    intervals = {read.interval, *read.field("interval")} - {0}
    if len(intervals) != 1 or {*read.field("unit")} & {*ANGLES}:
        return None
    spacing, origin = [intervals.pop() / 1000.0], [0.0]
    for axis, name in enumerate(("cdp_y", "cdp_x")[-len(shape) :]):
        along = np.array(read.lengths(name, "coordinate_scalar"))[order].reshape(shape)
        along = np.moveaxis(along, axis, -1).reshape(-1, shape[axis])
        steps = np.diff(along[0])
        if (along != along[0]).any() or not steps.size or not steps[0] > 0.0:
            return None
        if not np.allclose(steps, steps[0], rtol=1e-3):
            return None
        spacing.append(float(steps.mean()))
        origin.append(float(along[0, 0]))
    return spacing, origin
