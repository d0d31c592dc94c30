"""Sources and receivers of the `cpu` engine, line by line; compiled.

Points that differ along the rows alone, as those at one depth do, make a line. What they emit is
first added up along the line, and that once added to each of the rows over which they are spread;
what they hear comes the other way. So points between grid points take little more time than points
on them. When they act is in `sweeps`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu.layout import MARGIN, Box, Grid
from hpcfwi.wave.engines.cpu.rows import (
    Cells,
    add_emitted,
    add_spread,
    add_weighted,
    set_zero,
    within_loops,
    zero_of,
)
from hpcfwi.wave.points import Taps


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
    """Whether a line has cells in some rows of the array."""
    found = False
    for r in lines.rows[line]:
        found = found or rows[0] <= r < rows[1]
    return found
