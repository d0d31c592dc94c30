"""Conversions: the work of `hpcfwi convert`, above all from SEG-Y to gathers.

One process finds the survey and its gathers from the headers, of which about 200 bytes a trace are
kept. Then every rank writes its part of the gathers, shot by shot, in as much memory as some shots
take. `choosing` says which traces are kept.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfwi.convert import choosing, geometry
from hpcfwi.convert.arrays import convert_model
from hpcfwi.convert.choosing import Gathering, choose_traces
from hpcfwi.convert.geometry import Columns, Places
from hpcfwi.convert.request import HDF5, SEGY, UNIX, VTK, Request, holds_gathers, kind_of
from hpcfwi.convert.segy import Files
from hpcfwi.convert.wavelet import read_wavelet
from hpcfwi.convert.writing import convert_to_segy
from hpcfwi.errors import InputError, refusing, say_bytes
from hpcfwi.parallel.context import Context
from hpcfwi.report.log import Progress, start_log
from hpcfwi.storage.gathers import create_gathers
from hpcfwi.survey import Survey
from hpcfwi.system import check_room, is_there

# Times the size of the SEG-Y file that the gathers may have: spreads as uneven are a damaged header
MOST_PADDING = 100
LARGEST = 2**31 - 1  # number of four bytes

log = logging.getLogger("hpcfwi")


@dataclass(frozen=True)
class Contents:
    """The contents of a gathers file, and their source.

    survey, gathering: of the shots; delays: (trace of the files,), samples by which each trace
    begins later than the first that is written; extras: attributes
    and further arrays of the gathers file.
    """

    files: Files
    survey: Survey
    gathering: Gathering
    delays: NDArray[np.int64]
    extras: dict[str, Any]


def look_into(request: Request) -> Contents:
    """All but the traces, in one process. Raises `InputError`."""
    recorded, files, dt = choose_traces(request)
    chosen = recorded.swap() if request.reciprocity else recorded
    gathering = choosing.gather(chosen.columns, chosen.places, files, request.headers)
    gathering = gathering.select(request.keep.shots)
    if not gathering.traces.size:
        raise InputError("--keep shots", "no shot is left", "Give numbers from 0, of shots.")
    choosing.check_repeats(
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
    labels = _make_labels(gathering, chosen.columns, files, request)
    gathering = Gathering(chosen.traces, gathering.starts)
    names = [layout.path.name for layout in files.layouts]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    extras = {
        **labels,
        "converted_from": f"{names[0]}{more}, {files.size} bytes",
        "line": "" if line is None else str(line),
        "source": _fingerprint(files, gathering, delays),
    }
    return Contents(files, survey, gathering, delays, extras)


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


def _find_times(
    columns: Columns, dt: float, files: Files, request: Request
) -> tuple[NDArray[np.int64], int]:
    """The sample at which each trace begins, counted from the first to be written; and how many."""
    first, last = request.keep.time
    delays = columns["begin"] - (first or 0.0)
    starts = np.rint(delays / dt)
    astray = np.abs(delays / dt - starts) > geometry.ON_SAMPLE
    if astray.any():
        raise InputError(
            f"{files.name(columns['file'][astray])}, {request.headers.where('delay')}",
            f"traces begin at times that are no whole samples of {dt:g} s after {first or 0.0:g} s",
            "Give a --keep time=FIRST: that is, or --value delay=0, in ms.",
        )
    n_samples = int(starts.max()) + files.n_samples
    if last is not None:
        n_samples = min(
            n_samples, int(np.floor((last - (first or 0.0)) / dt + geometry.ON_SAMPLE)) + 1
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


def _make_labels(
    gathering: Gathering, columns: Columns, files: Files, request: Request
) -> dict[str, Any]:
    """Make what `storage.gathers` keeps of the headers, as far as SEG-Y can hold it."""
    ends = ("receiver", "source") if request.reciprocity else ("source", "receiver")
    shot_map, trace_map = (geometry.read_map(columns, of, files.layouts[0], request) for of in ends)
    first = gathering.traces[gathering.starts[:-1]]
    receiver_map = gathering.pad(trace_map)
    labels = {
        "records": _whole(columns["record"][first]),
        "channels": _whole(gathering.pad(columns["channel"])),
        "source_map": shot_map[first],
        "receiver_map": receiver_map[0]
        if (receiver_map == receiver_map[:1]).all()
        else receiver_map,
        "datum": request.datum,
        "start": request.keep.time[0] or 0.0,
    }
    if not request.reciprocity:
        labels["shot_points"] = _whole(columns["shot_point"][first])
    return labels


def _whole(numbers: NDArray) -> NDArray[np.int32]:
    """Numbers as the standard has them, of 32 bits; the nearest ones where they are others."""
    finite = np.nan_to_num(numbers.astype(np.float64))
    return np.clip(np.rint(finite), -LARGEST, LARGEST).astype(np.int32)


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


# Bytes of traces that a rank holds at a time
PART = 2**26


def convert_to_gathers(request: Request, context: Context, quiet: bool) -> None:
    """Write the gathers of SEG-Y files; collective. Raises `InputError` on all ranks."""
    contents = context.from_root(lambda: look_into(request))
    survey = contents.survey
    strange = []
    with create_gathers(request.target, survey, context, contents.extras) as writer:
        mine = np.array_split(writer.left, context.size)[context.rank]
        shot_bytes = 4 * survey.n_receivers * survey.n_samples
        n_rounds = -(-mine.size // max(1, PART // shot_bytes))
        parts = np.array_split(mine, max(1, n_rounds))
        done = survey.n_shots - writer.left.size
        with Progress(
            survey.n_shots, "shot", done=done, every=0.1, enabled=context.is_root, quiet=quiet
        ) as progress:
            for number in range(max(context.all_gather(len(parts)))):
                part = parts[number] if number < len(parts) else mine[:0]
                data = _read_part(part, contents, context)
                strange += part[~np.isfinite(data).all(axis=(1, 2))].tolist()
                writer.write(part, data)
                progress.advance(sum(context.all_gather(int(part.size))))
    strange = sorted(shot for shots in context.all_gather(strange) for shot in shots)
    if strange and context.is_root:
        log.warning(
            "%d of %d shots have traces that are not finite, the first is shot %d",
            len(strange),
            survey.n_shots,
            strange[0],
        )


def _read_part(
    part: NDArray[np.int64], contents: Contents, context: Context
) -> NDArray[np.float32]:
    """The gathers (shot, receiver, time) of some shots; an error of any rank is raised on all."""
    survey, failure, data = contents.survey, None, None
    try:
        data = np.zeros((part.size, *survey.shape[1:]), dtype=np.float32)
        for gather, shot in zip(data, part, strict=True):
            start, end = contents.gathering.starts[shot : shot + 2]
            traces = contents.gathering.traces[start:end]
            _place(gather[: end - start], contents.files.read(traces), contents.delays[traces])
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


def convert_file(request: Request, context: Context, quiet: bool) -> None:
    """Write what the request's source holds as its target; collective.

    Gathers from SEG-Y and back; models from any kind of file to any other. Raises `InputError` on
    all ranks, and `WriteFailure`.
    """
    with start_log(None, context.rank, quiet):
        source, target, gathers = context.from_root(lambda: _look_at(request))
        if not gathers:
            context.from_root(lambda: convert_model(request))
        elif source in (SEGY, UNIX) and target == HDF5:
            convert_to_gathers(request, context, quiet)
        elif source == HDF5 and target == SEGY:
            convert_to_segy(request.source, request.target, context, quiet)
        else:
            context.raise_alike(
                InputError(
                    str(request.target),
                    f"gathers in {source} cannot be written as {target}",
                    "Gathers go from SEG-Y (.sgy) to HDF5 (.h5) and back; for a model in SEG-Y "
                    "give --model.",
                )
            )


def _look_at(request: Request) -> tuple[str, str, bool]:
    """Return the kinds of the files, and whether they have gathers."""
    source, target = kind_of(request.source), kind_of(request.target)
    others = [path for path in request.sources if kind_of(path) not in (SEGY, UNIX)]
    if len(request.sources) > 1 and (others or request.model):
        raise InputError(
            str(others[0] if others else request.source),
            "several files are read into one only where they are SEG-Y data",
            "Give one file to read, and one to write.",
        )
    if is_there(request.target):
        raise InputError(
            str(request.target),
            "there is such a file already",
            "Remove it, or choose another name.",
        )
    if source == VTK:
        raise InputError(
            str(request.source),
            "VTK's files are written, not read",
            "Give the model in another kind of file, such as .npy.",
        )
    if target == UNIX:
        raise InputError(
            str(request.target),
            "Seismic Unix files are read, not written",
            "Give a name that ends with .sgy; segyread of Seismic Unix reads that.",
        )
    gathers = not request.model and (
        source in (SEGY, UNIX) or (source == HDF5 and holds_gathers(request.source))
    )
    return source, target, gathers
