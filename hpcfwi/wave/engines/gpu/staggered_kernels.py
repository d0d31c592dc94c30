"""Triton kernels of the `gpu` engine for first-order equations.

A kernel computes one stage of a step, or its transpose, in some cells of each shot. Its tables are
tuples of whole numbers, which `staggered` makes from the description of an equation; the compiler
unrolls the loops that go through them. No two programs write to the same place, and the order of
every sum is fixed, so that bits do not depend on the number of shots.

Fields are (field, shot, cell), rates (rate, cell), and everything else that has cells is (...,
shot, cell), in the layout of `layout.Layout`.
"""

import triton
import triton.language as tl

# Compile-time constants are in capitals, like those of Triton.
# ruff: noqa: N803, RUF005


@triton.jit
def locate(first, rows, columns, depths, stride_z, stride_y, origin, BLOCK: tl.constexpr):
    """Return the coordinates and the offsets of the cells of a program, and which of them exist.

    first: the first depth; depths, rows, columns: the number of cells along each axis.
    """
    number = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x, above = number % columns, number // columns
    y, z = above % rows, above // rows + first
    inside = number < depths * rows * columns
    return z, y, x, origin + z * stride_z + y * stride_y + x, inside


@triton.jit
def differ(at, stride, weights, inside, BETWEEN: tl.constexpr, RADIUS: tl.constexpr):
    """Return the staggered difference of the values at pointers."""
    total = tl.load(weights) * (
        tl.load(at + BETWEEN * stride, inside, 0.0)
        - tl.load(at - (1 - BETWEEN) * stride, inside, 0.0)
    )
    for m in tl.static_range(1, RADIUS):
        total += tl.load(weights + m) * (
            tl.load(at + (m + BETWEEN) * stride, inside, 0.0)
            - tl.load(at - (m + 1 - BETWEEN) * stride, inside, 0.0)
        )
    return total


@triton.jit
def absorb(found, memory, a, b, entry, inside):
    """Return a difference plus its memory variables, which are updated in the slabs."""
    factor = tl.load(a + entry, inside, 0.0)
    slab = inside & (factor != 0.0)
    kept = tl.load(b + entry, slab, 0.0) * tl.load(memory, slab, 0.0) + factor * found
    tl.store(memory, kept, slab)
    return found + tl.where(slab, kept, 0.0)


@triton.jit
def coordinate(z, y, x, AXIS: tl.constexpr):
    """Return the coordinate, or the stride, along an axis."""
    if AXIS == 0:
        return z
    if AXIS == 1:
        return y
    return x


@triton.jit
def advance(
    fields, rates, memory, a, b, weights, constants, samples, change, origin, stride_z, stride_y,
    depths, rows, columns, shots, size, longest, DIFFERENCES: tl.constexpr, TARGETS: tl.constexpr,
    TERMS: tl.constexpr, RELAXATIONS: tl.constexpr, SAMPLES: tl.constexpr, PRODUCTS: tl.constexpr,
    COUNT: tl.constexpr, RADIUS: tl.constexpr, MIXED: tl.constexpr, STORE: tl.constexpr,
    CHANGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Advance the fields of a stage.

    a, b: profiles (profile, place), or (profile, cell) if MIXED, in rows of `longest` entries;
    constants: the share of memory variables that is added, and their decays; samples: (sample,
    shot, cell), which are stored if STORE, and multiplied by `change` (gradient, cell) if CHANGE.
    DIFFERENCES: (field, axis, between, profile, memory) of each difference; TARGETS: fields that
    are updated; TERMS: (target, rate, difference); RELAXATIONS: (memory, field, decay), the first
    two as numbers of targets; SAMPLES: (sample, difference) of each summand of the COUNT samples;
    PRODUCTS: (gradient, target, sample). The rows of a table follow one another, because Triton
    before 3.8 has no tuples of tuples.
    """
    z, y, x, cell, inside = locate(0, rows, columns, depths, stride_z, stride_y, origin, BLOCK)
    shot, size = tl.program_id(1).to(tl.int64), tl.cast(size, tl.int64)
    found = ()
    for d in tl.static_range(len(DIFFERENCES) // 5):
        stride = coordinate(stride_z, stride_y, 1, DIFFERENCES[5 * d + 1])
        at = fields + (DIFFERENCES[5 * d] * shots + shot) * size + cell
        of_axis = weights + DIFFERENCES[5 * d + 1] * RADIUS
        one = differ(at, stride, of_axis, inside, DIFFERENCES[5 * d + 2], RADIUS)
        entry = cell if MIXED else coordinate(z, y, x, DIFFERENCES[5 * d + 1])
        entry += DIFFERENCES[5 * d + 3] * tl.cast(longest, tl.int64)
        place = memory + (DIFFERENCES[5 * d + 4] * shots + shot) * size + cell
        found = found + (absorb(one, place, a, b, entry, inside),)  # type: ignore[assignment]
    share = tl.load(constants)
    before = ()
    for t in tl.static_range(len(TARGETS)):
        at = fields + (TARGETS[t] * shots + shot) * size + cell
        before = before + (tl.load(at, inside, 0.0),)  # type: ignore[assignment]
    after = ()
    for t in tl.static_range(len(TARGETS)):
        value = before[t]  # type: ignore[var-annotated]
        for k in tl.static_range(len(RELAXATIONS) // 3):
            if RELAXATIONS[3 * k + 1] == t:
                value += share * before[RELAXATIONS[3 * k]]
            if RELAXATIONS[3 * k] == t:
                value *= tl.load(constants + 1 + RELAXATIONS[3 * k + 2])
        for k in tl.static_range(len(TERMS) // 3):
            if TERMS[3 * k] == t:
                rate = tl.load(rates + TERMS[3 * k + 1] * size + cell, inside, 0.0)
                value += rate * found[TERMS[3 * k + 2]]
        if CHANGE:
            for k in tl.static_range(len(PRODUCTS) // 3):
                if PRODUCTS[3 * k + 1] == t:
                    at = samples + (PRODUCTS[3 * k + 2] * shots + shot) * size + cell
                    by = tl.load(change + PRODUCTS[3 * k] * size + cell, inside, 0.0)
                    value += by * tl.load(at, inside, 0.0)
        after = after + (value,)  # type: ignore[assignment]
    for t in tl.static_range(len(TARGETS)):
        value = after[t]
        for k in tl.static_range(len(RELAXATIONS) // 3):
            if RELAXATIONS[3 * k + 1] == t:
                value += share * after[RELAXATIONS[3 * k]]
        tl.store(fields + (TARGETS[t] * shots + shot) * size + cell, value, inside)
    if STORE:
        for s in tl.static_range(COUNT):
            summed = tl.zeros((BLOCK,), fields.dtype.element_ty)
            for k in tl.static_range(len(SAMPLES) // 2):
                if SAMPLES[2 * k] == s:
                    summed += found[SAMPLES[2 * k + 1]]
            tl.store(samples + (s * shots + shot) * size + cell, summed, inside)


@triton.jit
def weigh(
    fields, rates, memory, a, b, constants, samples, gradients, buffers, origin, stride_z, stride_y,
    depths, rows, columns, shots, size, longest, DIFFERENCES: tl.constexpr, TERMS: tl.constexpr,
    RELAXATIONS: tl.constexpr, PRODUCTS: tl.constexpr, MIXED: tl.constexpr, SAMPLED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the buffers of a transposed stage, and add to the gradients of the rates.

    gradients: (gradient, shot, cell); buffers: (difference, shot, cell). TERMS: (difference,
    rate, field); RELAXATIONS: (memory, field, decay); PRODUCTS: (gradient, field,
    sample), added if SAMPLED; the others are as in `advance`.
    """
    z, y, x, cell, inside = locate(0, rows, columns, depths, stride_z, stride_y, origin, BLOCK)
    shot, size = tl.program_id(1).to(tl.int64), tl.cast(size, tl.int64)
    share = tl.load(constants)
    for k in tl.static_range(len(RELAXATIONS) // 3):
        place = fields + (RELAXATIONS[3 * k] * shots + shot) * size + cell
        fed = tl.load(fields + (RELAXATIONS[3 * k + 1] * shots + shot) * size + cell, inside, 0.0)
        tl.store(place, tl.load(place, inside, 0.0) + share * fed, inside)
    # Another thread may load what one has stored, if the compiler assigns cells differently.
    tl.debug_barrier()
    for d in tl.static_range(len(DIFFERENCES) // 5):
        total = tl.zeros((BLOCK,), fields.dtype.element_ty)
        for k in tl.static_range(len(TERMS) // 3):
            if TERMS[3 * k] == d:
                rate = tl.load(rates + TERMS[3 * k + 1] * size + cell, inside, 0.0)
                at = fields + (TERMS[3 * k + 2] * shots + shot) * size + cell
                total += rate * tl.load(at, inside, 0.0)
        entry = cell if MIXED else coordinate(z, y, x, DIFFERENCES[5 * d + 1])
        entry += DIFFERENCES[5 * d + 3] * tl.cast(longest, tl.int64)
        place = memory + (DIFFERENCES[5 * d + 4] * shots + shot) * size + cell
        total = absorb(total, place, a, b, entry, inside)
        tl.store(buffers + (d * shots + shot) * size + cell, total, inside)
    if SAMPLED:
        for k in tl.static_range(len(PRODUCTS) // 3):
            adjoint = tl.load(
                fields + (PRODUCTS[3 * k + 1] * shots + shot) * size + cell, inside, 0.0
            )
            sample = tl.load(
                samples + (PRODUCTS[3 * k + 2] * shots + shot) * size + cell, inside, 0.0
            )
            place = gradients + (PRODUCTS[3 * k] * shots + shot) * size + cell
            tl.store(place, tl.load(place, inside, 0.0) + adjoint * sample, inside)
    for k in tl.static_range(len(RELAXATIONS) // 3):
        place = fields + (RELAXATIONS[3 * k] * shots + shot) * size + cell
        fed = tl.load(fields + (RELAXATIONS[3 * k + 1] * shots + shot) * size + cell, inside, 0.0)
        decay = tl.load(constants + 1 + RELAXATIONS[3 * k + 2])
        tl.store(place, decay * tl.load(place, inside, 0.0) + share * fed, inside)


@triton.jit
def scatter(
    fields, buffers, weights, first, origin, stride_z, stride_y, depths, rows, columns, shots, size,
    SOURCES: tl.constexpr, TERMS: tl.constexpr, RADIUS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Subtract the transposed differences of the buffers of a stage from the fields they come from.

    first: the first depth, above 0 for cells above a free surface. SOURCES: these fields;
    TERMS: (source, difference, axis, between).
    """
    _, _, _, cell, inside = locate(first, rows, columns, depths, stride_z, stride_y, origin, BLOCK)
    shot, size = tl.program_id(1).to(tl.int64), tl.cast(size, tl.int64)
    for f in tl.static_range(len(SOURCES)):
        place = fields + (SOURCES[f] * shots + shot) * size + cell
        value = tl.load(place, inside, 0.0)
        for k in tl.static_range(len(TERMS) // 4):
            if TERMS[4 * k] == f:
                stride = coordinate(stride_z, stride_y, 1, TERMS[4 * k + 2])
                at = buffers + (TERMS[4 * k + 1] * shots + shot) * size + cell
                of_axis = weights + TERMS[4 * k + 2] * RADIUS
                value -= differ(at, stride, of_axis, inside, 1 - TERMS[4 * k + 3], RADIUS)
        tl.store(place, value, inside)
