"""Compiled time loops of the `cpu` engine: one shot, forwards or backwards in time.

Both loops have the same shape: relax the memory variables of the slabs at the top and bottom,
sweep the rows, inject, record. The backward loop is the transpose of the forward one, written
for q = v^2 dt^2 times the adjoint of p, so that it has the forward Laplacian; only the order of
the absorbing terms differs. The scheme itself is derived in docs/physics.md. Row arithmetic
is in `rows`; threads, allocation and torch are in `cpu`.

Arrays have the layout that `layout` describes.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hpcfwi.wave.engines.rows import (
    BLOCK,
    HALO,
    LANES,
    MARGIN,
    absorb,
    absorb_back,
    add_product,
    add_sides,
    add_square,
    advance,
    advance_back_in_slab,
    advance_in_slab,
    count_nonzero,
    gather_sides,
    relax,
    relax_slope,
    relax_slope_back,
)

sweep_function = njit(nogil=True, cache=True, fastmath={"contract"})

# Steps for which a window holds, and cells by which it grows: at least those that a wave can cross
# in so many steps of order 8.
PATIENCE = 4
GROWTH = 32


class Slab(NamedTuple):
    """Absorbing cells, and what their derivatives reach of the interior.

    first: its first row; a, b: the CPML's profiles, one value for each of its rows, none where
    nothing absorbs. a is zero in the interior.
    """

    first: int
    a: NDArray
    b: NDArray


class Sides(NamedTuple):
    """The absorbing cells at both ends of the rows, and what their derivatives reach.

    width: of one side; a, b: the CPML's profiles for the sides of one block of rows, as
    `layout.lay_out_sides` puts them; none where nothing absorbs.
    """

    width: int
    a: NDArray
    b: NDArray


class Scheme(NamedTuple):
    """The discrete equation of one shot, all numbers in the working precision.

    nz, nx: rows and columns of the grid; n: columns, up to a whole number of SIMD loops; v2dt2:
    field; z, x: second differences of each axis at the offsets 1 to order / 2; z0, x0: at 0;
    d_z, d_x: first differences at the offsets 1 to order / 2; free_surface: p = 0 on the first row.
    """

    nz: int
    nx: int
    n: int
    v2dt2: NDArray
    z0: np.floating
    z: tuple[np.floating, ...]
    d_z: tuple[np.floating, ...]
    x0: np.floating
    x: tuple[np.floating, ...]
    d_x: tuple[np.floating, ...]
    top: Slab
    bottom: Slab
    sides: Sides
    free_surface: bool


class Taps(NamedTuple):
    """Points between grid points, spread over some of them; all arrays are (point, tap)."""

    rows: NDArray
    columns: NDArray
    weights: NDArray


class Window(NamedTuple):
    """The part of the grid where a wave may be: rows and columns from `top`, `left` to before
    `bottom`, `right`.

    Rows in whole blocks, as far as the grid goes, and columns in whole SIMD loops.
    """

    top: int
    bottom: int
    left: int
    right: int


class History(NamedTuple):
    """What the forward sweep leaves for the backward one: u[n] at n = offset, offset + interval...

    u = (p[n + 1] - 2 p[n] + p[n - 1]) / v2dt2, (sample, row, column), in the window of its step;
    interval 0 keeps nothing; windows: (time // PATIENCE, 4), the window of each step.
    """

    u: NDArray
    interval: int
    offset: int
    windows: NDArray


@sweep_function
def holds_wave(p, top, bottom, left, right):
    """Whether p is not zero somewhere in these rows and columns."""
    found = 0
    for i in range(top, bottom):
        found += count_nonzero(p, i + HALO, left + MARGIN, right - left)
    return found > 0


@sweep_function
def whole_sides(s, top, bottom, left, right):
    """A window that holds each side of the grid wholly or not at all, and no rows outside."""
    if left < s.sides.width:
        left = 0
    if right > s.nx - s.sides.width:
        right = s.n
    return Window(top, min(s.nz, bottom), left, right)


@sweep_function
def first_window(s, source):
    """The window of the first steps, around the source."""
    reach = 2 * len(s.d_z) * PATIENCE
    top = max(0, source.rows.min() - reach) // BLOCK * BLOCK
    left = max(0, source.columns.min() - reach) // LANES * LANES
    bottom = -(-(source.rows.max() + 1 + reach) // BLOCK) * BLOCK
    right = -(-(source.columns.max() + 1 + reach) // LANES) * LANES
    return whole_sides(s, top, bottom, left, right)


@sweep_function
def widen(window, s, p):
    """The window that p cannot leave within PATIENCE steps.

    A wave spreads by two stencil radii a step at most, and that in the absorbing cells only.
    """
    reach, (top, bottom, left, right) = 2 * len(s.d_z) * PATIENCE, window
    if top > 0 and holds_wave(p, top, min(top + reach, bottom), left, right):
        top = max(0, top - GROWTH)
    if bottom < s.nz and holds_wave(p, max(bottom - reach, top), bottom, left, right):
        bottom = min(s.nz, bottom + GROWTH)
    if left > 0 and holds_wave(p, top, bottom, left, min(left + reach, right)):
        left = max(0, left - GROWTH)
    if right < s.n and holds_wave(p, top, bottom, max(right - reach, left), right):
        right = min(s.n, right + GROWTH)
    return whole_sides(s, top, bottom, left, right)


@sweep_function
def mirror(p):
    """Rows above the free surface are the negative of those below it."""
    for k in range(1, HALO + 1):
        for j in range(p.shape[1]):
            p[HALO - k, j] = -p[HALO + k, j]


@sweep_function
def inject(field, v2dt2, taps, values, scale):
    """Add values (point,) times v2dt2 and scale to the field at the points."""
    for k in range(values.shape[0]):
        for t in range(taps.weights.shape[1]):
            r, c = HALO + taps.rows[k, t], MARGIN + taps.columns[k, t]
            field[r, c] += v2dt2[r, c] * taps.weights[k, t] * values[k] * scale


@sweep_function
def record(values, field, taps, scale):
    """values (point,) = scale times the field at the points."""
    for k in range(values.shape[0]):
        total = scale - scale
        for t in range(taps.weights.shape[1]):
            r, c = HALO + taps.rows[k, t], MARGIN + taps.columns[k, t]
            total += taps.weights[k, t] * field[r, c]
        values[k] = total * scale


@sweep_function
def make_memory(s):
    """Two memory variables for each of: the slab at the top, the one at the bottom, the sides."""
    dtype = s.v2dt2.dtype
    top = (s.top.a.size + 2 * HALO, s.v2dt2.shape[1])
    bottom = (s.bottom.a.size + 2 * HALO, s.v2dt2.shape[1])
    sides = (-(-s.nz // BLOCK), s.sides.a.size + 2 * HALO)
    return (
        (np.zeros(top, dtype), np.zeros(top, dtype)),
        (np.zeros(bottom, dtype), np.zeros(bottom, dtype)),
        (np.zeros(sides, dtype), np.zeros(sides, dtype)),
        np.zeros(s.sides.a.size + 2 * HALO, dtype),
    )


@sweep_function
def in_window(slab, window):
    """Which rows of a slab are in the window: from, to before."""
    return max(0, window.top - slab.first), min(slab.a.size, window.bottom - slab.first)


@sweep_function
def sides_in(s, window):
    """Whether the left and the right side of the grid are in the window."""
    return window.left == 0 and s.sides.width > 0, window.right == s.n and s.sides.width > 0


@sweep_function
def step_forward(s, cur, prev, memory, window, u):
    """prev = the field after cur, without sources; u: where to keep its derivatives, or None."""
    c0, first, n = s.z0 + s.x0, window.left + MARGIN, window.right - window.left
    inside = sides_in(s, window)
    (psi_t, zeta_t), (psi_b, zeta_b), (psi_s, zeta_s), sides = memory
    for slab, psi in ((s.top, psi_t), (s.bottom, psi_b)):
        for k in range(*in_window(slab, window)):
            r = HALO + slab.first + k
            relax_slope(psi, k + HALO, slab.a[k], slab.b[k], cur, r, first, n, s.d_z)
    for start in range(window.top, window.bottom, BLOCK):
        rows = min(BLOCK, window.bottom - start)
        for i in range(start, start + rows):
            r, k = i + HALO, i - s.bottom.first
            if i < s.top.a.size:
                advance_in_slab(
                    prev, s.v2dt2, cur, r, first, n, u, psi_t, zeta_t, r,
                    s.top.a[i], s.top.b[i], s.z0, s.z, s.x0, s.x, s.d_z,
                )  # fmt: skip
            elif k >= 0:
                advance_in_slab(
                    prev, s.v2dt2, cur, r, first, n, u, psi_b, zeta_b, k + HALO,
                    s.bottom.a[k], s.bottom.b[k], s.z0, s.z, s.x0, s.x, s.d_z,
                )  # fmt: skip
            else:
                advance(prev, s.v2dt2, cur, r, first, n, u, c0, s.z, s.x)
        if inside[0] or inside[1]:
            block = (start + HALO, rows, s.nx, s.sides.width, inside)
            gather_sides(sides, cur, *block)
            k = start // BLOCK
            absorb(sides, psi_s, zeta_s, k, s.sides.a, s.sides.b, s.x0, s.x, s.d_x)
            add_sides(prev, s.v2dt2, *block, u, sides)


@sweep_function
def step_backward(s, cur, prev, memory, window):
    """Transpose of `step_forward`: prev = the field before cur."""
    c0, first, n = s.z0 + s.x0, window.left + MARGIN, window.right - window.left
    inside = sides_in(s, window)
    (phi_t, zeta_t), (phi_b, zeta_b), (phi_s, zeta_s), sides = memory
    for slab, phi, zeta in ((s.top, phi_t, zeta_t), (s.bottom, phi_b, zeta_b)):
        begin, end = in_window(slab, window)
        for k in range(begin, end):
            r = HALO + slab.first + k
            relax(zeta, k + HALO, slab.a[k], slab.b[k], cur, r, first, n)
        for k in range(begin, end):
            r = HALO + slab.first + k
            relax_slope_back(phi, zeta, k + HALO, slab.a[k], slab.b[k], cur, r, first, n, s.d_z)
    for start in range(window.top, window.bottom, BLOCK):
        rows = min(BLOCK, window.bottom - start)
        for i in range(start, start + rows):
            r, k = i + HALO, i - s.bottom.first
            if i < s.top.a.size:
                advance_back_in_slab(
                    prev, s.v2dt2, cur, r, first, n, phi_t, zeta_t, r,
                    c0, s.z, s.x, s.z0, s.d_z,
                )  # fmt: skip
            elif k >= 0:
                advance_back_in_slab(
                    prev, s.v2dt2, cur, r, first, n, phi_b, zeta_b, k + HALO,
                    c0, s.z, s.x, s.z0, s.d_z,
                )  # fmt: skip
            else:
                advance(prev, s.v2dt2, cur, r, first, n, None, c0, s.z, s.x)
        if inside[0] or inside[1]:
            block = (start + HALO, rows, s.nx, s.sides.width, inside)
            gather_sides(sides, cur, *block)
            k = start // BLOCK
            absorb_back(sides, phi_s, zeta_s, k, s.sides.a, s.sides.b, s.x0, s.x, s.d_x)
            add_sides(prev, s.v2dt2, *block, None, sides)


@sweep_function
def add_squares(total, window, p):
    """total gains p squared in the window."""
    for i in range(window.top, window.bottom):
        add_square(total, i + HALO, window.left + MARGIN, window.right - window.left, p)


@sweep_function
def add_products(total, window, p, u):
    """total gains p times u in the window."""
    for i in range(window.top, window.bottom):
        add_product(total, i + HALO, window.left + MARGIN, window.right - window.left, p, u)


@sweep_function
def sweep_forward(s, source, receivers, wavelet, scale, traces, history, illumination):
    """Simulate one shot.

    wavelet: (time, 1); scale: 1 / cell volume; traces: (time, receiver), filled;
    history: filled; illumination: field, gains the sum of the squared kept p, or one without rows.
    """
    one = s.v2dt2.dtype.type(1)
    cur = np.zeros(s.v2dt2.shape, s.v2dt2.dtype)
    prev = np.zeros_like(cur)
    memory = make_memory(s)
    window = first_window(s, source)
    for n in range(traces.shape[0] - 1):
        record(traces[n], cur, receivers, one)
        if n % PATIENCE == 0:
            window = widen(window, s, cur)
            history.windows[n // PATIENCE] = window
        if history.interval > 0 and n % history.interval == history.offset:
            u = history.u[n // history.interval]
            step_forward(s, cur, prev, memory, window, u)
            for t in range(source.weights.shape[1]):
                u[HALO + source.rows[0, t], MARGIN + source.columns[0, t]] += (
                    source.weights[0, t] * wavelet[n, 0] * scale
                )
            if illumination.shape[0] > 0:
                add_squares(illumination, window, cur)
        else:
            step_forward(s, cur, prev, memory, window, None)
        inject(prev, s.v2dt2, source, wavelet[n], scale)
        if s.free_surface:
            mirror(prev)
        prev, cur = cur, prev
    record(traces[-1], cur, receivers, one)


@sweep_function
def sweep_backward(
    s, source, receivers, residual, scale, wavelet_gradient, history, image, illumination
):
    """Transpose of `sweep_forward`, from the gradient with respect to the traces.

    residual: (time, receiver); wavelet_gradient: (time, 1), filled; image: field, gains the sum
    of q[n + 1] u[n] over the kept n; illumination: field, gains the sum of the squared q[n + 1]
    over the same n, or one without rows.

    Without an illumination, q is found where p is not zero, and has leftovers elsewhere: what
    they spoil has no weight, as p depends on nothing that lies where it is zero.
    """
    one = s.v2dt2.dtype.type(1)
    cur = np.zeros(s.v2dt2.shape, s.v2dt2.dtype)
    prev = np.zeros_like(cur)
    memory = make_memory(s)
    whole = Window(0, s.nz, 0, s.n)
    illuminates = illumination.shape[0] > 0
    last = residual.shape[0] - 1
    inject(cur, s.v2dt2, receivers, residual[last], one)
    if s.free_surface:
        mirror(cur)
    for n in range(last - 1, -1, -1):
        record(wavelet_gradient[n], cur, source, scale)
        top, bottom, left, right = history.windows[n // PATIENCE]
        window = Window(top, bottom, left, right)
        step_backward(s, cur, prev, memory, whole if illuminates else window)
        if n % history.interval == history.offset:
            u = history.u[n // history.interval]
            add_products(image, window, cur, u)
            if illuminates:
                add_squares(illumination, whole, cur)
        inject(prev, s.v2dt2, receivers, residual[n], one)
        if s.free_surface:
            mirror(prev)
        prev, cur = cur, prev
