"""Sources and receivers: `exchange`, once a step."""

# Constants of the compiler are written large, as Triton's own are.
# ruff: noqa: N803

import triton
import triton.language as tl

# Entries in a row of an interpolation matrix that are summed at once, and how often halved.
# The order of a sum depends on it, so that it is the same for all surveys.
ENTRIES = tl.constexpr(64)
HALVINGS = tl.constexpr(6)

# Arguments that Triton would compile a kernel again for, whenever they are a multiple of 16.
SIZES = [
    "at", "size", "origin", "stride_z", "blocks", "rows", "entries", "values", "points", "taps",
    "steps", "factor_size",
]  # fmt: skip


@triton.jit
def multiply(index, weight, row, inside, width, vector, PARTS: tl.constexpr):
    """Rows of a sparse matrix times a vector; index, weight: (row, entry), in PARTS of ENTRIES."""
    total = multiply_part(index, weight, row, inside, 0, width, vector)
    for part in range(1, PARTS):
        total += multiply_part(index, weight, row, inside, part * ENTRIES, width, vector)
    return total


@triton.jit
def multiply_part(index, weight, row, inside, first, width, vector):
    """The same for ENTRIES of each row, from the first on."""
    entry = first + tl.arange(0, ENTRIES)[None, :]
    at = row[:, None] * width + entry
    mask = inside[:, None] & (entry < width)
    column = tl.load(index + at, mask, 0)
    terms = tl.load(weight + at, mask, 0.0) * tl.load(vector + column, mask, 0.0)
    # Neighbours by twos: the order of tl.sum is a compiler's, and another one for another card
    for k in tl.static_range(1, HALVINGS + 1):
        left, right = tl.split(tl.reshape(terms, (row.shape[0], ENTRIES >> k, 2)))
        terms = left + right
    return tl.reshape(terms, row.shape)


@triton.jit(do_not_specialize=SIZES)
def exchange(
    target, factor, factor_size, cells, columns, spreading, signal, rows, entries, values,
    field, taps_at, tap_weights, traces, points, taps,
    clock, at, steps, blocks, size, origin, stride_z,
    RADIUS: tl.constexpr, FREE_SURFACE: tl.constexpr, BLOCK: tl.constexpr,
    ADDED: tl.constexpr, RECORDED: tl.constexpr,
):  # fmt: skip
    """Add sources to the field `target`, and record another field at the receivers.

    The first `blocks` programs add: target at cells (shot, row) gains factor times the sum of
    spreading times signal[n] at columns (shot, row, entry), signal being (shot, step, value); a
    cell of -1 is none. The others record: traces (shot, step, point) at n = the sum of tap_weights
    times field at taps_at (shot, point, tap).
    factor_size: from one shot's factor to the next; 0 where all have the same. ADDED, RECORDED:
    parts of ENTRIES in a row.
    Grid: (blocks, shots).
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
