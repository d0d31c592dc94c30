"""The selection of traces from SEG-Y files, and their sorting into shots.

The headers and the request determine which traces are kept. The traces of a file may be in any
order; those of one shot are brought together with the positions of their receivers, which `segy`
reads.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfwi.convert import segy
from hpcfwi.convert.layout import EXTENDED, EXTENSION, EXTENSION_NAMES, FIELDS, HEADER, FileLayout
from hpcfwi.convert.request import Request
from hpcfwi.convert.segy import AT_ONCE, Files, Table, find_offsets, pick, read_headers, read_traces
from hpcfwi.errors import InputError
from hpcfwi.survey import COMPONENTS

log = logging.getLogger("hpcfwi")

# The fields of trace headers that are read.
NAMES = (
    *segy.NAMES,
    *("record", "channel", "shot_point", "code", "offset", "samples", "interval"),
    *("delay", "time_scalar"),
)


@dataclass(frozen=True)
class Gathering:
    """The chosen traces, sorted by shots.

    starts: (shot + 1,), the row of the table at which each shot begins, and the number of rows.
    """

    table: Table
    starts: NDArray[np.int64]

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of traces of each shot."""
        return np.diff(self.starts)

    @property
    def mask(self) -> NDArray[np.bool_] | None:
        """The mask (shot, receiver) of existing traces; None if all shots have as many traces."""
        counts = self.counts
        if (counts == counts.max()).all():
            return None
        return np.asarray(np.arange(counts.max()) < counts[:, None])

    def pad(self, values: NDArray[Any]) -> NDArray[Any]:
        """Arrange values of traces (trace, ...) as (shot, receiver, ...).

        Shorter shots are padded with the value of their last trace.
        """
        places = np.minimum(np.arange(self.counts.max()), self.counts[:, None] - 1)
        return np.asarray(values[self.starts[:-1, None] + places])

    def select(self, shots: slice) -> Gathering:
        """Return the gathering of some of the shots, possibly of none."""
        chosen = np.arange(self.counts.size)[shots]
        rows = [np.arange(self.starts[shot], self.starts[shot + 1]) for shot in chosen]
        starts = np.concatenate([[0], np.cumsum(self.counts[chosen])]).astype(np.int64)
        return Gathering(pick(self.table, np.concatenate([np.arange(0), *rows])), starts)


def gather(table: Table, files: Files) -> Gathering:
    """Sort traces into shots by their headers and positions.

    Traces with the same field record and the same source position belong to one shot. Shots are
    ordered by record, then by source position; the traces of a shot by component, then by channel,
    then by receiver position. The order in the file does not matter.

    Raises `InputError` if no two traces belong to one shot although they share source positions.
    """
    record, sources = table["record"], table["source"]
    within = *table["receiver"].T, table["channel"], table["component"]
    order = np.lexsort((*within, *sources.T, record))
    shots = np.column_stack([record, sources])[order]
    new = (shots[1:] != shots[:-1]).any(axis=1)
    starts = np.concatenate([[0], np.flatnonzero(new) + 1, [order.size]])
    alone = starts.size - 1 == order.size
    if alone and len(np.unique(sources, axis=0)) <= order.size // 2:
        raise InputError(
            files.where("record"),
            "every trace would be a separate shot: no two have the same record, although many "
            "have the same source position",
            "Give --value record=0 to sort by source positions only, or --bytes record=POSITION.",
        )
    return Gathering(pick(table, order), starts.astype(np.int64))


def count_repeats(table: Table) -> NDArray[np.int64]:
    """Number the traces of a shot of one component at the same receiver position, from 0.

    The order is that of the channels, then that of the file.
    """
    keys = np.column_stack([table[name] for name in ("receiver", "source", "record", "component")])
    order = np.lexsort((table["channel"], *keys.T))
    number = np.arange(order.size)
    new = np.append(True, (np.diff(keys[order], axis=0) != 0.0).any(axis=1))
    repeats = np.empty_like(number)
    repeats[order] = number - np.maximum.accumulate(np.where(new, number, 0))
    return repeats


def check_repeats(table: Table, files: Files) -> None:
    """Raise `InputError` if two traces of a shot have the same component and receiver position."""
    repeats = count_repeats(table)
    many = repeats > 0
    if not many.any():
        return
    traces = table["trace"]
    (one,) = np.flatnonzero(traces == traces[many].min())
    keys = np.column_stack([table[name] for name in ("receiver", "source", "record", "component")])
    (same,) = np.nonzero((keys == keys[one]).all(axis=1))
    same = same[np.argsort(traces[same])][:8]
    numbers, found_in = traces[same] - files.starts[table["file"][same]] + 1, table["file"][same]
    some = ", ".join(
        f"{', '.join(map(str, numbers[found_in == file]))} of {files.name([file])}"
        for file in np.unique(found_in)
    )
    x, y, z = table["receiver"][one]
    raise InputError(
        files.where("receiver_x", "receiver_y", which=table["file"][many]),
        f"{many.sum()} of {traces.size} traces have the shot and the receiver position "
        f"of another trace, such as traces {some} in record {table['record'][one]:g}, at "
        f"x = {x:.10g}, y = {y:.10g}, z = {z:g} m",
        "If they are repeated records, or components without trace codes, keep one of them, in the "
        "order of channels and then of the file: --keep repeat=0, up to "
        f"{repeats.max()}. Otherwise name the "
        "fields that hold the receiver positions, such as --bytes receiver_depth=POSITION.",
    )


def check_empty(table: Table, files: Files) -> None:
    """Raise `InputError` if positions are missing, that is, 0 in the headers."""
    records = np.unique(table["record"]).size
    for of, needed in (("source", records > 1), ("receiver", len(table["record"]) > records)):
        points, names = table[of], [f"{of}_x", f"{of}_y"]
        if files.headers.constants.keys() & set(names):
            continue
        empty = ~points[:, :2].any(axis=1)
        if needed and empty.all() and not np.ptp(points[:, 2]):
            raise InputError(
                files.where(*names),
                f"the {of} coordinates are 0 in all traces",
                f"Give the right bytes ({', '.join(f'--bytes {name}=POSITION' for name in names)}) "
                f"or values ({', '.join(f'--value {name}=NUMBER' for name in names)}).",
            )
        if empty.any() and not empty.all() and is_far(points[~empty, :2]):
            offsets = find_offsets(table)
            far = ceil(offsets[~empty].max())
            remedy = "Correct them, or name the right bytes with --bytes."
            if far < offsets[empty].min():
                remedy = f"Correct them, or leave these traces out with --keep offset=0:{far}."
            raise InputError(
                files.where(*names, which=table["file"][empty]),
                f"the {of} coordinates are 0 in {empty.sum()} of {empty.size} traces, and far from "
                "there in the others",
                remedy,
            )


def is_far(points: NDArray[np.float64]) -> bool:
    """Return True if (0, 0) is further from the points (n, 2) than their extent."""
    low, high = points.min(axis=0), points.max(axis=0)
    return bool(np.maximum(low, -high).max() > (high - low).max())


# Codes of traces that no receiver has recorded: dead, dummy, time break, uphole, sweep, timing,
# water break and source signatures (2 to 10); signals of vibrators (18 to 22); since revision 2
# pairs of times and depths, sections in depth, and other physical fields (23 to 41)
NOT_SEISMIC = [*range(2, 11), *range(18, 23)]
NOT_SEISMIC_SINCE_2 = range(23, 42)
# Codes of components; traces with any other code are taken as pressure. Rotated components have the
# direction of the source, which differs from trace to trace.
CODES = {"pressure": 11, "vz": 12, "vy": 13, "vx": 14}
TITLES = {
    11: "pressure",
    12: "vertical motion",
    13: "cross-line motion",
    14: "in-line motion",
    15: "rotated vertical motion",
    16: "transverse motion",
    17: "radial motion",
}
ROTATED = range(15, 18)
TIME_SCALARS = [sign * 10**power for power in range(5) for sign in (1, -1)]


def exchange(table: Table) -> Table:
    """Exchange sources and receivers, by reciprocity.

    Traces with the same receiver position become one record, and the records are numbered from 1.
    The channel of a trace is its former record.
    """
    nodes = np.unique(table["receiver"], axis=0, return_inverse=True)[1].reshape(-1)
    return {
        **table,
        "record": 1 + nodes,
        "channel": table["record"],
        "source": table["receiver"],
        "receiver": table["source"],
    }


def choose_traces(request: Request) -> tuple[Table, Files, float]:
    """Return the traces of all files that are kept, the files, and the sampling interval in s.

    Raises `InputError`.
    """
    layouts, parts = _choose_in_files(request)
    intervals = [
        segy.find_interval(request.dt, part, layout)
        for part, layout in zip(parts, layouts, strict=True)
    ]
    segy.check_alike(layouts, intervals)
    files, dt = Files(layouts), intervals[0]
    for number, part in enumerate(parts):
        part["file"] = np.full(part["trace"].size, number)
        part["trace"] = part["trace"] + files.starts[number]
    table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    offsets, (near, far) = find_offsets(table), request.keep.offset
    kept = (offsets >= (near or 0.0)) & (offsets <= (inf if far is None else far))
    if not kept.any():
        raise InputError(
            "--keep offset",
            f"no trace is left: offsets go from {offsets.min():.6g} to {offsets.max():.6g} m",
            "Give a range within these.",
        )
    table, repeat = pick(table, kept), request.keep.repeat
    if repeat is not None:
        repeats = count_repeats(table)
        if repeat > repeats.max():
            raise InputError(
                "--keep repeat",
                f"found {repeat}, but no receiver position of a shot has more than "
                f"{repeats.max() + 1} traces",
                f"Give a number from 0 to {repeats.max()}.",
            )
        table = pick(table, repeats == repeat)
    check_empty(table, files)
    for number, layout in enumerate(layouts):
        part = pick(table, table["file"] == number)
        if part["trace"].size:
            segy.check_distances(part, dt * layout.n_samples, layout)
    return table, files, dt


class _NothingKept(InputError):
    """No trace of a file is kept."""


def _choose_in_files(
    request: Request,
) -> tuple[tuple[FileLayout, ...], list[dict[str, NDArray[Any]]]]:
    """Return the layouts and the traces of the files from which traces are kept.

    Raises `InputError` if there are none.
    """
    layouts = [segy.find_layout(path, request.headers) for path in request.sources]
    kept, empty = [], []
    for layout in layouts:
        try:
            kept.append((layout, _choose(layout, request)))
        except _NothingKept as nothing:
            empty.append(nothing)
    if not kept:
        raise empty[0]
    for failure in empty:
        log.warning("%s: %s; the file is left out", failure.where, failure.problem)
    return tuple(layout for layout, _ in kept), [part for _, part in kept]


def _choose(layout: FileLayout, request: Request) -> dict[str, NDArray[Any]]:
    """Return the traces of a file that receivers have recorded and that the request keeps."""
    table = read_headers(layout, NAMES)
    if layout.header > HEADER:
        table |= _read_extension(table, layout)
    _check_lengths(table, layout)
    traces = _find_recorded(table, layout, request)
    table = {**pick(table, traces), "trace": traces}
    table["begin"] = _find_begins(table, layout)
    table["component"] = np.zeros(traces.size, np.int64)
    for name, code in CODES.items():
        table["component"][table["code"] == code] = COMPONENTS.index(name)
    table |= segy.find_positions(table, layout, request)
    if {"source_x", "receiver_x"} & layout.headers.constants.keys():
        return table
    return _leave_out_unplaced(table, layout)


def _read_extension(table: Table, layout: FileLayout) -> dict[str, NDArray[Any]]:
    """Read the fields of the first additional header of each trace, which are doubles.

    A double that is not 0 replaces the field of the standard header. Doubles have no scalar; they
    are divided by that of the standard header, which `segy` applies to all columns later. Fields
    whose position or value the request gives are not replaced.
    """
    headers = layout.headers
    names = [name for name in EXTENDED if name not in headers.constants]
    names = [name for name in names if headers.fields[name] == FIELDS[name]]
    headers = replace(headers, fields={**EXTENDED, "name": EXTENSION})
    found = read_headers(replace(layout, headers=headers), ["name", *names])
    known, extended = np.isin(found["name"], EXTENSION_NAMES), {}
    for name in names:
        stated = known & (found[name] != 0.0)
        if stated.any():
            scalars = table[f"{'coordinate' if name[-2] == '_' else 'elevation'}_scalar"]
            values = found[name] / segy.scale(np.ones(stated.size), scalars)
            extended[name] = np.where(stated, values, table[name])
    if extended:
        read = ", ".join(f"{name} ({EXTENDED[name]})" for name in extended)
        log.info("%s: read from the first additional header of traces: %s", layout.path, read)
    if not known.all() or layout.header > 2 * HEADER:
        log.warning("%s: some additional trace headers are not read", layout.path)
    return extended


def _leave_out_unplaced(
    table: dict[str, NDArray[Any]], layout: FileLayout
) -> dict[str, NDArray[Any]]:
    """Leave out traces without positions, whose source and receiver are both at (0, 0).

    Such a trace has no position if all other traces are far from there, or if its samples are all
    0 as well.
    """
    points = np.stack([table["source"], table["receiver"]])[..., :2]
    unplaced = np.asarray(~points.any(axis=(0, 2)))
    if unplaced.all() or not unplaced.any():
        return table
    if is_far(points[:, ~unplaced].reshape(-1, 2)):
        log.warning(
            "%s: %d of %d traces are left out: their source and receiver are at 0, 0, far from all "
            "others",
            *(layout.path, unplaced.sum(), unplaced.size),
        )
        return pick(table, ~unplaced)
    dead = np.flatnonzero(unplaced)
    parts = np.array_split(dead, -(-dead.size * layout.trace_size // AT_ONCE))
    alive = [read_traces(layout, table["trace"][part]).any(axis=1) for part in parts]
    dead = dead[~np.concatenate(alive)]
    if dead.size:
        log.info(
            "%s: %d of %d traces are left out: they are 0, and so are their positions",
            *(layout.path, dead.size, unplaced.size),
        )
    return pick(table, np.delete(np.arange(unplaced.size), dead))


def _check_lengths(table: Table, layout: FileLayout) -> None:
    """Raise `InputError` if the length of a trace differs from that in the file header."""
    stated = table["samples"]
    other = (stated > 0) & (stated != layout.n_samples)
    if other.any() and layout.n_samples < 2**16 and "samples" not in layout.headers.constants:
        first = int(np.flatnonzero(other)[0])
        raise InputError(
            layout.where("samples"),
            f"{other.sum()} of {layout.n_traces} traces do not have the "
            f"{layout.n_samples} samples of the file header; trace {first + 1} has {stated[first]}",
            "Traces of different lengths cannot be read. If all have the same length, give "
            f"--value samples={layout.n_samples}"
            + f"; if only the first ones are traces, give --value traces={first}" * (first > 0)
            + ".",
        )


def _find_recorded(table: Table, layout: FileLayout, request: Request) -> NDArray[np.int64]:
    """Return the numbers of the traces that receivers have recorded and that are kept."""
    code = table["code"]
    seismic = ~np.isin(code, NOT_SEISMIC)
    if layout.revision >= 2:
        seismic &= ~np.isin(code, NOT_SEISMIC_SINCE_2)
    if request.keep.code is not None:
        seismic = np.isin(code, request.keep.code)
    elif not seismic.all():
        log.info(
            "%s: %d of %d traces are left out, because no receiver recorded them",
            *(layout.where("code"), (~seismic).sum(), seismic.size),
        )
    traces = np.arange(layout.n_traces)[request.keep.traces]
    traces = np.sort(traces[seismic[traces]])
    if not traces.size:
        raise _NothingKept(
            layout.where("code"),
            f"no trace is left of {layout.n_traces}, of which {seismic.sum()} have a code of "
            f"recorded traces, or one of --keep code; found {_say_codes(code)}",
            "Give --value code=1 if all are recorded traces, or another range with --keep "
            "traces=FIRST:END.",
        )
    if np.isin(code[traces], ROTATED).any():
        raise InputError(
            layout.where("code"),
            f"found rotated components: {_say_codes(code[traces])}",
            "Leave them out, with the codes of others: --keep code=11,12; or say what they are: "
            "--value code=14 for in-line motion, 1 for pressure.",
        )
    return traces


def _say_codes(codes: NDArray) -> str:
    """Return a text with the codes of traces and the number of traces with each code."""
    found, counts = np.unique(codes, return_counts=True)
    return ", ".join(
        f"{count} traces of code {number:g}" + (f" ({TITLES[number]})" if number in TITLES else "")
        for number, count in zip(found.tolist(), counts.tolist(), strict=True)
    )


def _find_begins(table: Table, layout: FileLayout) -> NDArray[np.float64]:
    """Return the times at which traces begin, s.

    Headers hold milliseconds and, since revision 1, a scalar.
    """
    delays, scalars = table["delay"].astype(np.float64), table["time_scalar"]
    given = layout.headers.constants.keys()
    if "time_scalar" not in given:
        known = [0, *(TIME_SCALARS if layout.revision else (1,))]
        strange = scalars[(delays != 0.0) & ~np.isin(scalars, known)]
        if "delay" in given:
            scalars = np.ones_like(scalars)
        elif strange.size:
            raise InputError(
                layout.where("time_scalar"),
                f"found {strange[0]:g} as the scalar of delays that are not 0, but revision "
                f"{layout.revision} has "
                + (f"one of {', '.join(map(str, known))}" if layout.revision else "none"),
                f"Give --value time_scalar=1 for delays in ms, or {strange[0]:g} if that is right.",
            )
    return segy.scale(delays, scalars) * 1e-3
