"""Which traces of SEG-Y files are kept, as their headers and the request say."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from hpcfwi.convert import geometry, shots, units
from hpcfwi.convert.files import Files, check_alike
from hpcfwi.convert.geometry import Columns, Places
from hpcfwi.convert.headers import EXTENDED, EXTENSION, EXTENSION_NAMES, FIELDS, HEADER
from hpcfwi.convert.layout import Layout
from hpcfwi.convert.request import Request
from hpcfwi.convert.segy import AT_ONCE, TraceReader, find_layout, read_headers
from hpcfwi.errors import InputError

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
        units.find_interval(request.dt, part.columns, layout, request.headers)
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
        repeats = shots.count_repeats(chosen.columns, chosen.places)
        if repeat > repeats.max():
            raise InputError(
                "--keep repeat",
                f"found {repeat}, and no receiver position of a shot has more than "
                f"{repeats.max() + 1} traces",
                f"Give a number from 0 to {repeats.max()}.",
            )
        chosen = chosen.select(repeats == repeat)
    shots.check_empty(chosen.columns, chosen.places, files, request.headers)
    for number, layout in enumerate(layouts):
        part = chosen.select(chosen.columns["file"] == number)
        if part.traces.size:
            duration, offsets = dt * layout.n_samples, part.columns["offset"]
            units.check_distances(part.places, offsets, duration, layout, request.headers)
    return chosen, files, dt


def _choose(layout: Layout, request: Request) -> Chosen:
    """The traces of a file that receivers have recorded, and that are to be kept."""
    names = (*geometry.NAMES, *shots.NAMES, "code", "offset", "samples", "interval", *TIMES)
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
    if shots.is_far(points[:, ~unplaced].reshape(-1, 2)):
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
