"""The discrete scheme of one batch of shots as the sweeps want it: tuples of numbers and arrays.

Arrays have the layout that `layout` describes; the equation is in docs/physics.md, and what changes
from step to step is in `sweeps`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfwi.wave import points, stencil
from hpcfwi.wave.engines.cpu.layout import Grid, lay_out, lay_out_sides, make_grid
from hpcfwi.wave.engines.cpu.rows import BLOCK, HALO, MARGIN
from hpcfwi.wave.engines.cpu.windows import Window
from hpcfwi.wave.problem import Problem


class Axis(NamedTuple):
    """Differences along an axis across the rows.

    stride: array rows from one neighbour to the next; c0: second difference at 0; c, d: second and
    first difference at the offsets 1 to order / 2.
    """

    stride: int
    c0: np.floating
    c: tuple[np.floating, ...]
    d: tuple[np.floating, ...]


class Slabs(NamedTuple):
    """Absorbing cells at the ends of the axes across the rows, and what their derivatives reach.

    places: (slab, 10) numbers, looked up for every row: its planes and rows, from and to before;
    whether it lies at an end of the planes; where its profile begins; and where its memory
    variables are: those of a row of cells in row origin + plane per_plane + row per_row, with
    `step` rows from one neighbour on the axis to the next. a, b: the CPML's profiles, slab by slab;
    a is zero in the interior; rows: of the memory variables.
    """

    places: NDArray[np.int64]
    a: NDArray
    b: NDArray
    rows: int


class Sides(NamedTuple):
    """The absorbing cells at both ends of the rows, and what their derivatives reach.

    width: at one end; a, b: the CPML's profiles for the sides of one block of rows, as
    `layout.lay_out_sides` puts them, none where nothing absorbs; blocks: of rows in a plane; d:
    first difference along the rows.
    """

    width: int
    a: NDArray
    b: NDArray
    blocks: int
    d: tuple[np.floating, ...]


class Scheme(NamedTuple):
    """The discrete equation of one shot, all numbers in the working precision.

    v2dt2: field; c0: the second differences' weights at 0, added up; far, near, x: their weights
    at the offsets 1 to order / 2 across the planes (None for a grid of one plane), across the rows
    of a plane, and along them; x0: the one at 0 along them; axes: across the rows of a plane, and
    across the planes (or the former again); depth: array rows from one depth to the next, and rows
    at one depth, under a free surface, else (0, 0).
    """

    grid: Grid
    v2dt2: NDArray
    c0: np.floating
    far: tuple[np.floating, ...] | None
    near: tuple[np.floating, ...]
    x0: np.floating
    x: tuple[np.floating, ...]
    axes: tuple[Axis, Axis]
    slabs: Slabs
    sides: Sides
    depth: tuple[int, int]


class Taps(NamedTuple):
    """Points between grid points, spread over some of them; all arrays are (point, tap).

    rows, columns: of the array; inner: whether a cell is in the part of the grid that can be
    rebuilt backwards in time.
    """

    rows: NDArray
    columns: NDArray
    weights: NDArray
    inner: NDArray


def make_scheme(problem: Problem) -> Scheme:
    """A problem's scheme, as the sweeps want it."""
    scheme = problem.scheme
    v2dt2 = lay_out(scheme.v2dt2)
    dtype, grid = v2dt2.dtype, make_grid(scheme.shape)
    weights = [_differences(problem.order, h, dtype) for h in problem.spacing]
    *across, (x0, x, d) = weights
    near = Axis(1, *across[-1])
    far = Axis(grid.stride, *across[0]) if len(across) == 2 else near
    return Scheme(
        grid,
        v2dt2,
        sum((c0 for c0, *_ in across), x0),
        across[0][1] if len(across) == 2 else None,
        across[-1][1],
        x0,
        x,
        (near, far),
        _slabs(problem, grid, dtype),
        _sides(problem, grid, d, dtype),
        _depth(problem, grid),
    )


def _slabs(problem: Problem, grid: Grid, dtype: np.dtype) -> Slabs:
    """The slabs at both ends of the rows of a plane, and of the planes where there are several."""
    begins, ends = problem.interior
    places, profiles, begin, memory = [], [], 0, 0
    for axis in (-2, -3)[: problem.speed.ndim - 1]:
        at_planes, n, profile = (
            axis == -3,
            problem.scheme.shape[axis],
            problem.scheme.profiles[axis],
        )
        for first, last in ((0, begins[axis]), (ends[axis], n)):
            size = last - first + 2 * HALO
            box = (first, last, 0, grid.rows) if at_planes else (0, grid.planes, first, last)
            step = grid.rows if at_planes else 1
            per_plane = grid.rows if at_planes else size
            origin = memory + (HALO - first) * step
            places.append((*box, at_planes, begin, origin, per_plane, 1, step))
            profiles.append((profile.a[first:last], profile.b[first:last]))
            begin += last - first
            memory += size * (grid.rows if at_planes else grid.planes)
    a, b = (np.concatenate(f).astype(dtype) for f in zip(*profiles, strict=True))
    return Slabs(np.array(places, np.int64), a, b, memory)


def _sides(problem: Problem, grid: Grid, d: Any, dtype: np.dtype) -> Sides:
    width, profile = problem.interior[0][-1], problem.scheme.profiles[-1]
    a, b = (lay_out_sides(values, width).astype(dtype) for values in (profile.a, profile.b))
    return Sides(width, a, b, -(-grid.rows // BLOCK), d)


def _depth(problem: Problem, grid: Grid) -> tuple[int, int]:
    if not problem.free_surface:
        return 0, 0
    return (1, 1) if problem.speed.ndim == 2 else (grid.stride, grid.rows)


def _differences(order: int, h: float, dtype: np.dtype) -> tuple[Any, tuple, tuple]:
    """Second difference at 0, at the offsets from 1 on; first difference at those."""
    second = tuple(stencil.second_difference(order, h).astype(dtype))
    return second[0], second[1:], tuple(stencil.first_difference(order, h).astype(dtype))[1:]


def make_interior(problem: Problem) -> Window:
    """The part of the grid where nothing absorbs."""
    first, last = problem.interior
    if problem.speed.ndim == 2:
        first, last = (0, *first), (1, *last)
    (front, top, left), (back, bottom, right) = first, last
    return Window(front, back, top, bottom, left, right)


def make_taps(taps: points.Taps, grid: Grid, interior: Window, dtype: np.dtype) -> list[Taps]:
    """The points of each shot, as rows and columns of arrays in the layout."""
    plane, row, x = (
        [np.zeros_like(taps.cells[..., 0]), *np.moveaxis(taps.cells, -1, 0)]
        if taps.cells.shape[-1] == 2
        else np.moveaxis(taps.cells, -1, 0)
    )
    inner = (
        ((plane >= interior.front) & (plane < interior.back))
        & ((row >= interior.top) & (row < interior.bottom))
        & ((x >= interior.left) & (x < interior.right))
    )
    rows = np.ascontiguousarray(grid.base + plane * grid.stride + row)
    columns = np.ascontiguousarray(MARGIN + x)
    weights = taps.weights.astype(dtype)
    return [Taps(*arrays) for arrays in zip(rows, columns, weights, inner, strict=True)]
