"""What the way back needs of the fields: `keep`, `restore` and `correlate`, in any format."""

# Constants of the compiler are written large, as Triton's own are.
# ruff: noqa: N803

import triton
import triton.language as tl

from hpcfwi.wave.engines.gpu.blueprint import KEPT

SAMPLED = tl.constexpr(KEPT)

# Arguments that Triton would compile a kernel again for, whenever they are a multiple of 16.
SIZES = [
    "at", "interval", "size", "origin", "stride_z", "cells_kept", "slots",
]  # fmt: skip


@triton.jit
def slot_of(clock, at, interval, slots):
    """Where the field of this step is kept; after the last slot comes the first again."""
    return (tl.load(clock) + at) // interval % slots


@triton.jit(do_not_specialize=SIZES)
def keep(
    kept, scales, field, cells, clock, at, interval, slots, cells_kept, size,
    LISTED: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Keep a field's values at `cells` in this step's slot of kept (slot, shot, cell).

    UNITS: what the largest magnitude of a block of cells becomes, in units of scales (slot, shot,
    block); whole units are kept where these are more than one; 0 keeps values as they are.
    LISTED: or else the whole field is kept, and cells are not looked at.
    Grid: (blocks of KEPT cells, shots).
    """
    shot = tl.program_id(1).to(tl.int64)
    slot = slot_of(clock, at, interval, slots) * tl.num_programs(1) + shot
    index = tl.program_id(0) * SAMPLED + tl.arange(0, SAMPLED)
    mask = index < cells_kept
    cell = tl.load(cells + index, mask, 0) if LISTED else index
    value = tl.load(field + shot * size + cell, mask, 0.0)
    if UNITS > 0:
        value = value.to(tl.float32)
        # Divisions are rounded as IEEE has it: / is what a compiler thinks is near enough
        scale = tl.div_rn(tl.max(tl.abs(value), axis=0), tl.full((), UNITS, tl.float32))
        tl.store(scales + slot * tl.num_programs(0) + tl.program_id(0), scale)
        value = tl.div_rn(value, tl.where(scale > 0.0, scale, 1.0))
        if UNITS > 1:
            value = tl.floor(value + 0.5)
    if kept.dtype.element_ty == tl.bfloat16:
        value = value.to(tl.float32)  # the interpreter knows no other way to bfloat16, nor from it
    tl.store(kept + slot * cells_kept + index, value.to(kept.dtype.element_ty), mask)


@triton.jit
def load_kept(kept, scales, slot, index, mask, cells_kept, UNITS: tl.constexpr):
    """What `keep` kept."""
    value = tl.load(kept + slot * cells_kept + index, mask, 0)
    if UNITS > 0:
        scale = tl.load(scales + slot * tl.num_programs(0) + tl.program_id(0))
        value = value.to(tl.float32) * scale
    if kept.dtype.element_ty == tl.bfloat16:
        value = value.to(tl.float32)
    return value


@triton.jit(do_not_specialize=SIZES)
def restore(
    field, kept, scales, cells, clock, at, interval, slots, cells_kept, size, origin, stride_z,
    RADIUS: tl.constexpr, FREE_SURFACE: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Set a field to what was kept of it in this step; nothing where the step is before the first.

    Grid: (blocks of KEPT cells, shots).
    """
    shot = tl.program_id(1).to(tl.int64)
    n = tl.load(clock) + at
    # Of a step before the first nothing is used, but its scale is read
    slot = tl.maximum(n, 0) // interval % slots * tl.num_programs(1) + shot
    index = tl.program_id(0) * SAMPLED + tl.arange(0, SAMPLED)
    mask = index < tl.where(n >= 0, cells_kept, 0)
    cell = tl.load(cells + index, mask, 0)
    value = load_kept(kept, scales, slot, index, mask, cells_kept, UNITS)
    value = value.to(field.dtype.element_ty)
    field += shot * size
    tl.store(field + cell, value, mask)
    if FREE_SURFACE:
        z = (cell - origin) // stride_z
        tl.store(field + (cell - 2 * z * stride_z), -value, mask & (z > 0) & (z <= RADIUS))


@triton.jit(do_not_specialize=SIZES)
def correlate(
    total, field, kept, scales, cells, clock, at, interval, slots, cells_kept, size,
    LISTED: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """total gains field times what was kept in this step. Grid: (blocks of KEPT cells, shots)."""
    shot = tl.program_id(1).to(tl.int64)
    slot = slot_of(clock, at, interval, slots) * tl.num_programs(1) + shot
    index = tl.program_id(0) * SAMPLED + tl.arange(0, SAMPLED)
    mask = index < cells_kept
    cell = shot * size + (tl.load(cells + index, mask, 0) if LISTED else index)
    value = load_kept(kept, scales, slot, index, mask, cells_kept, UNITS)
    value = tl.load(field + cell, mask, 0.0) * value.to(total.dtype.element_ty)
    tl.store(total + cell, tl.load(total + cell, mask, 0.0) + value, mask)
