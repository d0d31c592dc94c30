"""The choice of traces of SEG-Y files, and the shots that they make.

Headers and the request say which traces are kept. Traces come in any order; those of one shot are
brought together with the positions of their receivers, which `geometry` finds.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfwi.convert import geometry
from hpcfwi.convert.geometry import Columns, Places
from hpcfwi.convert.layout import (
    EXTENDED,
    EXTENSION,
    EXTENSION_NAMES,
    FIELDS,
    HEADER,
    Headers,
    Layout,
)
from hpcfwi.convert.request import Request
from hpcfwi.convert.segy import AT_ONCE, Files, TraceReader, check_alike, find_layout, read_headers
from hpcfwi.errors import InputError

NAMES = ("record", "channel", "shot_point")


@dataclass(frozen=True)
class Gathering:
    """The traces of each shot.

    traces: their numbers, shot after shot; starts: (shot + 1,), the place in `traces` at which each
    shot begins, and the end of all.
    """

    traces: NDArray[np.int64]
    starts: NDArray[np.int64]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Traces of each shot."""
        return np.diff(self.starts)

    @property
    def mask(self) -> NDArray[np.bool_] | None:
        """(shot, receiver): which places of a rectangle the shots fill; None where all."""
        counts = self.counts
        if (counts == counts.max()).all():
            return None
        return np.asarray(np.arange(counts.max()) < counts[:, None])

    def pad(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values of the traces (trace, ...) as (shot, receiver, ...), the last repeated."""
        places = np.minimum(np.arange(self.counts.max()), self.counts[:, None] - 1)
        return np.asarray(values[self.traces[self.starts[:-1, None] + places]])

    def select(self, shots: slice) -> Gathering:
        """Some of the shots; none where the slice has none."""
        chosen = np.arange(self.counts.size)[shots]
        parts = [self.traces[self.starts[shot] : self.starts[shot + 1]] for shot in chosen]
        starts = np.concatenate([[0], np.cumsum(self.counts[chosen])])
        return Gathering(np.concatenate([self.traces[:0], *parts]), starts.astype(np.int64))


def gather(columns: Columns, places: Places, files: Files, headers: Headers) -> Gathering:
    """Sort traces into shots, by their fields and places.

    Those that have the same field record and the same source position are of one shot. Shots are in
    the order of their records, then of their positions; traces of a shot in that of their channels,
    then of their receivers' positions: the order in the file does not matter.

    Raises `InputError` where the headers cannot be meant.
    """
    record, channel = columns["record"], columns["channel"]
    order = np.lexsort((*places.receivers.T, channel, *places.sources.T, record))
    same = (record[order][1:] == record[order][:-1]) & (
        places.sources[order][1:] == places.sources[order][:-1]
    ).all(axis=1)
    starts = np.concatenate([[0], np.flatnonzero(~same) + 1, [order.size]])
    alone = starts.size - 1 == order.size
    if alone and len(np.unique(places.sources, axis=0)) <= order.size // 2:
        raise InputError(
            f"{files.path}, {headers.where('record')}",
            "every trace would be a shot of its own: no two have the same record, though many "
            "have the same source position",
            "Give --value record=0 to tell shots by their positions, or --bytes record=POSITION.",
        )
    return Gathering(order.astype(np.int64), starts.astype(np.int64))


def count_repeats(columns: Columns, places: Places) -> NDArray[np.int64]:
    """Count the traces before each one, of the same shot and at the same receiver position.

    They are in the order of their channels, then in the file's.
    """
    keys = np.column_stack([places.receivers, places.sources, columns["record"]])
    order = np.lexsort((columns["channel"], *keys.T))
    number = np.arange(order.size)
    new = np.append(True, (np.diff(keys[order], axis=0) != 0.0).any(axis=1))
    repeats = np.empty_like(number)
    repeats[order] = number - np.maximum.accumulate(np.where(new, number, 0))
    return repeats


def check_repeats(
    gathering: Gathering,
    numbers: NDArray[np.int64],
    columns: Columns,
    places: Places,
    files: Files,
    headers: Headers,
) -> None:
    """Raise `InputError` where two traces of a shot are at one receiver position.

    numbers: of the traces, in the files.
    """
    repeats = count_repeats(columns, places)
    many = gathering.traces[repeats[gathering.traces] > 0]
    if not many.size:
        return
    one = many[numbers[many].argmin()]
    same = (places.receivers == places.receivers[one]).all(axis=1)
    same &= (places.sources == places.sources[one]).all(axis=1)
    same &= columns["record"] == columns["record"][one]
    same &= columns["file"] == columns["file"][one]
    same = numbers[same][:8] - files.starts[columns["file"][one]] + 1
    x, y, z = places.receivers[one]
    raise InputError(
        f"{files.name(columns['file'][many])}, {headers.where('receiver_x', 'receiver_y')}",
        f"{many.size} of {gathering.traces.size} traces are of a shot and at a receiver position "
        f"that another trace has as well: traces {', '.join(map(str, same))} of "
        f"record {columns['record'][one]:g}, at x = {x:g}, y = {y:g}, z = {z:g} m",
        "If they are components or records of the same, choose one, by channel and then as they "
        f"are in the file: --keep repeat=0, up to {repeats[many].max()}; if not, say where "
        "receivers are, in depth with --bytes receiver_depth=POSITION.",
    )


def check_empty(columns: Columns, places: Places, files: Files, headers: Headers) -> None:
    """Raise `InputError` for positions that are missing."""
    records = np.unique(columns["record"]).size
    for of, points, needed in (
        ("source", places.sources, records > 1),
        ("receiver", places.receivers, len(places.receivers) > records),
    ):
        names = [f"{of}_x", f"{of}_y"]
        if headers.constants.keys() & set(names):
            continue
        empty = ~points[:, :2].any(axis=1)
        if needed and empty.all() and not np.ptp(points[:, 2]):
            raise InputError(
                f"{files.path}, {headers.where(*names)}",
                f"the {of} coordinates are 0 in all traces",
                f"{headers.remedy(*names)}.",
            )
        if empty.any() and not empty.all() and is_far(points[~empty, :2]):
            far = ceil(places.offsets[~empty].max())
            remedy = "Correct them, or say where they are with --bytes."
            if far < places.offsets[empty].min():
                remedy = f"Correct them, or leave these traces out with --keep offset=0:{far}."
            raise InputError(
                f"{files.name(columns['file'][empty])}, {headers.where(*names)}",
                f"the {of} coordinates are 0 in {empty.sum()} of {empty.size} traces, and far from "
                "there in the others",
                remedy,
            )


def is_far(points: NDArray[np.float64]) -> bool:
    """Return True if 0 is further from points (n, 2) than their extent."""
    low, high = points.min(axis=0), points.max(axis=0)
    return bool(np.maximum(low, -high).max() > (high - low).max())


# Codes of traces that no receiver has recorded: dead, dummy, time break, ..., source signatures;
# signals of vibrators; since revision 2 pairs of times and depths, sections in depth, other fields
NOT_SEISMIC = [*range(2, 11), *range(18, 23)]
NOT_SEISMIC_SINCE_2 = range(23, 42)
COMPONENTS = {
    11: "pressure",
    12: "vertical motion",
    13: "cross-line motion",
    14: "in-line motion",
    15: "rotated vertical motion",
    16: "transverse motion",
    17: "radial motion",
}
TIME_SCALARS = [sign * 10**power for power in range(5) for sign in (1, -1)]

TIMES = ("delay", "time_scalar")

log = logging.getLogger("hpcfwi")


@dataclass(frozen=True)
class Chosen:
    """Some traces: their numbers in the files, their headers' fields, and where they are.

    The column "file" has the number of each trace's file.
    """

    traces: NDArray[np.int64]
    columns: Columns
    places: Places

    def select(self, which: NDArray) -> Chosen:
        columns = {name: column[which] for name, column in self.columns.items()}
        return Chosen(self.traces[which], columns, self.places.select(which))

    def swap(self) -> Chosen:
        """The traces with sources for receivers, by reciprocity.

        Those at one receiver position become one record, whose number counts these positions, and
        the channel of a trace is its former record.
        """
        nodes = np.unique(self.places.receivers, axis=0, return_inverse=True)[1].reshape(-1)
        columns = {**self.columns, "record": 1 + nodes, "channel": self.columns["record"]}
        places = Places(self.places.receivers, self.places.sources)
        return replace(self, columns=columns, places=places)


def choose_traces(request: Request) -> tuple[Chosen, Files, float]:
    """Choose the traces of all files that are kept, and find the time between their samples, s."""
    layouts = tuple(find_layout(path, request.headers) for path in request.sources)
    parts = [_choose(layout, request) for layout in layouts]
    intervals = [
        geometry.find_interval(request.dt, part.columns, layout, request.headers)
        for part, layout in zip(parts, layouts, strict=True)
    ]
    check_alike(layouts, intervals)
    files, dt = Files(layouts), intervals[0]
    sizes = [part.traces.size for part in parts]
    columns = {
        name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns
    }
    chosen = Chosen(
        np.concatenate([part.traces for part in parts]) + np.repeat(files.starts[:-1], sizes),
        {**columns, "file": np.repeat(np.arange(len(parts)), sizes)},
        Places(
            np.concatenate([part.places.sources for part in parts]),
            np.concatenate([part.places.receivers for part in parts]),
        ),
    )
    offsets, (near, far) = chosen.places.offsets, request.keep.offset
    kept = (offsets >= (near or 0.0)) & (offsets <= (inf if far is None else far))
    if not kept.any():
        raise InputError(
            "--keep offset",
            f"no trace is left: offsets go from {offsets.min():.6g} to {offsets.max():.6g} m",
            "Give a range within these.",
        )
    chosen, repeat = chosen.select(kept), request.keep.repeat
    if repeat is not None:
        repeats = count_repeats(chosen.columns, chosen.places)
        if repeat > repeats.max():
            raise InputError(
                "--keep repeat",
                f"found {repeat}, and no receiver position of a shot has more than "
                f"{repeats.max() + 1} traces",
                f"Give a number from 0 to {repeats.max()}.",
            )
        chosen = chosen.select(repeats == repeat)
    check_empty(chosen.columns, chosen.places, files, request.headers)
    for number, layout in enumerate(layouts):
        part = chosen.select(chosen.columns["file"] == number)
        if part.traces.size:
            duration, offsets = dt * layout.n_samples, part.columns["offset"]
            geometry.check_distances(part.places, offsets, duration, layout, request.headers)
    return chosen, files, dt


def _choose(layout: Layout, request: Request) -> Chosen:
    """The traces of a file that receivers have recorded, and that are to be kept."""
    names = (*geometry.NAMES, *NAMES, "code", "offset", "samples", "interval", *TIMES)
    columns = read_headers(layout, request.headers, names)
    if layout.header > HEADER:
        columns |= _read_extension(columns, layout, request)
    _check_lengths(columns, layout, request)
    traces = _find_recorded(columns, layout, request)
    columns = {name: column[traces] for name, column in columns.items()}
    columns["begin"] = _find_begins(columns, layout, request)
    chosen = Chosen(traces, columns, geometry.find_places(columns, layout, request))
    if {"source_x", "receiver_x"} & request.headers.constants.keys():
        return chosen
    return _leave_out_unplaced(chosen, layout)


def _read_extension(columns: Columns, layout: Layout, request: Request) -> Columns:
    """Read the columns that the first additional header of each trace has as doubles.

    Doubles that are not 0 count, and are divided by the scalars of the other header, which are not
    theirs. Fields of which the request says where or what they are stay as they are.
    """
    headers = request.headers
    names = [name for name in EXTENDED if name not in headers.constants]
    names = [name for name in names if headers.fields[name] == FIELDS[name]]
    fields = {**EXTENDED, "name": EXTENSION}
    found = read_headers(layout, replace(headers, fields=fields), ["name", *names])
    known, extended = np.isin(found["name"], EXTENSION_NAMES), {}
    for name in names:
        told = known & (found[name] != 0.0)
        if told.any():
            scalars = columns[f"{'coordinate' if name[-2] == '_' else 'elevation'}_scalar"]
            values = found[name] / geometry.scale(np.ones(told.size), scalars)
            extended[name] = np.where(told, values, columns[name])
    if extended:
        read = ", ".join(f"{name} ({EXTENDED[name]})" for name in extended)
        log.info("%s: read from the first additional header of traces: %s", layout.path, read)
    if not known.all() or layout.header > 2 * HEADER:
        log.warning("%s: additional headers of traces are not read", layout.path)
    return extended


def _leave_out_unplaced(chosen: Chosen, layout: Layout) -> Chosen:
    """Leave out traces whose source and receiver are at 0, 0, where that is no position.

    It is none where all others are far from there, and where the samples are 0 as well.
    """
    points = np.stack([chosen.places.sources, chosen.places.receivers])[..., :2]
    unplaced = np.asarray(~points.any(axis=(0, 2)))
    if unplaced.all() or not unplaced.any():
        return chosen
    if is_far(points[:, ~unplaced].reshape(-1, 2)):
        log.warning(
            "%d traces are left out: their source and receiver are at 0, 0, far from all others",
            unplaced.sum(),
        )
        return chosen.select(~unplaced)
    dead = np.flatnonzero(unplaced)
    with TraceReader(layout) as reader:
        parts = np.array_split(dead, -(-dead.size * layout.trace_size // AT_ONCE))
        alive = [reader.read(chosen.traces[part]).any(axis=1) for part in parts]
    dead = dead[~np.concatenate(alive)]
    if dead.size:
        log.info("%d traces are left out: they are 0, and so are their positions", dead.size)
    return chosen.select(np.delete(np.arange(chosen.traces.size), dead))


def _check_lengths(columns: Columns, layout: Layout, request: Request) -> None:
    """Raise `InputError` where traces have other lengths than the file says."""
    told, where = columns["samples"], request.headers.where("samples")
    other = (told > 0) & (told != layout.n_samples)
    if other.any() and layout.n_samples < 2**16 and "samples" not in request.headers.constants:
        first = int(np.flatnonzero(other)[0])
        raise InputError(
            f"{layout.path}, {where}",
            f"{other.sum()} of {layout.n_traces} traces have other numbers of samples than "
            f"{layout.n_samples}, which the file header says; trace {first + 1} has {told[first]}",
            "Traces of different lengths cannot be read; if these are the same, give "
            f"--value samples={layout.n_samples}"
            + f", and if they are no traces, --value traces={first}" * (first > 0)
            + ".",
        )


def _find_recorded(columns: Columns, layout: Layout, request: Request) -> NDArray[np.int64]:
    """Find the numbers of the traces that receivers have recorded, and that are to be kept."""
    code, where = columns["code"], request.headers.where("code")
    seismic = ~np.isin(code, NOT_SEISMIC)
    if layout.revision >= 2:
        seismic &= ~np.isin(code, NOT_SEISMIC_SINCE_2)
    if request.keep.code is not None:
        seismic = np.isin(code, request.keep.code)
    elif not seismic.all():
        log.info("%d traces are left out: %s say no receiver", (~seismic).sum(), where)
    traces = np.arange(layout.n_traces)[request.keep.traces]
    traces = np.sort(traces[seismic[traces]])
    if not traces.size:
        raise InputError(
            f"{layout.path}, {where}",
            f"no trace is left of {layout.n_traces}, of which {seismic.sum()} have the code of "
            f"what a receiver has recorded, or a code that is to be kept; {_say_codes(code)}",
            "Give --value code=1 if all are, or another range with --keep traces=FIRST:END.",
        )
    found = np.unique(code[traces]).tolist()
    if request.keep.code is None and len(found) > 1 and COMPONENTS.keys() & {*found}:
        best = 11 if 11 in found else min(found, key=lambda number: number in COMPONENTS)
        raise InputError(
            f"{layout.path}, {where}",
            f"found more than one component: {_say_codes(code[traces])}",
            f"Choose one: --keep code={best}; or --value code=1 if all are pressure, each at a "
            "position of its own.",
        )
    if COMPONENTS.keys() - {11} & {*found}:
        log.warning(
            "%s, %s: %s, and waves are simulated as pressure: phases and amplitudes differ",
            layout.path,
            where,
            _say_codes(code[traces]),
        )
    return traces


def _say_codes(codes: NDArray) -> str:
    """The codes of traces, and how many have each."""
    found, counts = np.unique(codes, return_counts=True)
    return ", ".join(
        f"{count} traces of code {number:g}"
        + (f" ({COMPONENTS[number]})" if number in COMPONENTS else "")
        for number, count in zip(found.tolist(), counts.tolist(), strict=True)
    )


def _find_begins(columns: Columns, layout: Layout, request: Request) -> NDArray[np.float64]:
    """The times at which traces begin, s: milliseconds times a scalar, that revision 0 has not."""
    delays, scalars = columns["delay"].astype(np.float64), columns["time_scalar"]
    given = request.headers.constants.keys()
    if "time_scalar" not in given:
        known = [0, *(TIME_SCALARS if layout.revision else (1,))]
        strange = scalars[(delays != 0.0) & ~np.isin(scalars, known)]
        if "delay" in given:
            scalars = np.ones_like(scalars)
        elif strange.size:
            raise InputError(
                f"{layout.path}, {request.headers.where('time_scalar')}",
                f"found {strange[0]:g} as scalar of times that are not 0, where revision "
                f"{layout.revision} has "
                + (f"one of {', '.join(map(str, known))}" if layout.revision else "none"),
                f"Give --value time_scalar=1 for delays in ms, or {strange[0]:g} if that is right.",
            )
    return geometry.scale(delays, scalars) * 1e-3
