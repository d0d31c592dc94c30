"""Writing of gathers and models as SEG-Y (revision 1, big-endian, IEEE floats) and as VTK images.

Rank 0 writes SEG-Y alone. Traces are not aligned with the blocks of a disk, and hosts that write
into the same block of a network file system may overwrite each other's data.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import segyio
from numpy.typing import NDArray
from segyio import BinField, TraceField

from hpcfwi.convert.choosing import CODES
from hpcfwi.convert.segy import Line
from hpcfwi.errors import InputError
from hpcfwi.model import Grid, Model
from hpcfwi.parallel.context import Context
from hpcfwi.report.text import Progress
from hpcfwi.storage.gathers import GatherReader, read_labels
from hpcfwi.storage.unfinished import failing_clearly
from hpcfwi.survey import EXPLOSIVE, PRESSURE, STRAIN, Survey
from hpcfwi.system import make_directory, put_in_place, written_whole

IEEE = 5
LARGEST_SHORT, LARGEST = 2**15 - 1, 2**31 - 1  # largest numbers in two and four bytes
DIVISORS = (1, 10, 100, 1000, 10000)  # magnitudes of the scalars that the standard allows
# Spacing along z, m, that is written as a sampling interval of 1.
INTERVAL = 1e-3

log = logging.getLogger("hpcfwi")


def convert_to_segy(source: Path, target: Path, context: Context, quiet: bool) -> None:
    """Write a gathers file as SEG-Y, without padding traces; collective. Raises `InputError`.

    SEG-Y does not hold the wavelet. Lengths are rounded to 0.1 mm or more, with a warning if this
    changes them. Records, channels, coordinates of the map and the delay are those of the labels of
    the file. Without labels shots and receivers are numbered from 1, and positions are those of the
    model.
    """
    with GatherReader(source, context) as reader:
        context.from_root(lambda: _write_gathers(reader, source, target, quiet))


def write_columns(
    target: Path, array: NDArray[np.float32], grid: Grid, line: Line | None, datum: float
) -> None:
    """Write a model as SEG-Y with one trace per column, inlines along y and crosslines along x.

    The sampling interval is the spacing along z in mm. line: of a 2-D model on the map; if None,
    its x is that of the map; datum: elevation of z = 0, m. Raises `InputError` if SEG-Y cannot hold
    the model, or a line is given for a volume, and `WriteFailure`.
    """
    if line is not None and grid.ndim == 3:
        raise InputError("--line", f"given, but {target} is a volume", "Leave it out.")
    if grid.origin[0]:
        log.warning(
            "%s: SEG-Y cannot hold the origin of the model, z = %g m", target, grid.origin[0]
        )
    columns = np.ascontiguousarray(array.reshape(grid.shape[0], -1).T)
    across = [grid.coordinates(axis) for axis in range(1, grid.ndim)]
    places = np.stack(np.meshgrid(*across, indexing="ij"), axis=-1).reshape(len(columns), -1)
    numbers = np.indices(grid.shape[1:]).reshape(grid.ndim - 1, -1).T + 1
    if line is not None:
        places = np.round(line.on_map(places[:, 0])[:, ::-1], 9)
    elif grid.ndim == 2:
        places = np.hstack([np.zeros_like(places), places])
    divisor = _divisor(places, f"{target}, positions")
    elevation = np.array([datum - grid.origin[0]])
    down = _divisor(elevation, f"{target}, elevation")
    interval = grid.spacing[0] / INTERVAL
    if abs(interval - round(interval)) > 1e-6 or round(interval) > LARGEST_SHORT:
        log.warning(
            "%s: SEG-Y cannot hold the spacing of %g m along z, which is left out",
            target,
            grid.spacing[0],
        )
        interval = 0.0
    lines = {1: "Written by hpcfwi", 2: "Columns of a model, lengths in metres"}
    with _new_file(target, len(columns), 1, grid.shape[0], round(interval), lines) as file:
        for number, (column, place, at) in enumerate(zip(columns, places, numbers, strict=True)):
            file.header[number] = {
                TraceField.TRACE_SEQUENCE_FILE: number + 1,
                TraceField.TraceIdentificationCode: 1,
                TraceField.INLINE_3D: int(at[0]) if grid.ndim == 3 else 1,
                TraceField.CROSSLINE_3D: int(at[-1]),
                TraceField.SourceGroupScalar: _scalar(divisor),
                TraceField.CDP_X: _whole(place[-1], divisor),
                TraceField.CDP_Y: _whole(place[0], divisor),
                TraceField.CDP: number + 1,
                TraceField.ElevationScalar: _scalar(down),
                TraceField.ReceiverGroupElevation: _whole(elevation[0], down),
                TraceField.TRACE_SAMPLE_COUNT: grid.shape[0],
                TraceField.TRACE_SAMPLE_INTERVAL: round(interval),
            }
            file.trace[number] = column


def write_image(target: Path, model: Model) -> None:
    """Write a model as VTK XML image data, in which z points upwards and is minus the depth.

    A 2-D model is in the plane y = 0. Raises `WriteFailure`.
    """
    grid = model.grid
    depth, x = (grid.coordinates(axis) for axis in (0, grid.ndim - 1))
    y = grid.coordinates(1) if grid.ndim == 3 else np.zeros(1)
    spacing = grid.spacing[-1], grid.spacing[1] if grid.ndim == 3 else 1.0, grid.spacing[0]
    extent = " ".join(f"0 {axis.size - 1}" for axis in (x, y, depth))
    with written_whole(target) as file:

        def write(text: str) -> None:
            file.write(text.encode())

        write('<?xml version="1.0"?>\n<!-- z is minus the depth, m -->\n')
        write('<VTKFile type="ImageData" version="1.0" byte_order="LittleEndian" ')
        write(f'header_type="UInt64">\n<ImageData WholeExtent="{extent}" ')
        write(f'Origin="{x[0]} {y[0]} {-depth[-1]}" Spacing="{" ".join(map(str, spacing))}">\n')
        write(f'<Piece Extent="{extent}">\n<PointData Scalars="{next(iter(model.arrays))}">\n')
        for name, array in model.arrays.items():
            values = np.ascontiguousarray(array[::-1], dtype="<f4").tobytes()
            write(f'<DataArray type="Float32" Name="{name}" format="binary">')
            file.write(base64.b64encode(np.array(len(values), "<u8").tobytes() + values))
            write("</DataArray>\n")
        write("</PointData>\n</Piece>\n</ImageData>\n</VTKFile>\n")


def find_interval(survey: Survey, where: str) -> int:
    """Return the sampling interval of a survey in microseconds.

    Raises `InputError` if SEG-Y cannot hold the interval or the number of samples.

    where: the file or key that gives the sampling, for the message.
    """
    interval = 1e6 * survey.dt
    if (
        abs(interval - round(interval)) > 1e-6 * interval
        or not 1 <= round(interval) <= LARGEST_SHORT
    ):
        raise InputError(
            where,
            f"found {survey.dt:g} s, but SEG-Y holds whole microseconds from 1 to {LARGEST_SHORT}",
            "Resample the traces, or write gathers (.h5).",
        )
    _check_length(survey.n_samples, where)
    return round(interval)


def _check_length(n_samples: int, where: str) -> None:
    if n_samples > LARGEST_SHORT:
        raise InputError(
            where,
            f"found traces of {n_samples} samples, but SEG-Y holds at most {LARGEST_SHORT}",
            "Cut or resample them, or write another kind of file (.h5).",
        )


def _write_gathers(reader: GatherReader, source: Path, target: Path, quiet: bool) -> None:
    survey = reader.survey
    interval = find_interval(survey, f"{source}, attribute dt")
    heard = np.ones(survey.shape[:2], dtype=bool) if survey.mask is None else survey.mask
    labels = read_labels(source)
    lines = {1: "Written by hpcfwi", 2: "Depths and elevations from z = 0, lengths in metres"}
    if "source_map" in labels:
        lines[2] = f"Positions of the map; z = 0 is at the elevation {labels.get('datum', 0.0):g} m"
    _tell_way_back(target, labels)
    labels = _complete(labels, survey)
    shot_map = labels["source_map"]
    trace_map = np.broadcast_to(labels["receiver_map"], (*heard.shape, 4))
    channels = np.broadcast_to(labels["channels"], heard.shape)
    codes = _find_codes(survey, target)
    delay, times = _find_delay(labels["start"], source)
    points = np.concatenate([shot_map, trace_map[heard]])
    counts = heard.sum(axis=1)
    across, down = (
        _divisor(lengths, f"{source}, {name}")
        for lengths, name in ((points[:, :2], "positions"), (points[:, 2:], "depths"))
    )
    size = int(counts.sum()), int(counts.max()), survey.n_samples
    with (
        _new_file(target, *size, interval, lines) as file,
        Progress(survey.n_shots, "shot", every=0.1, quiet=quiet) as progress,
    ):
        number = 0
        for shot in range(survey.n_shots):
            (traces,) = reader.read(np.array([shot]))
            x, y, elevation, depth = shot_map[shot]
            common = {
                TraceField.FieldRecord: int(labels["records"][shot]),
                TraceField.EnergySourcePoint: int(labels["shot_points"][shot]),
                TraceField.ElevationScalar: _scalar(down),
                TraceField.SourceGroupScalar: _scalar(across),
                TraceField.CoordinateUnits: 1,
                TraceField.DelayRecordingTime: delay,
                TraceField.ScalarTraceHeader: _scalar(times),
                TraceField.TRACE_SAMPLE_COUNT: survey.n_samples,
                TraceField.TRACE_SAMPLE_INTERVAL: interval,
                TraceField.SourceSurfaceElevation: _whole(elevation, down),
                TraceField.SourceDepth: _whole(depth, down),
                TraceField.SourceX: _whole(x, across),
                TraceField.SourceY: _whole(y, across),
            }
            for receiver in np.flatnonzero(heard[shot]):
                place = trace_map[shot, receiver]
                file.header[number] = {
                    **common,
                    TraceField.TRACE_SEQUENCE_LINE: number + 1,
                    TraceField.TRACE_SEQUENCE_FILE: number + 1,
                    TraceField.TraceNumber: int(channels[shot, receiver]),
                    TraceField.TraceIdentificationCode: int(codes[shot, receiver]),
                    TraceField.offset: round(float(np.linalg.norm(place[:2] - (x, y)))),
                    TraceField.ReceiverGroupElevation: _whole(place[2] - place[3], down),
                    TraceField.GroupX: _whole(place[0], across),
                    TraceField.GroupY: _whole(place[1], across),
                }
                file.trace[number] = traces[receiver]
                number += 1
            progress.advance(1)


def _find_codes(survey: Survey, target: Path) -> NDArray[np.int64]:
    """Return the trace codes (shot, receiver) of a survey: 1 if it has pressure only."""
    names, shape = survey.components.names, survey.shape[:2]
    if STRAIN in names:
        log.warning("%s: SEG-Y has no code for strain, which gets code 1", target)
    if survey.source_kinds.keys() != EXPLOSIVE.keys():
        log.warning("%s: SEG-Y does not hold the kinds of the sources", target)
    if names == PRESSURE.names:
        return np.ones(shape, np.int64)
    codes = np.array([CODES.get(name, 1) for name in names])
    return codes[survey.components.of_traces(shape)]


def _complete(labels: Mapping[str, Any], survey: Survey) -> dict[str, Any]:
    """Complete labels: shots and receivers numbered from 1, and positions of the model."""
    counted = 1 + np.arange(survey.n_shots)
    return {
        "records": counted,
        "shot_points": labels.get("records", counted),
        "channels": 1 + np.arange(survey.n_receivers),
        "source_map": _lay_out(survey.sources),
        "receiver_map": _lay_out(survey.receivers),
        "start": 0.0,
        **labels,
    }


def _lay_out(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return positions (z, x) or (z, y, x) as x, y, elevation and depth on the map."""
    z, x = points[..., 0], points[..., -1]
    y = points[..., 1] if points.shape[-1] == 3 else np.zeros_like(x)
    return np.stack([x, y, np.maximum(-z, 0.0), np.maximum(z, 0.0)], axis=-1)


def _tell_way_back(target: Path, labels: Mapping[str, Any]) -> None:
    """Log the options with which the written file is converted back to the same gathers."""
    options = [
        *([f"--line {labels['line']}"] if labels.get("line") and "source_map" in labels else []),
        *([f"--datum {labels['datum']:g}"] if labels.get("datum") else []),
        *([f"--keep time={labels['start']:g}:"] if labels.get("start") else []),
    ]
    if options:
        log.info("%s is converted back to the same gathers with %s", target, " ".join(options))


def _find_delay(start: float, source: Path) -> tuple[int, int]:
    """Return the delay for the headers, and the divisor that makes it milliseconds."""
    delay = round(1e3 * start, 6)
    fitting = [divisor for divisor in DIVISORS if abs(delay) * divisor <= LARGEST_SHORT]
    exact = [divisor for divisor in fitting if round(delay * divisor, 6).is_integer()]
    if not exact:
        raise InputError(
            f"{source}, attribute start",
            f"found {start:g} s, but SEG-Y holds delays of up to {LARGEST_SHORT} units of "
            "1 ms, or 1 ms divided by 10, 100, 1000 or 10000",
            "Begin the traces at another time (--keep time=FIRST:), or leave the attribute out.",
        )
    return round(delay * exact[0]), exact[0]


@contextmanager
def _new_file(
    path: Path,
    n_traces: int,
    together: int,
    n_samples: int,
    interval: int,
    lines: Mapping[int, str],
) -> Iterator[segyio.SegyFile]:
    """Yield a SEG-Y file to fill, which gets its name when it is complete; raises `WriteFailure`.

    The file is made in a new private directory, where other users cannot place a link.

    together: largest number of traces of a shot, or of another ensemble; lines: lines of the text
    header, by number.
    """
    _check_length(n_samples, str(path))
    make_directory(path.parent)
    spec = segyio.spec()
    spec.format, spec.tracecount, spec.samples = IEEE, n_traces, np.arange(n_samples)
    with (
        failing_clearly(path),
        TemporaryDirectory(prefix=f".{path.name}.", suffix=".part", dir=path.parent) as folder,
    ):
        part = Path(folder) / path.name
        with segyio.create(part, spec) as file:
            file.text[0] = segyio.tools.create_text_header(lines)
            numbers: Mapping[int, int] = {
                BinField.Traces: together if together <= LARGEST_SHORT else 0,
                BinField.AuxTraces: 0,
                BinField.Interval: interval,
                BinField.IntervalOriginal: interval,
                BinField.MeasurementSystem: 1,
                BinField.SEGYRevision: 1,
                BinField.TraceFlag: 1,
            }
            file.bin.update(numbers)
            yield file
        put_in_place(part, path)


def _divisor(lengths: NDArray[np.float64], what: str) -> int:
    """Return the smallest divisor with which whole numbers hold all lengths.

    If there is none, return the largest possible one and log a warning that lengths are rounded.
    Raises `InputError` if a length is too large.

    what: the source of the lengths, for messages.
    """
    largest = float(np.abs(lengths).max())
    if largest > LARGEST:
        raise InputError(what, f"found {largest:g} m, more than SEG-Y holds", "Move the origin.")
    fitting = [divisor for divisor in DIVISORS if largest * divisor <= LARGEST]
    for divisor in fitting:
        if (np.rint(lengths * divisor) / divisor == lengths).all():
            return divisor
    log.warning("%s are rounded to %g m: SEG-Y holds no more digits", what, 1.0 / fitting[-1])
    return fitting[-1]


def _whole(length: float, divisor: int) -> int:
    return int(np.rint(length * divisor))


def _scalar(divisor: int) -> int:
    return 1 if divisor == 1 else -divisor
