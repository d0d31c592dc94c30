"""The wavelet of a survey, which SEG-Y does not hold, from a file of its own."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfwi.convert.arrays import read_npy
from hpcfwi.convert.kinds import HDF5, KINDS
from hpcfwi.errors import InputError, refusing
from hpcfwi.host import check_regular, check_room
from hpcfwi.storage.hdf5 import open_alone, read_real

log = logging.getLogger("hpcfwi")


def read_wavelet(path: Path | None, n_shots: int, n_samples: int) -> NDArray[np.float32]:
    """(time,) or (shot, time), as long as the traces: zeros follow one that is shorter.

    From a .npy file, a gathers file, or text with a number a line. All zeros where there is none.
    Raises `InputError` for one that is longer, or not finite.
    """
    if path is None:
        log.warning("No --wavelet: /wavelet is zero, and an inversion has to be given or find one")
        return np.zeros(n_samples, dtype=np.float32)
    found = _read(path)
    if found.ndim not in (1, 2) or (found.ndim == 2 and len(found) != n_shots) or not found.size:
        raise InputError(
            str(path),
            f"the wavelet's shape is {found.shape}, expected (time,) or ({n_shots}, time)",
            "Give one wavelet, sampled as the traces are, or one a shot.",
        )
    if not np.isfinite(found).all() or np.abs(found).max() > np.finfo(np.float32).max:
        raise InputError(str(path), "the wavelet has values that are not finite", "Correct it.")
    if found[..., n_samples:].any():
        raise InputError(
            str(path),
            f"the wavelet has {found.shape[-1]} samples, and the traces {n_samples}",
            "Sample it as the traces are, and cut it where it has ended.",
        )
    wavelet = np.zeros((*found.shape[:-1], n_samples), dtype=np.float32)
    length = min(n_samples, found.shape[-1])
    wavelet[..., :length] = found[..., :length]
    return wavelet


def _read(path: Path) -> NDArray[np.float64]:
    if path.suffix == ".npy":
        return read_npy(path)
    if KINDS.get(path.suffix) == HDF5:
        with open_alone(path) as file:
            return read_real(file, path, "wavelet")
    with refusing(str(path), "it cannot be read", "Check the name and its permissions."):
        check_regular(path)
        check_room(str(path), "the wavelet", 10.0 * path.stat().st_size, "Give a shorter one.")
        text = path.read_bytes()
    try:
        return np.array([float(word) for word in text.split()])
    except ValueError as error:
        raise InputError(
            str(path), f"it is no list of numbers ({error})", "Give .npy, or a number a line."
        ) from error
