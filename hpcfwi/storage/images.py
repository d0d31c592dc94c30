"""Image files: HDF5 with what a migration has found. Layout: docs/formats.md.

/image: float32 (z, x) or (z, y, x), reflectivity; root attributes format = "hpcfwi-image", version,
axes, spacing and origin as a model file has them, epoch: iterations that it is made of.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import InputError
from hpcfwi.model import Grid
from hpcfwi.storage.hdf5 import check_format, created_whole, is_whole, open_alone, plain, read_real

FORMAT = "hpcfwi-image"
VERSION = 1


def write_image(path: Path, image: NDArray[np.floating], grid: Grid, epoch: int) -> None:
    """Write an image in one process; the file is whole or not there. Raises `WriteFailure`."""
    with created_whole(path) as file:
        file.create_dataset("image", data=image, dtype=np.float32)
        file.attrs.update(
            {
                "format": FORMAT,
                "version": VERSION,
                "axes": grid.axes,
                "spacing": grid.spacing,
                "origin": grid.origin,
                "epoch": epoch,
            }
        )


def read_image(path: Path, grid: Grid) -> tuple[NDArray[np.float32], int]:
    """An image on a grid, and of how many iterations it is; raises `InputError` where it is not."""
    with open_alone(path) as file:
        check_format(file, path, FORMAT, VERSION)
        image = read_real(file, path, "image").astype(np.float32)
        epoch = plain(file.attrs.get("epoch", 0))
    if image.shape != grid.shape or not is_whole(epoch):
        raise InputError(
            f"{path}, /image",
            f"its shape is {image.shape}, expected {grid.shape}, that of initial.h5, and an epoch",
            "Remove the file, of which the figure cannot be drawn.",
        )
    return image, int(epoch)
