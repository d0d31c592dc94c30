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
from hpcfwi.convert.choosing import CODES, Gathering
from hpcfwi.convert.request import HDF5, KINDS, MATLAB, SEGY, UNIX, VTK, Request, kind_of
from hpcfwi.convert.segy import ON_SAMPLE, Files, Table, pick
from hpcfwi.convert.writing import convert_to_segy
from hpcfwi.errors import InputError, refusing, say_bytes
from hpcfwi.parallel.context import Context
from hpcfwi.report.text import Progress, start_log
from hpcfwi.storage.gathers import create_gathers
from hpcfwi.storage.hdf5 import open_alone, plain, raised_on_all_ranks, read_number, read_real
from hpcfwi.storage.models import read_attribute
from hpcfwi.storage.unfinished import FORMAT
from hpcfwi.survey import COMPONENTS, PRESSURE, Components, Spectrum, Survey, TimeAxis
from hpcfwi.system import check_regular, check_room, is_there

# Largest size of the gathers relative to the SEG-Y files. More padding means damaged headers.
MOST_PADDING = 100
LARGEST = 2**31 - 1  # largest number in four bytes

log = logging.getLogger("hpcfwi")


@dataclass(frozen=True)
class Contents:
    """The contents of a gathers file, and the SEG-Y files that they are read from.

    traces: numbers of the traces in the files, shot after shot; delays: number of samples by which
    each of them begins after the first written sample; starts: (shot + 1,), the index at which each
    shot begins, and the number of traces; extras: further attributes and arrays of the gathers
    file.
    """

    files: Files
    survey: Survey
    traces: NDArray[np.int64]
    delays: NDArray[np.int64]
    starts: NDArray[np.int64]
    extras: dict[str, Any]


def look_into(request: Request) -> Contents:
    """Find everything but the samples, in one process. Raises `InputError`."""
    recorded, files, dt = choosing.choose_traces(request)
    table = choosing.exchange(recorded) if request.reciprocity else recorded
    gathering = choosing.gather(table, files).select(request.keep.shots)
    if not gathering.counts.size:
        raise InputError("--keep shots", "no shot is left", "Give numbers of shots, from 0.")
    traces = gathering.table["trace"]
    choosing.check_repeats(pick(recorded, np.isin(recorded["trace"], traces)), files)
    delays, n_samples = _find_delays(gathering.table, dt, files, request)
    _check_padding(gathering, n_samples, files)
    line = segy.choose_line(gathering.table, request, files)
    survey = _make_survey(gathering, line, dt, n_samples, request)
    _check_kinds(gathering.table, line, files, request)
    _tell(survey, gathering, line, files, request.depths is not None)
    names = [layout.path.name for layout in files.layouts]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    extras = {
        **_make_labels(gathering, files, request),
        "converted_from": f"{names[0]}{more}, {files.size} bytes",
        "line": "" if line is None else str(line),
        "source": _fingerprint(files, traces, delays, gathering.starts),
    }
    return Contents(files, survey, traces, delays, gathering.starts, extras)


def _fingerprint(files: Files, *arrays: NDArray[np.int64]) -> str:
    """Return a hash of the source of the traces, so that an unfinished file gets no others."""
    digest = hashlib.sha256()
    for layout in files.layouts:
        with refusing(str(layout.path), "it cannot be read", "Check its file system."):
            changed = layout.path.stat().st_mtime_ns
        digest.update(repr((layout, changed)).encode())
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()


def _find_delays(
    table: Table, dt: float, files: Files, request: Request
) -> tuple[NDArray[np.int64], int]:
    """Return the written sample at which each trace begins, and the number of written samples."""
    first, last = request.keep.time
    delays = table["begin"] - (first or 0.0)
    starts = np.rint(delays / dt)
    astray = np.abs(delays / dt - starts) > segy.ON_SAMPLE
    if astray.any():
        raise InputError(
            files.where("delay", which=table["file"][astray]),
            f"traces begin between samples, which are every {dt:g} s from {first or 0.0:g} s on",
            "Give the time of a sample in --keep time=FIRST:LAST, or --value delay=0, in ms.",
        )
    n_samples = int(starts.max()) + files.n_samples
    if last is not None:
        n_samples = min(n_samples, int(np.floor((last - (first or 0.0)) / dt + segy.ON_SAMPLE)) + 1)
    if n_samples < 1 or starts.min() >= n_samples:
        raise InputError(
            "--keep time",
            f"traces begin at {table['begin'].min():g} s, "
            f"{files.headers.where('delay')}, and are {dt * files.n_samples:g} s long, so that "
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
    gathering: Gathering, line: segy.Line | None, dt: float, n_samples: int, request: Request
) -> Survey:
    sources = gathering.table["source"][gathering.starts[:-1]]
    receivers = gathering.pad(gathering.table["receiver"])
    if line is None:
        sources, receivers = sources[:, ::-1], receivers[..., ::-1]
    else:
        shape = receivers.shape[:2]
        sources = line.along(sources)
        receivers = line.along(receivers.reshape(-1, 3)).reshape(*shape, 2)
    mask = gathering.mask
    receivers = receivers if mask is not None else _merge(receivers)
    axis = TimeAxis(dt, request.keep.time[0] or 0.0)
    wavelet = read_wavelet(request.wavelet, len(sources), n_samples, axis)
    if request.reciprocity and wavelet.ndim > 1:
        raise InputError(
            f"--wavelet {request.wavelet}",
            "it has a wavelet for each shot, but --reciprocity exchanges shots and receivers",
            "Give one wavelet that all sources have emitted.",
        )
    return Survey(
        *(np.ascontiguousarray(sources), np.ascontiguousarray(receivers), wavelet, dt, mask),
        components=_find_components(gathering),
        source_kinds={request.source_kind: np.ones(())},
    )


def _check_kinds(table: Table, line: segy.Line | None, files: Files, request: Request) -> None:
    """Raise `InputError` for components and sources that gathers of this survey cannot have."""
    if request.reciprocity and (table["component"].any() or request.source_kind != "explosive"):
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
    across = table["component"] == COMPONENTS.index("vy")
    if line is not None and across.any():
        raise InputError(
            files.where("code", which=table["file"][across]),
            f"{across.sum()} traces of cross-line motion (code {CODES['vy']}) belong to a survey "
            "along a line, which has none",
            "Leave them out, with the codes of others: --keep code=11,12,14.",
        )


def _find_components(gathering: Gathering) -> Components:
    kinds = gathering.table["component"]
    found = np.unique(kinds)
    numbers = gathering.pad(np.searchsorted(found, kinds)).astype(np.int8)
    numbers = numbers if gathering.mask is not None else _merge(numbers)
    names = tuple(COMPONENTS[kind] for kind in found)
    return Components(names, numbers if len(names) > 1 else None)


def _make_labels(gathering: Gathering, files: Files, request: Request) -> dict[str, Any]:
    """Return the labels of `storage.gathers`: the numbers and map positions of the headers."""
    table = gathering.table
    ends = ("receiver", "source") if request.reciprocity else ("source", "receiver")
    shot_map, trace_map = (segy.read_map(table, of, files.layouts[0], request) for of in ends)
    first = gathering.starts[:-1]
    labels = {
        "records": _whole(table["record"][first]),
        "channels": _whole(gathering.pad(table["channel"])),
        "source_map": shot_map[first],
        "receiver_map": _merge(gathering.pad(trace_map)),
        "datum": request.datum,
        "start": request.keep.time[0] or 0.0,
    }
    if not request.reciprocity:
        labels["shot_points"] = _whole(table["shot_point"][first])
    return labels


def _merge(values: NDArray[Any]) -> NDArray[Any]:
    """Return the values (receiver, ...) of the first shot if those of all shots are the same."""
    return values[0] if (values == values[:1]).all() else values


def _whole(numbers: NDArray) -> NDArray[np.int32]:
    """Return the nearest 32-bit integers, which the standard has for these fields."""
    finite = np.nan_to_num(numbers.astype(np.float64))
    return np.clip(np.rint(finite), -LARGEST, LARGEST).astype(np.int32)


def _tell(
    survey: Survey, gathering: Gathering, line: segy.Line | None, files: Files, positive: bool
) -> None:
    table = gathering.table
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
        points = np.concatenate([table["source"], table["receiver"]])
        log.info(
            "Positions (z, x) are along --line %s (azimuth %.2f degrees), from which points are up "
            "to %.3g m away",
            line,
            line.azimuth(),
            line.away(points).max(),
        )
    for name in ("source", "receiver"):
        depths = table[name][:, 2]
        if (depths < 0.0).all():
            log.warning(
                "All %ss are above z = 0, at z from %g to %g m: give --datum, the elevation of "
                "z = 0%s",
                name,
                depths.min(),
                depths.max(),
                "" if positive else ", or --depths positive-elevation if elevations are depths",
            )
    receiver_positions = survey.receiver_positions()
    for name, points in (("Sources", survey.sources), ("Receivers", receiver_positions)):
        # Adding 0 makes -0, to which small negative numbers are rounded, 0
        low, high = (0.0 + ends.round(3) for ends in (points.min(axis=0), points.max(axis=0)))
        log.info("%s from %s to %s m", name, low.tolist(), high.tolist())


# Bytes of traces that a rank holds at a time; a larger shot is held alone.
PART = 2**26


def convert_to_gathers(request: Request, context: Context, quiet: bool) -> None:
    """Write the gathers of SEG-Y files; collective. Raises `InputError` on all ranks."""
    contents = context.from_root(lambda: look_into(request))
    survey = contents.survey
    strange = []
    with create_gathers(request.target, survey, context, contents.extras) as writer:
        most = max(1, PART // (4 * survey.n_receivers * survey.n_samples))
        done = survey.n_shots - writer.left.size
        with Progress(
            survey.n_shots, "shot", done=done, every=0.1, enabled=context.is_root, quiet=quiet
        ) as progress:
            for part in writer.rounds(most):
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
    data = np.zeros((part.size, *contents.survey.shape[1:]), dtype=np.float32)
    with raised_on_all_ranks(context):
        for gather, shot in zip(data, part, strict=True):
            rows = slice(*contents.starts[shot : shot + 2])
            traces = contents.files.read(contents.traces[rows])
            _place(gather[: len(traces)], traces, contents.delays[rows])
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
    is_model = request.model or request.parameter is not None
    if len(request.sources) > 1 and (others or is_model):
        raise InputError(
            str(others[0] if others else request.source),
            "several files can be read only if all are SEG-Y data",
            "Give one file to read, and one to write.",
        )
    # The array of a parameter can be added to a model file
    adds = request.parameter is not None and target == HDF5
    if is_there(request.target) and not adds:
        raise InputError(
            str(request.target), "this file exists already", "Remove it, or choose another name."
        )
    if source == VTK:
        remedy = "Give the model in another kind of file, such as .npy."
        raise InputError(str(request.source), "VTK files are written, not read", remedy)
    remedies = {
        UNIX: "Give a name that ends with .sgy; segyread of Seismic Unix reads that.",
        MATLAB: "Write .npy, .h5 or raw floats.",
    }
    if target in remedies:
        problem = f"{target} files are read, not written"
        raise InputError(str(request.target), problem, remedies[target])
    gathers = not is_model and (
        source in (SEGY, UNIX)
        or (source == HDF5 and read_attribute(request.source, "format") == FORMAT)
    )
    return source, target, gathers


# Values at the ends of a wavelet that may be cut off, as a share of its largest value.
NEGLIGIBLE = 1e-4
# Share of a wavelet's energy above the Nyquist frequency of the traces that gives no warning.
ABOVE = 1e-3
# Entries of the interpolation matrix that are computed at a time.
AT_A_TIME = 2**22


def read_wavelet(
    path: Path | None, n_shots: int, n_samples: int, axis: TimeAxis
) -> NDArray[np.float32]:
    """Read the wavelet, (time,) or (shot, time), and sample it like traces with this axis.

    The file is .npy, text, or HDF5 with a dataset `wavelet`. If it has times, as a first column or
    as attributes `dt` and `start`, the wavelet is interpolated to the times of the traces. A
    wavelet that is shorter than the traces is followed by zeros; without a file it is 0. Raises
    `InputError` if the wavelet cannot be read, has a wrong shape or values that are not finite, or
    begins before or ends after the traces.
    """
    if path is None:
        log.warning(
            "No --wavelet: /wavelet is zero, and an inversion must be given or estimate one"
        )
        return np.zeros(n_samples, dtype=np.float32)
    found, own = _read(path, axis)
    if found.ndim not in (1, 2) or (found.ndim == 2 and len(found) != n_shots) or not found.size:
        raise InputError(
            str(path),
            f"the wavelet's shape is {found.shape}, expected (time,) or ({n_shots}, time)",
            "Give one wavelet, one per shot, or two columns of times (s) and amplitudes.",
        )
    if not np.isfinite(found).all() or np.abs(found).max() > np.finfo(np.float32).max:
        raise InputError(str(path), "the wavelet has values that are not finite", "Correct them.")
    _check_inside(path, found, own, n_samples, axis)
    return _resample(path, found, own, n_samples, axis).astype(np.float32)


def _check_inside(
    path: Path, values: NDArray[np.float64], own: TimeAxis, n_samples: int, axis: TimeAxis
) -> None:
    """Raise `InputError` if a wavelet begins before the traces or ends after them.

    own, axis: times of the wavelet and of the traces.
    """
    size = np.abs(values).max(axis=0) if values.ndim == 2 else np.abs(values)
    (heard,) = np.nonzero(size > NEGLIGIBLE * size.max())
    if not heard.size:
        return
    dt, first = axis.dt, axis.start
    earliest, latest = (own.start - first + own.dt * heard[end] for end in (0, -1))
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
            f"the wavelet has {values.shape[-1]} samples of {own.dt:g} s and ends at "
            f"{first + latest:.6g} s, but the traces have {n_samples} of {dt:g} s and end at "
            f"{first + dt * (n_samples - 1):.6g} s",
            "Cut the wavelet after its end, or give its times (s) as the first column.",
        )


def _resample(
    path: Path, values: NDArray[np.float64], own: TimeAxis, n_samples: int, axis: TimeAxis
) -> NDArray[np.float64]:
    """Return wavelets at the times of the traces.

    If the samples of the wavelets are at these times, they are copied. Otherwise the band-limited
    function through them (Shannon 1949) is evaluated there, low-pass filtered if the traces are
    sampled more coarsely.
    """
    dt, begins = axis.dt, own.start - axis.start
    length = values.shape[-1]
    found = np.zeros((*values.shape[:-1], n_samples))
    shift = round(begins / dt)
    if max(abs(begins / dt - shift), length * abs(own.dt / dt - 1.0)) < ON_SAMPLE:
        start, end = max(0, shift), max(0, min(n_samples, shift + length))
        found[..., start:end] = values[..., start - shift : end - shift]
        return found
    log.info(
        "%s: the wavelet, sampled every %g s from %g s after the first sample of the traces on, is "
        "interpolated to samples every %g s",
        *(path, own.dt, begins, dt),
    )
    spectrum = Spectrum.of(values, own.dt)
    if values.any() and spectrum.energy_above(0.5 / dt) > ABOVE:
        log.warning(
            "%s: %.1f %% of the wavelet's energy is above %g Hz, the highest frequency of the "
            "traces, and is removed",
            *(path, 100.0 * spectrum.energy_above(0.5 / dt), 0.5 / dt),
        )
    coarser = max(own.dt, dt)
    times = begins + own.dt * np.arange(length)
    step = max(1, AT_A_TIME // length)
    for start in range(0, n_samples, step):
        targets = dt * np.arange(start, min(start + step, n_samples))
        weights = np.sinc((times[:, None] - targets) / coarser) * (own.dt / coarser)
        found[..., start : start + step] = values @ weights
    return found


def _read(path: Path, axis: TimeAxis) -> tuple[NDArray[np.float64], TimeAxis]:
    """Read wavelets and their times, which are those of the traces if the file has none."""
    if KINDS.get(path.suffix) == HDF5:
        with open_alone(path) as file:
            values = read_real(file, path, "wavelet")
            names = [name for name in ("dt", "start") if plain(file.attrs.get(name)) is not None]
            times = {name: read_number(file, path, name, "Give it in s.") for name in names}
        own = replace(axis, **times)
        segy.check_interval(own.dt, f"{path}, attribute dt")
        return values, own
    if path.suffix == ".npy":
        values = read_npy(path)
        for columns in (values, values.T):
            if columns.ndim == 2 and columns.shape[1] == 2 and _grow_evenly(columns[:, 0]):
                return _with_times(columns, path)
        return values, axis
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
    return np.array([number for row in rows for number in row]), axis


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


def _grow_evenly(times: NDArray[np.float64]) -> bool:
    """Return True if these can be the times of samples: evenly growing to 0.1 of an interval."""
    if len(times) < 3 or not np.isfinite(times).all():
        return False
    step = (times[-1] - times[0]) / (len(times) - 1)
    even = times[0] + step * np.arange(len(times))
    return bool(step > 0.0 and np.abs(times - even).max() < 0.1 * step)


def _with_times(columns: NDArray[np.float64], path: Path) -> tuple[NDArray[np.float64], TimeAxis]:
    times = columns[:, 0]
    dt = float(times[-1] - times[0]) / (len(times) - 1)
    segy.check_interval(dt, f"{path}, the first column")
    return np.ascontiguousarray(columns[:, 1]), TimeAxis(dt, float(times[0]))
