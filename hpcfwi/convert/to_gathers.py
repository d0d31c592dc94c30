"""The work of `hpcfwi convert`, in particular the conversion of SEG-Y to gathers.

Rank 0 finds the survey and its gathers from the headers, of which it holds about 200 bytes per
trace. Every rank then writes its part of the gathers, some shots at a time. `choosing` selects the
traces. SEG-Y does not hold the wavelet, which is read from a separate file.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfwi.convert import choosing, segy
from hpcfwi.convert.arrays import convert_model, read_npy
from hpcfwi.convert.choosing import CODES, Gathering, choose_traces
from hpcfwi.convert.request import HDF5, KINDS, SEGY, UNIX, VTK, Request, holds_gathers, kind_of
from hpcfwi.convert.segy import LONGEST, ON_SAMPLE, Columns, Files, Places
from hpcfwi.convert.writing import convert_to_segy
from hpcfwi.errors import InputError, quote, refusing, say_bytes
from hpcfwi.parallel.context import Context
from hpcfwi.report.log import Progress, start_log
from hpcfwi.storage.gathers import create_gathers
from hpcfwi.storage.hdf5 import open_alone, plain, read_real
from hpcfwi.survey import (
    COMPONENTS,
    PRESSURE,
    Components,
    Spectrum,
    Survey,
)
from hpcfwi.system import check_regular, check_room, is_there

# Largest size of the gathers relative to the SEG-Y files. More padding means damaged headers.
MOST_PADDING = 100
LARGEST = 2**31 - 1  # largest number in four bytes

log = logging.getLogger("hpcfwi")


@dataclass(frozen=True)
class Contents:
    """The contents of a gathers file, and the SEG-Y files that they are read from.

    delays: (trace of the files,), number of samples by which each trace begins after the first
    written sample; extras: further attributes and arrays of the gathers file.
    """

    files: Files
    survey: Survey
    gathering: Gathering
    delays: NDArray[np.int64]
    extras: dict[str, Any]


def look_into(request: Request) -> Contents:
    """Find everything but the samples, in one process. Raises `InputError`."""
    recorded, files, dt = choose_traces(request)
    chosen = recorded.swap() if request.reciprocity else recorded
    gathering = choosing.gather(chosen.columns, chosen.places, files, request.headers)
    gathering = gathering.select(request.keep.shots)
    if not gathering.traces.size:
        raise InputError("--keep shots", "no shot is left", "Give numbers of shots, from 0.")
    choosing.check_repeats(
        gathering, recorded.traces, recorded.columns, recorded.places, files, request.headers
    )

    # From here on `chosen` has only the traces that are written, in their final order.
    chosen = chosen.select(gathering.traces)
    gathering = Gathering(np.arange(chosen.traces.size), gathering.starts)
    starts, n_samples = _find_times(chosen.columns, dt, files, request)
    delays = np.zeros(files.starts[-1], dtype=np.int64)
    delays[chosen.traces] = starts
    _check_padding(gathering, n_samples, files)
    line = segy.choose_line(chosen.places, request, files)
    survey = _make_survey(gathering, chosen.places, line, dt, n_samples, request)
    kinds = chosen.columns["component"]
    _check_kinds(chosen.columns, line, files, request)
    if kinds.any():
        survey = replace(survey, components=_find_components(gathering, kinds))
    if request.source_kind != "explosive":
        survey = replace(survey, source_kinds={request.source_kind: np.ones(())})
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
    """Return a hash of the source of the traces, so that an unfinished file gets no others."""
    digest = hashlib.sha256()
    for layout in files.layouts:
        with refusing(str(layout.path), "it cannot be read", "Check its file system."):
            changed = layout.path.stat().st_mtime_ns
        digest.update(repr((layout, changed)).encode())
    for array in (gathering.traces, gathering.starts, delays):
        digest.update(array.tobytes())
    return digest.hexdigest()


def _find_times(
    columns: Columns, dt: float, files: Files, request: Request
) -> tuple[NDArray[np.int64], int]:
    """Return the written sample at which each trace begins, and the number of written samples."""
    first, last = request.keep.time
    delays = columns["begin"] - (first or 0.0)
    starts = np.rint(delays / dt)
    astray = np.abs(delays / dt - starts) > segy.ON_SAMPLE
    if astray.any():
        raise InputError(
            f"{files.name(columns['file'][astray])}, {request.headers.where('delay')}",
            f"traces begin between samples, which are every {dt:g} s from {first or 0.0:g} s on",
            "Give a --keep time=FIRST: that is the time of a sample, or --value delay=0, in ms.",
        )
    n_samples = int(starts.max()) + files.n_samples
    if last is not None:
        n_samples = min(n_samples, int(np.floor((last - (first or 0.0)) / dt + segy.ON_SAMPLE)) + 1)
    if n_samples < 1 or starts.min() >= n_samples:
        raise InputError(
            "--keep time",
            f"traces begin at {columns['begin'].min():g} s, "
            f"{request.headers.where('delay')}, and are {dt * files.n_samples:g} s long, so that "
            "no sample is left",
            "Give a range within these times.",
        )
    return starts.astype(np.int64), n_samples


def _check_padding(gathering: Gathering, n_samples: int, files: Files) -> None:
    counts = gathering.counts
    total = 4.0 * counts.size * int(counts.max()) * n_samples
    if total > MOST_PADDING * files.size:
        raise InputError(
            files.path,
            f"{counts.size} shots of 1 to {counts.max()} traces and {n_samples} samples would take "
            f"{say_bytes(total)}, but the SEG-Y data have {say_bytes(files.size)}",
            "Check the records, positions and delays in the headers (--bytes, --value), or leave "
            "shots out with --keep.",
        )
    needed = 8.0 * int(counts.max()) * n_samples
    check_room(files.path, f"a shot of {counts.max()} traces", needed, "Check the records.")


def _make_survey(
    gathering: Gathering,
    places: Places,
    line: segy.Line | None,
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
            "it has a wavelet for each shot, but --reciprocity exchanges shots and receivers",
            "Give one wavelet that all sources have emitted.",
        )
    return Survey(np.ascontiguousarray(sources), np.ascontiguousarray(receivers), wavelet, dt, mask)


def _check_kinds(columns: Columns, line: segy.Line | None, files: Files, request: Request) -> None:
    """Raise `InputError` for components and sources that gathers of this survey cannot have."""
    if request.reciprocity and (columns["component"].any() or request.source_kind != "explosive"):
        raise InputError(
            "--reciprocity",
            "some traces are of particle velocity, or sources are forces, but the exchange of "
            "sources and receivers is possible for pressure of explosive sources only",
            "Keep the traces of pressure, --keep code=11, or 1; or leave the option out.",
        )
    if line is not None and request.source_kind == "force-y":
        raise InputError(
            "--source-kind",
            "found force-y, but the survey is along a line, which has no cross-line force",
            "Give force-x or force-z, or --axes zyx.",
        )
    across = columns["component"] == COMPONENTS.index("vy")
    if line is not None and across.any():
        raise InputError(
            f"{files.name(columns['file'][across])}, {request.headers.where('code')}",
            f"{across.sum()} traces of cross-line motion (code {CODES['vy']}) belong to a survey "
            "along a line, which has none",
            "Leave them out, with the codes of others: --keep code=11,12,14.",
        )


def _find_components(gathering: Gathering, kinds: NDArray[np.int64]) -> Components:
    """Return the components of traces, given the index of each of them in `COMPONENTS`."""
    found = np.unique(kinds)
    numbers = gathering.pad(np.searchsorted(found, kinds)).astype(np.int8)
    if gathering.mask is None and (numbers == numbers[:1]).all():
        numbers = numbers[0]
    names = tuple(COMPONENTS[kind] for kind in found)
    return Components(names, numbers if len(names) > 1 else None)


def _make_labels(
    gathering: Gathering, columns: Columns, files: Files, request: Request
) -> dict[str, Any]:
    """Return the labels of `storage.gathers`: the numbers and map positions of the headers."""
    ends = ("receiver", "source") if request.reciprocity else ("source", "receiver")
    shot_map, trace_map = (segy.read_map(columns, of, files.layouts[0], request) for of in ends)
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
    """Return the nearest 32-bit integers, which the standard has for these fields."""
    finite = np.nan_to_num(numbers.astype(np.float64))
    return np.clip(np.rint(finite), -LARGEST, LARGEST).astype(np.int32)


def _tell(
    survey: Survey,
    gathering: Gathering,
    places: Places,
    line: segy.Line | None,
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
    if survey.components.names != PRESSURE.names:
        log.info("Components: %s", ", ".join(survey.components.names))
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
            "" if positive else ", or --depths positive-elevation if elevations are depths",
        )
    receiver_positions = survey.receiver_positions()
    for name, points in (("Sources", survey.sources), ("Receivers", receiver_positions)):
        low, high = points.min(axis=0), points.max(axis=0)
        log.info("%s from %s to %s m", name, low.round(3).tolist(), high.round(3).tolist())


# Bytes of traces that a rank holds at a time; a larger shot is held alone.
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
            "%d of %d shots have traces that are not finite; the first is shot %d",
            len(strange),
            survey.n_shots,
            strange[0],
        )


def _read_part(
    part: NDArray[np.int64], contents: Contents, context: Context
) -> NDArray[np.float32]:
    """Return the gathers (shot, receiver, time) of some shots; collective.

    An error on any rank is raised on all.
    """
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
            context.raise_on_all_ranks(found)
    assert data is not None
    return data


def _place(
    target: NDArray[np.float32], traces: NDArray[np.float32], delays: NDArray[np.int64]
) -> None:
    """Copy traces (trace, time) to the target (trace, time), each shifted by its delay in samples.

    Samples outside the target are dropped, and the rest of the target is unchanged.
    """
    length = target.shape[1]
    for delay in np.unique(delays):
        these, begin = delays == delay, max(0, int(delay))
        end = max(begin, min(length, traces.shape[1] + int(delay)))
        target[these, begin:end] = traces[these, begin - delay : end - delay]


def convert_file(request: Request, context: Context, quiet: bool) -> None:
    """Convert the source of a request to its target; collective.

    Gathers are converted from SEG-Y and back, and models from any kind of file to any other that
    can be written. Raises `InputError` on all ranks, and `WriteFailure`.
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
            context.raise_on_all_ranks(
                InputError(
                    str(request.target),
                    f"gathers in {source} cannot be written as {target}",
                    "Gathers are converted from SEG-Y (.sgy) to HDF5 (.h5) and back; for a model "
                    "in SEG-Y give --model.",
                )
            )


def _look_at(request: Request) -> tuple[str, str, bool]:
    """Return the kinds of source and target, and True for gathers, False for a model."""
    source, target = kind_of(request.source), kind_of(request.target)
    others = [path for path in request.sources if kind_of(path) not in (SEGY, UNIX)]
    if len(request.sources) > 1 and (others or request.model):
        raise InputError(
            str(others[0] if others else request.source),
            "several files can be read only if all are SEG-Y data",
            "Give one file to read, and one to write.",
        )
    # The array of a parameter can be added to a model file
    adds = request.parameter is not None and target == HDF5
    if is_there(request.target) and not adds:
        raise InputError(
            str(request.target),
            "this file exists already",
            "Remove it, or choose another name.",
        )
    if source == VTK:
        raise InputError(
            str(request.source),
            "VTK files are written, not read",
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


# Values at the ends of a wavelet that may be cut off, as a share of its largest value.
NEGLIGIBLE = 1e-4
# Share of a wavelet's energy above the Nyquist frequency of the traces that gives no warning.
ABOVE = 1e-3
# Entries of the interpolation matrix that are computed at a time.
AT_A_TIME = 2**22


@dataclass(frozen=True)
class _Samples:
    """Wavelets (time,) or (shot, time), with their sampling interval and first time, in s.

    dt and start are None if the file does not have them. The wavelet then has the sampling interval
    of the traces, or begins with them.
    """

    values: NDArray[np.float64]
    dt: float | None = None
    start: float | None = None


def read_wavelet(
    path: Path | None, n_shots: int, n_samples: int, dt: float, first: float
) -> NDArray[np.float32]:
    """Read the wavelet and sample it like traces of `n_samples` every `dt` s from `first` (s) on.

    The file is .npy, text, or HDF5 with a dataset `wavelet`. If it has times, as a first column or
    as attributes `dt` and `start`, the wavelet is interpolated to the times of the traces. A
    wavelet that is shorter than the traces is followed by zeros.

    Returns
    -------
    array, (time,) or (shot, time)
        All zeros if `path` is None.

    Raises
    ------
    InputError
        If the wavelet cannot be read, has a wrong shape or values that are not finite, or begins
        before or ends after the traces.
    """
    if path is None:
        log.warning(
            "No --wavelet: /wavelet is zero, and an inversion must be given or estimate one"
        )
        return np.zeros(n_samples, dtype=np.float32)
    read = _read(path)
    found = read.values
    if found.ndim not in (1, 2) or (found.ndim == 2 and len(found) != n_shots) or not found.size:
        raise InputError(
            str(path),
            f"the wavelet's shape is {found.shape}, expected (time,) or ({n_shots}, time)",
            "Give one wavelet, one per shot, or two columns of times (s) and amplitudes.",
        )
    if not np.isfinite(found).all() or np.abs(found).max() > np.finfo(np.float32).max:
        raise InputError(str(path), "the wavelet has values that are not finite", "Correct them.")
    own_dt = dt if read.dt is None else read.dt
    begins = 0.0 if read.start is None else read.start - first
    _check_inside(path, found, own_dt, begins, n_samples, dt, first)
    return _resample(path, found, own_dt, begins, n_samples, dt).astype(np.float32)


def _check_inside(
    path: Path,
    values: NDArray[np.float64],
    own_dt: float,
    begins: float,
    n_samples: int,
    dt: float,
    first: float,
) -> None:
    """Raise `InputError` if a wavelet begins before the traces or ends after them."""
    size = np.abs(values).max(axis=0) if values.ndim == 2 else np.abs(values)
    (heard,) = np.nonzero(size > NEGLIGIBLE * size.max())
    if not heard.size:
        return
    earliest, latest = (begins + own_dt * heard[end] for end in (0, -1))
    if earliest < -ON_SAMPLE * dt:
        needed = dt * floor(round((first + earliest) / dt, 2))
        raise InputError(
            str(path),
            f"the wavelet begins at {first + earliest:.6g} s, but the traces begin at {first:g} s",
            f"Give --keep time={needed:.6g}: to begin the traces there, with zeros where they have "
            "no samples.",
        )
    if latest > (n_samples - 1 + ON_SAMPLE) * dt:
        raise InputError(
            str(path),
            f"the wavelet has {values.shape[-1]} samples of {own_dt:g} s and ends at "
            f"{first + latest:.6g} s, but the traces have {n_samples} of {dt:g} s and end at "
            f"{first + dt * (n_samples - 1):.6g} s",
            "Cut the wavelet after its end, or give its times (s) as the first column.",
        )


def _resample(
    path: Path,
    values: NDArray[np.float64],
    own_dt: float,
    begins: float,
    n_samples: int,
    dt: float,
) -> NDArray[np.float64]:
    """Return wavelets at the times of the traces.

    If the samples of the wavelets are at these times, they are copied. Otherwise the band-limited
    function through them (Shannon 1949) is evaluated there, low-pass filtered if the traces are
    sampled more coarsely.

    begins: time of the first sample of the wavelet minus that of the traces, s.
    """
    length = values.shape[-1]
    found = np.zeros((*values.shape[:-1], n_samples))
    shift = round(begins / dt)
    if max(abs(begins / dt - shift), length * abs(own_dt / dt - 1.0)) < ON_SAMPLE:
        start, end = max(0, shift), max(0, min(n_samples, shift + length))
        found[..., start:end] = values[..., start - shift : end - shift]
        return found
    log.info(
        "%s: the wavelet, sampled every %g s from %g s after the first sample of the traces on, is "
        "interpolated to samples every %g s",
        *(path, own_dt, begins, dt),
    )
    spectrum = Spectrum.of(values, own_dt)
    if values.any() and spectrum.energy_above(0.5 / dt) > ABOVE:
        log.warning(
            "%s: %.1f %% of the wavelet's energy is above %g Hz, the highest frequency of the "
            "traces, and is removed",
            *(path, 100.0 * spectrum.energy_above(0.5 / dt), 0.5 / dt),
        )
    coarser = max(own_dt, dt)
    times = begins + own_dt * np.arange(length)
    step = max(1, AT_A_TIME // length)
    for start in range(0, n_samples, step):
        targets = dt * np.arange(start, min(start + step, n_samples))
        weights = np.sinc((times[:, None] - targets) / coarser) * (own_dt / coarser)
        found[..., start : start + step] = values @ weights
    return found


def _read(path: Path) -> _Samples:
    if KINDS.get(path.suffix) == HDF5:
        with open_alone(path) as file:
            values = read_real(file, path, "wavelet")
            dt, start = (_read_time(file.attrs.get(key), path, key) for key in ("dt", "start"))
        if dt is not None:
            _check_step(dt, f"{path}, attribute dt")
        return _Samples(values, dt, start)
    if path.suffix == ".npy":
        values = read_npy(path)
        for columns in (values, values.T):
            if columns.ndim == 2 and columns.shape[1] == 2 and _grow_evenly(columns[:, 0]):
                return _with_times(columns, path)
        return _Samples(values)
    rows = _read_rows(path)
    if len(rows) > 1 and {len(row) for row in rows} == {2}:
        columns = np.array(rows)
        if not _grow_evenly(columns[:, 0]):
            raise InputError(
                str(path),
                "it has two numbers per line, but the first ones are not times that grow evenly",
                "Give one number per line, or a time (s) and an amplitude.",
            )
        return _with_times(columns, path)
    return _Samples(np.array([number for row in rows for number in row]))


def _read_rows(path: Path) -> list[list[float]]:
    """Read the numbers of each line of a text, separated by blanks or commas."""
    with refusing(str(path), "it cannot be read", "Check the name and its permissions."):
        check_regular(path)
        check_room(str(path), "the wavelet", 50.0 * path.stat().st_size, "Give a shorter wavelet.")
        lines = path.read_bytes().replace(b",", b" ").splitlines()
    try:
        rows = [[float(word) for word in line.partition(b"#")[0].split()] for line in lines]
    except ValueError as error:
        raise InputError(
            str(path),
            f"it is not a list of numbers ({error})",
            "Give .npy, or a text with one number, or a time (s) and an amplitude, per line.",
        ) from error
    return [row for row in rows if row]


def _read_time(value: object, path: Path, key: str) -> float | None:
    found = plain(value)
    if found is None:
        return None
    if not isinstance(found, int | float) or not np.isfinite(found):
        raise InputError(
            f"{path}, attribute {key}", f"found {quote(found)}, expected a number", "Give it in s."
        )
    return float(found)


def _grow_evenly(times: NDArray[np.float64]) -> bool:
    """Return True if these can be the times of samples: evenly growing to 0.1 of an interval."""
    if len(times) < 3 or not np.isfinite(times).all():
        return False
    step = (times[-1] - times[0]) / (len(times) - 1)
    even = times[0] + step * np.arange(len(times))
    return bool(step > 0.0 and np.abs(times - even).max() < 0.1 * step)


def _with_times(columns: NDArray[np.float64], path: Path) -> _Samples:
    times = columns[:, 0]
    dt = float(times[-1] - times[0]) / (len(times) - 1)
    _check_step(dt, f"{path}, the first column")
    return _Samples(np.ascontiguousarray(columns[:, 1]), dt, float(times[0]))


def _check_step(dt: float, where: str) -> None:
    if not 0.0 < dt <= LONGEST:
        likely = "; it looks like milliseconds" if dt > LONGEST else ""
        raise InputError(
            where,
            f"found a sampling interval of {dt:g} s, expected a number above 0, up to {LONGEST:g} s"
            f"{likely}",
            "Give times in s.",
        )
