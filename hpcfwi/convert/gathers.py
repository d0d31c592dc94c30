"""SEG-Y to gathers: shot by shot, every rank its part, in as much memory as some shots take.

The headers are read on rank 0, which keeps about 200 bytes a trace for it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from hpcfwi.convert import geometry, shots, units
from hpcfwi.convert.geometry import Columns, Places
from hpcfwi.convert.request import Request
from hpcfwi.convert.segy import Layout, TraceReader, find_layout, read_headers
from hpcfwi.convert.shots import Gathering
from hpcfwi.convert.wavelet import read_wavelet
from hpcfwi.errors import InputError, say_bytes
from hpcfwi.host import check_room
from hpcfwi.parallel.context import Context
from hpcfwi.report.progress import Progress
from hpcfwi.storage.gathers import create_gathers
from hpcfwi.survey import Survey

# Bytes of traces that a rank holds at a time
PART = 2**26
# Times the size of the SEG-Y file that the gathers may have: spreads as uneven are a damaged header
MOST_PADDING = 100
# Of a sample, how far the first may be off the times of the others
ON_SAMPLE = 0.01

log = logging.getLogger("hpcfwi")


@dataclass(frozen=True)
class _Contents:
    """What is to be written, and from where.

    survey, gathering: of the shots; delays: (trace of the file,), samples by which each trace
    begins later than the first that is written; attributes: of the gathers file.
    """

    layout: Layout
    survey: Survey
    gathering: Gathering
    delays: NDArray[np.int64]
    attributes: dict[str, str]


def convert_to_gathers(request: Request, context: Context, quiet: bool) -> None:
    """Write the gathers of a SEG-Y file; collective. Raises `InputError` on all ranks."""
    contents = context.from_root(lambda: _look_into(request))
    survey, written = contents.survey, request.target
    strange = []
    with create_gathers(written, survey, context, contents.attributes) as writer:
        mine = np.array_split(writer.left, context.size)[context.rank]
        shot_bytes = 4 * survey.n_receivers * survey.n_samples
        n_rounds = -(-mine.size // max(1, PART // shot_bytes))
        parts = np.array_split(mine, max(1, n_rounds))
        done = survey.n_shots - writer.left.size
        with (
            Progress(
                survey.n_shots, "shot", done=done, every=0.1, enabled=context.is_root, quiet=quiet
            ) as progress,
            TraceReader(contents.layout) as reader,
        ):
            for number in range(max(context.all_gather(len(parts)))):
                part = parts[number] if number < len(parts) else mine[:0]
                data = _read_part(part, reader, contents, context)
                strange += part[~np.isfinite(data).all(axis=(1, 2))].tolist()
                writer.write(part, data)
                progress.advance(sum(context.all_gather(int(part.size))))
    strange = sorted(shot for shots in context.all_gather(strange) for shot in shots)
    if strange and context.is_root:
        log.warning(
            "%d shots have traces that are not finite, the first is shot %d",
            len(strange),
            strange[0],
        )


def _read_part(
    part: NDArray[np.int64], reader: TraceReader, contents: _Contents, context: Context
) -> NDArray[np.float32]:
    """The gathers (shot, receiver, time) of some shots; an error of any rank is raised on all."""
    survey, failure, data = contents.survey, None, None
    try:
        data = np.zeros((part.size, *survey.shape[1:]), dtype=np.float32)
        for gather, shot in zip(data, part, strict=True):
            start, end = contents.gathering.starts[shot : shot + 2]
            traces = contents.gathering.traces[start:end]
            _place(gather[: end - start], reader.read(traces), contents.delays[traces])
    except InputError as error:
        failure = error
    for found in context.all_gather(failure):
        if found is not None:
            context.raise_alike(found)
    assert data is not None
    return data


def _place(
    target: NDArray[np.float32], traces: NDArray[np.float32], delays: NDArray[np.int64]
) -> None:
    """Copy traces (trace, time) to where they belong in time; the rest stays as it is."""
    length = target.shape[1]
    for delay in np.unique(delays):
        these, begin = delays == delay, max(0, int(delay))
        end = max(begin, min(length, traces.shape[1] + int(delay)))
        target[these, begin:end] = traces[these, begin - delay : end - delay]


def _look_into(request: Request) -> _Contents:
    """All but the traces."""
    headers, keep = request.headers, request.keep
    layout = find_layout(request.source, headers)
    names = (*geometry.NAMES, *shots.NAMES, "code", "offset", "delay", "samples", "interval")
    columns = read_headers(layout, headers, names)
    _check_lengths(columns, layout, request)
    traces = _choose(columns, layout, request)
    columns = {name: column[traces] for name, column in columns.items()}
    places = geometry.find_places(columns, layout, request)
    near, far = (
        default if end is None else end
        for end, default in zip(keep.offset, (0.0, inf), strict=True)
    )
    offsets = places.offsets
    kept = (offsets >= near) & (offsets <= far)
    if not kept.any():
        raise InputError(
            "--keep offset",
            f"no trace is left: offsets go from {offsets.min():.6g} to {offsets.max():.6g} m",
            "Give a range within these.",
        )
    traces, places = traces[kept], places.select(kept)
    columns = {name: column[kept] for name, column in columns.items()}

    dt = units.find_interval(request.dt, columns, layout, headers)
    units.check_distances(places, columns["offset"], dt * layout.n_samples, layout, headers)
    starts, n_samples = _find_times(columns, dt, layout, request)
    delays = np.zeros(layout.n_traces, dtype=np.int64)
    delays[traces] = starts

    gathering = shots.gather(np.arange(traces.size), columns, places, layout, headers)
    gathering = gathering.select(keep.shots)
    if not gathering.traces.size:
        raise InputError("--keep shots", "no shot is left", "Give numbers from 0, of shots.")
    _check_padding(gathering, n_samples, layout)
    line = geometry.choose_line(places, request, layout)
    survey = _make_survey(gathering, places, line, dt, n_samples, request)
    _tell(survey, gathering, places, line, layout)
    gathering = Gathering(traces[gathering.traces], gathering.starts)
    attributes = {
        "converted_from": f"{request.source.name}, {layout.size} bytes",
        "line": "" if line is None else str(line),
    }
    return _Contents(layout, survey, gathering, delays, attributes)


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


def _choose(columns: Columns, layout: Layout, request: Request) -> NDArray[np.int64]:
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
    if np.abs(delays / dt - starts).max() > ON_SAMPLE:
        raise InputError(
            f"{layout.path}, {request.headers.where('delay')}",
            f"traces begin at times that are no whole samples of {dt:g} s after {first or 0.0:g} s",
            "Give a --keep time=FIRST: that is, or --value delay=0, in ms.",
        )
    n_samples = int(starts.max()) + layout.n_samples
    if last is not None:
        n_samples = min(n_samples, int(np.floor((last - (first or 0.0)) / dt + ON_SAMPLE)) + 1)
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
    wavelet = read_wavelet(request.wavelet, len(sources), n_samples)
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
