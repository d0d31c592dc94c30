"""The part of the grid where a wave may be, and how threads share it; compiled.

Only there is anything computed, exactly (docs/decisions/012-windows.md).
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu.layout import Grid
from hpcfwi.wave.engines.cpu.rows import BLOCK, LANES, MARGIN, count_nonzero

window_function = njit(nogil=True)

# Steps for which a window holds, and cells by which it grows: at least those that a wave can cross
# in so many steps of order 8.
PATIENCE = 4
GROWTH = 32


class Window(NamedTuple):
    """A box of cells: along each axis from the first to before the last.

    Rows begin and end with whole blocks, as far as the grid goes, and columns with whole SIMD
    loops; planes anywhere.
    """

    front: int
    back: int
    top: int
    bottom: int
    left: int
    right: int


@window_function
def holds_wave(grid, p, front, back, top, bottom, left, right):
    """Whether p is not zero somewhere in this box."""
    found = 0
    for plane in range(front, back):
        start = grid.base + plane * grid.stride
        for r in range(start + top, start + bottom):
            found += count_nonzero(p, r, left + MARGIN, right - left)
    return found > 0


@window_function
def fit(grid, sides, front, back, top, bottom, left, right):
    """The window of this box: inside the grid, and with each side of it wholly or not at all.

    sides: cells at either end of a row that are treated together.
    """
    left = max(0, left) // LANES * LANES
    right = min(grid.n, -(-right // LANES) * LANES)
    return Window(
        max(0, front),
        min(grid.planes, back),
        max(0, top) // BLOCK * BLOCK,
        min(grid.rows, -(-bottom // BLOCK) * BLOCK),
        left if left >= sides else 0,
        right if right <= grid.nx - sides else grid.n,
    )


def first_window(
    grid: Grid, sides: int, radius: int, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> Window:
    """The window of the first steps, around the cells where a source acts.

    radius: of the stencil; rows, columns: of the array.
    """
    reach = 2 * radius * PATIENCE
    planes, rows_in = np.divmod(rows - grid.base, grid.stride)
    window: Window = fit.py_func(
        grid,
        sides,
        int(planes.min()) - reach,
        int(planes.max()) + 1 + reach,
        int(rows_in.min()) - reach,
        int(rows_in.max()) + 1 + reach,
        int(columns.min()) - MARGIN - reach,
        int(columns.max()) - MARGIN + 1 + reach,
    )
    return window


@window_function
def widen(grid, sides, radius, window, p):
    """The window that p cannot leave within PATIENCE steps.

    A wave spreads by two stencil radii a step at most, and that in the absorbing cells only.
    """
    reach = 2 * radius * PATIENCE
    front, back, top, bottom, left, right = window
    if front > 0 and holds_wave(grid, p, front, min(front + reach, back), top, bottom, left, right):
        front -= GROWTH
    if back < grid.planes and holds_wave(
        grid, p, max(back - reach, max(front, 0)), back, top, bottom, left, right
    ):
        back += GROWTH
    f, b = max(front, 0), min(back, grid.planes)
    if top > 0 and holds_wave(grid, p, f, b, top, min(top + reach, bottom), left, right):
        top -= GROWTH
    if bottom < grid.rows and holds_wave(
        grid, p, f, b, max(bottom - reach, max(top, 0)), bottom, left, right
    ):
        bottom += GROWTH
    t, d = max(top, 0), min(bottom, grid.rows)
    if left > 0 and holds_wave(grid, p, f, b, t, d, left, min(left + reach, right)):
        left -= GROWTH
    if right < grid.n and holds_wave(grid, p, f, b, t, d, max(right - reach, max(left, 0)), right):
        right += GROWTH
    return fit(grid, sides, front, back, top, bottom, left, right)


@window_function
def share(window, size, rank):
    """The part of a window that the thread `rank` of `size` computes, possibly empty.

    Planes where there are several, else blocks of rows.
    """
    front, back, top, bottom, left, right = window
    if back - front > 1:
        n = back - front
        return Window(front + n * rank // size, front + n * (rank + 1) // size, *window[2:])
    blocks = -(-(bottom - top) // BLOCK)
    begin = top + blocks * rank // size * BLOCK
    end = min(bottom, top + blocks * (rank + 1) // size * BLOCK)
    return Window(front, back, begin, end, left, right)
