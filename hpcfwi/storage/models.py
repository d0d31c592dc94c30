"""Model files: HDF5 with /vp and the grid it is on. Collective opening is in `hdf5`.

Layout: /vp float32 (z, x) or (z, y, x), m/s; root attributes format = "hpcfwi-model",
version, axes = "zx" or "zyx", spacing and origin (one number an axis, m).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import InputError, quote
from hpcfwi.model import AXES, FASTEST, SLOWEST, Grid, Model
from hpcfwi.storage.hdf5 import (
    check_format,
    created_whole,
    explained,
    open_alone,
    open_file,
    read_real,
    real_dataset,
    text,
)

if TYPE_CHECKING:
    from hpcfwi.parallel.context import Context

FORMAT = "hpcfwi-model"
VERSION = 1

# No rock is as slow as 20 m/s, and none as fast as 20 km/s
_SLOWEST_ROCK = 20.0
# What is smaller or larger is a slip of the pen, and would overflow, m
_SPACINGS = (1e-6, 1e6)
_ORIGINS = (-1e9, 1e9)


def read_model(path: Path) -> Model:
    """Read and check a model in one process.

    Raises `InputError`, naming the key, for whatever does not fit the layout above, and for
    velocities that are not finite, not positive, no velocities of waves or seem to be in km/s.
    """
    with open_alone(path) as file:
        check_format(file, path, FORMAT, VERSION)
        grid = _read_grid(file, path, real_dataset(file, path, "vp"))
        vp = read_real(file, path, "vp")
    _check_velocity(vp, path)
    return Model(grid, {"vp": vp.astype(np.float32)})


def load_model(path: Path, context: Context) -> Model:
    """Read a model on all ranks; collective.

    Rank 0 checks it first, and every rank raises the `InputError` of `read_model`.
    """
    grid = context.from_root(lambda: read_model(path).grid)
    with open_file(path, context) as file, explained(path):
        vp = file["vp"][...].astype(np.float32)
    return Model(grid, {"vp": vp})


def read_epoch(path: Path) -> int:
    """The epoch of the run that a model is from; 0 where it says none or cannot be read."""
    try:
        with open_alone(path) as file:
            return int(file.attrs.get("epoch", 0))
    except InputError:
        return 0


def write_model(path: Path, model: Model, attributes: Mapping[str, Any] | None = None) -> None:
    """Write a model's velocity and grid in one process; the file is whole or not there.

    attributes: more root attributes, as where the model comes from. Raises `WriteFailure`.
    """
    with created_whole(path) as file:
        file.create_dataset("vp", data=model.vp, dtype=np.float32)
        file.attrs.update(
            {
                **(attributes or {}),
                "format": FORMAT,
                "version": VERSION,
                "axes": model.grid.axes,
                "spacing": model.grid.spacing,
                "origin": model.grid.origin,
            }
        )


def _read_grid(file: h5py.File, path: Path, dataset: h5py.Dataset) -> Grid:
    ndim = dataset.ndim
    if ndim not in AXES:
        raise InputError(
            f"{path}, /vp",
            f"its shape is {dataset.shape}, expected two dimensions (z, x) or three (z, y, x)",
            "Store one model, without further dimensions.",
        )
    if 0 in dataset.shape:
        raise InputError(
            f"{path}, /vp",
            f"its shape is {dataset.shape}, expected at least one point along each axis",
            "Store a model that is not empty.",
        )
    axes = text(file.attrs.get("axes"))
    if not isinstance(axes, str) or axes != AXES[ndim]:
        turned = isinstance(axes, str) and sorted(axes) == sorted(AXES[ndim])
        raise InputError(
            f"{path}, attribute axes",
            f"found {quote(axes)}, expected {AXES[ndim]!r} for an array of {ndim} dimensions",
            f"Transpose the array, spacing and origin to {AXES[ndim]!r} and set axes to that."
            if turned
            else f"Set axes to {AXES[ndim]!r} if that is the order of the array.",
        )
    spacing = _read_lengths(file, path, "spacing", ndim, _SPACINGS)
    return Grid(dataset.shape, spacing, _read_lengths(file, path, "origin", ndim, _ORIGINS))


def _read_lengths(
    file: h5py.File, path: Path, key: str, ndim: int, between: tuple[float, float]
) -> tuple[float, ...]:
    where, expected = f"{path}, attribute {key}", f"{ndim} numbers, one an axis"
    remedy = f"Give the {key} along {', '.join(AXES[ndim])}, in m."
    if key not in file.attrs:
        raise InputError(where, f"missing, expected {expected}", remedy)
    found = np.asarray(file.attrs[key])
    if found.shape != (ndim,) or found.dtype.kind not in "iuf" or not np.isfinite(found).all():
        raise InputError(
            where,
            f"found {quote(found.tolist())}, expected {ndim} finite numbers, one an axis",
            remedy,
        )
    lengths = tuple(map(float, found))
    if not between[0] <= min(lengths) <= max(lengths) <= between[1]:
        raise InputError(
            where,
            f"found {lengths}, expected {between[0]:g} to {between[1]:g} m along each axis",
            remedy,
        )
    return lengths


def _check_velocity(vp: NDArray[np.float64], path: Path) -> None:
    where = f"{path}, /vp"
    for fault, problem, remedy in (
        (~np.isfinite(vp), "not finite", "Fill the cells that have no velocity."),
        (vp <= 0, "not positive", "Give every cell, air and water too, a velocity above 0 m/s."),
    ):
        if fault.any():
            first = tuple(int(i[0]) for i in fault.nonzero())
            raise InputError(
                where,
                f"{fault.sum()} of {vp.size} velocities are {problem}, the first at index {first}",
                remedy,
            )
    if vp.max() < _SLOWEST_ROCK:
        raise InputError(
            where,
            f"the largest velocity is {vp.max():g}, expected m/s; it looks like km/s",
            "Multiply the array by 1000.",
        )
    if vp.min() < SLOWEST or vp.max() > FASTEST:
        raise InputError(
            where,
            f"the velocities go from {vp.min():g} to {vp.max():g}, expected {SLOWEST:g} to "
            f"{FASTEST:g} m/s",
            "Correct the cells that no wave can cross at such a speed.",
        )
