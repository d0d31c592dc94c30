"""What of SEG-Y files is written as gathers: which traces, where, and the survey that they make.

Found in one process, from the headers, of which it keeps about 200 bytes a trace. The traces
themselves are read in `gathers`.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from hpcfwi.convert import geometry, shots, units
from hpcfwi.convert.files import Files, check_alike
from hpcfwi.convert.geometry import Columns, Places
from hpcfwi.convert.headers import HEADER
from hpcfwi.convert.layout import Layout
from hpcfwi.convert.request import Request
from hpcfwi.convert.segy import AT_ONCE, TraceReader, find_layout, read_headers
from hpcfwi.convert.shots import Gathering
from hpcfwi.convert.wavelet import read_wavelet
from hpcfwi.errors import InputError, refusing, say_bytes
from hpcfwi.host import check_room
from hpcfwi.survey import Survey

# Times the size of the SEG-Y file that the gathers may have: spreads as uneven are a damaged header
MOST_PADDING = 100
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
class Contents:
    """What is to be written, and from where.

    survey, gathering: of the shots; delays: (trace of the files,), samples by which each trace
    begins later than the first that is written; attributes: of the gathers file.
    """

    files: Files
    survey: Survey
    gathering: Gathering
    delays: NDArray[np.int64]
    attributes: dict[str, str]


def look_into(request: Request) -> Contents:
    """All but the traces, in one process. Raises `InputError`."""
    recorded, files, dt = _choose_all(request)
    chosen = recorded.swap() if request.reciprocity else recorded
    gathering = shots.gather(chosen.columns, chosen.places, files, request.headers)
    gathering = gathering.select(request.keep.shots)
    if not gathering.traces.size:
        raise InputError("--keep shots", "no shot is left", "Give numbers from 0, of shots.")
    shots.check_repeats(
        gathering, recorded.traces, recorded.columns, recorded.places, files, request.headers
    )

    # What follows is of the traces that are kept, one after the other as they will be
    chosen = chosen.select(gathering.traces)
    gathering = Gathering(np.arange(chosen.traces.size), gathering.starts)
    starts, n_samples = _find_times(chosen.columns, dt, files, request)
    delays = np.zeros(files.starts[-1], dtype=np.int64)
    delays[chosen.traces] = starts
    _check_padding(gathering, n_samples, files)
    line = geometry.choose_line(chosen.places, request, files)
    survey = _make_survey(gathering, chosen.places, line, dt, n_samples, request)
    _tell(survey, gathering, chosen.places, line, files, request.depths is not None)
    gathering = Gathering(chosen.traces, gathering.starts)
    names = [layout.path.name for layout in files.layouts]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    attributes = {
        "converted_from": f"{names[0]}{more}, {files.size} bytes",
        "line": "" if line is None else str(line),
        "source": _fingerprint(files, gathering, delays),
    }
    return Contents(files, survey, gathering, delays, attributes)


def _fingerprint(files: Files, gathering: Gathering, delays: NDArray[np.int64]) -> str:
    """A hash of where the traces come from, so that no others are added to an unfinished file."""
    digest = hashlib.sha256()
    for layout in files.layouts:
        with refusing(str(layout.path), "it cannot be looked at", "See to its file system."):
            changed = layout.path.stat().st_mtime_ns
        digest.update(repr((layout, changed)).encode())
    for array in (gathering.traces, gathering.starts, delays):
        digest.update(array.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class _Chosen:
    """Some traces: their numbers in the files, their headers' fields, and where they are.

    The column "file" has the number of each trace's file.
    """

    traces: NDArray[np.int64]
    columns: Columns
    places: Places

    def select(self, which: NDArray) -> _Chosen:
        columns = {name: column[which] for name, column in self.columns.items()}
        return _Chosen(self.traces[which], columns, self.places.select(which))

    def swap(self) -> _Chosen:
        """The traces with sources for receivers, by reciprocity.

        Those at one receiver position become one record, whose number counts these positions, and
        the channel of a trace is its former record.
        """
        nodes = np.unique(self.places.receivers, axis=0, return_inverse=True)[1].reshape(-1)
        columns = {**self.columns, "record": 1 + nodes, "channel": self.columns["record"]}
        places = Places(self.places.receivers, self.places.sources)
        return replace(self, columns=columns, places=places)


def _choose_all(request: Request) -> tuple[_Chosen, Files, float]:
    """The traces of all files that are to be kept, and the time between their samples, s."""
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
    chosen = _Chosen(
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


def _choose(layout: Layout, request: Request) -> _Chosen:
    """The traces of a file that receivers have recorded, and that are to be kept."""
    names = (*geometry.NAMES, *shots.NAMES, "code", "offset", "samples", "interval", *TIMES)
    if layout.header > HEADER:
        log.warning(
            "%s: the additional headers of each trace are not read, nor are extended coordinates "
            "in them",
            layout.path,
        )
    columns = read_headers(layout, request.headers, names)
    _check_lengths(columns, layout, request)
    traces = _find_recorded(columns, layout, request)
    columns = {name: column[traces] for name, column in columns.items()}
    columns["begin"] = _find_begins(columns, layout, request)
    chosen = _Chosen(traces, columns, geometry.find_places(columns, layout, request))
    if {"source_x", "receiver_x"} & request.headers.constants.keys():
        return chosen
    return _leave_out_unplaced(chosen, layout)


def _leave_out_unplaced(chosen: _Chosen, layout: Layout) -> _Chosen:
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
            f"Choose one: --keep code={best}; or --value code=1 if all are pressure.",
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


def _find_times(
    columns: Columns, dt: float, files: Files, request: Request
) -> tuple[NDArray[np.int64], int]:
    """The sample at which each trace begins, counted from the first to be written; and how many."""
    first, last = request.keep.time
    delays = columns["begin"] - (first or 0.0)
    starts = np.rint(delays / dt)
    astray = np.abs(delays / dt - starts) > units.ON_SAMPLE
    if astray.any():
        raise InputError(
            f"{files.name(columns['file'][astray])}, {request.headers.where('delay')}",
            f"traces begin at times that are no whole samples of {dt:g} s after {first or 0.0:g} s",
            "Give a --keep time=FIRST: that is, or --value delay=0, in ms.",
        )
    n_samples = int(starts.max()) + files.n_samples
    if last is not None:
        n_samples = min(
            n_samples, int(np.floor((last - (first or 0.0)) / dt + units.ON_SAMPLE)) + 1
        )
    if n_samples < 1 or starts.min() >= n_samples:
        raise InputError(
            "--keep time",
            f"traces begin at {columns['begin'].min():g} s, "
            f"{request.headers.where('delay')}, and have {dt * files.n_samples:g} s, of which "
            "nothing is left",
            "Give a range within them.",
        )
    return starts.astype(np.int64), n_samples


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


def _check_padding(gathering: Gathering, n_samples: int, files: Files) -> None:
    counts = gathering.counts
    total = 4.0 * counts.size * int(counts.max()) * n_samples
    if total > MOST_PADDING * files.size:
        raise InputError(
            files.path,
            f"{counts.size} shots of 1 to {counts.max()} traces and {n_samples} samples would take "
            f"{say_bytes(total)}, from {say_bytes(files.size)} of SEG-Y",
            "See whether records, positions and delays are right (--bytes, --value), or leave "
            "shots out with --keep.",
        )
    needed = 8.0 * int(counts.max()) * n_samples
    check_room(files.path, f"a shot of {counts.max()} traces", needed, "See its records.")


def _make_survey(
    gathering: Gathering,
    places: Places,
    line: geometry.Line | None,
    dt: float,
    n_samples: int,
    request: Request,
) -> Survey:
    sources = places.sources[gathering.traces[gathering.starts[:-1]]]
    receivers = gathering.pad(places.receivers)
    if line is None:
        sources, receivers = sources[:, ::-1], receivers[..., ::-1]
    else:
        shape = receivers.shape[:2]
        sources = line.along(sources)
        receivers = line.along(receivers.reshape(-1, 3)).reshape(*shape, 2)
    mask = gathering.mask
    if mask is None and (receivers == receivers[:1]).all():
        receivers = receivers[0]
    first = request.keep.time[0] or 0.0
    wavelet = read_wavelet(request.wavelet, len(sources), n_samples, dt, first)
    if request.reciprocity and wavelet.ndim > 1:
        raise InputError(
            f"--wavelet {request.wavelet}",
            "it has a wavelet for each shot, which --reciprocity makes a receiver",
            "Give one wavelet, which all sources have emitted.",
        )
    return Survey(np.ascontiguousarray(sources), np.ascontiguousarray(receivers), wavelet, dt, mask)


def _tell(
    survey: Survey,
    gathering: Gathering,
    places: Places,
    line: geometry.Line | None,
    files: Files,
    positive: bool,
) -> None:
    counts = gathering.counts
    log.info(
        "%s: %d shots of %s traces, %d samples of %g s",
        files.path,
        counts.size,
        counts.max() if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}",
        survey.n_samples,
        survey.dt,
    )
    if line is None:
        log.info("Positions (z, y, x) are those of the headers")
    else:
        points = np.concatenate([places.sources, places.receivers])
        log.info(
            "Positions (z, x) are along --line %s (azimuth %.2f degrees), from which points are up "
            "to %.3g m away",
            line,
            line.azimuth(),
            line.away(points).max(),
        )
    above = [
        (name, points[:, 2])
        for name, points in (("sources", places.sources), ("receivers", places.receivers))
        if (points[:, 2] < 0.0).all()
    ]
    for name, depths in above:
        log.warning(
            "All %s are above z = 0, at z from %g to %g m: give --datum, the elevation of z = 0%s",
            name,
            depths.min(),
            depths.max(),
            "" if positive else ", or --depths positive-elevation where elevations are depths",
        )
    listeners = survey.listeners()
    for name, points in (("Sources", survey.sources), ("Receivers", listeners)):
        low, high = points.min(axis=0), points.max(axis=0)
        log.info("%s from %s to %s m", name, low.round(3).tolist(), high.round(3).tolist())
