"""Differences of a field along an axis, and the leapfrog step that is made of them."""

# Constants of the compiler are written large, as Triton's own are.
# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def symmetric(at, stride, weights, RADIUS: tl.constexpr):
    """Sum of weights[m] times the values m cells before and after those at the pointers `at`.

    m from 1 to RADIUS; stride: from one cell to the next.
    """
    total = tl.load(weights + 1) * (tl.load(at - stride) + tl.load(at + stride))
    for m in tl.static_range(2, RADIUS + 1):
        total += tl.load(weights + m) * (tl.load(at - m * stride) + tl.load(at + m * stride))
    return total


@triton.jit
def antisymmetric(at, stride, weights, RADIUS: tl.constexpr):
    """The same for those after less those before, with the weights after those of `symmetric`."""
    total = tl.load(weights + RADIUS + 1) * (tl.load(at + stride) - tl.load(at - stride))
    for m in tl.static_range(2, RADIUS + 1):
        total += tl.load(weights + RADIUS + m) * (
            tl.load(at + m * stride) - tl.load(at - m * stride)
        )
    return total


@triton.jit
def slot_of(clock, at, interval, slots):
    """Where the field of this step is kept; after the last slot comes the first again."""
    return (tl.load(clock) + at) // interval % slots


@triton.jit
def store_next(
    new, before, p, speed, total, cell, z, inside, stride_z,
    RADIUS: tl.constexpr, FREE_SURFACE: tl.constexpr,
):  # fmt: skip
    """The field after p, whose second derivative is `total`, where that before it was.

    FREE_SURFACE: the rows above the first become the negative of those below.
    """
    value = (p + p) - before + speed * total
    tl.store(new + cell, value, inside)
    if FREE_SURFACE:
        above = inside & (z > 0) & (z <= RADIUS)
        tl.store(new + (cell - 2 * z * stride_z), -value, above)
