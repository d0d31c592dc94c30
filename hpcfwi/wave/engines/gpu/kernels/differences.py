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
def centre_of(weights, NDIM: tl.constexpr, RADIUS: tl.constexpr):
    """The weight of a cell itself in the second differences of all axes."""
    centre = tl.load(weights) + tl.load(weights + 2 * (2 * RADIUS + 1))
    if NDIM == 3:
        centre += tl.load(weights + (2 * RADIUS + 1))
    return centre


@triton.jit
def laplacian(at, p, stride_z, stride_y, weights, NDIM: tl.constexpr, RADIUS: tl.constexpr):
    """The second differences of all axes at the pointers `at`, where there is p."""
    total = centre_of(weights, NDIM, RADIUS) * p + symmetric(at, stride_z, weights, RADIUS)
    if NDIM == 3:
        total += symmetric(at, stride_y, weights + (2 * RADIUS + 1), RADIUS)
    return total + symmetric(at, 1, weights + 2 * (2 * RADIUS + 1), RADIUS)


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
