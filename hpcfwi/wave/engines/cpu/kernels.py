"""Compiled functions of the `cpu` engine: rows of the grid, and points on it.

The functions are written in the form that Numba compiles to efficient SIMD instructions. Each inner
loop runs along a row of two-dimensional arrays with unsigned indices. The arrays of a function do
not overlap, and the compiler is told so. A function computes a block of rows, because a call passes
dozens of numbers, which takes as long as a hundred cells. Stencils are tuples, whose length is
known to the compiler, so that it unrolls the sum. Entry m of a stencil is the weight of the offset
m + 1; the offset -(m + 1) has the same weight in second differences, and minus this weight in first
differences. An axis across the rows is given by its stride, the number of rows between neighbours.
Arrays of the size of the grid have the layout of `layout`.

Along a row, most functions go through groups of LANES cells. Before they compute a group, they ask
for the cells of a later row, which are then in the cache when they are needed (`prefetch`). The
compiler vectorizes no loop that asks for memory, so that the cells of a group have their own one.

Points that differ only in x form a line. Their values are first added up along the line, and the
sum is then added once to each of the rows over which the points are spread; recording is the
reverse. Points between grid points therefore take little more time than points on the grid.

psi, zeta and phi are the memory variables of the CPML, and a and b its profiles (docs/physics.md).
`relax` and its variants advance one of them by a step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu.jit import U, fma, over_rows, prefetch, within_loops, within_row
from hpcfwi.wave.engines.cpu.layout import BLOCK, LANES, MARGIN, Box, Cut, GridLayout
from hpcfwi.wave.numerics import Taps

# Distance in rows from the cells that are computed to those that are asked for from memory.
AHEAD = 2


class Cells(NamedTuple):
    """Cells of some rows of an array: n cells of each row from column `first` on.

    row, rows: first row, and number of rows; columns include the margin.
    """

    row: int
    rows: int
    first: int
    n: int


class SlabPlace(NamedTuple):
    """The memory variables and profiles of some rows of cells in a slab.

    row: row of the memory variables of the first row; step: number of rows to the memory variables
    of the next place along the axis; a, b: the CPML's profiles of all slabs; profile: entry of the
    first row in them; per_row: 1 if each row has its own entry, 0 if all have the same.
    """

    row: int
    step: int
    a: NDArray
    b: NDArray
    profile: int
    per_row: int


@within_loops
def cells_of(grid, box, plane):
    """Return the cells of a plane of the grid that lie in a box."""
    row = grid.base + plane * grid.stride + box.top
    return Cells(row, box.bottom - box.top, box.left + MARGIN, box.right - box.left)


@within_loops
def rows_of_cells(cells):
    """Return the rows of some cells."""
    return range(U(cells.row), U(cells.row + cells.rows))


@within_loops
def columns_of_cells(cells):
    """Return the columns of some cells."""
    return range(U(cells.first), U(cells.first + cells.n))


@within_loops
def groups_of_cells(cells):
    """Return the first columns of groups of LANES cells, of which there must be a whole number."""
    return range(U(cells.first), U(cells.first + cells.n), U(LANES))


@within_loops
def zero_of(array):
    """Return 0 in the precision of an array.

    It is called outside of loops: in a loop, the compiler may compute the first iteration apart.
    """
    return array.dtype.type(0)


@within_row
def advance_row(prev, p, v2dt2, u, r, first, n, laplacian, far):
    """Do the work of `advance` for n cells of a row."""
    c0, stride, near, x = laplacian.c0, U(laplacian.stride), laplacian.near, laplacian.x
    for i in range(U(n)):
        j = first + i
        second = c0 * p[r, j]
        for m in range(len(x)):
            k = U(1 + m)
            if far is not None:
                second = fma(far[m], p[r - k * stride, j] + p[r + k * stride, j], second)
            second = fma(near[m], p[r - k, j] + p[r + k, j], second)
            second = fma(x[m], p[r, j - k] + p[r, j + k], second)
        if u is not None:
            u[r, j] = second
        prev[r, j] = fma(v2dt2[r, j], second, (p[r, j] + p[r, j]) - prev[r, j])


@over_rows
def advance(prev, p, v2dt2, u, cells, laplacian, far):
    """Set prev to 2 p - prev + v2dt2 times the Laplacian of p, and u to the Laplacian if not None.

    cells: whole groups; far: `laplacian.far`, a separate argument because Numba removes the code
    for a value of None only if the value is an argument.
    """
    for r in rows_of_cells(cells):
        for first in groups_of_cells(cells):
            if far is not None:
                ahead = r + U(AHEAD)
                prefetch(prev, ahead, first)
                prefetch(v2dt2, ahead, first)
                prefetch(p, ahead + U(len(far)) * U(laplacian.stride), first)
            advance_row(prev, p, v2dt2, u, r, first, LANES, laplacian, far)


@over_rows
def advance_columns(prev, p, v2dt2, u, cells, laplacian, far):
    """Do the work of `advance` for any number of columns."""
    for r in rows_of_cells(cells):
        advance_row(prev, p, v2dt2, u, r, U(cells.first), cells.n, laplacian, far)


@over_rows
def relax(memory, f, cells, place):
    """Set memory to b memory + a f in these cells."""
    for i in range(U(cells.rows)):
        k, r, profile = U(place.row) + i, U(cells.row) + i, U(place.profile) + U(place.per_row) * i
        a, b = place.a[profile], place.b[profile]
        for j in columns_of_cells(cells):
            memory[k, j] = fma(b, memory[k, j], a * f[r, j])


@over_rows
def relax_slope(memory, f, cells, place, axis):
    """Set memory to b memory + a times the first derivative of f across the rows."""
    stride, d = U(axis.stride), axis.d
    for i in range(U(cells.rows)):
        k, r, profile = U(place.row) + i, U(cells.row) + i, U(place.profile) + U(place.per_row) * i
        a, b = place.a[profile], place.b[profile]
        for first in groups_of_cells(cells):
            prefetch(memory, k + U(AHEAD), first)
            prefetch(f, r + U(AHEAD) + U(len(d)) * stride, first)
            for lane in range(U(LANES)):
                j = first + lane
                slope = b * memory[k, j]
                for m in range(len(d)):
                    away = U(1 + m) * stride
                    slope = fma(a * d[m], f[r + away, j] - f[r - away, j], slope)
                memory[k, j] = slope


@over_rows
def relax_slope_back(memory, q, cells, place, axis):
    """Set phi to b phi + a times the first derivative of q + zeta across the rows."""
    phi, zeta = memory
    stride, step, d = U(axis.stride), U(place.step), axis.d
    for i in range(U(cells.rows)):
        k, r, profile = U(place.row) + i, U(cells.row) + i, U(place.profile) + U(place.per_row) * i
        a, b = place.a[profile], place.b[profile]
        for first in groups_of_cells(cells):
            prefetch(phi, k + U(AHEAD), first)
            prefetch(zeta, k + U(AHEAD) + U(len(d)) * step, first)
            prefetch(q, r + U(AHEAD) + U(len(d)) * stride, first)
            for lane in range(U(LANES)):
                j = first + lane
                slope = b * phi[k, j]
                for m in range(len(d)):
                    away, beyond = U(1 + m) * stride, U(1 + m) * step
                    slope = fma(a * d[m], q[r + away, j] - q[r - away, j], slope)
                    slope = fma(a * d[m], zeta[k + beyond, j] - zeta[k - beyond, j], slope)
                phi[k, j] = slope


@over_rows
def absorb(prev, p, v2dt2, u, memory, cells, place, axis):
    """Add the CPML terms across the rows to prev, and to u unless it is None."""
    (psi, zeta), zero = memory, zero_of(prev)
    stride, step, c0, c, d = U(axis.stride), U(place.step), axis.c0, axis.c, axis.d
    for i in range(U(cells.rows)):
        k, r, profile = U(place.row) + i, U(cells.row) + i, U(place.profile) + U(place.per_row) * i
        a, b = place.a[profile], place.b[profile]
        for first in groups_of_cells(cells):
            prefetch(zeta, k + U(AHEAD), first)
            prefetch(psi, k + U(AHEAD) + U(len(d)) * step, first)
            for lane in range(U(LANES)):
                j = first + lane
                second = c0 * p[r, j]
                slope = zero
                for m in range(len(d)):
                    away, beyond = U(1 + m) * stride, U(1 + m) * step
                    second = fma(c[m], p[r - away, j] + p[r + away, j], second)
                    slope = fma(d[m], psi[k + beyond, j] - psi[k - beyond, j], slope)
                relaxed = fma(b, zeta[k, j], a * (second + slope))
                zeta[k, j] = relaxed
                if u is not None:
                    u[r, j] += slope + relaxed
                prev[r, j] = fma(v2dt2[r, j], slope + relaxed, prev[r, j])


@over_rows
def advance_absorbing(prev, p, v2dt2, u, memory, cells, laplacian, other, apart, place, axis):
    """Do the work of `advance`, and of `absorb` with the terms of an axis, at once.

    other, apart: weights of the second differences along the other axis across the rows, None for a
    grid of one plane, and the distance of its neighbours, in array rows.
    """
    (psi, zeta), zero = memory, zero_of(prev)
    c0, x, apart = laplacian.c0 - axis.c0, laplacian.x, U(apart)
    across, step, own, c, d = U(axis.stride), U(place.step), axis.c0, axis.c, axis.d
    for i in range(U(cells.rows)):
        k, r, profile = U(place.row) + i, U(cells.row) + i, U(place.profile) + U(place.per_row) * i
        a, b = place.a[profile], place.b[profile]
        for first in groups_of_cells(cells):
            prefetch(prev, r + U(AHEAD), first)
            prefetch(v2dt2, r + U(AHEAD), first)
            prefetch(p, r + U(AHEAD) + U(len(d)) * across, first)
            prefetch(zeta, k + U(AHEAD), first)
            prefetch(psi, k + U(AHEAD) + U(len(d)) * step, first)
            for lane in range(U(LANES)):
                j = first + lane
                second, slope = own * p[r, j], zero
                for m in range(len(x)):
                    n = U(1 + m)
                    second = fma(c[m], p[r - n * across, j] + p[r + n * across, j], second)
                    slope = fma(d[m], psi[k + n * step, j] - psi[k - n * step, j], slope)
                relaxed = fma(b, zeta[k, j], a * (second + slope))
                zeta[k, j] = relaxed
                total = fma(c0, p[r, j], second)
                for m in range(len(x)):
                    n = U(1 + m)
                    if other is not None:
                        total = fma(other[m], p[r - n * apart, j] + p[r + n * apart, j], total)
                    total = fma(x[m], p[r, j - n] + p[r, j + n], total)
                total += slope + relaxed
                if u is not None:
                    u[r, j] = total
                prev[r, j] = fma(v2dt2[r, j], total, (p[r, j] + p[r, j]) - prev[r, j])


@over_rows
def absorb_back(prev, v2dt2, memory, cells, place, axis):
    """Apply the transpose of `absorb`; the memory variables are already those of this step."""
    phi, zeta = memory
    step, c0, c, d = U(place.step), axis.c0, axis.c, axis.d
    for i in range(U(cells.rows)):
        k, r = U(place.row) + i, U(cells.row) + i
        for first in groups_of_cells(cells):
            prefetch(phi, k + U(AHEAD) + U(len(d)) * step, first)
            prefetch(zeta, k + U(AHEAD) + U(len(d)) * step, first)
            for lane in range(U(LANES)):
                j = first + lane
                extra = c0 * zeta[k, j]
                for m in range(len(d)):
                    beyond = U(1 + m) * step
                    extra = fma(c[m], zeta[k - beyond, j] + zeta[k + beyond, j], extra)
                    extra = fma(d[m], phi[k + beyond, j] - phi[k - beyond, j], extra)
                prev[r, j] = fma(v2dt2[r, j], extra, prev[r, j])


@over_rows
def absorb_side(prev, p, v2dt2, u, memory, cells, row, column, sides):
    """Add the CPML terms along the rows in one of their sides to prev, and to u unless it is None.

    row, column: place of the memory variables and profiles of the first cell.
    """
    (psi, zeta), zero = memory, zero_of(prev)
    a, b, c0, c, d = sides.a, sides.b, sides.axis.c0, sides.axis.c, sides.axis.d
    first, s = U(cells.first), U(column)
    for i in range(U(cells.rows)):
        k, r = U(row) + i, U(cells.row) + i
        prefetch(psi, k + U(BLOCK), s)
        prefetch(zeta, k + U(BLOCK), s)
        for j in range(U(cells.n)):
            slope = b[s + j] * psi[k, s + j]
            for m in range(len(d)):
                f = first + j
                slope = fma(a[s + j] * d[m], p[r, f + U(1 + m)] - p[r, f - U(1 + m)], slope)
            psi[k, s + j] = slope
    for i in range(U(cells.rows)):
        k, r = U(row) + i, U(cells.row) + i
        for j in range(U(cells.n)):
            f, t = first + j, s + j
            second, slope = c0 * p[r, f], zero
            for m in range(len(d)):
                second = fma(c[m], p[r, f + U(1 + m)] + p[r, f - U(1 + m)], second)
                slope = fma(d[m], psi[k, t + U(1 + m)] - psi[k, t - U(1 + m)], slope)
            relaxed = fma(b[t], zeta[k, t], a[t] * (second + slope))
            zeta[k, t] = relaxed
            extra = slope + relaxed
            if u is not None:
                u[r, f] += extra
            prev[r, f] = fma(v2dt2[r, f], extra, prev[r, f])


@over_rows
def absorb_side_back(prev, q, v2dt2, memory, cells, row, column, sides):
    """Apply the transpose of `absorb_side`."""
    phi, zeta = memory
    a, b, c0, c, d = sides.a, sides.b, sides.axis.c0, sides.axis.c, sides.axis.d
    first, s = U(cells.first), U(column)
    for i in range(U(cells.rows)):
        k, r = U(row) + i, U(cells.row) + i
        prefetch(phi, k + U(BLOCK), s)
        prefetch(zeta, k + U(BLOCK), s)
        for j in range(U(cells.n)):
            zeta[k, s + j] = fma(b[s + j], zeta[k, s + j], a[s + j] * q[r, first + j])
    for i in range(U(cells.rows)):
        k, r = U(row) + i, U(cells.row) + i
        for j in range(U(cells.n)):
            f, t = first + j, s + j
            slope = b[t] * phi[k, t]
            for m in range(len(d)):
                slope = fma(a[t] * d[m], q[r, f + U(1 + m)] - q[r, f - U(1 + m)], slope)
                slope = fma(a[t] * d[m], zeta[k, t + U(1 + m)] - zeta[k, t - U(1 + m)], slope)
            phi[k, t] = slope
    for i in range(U(cells.rows)):
        k, r = U(row) + i, U(cells.row) + i
        for j in range(U(cells.n)):
            f, t = first + j, s + j
            extra = c0 * zeta[k, t]
            for m in range(len(d)):
                extra = fma(c[m], zeta[k, t + U(1 + m)] + zeta[k, t - U(1 + m)], extra)
                extra = fma(d[m], phi[k, t + U(1 + m)] - phi[k, t - U(1 + m)], extra)
            prev[r, f] = fma(v2dt2[r, f], extra, prev[r, f])


@over_rows
def add_square(total, p, cells):
    """Add p squared to total in these cells."""
    for r in rows_of_cells(cells):
        for j in columns_of_cells(cells):
            total[r, j] = fma(p[r, j], p[r, j], total[r, j])


@over_rows
def add_product(total, p, u, cells):
    """Add p times u to total in these cells."""
    for r in rows_of_cells(cells):
        for j in columns_of_cells(cells):
            total[r, j] = fma(p[r, j], u[r, j], total[r, j])


@within_loops
def set_zero(row, cells):
    """Set a row to 0 in these cells."""
    for j in columns_of_cells(cells):
        row[j] = 0


@within_loops
def add_weighted(row, f, cells, weight):
    """Add weight times f in these cells to a row."""
    r = cells.row
    for j in columns_of_cells(cells):
        row[j] += weight * f[r, j]


@within_loops
def add_spread(f, row, cells, weight, scale):
    """Add weight times scale times a row to f in these cells."""
    r = cells.row
    for j in columns_of_cells(cells):
        f[r, j] += weight * row[j] * scale


@within_loops
def add_emitted(f, v2dt2, row, cells, weight, scale):
    """Add weight times v2dt2 times a row to f in these cells, times scale unless that is None."""
    r = cells.row
    for j in columns_of_cells(cells):
        if scale is None:
            f[r, j] += v2dt2[r, j] * weight * row[j]
        else:
            f[r, j] += v2dt2[r, j] * weight * row[j] * scale


@within_loops
def count_nonzero(p, cells):
    """Return the number of these cells in which p is not zero."""
    found = 0
    for r in rows_of_cells(cells):
        for j in columns_of_cells(cells):
            found += p[r, j] != 0
    return found


class Lines(NamedTuple):
    """The sources or the receivers of a shot, grouped into lines.

    rows, weights: (line, row), the rows of the array over which the points of a line are spread,
    and the weight of each row; begins, beyond: (line,), first of these rows with a weight, and the
    one after the last; mine: (line,), True if this layer records the points of the line; inner:
    (line, row), True if the row has cells in the interior, which can be rebuilt backwards in time;
    left, right: first column of these cells, and the one after the last; ends: (line + 1,), entries
    ends[line] to ends[line + 1] - 1 are the points of a line, sorted by column; points: (entry,),
    number of the point; columns: (entry,), first column over which the point is spread; along:
    (entry, cell), its weights from that column on. Cells outside the grid have weight 0.
    """

    rows: NDArray[np.int64]
    weights: NDArray
    begins: NDArray[np.int64]
    beyond: NDArray[np.int64]
    mine: NDArray[np.bool_]
    inner: NDArray[np.bool_]
    left: int
    right: int
    ends: NDArray[np.int64]
    points: NDArray[np.int64]
    columns: NDArray[np.int64]
    along: NDArray


def make_lines(
    taps: Taps, mine: NDArray[np.bool_], grid: GridLayout, cut: Cut, interior: Box, dtype: np.dtype
) -> list[Lines]:
    """Return the lines of each shot, with all of their rows, also those in other layers.

    mine: (shot, point), True for the points that this layer records.
    """
    across, columns, along = taps.across, MARGIN + taps.indices[-1][..., 0], taps.factors[-1]
    *planes, row = np.moveaxis(across.cells, -1, 0)
    plane, row = (planes[0] if planes else np.zeros_like(row)) - cut.front, row - cut.top
    rows = grid.base + plane * grid.stride + row
    inner = (
        (plane >= interior.front)
        & (plane < interior.back)
        & (row >= interior.top)
        & (row < interior.bottom)
    )
    weighs = across.weights != 0
    begins = np.where(weighs, rows, rows.max()).min(axis=-1)
    beyond = np.where(weighs, rows, rows.min()).max(axis=-1) + 1
    found = []
    for shot in range(len(rows)):
        key = np.concatenate([rows[shot], across.weights[shot]], axis=-1)
        _, some, line = np.unique(key, axis=0, return_index=True, return_inverse=True)
        order = np.lexsort((columns[shot], line.ravel()))
        found.append(
            Lines(
                rows[shot, some],
                across.weights[shot, some].astype(dtype),
                begins[shot, some],
                beyond[shot, some],
                mine[shot, some],
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
    """Return the columns over which entries `first` to `last` - 1 of a line are spread.

    There must be at least one entry. The row of the result is always 0.
    """
    begin = lines.columns[first]
    return Cells(0, 1, begin, lines.columns[last - 1] + lines.along.shape[1] - begin)


@within_loops
def add_up(sent, values, lines, line):
    """Add up the values (point,) of a line in the row `sent`, and return the cells that are set."""
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

    scale: another factor, or None; rows: first row of the array, and the one after the last; sent:
    a row to work in.
    """
    for line in range(lines.rows.shape[0]):
        if lines.begins[line] < rows[1] and rows[0] < lines.beyond[line]:
            cells = add_up(sent, values, lines, line)
            for m in range(lines.rows.shape[1]):
                r, weight = lines.rows[line, m], lines.weights[line, m]
                if rows[0] <= r < rows[1] and weight != 0:
                    place = Cells(r, 1, cells.first, cells.n)
                    add_emitted(field, v2dt2, sent, place, weight, scale)


@within_loops
def drive(u, lines, values, scale, rows, sent, inner_only):
    """Add values (point,) times scale to u at the points, in some rows, like `inject`.

    With the source, u is the second difference in time over v2dt2 at its cells too. inner_only:
    True if only cells of the interior are changed.
    """
    for line in range(lines.rows.shape[0]):
        if lines.begins[line] < rows[1] and rows[0] < lines.beyond[line]:
            cells = add_up(sent, values, lines, line)
            first, last = cells.first, cells.first + cells.n
            if inner_only:
                first, last = max(first, lines.left), min(last, lines.right)
            for m in range(lines.rows.shape[1]):
                r, weight = lines.rows[line, m], lines.weights[line, m]
                here = rows[0] <= r < rows[1] and weight != 0
                if here and first < last and (lines.inner[line, m] or not inner_only):
                    add_spread(u, sent, Cells(r, 1, first, last - first), weight, scale)


@within_loops
def record(values, field, lines, scale, team, heard):
    """Set values (point,) to scale times the field at the points of this layer.

    Each thread of the team records a part of the points. heard: a row to work in.
    """
    n = values.shape[0]
    begin, end = n * team.rank // team.size, n * (team.rank + 1) // team.size
    for line in range(lines.rows.shape[0]):
        first, last = max(lines.ends[line], begin), min(lines.ends[line + 1], end)
        if first < last and lines.mine[line]:
            cells = cells_of_entries(lines, first, last)
            set_zero(heard, cells)
            for m in range(lines.rows.shape[1]):
                if lines.weights[line, m] != 0:
                    place = Cells(lines.rows[line, m], 1, cells.first, cells.n)
                    add_weighted(heard, field, place, lines.weights[line, m])
            for k in range(first, last):
                total = zero_of(field)
                for t in range(lines.along.shape[1]):
                    total += lines.along[k, t] * heard[lines.columns[k] + t]
                values[lines.points[k]] = total * scale
