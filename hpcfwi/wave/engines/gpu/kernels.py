"""Triton kernels of the `gpu` engine, which compute one step of all shots of a chunk.

A program computes some cells of one shot. No two programs write to the same place, and the order of
every sum is fixed, so that the bits of a shot depend on the shot only.

Arrays have the layout of `layout`: `cell` is an offset in the field of one shot, `place` an offset
in its memory variables. `advance` computes the next field in the cells that no absorbing term
reaches; `relax` and then `advance_frame` compute it in the frame around them. The same kernels are
used forwards and backwards in time, as only the order of the absorbing terms differs
(docs/physics.md). `exchange` injects sources and records receivers; `store`, `restore` and
`correlate` implement the history. `sweep` launches the kernels.
"""

import triton
import triton.language as tl

from hpcfwi.wave.engines.gpu.layout import ALIGNMENT, KEPT

# Compile-time constants are in capitals, like those of Triton. A condition on them is not combined
# with others, so that the code that it excludes is not compiled.
# ruff: noqa: N803, SIM102


@triton.jit
def load_weights(weights, RADIUS: tl.constexpr):
    """Return the weights 1 to RADIUS of a second difference, as a tuple."""
    loaded = (tl.load(weights + 1),)
    for m in tl.static_range(2, RADIUS + 1):
        loaded = loaded + (tl.load(weights + m),)  # type: ignore[assignment]  # noqa: RUF005
    return loaded


@triton.jit
def symmetric(at, stride, weights, RADIUS: tl.constexpr):
    """Return the sum over m of weights[m - 1] times the values m cells before and after `at`.

    m: from 1 to RADIUS; at: pointers to cells; stride: distance between neighbours.
    """
    total = weights[0] * (tl.load(at - stride) + tl.load(at + stride))
    for m in tl.static_range(2, RADIUS + 1):
        total += weights[m - 1] * (tl.load(at - m * stride) + tl.load(at + m * stride))
    return total


@triton.jit
def antisymmetric(at, stride, weights, RADIUS: tl.constexpr):
    """Return the sum over m of weights[RADIUS + m] times the value after minus that before `at`."""
    total = tl.load(weights + RADIUS + 1) * (tl.load(at + stride) - tl.load(at - stride))
    for m in tl.static_range(2, RADIUS + 1):
        total += tl.load(weights + RADIUS + m) * (
            tl.load(at + m * stride) - tl.load(at - m * stride)
        )
    return total


@triton.jit
def centre_of(weights, NDIM: tl.constexpr, RADIUS: tl.constexpr):
    """Return the sum over the axes of the second differences' weights at offset 0."""
    centre = tl.load(weights) + tl.load(weights + 2 * (2 * RADIUS + 1))
    if NDIM == 3:
        centre += tl.load(weights + (2 * RADIUS + 1))
    return centre


@triton.jit
def store_next(
    new, before, p, speed, total, cell, z, inside, stride_z,
    RADIUS: tl.constexpr, FREE_SURFACE: tl.constexpr,
):  # fmt: skip
    """Store the field after p in `new`.

    before: the field before p; total: the second derivatives of p; FREE_SURFACE: if True, the rows
    above the first one are set to the negative of those below.
    """
    value = (p + p) - before + speed * total
    tl.store(new + cell, value, inside)
    if FREE_SURFACE:
        above = inside & (z > 0) & (z <= RADIUS)
        tl.store(new + (cell - 2 * z * stride_z), -value, above)


# Number of entries in a row of an interpolation matrix that are summed at once, and number of
# halvings. They determine the order of the sum, and are therefore the same for all surveys.
ENTRIES = tl.constexpr(64)
HALVINGS = tl.constexpr(6)

# Arguments on whose values a kernel is not specialized: Triton would compile another version for
# multiples of 16. The other kernels have similar lists.
POINT_SIZES = [
    "at", "size", "origin", "stride_z", "blocks", "rows", "entries", "values", "points", "taps",
    "steps", "factor_size",
]  # fmt: skip


@triton.jit
def multiply(index, weight, row, inside, width, vector, PARTS: tl.constexpr):
    """Return rows of a sparse matrix times a vector.

    index, weight: (row, entry), the columns and values; width: entries of a row; PARTS: number of
    parts of ENTRIES in which a row is summed.
    """
    total = multiply_part(index, weight, row, inside, 0, width, vector)
    for part in range(1, PARTS):
        total += multiply_part(index, weight, row, inside, part * ENTRIES, width, vector)
    return total


@triton.jit
def multiply_part(index, weight, row, inside, first, width, vector):
    """Return the product for ENTRIES entries of each row, from entry `first` on."""
    entry = first + tl.arange(0, ENTRIES)[None, :]
    at = row[:, None] * width + entry
    mask = inside[:, None] & (entry < width)
    column = tl.load(index + at, mask, 0)
    terms = tl.load(weight + at, mask, 0.0) * tl.load(vector + column, mask, 0.0)
    # Neighbours are added in pairs, because the order of tl.sum depends on the compiler and card.
    for k in tl.static_range(1, HALVINGS + 1):
        left, right = tl.split(tl.reshape(terms, (row.shape[0], ENTRIES >> k, 2)))
        terms = left + right
    return tl.reshape(terms, row.shape)


@triton.jit(do_not_specialize=POINT_SIZES)
def exchange(
    target, factor, factor_size, cells, columns, spreading, signal, rows, entries, values,
    field, taps_at, tap_weights, traces, points, taps,
    clock, at, steps, blocks, size, origin, stride_z,
    RADIUS: tl.constexpr, FREE_SURFACE: tl.constexpr, BLOCK: tl.constexpr,
    ADDED: tl.constexpr, RECORDED: tl.constexpr,
):  # fmt: skip
    """Add sources to the field `target`, and record another field at the receivers.

    The first `blocks` programs add factor times the sum over the entries of a row of spreading
    times signal to target. cells: (shot, row), offsets in target, or -1 for none; columns,
    spreading: (shot, row, entry); signal: (shot, step, value), read at this step.

    The other programs set traces (shot, step, point) at this step to the sum over the taps of
    tap_weights times field. taps_at, tap_weights: (shot, point, tap).

    factor_size: distance from the factor of one shot to the next, or 0 if all shots have the same.
    ADDED, RECORDED: number of parts of ENTRIES in a row. Grid: (blocks of both kinds, shots).
    """
    program = tl.program_id(0)
    shot = tl.program_id(1).to(tl.int64)
    n = (tl.load(clock) + at).to(tl.int64)
    if program < blocks:
        row = program * BLOCK + tl.arange(0, BLOCK)
        inside = row < rows
        cell = tl.load(cells + shot * rows + row, inside, -1)
        inside = cell >= 0
        table = shot * rows * entries
        added = multiply(
            columns + table, spreading + table, row, inside, entries,
            signal + (shot * steps + n) * values, ADDED,
        )  # fmt: skip
        target += shot * size
        value = tl.load(target + cell, inside, 0.0)
        value += tl.load(factor + shot * factor_size + cell, inside, 0.0) * added
        tl.store(target + cell, value, inside)
        if FREE_SURFACE:
            z = (cell - origin) // stride_z
            mirrored = inside & (z > 0) & (z <= RADIUS)
            tl.store(target + (cell - 2 * z * stride_z), -value, mirrored)
    else:
        row = (program - blocks) * BLOCK + tl.arange(0, BLOCK)
        inside = row < points
        table = shot * points * taps
        recorded = multiply(
            taps_at + table, tap_weights + table, row, inside, taps, field + shot * size, RECORDED
        )
        tl.store(traces + (shot * steps + n) * points + row, recorded, inside)


SAMPLED = tl.constexpr(KEPT)

HISTORY_SIZES = [
    "at", "interval", "size", "origin", "stride_z", "cells_kept", "slots",
]  # fmt: skip


@triton.jit
def slot_of(clock, at, interval, slots):
    """Return the slot of this step; slots are used cyclically."""
    return (tl.load(clock) + at) // interval % slots


@triton.jit
def block_of(starts, cells_kept, UNITS: tl.constexpr):
    """Return the numbers of the stored cells of this program, and the one after its last cell.

    starts: the first stored cell of each program, and the number of all; without scales (UNITS is
    0) it is not read, and all programs but the last have the same number of cells.
    """
    begin, end = tl.program_id(0) * SAMPLED, cells_kept
    if UNITS > 0:
        begin = tl.load(starts + tl.program_id(0))
        end = tl.load(starts + tl.program_id(0) + 1)
    index = begin + tl.arange(0, SAMPLED)
    return index, end


@triton.jit(do_not_specialize=HISTORY_SIZES)
def store(
    kept, scales, starts, field, cells, clock, at, interval, slots, cells_kept, size,
    LISTED: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Store a field's values at `cells` in the slot of this step of kept (slot, shot, cell).

    UNITS: if 0, values are stored without a scale. Otherwise they are stored in units of scales
    (slot, shot, block), such that the largest magnitude of a block of cells is UNITS; if UNITS is
    more than 1, they are rounded to integers. starts: see `block_of`. LISTED: if False, the whole
    field is stored, and `cells` is not read. Grid: (blocks of at most KEPT cells, shots).
    """
    shot = tl.program_id(1).to(tl.int64)
    slot = slot_of(clock, at, interval, slots) * tl.num_programs(1) + shot
    index, end = block_of(starts, cells_kept, UNITS)
    mask = index < end
    cell = tl.load(cells + index, mask, 0) if LISTED else index
    value = tl.load(field + shot * size + cell, mask, 0.0)
    if UNITS > 0:
        value = value.to(tl.float32)
        # div_rn rounds as in IEEE 754; the result of / is only approximate on some cards.
        scale = tl.div_rn(tl.max(tl.abs(value), axis=0), tl.full((), UNITS, tl.float32))
        tl.store(scales + slot * tl.num_programs(0) + tl.program_id(0), scale)
        value = tl.div_rn(value, tl.where(scale > 0.0, scale, 1.0))
        if UNITS > 1:
            value = tl.floor(value + 0.5)
    if kept.dtype.element_ty == tl.bfloat16:
        value = value.to(tl.float32)  # the interpreter converts bfloat16 from and to float32 only
    tl.store(kept + slot * cells_kept + index, value.to(kept.dtype.element_ty), mask)


@triton.jit
def load_kept(kept, scales, slot, index, mask, cells_kept, UNITS: tl.constexpr):
    """Return values that `store` has stored."""
    value = tl.load(kept + slot * cells_kept + index, mask, 0)
    if UNITS > 0:
        scale = tl.load(scales + slot * tl.num_programs(0) + tl.program_id(0))
        value = value.to(tl.float32) * scale
    if kept.dtype.element_ty == tl.bfloat16:
        value = value.to(tl.float32)
    return value


@triton.jit(do_not_specialize=HISTORY_SIZES)
def restore(
    field, kept, scales, starts, cells, clock, at, interval, slots, cells_kept,
    size, origin, stride_z,
    RADIUS: tl.constexpr, FREE_SURFACE: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Set cells of a field to the values stored in this step; do nothing before the first step.

    Grid: (blocks of at most KEPT cells, shots).
    """
    shot = tl.program_id(1).to(tl.int64)
    n = tl.load(clock) + at
    # No value of a step before the first is used, but a scale is read: its address must be valid.
    slot = tl.maximum(n, 0) // interval % slots * tl.num_programs(1) + shot
    index, end = block_of(starts, cells_kept, UNITS)
    mask = index < tl.where(n >= 0, end, 0)
    cell = tl.load(cells + index, mask, 0)
    value = load_kept(kept, scales, slot, index, mask, cells_kept, UNITS)
    value = value.to(field.dtype.element_ty)
    field += shot * size
    tl.store(field + cell, value, mask)
    if FREE_SURFACE:
        z = (cell - origin) // stride_z
        tl.store(field + (cell - 2 * z * stride_z), -value, mask & (z > 0) & (z <= RADIUS))


@triton.jit(do_not_specialize=HISTORY_SIZES)
def correlate(
    total, field, kept, scales, starts, cells, clock, at, interval, slots, cells_kept, size,
    LISTED: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Add the field times the values stored in this step to total.

    Grid: (blocks of at most KEPT cells, shots).
    """
    shot = tl.program_id(1).to(tl.int64)
    slot = slot_of(clock, at, interval, slots) * tl.num_programs(1) + shot
    index, end = block_of(starts, cells_kept, UNITS)
    mask = index < end
    cell = shot * size + (tl.load(cells + index, mask, 0) if LISTED else index)
    value = load_kept(kept, scales, slot, index, mask, cells_kept, UNITS)
    value = tl.load(field + cell, mask, 0.0) * value.to(total.dtype.element_ty)
    tl.store(total + cell, tl.load(total + cell, mask, 0.0) + value, mask)


# Tiles begin at multiples of this number of cells along x, which is the beginning of a cache line.
LINE = tl.constexpr(ALIGNMENT)

INTERIOR_SIZES = [
    "at", "interval", "slots", "shots", "size", "origin", "stride_z", "stride_y", "lo_z", "lo_y",
    "lo_x", "hi_z", "hi_y", "hi_x", "tiles_y", "tiles_x",
]  # fmt: skip


@triton.jit(do_not_specialize=INTERIOR_SIZES)
def advance(
    new, cur, v2dt2, u, weights, clock, at, interval, slots,
    shots, size, origin, stride_z, stride_y, lo_z, lo_y, lo_x, hi_z, hi_y, hi_x, tiles_y, tiles_x,
    NDIM: tl.constexpr, RADIUS: tl.constexpr, KEEP: tl.constexpr, FREE_SURFACE: tl.constexpr,
    TILE_Z: tl.constexpr, TILE_Y: tl.constexpr, TILE_X: tl.constexpr,
):  # fmt: skip
    """Replace `new`, the field before `cur`, by the field after `cur`, without sources.

    lo, hi: first cell along each axis, and the one after the last; KEEP: if True, the second
    derivatives are stored in u (slot, shot, cell), in the slot of this step. The planes of a tile
    (in two dimensions, its rows) are computed one after the other, with the neighbouring planes in
    registers. Lanes outside the cells of a tile repeat the computation of the nearest cell, and
    store nothing. Grid: (tiles * shots,); the shot is the fastest index, so that programs of the
    same tile find v2dt2 in the cache.
    """
    program = tl.program_id(0)
    shot = (program % shots).to(tl.int64)
    tile = program // shots
    x_0 = tile % tiles_x * TILE_X + lo_x // LINE * LINE
    y_0 = tile // tiles_x % tiles_y * TILE_Y + lo_y
    z_0 = tile // tiles_x // tiles_y * TILE_Z + lo_z
    new += shot * size
    cur += shot * size
    if KEEP:
        u += (slot_of(clock, at, interval, slots).to(tl.int64) * shots + shot) * size

    # A block of one dimension, in which x varies fastest. In a block of two dimensions, Triton
    # orders the lanes along y, because the limits on x hide that x is contiguous in memory.
    lane = tl.arange(0, TILE_Y * TILE_X)
    x_lane = x_0 + lane % TILE_X
    y_lane = y_0 + lane // TILE_X
    x = tl.minimum(tl.maximum(x_lane, lo_x), hi_x - 1)
    y = tl.minimum(y_lane, hi_y - 1)
    inside = (x_lane >= lo_x) & (x_lane < hi_x) & (y_lane < hi_y)
    cell = origin + z_0 * stride_z + y * stride_y + x
    centre = centre_of(weights, NDIM, RADIUS)
    z_weights = load_weights(weights, RADIUS)
    if NDIM == 3:
        y_weights = load_weights(weights + (2 * RADIUS + 1), RADIUS)
    x_weights = load_weights(weights + 2 * (2 * RADIUS + 1), RADIUS)
    # Triton can concatenate tuples, but not unpack them.
    planes = (tl.load(cur + (cell - RADIUS * stride_z)),)
    for m in tl.static_range(1, 2 * RADIUS):
        planes = planes + (tl.load(cur + (cell + (m - RADIUS) * stride_z)),)  # type: ignore[assignment]  # noqa: RUF005
    for z in range(z_0, tl.minimum(z_0 + TILE_Z, hi_z)):
        before, speed = tl.load(new + cell), tl.load(v2dt2 + cell)
        here = cur + cell
        planes = planes + (tl.load(here + RADIUS * stride_z),)  # type: ignore[assignment]  # noqa: RUF005
        p = planes[RADIUS]
        column = z_weights[0] * (planes[RADIUS - 1] + planes[RADIUS + 1])
        for m in tl.static_range(2, RADIUS + 1):
            column += z_weights[m - 1] * (planes[RADIUS - m] + planes[RADIUS + m])
        total = centre * p + column
        if NDIM == 3:
            total += symmetric(here, stride_y, y_weights, RADIUS)
        total += symmetric(here, 1, x_weights, RADIUS)
        if KEEP:
            tl.store(u + cell, total, inside)
        store_next(new, before, p, speed, total, cell, z, inside, stride_z, RADIUS, FREE_SURFACE)
        planes = planes[1:]  # type: ignore[assignment]
        cell += stride_z


# Columns of the table of slabs, which has a row for each of the axes z, y, x.
BEFORE = tl.constexpr(0)  # cells of the slab before the model
WIDTH = tl.constexpr(1)  # cells of both slabs
POINTS = tl.constexpr(2)  # cells of the axis
STRIDE = tl.constexpr(3)  # stride of a field along the axis
FIRST = tl.constexpr(4)  # place of the first memory variable of the axis
STRIDE_Z = tl.constexpr(5)  # strides of the memory variables of the axis along z, y, x
STRIDE_Y = tl.constexpr(6)
STRIDE_X = tl.constexpr(7)
PROFILE = tl.constexpr(8)  # index of the first value of the axis in the profiles
COLUMNS = tl.constexpr(9)

# Columns of the table of tiles: the first cell along each axis, and the one after the last.
BEGIN_Z = tl.constexpr(0)
BEGIN_Y = tl.constexpr(1)
BEGIN_X = tl.constexpr(2)
END_Z = tl.constexpr(3)
END_Y = tl.constexpr(4)
END_X = tl.constexpr(5)
SIDES = tl.constexpr(6)

# Directions of time.
FORWARDS = tl.constexpr(1)
BACKWARDS = tl.constexpr(2)

FRAME_SIZES = [
    "at", "interval", "slots", "shots", "size", "origin", "n_z", "n_y", "n_x", "stride_z",
    "stride_y", "lo_z", "lo_y", "lo_x", "hi_z", "hi_y", "hi_x", "memory_size",
]  # fmt: skip


@triton.jit
def absorb(
    total, p, along, first, second, a, b, z, y, x, lo, hi, slabs, weights, inside,
    AXIS: tl.constexpr, MODE: tl.constexpr, RADIUS: tl.constexpr,
):  # fmt: skip
    """Return total plus the absorbing terms of one axis, which reach RADIUS cells beyond its slabs.

    p: the field; along: the sum of its second difference along the axis, without offset 0; first,
    second: the memory variables, which are psi and zeta forwards, and phi and the updated zeta
    backwards. Cells further away read the memory variables of the first cell in the slabs, and
    add nothing.
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
    shifted = tl.where(near, c + tl.where(c < lo, RADIUS, beyond), RADIUS)
    if AXIS == 0:
        z = shifted
    elif AXIS == 1:
        y = shifted
    else:
        x = shifted
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
        w = tl.load(weights) * p
        w += along + slope
        relaxed = tl.load(b + profile) * tl.load(second + place) + tl.load(a + profile) * w
        tl.store(second + place, relaxed, near & inside)
    else:
        relaxed = tl.load(weights) * tl.load(second + place)
        relaxed += symmetric(second + place, step, load_weights(weights, RADIUS), RADIUS)
    return total + tl.where(near, slope + relaxed, 0.0)


@triton.jit(do_not_specialize=FRAME_SIZES)
def advance_frame(
    new, cur, v2dt2, u, first, second, a, b, weights, slabs, tiles, clock, at, interval, slots,
    shots, size, origin, stride_z, stride_y, memory_size, lo_z, lo_y, lo_x, hi_z, hi_y, hi_x,
    NDIM: tl.constexpr, RADIUS: tl.constexpr, MODE: tl.constexpr, KEEP: tl.constexpr,
    FREE_SURFACE: tl.constexpr, TILE_Z: tl.constexpr, TILE_Y: tl.constexpr, TILE_X: tl.constexpr,
):  # fmt: skip
    """Do the same as `advance`, but in the frame around lo to hi, with absorbing terms.

    first, second: as in `absorb`; tiles: (tile, SIDES), the table of tiles. The other arguments are
    those of `advance`. Grid: (tiles * shots,).
    """
    program = tl.program_id(0)
    shot = (program % shots).to(tl.int64)
    tile = tiles + program // shots * SIDES
    z_0, z_1 = tl.load(tile + BEGIN_Z), tl.load(tile + END_Z)
    y_0, y_1 = tl.load(tile + BEGIN_Y), tl.load(tile + END_Y)
    x_0, x_1 = tl.load(tile + BEGIN_X), tl.load(tile + END_X)
    lane = tl.arange(0, TILE_Z * TILE_Y * TILE_X)  # x varies fastest, as in `advance`
    x = x_0 + lane % TILE_X
    y = y_0 + lane // TILE_X % TILE_Y
    z = z_0 + lane // (TILE_Y * TILE_X)
    inside = (z < z_1) & (y < y_1) & (x < x_1)
    x = tl.minimum(x, x_1 - 1)
    y = tl.minimum(y, y_1 - 1)
    z = tl.minimum(z, z_1 - 1)
    cell = origin + z * stride_z + y * stride_y + x
    new += shot * size
    here = cur + shot * size + cell
    before, speed = tl.load(new + cell), tl.load(v2dt2 + cell)

    p = tl.load(here)
    along_z = symmetric(here, stride_z, load_weights(weights, RADIUS), RADIUS)
    total = centre_of(weights, NDIM, RADIUS) * p + along_z
    if NDIM == 3:
        y_weights = load_weights(weights + (2 * RADIUS + 1), RADIUS)
        along_y = symmetric(here, stride_y, y_weights, RADIUS)
        total += along_y
    x_weights = load_weights(weights + 2 * (2 * RADIUS + 1), RADIUS)
    along_x = symmetric(here, 1, x_weights, RADIUS)
    total += along_x

    first += shot * memory_size
    second += shot * memory_size
    if (z_0 < lo_z) | (z_1 > hi_z):
        total = absorb(
            total, p, along_z, first, second, a, b, z, y, x, lo_z, hi_z, slabs, weights, inside,
            0, MODE, RADIUS,
        )  # fmt: skip
    if NDIM == 3:
        if (y_0 < lo_y) | (y_1 > hi_y):
            total = absorb(
                total, p, along_y, first, second, a, b, z, y, x, lo_y, hi_y, slabs, weights, inside,
                1, MODE, RADIUS,
            )  # fmt: skip
    if (x_0 < lo_x) | (x_1 > hi_x):
        total = absorb(
            total, p, along_x, first, second, a, b, z, y, x, lo_x, hi_x, slabs, weights, inside,
            2, MODE, RADIUS,
        )  # fmt: skip

    if KEEP:
        slot = slot_of(clock, at, interval, slots).to(tl.int64)
        tl.store(u + (slot * shots + shot) * size + cell, total, inside)
    store_next(new, before, p, speed, total, cell, z, inside, stride_z, RADIUS, FREE_SURFACE)


@triton.jit(do_not_specialize=FRAME_SIZES)
def relax(
    field, first, second, other, a, b, weights, slabs,
    size, origin, n_z, n_y, n_x, stride_z, stride_y, memory_size,
    NDIM: tl.constexpr, RADIUS: tl.constexpr, MODE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update those memory variables of all slabs that `advance_frame` only reads.

    Forwards, first is psi. Backwards, first is phi, and second is set to the updated zeta, computed
    from `other`, the zeta before the update. Grid: (blocks, axes, shots), with enough blocks for
    the axis that has the most cells in its slabs.
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
    # Up to here, the coordinate along the axis counts the cells of the slabs only.
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
    """Return the field plus its updated zeta, m cells further along the axis.

    It is computed again for each cell that needs it, because another program that stores the
    updated zeta may not have run yet.
    """
    q = tl.load(field + (cell + stride))
    relaxed = tl.load(b + (profile + m)) * tl.load(zeta + (place + step))
    return q + (relaxed + tl.load(a + (profile + m)) * q)
