"""Compiled row functions of the `cpu` engine: what happens along one row of the grid.

Every function works on one-dimensional rows and loops over `range(n)` with constant offsets,
which is the form that Numba turns into SIMD instructions. Rows of a wavefield carry `HALO`
cells at either end, whatever the order; `u`, `v2dt2` and sums have none. The time loops that
call these are in `sweeps`.
"""

from numba import njit

HALO = 4

# Contraction lets the compiler fuse a multiplication and an addition; it may not reorder sums,
# so that a shot's bits depend on nothing but the shot.
row_function = njit(nogil=True, cache=True, fastmath={"contract"})


@row_function
def advance_2(u, prev, v2dt2, p, m1, p1, c0, z, x):
    z1, x1 = z[1], x[1]
    for j in range(u.shape[0]):
        second = c0 * p[j + 4] + z1 * (m1[j + 4] + p1[j + 4]) + x1 * (p[j + 3] + p[j + 5])
        u[j] = second
        prev[j + 4] = (p[j + 4] + p[j + 4]) - prev[j + 4] + v2dt2[j] * second


@row_function
def advance_4(u, prev, v2dt2, p, m1, p1, m2, p2, c0, z, x):
    z1, z2, x1, x2 = z[1], z[2], x[1], x[2]
    for j in range(u.shape[0]):
        second = (
            c0 * p[j + 4]
            + z1 * (m1[j + 4] + p1[j + 4])
            + z2 * (m2[j + 4] + p2[j + 4])
            + x1 * (p[j + 3] + p[j + 5])
            + x2 * (p[j + 2] + p[j + 6])
        )
        u[j] = second
        prev[j + 4] = (p[j + 4] + p[j + 4]) - prev[j + 4] + v2dt2[j] * second


@row_function
def advance_6(u, prev, v2dt2, p, m1, p1, m2, p2, m3, p3, c0, z, x):
    z1, z2, z3, x1, x2, x3 = z[1], z[2], z[3], x[1], x[2], x[3]
    for j in range(u.shape[0]):
        second = (
            c0 * p[j + 4]
            + z1 * (m1[j + 4] + p1[j + 4])
            + z2 * (m2[j + 4] + p2[j + 4])
            + z3 * (m3[j + 4] + p3[j + 4])
            + x1 * (p[j + 3] + p[j + 5])
            + x2 * (p[j + 2] + p[j + 6])
            + x3 * (p[j + 1] + p[j + 7])
        )
        u[j] = second
        prev[j + 4] = (p[j + 4] + p[j + 4]) - prev[j + 4] + v2dt2[j] * second


@row_function
def advance_8(u, prev, v2dt2, p, m1, p1, m2, p2, m3, p3, m4, p4, c0, z, x):
    z1, z2, z3, z4, x1, x2, x3, x4 = z[1], z[2], z[3], z[4], x[1], x[2], x[3], x[4]
    for j in range(u.shape[0]):
        second = (
            c0 * p[j + 4]
            + z1 * (m1[j + 4] + p1[j + 4])
            + z2 * (m2[j + 4] + p2[j + 4])
            + z3 * (m3[j + 4] + p3[j + 4])
            + z4 * (m4[j + 4] + p4[j + 4])
            + x1 * (p[j + 3] + p[j + 5])
            + x2 * (p[j + 2] + p[j + 6])
            + x3 * (p[j + 1] + p[j + 7])
            + x4 * (p[j] + p[j + 8])
        )
        u[j] = second
        prev[j + 4] = (p[j + 4] + p[j + 4]) - prev[j + 4] + v2dt2[j] * second


@row_function
def advance(u, prev, v2dt2, p, i, radius, c0, z, x):
    """u = second derivatives of p along its row i; prev = 2 p - prev + v2dt2 u there.

    u and v2dt2 are the row's; prev and p are whole fields. c0 is z[0] + x[0].
    """
    if radius == 4:
        advance_8(
            u, prev[i], v2dt2, p[i], p[i - 1], p[i + 1], p[i - 2], p[i + 2],
            p[i - 3], p[i + 3], p[i - 4], p[i + 4], c0, z, x,
        )  # fmt: skip
    elif radius == 3:
        advance_6(
            u, prev[i], v2dt2, p[i], p[i - 1], p[i + 1], p[i - 2], p[i + 2],
            p[i - 3], p[i + 3], c0, z, x,
        )  # fmt: skip
    elif radius == 2:
        advance_4(u, prev[i], v2dt2, p[i], p[i - 1], p[i + 1], p[i - 2], p[i + 2], c0, z, x)
    else:
        advance_2(u, prev[i], v2dt2, p[i], p[i - 1], p[i + 1], c0, z, x)


@row_function
def correct(u, prev, v2dt2, extra):
    """What the boundary adds to u, and through it to prev, along a row."""
    for j in range(u.shape[0]):
        u[j] += extra[j + 4]
        prev[j + 4] += v2dt2[j] * extra[j + 4]


@row_function
def add_square(total, p):
    for j in range(total.shape[0]):
        total[j] += p[j + 4] * p[j + 4]


@row_function
def add_product(total, p, u):
    for j in range(total.shape[0]):
        total[j] += p[j + 4] * u[j]


@row_function
def relax(memory, a, b, f):
    for j in range(memory.shape[0]):
        memory[j] = b * memory[j] + a * f[j]


@row_function
def difference(out, m1, p1, m2, p2, m3, p3, m4, p4, d):
    """out = first derivative across rows; d is padded with zeros to order 8."""
    d1, d2, d3, d4 = d[1], d[2], d[3], d[4]
    for j in range(out.shape[0]):
        out[j] = (
            d1 * (p1[j] - m1[j])
            + d2 * (p2[j] - m2[j])
            + d3 * (p3[j] - m3[j])
            + d4 * (p4[j] - m4[j])
        )


@row_function
def relax_difference(memory, a, b, m1, p1, m2, p2, m3, p3, m4, p4, d):
    """memory = b memory + a times the first derivative across rows."""
    d1, d2, d3, d4 = a * d[1], a * d[2], a * d[3], a * d[4]
    for j in range(memory.shape[0]):
        memory[j] = (
            b * memory[j]
            + d1 * (p1[j] - m1[j])
            + d2 * (p2[j] - m2[j])
            + d3 * (p3[j] - m3[j])
            + d4 * (p4[j] - m4[j])
        )


@row_function
def relax_second_difference(extra, memory, a, b, p0, m1, p1, m2, p2, m3, p3, m4, p4, c):
    """memory = b memory + a (second derivative across rows + extra); extra gains memory."""
    c0, c1, c2, c3, c4 = c[0], c[1], c[2], c[3], c[4]
    for j in range(memory.shape[0]):
        second = (
            c0 * p0[j]
            + c1 * (p1[j] + m1[j])
            + c2 * (p2[j] + m2[j])
            + c3 * (p3[j] + m3[j])
            + c4 * (p4[j] + m4[j])
        )
        relaxed = b * memory[j] + a * (second + extra[j])
        memory[j] = relaxed
        extra[j] += relaxed


@row_function
def add_second_difference(out, p0, m1, p1, m2, p2, m3, p3, m4, p4, c):
    """out gains the second derivative across rows; c is padded with zeros to order 8."""
    c0, c1, c2, c3, c4 = c[0], c[1], c[2], c[3], c[4]
    for j in range(out.shape[0]):
        out[j] += (
            c0 * p0[j]
            + c1 * (p1[j] + m1[j])
            + c2 * (p2[j] + m2[j])
            + c3 * (p3[j] + m3[j])
            + c4 * (p4[j] + m4[j])
        )


@row_function
def load_strip(strip, p, width):
    """Copy the two ends of a row of the field, halo included, to the two ends of a strip."""
    end = width + 2 * HALO
    first = strip.shape[0] - end
    shift = p.shape[0] - strip.shape[0]
    for j in range(end):
        strip[j] = p[j]
    for j in range(first, strip.shape[0]):
        strip[j] = p[shift + j]


@row_function
def correct_ends(u, prev, v2dt2, extra, width):
    """`correct` at the two ends of a row, from a strip without its halo."""
    end = width + HALO
    first = extra.shape[0] - end
    shift = u.shape[0] - extra.shape[0]
    for j in range(end):
        u[j] += extra[j]
        prev[j + 4] += v2dt2[j] * extra[j]
    for j in range(first, extra.shape[0]):
        u[shift + j] += extra[j]
        prev[shift + j + 4] += v2dt2[shift + j] * extra[j]


@row_function
def absorb_forward(extra, p, psi, zeta, a, b, d, c):
    """Forward CPML terms along a strip: p, psi and zeta have a halo."""
    d1, d2, d3, d4 = d[1], d[2], d[3], d[4]
    c0, c1, c2, c3, c4 = c[0], c[1], c[2], c[3], c[4]
    for j in range(extra.shape[0]):
        psi[j + 4] = b[j] * psi[j + 4] + a[j] * (
            d1 * (p[j + 5] - p[j + 3])
            + d2 * (p[j + 6] - p[j + 2])
            + d3 * (p[j + 7] - p[j + 1])
            + d4 * (p[j + 8] - p[j])
        )
    for j in range(extra.shape[0]):
        slope = (
            d1 * (psi[j + 5] - psi[j + 3])
            + d2 * (psi[j + 6] - psi[j + 2])
            + d3 * (psi[j + 7] - psi[j + 1])
            + d4 * (psi[j + 8] - psi[j])
        )
        second = (
            c0 * p[j + 4]
            + c1 * (p[j + 5] + p[j + 3])
            + c2 * (p[j + 6] + p[j + 2])
            + c3 * (p[j + 7] + p[j + 1])
            + c4 * (p[j + 8] + p[j])
        )
        relaxed = b[j] * zeta[j + 4] + a[j] * (second + slope)
        zeta[j + 4] = relaxed
        extra[j] = slope + relaxed


@row_function
def absorb_backward(extra, q, phi, zeta, a, b, d, c):
    """Transpose of `absorb_forward`; q, phi and zeta have a halo, and q is overwritten."""
    d1, d2, d3, d4 = d[1], d[2], d[3], d[4]
    c0, c1, c2, c3, c4 = c[0], c[1], c[2], c[3], c[4]
    for j in range(extra.shape[0]):
        relaxed = b[j] * zeta[j + 4] + a[j] * q[j + 4]
        zeta[j + 4] = relaxed
        q[j + 4] += relaxed
    for j in range(extra.shape[0]):
        phi[j + 4] = b[j] * phi[j + 4] + a[j] * (
            d1 * (q[j + 5] - q[j + 3])
            + d2 * (q[j + 6] - q[j + 2])
            + d3 * (q[j + 7] - q[j + 1])
            + d4 * (q[j + 8] - q[j])
        )
    for j in range(extra.shape[0]):
        extra[j] = (
            d1 * (phi[j + 5] - phi[j + 3])
            + d2 * (phi[j + 6] - phi[j + 2])
            + d3 * (phi[j + 7] - phi[j + 1])
            + d4 * (phi[j + 8] - phi[j])
            + c0 * zeta[j + 4]
            + c1 * (zeta[j + 5] + zeta[j + 3])
            + c2 * (zeta[j + 6] + zeta[j + 2])
            + c3 * (zeta[j + 7] + zeta[j + 1])
            + c4 * (zeta[j + 8] + zeta[j])
        )
