"""The field's next step in the cells that no absorbing term reaches: `advance`.

The same forwards and backwards in time. The cells around them are in `frame`.
"""

# Constants of the compiler are written large, as Triton's own are.
# ruff: noqa: N803

import triton
import triton.language as tl

from hpcfwi.wave.engines.gpu.cells import ALIGNMENT
from hpcfwi.wave.engines.gpu.kernels.differences import (
    centre_of,
    laplacian,
    store_next,
    symmetric,
)
from hpcfwi.wave.engines.gpu.kernels.history import slot_of

# Tiles begin at a multiple of so many cells along x: at whole lines of the cache
LINE = tl.constexpr(ALIGNMENT)

# Arguments that Triton would compile a kernel again for, whenever they are a multiple of 16.
SIZES = [
    "at", "interval", "slots", "shots", "size", "origin", "stride_z", "stride_y", "lo_z", "lo_y",
    "lo_x", "hi_z", "hi_y", "hi_x", "tiles_y", "tiles_x",
]  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def advance(
    new, cur, v2dt2, u, weights, clock, at, interval, slots,
    shots, size, origin, stride_z, stride_y, lo_z, lo_y, lo_x, hi_z, hi_y, hi_x, tiles_y, tiles_x,
    NDIM: tl.constexpr, RADIUS: tl.constexpr, KEEP: tl.constexpr, FREE_SURFACE: tl.constexpr,
    TILE_Z: tl.constexpr, TILE_Y: tl.constexpr, TILE_X: tl.constexpr,
):  # fmt: skip
    """new = the field after cur (two steps after new), without sources, from lo to before hi.

    KEEP: whether to store the second derivatives in u (slot, shot, cell), in the slot of this step.
    Grid: (tiles times shots,), shots first, so that they find v2dt2 in the cache. A tile of three
    dimensions is gone through plane by plane, with the planes around it held in registers.
    Lanes beyond the tile's cells compute what the last cell does, and store nothing.
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

    x_lane = x_0 + tl.arange(0, TILE_X)[None, :]
    x = tl.minimum(tl.maximum(x_lane, lo_x), hi_x - 1)
    inside = (x_lane >= lo_x) & (x_lane < hi_x)
    if NDIM == 2:
        z_lane = z_0 + tl.arange(0, TILE_Z)[:, None]
        z = tl.minimum(z_lane, hi_z - 1)
        inside = inside & (z_lane < hi_z)
        cell = origin + z * stride_z + x
        before, speed = tl.load(new + cell), tl.load(v2dt2 + cell)
        p = tl.load(cur + cell)
        total = laplacian(cur + cell, p, stride_z, stride_y, weights, NDIM, RADIUS)
        if KEEP:
            tl.store(u + cell, total, inside)
        store_next(new, before, p, speed, total, cell, z, inside, stride_z, RADIUS, FREE_SURFACE)
    else:
        y_lane = y_0 + tl.arange(0, TILE_Y)[:, None]
        y = tl.minimum(y_lane, hi_y - 1)
        inside = inside & (y_lane < hi_y)
        cell = origin + z_0 * stride_z + y * stride_y + x
        centre = centre_of(weights, NDIM, RADIUS)
        y_weights = weights + (2 * RADIUS + 1)
        x_weights = weights + 2 * (2 * RADIUS + 1)
        # Triton knows how tuples are added, and not how they are unpacked
        planes = (tl.load(cur + (cell - RADIUS * stride_z)),)
        for m in tl.static_range(1, 2 * RADIUS):
            planes = planes + (tl.load(cur + (cell + (m - RADIUS) * stride_z)),)  # type: ignore[assignment]  # noqa: RUF005
        for z in range(z_0, tl.minimum(z_0 + TILE_Z, hi_z)):
            before, speed = tl.load(new + cell), tl.load(v2dt2 + cell)
            here = cur + cell
            planes = planes + (tl.load(here + RADIUS * stride_z),)  # type: ignore[assignment]  # noqa: RUF005
            p = planes[RADIUS]
            column = tl.load(weights + 1) * (planes[RADIUS - 1] + planes[RADIUS + 1])
            for m in tl.static_range(2, RADIUS + 1):
                column += tl.load(weights + m) * (planes[RADIUS - m] + planes[RADIUS + m])
            total = centre * p + column
            total += symmetric(here, stride_y, y_weights, RADIUS)
            total += symmetric(here, 1, x_weights, RADIUS)
            if KEEP:
                tl.store(u + cell, total, inside)
            store_next(
                new, before, p, speed, total, cell, z, inside, stride_z, RADIUS, FREE_SURFACE
            )
            planes = planes[1:]  # type: ignore[assignment]
            cell += stride_z
