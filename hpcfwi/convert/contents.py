"""What of a SEG-Y file is written as gathers: which traces, where, and the survey that they make.

Found in one process, from the headers, of which it keeps about 200 bytes a trace. The traces
themselves are read in `gathers`.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from hpcfwi.convert import geometry, shots, units
from hpcfwi.convert.geometry import Columns, Places
from hpcfwi.convert.request import Request
from hpcfwi.convert.segy import Layout, find_layout, read_headers
from hpcfwi.convert.shots import Gathering
from hpcfwi.convert.wavelet import read_wavelet
from hpcfwi.errors import InputError, refusing, say_bytes
from hpcfwi.host import check_room
from hpcfwi.survey import Survey

# Times the size of the SEG-Y file that the gathers may have: spreads as uneven are a damaged header
MOST_PADDING = 100

log = logging.getLogger("hpcfwi")


@dataclass(frozen=True)
class Contents:
    """What is to be written, and from where.

    survey, gathering: of the shots; delays: (trace of the file,), samples by which each trace
    begins later than the first that is written; attributes: of the gathers file.
    """

    layout: Layout
    survey: Survey
    gathering: Gathering
    delays: NDArray[np.int64]
    attributes: dict[str, str]


def look_into(request: Request) -> Contents:
    """All but the traces, in one process. Raises `InputError`."""
    layout = find_layout(request.source, request.headers)
    chosen = _choose(layout, request)
    columns, places = chosen.columns, chosen.places
    dt = units.find_interval(request.dt, columns, layout, request.headers)
    duration = dt * layout.n_samples
    units.check_distances(places, columns["offset"], duration, layout, request.headers)
    gathering = shots.gather(columns, places, layout, request.headers).select(request.keep.shots)
    if not gathering.traces.size:
        raise InputError("--keep shots", "no shot is left", "Give numbers from 0, of shots.")

    # What follows is of the traces that are kept, one after the other as they will be
    chosen = chosen.select(gathering.traces)
    gathering = Gathering(np.arange(chosen.traces.size), gathering.starts)
    starts, n_samples = _find_times(chosen.columns, dt, layout, request)
    delays = np.zeros(layout.n_traces, dtype=np.int64)
    delays[chosen.traces] = starts
    _check_padding(gathering, n_samples, layout)
    line = geometry.choose_line(chosen.places, request, layout)
    survey = _make_survey(gathering, chosen.places, line, dt, n_samples, request)
    _tell(survey, gathering, chosen.places, line, layout)
    gathering = Gathering(chosen.traces, gathering.starts)
    attributes = {
        "converted_from": f"{request.source.name}, {layout.size} bytes",
        "line": "" if line is None else str(line),
        "source": _fingerprint(layout, gathering, delays),
    }
    return Contents(layout, survey, gathering, delays, attributes)


def _fingerprint(layout: Layout, gathering: Gathering, delays: NDArray[np.int64]) -> str:
    """A hash of where the traces come from, so that no others are added to an unfinished file."""
    with refusing(str(layout.path), "it cannot be looked at", "See to its file system."):
        changed = layout.path.stat().st_mtime_ns
    digest = hashlib.sha256(repr((layout, changed)).encode())
    for array in (gathering.traces, gathering.starts, delays):
        digest.update(array.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class _Chosen:
    """Some traces: their numbers in the file, their headers' fields, and where they are."""

    traces: NDArray[np.int64]
    columns: Columns
    places: Places

    def select(self, which: NDArray) -> _Chosen:
        columns = {name: column[which] for name, column in self.columns.items()}
        return _Chosen(self.traces[which], columns, self.places.select(which))


def _choose(layout: Layout, request: Request) -> _Chosen:
    """The traces to be kept that receivers have recorded."""
    names = (*geometry.NAMES, *shots.NAMES, "code", "offset", "delay", "samples", "interval")
    columns = read_headers(layout, request.headers, names)
    _check_lengths(columns, layout, request)
    traces = _find_recorded(columns, layout, request)
    columns = {name: column[traces] for name, column in columns.items()}
    chosen = _Chosen(traces, columns, geometry.find_places(columns, layout, request))
    offsets, (near, far) = chosen.places.offsets, request.keep.offset
    kept = (offsets >= (near or 0.0)) & (offsets <= (inf if far is None else far))
    if not kept.any():
        raise InputError(
            "--keep offset",
            f"no trace is left: offsets go from {offsets.min():.6g} to {offsets.max():.6g} m",
            "Give a range within these.",
        )
    return chosen.select(kept)


def _check_lengths(columns: Columns, layout: Layout, request: Request) -> None:
    """Raise `InputError` where traces have other lengths than the file says."""
    told, where = columns["samples"], request.headers.where("samples")
    other = (told > 0) & (told != layout.n_samples)
    if other.any() and layout.n_samples < 2**16 and "samples" not in request.headers.constants:
        first = int(np.flatnonzero(other)[0])
        raise InputError(
            f"{layout.path}, {where}",
            f"{other.sum()} of {layout.n_traces} traces have other numbers of samples than "
            f"{layout.n_samples}, which bytes 3221-3222 say; trace {first + 1} has {told[first]}",
            "Traces of different lengths cannot be read; if these are the same, give "
            f"--value samples={layout.n_samples}.",
        )


def _find_recorded(columns: Columns, layout: Layout, request: Request) -> NDArray[np.int64]:
    """The numbers of the traces that receivers have recorded, and that are to be kept."""
    code, (first, last) = columns["code"], geometry.NOT_SEISMIC
    seismic = (code < first) | (code > last)
    if not seismic.all():
        where = request.headers.where("code")
        log.info("%d traces are left out: %s say no receiver", (~seismic).sum(), where)
    traces = np.arange(layout.n_traces)[request.keep.traces]
    traces = np.sort(traces[seismic[traces]])
    if not traces.size:
        raise InputError(
            f"{layout.path}, {request.headers.where('code')}",
            f"no trace is left of {layout.n_traces}, of which {seismic.sum()} have the code of "
            "what a receiver has recorded",
            "Give --value code=1 if all are, or another range with --keep traces=FIRST:END.",
        )
    return traces


def _find_times(
    columns: Columns, dt: float, layout: Layout, request: Request
) -> tuple[NDArray[np.int64], int]:
    """The sample at which each trace begins, counted from the first to be written; and how many."""
    first, last = request.keep.time
    delays = columns["delay"].astype(np.float64) * 1e-3 - (first or 0.0)
    starts = np.rint(delays / dt)
    if np.abs(delays / dt - starts).max() > units.ON_SAMPLE:
        raise InputError(
            f"{layout.path}, {request.headers.where('delay')}",
            f"traces begin at times that are no whole samples of {dt:g} s after {first or 0.0:g} s",
            "Give a --keep time=FIRST: that is, or --value delay=0, in ms.",
        )
    n_samples = int(starts.max()) + layout.n_samples
    if last is not None:
        n_samples = min(
            n_samples, int(np.floor((last - (first or 0.0)) / dt + units.ON_SAMPLE)) + 1
        )
    if n_samples < 1 or starts.min() >= n_samples:
        raise InputError(
            "--keep time",
            f"traces begin at {1e-3 * columns['delay'].min():g} s, "
            f"{request.headers.where('delay')}, and have {dt * layout.n_samples:g} s, of which "
            "nothing is left",
            "Give a range within them.",
        )
    return starts.astype(np.int64), n_samples


def _check_padding(gathering: Gathering, n_samples: int, layout: Layout) -> None:
    counts = gathering.counts
    total = 4.0 * counts.size * int(counts.max()) * n_samples
    if total > MOST_PADDING * layout.size:
        raise InputError(
            str(layout.path),
            f"{counts.size} shots of 1 to {counts.max()} traces and {n_samples} samples would take "
            f"{say_bytes(total)}, from a file of {say_bytes(layout.size)}",
            "See whether records, positions and delays are right (--bytes, --value), or leave "
            "shots out with --keep.",
        )
    needed = 8.0 * int(counts.max()) * n_samples
    check_room(str(layout.path), f"a shot of {counts.max()} traces", needed, "See its records.")


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
    return Survey(np.ascontiguousarray(sources), np.ascontiguousarray(receivers), wavelet, dt, mask)


def _tell(
    survey: Survey, gathering: Gathering, places: Places, line: geometry.Line | None, layout: Layout
) -> None:
    counts = gathering.counts
    log.info(
        "%s: %d shots of %s traces, %d samples of %g s",
        layout.path,
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
            "Positions (z, x) are along --line %s, from which points are up to %.3g m away",
            line,
            line.away(points).max(),
        )
    listeners = survey.listeners()
    for name, points in (("Sources", survey.sources), ("Receivers", listeners)):
        low, high = points.min(axis=0), points.max(axis=0)
        log.info("%s from %s to %s m", name, low.round(3).tolist(), high.round(3).tolist())
