"""The mask of a gathers file: which of its traces count. The rest of the file is in `gathers`.

/mask bool (shot, receiver), or numbers 0 and 1, where a shot may have fewer traces than /data has
room for.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import InputError
from hpcfwi.storage.hdf5 import find_dataset, holds


def read_mask(file: h5py.File, path: Path, shape: tuple[int, int]) -> NDArray[np.bool_] | None:
    """Which traces (shot, receiver) of an open file count, None where all do.

    Raises `InputError` for a mask of another shape or type, and for a shot without a trace.
    """
    if not holds(file, "mask"):
        return None
    expected, remedy = "true or false, or 1 and 0", "Store it as an array of bool."
    dataset = find_dataset(file, path, "mask", "biuf", expected, remedy)
    if dataset.shape != shape:
        raise InputError(
            f"{path}, /mask",
            f"its shape is {dataset.shape}, expected {shape} beside /data (shot, receiver, time)",
            "Make the shapes agree.",
        )
    values = np.asarray(dataset[...])
    mask = values == 1
    if not np.array_equal(values[~mask], np.zeros(np.sum(~mask))):
        other = values[~mask & (values != 0)][0]
        raise InputError(f"{path}, /mask", f"it has the value {other}, expected {expected}", remedy)
    silent = np.flatnonzero(~mask.any(axis=1))
    if silent.size:
        raise InputError(
            f"{path}, /mask",
            f"{silent.size} of {shape[0]} shots have no trace that counts, the first is shot "
            f"{silent[0]}",
            "Leave these shots out of the file.",
        )
    return mask
