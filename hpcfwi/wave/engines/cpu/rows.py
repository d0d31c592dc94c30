"""Compiled row functions of the `cpu` engine: what happens along one row of the grid.

Columns are the `n` from `first` on, counted with the margin. Numba turns into good SIMD
instructions: loops over one row of two-dimensional arrays with unsigned indices, few arrays at a
time (it gives up where too many pairs might overlap), and stencils given as tuples, whose length
the compiler knows, so that it unrolls the sum. Entry m of a stencil belongs to the offsets m + 1
and -(m + 1). An axis across the rows is known by its stride: how many rows apart neighbours are.

Every array the size of the grid has the layout that `layout` describes. What calls
these is in `steps` and `sweeps`, what a row looks like when it is kept is in `packing`.
"""

import numpy as np
from numba import njit

HALO = 4
MARGIN = 8
# Cells of a SIMD loop: eight to a register in single precision, unrolled four times.
LANES = 32
# Rows whose sides are treated together.
BLOCK = 16

# Contraction lets the compiler fuse a multiplication and an addition; it may not reorder sums,
# so that a shot's bits depend on nothing but the shot.
row_function = njit(nogil=True, fastmath={"contract"})

# An index that cannot be negative need not be checked for counting from the end, which would keep
# a loop from becoming SIMD.
U = np.uint64


@row_function
def advance(prev, v2dt2, p, r, stride, first, n, u, c0, far, near, x):
    """u = second derivatives of p along row r; prev = 2 p - prev + v2dt2 u there.

    u: where to keep it, or None; near, x: second differences across neighbouring rows and along
    them; far: across rows `stride` apart, or None; c0: the sum of their weights at 0.
    """
    for j in range(U(first), U(first + n)):
        second = c0 * p[r, j]
        for m in range(len(x)):
            if far is not None:
                second += far[m] * (p[r - (1 + m) * stride, j] + p[r + (1 + m) * stride, j])
            second += near[m] * (p[r - 1 - m, j] + p[r + 1 + m, j])
            second += x[m] * (p[r, j - U(1 + m)] + p[r, j + U(1 + m)])
        if u is not None:
            u[r, j] = second
        prev[r, j] = (p[r, j] + p[r, j]) - prev[r, j] + v2dt2[r, j] * second


@row_function
def relax(memory, k, a, b, f, r, first, n):
    """Row k of memory = b memory + a times row r of f."""
    for j in range(U(first), U(first + n)):
        memory[k, j] = b * memory[k, j] + a * f[r, j]


@row_function
def relax_slope(memory, k, a, b, f, r, stride, first, n, d):
    """Row k of memory = b memory + a times the first derivative of f across row r."""
    for j in range(U(first), U(first + n)):
        slope = b * memory[k, j]
        for m in range(len(d)):
            slope += (a * d[m]) * (f[r + (1 + m) * stride, j] - f[r - (1 + m) * stride, j])
        memory[k, j] = slope


@row_function
def relax_slope_back(phi, zeta, k, step, a, b, q, r, stride, first, n, d):
    """Row k of phi = b phi + a times the first derivative of q + zeta across row r.

    step: rows from one neighbour to the next in phi and zeta, as `stride` in q.
    """
    for j in range(U(first), U(first + n)):
        slope = b * phi[k, j]
        for m in range(len(d)):
            slope += (a * d[m]) * (q[r + (1 + m) * stride, j] - q[r - (1 + m) * stride, j])
            slope += (a * d[m]) * (zeta[k + (1 + m) * step, j] - zeta[k - (1 + m) * step, j])
        phi[k, j] = slope


@row_function
def absorb(prev, v2dt2, p, r, stride, first, n, keeps, u, psi, zeta, k, step, a, b, c0, c, d):
    """Add the CPML terms across row r to prev, and to u if it keeps them.

    psi, zeta: memory variables, whose row k belongs to row r, with `step` rows from one
    neighbour to the next; c0, c: second difference; d: first difference.
    """
    for j in range(U(first), U(first + n)):
        second = c0 * p[r, j]
        slope = psi[k, j] - psi[k, j]
        for m in range(len(d)):
            second += c[m] * (p[r - (1 + m) * stride, j] + p[r + (1 + m) * stride, j])
            slope += d[m] * (psi[k + (1 + m) * step, j] - psi[k - (1 + m) * step, j])
        relaxed = b * zeta[k, j] + a * (second + slope)
        zeta[k, j] = relaxed
        prev[r, j] += v2dt2[r, j] * (slope + relaxed)
    if keeps:
        for j in range(U(first), U(first + n)):
            slope = psi[k, j] - psi[k, j]
            for m in range(len(d)):
                slope += d[m] * (psi[k + (1 + m) * step, j] - psi[k - (1 + m) * step, j])
            u[r, j] += slope + zeta[k, j]


@row_function
def absorb_back(prev, v2dt2, r, first, n, phi, zeta, k, step, c0, c, d):
    """Transpose of `absorb`, where phi and zeta have been relaxed already."""
    for j in range(U(first), U(first + n)):
        extra = c0 * zeta[k, j]
        for m in range(len(d)):
            extra += c[m] * (zeta[k - (1 + m) * step, j] + zeta[k + (1 + m) * step, j])
            extra += d[m] * (phi[k + (1 + m) * step, j] - phi[k - (1 + m) * step, j])
        prev[r, j] += v2dt2[r, j] * extra


@row_function
def gather_sides(sides, p, r, rows, nx, width, inside):
    """sides = the first and last `width` of the nx columns of p, from row r on, and the gaps.

    inside: whether the first and the last are in the window; zeros where they are not, as what
    is left there would otherwise feed on itself.
    """
    for i in range(rows):
        k = HALO + 2 * i * (width + HALO)
        for side in range(2):
            first = side * (nx - width) + MARGIN
            for j in range(width):
                sides[k + j] = p[r + i, first + j] if inside[side] else 0
            k += width
            for j in range(HALO):
                sides[k + j] = 0
            k += HALO


@row_function
def add_sides(prev, v2dt2, r, rows, nx, width, inside, keeps, u, sides):
    """Add `sides` where `gather_sides` takes them from: to u if it keeps them, and to prev."""
    for i in range(rows):
        k = HALO + 2 * i * (width + HALO)
        for side in range(2):
            first = side * (nx - width) + MARGIN
            if inside[side]:
                for j in range(width):
                    prev[r + i, first + j] += v2dt2[r + i, first + j] * sides[k + j]
                if keeps:
                    for j in range(width):
                        u[r + i, first + j] += sides[k + j]
            k += width + HALO


@row_function
def absorb_sides(sides, psi, zeta, k, a, b, x0, x, d):
    """From p at the sides of some rows to its CPML terms along them, in place."""
    for j in range(a.shape[0]):
        slope = b[j] * psi[k, j + 4]
        for m in range(len(d)):
            slope += (a[j] * d[m]) * (sides[j + 5 + m] - sides[j + 3 - m])
        psi[k, j + 4] = slope
    for j in range(a.shape[0]):
        second = x0 * sides[j + 4]
        for m in range(len(d)):
            second += x[m] * (sides[j + 5 + m] + sides[j + 3 - m])
            second += d[m] * (psi[k, j + 5 + m] - psi[k, j + 3 - m])
        zeta[k, j + 4] = b[j] * zeta[k, j + 4] + a[j] * second
    for j in range(a.shape[0]):
        extra = zeta[k, j + 4]
        for m in range(len(d)):
            extra += d[m] * (psi[k, j + 5 + m] - psi[k, j + 3 - m])
        sides[j + 4] = extra


@row_function
def absorb_sides_back(sides, phi, zeta, k, a, b, x0, x, d):
    """Transpose of `absorb_sides`."""
    for j in range(a.shape[0]):
        zeta[k, j + 4] = b[j] * zeta[k, j + 4] + a[j] * sides[j + 4]
    for j in range(a.shape[0]):
        slope = b[j] * phi[k, j + 4]
        for m in range(len(d)):
            slope += (a[j] * d[m]) * (sides[j + 5 + m] - sides[j + 3 - m])
            slope += (a[j] * d[m]) * (zeta[k, j + 5 + m] - zeta[k, j + 3 - m])
        phi[k, j + 4] = slope
    for j in range(a.shape[0]):
        extra = x0 * zeta[k, j + 4]
        for m in range(len(d)):
            extra += x[m] * (zeta[k, j + 5 + m] + zeta[k, j + 3 - m])
            extra += d[m] * (phi[k, j + 5 + m] - phi[k, j + 3 - m])
        sides[j + 4] = extra


@row_function
def add_square(total, r, first, n, p):
    """Row r of total gains p squared."""
    for j in range(U(first), U(first + n)):
        total[r, j] += p[r, j] * p[r, j]


@row_function
def add_product(total, r, first, n, p, u):
    """Row r of total gains p times u."""
    for j in range(U(first), U(first + n)):
        total[r, j] += p[r, j] * u[r, j]


@row_function
def count_nonzero(p, r, first, n):
    """How many cells of row r are not zero."""
    found = 0
    for j in range(U(first), U(first + n)):
        found += p[r, j] != 0
    return found
