"""Compiled time loops of the `cpu` engine: one shot, forwards or backwards in time.

Both loops have the same shape: relax the memory variables of the slabs at the top and bottom,
sweep the rows, inject, record. The backward loop is the transpose of the forward one, written
for q = v^2 dt^2 times the adjoint of p, so that it has the forward Laplacian; only the order of
the absorbing terms differs. The scheme itself is derived in docs/physics.md. Row arithmetic
is in `rows`; threads, allocation and torch are in `cpu`.

Layout: wavefields are (nz + 2 HALO, nx + 2 HALO); models, sums and kept fields have no halo. The
memory variables of an axis live on a *strip*: the two slabs side by side, each with HALO cells of
the interior that its derivatives reach, and HALO zeros around. A strip's profiles `a` are zero
outside the slabs, so cells of the strip that have wrong neighbours contribute nothing.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hpcfwi.wave.engines.rows import (
    HALO,
    absorb_backward,
    absorb_forward,
    add_product,
    add_second_difference,
    add_square,
    advance,
    correct,
    correct_ends,
    difference,
    load_strip,
    relax,
    relax_difference,
    relax_second_difference,
)

sweep_function = njit(nogil=True, cache=True, fastmath={"contract"})


class Scheme(NamedTuple):
    """The discrete equation of one shot, all arrays in the working precision.

    v2dt2: (nz, nx); radius: half the order; c_z, c_x, d_z, d_x: second and first differences
    per axis, index 0 to 4, padded with zeros; a_z, b_z, a_x, b_x: profiles on the strips;
    top, bottom, side: widths of the slabs in cells; free_surface: p = 0 on the first row.
    """

    v2dt2: NDArray
    radius: int
    c_z: NDArray
    c_x: NDArray
    d_z: NDArray
    d_x: NDArray
    a_z: NDArray
    b_z: NDArray
    a_x: NDArray
    b_x: NDArray
    top: int
    bottom: int
    side: int
    free_surface: bool


class Taps(NamedTuple):
    """Points between grid points, spread over some of them.

    All arrays are (point, tap).
    """

    rows: NDArray
    columns: NDArray
    weights: NDArray


class History(NamedTuple):
    """What the forward sweep leaves for the backward one: u[n] at n = offset, offset + interval...

    u = (p[n + 1] - 2 p[n] + p[n - 1]) / v2dt2, shape (samples, nz, nx); interval 0 keeps nothing.
    """

    u: NDArray
    interval: int
    offset: int


@sweep_function
def mirror(p):
    """Rows above the free surface are the negative of those below it."""
    for k in range(1, HALO + 1):
        for j in range(p.shape[1]):
            p[HALO - k, j] = -p[HALO + k, j]


@sweep_function
def strip_row(i, side, s):
    """Row of the z strip's arrays (halo included) for row i of the grid, or -1 where none."""
    if side == 0:
        return HALO + i if i < s.top + HALO else -1
    first = s.v2dt2.shape[0] - s.bottom - HALO
    return s.top + 2 * HALO + i - first if i >= first else -1


@sweep_function
def is_slab_row(i, side, s):
    return i < s.top if side == 0 else i >= s.v2dt2.shape[0] - s.bottom


@sweep_function
def inject(field, v2dt2, taps, values, scale):
    for k in range(values.shape[0]):
        for t in range(taps.weights.shape[1]):
            i, j = taps.rows[k, t], taps.columns[k, t]
            field[HALO + i, HALO + j] += v2dt2[i, j] * taps.weights[k, t] * values[k] * scale


@sweep_function
def record(values, field, taps, scale):
    for k in range(values.shape[0]):
        total = scale - scale
        for t in range(taps.weights.shape[1]):
            total += taps.weights[k, t] * field[HALO + taps.rows[k, t], HALO + taps.columns[k, t]]
        values[k] = total * scale


@sweep_function
def sweep_forward(s, source, receivers, wavelet, scale, traces, history, illumination):
    """Simulate one shot.

    wavelet: (time, 1); scale: 1 / cell volume; traces: (time, receiver), filled;
    history.u: filled; illumination: (nz, nx), the sum of the squared kept p, or (0, 0).
    """
    nz, nx = s.v2dt2.shape
    dtype = s.v2dt2.dtype
    one = dtype.type(1)
    cur = np.zeros((nz + 2 * HALO, nx + 2 * HALO), dtype)
    prev = np.zeros_like(cur)
    psi_x = np.zeros((nz, s.a_x.shape[0] + 2 * HALO), dtype)
    zeta_x = np.zeros_like(psi_x)
    psi_z = np.zeros((s.a_z.shape[0] + 2 * HALO, nx + 2 * HALO), dtype)
    zeta_z = np.zeros_like(psi_z)
    cut = np.zeros(psi_x.shape[1], dtype)
    extra_x = np.zeros(s.a_x.shape[0], dtype)
    extra_z = np.zeros(nx + 2 * HALO, dtype)
    scratch = np.zeros(nx, dtype)
    c0 = s.c_z[0] + s.c_x[0]

    for n in range(traces.shape[0] - 1):
        record(traces[n], cur, receivers, one)
        keep = history.interval > 0 and n % history.interval == history.offset
        for i in range(nz):
            for side in range(2):
                if is_slab_row(i, side, s):
                    k, r = strip_row(i, side, s), i + HALO
                    relax_difference(
                        psi_z[k], s.a_z[k - HALO], s.b_z[k - HALO], cur[r - 1], cur[r + 1],
                        cur[r - 2], cur[r + 2], cur[r - 3], cur[r + 3], cur[r - 4], cur[r + 4],
                        s.d_z,
                    )  # fmt: skip
        for i in range(nz):
            r = i + HALO
            v2dt2 = s.v2dt2[i]
            u = history.u[n // history.interval, i] if keep else scratch
            advance(u, prev, v2dt2, cur, r, s.radius, c0, s.c_z, s.c_x)
            for side in range(2):
                k = strip_row(i, side, s)
                if k >= 0:
                    difference(
                        extra_z, psi_z[k - 1], psi_z[k + 1], psi_z[k - 2], psi_z[k + 2],
                        psi_z[k - 3], psi_z[k + 3], psi_z[k - 4], psi_z[k + 4], s.d_z,
                    )  # fmt: skip
                    if is_slab_row(i, side, s):
                        relax_second_difference(
                            extra_z, zeta_z[k], s.a_z[k - HALO], s.b_z[k - HALO], cur[r],
                            cur[r - 1], cur[r + 1], cur[r - 2], cur[r + 2], cur[r - 3], cur[r + 3],
                            cur[r - 4], cur[r + 4], s.c_z,
                        )  # fmt: skip
                    correct(u, prev[r], v2dt2, extra_z)
            load_strip(cut, cur[r], s.side)
            absorb_forward(extra_x, cut, psi_x[i], zeta_x[i], s.a_x, s.b_x, s.d_x, s.c_x)
            correct_ends(u, prev[r], v2dt2, extra_x, s.side)
        if keep:
            for t in range(source.weights.shape[1]):
                history.u[n // history.interval, source.rows[0, t], source.columns[0, t]] += (
                    source.weights[0, t] * wavelet[n, 0] * scale
                )
            for i in range(illumination.shape[0]):
                add_square(illumination[i], cur[i + HALO])
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

    residual: (time, receiver); wavelet_gradient: (time, 1), filled; image: (nz, nx), the sum
    of q[n + 1] u[n] over the kept n, filled; illumination: (nz, nx), the sum
    of the squared q[n + 1] over the same n, filled.
    """
    nz, nx = s.v2dt2.shape
    dtype = s.v2dt2.dtype
    one = dtype.type(1)
    cur = np.zeros((nz + 2 * HALO, nx + 2 * HALO), dtype)
    prev = np.zeros_like(cur)
    phi_x = np.zeros((nz, s.a_x.shape[0] + 2 * HALO), dtype)
    zeta_x = np.zeros_like(phi_x)
    phi_z = np.zeros((s.a_z.shape[0] + 2 * HALO, nx + 2 * HALO), dtype)
    zeta_z = np.zeros_like(phi_z)
    cut = np.zeros(phi_x.shape[1], dtype)
    extra_x = np.zeros(s.a_x.shape[0], dtype)
    extra_z = np.zeros(nx + 2 * HALO, dtype)
    scratch = np.zeros(nx, dtype)
    c0 = s.c_z[0] + s.c_x[0]

    last = residual.shape[0] - 1
    inject(cur, s.v2dt2, receivers, residual[last], one)
    if s.free_surface:
        mirror(cur)
    for n in range(last - 1, -1, -1):
        record(wavelet_gradient[n], cur, source, scale)
        use = n % history.interval == history.offset
        for i in range(nz):
            for side in range(2):
                if is_slab_row(i, side, s):
                    k = strip_row(i, side, s)
                    relax(zeta_z[k], s.a_z[k - HALO], s.b_z[k - HALO], cur[i + HALO])
        for i in range(nz):
            for side in range(2):
                if is_slab_row(i, side, s):
                    k, r = strip_row(i, side, s), i + HALO
                    a, b = s.a_z[k - HALO], s.b_z[k - HALO]
                    relax_difference(
                        phi_z[k], a, b, cur[r - 1], cur[r + 1], cur[r - 2], cur[r + 2],
                        cur[r - 3], cur[r + 3], cur[r - 4], cur[r + 4], s.d_z,
                    )  # fmt: skip
                    relax_difference(
                        phi_z[k], a, one, zeta_z[k - 1], zeta_z[k + 1], zeta_z[k - 2],
                        zeta_z[k + 2], zeta_z[k - 3], zeta_z[k + 3], zeta_z[k - 4],
                        zeta_z[k + 4], s.d_z,
                    )  # fmt: skip
        for i in range(nz):
            r = i + HALO
            v2dt2 = s.v2dt2[i]
            advance(scratch, prev, v2dt2, cur, r, s.radius, c0, s.c_z, s.c_x)
            for side in range(2):
                k = strip_row(i, side, s)
                if k >= 0:
                    difference(
                        extra_z, phi_z[k - 1], phi_z[k + 1], phi_z[k - 2], phi_z[k + 2],
                        phi_z[k - 3], phi_z[k + 3], phi_z[k - 4], phi_z[k + 4], s.d_z,
                    )  # fmt: skip
                    add_second_difference(
                        extra_z, zeta_z[k], zeta_z[k - 1], zeta_z[k + 1], zeta_z[k - 2],
                        zeta_z[k + 2], zeta_z[k - 3], zeta_z[k + 3], zeta_z[k - 4],
                        zeta_z[k + 4], s.c_z,
                    )  # fmt: skip
                    correct(scratch, prev[r], v2dt2, extra_z)
            load_strip(cut, cur[r], s.side)
            absorb_backward(extra_x, cut, phi_x[i], zeta_x[i], s.a_x, s.b_x, s.d_x, s.c_x)
            correct_ends(scratch, prev[r], v2dt2, extra_x, s.side)
            if use:
                add_product(image[i], cur[r], history.u[n // history.interval, i])
                add_square(illumination[i], cur[r])
        inject(prev, s.v2dt2, receivers, residual[n], one)
        if s.free_surface:
            mirror(prev)
        prev, cur = cur, prev
