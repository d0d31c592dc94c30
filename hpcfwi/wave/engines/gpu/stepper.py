"""How a field gets from one step to the next: which kernels run, in which tiles and streams.

Sources, receivers, histories, and which fields there are, is the business of `sweep`; the
arithmetic is in `kernels`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

from hpcfwi.wave.engines.gpu.blueprint import Blueprint
from hpcfwi.wave.engines.gpu.card import card_of
from hpcfwi.wave.engines.gpu.kernels.frame import advance_frame, relax
from hpcfwi.wave.engines.gpu.kernels.interior import advance
from hpcfwi.wave.engines.gpu.loop import STRETCH, Loop
from hpcfwi.wave.engines.gpu.tables import lay_out_profiles, upload, weigh_differences
from hpcfwi.wave.engines.gpu.tiles import Tile, find_tile
from hpcfwi.wave.problem import Problem

INTERPRETED = bool(triton.knobs.runtime.interpret)
# Slab cells to a program of `relax`; an interpreted program takes as long for many as for few.
RELAXED = 4096 if INTERPRETED else 512
INTERPRETED_TILES = {2: Tile(32, 1, 64, 4), 3: Tile(16, 16, 32, 4)}
# Slabs are some twenty cells wide, and those at the sides should fill the lanes.
FRAME_TILES = INTERPRETED_TILES if INTERPRETED else {2: Tile(8, 1, 32, 4), 3: Tile(2, 4, 32, 4)}
# Products are rounded before they are added, so that bits do not depend on how a compiler pairs
# them: not on the tile, the card or its maker (decision 047).
FUSED = False
# Timings of a tile, of a stretch of steps each.
TIMINGS = 5


class Stepper:
    """Launches for the fields of one blueprint.

    arrays: those of the blueprint; clock: with the number of a step, on the device.
    """

    def __init__(
        self, blueprint: Blueprint, problem: Problem, arrays: Mapping[str, Tensor], clock: Tensor
    ) -> None:
        self.blueprint = blueprint
        layout, device = blueprint.layout, blueprint.device
        self._arrays, self._clock = arrays, clock
        self._slabs = torch.from_numpy(layout.slabs).to(device)
        tables = weigh_differences(problem), *lay_out_profiles(problem, layout)
        self._weights, *self._profiles = (
            torch.from_numpy(table).to(problem.speed) for table in tables
        )
        self._frame_tile = FRAME_TILES[layout.ndim]
        tiles = layout.frame_tiles(self._frame_tile.shape)
        self.frame_tiles = torch.from_numpy(tiles).to(device)
        self._side: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._tile = self.find_tile()

    def load(self, problem: Problem) -> None:
        """Take over a problem's numbers, its sizes being those of the blueprint."""
        layout = self.blueprint.layout
        self._arrays["v2dt2"].copy_(layout.lay_out(problem.scheme.v2dt2))
        upload(self._weights, weigh_differences(problem))
        for old, new in zip(self._profiles, lay_out_profiles(problem, layout), strict=True):
            upload(old, new)

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """What launches are given beside the arrays of the blueprint."""
        return self._slabs, self._weights, *self._profiles, self.frame_tiles

    def advance(
        self, at: int, mode: Any, cur: Tensor, new: Tensor, first: Tensor, second: Tensor,
        other: Tensor, keep: bool,
    ) -> None:  # fmt: skip
        """new = the field after cur, without sources; keep: second derivatives, too.

        at: the step less the time of the clock; mode: FORWARDS or BACKWARDS; first, second and
        other are the memory variables of `relax`. The frame comes beside the interior.
        """
        if self.blueprint.layout.absorbs:
            with self._beside():
                self._advance_frame(at, mode, cur, new, first, second, other, keep)
        self.advance_interior(at, cur, new, keep)
        # A capture must not wait for a stream in which nothing of it was begun
        if self._side is not None and self.blueprint.layout.absorbs:
            torch.cuda.current_stream(self.blueprint.device).wait_stream(self._side)

    def advance_interior(self, at: int, cur: Tensor, new: Tensor, keep: bool) -> None:
        """The same in the interior alone."""
        layout, tile, (lo, hi) = self.blueprint.layout, self._tile, self.blueprint.layout.interior
        if any(begin >= end for begin, end in zip(lo, hi, strict=True)):
            return
        z, y, x = layout.interior_tiles(tile.shape)
        u, *slot = self._place_kept(at)
        advance[(z * y * x * self.blueprint.shots,)](
            new, cur, self._arrays["v2dt2"], u, self._weights, *slot,
            self.blueprint.shots, layout.size, layout.origin, *layout.strides[:2], *lo, *hi, y, x,
            NDIM=layout.ndim, RADIUS=layout.radius, KEEP=keep,
            FREE_SURFACE=self.blueprint.free_surface, TILE_Z=tile.z, TILE_Y=tile.y, TILE_X=tile.x,
            num_warps=tile.warps, enable_fp_fusion=FUSED,
        )  # fmt: skip

    def _advance_frame(
        self, at: int, mode: Any, cur: Tensor, new: Tensor, first: Tensor, second: Tensor,
        other: Tensor, keep: bool,
    ) -> None:  # fmt: skip
        layout, tile = self.blueprint.layout, self._frame_tile
        (lo, hi), (u, *slot) = layout.interior, self._place_kept(at)
        relax[(_blocks(layout.slab_cells, RELAXED), layout.ndim, self.blueprint.shots)](
            cur, first, second, other, *self._profiles, self._weights, self._slabs,
            layout.size, layout.origin, *layout.shape, *layout.strides[:2], layout.memory_size,
            NDIM=layout.ndim, RADIUS=layout.radius, MODE=mode.value, BLOCK=RELAXED,
            enable_fp_fusion=FUSED,
        )  # fmt: skip
        advance_frame[(len(self.frame_tiles) * self.blueprint.shots,)](
            new, cur, self._arrays["v2dt2"], u, first, second, *self._profiles, self._weights,
            self._slabs, self.frame_tiles, *slot, self.blueprint.shots, layout.size, layout.origin,
            *layout.strides[:2], layout.memory_size, *lo, *hi,
            NDIM=layout.ndim, RADIUS=layout.radius, MODE=mode.value, KEEP=keep,
            FREE_SURFACE=self.blueprint.free_surface, TILE_Z=tile.z, TILE_Y=tile.y, TILE_X=tile.x,
            num_warps=tile.warps, enable_fp_fusion=FUSED,
        )  # fmt: skip

    def _place_kept(self, at: int) -> tuple[Tensor, Tensor, int, int, int]:
        """Where second derivatives are written: the array, and what makes a step's slot in it."""
        blueprint, straight = self.blueprint, self.blueprint.keeps_straight
        u = self._arrays["samples" if straight else "u"]
        return u, self._clock, at, blueprint.interval, len(u) if straight else 1

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """In a stream of its own, from here on; one after the other where there are none."""
        if self._side is None:
            yield
            return
        self._side.wait_stream(torch.cuda.current_stream(self.blueprint.device))
        with torch.cuda.stream(self._side):
            yield

    def find_tile(self) -> Tile:
        """Of the interior, timed on the arrays of the blueprint, in which there is nothing yet.

        Within the cache where a step of all shots is, and beyond it, another tile may be faster.
        """
        blueprint, layout = self.blueprint, self.blueprint.layout
        if INTERPRETED:
            return INTERPRETED_TILES[layout.ndim]
        fields = self._arrays["fields"]
        cards = torch.get_device_module(blueprint.device)

        def step(n: int, at: int) -> None:
            self.advance_interior(at, fields[n % 2], fields[(n + 1) % 2], keep=False)

        def measure(tile: Tile) -> float:
            """Milliseconds of a stretch of steps, captured, with the cache as steps leave it."""
            self._tile, times, loop = tile, [], Loop(self._clock, 1, 2)
            with on_device(blueprint.device):
                for _ in range(2 + TIMINGS):
                    begin, end = (cards.Event(enable_timing=True) for _ in range(2))
                    begin.record()
                    loop.run(step, 0, STRETCH)
                    end.record()
                    end.synchronize()
                    times.append(float(begin.elapsed_time(end)))
            # The first is compiled, the second captured
            return min(times[2:])

        card = card_of(blueprint.device)
        own, common = blueprint.count_touched()
        fits = card is not None and own * blueprint.shots + common <= card.cache
        name = cards.get_device_name(blueprint.device)
        scheme = f"{layout.ndim}-D, order {2 * layout.radius}, {blueprint.dtype}"
        cache = "within" if fits else "beyond"
        key = f"{name}, {scheme}, {cache} the cache, triton {triton.__version__}"
        return find_tile(key, layout.ndim, blueprint.shots * layout.size, measure)


def on_device(device: torch.device) -> AbstractContextManager:
    """Launches go to this device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _blocks(cells: int, size: int) -> int:
    return -(-cells // size)
