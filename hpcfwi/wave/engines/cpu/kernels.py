"""Compiled functions of the `cpu` engine: rows of the grid, points on it, and barriers of threads.

Numba turns into good SIMD instructions: loops over one row of two-dimensional arrays with unsigned
indices, few arrays at a time (it gives up where too many pairs might overlap), and stencils given
as tuples, whose length the compiler knows, so that it unrolls the sum. Entry m of a stencil belongs
to the offsets m + 1 and -(m + 1). An axis across the rows is known by its stride, which is the
number of rows between neighbours. Arrays of the size of the grid have the layout of `layout`.

A barrier is one counter, to which every thread adds one when it arrives; all go on when the count
is a multiple of their number. A thread that waits looks a few hundred times, then yields its core
at each look, so that a thread that has lost its core gets it back.

Points at one depth make a line. What they emit is added up along the line first, and then added
once to each of the rows over which it is spread; recording is the reverse. So points between grid
points take little more time than points on them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu.layout import HALO, MARGIN, Box, Grid
from hpcfwi.wave.numerics import Taps

LOOKS = 300

_give_way = types.ExternalFunction("sched_yield", types.intc())


class ThreadTeam(NamedTuple):
    """The threads of one shot, as one of them sees them.

    rank, size: it is number `rank` of `size`; arrivals: (1,) int64, theirs in common, 0 at first.
    """

    rank: int
    size: int
    arrivals: NDArray[np.int64]


def run_team(size: int, work: Callable[[ThreadTeam], None]) -> None:
    """Do the same work on `size` threads, each with its rank in the team."""
    arrivals = np.zeros(1, np.int64)
    teams = [ThreadTeam(rank, size, arrivals) for rank in range(size)]
    if size == 1:
        work(teams[0])
        return
    with make_threads(size) as threads:
        list(threads.map(work, teams))


def make_threads(size: int) -> ThreadPoolExecutor:
    """Threads in which numbers below 1e-38 become 0; ahead of a wave they would slow it tenfold."""
    return ThreadPoolExecutor(size, initializer=torch.set_flush_denormal, initargs=(True,))


@intrinsic
def _arrive(typing_context, array):
    """Add one to the array's first element, and return what it was."""

    def generate(context, builder, signature, args):
        one = ir.Constant(ir.IntType(64), 1)
        place = context.make_array(signature.args[0])(context, builder, value=args[0]).data
        return builder.atomic_rmw("add", place, one, "acq_rel")

    return types.int64(array), generate


@intrinsic
def _look(typing_context, array):
    """The array's first element, as other threads have left it."""

    def generate(context, builder, signature, args):
        place = context.make_array(signature.args[0])(context, builder, value=args[0]).data
        return builder.load_atomic(place, "acquire", 8)

    return types.int64(array), generate


@njit(nogil=True)
def barrier(team):
    """Wait until all threads of the team are here."""
    if team.size > 1:
        arrived: int = _arrive(team.arrivals)  # type: ignore[call-arg]
        target = (arrived // team.size + 1) * team.size
        looks = 0
        while _look(team.arrivals) < target:
            looks += 1
            if looks > LOOKS:
                _give_way()


# Contraction lets the compiler fuse a multiplication and an addition; it may not reorder sums,
# so that a shot's bits depend on nothing but the shot.
loop = njit(nogil=True, fastmath={"contract"})
# What loops alone call: a way to call it from Python as well would take a quarter of the time of
# compiling.
_LOOPS_ALONE: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
within_loops = njit(nogil=True, fastmath={"contract"}, **_LOOPS_ALONE)

# An index that cannot be negative need not be checked for counting from the end, which would keep
# a loop from becoming SIMD.
U = np.uint64


class Cells(NamedTuple):
    """The n cells of an array's row from column `first` on, counted with the margin."""

    row: int
    first: int
    n: int


class Place(NamedTuple):
    """The memory variables and profiles of a row of cells in a slab.

    row: that of its memory variables; step: from there to the row of the next place on the axis;
    a, b: the CPML's profiles.
    """

    row: int
    step: int
    a: np.floating
    b: np.floating


class Ends(NamedTuple):
    """The sides of some rows, from `row` of an array on.

    nx: cells of a row; width: of a side; left, right: whether the side is in the window.
    """

    row: int
    rows: int
    nx: int
    width: int
    left: bool
    right: bool


@within_loops
def cells_of(grid, box, plane, row):
    """The cells of a row of the grid that lie in a box, as far as its columns go."""
    return Cells(grid.base + plane * grid.stride + row, box.left + MARGIN, box.right - box.left)


@within_loops
def zero_of(array):
    """0 in the precision of an array."""
    return array.dtype.type(0)


@within_loops
def advance(prev, p, v2dt2, u, cells, laplacian, far):
    """u = second derivatives of p, unless it is None; prev = 2 p - prev + v2dt2 times these.

    far: the Laplacian's, by itself: Numba leaves out what is not there only for arguments.
    """
    c0, stride, near, x = laplacian.c0, laplacian.stride, laplacian.near, laplacian.x
    r = cells.row
    for j in range(U(cells.first), U(cells.first + cells.n)):
        second = c0 * p[r, j]
        for m in range(len(x)):
            if far is not None:
                second += far[m] * (p[r - (1 + m) * stride, j] + p[r + (1 + m) * stride, j])
            second += near[m] * (p[r - 1 - m, j] + p[r + 1 + m, j])
            second += x[m] * (p[r, j - U(1 + m)] + p[r, j + U(1 + m)])
        if u is not None:
            u[r, j] = second
        prev[r, j] = (p[r, j] + p[r, j]) - prev[r, j] + v2dt2[r, j] * second


@within_loops
def relax(memory, f, cells, place):
    """memory = b memory + a f in these cells."""
    a, b, k = place.a, place.b, place.row
    for j in range(U(cells.first), U(cells.first + cells.n)):
        memory[k, j] = b * memory[k, j] + a * f[cells.row, j]


@within_loops
def relax_slope(memory, f, cells, place, axis):
    """memory = b memory + a times the first derivative of f across the rows."""
    a, b, k, r = place.a, place.b, place.row, cells.row
    stride, d = axis.stride, axis.d
    for j in range(U(cells.first), U(cells.first + cells.n)):
        slope = b * memory[k, j]
        for m in range(len(d)):
            slope += (a * d[m]) * (f[r + (1 + m) * stride, j] - f[r - (1 + m) * stride, j])
        memory[k, j] = slope


@within_loops
def relax_slope_back(memory, q, cells, place, axis):
    """phi = b phi + a times the first derivative of q + zeta across the rows."""
    phi, zeta = memory
    a, b, k, r = place.a, place.b, place.row, cells.row
    stride, step, d = axis.stride, place.step, axis.d
    for j in range(U(cells.first), U(cells.first + cells.n)):
        slope = b * phi[k, j]
        for m in range(len(d)):
            slope += (a * d[m]) * (q[r + (1 + m) * stride, j] - q[r - (1 + m) * stride, j])
            slope += (a * d[m]) * (zeta[k + (1 + m) * step, j] - zeta[k - (1 + m) * step, j])
        phi[k, j] = slope


@within_loops
def absorb(prev, p, v2dt2, u, memory, cells, place, axis):
    """Add the CPML terms across the rows to prev, and to u unless it is None."""
    psi, zeta = memory
    a, b, k, r = place.a, place.b, place.row, cells.row
    stride, step, c0, c, d = axis.stride, place.step, axis.c0, axis.c, axis.d
    for j in range(U(cells.first), U(cells.first + cells.n)):
        second = c0 * p[r, j]
        slope = zero_of(psi)
        for m in range(len(d)):
            second += c[m] * (p[r - (1 + m) * stride, j] + p[r + (1 + m) * stride, j])
            slope += d[m] * (psi[k + (1 + m) * step, j] - psi[k - (1 + m) * step, j])
        relaxed = b * zeta[k, j] + a * (second + slope)
        zeta[k, j] = relaxed
        prev[r, j] += v2dt2[r, j] * (slope + relaxed)
    if u is not None:
        for j in range(U(cells.first), U(cells.first + cells.n)):
            slope = zero_of(psi)
            for m in range(len(d)):
                slope += d[m] * (psi[k + (1 + m) * step, j] - psi[k - (1 + m) * step, j])
            u[r, j] += slope + zeta[k, j]


@within_loops
def absorb_back(prev, v2dt2, memory, cells, place, axis):
    """Transpose of `absorb`, where the memory variables have been relaxed already."""
    phi, zeta = memory
    k, step, r, c0, c, d = place.row, place.step, cells.row, axis.c0, axis.c, axis.d
    for j in range(U(cells.first), U(cells.first + cells.n)):
        extra = c0 * zeta[k, j]
        for m in range(len(d)):
            extra += c[m] * (zeta[k - (1 + m) * step, j] + zeta[k + (1 + m) * step, j])
            extra += d[m] * (phi[k + (1 + m) * step, j] - phi[k - (1 + m) * step, j])
        prev[r, j] += v2dt2[r, j] * extra


@within_loops
def gather_sides(work, p, ends):
    """work = p in the sides of some rows, and zeros in the gaps between them.

    Zeros too where a side is not in the window, as what is left there would otherwise feed on
    itself.
    """
    width = ends.width
    for i in range(ends.rows):
        k = HALO + 2 * i * (width + HALO)
        for side, inside in enumerate((ends.left, ends.right)):
            first = side * (ends.nx - width) + MARGIN
            for j in range(width):
                work[k + j] = p[ends.row + i, first + j] if inside else 0
            k += width
            for j in range(HALO):
                work[k + j] = 0
            k += HALO


@within_loops
def add_sides(prev, v2dt2, u, work, ends):
    """Add `work` where `gather_sides` takes it from: to prev, and to u unless it is None."""
    width = ends.width
    for i in range(ends.rows):
        r, k = ends.row + i, HALO + 2 * i * (width + HALO)
        for side, inside in enumerate((ends.left, ends.right)):
            first = side * (ends.nx - width) + MARGIN
            if inside:
                for j in range(width):
                    prev[r, first + j] += v2dt2[r, first + j] * work[k + j]
                if u is not None:
                    for j in range(width):
                        u[r, first + j] += work[k + j]
            k += width + HALO


@within_loops
def absorb_sides(work, memory, k, sides):
    """Replace p at the sides of some rows by its CPML terms along them.

    k: row of these sides in the memory variables.
    """
    psi, zeta = memory
    a, b, c0, c, d = sides.a, sides.b, sides.axis.c0, sides.axis.c, sides.axis.d
    for j in range(U(HALO), U(len(a))):
        slope = b[j] * psi[k, j]
        for m in range(len(d)):
            slope += (a[j] * d[m]) * (work[j + U(1 + m)] - work[j - U(1 + m)])
        psi[k, j] = slope
    for j in range(U(HALO), U(len(a))):
        second = c0 * work[j]
        for m in range(len(d)):
            second += c[m] * (work[j + U(1 + m)] + work[j - U(1 + m)])
            second += d[m] * (psi[k, j + U(1 + m)] - psi[k, j - U(1 + m)])
        zeta[k, j] = b[j] * zeta[k, j] + a[j] * second
    for j in range(U(HALO), U(len(a))):
        extra = zeta[k, j]
        for m in range(len(d)):
            extra += d[m] * (psi[k, j + U(1 + m)] - psi[k, j - U(1 + m)])
        work[j] = extra


@within_loops
def absorb_sides_back(work, memory, k, sides):
    """Transpose of `absorb_sides`."""
    phi, zeta = memory
    a, b, c0, c, d = sides.a, sides.b, sides.axis.c0, sides.axis.c, sides.axis.d
    for j in range(U(HALO), U(len(a))):
        zeta[k, j] = b[j] * zeta[k, j] + a[j] * work[j]
    for j in range(U(HALO), U(len(a))):
        slope = b[j] * phi[k, j]
        for m in range(len(d)):
            slope += (a[j] * d[m]) * (work[j + U(1 + m)] - work[j - U(1 + m)])
            slope += (a[j] * d[m]) * (zeta[k, j + U(1 + m)] - zeta[k, j - U(1 + m)])
        phi[k, j] = slope
    for j in range(U(HALO), U(len(a))):
        extra = c0 * zeta[k, j]
        for m in range(len(d)):
            extra += c[m] * (zeta[k, j + U(1 + m)] + zeta[k, j - U(1 + m)])
            extra += d[m] * (phi[k, j + U(1 + m)] - phi[k, j - U(1 + m)])
        work[j] = extra


@within_loops
def add_square(total, p, cells):
    """total gains p squared in these cells."""
    r = cells.row
    for j in range(U(cells.first), U(cells.first + cells.n)):
        total[r, j] += p[r, j] * p[r, j]


@within_loops
def add_product(total, p, u, cells):
    """total gains p times u in these cells."""
    r = cells.row
    for j in range(U(cells.first), U(cells.first + cells.n)):
        total[r, j] += p[r, j] * u[r, j]


@within_loops
def set_zero(row, cells):
    """row = 0 in these cells."""
    for j in range(U(cells.first), U(cells.first + cells.n)):
        row[j] = 0


@within_loops
def add_weighted(row, f, cells, weight):
    """row gains f in these cells, by a weight."""
    r = cells.row
    for j in range(U(cells.first), U(cells.first + cells.n)):
        row[j] += weight * f[r, j]


@within_loops
def add_spread(f, row, cells, weight, scale):
    """f gains a row in these cells, by a weight and a scale."""
    r = cells.row
    for j in range(U(cells.first), U(cells.first + cells.n)):
        f[r, j] += weight * row[j] * scale


@within_loops
def add_emitted(f, v2dt2, row, cells, weight, scale):
    """f gains v2dt2 times a row in these cells, by a weight and a scale, unless that is None."""
    r = cells.row
    for j in range(U(cells.first), U(cells.first + cells.n)):
        if scale is None:
            f[r, j] += v2dt2[r, j] * weight * row[j]
        else:
            f[r, j] += v2dt2[r, j] * weight * row[j] * scale


@within_loops
def count_nonzero(p, cells):
    """Return the number of these cells in which p is not zero."""
    found = 0
    for j in range(U(cells.first), U(cells.first + cells.n)):
        found += p[cells.row, j] != 0
    return found


class Lines(NamedTuple):
    """The points of a shot.

    rows, weights, inner: (line, row), the rows of the array over which the points of a line are
    spread, by how much, and whether a row has cells that can be rebuilt backwards in time; left,
    right: the columns of these cells, from and to before; ends: (line + 1,), the points of a line
    are entries ends[line] to before ends[line + 1], sorted by their columns; points: (entry,),
    their numbers; columns: (entry,), the first over which each is spread; along: (entry, cell), its
    weights from there. Cells outside the grid have weight 0.
    """

    rows: NDArray[np.int64]
    weights: NDArray
    inner: NDArray[np.bool_]
    left: int
    right: int
    ends: NDArray[np.int64]
    points: NDArray[np.int64]
    columns: NDArray[np.int64]
    along: NDArray


def make_lines(taps: Taps, grid: Grid, interior: Box, dtype: np.dtype) -> list[Lines]:
    """The lines of each shot."""
    across, columns, along = taps.across, MARGIN + taps.indices[-1][..., 0], taps.factors[-1]
    *planes, row = np.moveaxis(across.cells, -1, 0)
    plane = planes[0] if planes else np.zeros_like(row)
    rows = grid.base + plane * grid.stride + row
    inner = (
        (plane >= interior.front)
        & (plane < interior.back)
        & (row >= interior.top)
        & (row < interior.bottom)
    )
    found = []
    for shot in range(len(rows)):
        key = np.concatenate([rows[shot], across.weights[shot]], axis=-1)
        _, some, line = np.unique(key, axis=0, return_index=True, return_inverse=True)
        order = np.lexsort((columns[shot], line.ravel()))
        found.append(
            Lines(
                rows[shot, some],
                across.weights[shot, some].astype(dtype),
                inner[shot, some],
                interior.left + MARGIN,
                interior.right + MARGIN,
                np.searchsorted(line.ravel()[order], np.arange(some.size + 1)),
                order,
                columns[shot, order],
                along[shot, order].astype(dtype),
            )
        )
    return found


@within_loops
def cells_of_entries(lines, first, last):
    """The cells of a row, in no row, over which entries of a line are spread; there are some."""
    begin = lines.columns[first]
    return Cells(0, begin, lines.columns[last - 1] + lines.along.shape[1] - begin)


@within_loops
def add_up(sent, values, lines, line):
    """sent = values (point,) of a line along it; the cells in which it is not zero."""
    first, last = lines.ends[line], lines.ends[line + 1]
    cells = cells_of_entries(lines, first, last)
    set_zero(sent, cells)
    for k in range(first, last):
        value = values[lines.points[k]]
        for t in range(lines.along.shape[1]):
            sent[lines.columns[k] + t] += lines.along[k, t] * value
    return cells


@within_loops
def inject(field, v2dt2, lines, values, scale, rows, sent):
    """Add values (point,) times v2dt2 to the field at the points, in some rows.

    scale: another factor, or None; rows: of the array, from and to before; sent: room for a row.
    """
    for line in range(lines.rows.shape[0]):
        if touches(lines, line, rows):
            cells = add_up(sent, values, lines, line)
            for m in range(lines.rows.shape[1]):
                r, weight = lines.rows[line, m], lines.weights[line, m]
                if rows[0] <= r < rows[1] and weight != 0:
                    place = Cells(r, cells.first, cells.n)
                    add_emitted(field, v2dt2, sent, place, weight, scale)


@within_loops
def drive(u, lines, values, scale, rows, sent, inner_only):
    """Add values (point,) times scale to u at the points, in some rows, as `inject` does."""
    for line in range(lines.rows.shape[0]):
        if touches(lines, line, rows):
            cells = add_up(sent, values, lines, line)
            first, last = cells.first, cells.first + cells.n
            if inner_only:
                first, last = max(first, lines.left), min(last, lines.right)
            for m in range(lines.rows.shape[1]):
                r, weight = lines.rows[line, m], lines.weights[line, m]
                here = rows[0] <= r < rows[1] and weight != 0
                if here and first < last and (lines.inner[line, m] or not inner_only):
                    add_spread(u, sent, Cells(r, first, last - first), weight, scale)


@within_loops
def record(values, field, lines, scale, team, heard):
    """values (point,) = scale times the field at the points; every thread a share of them.

    heard: room for a row.
    """
    n = values.shape[0]
    begin, end = n * team.rank // team.size, n * (team.rank + 1) // team.size
    for line in range(lines.rows.shape[0]):
        first, last = max(lines.ends[line], begin), min(lines.ends[line + 1], end)
        if first < last:
            cells = cells_of_entries(lines, first, last)
            set_zero(heard, cells)
            for m in range(lines.rows.shape[1]):
                if lines.weights[line, m] != 0:
                    place = Cells(lines.rows[line, m], cells.first, cells.n)
                    add_weighted(heard, field, place, lines.weights[line, m])
            for k in range(first, last):
                total = zero_of(field)
                for t in range(lines.along.shape[1]):
                    total += lines.along[k, t] * heard[lines.columns[k] + t]
                values[lines.points[k]] = total * scale


@within_loops
def touches(lines, line, rows):
    """Return True if a line has cells in some rows of the array."""
    found = False
    for r in lines.rows[line]:
        found = found or rows[0] <= r < rows[1]
    return found
