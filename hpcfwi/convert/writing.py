"""Gathers and models as SEG-Y: revision 1, big-endian, IEEE floats.

Rank 0 writes alone: traces lie anywhere in the blocks of a disk, and ranks of several hosts that
write into one block of a network's disk may undo what the others have written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import segyio
from numpy.typing import NDArray
from segyio import BinField, TraceField

from hpcfwi.errors import InputError
from hpcfwi.files import make_directory, put_in_place
from hpcfwi.model import Grid
from hpcfwi.parallel.context import Context
from hpcfwi.report.progress import Progress
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.storage.unfinished import failing_clearly
from hpcfwi.survey import Survey

IEEE = 5
LARGEST_SHORT, LARGEST = 2**15 - 1, 2**31 - 1  # of numbers of two and four bytes
DIVISORS = (1, 10, 100, 1000, 10000)  # that the standard allows for lengths
# Of traces that are the columns of a model, what its spacing along z is a multiple of, m
INTERVAL = 1e-3

log = logging.getLogger("hpcfwi")


def convert_to_segy(source: Path, target: Path, context: Context, quiet: bool) -> None:
    """Write the traces of a gathers file that count; collective. Raises `InputError`.

    The wavelet has no place in SEG-Y. Lengths are rounded to 0.1 mm at best, which the log tells
    where it matters.
    """
    with GatherReader(source, context) as reader:
        context.from_root(lambda: _write_gathers(reader, source, target, quiet))


def write_columns(target: Path, array: NDArray[np.float32], grid: Grid) -> None:
    """Write a model with a trace a column: inlines along y, crosslines along x, spacing in mm.

    Raises `InputError` and `WriteFailure`.
    """
    if grid.origin[0]:
        log.warning(
            "%s: SEG-Y does not hold that the model begins at z = %g m", target, grid.origin[0]
        )
    columns = np.ascontiguousarray(array.reshape(grid.shape[0], -1).T)
    across = [grid.coordinates(axis) for axis in range(1, grid.ndim)]
    places = np.stack(np.meshgrid(*across, indexing="ij"), axis=-1).reshape(len(columns), -1)
    numbers = np.indices(grid.shape[1:]).reshape(grid.ndim - 1, -1).T + 1
    divisor = _divisor(places, f"{target}, positions")
    interval = grid.spacing[0] / INTERVAL
    if abs(interval - round(interval)) > 1e-6 or round(interval) > LARGEST_SHORT:
        log.warning("%s: SEG-Y does not hold a spacing of %g m along z", target, grid.spacing[0])
        interval = 0.0
    with _new_file(target, len(columns), grid.shape[0], round(interval)) as file:
        for number, (column, place, at) in enumerate(zip(columns, places, numbers, strict=True)):
            file.header[number] = {
                TraceField.TRACE_SEQUENCE_FILE: number + 1,
                TraceField.TraceIdentificationCode: 1,
                TraceField.INLINE_3D: int(at[0]) if grid.ndim == 3 else 1,
                TraceField.CROSSLINE_3D: int(at[-1]),
                TraceField.SourceGroupScalar: _scalar(divisor),
                TraceField.CDP_X: _whole(place[-1], divisor),
                TraceField.CDP_Y: _whole(place[0], divisor) if grid.ndim == 3 else 0,
                TraceField.TRACE_SAMPLE_COUNT: grid.shape[0],
                TraceField.TRACE_SAMPLE_INTERVAL: round(interval),
            }
            file.trace[number] = column


def find_interval(survey: Survey, where: str) -> int:
    """The sampling of a survey in microseconds; raises `InputError` where SEG-Y cannot hold it.

    where: what the sampling is given by, for the message.
    """
    interval = 1e6 * survey.dt
    if (
        abs(interval - round(interval)) > 1e-6 * interval
        or not 1 <= round(interval) <= LARGEST_SHORT
    ):
        raise InputError(
            where,
            f"found {survey.dt:g} s, and SEG-Y holds whole microseconds from 1 to {LARGEST_SHORT}",
            "Resample the traces, or write gathers (.h5).",
        )
    if survey.n_samples > LARGEST_SHORT:
        raise InputError(
            where,
            f"traces of {survey.n_samples} samples, and SEG-Y holds {LARGEST_SHORT}",
            "Cut or resample them, or write gathers (.h5).",
        )
    return round(interval)


def _write_gathers(reader: GatherReader, source: Path, target: Path, quiet: bool) -> None:
    survey = reader.survey
    interval = find_interval(survey, f"{source}, attribute dt")
    heard = np.ones(survey.shape[:2], dtype=bool) if survey.mask is None else survey.mask
    points = np.concatenate([survey.sources, survey.listeners()])
    down, across = (
        _divisor(lengths, f"{source}, {name}")
        for lengths, name in ((points[:, 0], "depths"), (points[:, 1:], "positions"))
    )
    with (
        _new_file(target, int(heard.sum()), survey.n_samples, interval) as file,
        Progress(survey.n_shots, "shot", every=0.1, quiet=quiet) as progress,
    ):
        number = 0
        for shot in range(survey.n_shots):
            one = survey.select(np.array([shot]))
            (traces,), at = reader.read(np.array([shot])), one.sources[0]
            common = {
                TraceField.FieldRecord: shot + 1,
                TraceField.EnergySourcePoint: shot + 1,
                TraceField.TraceIdentificationCode: 1,
                TraceField.ElevationScalar: _scalar(down),
                TraceField.SourceGroupScalar: _scalar(across),
                TraceField.CoordinateUnits: 1,
                TraceField.TRACE_SAMPLE_COUNT: survey.n_samples,
                TraceField.TRACE_SAMPLE_INTERVAL: interval,
                TraceField.SourceSurfaceElevation: _whole(max(-at[0], 0.0), down),
                TraceField.SourceDepth: _whole(max(at[0], 0.0), down),
                TraceField.SourceX: _whole(at[-1], across),
                TraceField.SourceY: _whole(at[1], across) if at.size == 3 else 0,
            }
            for receiver in np.flatnonzero(heard[shot]):
                place = one.receivers[0, receiver]
                file.header[number] = {
                    **common,
                    TraceField.TRACE_SEQUENCE_LINE: number + 1,
                    TraceField.TRACE_SEQUENCE_FILE: number + 1,
                    TraceField.TraceNumber: int(receiver) + 1,
                    TraceField.offset: round(float(np.linalg.norm((place - at)[1:]))),
                    TraceField.ReceiverGroupElevation: _whole(-place[0], down),
                    TraceField.GroupX: _whole(place[-1], across),
                    TraceField.GroupY: _whole(place[1], across) if at.size == 3 else 0,
                }
                file.trace[number] = traces[receiver]
                number += 1
            progress.advance(1)


@contextmanager
def _new_file(
    path: Path, n_traces: int, n_samples: int, interval: int
) -> Iterator[segyio.SegyFile]:
    """A SEG-Y file to be filled, which has its name when it is whole; raises `WriteFailure`.

    It is made in a directory of its own, where nobody else can have put a link.
    """
    if n_samples > LARGEST_SHORT:
        raise InputError(
            str(path),
            f"traces of {n_samples} samples, and SEG-Y holds {LARGEST_SHORT}",
            "Cut or resample them.",
        )
    make_directory(path.parent)
    spec = segyio.spec()
    spec.format, spec.tracecount, spec.samples = IEEE, n_traces, np.arange(n_samples)
    lines = {1: "Written by hpcfwi", 2: "Depths and elevations from z = 0, lengths in metres"}
    with (
        failing_clearly(path),
        TemporaryDirectory(prefix=f".{path.name}.", suffix=".part", dir=path.parent) as folder,
    ):
        part = Path(folder) / path.name
        with segyio.create(part, spec) as file:
            file.text[0] = segyio.tools.create_text_header(lines)
            numbers: Mapping[int, int] = {
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
    """The smallest with which all lengths are whole numbers, or nearly; raises `InputError`."""
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
