"""How the `cpu` engine lays out arrays the size of the grid.

A grid is planes of rows of cells: (nz, nx) is one plane of nz rows, (nz, ny, nx) is nz planes of ny
rows. All are rows of one two-dimensional array, which is the layout of wavefields, models and sums:

    HALO planes of zeros, where there is more than one plane
    each plane: HALO rows of zeros | its rows
    HALO rows of zeros
    each row: MARGIN zeros | nx cells, zeros up to a multiple of LANES | MARGIN zeros

Rows begin at multiples of 32 bytes and are whole numbers of SIMD loops long, which makes the
sweeps a third faster. Where v^2 dt^2 is 0, as around the grid, a field stays 0.

The absorbing cells at the sides of a row are too few for SIMD. They are treated for BLOCK rows
together, copied into one stretch: for each row the left side, HALO zeros, the right side, HALO
zeros.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave.engines.cpu.rows import BLOCK, HALO, LANES, MARGIN


class Grid(NamedTuple):
    """Where the cells of a grid are in an array of the layout.

    planes, rows, nx: cells of each axis; n: columns, up to a whole number of SIMD loops; stride:
    array rows from one plane to the next; base: array row of the first row of the first plane.
    """

    planes: int
    rows: int
    nx: int
    n: int
    stride: int
    base: int


def make_grid(shape: tuple[int, ...]) -> Grid:
    """The layout of a grid of (nz, nx) or (nz, ny, nx) cells."""
    planes, rows, nx = (1, *shape) if len(shape) == 2 else shape
    stride = rows + HALO
    before = HALO * stride if len(shape) == 3 else 0
    return Grid(planes, rows, nx, -(-nx // LANES) * LANES, stride, before + HALO)


def field_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of an array for such a grid."""
    grid = make_grid(shape)
    return 2 * grid.base - HALO + grid.planes * grid.stride, grid.n + 2 * MARGIN


def make_empty(shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
    """An array that begins at a multiple of 64 bytes, as NumPy's own may not."""
    array: NDArray = torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype).numpy()
    return array


def make_zeros(shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
    """`make_empty`, filled with zeros."""
    array = make_empty(shape, dtype)
    array[...] = 0
    return array


def lay_out(model: Tensor) -> NDArray:
    """A model (nz, nx) or (nz, ny, nx) in the layout."""
    shape = tuple(model.shape)
    array = make_zeros(field_shape(shape), model.numpy().dtype)
    _cells(array, make_grid(shape))[...] = model.numpy().reshape(make_grid(shape)[:3])
    return array


def take_out(arrays: NDArray, shape: tuple[int, ...]) -> Tensor:
    """The grid (..., nz, nx) or (..., nz, ny, nx) of arrays in the layout."""
    cells = _cells(arrays, make_grid(shape))
    return torch.from_numpy(cells.reshape(*arrays.shape[:-2], *shape))


def _cells(arrays: NDArray, grid: Grid) -> NDArray:
    """A view of arrays (..., row, column) as (..., plane, row, x)."""
    *outer, row, column = arrays.strides
    return as_strided(
        arrays[..., grid.base :, MARGIN:],
        (*arrays.shape[:-2], grid.planes, grid.rows, grid.nx),
        (*outer, grid.stride * row, row, column),
    )


def lay_out_sides(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """The first and last `width` of the values along a row, for every row of a block.

    Each followed by HALO zeros, so that the whole is one stretch; nothing where `width` is 0.
    """
    if width == 0:
        return np.zeros(0)
    gap = np.zeros(HALO)
    return np.tile(np.concatenate([values[:width], gap, values[-width:], gap]), BLOCK)
