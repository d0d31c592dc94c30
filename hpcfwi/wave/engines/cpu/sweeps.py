"""Compiled time loops of the `cpu` engine: one shot, forwards or backwards in time.

Both have the same shape: step, inject, record, keep or use what was kept. The backward loop is the
transpose of the forward one. Steps are in `steps`, where the wave may be in `windows`, kept fields
in `packing`; threads and allocation are in `shot`.

Arrays have the layout that `layout` describes. Several threads may run the same loop of the same
shot, each with its share of every window: they meet before they read what others have written.
"""

from typing import NamedTuple

from numba import njit
from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu.layout import Grid
from hpcfwi.wave.engines.cpu.packing import Frame, Store, pack_frame, unpack_frame
from hpcfwi.wave.engines.cpu.rows import HALO, MARGIN, add_product, add_square
from hpcfwi.wave.engines.cpu.steps import rebuild, step_backward, step_forward
from hpcfwi.wave.engines.cpu.team import meet
from hpcfwi.wave.engines.cpu.windows import PATIENCE, Window, share, widen

sweep_function = njit(nogil=True, fastmath={"contract"})
# `disk` keeps the two loops that are called from outside, with all that they call. Numba compiles
# them anew when this file changes; this number changes with the others, as tests see to.
EDITION = "8f6be0aa8645352e"


class History(NamedTuple):
    """What the forward sweep leaves for the backward one, of the steps n = offset, offset +
    interval...: u = (p[n + 1] - 2 p[n] + p[n - 1]) / v2dt2.

    interval: 0 keeps nothing; first: number of the sample that is entry 0 of the store; u: a field
    to work in; samples: the store; frame: what it has of a field; windows: (time // PATIENCE, 6),
    the window of each step, of which the first is known; explores: whether the forward sweep finds
    the others; keeps: whether it keeps u.
    """

    interval: int
    offset: int
    first: int
    u: NDArray
    samples: Store
    frame: Frame
    windows: NDArray
    explores: bool
    keeps: bool


class Rebuilding(NamedTuple):
    """What the interior of p is rebuilt from, backwards in time.

    active: whether it is; rim: of each step, the cells around the interior that its stencils
    reach; frame: those cells; interior: where p is rebuilt; waves: as in `Fields`, at the last
    step.
    """

    active: bool
    rim: Store
    frame: Frame
    interior: Window
    waves: NDArray


@sweep_function
def window_at(history, n):
    """The window of step n, once it is known."""
    front, back, top, bottom, left, right = history.windows[n // PATIENCE]
    return Window(front, back, top, bottom, left, right)


@sweep_function
def whole_of(grid: Grid) -> Window:
    """The window that is the whole grid."""
    return Window(0, grid.planes, 0, grid.rows, 0, grid.n)


@sweep_function
def reflect(s, p, team):
    """Above a free surface, p is the negative of what is below it."""
    stride, rows = s.depth
    if stride > 0:
        meet(team)
        if team.rank == 0:
            for k in range(1, HALO + 1):
                for r in range(s.grid.base, s.grid.base + rows):
                    for j in range(p.shape[1]):
                        p[r - k * stride, j] = -p[r + k * stride, j]


@sweep_function
def rows_of(grid, part):
    """The rows of the array from the first to before the last of a part of the grid."""
    first = grid.base + part.top
    return first + part.front * grid.stride, first + (part.back - 1) * grid.stride + (
        part.bottom - part.top
    )


@sweep_function
def inject(s, field, taps, values, scale, part):
    """Add values (point,) times v2dt2 and scale to the field at the points, in some rows."""
    begin, end = rows_of(s.grid, part)
    for k in range(values.shape[0]):
        for t in range(taps.weights.shape[1]):
            r, c = taps.rows[k, t], taps.columns[k, t]
            if begin <= r < end:
                field[r, c] += s.v2dt2[r, c] * taps.weights[k, t] * values[k] * scale


@sweep_function
def drive(s, u, taps, values, scale, part, inner_only):
    """Add values (point,) times scale to u at the points, in some rows."""
    begin, end = rows_of(s.grid, part)
    for k in range(values.shape[0]):
        for t in range(taps.weights.shape[1]):
            r, c = taps.rows[k, t], taps.columns[k, t]
            if begin <= r < end and (taps.inner[k, t] or not inner_only):
                u[r, c] += taps.weights[k, t] * values[k] * scale


@sweep_function
def record(values, field, taps, scale, team):
    """values (point,) = scale times the field at the points; every thread a share of them."""
    n = values.shape[0]
    for k in range(n * team.rank // team.size, n * (team.rank + 1) // team.size):
        total = scale - scale
        for t in range(taps.weights.shape[1]):
            total += taps.weights[k, t] * field[taps.rows[k, t], taps.columns[k, t]]
        values[k] = total * scale


@sweep_function
def add_squares(grid, total, part, p):
    """total gains p squared."""
    for plane in range(part.front, part.back):
        start = grid.base + plane * grid.stride
        for r in range(start + part.top, start + part.bottom):
            add_square(total, r, part.left + MARGIN, part.right - part.left, p)


@sweep_function
def add_products(grid, total, part, p, u):
    """total gains p times u."""
    for plane in range(part.front, part.back):
        start = grid.base + plane * grid.stride
        for r in range(start + part.top, start + part.bottom):
            add_product(total, r, part.left + MARGIN, part.right - part.left, p, u)


@sweep_function
def sweep_forward(
    s, fields, span, source, receivers, wavelet, scale, traces, history, rebuilding, energy, team
):
    """Simulate one shot over a span of steps: from, to before.

    wavelet: (time, 1); scale: 1 / cell volume; traces: (time, receiver), filled;
    history: filled; rebuilding: its rim is filled where it is active; energy: field, gains the sum
    of the squared sampled p, or one without rows.
    """
    one = s.v2dt2.dtype.type(1)
    whole = whole_of(s.grid)
    mine = share(whole, team.size, team.rank)
    window = window_at(history, max(0, span[0] - 1))
    for n in range(span[0], span[1]):
        p, prev = fields.waves[n % 2], fields.waves[(n + 1) % 2]
        record(traces[n], p, receivers, one, team)
        if n % PATIENCE == 0 and n > 0:
            if history.explores:
                window = widen(s.grid, s.sides.width, len(s.x), window, p)
                if team.rank == 0:
                    history.windows[n // PATIENCE] = window
            else:
                window = window_at(history, n)
        part = share(window, team.size, team.rank)
        if rebuilding.active:
            pack_frame(rebuilding.rim, n, rebuilding.frame, whole, s.grid, mine, p)
        sampled = history.interval > 0 and n % history.interval == history.offset
        if sampled and energy.shape[0] > 0:
            add_squares(s.grid, energy, part, p)
        keeps = sampled and history.keeps
        step_forward(s, fields, n, part, keeps, history.u, team)
        if keeps:
            drive(s, history.u, source, wavelet[n], scale, part, False)
            k = n // history.interval - history.first
            pack_frame(history.samples, k, history.frame, window, s.grid, part, history.u)
        inject(s, prev, source, wavelet[n], scale, part)
        reflect(s, prev, team)
        meet(team)
    if span[1] == traces.shape[0] - 1:
        record(traces[span[1]], fields.waves[span[1] % 2], receivers, one, team)


@sweep_function
def sweep_backward(
    s, fields, span, source, receivers, wavelet, residual, scale, wavelet_gradient, history,
    rebuilding, image, energy, team,
):  # fmt: skip
    """Transpose of `sweep_forward`, from the gradient with respect to the traces.

    residual: (time, receiver); wavelet_gradient: (time, 1), filled; image: field, gains the sum
    of q[n + 1] u[n] over the sampled n; energy: field, gains the sum of the squared q[n + 1]
    over the same n, or one without rows.

    Without an energy, q is found where p is not zero, and has leftovers elsewhere: what
    they spoil has no weight, as p depends on nothing that lies where it is zero. A p that is
    rebuilt is not quite zero there, and q is found everywhere. A thread adds residuals to the cells
    that it has itself stepped, as others may not have come to theirs.
    """
    one = s.v2dt2.dtype.type(1)
    whole = whole_of(s.grid)
    mine = share(whole, team.size, team.rank)
    last = residual.shape[0] - 1
    if span[1] == last:
        inject(s, fields.waves[last % 2], receivers, residual[last], one, mine)
        reflect(s, fields.waves[last % 2], team)
        meet(team)
    for n in range(span[1] - 1, span[0] - 1, -1):
        q, prev = fields.waves[(n + 1) % 2], fields.waves[n % 2]
        record(wavelet_gradient[n], q, source, scale, team)
        window = window_at(history, n)
        part = share(window, team.size, team.rank)
        wide = mine if energy.shape[0] > 0 or rebuilding.active else part
        step_backward(s, fields, n + 1, wide, team)
        sampled = n % history.interval == history.offset
        u = history.u
        if sampled:
            k = n // history.interval - history.first
            unpack_frame(history.samples, k, history.frame, window, s.grid, part, u)
        if rebuilding.active:
            now, earlier = rebuilding.waves[n % 2], rebuilding.waves[(n + 1) % 2]
            unpack_frame(rebuilding.rim, n, rebuilding.frame, whole, s.grid, mine, now)
            meet(team)
            rebuild(s, rebuilding.waves, n, part, rebuilding.interior, sampled, u)
            if sampled:
                drive(s, u, source, wavelet[n], scale, part, True)
            inject(s, earlier, source, wavelet[n], scale, part)
            reflect(s, earlier, team)
        if sampled:
            add_products(s.grid, image, part, q, u)
            if energy.shape[0] > 0:
                add_squares(s.grid, energy, mine, q)
        inject(s, prev, receivers, residual[n], one, wide)
        reflect(s, prev, team)
        meet(team)
