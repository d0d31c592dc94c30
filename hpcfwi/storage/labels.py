"""Optional parts of a gathers file: what the headers of field data said of shots and traces.

An inversion does not need them. They are there so that SEG-Y that is written from the file, or
from a simulation at its positions, has the numbers and coordinates of the SEG-Y it came from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import InputError, quote
from hpcfwi.storage.hdf5 import find_dataset, holds, is_number, open_alone, plain, read_values

NUMBERS = ("records", "shot_points", "channels")
MAPS = ("source_map", "receiver_map")
_ATTRIBUTES = ("datum", "start")
_LARGEST = 2**31 - 1


def read_labels(path: Path) -> dict[str, Any]:
    """Read the labels of a gathers file in one process.

    Parameters
    ----------
    path
        The file, whose traces are known to be good.

    Returns
    -------
    dict
        Those that are there, by the names of datasets and attributes: arrays of `NUMBERS` as int32,
        of `MAPS` as float64, and the attributes `datum`, `start` (numbers) and `line` (text).

    Raises
    ------
    InputError
        For arrays of another shape or type, and for one map without the other.
    """
    with open_alone(path) as file:
        shots, receivers = file["data"].shape[:2]
        shapes: dict[str, list[tuple[int, ...]]] = {
            "records": [(shots,)],
            "shot_points": [(shots,)],
            "channels": [(shots, receivers)],
            "source_map": [(shots, 4)],
            "receiver_map": [(receivers, 4), (shots, receivers, 4)],
        }
        found: dict[str, Any] = {
            name: _read(file, path, name, shapes[name]) for name in shapes if holds(file, name)
        }
        for one, other in (MAPS, MAPS[::-1]):
            if one in found and other not in found:
                raise InputError(
                    f"{path}, /{other}", f"missing beside /{one}", "Store both maps, or neither."
                )
        for name in _ATTRIBUTES:
            value = plain(file.attrs.get(name))
            if value is not None and not (is_number(value) and np.isfinite(value)):
                raise InputError(
                    f"{path}, attribute {name}",
                    f"found {quote(value)}, expected a finite number",
                    "Correct it, or leave it out.",
                )
            if value is not None:
                found[name] = float(value)
        line = plain(file.attrs.get("line"))
        if isinstance(line, str):
            found["line"] = line
    return found


def _read(file: h5py.File, path: Path, name: str, shapes: list[tuple[int, ...]]) -> NDArray[Any]:
    """Read one array; raises `InputError` where it does not fit."""
    whole = name in NUMBERS
    expected = "whole numbers of 32 bits" if whole else "finite numbers, in m"
    remedy = "Store it as docs/formats.md says, or leave it out."
    dataset = find_dataset(file, path, name, "iuf", expected, remedy)
    if dataset.shape not in shapes:
        raise InputError(
            f"{path}, /{name}",
            f"its shape is {dataset.shape}, expected {' or '.join(map(str, shapes))}",
            remedy,
        )
    values = read_values(dataset, f"{path}, /{name}")
    good = np.abs(values) <= _LARGEST
    if whole:
        good &= values == np.rint(values)
    if not good.all():
        raise InputError(
            f"{path}, /{name}", f"found {values[~good][0]:g}, expected {expected}", remedy
        )
    return values.astype(np.int32 if whole else np.float64)
