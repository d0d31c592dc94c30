"""The part of the grid where a wave may be, and how threads share it; compiled.

Only there is anything computed, exactly (docs/decisions/012-windows.md). A window is a box whose
rows begin and end with whole blocks, as far as the grid goes, and columns with whole SIMD loops;
planes anywhere.
"""

import numpy as np
from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu.layout import BLOCK, LANES, MARGIN, Box, Grid, Tables
from hpcfwi.wave.engines.cpu.lines import Lines
from hpcfwi.wave.engines.cpu.rows import cells_of, count_nonzero, within_loops

# Steps for which a window holds, and cells by which it grows: at least those that a wave can cross
# in so many steps of order 8.
PATIENCE = 4
GROWTH = 32


@within_loops
def whole_of(grid: Grid) -> Box:
    """All of a grid."""
    return Box(0, grid.planes, 0, grid.rows, 0, grid.n)


@within_loops
def clamp(box: Box, window: Box) -> Box:
    """What of a box is in a window; where that is nothing, it is still a place in the window."""
    return Box(
        min(max(box.front, window.front), window.back),
        min(max(box.back, window.front), window.back),
        min(max(box.top, window.top), window.bottom),
        min(max(box.bottom, window.top), window.bottom),
        min(max(box.left, window.left), window.right),
        min(max(box.right, window.left), window.right),
    )


@within_loops
def holds_wave(grid, p, box):
    """Whether p is not zero somewhere in this box."""
    found = 0
    for plane in range(box.front, box.back):
        for row in range(box.top, box.bottom):
            found += count_nonzero(p, cells_of(grid, box, plane, row))
    return found > 0


@within_loops
def fit(grid, sides, box):
    """The window of this box: inside the grid, and with each side of it wholly or not at all.

    sides: cells at either end of a row that are treated together.
    """
    left = max(0, box.left) // LANES * LANES
    right = min(grid.n, -(-box.right // LANES) * LANES)
    return Box(
        max(0, box.front),
        min(grid.planes, box.back),
        max(0, box.top) // BLOCK * BLOCK,
        min(grid.rows, -(-box.bottom // BLOCK) * BLOCK),
        left if left >= sides else 0,
        right if right <= grid.nx - sides else grid.n,
    )


def make_windows(tables: Tables, sources: Lines, steps: int) -> NDArray[np.int64]:
    """The windows of so many steps, (time // PATIENCE, 6), of which only the first is known.

    It is around the cells where sources act.
    """
    grid, reach = tables.grid, 2 * tables.radius * PATIENCE
    reached = sources.rows[sources.weights != 0]
    planes, rows = np.divmod(reached - grid.base, grid.stride)
    columns = sources.columns - MARGIN
    around = Box(
        int(planes.min()) - reach,
        int(planes.max()) + 1 + reach,
        int(rows.min()) - reach,
        int(rows.max()) + 1 + reach,
        int(columns.min()) - reach,
        int(columns.max()) + sources.along.shape[1] + reach,
    )
    windows = np.zeros((steps // PATIENCE + 1, 6), np.int64)
    windows[0] = fit.py_func(grid, tables.sides.width, around)
    return windows


@within_loops
def widen(grid, sides, radius, window, p):
    """The window that p cannot leave within PATIENCE steps.

    A wave spreads by two stencil radii a step at most, and that in the absorbing cells only.
    """
    reach = 2 * radius * PATIENCE
    front, back, top, bottom, left, right = window
    near = Box(front, min(front + reach, back), top, bottom, left, right)
    if front > 0 and holds_wave(grid, p, near):
        front -= GROWTH
    far = Box(max(back - reach, max(front, 0)), back, top, bottom, left, right)
    if back < grid.planes and holds_wave(grid, p, far):
        back += GROWTH
    f, b = max(front, 0), min(back, grid.planes)
    upper = Box(f, b, top, min(top + reach, bottom), left, right)
    if top > 0 and holds_wave(grid, p, upper):
        top -= GROWTH
    lower = Box(f, b, max(bottom - reach, max(top, 0)), bottom, left, right)
    if bottom < grid.rows and holds_wave(grid, p, lower):
        bottom += GROWTH
    t, d = max(top, 0), min(bottom, grid.rows)
    before = Box(f, b, t, d, left, min(left + reach, right))
    if left > 0 and holds_wave(grid, p, before):
        left -= GROWTH
    behind = Box(f, b, t, d, max(right - reach, max(left, 0)), right)
    if right < grid.n and holds_wave(grid, p, behind):
        right += GROWTH
    return fit(grid, sides, Box(front, back, top, bottom, left, right))


@within_loops
def share(window, size, rank):
    """The part of a window that the thread `rank` of `size` computes, possibly empty.

    Planes where there are several, else blocks of rows.
    """
    front, back, top, bottom, left, right = window
    if back - front > 1:
        n = back - front
        return Box(front + n * rank // size, front + n * (rank + 1) // size, *window[2:])
    blocks = -(-(bottom - top) // BLOCK)
    begin = top + blocks * rank // size * BLOCK
    end = min(bottom, top + blocks * (rank + 1) // size * BLOCK)
    return Box(front, back, begin, end, left, right)
