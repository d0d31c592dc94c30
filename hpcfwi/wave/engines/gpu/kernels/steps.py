"""The field's next step: `relax` (memory variables of the absorbing slabs), then `advance`.

The same kernels go backwards in time: only the order of the absorbing terms differs
(docs/physics.md).
"""

# Constants of the compiler are written large, as Triton's own are. A condition on them stands
# alone, so that what it excludes is not compiled.
# ruff: noqa: N803, SIM102

import triton
import triton.language as tl

# Columns of the table of slabs, which has a row for each of the axes z, y, x.
BEFORE = tl.constexpr(0)  # cells of the slab before the model
WIDTH = tl.constexpr(1)  # cells of both slabs
POINTS = tl.constexpr(2)  # of the axis
STRIDE = tl.constexpr(3)  # from one cell of a field to the next
FIRST = tl.constexpr(4)  # place of the axis's first memory variable
STRIDE_Z = tl.constexpr(5)  # from one memory variable to the next, along each axis
STRIDE_Y = tl.constexpr(6)
STRIDE_X = tl.constexpr(7)
PROFILE = tl.constexpr(8)  # the axis's first value in the profiles
COLUMNS = tl.constexpr(9)

# What is computed: see `advance`.
INTERIOR = tl.constexpr(0)
FORWARDS = tl.constexpr(1)
BACKWARDS = tl.constexpr(2)

# Arguments that Triton would compile a kernel again for, whenever they are a multiple of 16.
SIZES = [
    "shots", "size", "origin", "n_z", "n_y", "n_x", "stride_z", "stride_y", "lo_z", "lo_y",
    "lo_x", "hi_z", "hi_y", "hi_x", "memory_size", "tiles_y", "tiles_x",
]  # fmt: skip


@triton.jit
def symmetric(at, stride, weights, mask, RADIUS: tl.constexpr):
    """Sum of weights[m] times the values m cells before and after those at the pointers `at`.

    m from 1 to RADIUS; stride: from one cell to the next.
    """
    total = tl.load(weights + 1) * (
        tl.load(at - stride, mask, 0.0) + tl.load(at + stride, mask, 0.0)
    )
    for m in tl.static_range(2, RADIUS + 1):
        total += tl.load(weights + m) * (
            tl.load(at - m * stride, mask, 0.0) + tl.load(at + m * stride, mask, 0.0)
        )
    return total


@triton.jit
def antisymmetric(at, stride, weights, mask, RADIUS: tl.constexpr):
    """The same for those after less those before, with the weights after those of `symmetric`."""
    total = tl.load(weights + RADIUS + 1) * (
        tl.load(at + stride, mask, 0.0) - tl.load(at - stride, mask, 0.0)
    )
    for m in tl.static_range(2, RADIUS + 1):
        total += tl.load(weights + RADIUS + m) * (
            tl.load(at + m * stride, mask, 0.0) - tl.load(at - m * stride, mask, 0.0)
        )
    return total


@triton.jit
def absorb(
    total, at, first, second, a, b, z, y, x, lo, hi, slabs, weights, mask,
    AXIS: tl.constexpr, MODE: tl.constexpr, RADIUS: tl.constexpr,
):  # fmt: skip
    """total and the absorbing terms of one axis, where there are any: within RADIUS of its slabs.

    first, second: the memory variables psi and zeta forwards, phi and the relaxed zeta backwards.
    """
    slab = slabs + AXIS * COLUMNS
    step = tl.load(slab + STRIDE_Z + AXIS)
    n = tl.load(slab + POINTS)
    beyond = tl.load(slab + WIDTH) + 3 * RADIUS - n
    if AXIS == 0:
        c = z
        z += tl.where(z < lo, RADIUS, beyond)
    elif AXIS == 1:
        c = y
        y += tl.where(y < lo, RADIUS, beyond)
    else:
        c = x
        x += tl.where(x < lo, RADIUS, beyond)
    near = ((c < lo) | (c >= hi)) & (c < n)
    place = (
        tl.load(slab + FIRST)
        + z * tl.load(slab + STRIDE_Z)
        + y * tl.load(slab + STRIDE_Y)
        + x * tl.load(slab + STRIDE_X)
    )
    mask = mask & near
    weights += AXIS * (2 * RADIUS + 1)
    slope = antisymmetric(first + place, step, weights, mask, RADIUS)
    if MODE == FORWARDS:
        profile = tl.load(slab + PROFILE) + RADIUS + c
        stride = tl.load(slab + STRIDE)
        w = tl.load(weights) * tl.load(at, mask, 0.0)
        w += symmetric(at, stride, weights, mask, RADIUS) + slope
        relaxed = tl.load(b + profile, near, 0.0) * tl.load(second + place, mask, 0.0)
        relaxed += tl.load(a + profile, near, 0.0) * w
        tl.store(second + place, relaxed, mask)
    else:
        relaxed = tl.load(weights) * tl.load(second + place, mask, 0.0)
        relaxed += symmetric(second + place, step, weights, mask, RADIUS)
    return total + (slope + relaxed)


@triton.jit(do_not_specialize=SIZES)
def advance(
    new, cur, v2dt2, u, first, second, a, b, weights, slabs, tiles,
    shots, size, origin, n_z, n_y, n_x, stride_z, stride_y, memory_size,
    lo_z, lo_y, lo_x, hi_z, hi_y, hi_x, tiles_y, tiles_x,
    NDIM: tl.constexpr, RADIUS: tl.constexpr, MODE: tl.constexpr, KEEP: tl.constexpr,
    FREE_SURFACE: tl.constexpr, TILE_Z: tl.constexpr, TILE_Y: tl.constexpr, TILE_X: tl.constexpr,
):  # fmt: skip
    """new = the field after cur (two steps after new), without sources.

    MODE: INTERIOR computes the cells that no absorbing term reaches, from lo to before hi;
    FORWARDS and BACKWARDS the others, the frame, in those `tiles` that have any.
    KEEP: whether to store the second derivatives in u. FREE_SURFACE: the rows above the first
    become the negative of those below.
    Grid: (tiles times shots,), shots first, so that they find v2dt2 in the cache.
    """
    program = tl.program_id(0)
    shot = (program % shots).to(tl.int64)
    tile = program // shots
    if MODE != INTERIOR:
        tile = tl.load(tiles + tile)
    x_0 = tile % tiles_x * TILE_X
    y_0 = tile // tiles_x % tiles_y * TILE_Y
    z_0 = tile // tiles_x // tiles_y * TILE_Z
    if MODE == INTERIOR:
        x_0 += lo_x
        y_0 += lo_y
        z_0 += lo_z
    row = tl.arange(0, TILE_Z * TILE_Y)[:, None]
    x = x_0 + tl.arange(0, TILE_X)[None, :]
    y = y_0 + row % TILE_Y
    z = z_0 + row // TILE_Y
    if MODE == INTERIOR:
        mask = (z < hi_z) & (y < hi_y) & (x < hi_x)
    else:
        interior = (z >= lo_z) & (z < hi_z) & (y >= lo_y) & (y < hi_y) & (x >= lo_x) & (x < hi_x)
        mask = (z < n_z) & (y < n_y) & (x < n_x) & ~interior
    cell = origin + z * stride_z + y * stride_y + x
    new += shot * size
    at = cur + shot * size + cell

    p = tl.load(at, mask, 0.0)
    y_weights = weights + (2 * RADIUS + 1)
    x_weights = weights + 2 * (2 * RADIUS + 1)
    centre = tl.load(weights) + tl.load(x_weights)
    if NDIM == 3:
        centre += tl.load(y_weights)
    total = centre * p + symmetric(at, stride_z, weights, mask, RADIUS)
    if NDIM == 3:
        total += symmetric(at, stride_y, y_weights, mask, RADIUS)
    total += symmetric(at, 1, x_weights, mask, RADIUS)

    if MODE != INTERIOR:
        first += shot * memory_size
        second += shot * memory_size
        if (z_0 < lo_z) | (z_0 + TILE_Z > hi_z):
            total = absorb(
                total, at, first, second, a, b, z, y, x, lo_z, hi_z, slabs, weights, mask,
                0, MODE, RADIUS,
            )  # fmt: skip
        if NDIM == 3:
            if (y_0 < lo_y) | (y_0 + TILE_Y > hi_y):
                total = absorb(
                    total, at, first, second, a, b, z, y, x, lo_y, hi_y, slabs, weights, mask,
                    1, MODE, RADIUS,
                )  # fmt: skip
        if (x_0 < lo_x) | (x_0 + TILE_X > hi_x):
            total = absorb(
                total, at, first, second, a, b, z, y, x, lo_x, hi_x, slabs, weights, mask,
                2, MODE, RADIUS,
            )  # fmt: skip

    if KEEP:
        tl.store(u + shot * size + cell, total, mask)
    value = (p + p) - tl.load(new + cell, mask, 0.0) + tl.load(v2dt2 + cell, mask, 0.0) * total
    tl.store(new + cell, value, mask)
    if FREE_SURFACE:
        if z_0 <= RADIUS:
            tl.store(new + (cell - 2 * z * stride_z), -value, mask & (z > 0) & (z <= RADIUS))


@triton.jit(do_not_specialize=SIZES)
def relax(
    field, first, second, other, a, b, weights, slabs,
    size, origin, n_z, n_y, n_x, stride_z, stride_y, memory_size,
    NDIM: tl.constexpr, RADIUS: tl.constexpr, MODE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Memory variables of all slabs, as far as they must be there before `advance`.

    Forwards first = psi. Backwards first = phi and second = the relaxed zeta, from `other`, what
    it was before.
    Grid: (blocks of the slabs of the widest axis, axes, shots).
    """
    axis = tl.program_id(1)
    if NDIM == 2:
        axis *= 2
    shot = tl.program_id(2).to(tl.int64)
    slab = slabs + axis * COLUMNS
    before, width = tl.load(slab + BEFORE), tl.load(slab + WIDTH)
    stride, step = tl.load(slab + STRIDE), tl.load(slab + STRIDE_Z + axis)
    z_cells = tl.where(axis == 0, width, n_z)
    y_cells = tl.where(axis == 1, width, n_y)
    x_cells = tl.where(axis == 2, width, n_x)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < z_cells * y_cells * x_cells
    x_cells = tl.maximum(x_cells, 1)
    y_cells = tl.maximum(y_cells, 1)
    x = index % x_cells
    y = index // x_cells % y_cells
    z = index // x_cells // y_cells
    # The coordinate along the axis counts the cells of the slabs only, so far.
    c = tl.where(axis == 0, z, tl.where(axis == 1, y, x))
    gap = tl.where(c < before, 0, tl.load(slab + POINTS) - width)
    cell = origin + z * stride_z + y * stride_y + x + gap * stride
    place = (
        tl.load(slab + FIRST)
        + z * tl.load(slab + STRIDE_Z)
        + y * tl.load(slab + STRIDE_Y)
        + x * tl.load(slab + STRIDE_X)
        + tl.where(c < before, RADIUS, 3 * RADIUS) * step
    )
    profile = tl.load(slab + PROFILE) + RADIUS + c + gap
    weights += axis * (2 * RADIUS + 1)
    field += shot * size
    first += shot * memory_size
    if MODE == FORWARDS:
        slope = antisymmetric(field + cell, stride, weights, mask, RADIUS)
    else:
        second += shot * memory_size
        other += shot * memory_size
        slope = ahead(field, other, a, b, cell, place, profile, stride, step, 1, mask)
        slope -= ahead(field, other, a, b, cell, place, profile, -stride, -step, -1, mask)
        slope *= tl.load(weights + RADIUS + 1)
        for m in tl.static_range(2, RADIUS + 1):
            pair = ahead(field, other, a, b, cell, place, profile, m * stride, m * step, m, mask)
            pair -= ahead(
                field, other, a, b, cell, place, profile, -m * stride, -m * step, -m, mask
            )
            slope += tl.load(weights + RADIUS + m) * pair
    a_here, b_here = tl.load(a + profile, mask, 0.0), tl.load(b + profile, mask, 0.0)
    value = b_here * tl.load(first + place, mask, 0.0) + a_here * slope
    tl.store(first + place, value, mask)
    if MODE == BACKWARDS:
        relaxed = b_here * tl.load(other + place, mask, 0.0)
        relaxed += a_here * tl.load(field + cell, mask, 0.0)
        tl.store(second + place, relaxed, mask)


@triton.jit
def ahead(field, zeta, a, b, cell, place, profile, stride, step, m, mask):
    """The field and its relaxed zeta, m cells further along the axis.

    Found again in each cell that needs it, as other programs may not have stored it yet.
    """
    q = tl.load(field + (cell + stride), mask, 0.0)
    relaxed = tl.load(b + (profile + m), mask, 0.0) * tl.load(zeta + (place + step), mask, 0.0)
    return q + (relaxed + tl.load(a + (profile + m), mask, 0.0) * q)
