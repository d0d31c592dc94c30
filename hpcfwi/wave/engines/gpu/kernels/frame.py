"""The field's next step in the frame, where terms of the absorbing boundary are added.

First `relax`, memory variables of the slabs, then `advance_frame`. The same kernels go backwards in
time: only the order of the absorbing terms differs (docs/physics.md).
"""

# Constants of the compiler are written large, as Triton's own are. A condition on them stands
# alone, so that what it excludes is not compiled.
# ruff: noqa: N803, SIM102

import triton
import triton.language as tl

from hpcfwi.wave.engines.gpu.kernels.differences import (
    antisymmetric,
    laplacian,
    store_next,
    symmetric,
)
from hpcfwi.wave.engines.gpu.kernels.history import slot_of

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

# Columns of the table of tiles: the first cell, and that after the last, along each axis.
BEGIN_Z = tl.constexpr(0)
BEGIN_Y = tl.constexpr(1)
BEGIN_X = tl.constexpr(2)
END_Z = tl.constexpr(3)
END_Y = tl.constexpr(4)
END_X = tl.constexpr(5)
SIDES = tl.constexpr(6)

# In which direction of time
FORWARDS = tl.constexpr(1)
BACKWARDS = tl.constexpr(2)

# Arguments that Triton would compile a kernel again for, whenever they are a multiple of 16.
SIZES = [
    "at", "interval", "slots", "shots", "size", "origin", "n_z", "n_y", "n_x", "stride_z",
    "stride_y", "lo_z", "lo_y", "lo_x", "hi_z", "hi_y", "hi_x", "memory_size",
]  # fmt: skip


@triton.jit
def absorb(
    total, at, first, second, a, b, z, y, x, lo, hi, slabs, weights, inside,
    AXIS: tl.constexpr, MODE: tl.constexpr, RADIUS: tl.constexpr,
):  # fmt: skip
    """total and the absorbing terms of one axis, where there are any: within RADIUS of its slabs.

    first, second: the memory variables psi and zeta forwards, phi and the relaxed zeta backwards.
    Cells further away read those of the first cell in the slabs, and add nothing.
    """
    slab = slabs + AXIS * COLUMNS
    step = tl.load(slab + STRIDE_Z + AXIS)
    beyond = tl.load(slab + WIDTH) + 3 * RADIUS - tl.load(slab + POINTS)
    if AXIS == 0:
        c = z
    elif AXIS == 1:
        c = y
    else:
        c = x
    near = (c < lo) | (c >= hi)
    along = tl.where(near, c + tl.where(c < lo, RADIUS, beyond), RADIUS)
    if AXIS == 0:
        z = along
    elif AXIS == 1:
        y = along
    else:
        x = along
    place = (
        tl.load(slab + FIRST)
        + z * tl.load(slab + STRIDE_Z)
        + y * tl.load(slab + STRIDE_Y)
        + x * tl.load(slab + STRIDE_X)
    )
    weights += AXIS * (2 * RADIUS + 1)
    slope = antisymmetric(first + place, step, weights, RADIUS)
    if MODE == FORWARDS:
        profile = tl.load(slab + PROFILE) + RADIUS + c
        w = tl.load(weights) * tl.load(at)
        w += symmetric(at, tl.load(slab + STRIDE), weights, RADIUS) + slope
        relaxed = tl.load(b + profile) * tl.load(second + place) + tl.load(a + profile) * w
        tl.store(second + place, relaxed, near & inside)
    else:
        relaxed = tl.load(weights) * tl.load(second + place)
        relaxed += symmetric(second + place, step, weights, RADIUS)
    return total + tl.where(near, slope + relaxed, 0.0)


@triton.jit(do_not_specialize=SIZES)
def advance_frame(
    new, cur, v2dt2, u, first, second, a, b, weights, slabs, tiles, clock, at, interval, slots,
    shots, size, origin, stride_z, stride_y, memory_size, lo_z, lo_y, lo_x, hi_z, hi_y, hi_x,
    NDIM: tl.constexpr, RADIUS: tl.constexpr, MODE: tl.constexpr, KEEP: tl.constexpr,
    FREE_SURFACE: tl.constexpr, TILE_Z: tl.constexpr, TILE_Y: tl.constexpr, TILE_X: tl.constexpr,
):  # fmt: skip
    """new = the field after cur (two steps after new), without sources, around lo to hi.

    Memory variables as `absorb` has them; tiles: (tile, side), of SIDES. The rest is as in
    `interior.advance`. Grid: (tiles times shots,).
    """
    program = tl.program_id(0)
    shot = (program % shots).to(tl.int64)
    tile = tiles + program // shots * SIDES
    z_0, z_1 = tl.load(tile + BEGIN_Z), tl.load(tile + END_Z)
    y_0, y_1 = tl.load(tile + BEGIN_Y), tl.load(tile + END_Y)
    x_0, x_1 = tl.load(tile + BEGIN_X), tl.load(tile + END_X)
    row = tl.arange(0, TILE_Z * TILE_Y)[:, None]
    x = x_0 + tl.arange(0, TILE_X)[None, :]
    y = y_0 + row % TILE_Y
    z = z_0 + row // TILE_Y
    inside = (z < z_1) & (y < y_1) & (x < x_1)
    x = tl.minimum(x, x_1 - 1)
    y = tl.minimum(y, y_1 - 1)
    z = tl.minimum(z, z_1 - 1)
    cell = origin + z * stride_z + y * stride_y + x
    new += shot * size
    at_cell = cur + shot * size + cell
    before, speed = tl.load(new + cell), tl.load(v2dt2 + cell)

    p = tl.load(at_cell)
    total = laplacian(at_cell, p, stride_z, stride_y, weights, NDIM, RADIUS)

    first += shot * memory_size
    second += shot * memory_size
    if (z_0 < lo_z) | (z_1 > hi_z):
        total = absorb(
            total, at_cell, first, second, a, b, z, y, x, lo_z, hi_z, slabs, weights, inside,
            0, MODE, RADIUS,
        )  # fmt: skip
    if NDIM == 3:
        if (y_0 < lo_y) | (y_1 > hi_y):
            total = absorb(
                total, at_cell, first, second, a, b, z, y, x, lo_y, hi_y, slabs, weights, inside,
                1, MODE, RADIUS,
            )  # fmt: skip
    if (x_0 < lo_x) | (x_1 > hi_x):
        total = absorb(
            total, at_cell, first, second, a, b, z, y, x, lo_x, hi_x, slabs, weights, inside,
            2, MODE, RADIUS,
        )  # fmt: skip

    if KEEP:
        slot = slot_of(clock, at, interval, slots).to(tl.int64)
        tl.store(u + (slot * shots + shot) * size + cell, total, inside)
    store_next(new, before, p, speed, total, cell, z, inside, stride_z, RADIUS, FREE_SURFACE)


@triton.jit(do_not_specialize=SIZES)
def relax(
    field, first, second, other, a, b, weights, slabs,
    size, origin, n_z, n_y, n_x, stride_z, stride_y, memory_size,
    NDIM: tl.constexpr, RADIUS: tl.constexpr, MODE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Memory variables of all slabs, as far as they must be there before `advance_frame`.

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
    cells = z_cells * y_cells * x_cells
    if tl.program_id(0) * BLOCK >= cells:
        return
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < cells
    index = tl.minimum(index, cells - 1)
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
        slope = antisymmetric(field + cell, stride, weights, RADIUS)
    else:
        second += shot * memory_size
        other += shot * memory_size
        slope = ahead(field, other, a, b, cell, place, profile, stride, step, 1)
        slope -= ahead(field, other, a, b, cell, place, profile, -stride, -step, -1)
        slope *= tl.load(weights + RADIUS + 1)
        for m in tl.static_range(2, RADIUS + 1):
            pair = ahead(field, other, a, b, cell, place, profile, m * stride, m * step, m)
            pair -= ahead(field, other, a, b, cell, place, profile, -m * stride, -m * step, -m)
            slope += tl.load(weights + RADIUS + m) * pair
    a_here, b_here = tl.load(a + profile), tl.load(b + profile)
    value = b_here * tl.load(first + place) + a_here * slope
    tl.store(first + place, value, inside)
    if MODE == BACKWARDS:
        relaxed = b_here * tl.load(other + place)
        relaxed += a_here * tl.load(field + cell)
        tl.store(second + place, relaxed, inside)


@triton.jit
def ahead(field, zeta, a, b, cell, place, profile, stride, step, m):
    """The field and its relaxed zeta, m cells further along the axis.

    Found again in each cell that needs it, as other programs may not have stored it yet.
    """
    q = tl.load(field + (cell + stride))
    relaxed = tl.load(b + (profile + m)) * tl.load(zeta + (place + step))
    return q + (relaxed + tl.load(a + (profile + m)) * q)
