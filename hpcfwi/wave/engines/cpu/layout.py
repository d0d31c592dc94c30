"""The memory layout of the `cpu` engine: arrays of the size of the grid, and tables of numbers.

A grid consists of planes of rows of cells: (nz, nx) is one plane of nz rows, (nz, ny, nx) is nz
planes of ny rows. Wavefields, models and sums have the same layout, in which all of these are rows
of one two-dimensional array:

    HALO planes of zeros, where there is more than one plane
    each plane: HALO rows of zeros | its rows
    HALO rows of zeros
    each row: MARGIN zeros | nx cells, zeros up to a multiple of LANES

HALO, half the highest order, is as far as a stencil reaches. Where the grid is one of several
layers, the zeros before and after it along z are replaced by the values of its neighbours.

The zeros after a row are those before the next one: a column beyond the last is one of them. The
cells of a row begin at a multiple of 64 bytes, and are a whole number of groups of LANES cells,
which makes the sweeps a third faster. A field stays 0 where v^2 dt^2 is 0, as it is around the
grid.

The memory variables and the profiles of the sides of a row have a row of their own: HALO zeros, the
left side, HALO zeros, the right side, and HALO zeros.

The tables are named tuples, whose types are known to Numba. The equation is in docs/physics.md; the
data that change from step to step are in `sweeps`. Large arrays are reused, because the system
provides memory in small pages when it is first touched, which costs as much as a simulation.
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
from hpcfwi.wave.layers import HALO, Layer
from hpcfwi.wave.problem import Problem, square_speed

# Columns of zeros before the cells of a row: HALO, rounded up to 64 bytes in single precision.
MARGIN = 16
# Cells that are computed together. A loop of known length needs no other loop for the rest.
LANES = 32
# Number of rows that are computed together. Few enough of them stay in the first two caches.
BLOCK = 16


class GridLayout(NamedTuple):
    """The position of a grid's cells in an array of the layout.

    planes, rows, nx: cells along each axis; n: nx, rounded up to a multiple of LANES;
    stride: array rows from one plane to the next; base: array row of the first row of the first
    plane.
    """

    planes: int
    rows: int
    nx: int
    n: int
    stride: int
    base: int


class Box(NamedTuple):
    """A box of cells: along each axis the first cell, and the one after the last."""

    front: int
    back: int
    top: int
    bottom: int
    left: int
    right: int


NOWHERE = Box(0, 0, 0, 0, 0, 0)


class Axis(NamedTuple):
    """The weights of the differences along an axis.

    stride: distance between neighbours, in array rows, or in columns along the rows; c0:
    weight of the second difference at offset 0; c, d: weights of the second and the first
    difference at the offsets 1 to order / 2.
    """

    stride: int
    c0: np.floating
    c: tuple[np.floating, ...]
    d: tuple[np.floating, ...]


class Laplacian(NamedTuple):
    """The weights of the second differences along all axes.

    c0: sum of their weights at offset 0; far, near, x: their weights at the offsets 1 to order / 2
    across the planes, which are `stride` array rows apart (None for a grid of one plane), across
    the rows of a plane, and along the rows.
    """

    c0: np.floating
    stride: int
    far: tuple[np.floating, ...] | None
    near: tuple[np.floating, ...]
    x: tuple[np.floating, ...]


class Slab(NamedTuple):
    """The absorbing cells at one end of an axis across the rows, and those that their terms reach.

    front, back, top, bottom: first plane and row, and those after the last; axis: index in
    `Tables.axes`; profile: the values of the CPML's profiles at place i of the axis are entries
    profile + i; memory, per_plane: the memory variables of a row of cells are in row
    memory + plane * per_plane + row; step: number of rows from there to the memory variables of the
    next place along the axis.
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
    """The slabs at the ends of the axes across the rows.

    table: one slab for each end of each axis, of the rows first; absorbing: the same without the
    cells of the model, where a and the memory variables are 0; a, b: the CPML's profiles, slab by
    slab; rows: number of rows of the memory variables.
    """

    table: tuple[Slab, ...]
    absorbing: tuple[Slab, ...]
    a: NDArray
    b: NDArray
    rows: int


class Sides(NamedTuple):
    """The absorbing cells at both ends of the rows, and those that their terms reach.

    width: number of cells at one end; a, b: the CPML's profiles in the order of `lay_out_sides`;
    axis: differences along the rows.
    """

    width: int
    a: NDArray
    b: NDArray
    axis: Axis


class Surface(NamedTuple):
    """The free surface.

    stride: array rows from one depth to the next, 0 if there is no free surface; rows: array rows
    at one depth.
    """

    stride: int
    rows: int


class Cut(NamedTuple):
    """The place of a layer in the whole grid.

    whole: the whole grid; front, top: its first plane and row that are in the layer; stride, rows:
    array rows from one depth to the next, and at one depth.
    """

    whole: GridLayout
    front: int
    top: int
    stride: int
    rows: int


class Tables(NamedTuple):
    """The discrete equation of a problem's shots; all numbers have the working precision.

    grid: that of the layer; v2dt2: field; axes: differences across the rows of a plane, and across
    the planes (the former again if there is one plane).
    """

    grid: GridLayout
    cut: Cut
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


def make_grid(shape: tuple[int, ...]) -> GridLayout:
    """Return the layout of a grid of (nz, nx) or (nz, ny, nx) cells."""
    planes, rows, nx = (1, *shape) if len(shape) == 2 else shape
    stride = rows + HALO
    before = HALO * stride if len(shape) == 3 else 0
    return GridLayout(planes, rows, nx, -(-nx // LANES) * LANES, stride, before + HALO)


def make_cut(shape: tuple[int, ...], layer: Layer) -> Cut:
    """Return the place of a layer in a grid of (nz, nx) or (nz, ny, nx) cells."""
    whole = make_grid(shape)
    if len(shape) == 2:
        return Cut(whole, 0, layer.first, 1, 1)
    return Cut(whole, layer.first, 0, whole.stride, whole.rows)


def field_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the numbers of rows and columns of an array for a grid of this shape."""
    grid = make_grid(shape)
    return 2 * grid.base - HALO + grid.planes * grid.stride, grid.n + MARGIN


def make_zeros(shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
    """Return an array of zeros that begins at a multiple of 64 bytes."""
    size = prod(shape) * dtype.itemsize
    # `np.empty` asks for huge pages if the array is large
    memory = np.empty(size + 64, np.uint8)
    first = -memory.ctypes.data % 64
    array = memory[first : first + size].view(dtype).reshape(shape)
    array[...] = 0
    return array


def lay_out(model: Tensor) -> NDArray:
    """Return a model (nz, nx) or (nz, ny, nx) in the layout."""
    shape = tuple(model.shape)
    array = make_zeros(field_shape(shape), model.numpy().dtype)
    _cells(array, make_grid(shape))[...] = model.numpy().reshape(make_grid(shape)[:3])
    return array


def take_out(arrays: NDArray, shape: tuple[int, ...]) -> Tensor:
    """Return the grid (..., nz, nx) or (..., nz, ny, nx) of arrays in the layout."""
    cells = _cells(arrays, make_grid(shape))
    return torch.from_numpy(cells.reshape(*arrays.shape[:-2], *shape))


def _cells(arrays: NDArray, grid: GridLayout) -> NDArray:
    """Return a view of arrays (..., row, column) as (..., plane, row, x)."""
    *outer, row, column = arrays.strides
    return as_strided(
        arrays[..., grid.base :, MARGIN:],
        (*arrays.shape[:-2], grid.planes, grid.rows, grid.nx),
        (*outer, grid.stride * row, row, column),
    )


def lay_out_sides(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Return the first and the last `width` values of a row, with HALO zeros around each side."""
    gap = np.zeros(HALO)
    return np.concatenate([gap, values[:width], gap, values[len(values) - width :], gap])


def make_tables(problem: Problem, layer: Layer) -> Tables:
    """Return the tables of a layer of a problem."""
    part = square_speed(problem, layer.first, layer.end)
    v2dt2 = lay_out(part)
    dtype, grid = v2dt2.dtype, make_grid(tuple(part.shape))
    strides = (grid.stride, 1, 1)[-problem.like.ndim :]
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
    cut = make_cut(problem.padded_shape, layer)
    has_surface = problem.free_surface and layer.first == 0
    return Tables(
        grid,
        cut,
        v2dt2,
        laplacian,
        (near, far or near),
        _make_slabs(problem, layer, grid, dtype),
        _make_sides(problem, along, dtype),
        Surface(cut.stride, cut.rows) if has_surface else Surface(0, 0),
    )


def _make_axis(order: int, stride: int, h: float, dtype: np.dtype) -> Axis:
    c0, *c = numerics.second_difference(order, h).astype(dtype)
    return Axis(stride, c0, tuple(c), tuple(numerics.first_difference(order, h).astype(dtype))[1:])


def _make_slabs(problem: Problem, layer: Layer, grid: GridLayout, dtype: np.dtype) -> Slabs:
    """Return the slabs of a layer at both ends of each axis across the rows.

    A slab that is in another layer has no cells.
    """
    begins, ends = problem.interior
    before, after = problem.padding
    slabs: list[Slab] = []
    absorbing: list[Slab] = []
    profiles, values, memory = [], 0, 0
    for number, axis in enumerate((-2, -3)[: problem.like.ndim - 1]):
        n, profile = problem.padded_shape[axis], problem.profiles[axis]
        for first, last, near, far in (
            (0, begins[axis], 0, before[axis]),
            (ends[axis], n, n - after[axis], n),
        ):
            a, b = profile.a[first:last], profile.b[first:last]
            if axis == -problem.like.ndim:
                a, b = (whole[layer.first : layer.end] for whole in (profile.a, profile.b))
                first, last, near, far = map(layer.clip, (first, last, near, far))
                a, b = a[first:last], b[first:last]
            size = last - first + 2 * HALO
            step, per_plane = (1, size) if axis == -2 else (grid.rows, grid.rows)
            place = (number, values - first, memory + (HALO - first) * step, per_plane, step)
            for some, begin, end in ((slabs, first, last), (absorbing, near, far)):
                box = (0, grid.planes, begin, end) if axis == -2 else (begin, end, 0, grid.rows)
                some.append(Slab(*box, *place))
            profiles.append((a, b))
            values += last - first
            memory += size * (grid.planes if axis == -2 else grid.rows)
    a, b = (np.concatenate(f).astype(dtype) for f in zip(*profiles, strict=True))
    return Slabs(tuple(slabs), tuple(absorbing), a, b, memory)


def _make_sides(problem: Problem, axis: Axis, dtype: np.dtype) -> Sides:
    width, profile = problem.interior[0][-1], problem.profiles[-1]
    a, b = (lay_out_sides(values, width).astype(dtype) for values in (profile.a, profile.b))
    return Sides(width, a, b, axis)


def make_interior(problem: Problem, layer: Layer) -> Box:
    """Return the part of a layer that no absorbing term reaches, with places in the layer."""
    first, last = problem.interior
    first, last = ((layer.clip(edges[0]), *edges[1:]) for edges in (first, last))
    if problem.like.ndim == 2:
        first, last = (0, *first), (1, *last)
    (front, top, left), (back, bottom, right) = first, last
    return Box(front, back, top, bottom, left, right)


class BufferPool:
    """A pool of arrays that are lent, and reused after they have been returned."""

    def __init__(self) -> None:
        self._arrays: list[NDArray] = []
        # The garbage collector may call `put` at any time, also while this thread holds the lock.
        self._lock = RLock()

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
        """Return an array of the pool, with arbitrary contents.

        If none has this shape and type, the pool is emptied and the array is a new one.
        """
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
        """Return an array that returns to the pool when the borrower is deleted."""
        array = self.take(shape, dtype)
        weakref.finalize(borrower, self.put, array).atexit = False
        return array


POOL = BufferPool()


def reserve(shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
    """Return an array of zeros in separate pages, which take memory when they are first touched.

    Raises MemoryError if the system refuses it.
    """
    size = max(1, prod(shape) * dtype.itemsize)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"cannot allocate {size} bytes: {error.strerror}") from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype, prod(shape)).reshape(shape)


def count_touched(array: NDArray) -> int:
    """Return the bytes of the pages of a reserved array that take memory.

    All bytes of the array count where `mincore` is not available.
    """
    pages = -(-array.nbytes // mmap.PAGESIZE)
    held = np.zeros(pages, np.uint8)
    where, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
    tell = getattr(ctypes.CDLL(None), "mincore", None)
    if tell is None or tell(where, size, ctypes.c_void_p(held.ctypes.data)) != 0:
        return array.nbytes
    return int((held & 1).sum()) * mmap.PAGESIZE
