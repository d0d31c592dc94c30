"""The memory layout of the `cpu` engine: arrays of the size of the grid, and tables of numbers.

A grid is planes of rows of cells: (nz, nx) is one plane of nz rows, (nz, ny, nx) is nz planes of ny
rows. All are rows of one two-dimensional array, which is the layout of wavefields, models and sums:

    HALO planes of zeros, where there is more than one plane
    each plane: HALO rows of zeros | its rows
    HALO rows of zeros
    each row: MARGIN zeros | nx cells, zeros up to a multiple of LANES | MARGIN zeros

Rows begin at multiples of 32 bytes and are whole numbers of SIMD loops long, which makes the
sweeps a third faster. Where v^2 dt^2 is 0, as around the grid, a field stays 0.

The absorbing cells at the sides of a row are too few for SIMD. They are treated for BLOCK rows
together, copied into one stretch: HALO zeros, then for each row the left side, HALO zeros, the
right side, HALO zeros.

The tables are named tuples, whose types Numba knows. The equation is in docs/physics.md; what
changes from step to step is in `sweeps`. Large arrays are used again, because touching fresh memory
costs as much as a simulation: memory is taken in small pages as it is touched.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from math import prod
from threading import RLock
from typing import NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave import numerics
from hpcfwi.wave.problem import Problem

# Zeros around whatever a stencil is applied to: half the highest order.
HALO = 4
# Columns of zeros before and after the cells of a row: a HALO, up to 32 bytes.
MARGIN = 8
# Cells of a SIMD loop: eight to a register in single precision, unrolled four times.
LANES = 32
# Rows whose sides are treated together.
BLOCK = 16


class Grid(NamedTuple):
    """The position of a grid's cells in an array of the layout.

    planes, rows, nx: cells of each axis; n: columns, up to a whole number of SIMD loops; stride:
    array rows from one plane to the next; base: array row of the first row of the first plane.
    """

    planes: int
    rows: int
    nx: int
    n: int
    stride: int
    base: int


class Box(NamedTuple):
    """A box of cells: along each axis from the first to before the last."""

    front: int
    back: int
    top: int
    bottom: int
    left: int
    right: int


NOWHERE = Box(0, 0, 0, 0, 0, 0)


class Axis(NamedTuple):
    """Differences along an axis.

    stride: from one neighbour to the next, in array rows, or entries of a stretch of sides; c0:
    second difference at 0; c, d: second and first difference at the offsets 1 to order / 2.
    """

    stride: int
    c0: np.floating
    c: tuple[np.floating, ...]
    d: tuple[np.floating, ...]


class Laplacian(NamedTuple):
    """The second differences along all axes.

    c0: their weights at 0, added up; far, near, x: their weights at the offsets 1 to order / 2
    across the planes, `stride` array rows apart (None for a grid of one plane), across the rows of
    a plane, and along them.
    """

    c0: np.floating
    stride: int
    far: tuple[np.floating, ...] | None
    near: tuple[np.floating, ...]
    x: tuple[np.floating, ...]


class Slab(NamedTuple):
    """The absorbing cells at one end of an axis across the rows, where derivatives reach them.

    front, back, top, bottom: their planes and rows, from and to before; axis: which of
    `Tables.axes`; profile: the CPML's values of place i on it are number profile + i; memory: the
    memory variables of a row of cells are row memory + plane per_plane + row; step: from one of
    these to that of the next place on the axis.
    """

    front: int
    back: int
    top: int
    bottom: int
    axis: int
    profile: int
    memory: int
    per_plane: int
    step: int


class Slabs(NamedTuple):
    """Absorbing cells at the ends of the axes across the rows, and what their derivatives reach.

    table: of each end of each axis; a, b: the CPML's profiles, slab by slab; a is zero
    in the interior; rows: of the memory variables.
    """

    table: tuple[Slab, ...]
    a: NDArray
    b: NDArray
    rows: int


class Sides(NamedTuple):
    """The absorbing cells at both ends of the rows, and what their derivatives reach.

    width: at one end; a, b: the CPML's profiles for the sides of one block of rows, as
    `lay_out_sides` puts them, none where nothing absorbs; blocks: of rows in a plane; axis: along
    the rows.
    """

    width: int
    a: NDArray
    b: NDArray
    blocks: int
    axis: Axis


class Surface(NamedTuple):
    """The free surface.

    stride: array rows from one depth to the next, 0 where there is no such surface; rows: at one
    depth.
    """

    stride: int
    rows: int


class Tables(NamedTuple):
    """The discrete equation of one shot, all numbers in the working precision.

    v2dt2: field; axes: across the rows of a plane, and across the planes (or the former again).
    """

    grid: Grid
    v2dt2: NDArray
    laplacian: Laplacian
    axes: tuple[Axis, Axis]
    slabs: Slabs
    sides: Sides
    surface: Surface

    @property
    def radius(self) -> int:
        """The radius of the stencils: half the order."""
        return len(self.laplacian.x)


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
    """The first and last `width` of the values along a row, for every row of a block, as above.

    Nothing where `width` is 0.
    """
    if width == 0:
        return np.zeros(0)
    gap = np.zeros(HALO)
    row = np.concatenate([values[:width], gap, values[-width:], gap])
    return np.concatenate([gap, np.tile(row, BLOCK)])


def make_tables(problem: Problem) -> Tables:
    """A problem's scheme, as the sweeps want it."""
    v2dt2 = lay_out(problem.scheme.v2dt2)
    dtype, grid = v2dt2.dtype, make_grid(problem.scheme.shape)
    strides = (grid.stride, 1, 1)[-problem.speed.ndim :]
    *across, along = (
        _make_axis(problem.order, *place, dtype)
        for place in zip(strides, problem.spacing, strict=True)
    )
    near = across[-1]
    far = across[0] if len(across) == 2 else None
    laplacian = Laplacian(
        sum((axis.c0 for axis in across), along.c0),
        grid.stride,
        far.c if far else None,
        near.c,
        along.c,
    )
    return Tables(
        grid,
        v2dt2,
        laplacian,
        (near, far or near),
        _make_slabs(problem, grid, dtype),
        _make_sides(problem, grid, along, dtype),
        _make_surface(problem, grid),
    )


def _make_axis(order: int, stride: int, h: float, dtype: np.dtype) -> Axis:
    c0, *c = numerics.second_difference(order, h).astype(dtype)
    return Axis(stride, c0, tuple(c), tuple(numerics.first_difference(order, h).astype(dtype))[1:])


def _make_slabs(problem: Problem, grid: Grid, dtype: np.dtype) -> Slabs:
    """The slabs at both ends of the rows of a plane, and of the planes where there are several."""
    begins, ends = problem.interior
    slabs, profiles, values, memory = [], [], 0, 0
    for number, axis in enumerate((-2, -3)[: problem.speed.ndim - 1]):
        n, profile = problem.scheme.shape[axis], problem.scheme.profiles[axis]
        for first, last in ((0, begins[axis]), (ends[axis], n)):
            size = last - first + 2 * HALO
            planes, rows, step, per_plane = (
                ((0, grid.planes), (first, last), 1, size)
                if axis == -2
                else ((first, last), (0, grid.rows), grid.rows, grid.rows)
            )
            origin = memory + (HALO - first) * step
            slabs.append(Slab(*planes, *rows, number, values - first, origin, per_plane, step))
            profiles.append((profile.a[first:last], profile.b[first:last]))
            values += last - first
            memory += size * (grid.planes if axis == -2 else grid.rows)
    a, b = (np.concatenate(f).astype(dtype) for f in zip(*profiles, strict=True))
    return Slabs(tuple(slabs), a, b, memory)


def _make_sides(problem: Problem, grid: Grid, axis: Axis, dtype: np.dtype) -> Sides:
    width, profile = problem.interior[0][-1], problem.scheme.profiles[-1]
    a, b = (lay_out_sides(values, width).astype(dtype) for values in (profile.a, profile.b))
    return Sides(width, a, b, -(-grid.rows // BLOCK), axis)


def _make_surface(problem: Problem, grid: Grid) -> Surface:
    if not problem.free_surface:
        return Surface(0, 0)
    return Surface(1, 1) if problem.speed.ndim == 2 else Surface(grid.stride, grid.rows)


def make_interior(problem: Problem) -> Box:
    """The part of the grid where nothing absorbs."""
    first, last = problem.interior
    if problem.speed.ndim == 2:
        first, last = (0, *first), (1, *last)
    (front, top, left), (back, bottom, right) = first, last
    return Box(front, back, top, bottom, left, right)


class BufferPool:
    """Arrays that are lent, and come back."""

    def __init__(self) -> None:
        self._arrays: list[NDArray] = []
        # Arrays come back when the garbage collector finds them, which may be in the midst of this.
        self._lock = RLock()

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
        """An array of the pool, whatever its contents; or a new one, and all others go."""
        with self._lock:
            for k, array in enumerate(self._arrays):
                if array.shape == shape and array.dtype == dtype:
                    return self._arrays.pop(k)
            self._arrays.clear()
        return reserve(shape, dtype)

    def put(self, array: NDArray) -> None:
        with self._lock:
            self._arrays.append(array)

    def clear(self) -> None:
        with self._lock:
            self._arrays.clear()

    def count_bytes(self) -> int:
        """Return the touched bytes of the arrays in the pool."""
        with self._lock:
            return sum(map(count_touched, self._arrays))

    def lend(self, borrower: object, shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
        """An array that comes back to the pool when the borrower is gone."""
        array = self.take(shape, dtype)
        weakref.finalize(borrower, self.put, array).atexit = False
        return array


POOL = BufferPool()


def reserve(shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
    """An array of zeros in pages of its own. Raises MemoryError where it is refused."""
    size = max(1, prod(shape) * dtype.itemsize)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size} bytes are refused: {error.strerror}") from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype, prod(shape)).reshape(shape)


def count_touched(array: NDArray) -> int:
    """Bytes of the pages of a reserved array that have memory; all of it where nobody tells."""
    pages = -(-array.nbytes // mmap.PAGESIZE)
    held = np.zeros(pages, np.uint8)
    where, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
    tell = getattr(ctypes.CDLL(None), "mincore", None)
    if tell is None or tell(where, size, ctypes.c_void_p(held.ctypes.data)) != 0:
        return array.nbytes
    return int((held & 1).sum()) * mmap.PAGESIZE
