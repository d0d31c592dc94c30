"""How the `cpu` engine lays out arrays the size of the grid.

One layout for wavefields, models, sums and kept fields:

    HALO rows of zeros
    each row: MARGIN zeros | nx cells, zeros up to a multiple of LANES | MARGIN zeros
    HALO rows of zeros

Rows begin at multiples of 32 bytes and are whole numbers of SIMD loops long, which makes the
sweeps a third faster. Where v^2 dt^2 is 0, as around the grid, a field stays 0.

The absorbing cells at the sides of a row are too few for SIMD. They are treated for BLOCK rows
together, copied into one stretch: for each row the left side, HALO zeros, the right side, HALO
zeros.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave.engines.rows import BLOCK, HALO, LANES, MARGIN


def round_up(n: int) -> int:
    """The next whole number of SIMD loops."""
    return -(-n // LANES) * LANES


def field_shape(nz: int, nx: int) -> tuple[int, int]:
    """Rows and columns of an array for a grid of (nz, nx) cells."""
    return nz + 2 * HALO, round_up(nx) + 2 * MARGIN


def make_empty(shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
    """An array that begins at a multiple of 64 bytes, as NumPy's own may not."""
    array: NDArray = torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype).numpy()
    return array


def lay_out(model: Tensor) -> NDArray:
    """A model (nz, nx) in the layout."""
    nz, nx = model.shape
    array = make_empty(field_shape(nz, nx), model.numpy().dtype)
    array[...] = 0.0
    array[HALO : HALO + nz, MARGIN : MARGIN + nx] = model.numpy()
    return array


def take_out(arrays: NDArray, nz: int, nx: int) -> Tensor:
    """The grid (..., nz, nx) of arrays in the layout."""
    return torch.from_numpy(arrays[..., HALO : HALO + nz, MARGIN : MARGIN + nx])


def lay_out_sides(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """The first and last `width` of the values along a row, for every row of a block.

    Each followed by HALO zeros, so that the whole is one stretch; nothing where `width` is 0.
    """
    if width == 0:
        return np.zeros(0)
    gap = np.zeros(HALO)
    return np.tile(np.concatenate([values[:width], gap, values[-width:], gap]), BLOCK)
