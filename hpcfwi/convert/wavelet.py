"""The wavelet of a survey, which SEG-Y does not hold, from a file of its own."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import floor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfwi.convert.arrays import read_npy
from hpcfwi.convert.geometry import LONGEST, ON_SAMPLE
from hpcfwi.convert.request import HDF5, KINDS
from hpcfwi.errors import InputError, quote, refusing
from hpcfwi.storage.hdf5 import open_alone, plain, read_real
from hpcfwi.survey import Spectrum
from hpcfwi.system import check_regular, check_room

# Of the largest value, what may be lost at the ends of a wavelet
NEGLIGIBLE = 1e-4
# Of a wavelet's energy, what may be above the highest frequency of the traces without a warning
ABOVE = 1e-3
# Numbers of the interpolation matrix that are computed at a time
AT_A_TIME = 2**22

log = logging.getLogger("hpcfwi")


@dataclass(frozen=True)
class _Samples:
    """Wavelets (time,) or (shot, time), and when they are sampled, s.

    dt is None where the file does not say it, and start where it does not say when the first sample
    is: a wavelet is then sampled as the traces are, and begins where they begin.
    """

    values: NDArray[np.float64]
    dt: float | None = None
    start: float | None = None


def read_wavelet(
    path: Path | None, n_shots: int, n_samples: int, dt: float, first: float
) -> NDArray[np.float32]:
    """Read the wavelet of traces of `n_samples` every `dt` s, from the time `first` (s) on.

    The file is .npy, text, or HDF5 with a dataset `wavelet`. A time axis that the file has, as a
    first column of times or as attributes `dt` and `start`, is honoured by band-limited
    interpolation; zeros follow a wavelet that is shorter than the traces.

    Returns
    -------
    array, (time,) or (shot, time)
        All zeros where there is no file.

    Raises
    ------
    InputError
        For a wavelet that is not finite, or does not lie within the time of the traces.
    """
    if path is None:
        log.warning("No --wavelet: /wavelet is zero, and an inversion has to be given or find one")
        return np.zeros(n_samples, dtype=np.float32)
    read = _read(path)
    found = read.values
    if found.ndim not in (1, 2) or (found.ndim == 2 and len(found) != n_shots) or not found.size:
        raise InputError(
            str(path),
            f"the wavelet's shape is {found.shape}, expected (time,) or ({n_shots}, time)",
            "Give one wavelet, or one a shot; or two columns of times (s) and amplitudes.",
        )
    if not np.isfinite(found).all() or np.abs(found).max() > np.finfo(np.float32).max:
        raise InputError(str(path), "the wavelet has values that are not finite", "Correct it.")
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
    """Raise `InputError` for a wavelet that begins before the traces or outlasts them."""
    size = np.abs(values).max(axis=0) if values.ndim == 2 else np.abs(values)
    (heard,) = np.nonzero(size > NEGLIGIBLE * size.max())
    if not heard.size:
        return
    earliest, latest = (begins + own_dt * heard[end] for end in (0, -1))
    if earliest < -ON_SAMPLE * dt:
        needed = dt * floor(round((first + earliest) / dt, 2))
        raise InputError(
            str(path),
            f"the wavelet begins at {first + earliest:.6g} s, and the traces at {first:g} s",
            f"Give --keep time={needed:.6g}: to begin the traces there, with zeros where they have "
            "no samples.",
        )
    if latest > (n_samples - 1 + ON_SAMPLE) * dt:
        raise InputError(
            str(path),
            f"the wavelet has {values.shape[-1]} samples of {own_dt:g} s and ends at "
            f"{first + latest:.6g} s, and the traces {n_samples} of {dt:g} s and end at "
            f"{first + dt * (n_samples - 1):.6g} s",
            "Cut it where it has ended, or give it with its times (s), as a first column.",
        )


def _resample(
    path: Path,
    values: NDArray[np.float64],
    own_dt: float,
    begins: float,
    n_samples: int,
    dt: float,
) -> NDArray[np.float64]:
    """Wavelets whose first sample is at `begins` (s), at the times of the traces.

    They are copied where their samples are at these times; elsewhere they are interpolated by the
    band-limited function through their samples (Shannon 1949), low-pass filtered first where the
    traces are sampled more coarsely.
    """
    length = values.shape[-1]
    found = np.zeros((*values.shape[:-1], n_samples))
    shift = round(begins / dt)
    if max(abs(begins / dt - shift), length * abs(own_dt / dt - 1.0)) < ON_SAMPLE:
        start, end = max(0, shift), max(0, min(n_samples, shift + length))
        found[..., start:end] = values[..., start - shift : end - shift]
        return found
    log.info(
        "%s: the wavelet, every %g s from %g s after the first sample of the traces, is "
        "interpolated to every %g s",
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
                "it has two numbers a line, of which the first are no times that grow evenly",
                "Give a number a line, or a time (s) and an amplitude.",
            )
        return _with_times(columns, path)
    return _Samples(np.array([number for row in rows for number in row]))


def _read_rows(path: Path) -> list[list[float]]:
    """Read the numbers of each line of a text, which blanks or commas separate."""
    with refusing(str(path), "it cannot be read", "Check the name and its permissions."):
        check_regular(path)
        check_room(str(path), "the wavelet", 50.0 * path.stat().st_size, "Give a shorter one.")
        lines = path.read_bytes().replace(b",", b" ").splitlines()
    try:
        rows = [[float(word) for word in line.partition(b"#")[0].split()] for line in lines]
    except ValueError as error:
        raise InputError(
            str(path),
            f"it is no list of numbers ({error})",
            "Give .npy, a number a line, or a time (s) and an amplitude a line.",
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
    """Test whether these can be the times of samples, as far as their digits go."""
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
            f"found {dt:g} s between samples, expected a number above 0, up to {LONGEST:g} s"
            f"{likely}",
            "Give times in s.",
        )
