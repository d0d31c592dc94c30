"""Time loops of the `gpu` engine: one chunk of shots, forwards or backwards in time.

A `Stepper` advances a field by one step: it chooses tiles and streams, and launches the kernels. A
`Sweep` adds sources, receivers and histories. It simulates the wave, and then the adjoint or the
scattered field any number of times, in the arrays of its `Blueprint`. Layers of a grid swap
planes of each field that is complete. The arithmetic is in `kernels`, and the repetition of steps
is in `device`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from typing import Any

import torch
import triton
from torch import Tensor

from hpcfwi.wave.engines.gpu import kernels
from hpcfwi.wave.engines.gpu.device import STRETCH, Loop, Tile, cache_of, find_tile, on_device
from hpcfwi.wave.engines.gpu.layout import (
    KEPT,
    UNITS,
    Blueprint,
    TapMatrix,
    lay_out_profiles,
    upload,
    weigh_differences,
)
from hpcfwi.wave.history import Recomputation, Span, Sweeps
from hpcfwi.wave.layers import ALONE, Crew
from hpcfwi.wave.problem import Problem, square_speed

INTERPRETED = bool(triton.knobs.runtime.interpret)
# Number of slab cells of a program of `relax`; the time of an interpreted program hardly depends on
# it.
RELAXED = 4096 if INTERPRETED else 512
INTERPRETED_TILES = {2: Tile(32, 1, 64, 4), 3: Tile(16, 16, 32, 4)}
# Slabs are about twenty cells wide; the tiles are narrow so that slabs at the sides fill the lanes.
FRAME_TILES = INTERPRETED_TILES if INTERPRETED else {2: Tile(8, 1, 32, 4), 3: Tile(2, 4, 32, 4)}
# Products are rounded before they are added: if the compiler fused multiplications and additions,
# bits would depend on the tile and on the card (docs/decisions/047).
FUSED = False
# Number of timings of each tile; each timing takes a stretch of steps.
TIMINGS = 5


class Stepper:
    """The launches that advance the fields of one blueprint.

    arrays: those of the blueprint; clock: the number of the step on the device.
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
            torch.from_numpy(table).to(problem.like) for table in tables
        )
        self._frame_tile = FRAME_TILES[layout.ndim]
        tiles = layout.frame_tiles(self._frame_tile.shape)
        self.frame_tiles = torch.from_numpy(tiles).to(device)
        self._side: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._tile = self.find_tile()

    def load(self, problem: Problem) -> None:
        """Load the numbers of a problem whose sizes are those of the blueprint."""
        layout = self.blueprint.layout
        self._arrays["v2dt2"].copy_(layout.lay_out(square_speed(problem)))
        upload(self._weights, weigh_differences(problem))
        for old, new in zip(self._profiles, lay_out_profiles(problem, layout), strict=True):
            upload(old, new)

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """Tensors that are arguments of launches in addition to the arrays of the blueprint."""
        return self._slabs, self._weights, *self._profiles, self.frame_tiles

    def advance(
        self, at: int, mode: Any, cur: Tensor, new: Tensor, first: Tensor, second: Tensor,
        other: Tensor, keep: bool,
    ) -> None:  # fmt: skip
        """Replace `new`, the field before `cur`, by the field after `cur`, without sources.

        at: the step minus the time of the clock; mode: FORWARDS or BACKWARDS; first, second, other:
        the memory variables as in `relax`; keep: True if the second derivatives are stored. The
        frame is computed concurrently with the interior.
        """
        if self.blueprint.layout.absorbs:
            with self._beside():
                self._advance_frame(at, mode, cur, new, first, second, other, keep)
        self.advance_interior(at, cur, new, keep)
        # A capture must not wait for a stream in which it has launched nothing.
        if self._side is not None and self.blueprint.layout.absorbs:
            torch.cuda.current_stream(self.blueprint.device).wait_stream(self._side)

    def advance_interior(self, at: int, cur: Tensor, new: Tensor, keep: bool) -> None:
        """Replace `new` by the field after `cur` in the interior only."""
        layout, tile, (lo, hi) = self.blueprint.layout, self._tile, self.blueprint.layout.interior
        if any(begin >= end for begin, end in zip(lo, hi, strict=True)):
            return
        z, y, x = layout.interior_tiles(tile.shape)
        u, *slot = self._place_kept(at)
        kernels.advance[(z * y * x * self.blueprint.shots,)](
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
        kernels.relax[(_blocks(layout.slab_cells, RELAXED), layout.ndim, self.blueprint.shots)](
            cur, first, second, other, *self._profiles, self._weights, self._slabs,
            layout.size, layout.origin, *layout.shape, *layout.strides[:2], layout.memory_size,
            NDIM=layout.ndim, RADIUS=layout.radius, MODE=mode.value, BLOCK=RELAXED,
            enable_fp_fusion=FUSED,
        )  # fmt: skip
        kernels.advance_frame[(len(self.frame_tiles) * self.blueprint.shots,)](
            new, cur, self._arrays["v2dt2"], u, first, second, *self._profiles, self._weights,
            self._slabs, self.frame_tiles, *slot, self.blueprint.shots, layout.size, layout.origin,
            *layout.strides[:2], layout.memory_size, *lo, *hi,
            NDIM=layout.ndim, RADIUS=layout.radius, MODE=mode.value, KEEP=keep,
            FREE_SURFACE=self.blueprint.free_surface, TILE_Z=tile.z, TILE_Y=tile.y, TILE_X=tile.x,
            num_warps=tile.warps, enable_fp_fusion=FUSED,
        )  # fmt: skip

    def _place_kept(self, at: int) -> tuple[Tensor, Tensor, int, int, int]:
        """Return the array for second derivatives, and the arguments that determine its slot."""
        blueprint, straight = self.blueprint, self.blueprint.keeps_straight
        u = self._arrays["samples" if straight else "u"]
        return u, self._clock, at, blueprint.interval, len(u) if straight else 1

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """Launch the kernels of a `with` block in a second stream, if the device has streams."""
        if self._side is None:
            yield
            return
        self._side.wait_stream(torch.cuda.current_stream(self.blueprint.device))
        with torch.cuda.stream(self._side):
            yield

    def find_tile(self) -> Tile:
        """Return the tile of the interior, timed on the arrays of the blueprint if necessary.

        The fastest tile may depend on whether the data of a step of all shots fit into the cache.
        """
        blueprint, layout = self.blueprint, self.blueprint.layout
        if INTERPRETED:
            return INTERPRETED_TILES[layout.ndim]
        fields = self._arrays["fields"]
        cards = torch.get_device_module(blueprint.device)

        def step(n: int, at: int) -> None:
            self.advance_interior(at, fields[n % 2], fields[(n + 1) % 2], keep=False)

        def measure(tile: Tile) -> float:
            """Return the milliseconds of a captured stretch of steps, with the cache in use."""
            self._tile, times, loop = tile, [], Loop(self._clock, 1, 2)
            with on_device(blueprint.device):
                for _ in range(2 + TIMINGS):
                    begin, end = (cards.Event(enable_timing=True) for _ in range(2))
                    begin.record()
                    loop.run(step, 0, STRETCH)
                    end.record()
                    end.synchronize()
                    times.append(float(begin.elapsed_time(end)))
            # The first run compiles, and the second one captures.
            return min(times[2:])

        held = cache_of(blueprint.device)
        own, common = blueprint.count_touched()
        fits = held is not None and own * blueprint.shots + common <= held
        name = cards.get_device_name(blueprint.device)
        scheme = f"{layout.ndim}-D, order {2 * layout.radius}, {blueprint.dtype}"
        cache = "within" if fits else "beyond"
        key = f"{name}, {scheme}, {cache} the cache, triton {triton.__version__}"
        return find_tile(key, layout.ndim, blueprint.shots * layout.size, measure)


def _blocks(cells: int, size: int) -> int:
    return -(-cells // size)


# Number of rows of a matrix of a program; the time of an interpreted program hardly depends on it.
ROWS = 256 if INTERPRETED else 16


@dataclass(frozen=True)
class Kept:
    """The values that are stored at some cells in some steps.

    values: (slot, shot, cell); scales: (slot, shot, block), the scales of formats that have them;
    starts: (block + 1,), the first cell of each scale, see `Blueprint.find_starts`; cells: offsets
    of the cells, or None if whole fields are stored; interval: number of steps from one slot to the
    next.
    """

    values: Tensor
    scales: Tensor
    starts: Tensor
    cells: Tensor | None
    interval: int

    @property
    def blocks(self) -> int:
        """Number of programs that handle the cells of a shot."""
        return self.scales.shape[2] or _blocks(self.values.shape[2], KEPT)


class Sweep:
    """The arrays and launches of one blueprint."""

    def __init__(self, blueprint: Blueprint, problem: Problem) -> None:
        self.blueprint = blueprint
        layout, device = blueprint.layout, blueprint.device
        self.arrays = {
            name: torch.zeros(shape, dtype=dtype, device=device)
            for name, (shape, dtype) in blueprint.list_arrays().items()
        }
        arrays = self.arrays
        frame, perimeter = (
            layout.offsets(boxes, device) if blueprint.rebuilds else None
            for boxes in (layout.frame, layout.perimeter)
        )
        self.samples, self.edges = (
            Kept(arrays[name], arrays[f"{name}_scales"], arrays[f"{name}_starts"], cells, interval)
            for name, cells, interval in (
                ("samples", frame, blueprint.interval),
                ("edges", perimeter, 1),
            )
        )
        for name in ("samples", "edges"):
            upload(arrays[f"{name}_starts"], blueprint.find_starts(name))
        self._stream = _stream(device)
        self.clock = torch.zeros((), dtype=torch.int64, device=device)
        make_loop = partial(Loop, self.clock, period=blueprint.period, captures=not layout.halo)
        self.forwards = {flags: make_loop(1) for flags in product((False, True), repeat=2)}
        self.backwards, self.scatters = make_loop(-1), make_loop(1)
        self._crew: Crew = ALONE
        # The adjoint or scattered wave takes the arrays of a wave that is not simulated again
        self._waves, self._memory = arrays["fields"], arrays["memory"][:2]
        if blueprint.recomputes:
            self._waves, self._memory = arrays["past"], arrays["past_memory"]
        self.stepper = Stepper(blueprint, problem, arrays, self.clock)

    def count_bytes(self) -> int:
        return self.blueprint.count_bytes()

    def load(self, problem: Problem, sources: TapMatrix, receivers: TapMatrix, crew: Crew) -> None:
        """Load the numbers of a problem whose sizes are those of the blueprint.

        crew: the ranks with whose layers this one swaps planes.
        """
        self._take_over()
        self._crew = crew
        arrays = self.arrays
        self.stepper.load(problem)
        for name, matrix in (("sources", sources), ("receivers", receivers)):
            for table in ("cells", "weights", "occupied", "points", "spreading"):
                upload(arrays[f"{name}_{table}"], getattr(matrix, table))

    def _take_over(self, *states: list[Tensor]) -> None:
        """Change to the current stream, and make it wait for kernels in the previous one.

        The tensors, also those of the states, are recorded in the current stream, so that their
        memory is not reused before its kernels have finished.
        """
        now = _stream(self.blueprint.device)
        if now is None or self._stream is None or now == self._stream:
            return
        now.wait_stream(self._stream)
        for tensor in chain(self._list_tensors(), *states):
            tensor.record_stream(now)
        self._stream = now

    def _list_tensors(self) -> Iterator[Tensor]:
        """Yield all tensors that launches use."""
        yield from self.arrays.values()
        yield from (kept.cells for kept in (self.samples, self.edges) if kept.cells is not None)
        yield self.clock
        yield from self.stepper.tables

    def run_forward(self, replay: Recomputation, wavelet: Tensor) -> Tensor:
        """Return the traces (shot, receiver, time) of wavelets (shot, source, time).

        replay: stores states for the other passes, which have the same argument.
        """
        self._take_over()
        arrays = self.arrays
        with on_device(self.blueprint.device):
            for array in (self._waves, self._memory, arrays["energies"]):
                array.zero_()
            arrays["wavelet"].copy_(wavelet.transpose(1, 2))
            replay.simulate(self._sweeps(records=True))
            self._record_last(self._waves)
            if self.blueprint.rebuilds:
                arrays["last"].copy_(arrays["fields"])
        return self._copy_traces()

    def run_scattered(self, replay: Recomputation, change: Tensor) -> Tensor:
        """Return the traces (shot, receiver, time) of the scattered field.

        change: of v2dt2, on the padded grid.
        """
        self._take_over(*replay.kept.values())
        arrays = self.arrays
        with on_device(self.blueprint.device):
            for name in ("fields", "memory", "u", "rebuilt"):
                arrays[name].zero_()
            arrays["image"].copy_(-self.blueprint.interval * self.blueprint.layout.lay_out(change))

            def follow(span: Span, first: int) -> None:  # noqa: ARG001
                self.scatters.run(self._step_scattered, span[0], span[1] - span[0])

            replay.repeat(self._sweeps(), follow)
            self._record_last(arrays["fields"])
        return self._copy_traces()

    def _record_last(self, fields: Tensor) -> None:
        """Record the field of the last step."""
        last = self.blueprint.steps - 1
        self.clock.fill_(last)
        self._launch_exchange(0, field=fields[last % 2], receivers="receivers")

    def _copy_traces(self) -> Tensor:
        """Return the traces as a copy, also if there is one receiver and no copy is necessary."""
        traces = self.arrays["traces"].transpose(1, 2)
        return traces.clone(memory_format=torch.contiguous_format)

    def run_backward(
        self, replay: Recomputation, adjoint_source: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the image, the gradient with respect to the wavelet, and the energies.

        adjoint_source: the gradient with respect to the traces, (shot, receiver, time).
        """
        self._take_over(*replay.kept.values())
        arrays, last = self.arrays, self.blueprint.steps - 1
        with on_device(self.blueprint.device):
            for name in ("fields", "memory", "u", "image", "wavelet_gradient"):
                arrays[name].zero_()
            arrays["energies"][1:].zero_()
            arrays["rebuilt"].copy_(arrays["last"])
            arrays["traces"].copy_(adjoint_source.transpose(1, 2))
            self.clock.fill_(last)
            self._launch_exchange(0, target=arrays["fields"][last % 2], sources="receivers")
            self._swap(arrays["fields"][last % 2])

            def follow(span: Span, first: int) -> None:  # noqa: ARG001
                self.backwards.run(self._step_backward, span[1] - 1, span[1] - span[0])

            replay.reverse(self._sweeps(), follow)
        image, *energies = (
            self.blueprint.interval * self.blueprint.layout.take_out(fields)
            for fields in (arrays["image"][0], *arrays["energies"])
        )
        return image, arrays["wavelet_gradient"].transpose(1, 2).clone(), energies

    def _sweeps(self, records: bool = False) -> Sweeps:
        """Return the sweeps of the forward wave, which record traces and energies if wanted."""

        def run(_: Any, span: Span, first: int | None, explores: bool) -> None:  # noqa: ARG001
            stores = first is not None
            step = partial(self._step_forward, records=records, stores=stores)
            self.forwards[records, stores].run(step, span[0], span[1] - span[0])

        return Sweeps(lambda: (self._waves, self._memory, self.arrays["u"]), run)

    def _step_forward(self, n: int, at: int, records: bool = True, stores: bool = True) -> None:
        """Advance the forward wave from step n to n + 1; `at` is n minus the time of the clock."""
        blueprint, arrays = self.blueprint, self.arrays
        cur, new = self._waves[n % 2], self._waves[(n + 1) % 2]
        psi, zeta = self._memory
        sampled = blueprint.is_sampled(n)
        keep = sampled and stores
        self.stepper.advance(at, kernels.FORWARDS, cur, new, psi, zeta, zeta, keep=keep)
        self._launch_exchange(
            at, target=new, sources="sources", field=cur if records else None, receivers="receivers"
        )
        self._swap(new)
        if keep and not blueprint.keeps_straight:
            self._launch_kept(kernels.store, self.samples, at, field=arrays["u"])
        if records and sampled and len(arrays["energies"]):
            arrays["energies"][0].addcmul_(cur, cur)
        if blueprint.rebuilds:
            self._launch_kept(kernels.store, self.edges, at, field=cur)

    def _step_scattered(self, n: int, at: int) -> None:
        """Advance the scattered field from step n to n + 1.

        The source is the change of v2dt2 times u. The array "image" holds minus the change. Its
        product with u is added to the field of step n - 1 before the field is advanced, because
        that field enters the next one with a minus sign.
        """
        blueprint, arrays = self.blueprint, self.arrays
        cur, new = arrays["fields"][n % 2], arrays["fields"][(n + 1) % 2]
        psi, zeta = arrays["memory"][:2]
        sampled, change = blueprint.is_sampled(n), arrays["image"][0]
        if blueprint.rebuilds:
            self._rebuild(n, at, 1, keep=sampled)
        if sampled:
            if blueprint.rebuilds:
                new.addcmul_(change, arrays["u"][0])
            self._launch_kept(kernels.correlate, self.samples, at, total=new, field=change)
            self._launch_exchange(at, target=new, factor=change, sources="sources")
        self.stepper.advance(at, kernels.FORWARDS, cur, new, psi, zeta, zeta, keep=False)
        self._swap(new)
        self._launch_exchange(at, field=cur, receivers="receivers")

    def _step_backward(self, n: int, at: int) -> None:
        """Advance the adjoint field from step n + 1 to step n."""
        blueprint, arrays = self.blueprint, self.arrays
        cur, new = arrays["fields"][(n + 1) % 2], arrays["fields"][n % 2]
        phi, *zeta = arrays["memory"]
        sampled = blueprint.is_sampled(n)
        self.stepper.advance(
            at, kernels.BACKWARDS, cur, new, phi, zeta[n % 2], zeta[(n + 1) % 2], keep=False
        )
        self._launch_exchange(at, target=new, sources="receivers", field=cur, receivers="sources")
        self._swap(new)
        if blueprint.rebuilds:
            self._rebuild(n, at, -1, keep=sampled)
        if sampled:
            image = arrays["image"][0]
            if blueprint.rebuilds:
                image.addcmul_(cur, arrays["u"][0])
            self._launch_kept(kernels.correlate, self.samples, at, total=image, field=cur)
            self._launch_exchange(at, target=image, factor=cur, sources="sources")
            if len(arrays["energies"]):
                arrays["energies"][1].addcmul_(cur, cur)

    def _rebuild(self, n: int, at: int, way: int, keep: bool) -> None:
        """Compute the interior of the forward field of step n + way from steps n and n - way."""
        now, then = (self.arrays["rebuilt"][(n + k) % 2] for k in (0, 1))
        self.stepper.advance_interior(at, now, then, keep)
        self._launch_exchange(at, target=then, sources="sources")
        self._launch_kept(
            kernels.restore, self.edges, at + way, field=then, origin=self.blueprint.layout.origin,
            stride_z=self.blueprint.layout.strides[0], RADIUS=self.blueprint.layout.radius,
            FREE_SURFACE=self.blueprint.free_surface,
        )  # fmt: skip
        self._swap(then)

    def _swap(self, field: Tensor) -> None:
        """Swap the planes next to the cuts of a complete field with the neighbours."""
        if self.blueprint.layout.halo:
            self._crew.swap(*self.blueprint.layout.halves(field))

    def _launch_exchange(
        self,
        at: int,
        target: Tensor | None = None,
        factor: Tensor | None = None,
        sources: str | None = None,
        field: Tensor | None = None,
        receivers: str | None = None,
    ) -> None:
        """Launch `exchange`: add signals to `target`, and record `field`, if these are given.

        sources, receivers: names of the matrices of the points that emit and that record. In the
        backward pass, receivers emit the adjoint source, and sources record the gradient with
        respect to the wavelet. factor: a field by which signals are multiplied, v2dt2 if not given.
        """
        blueprint, arrays = self.blueprint, self.arrays
        sending, listening = sources or "sources", receivers or "receivers"
        signal = arrays["wavelet" if sending == "sources" else "traces"]
        record = arrays["traces" if listening == "receivers" else "wavelet_gradient"]
        occupied, points = arrays[f"{sending}_occupied"], arrays[f"{sending}_points"]
        cells = arrays[f"{listening}_cells"]
        senders = _blocks(points.shape[1], ROWS) if target is not None else 0
        recorders = _blocks(cells.shape[1], ROWS) if field is not None else 0
        kernels.exchange[(senders + recorders, blueprint.shots)](
            record if target is None else target,
            arrays["v2dt2"] if factor is None else factor,
            0 if factor is None else blueprint.layout.size,
            occupied, points, arrays[f"{sending}_spreading"], signal,
            points.shape[1], points.shape[2], signal.shape[2],
            record if field is None else field, cells, arrays[f"{listening}_weights"], record,
            cells.shape[1], cells.shape[2], self.clock, at, blueprint.steps, senders,
            blueprint.layout.size, blueprint.layout.origin, blueprint.layout.strides[0],
            RADIUS=blueprint.layout.radius, FREE_SURFACE=blueprint.free_surface, BLOCK=ROWS,
            ADDED=_blocks(points.shape[2], kernels.ENTRIES.value),
            RECORDED=_blocks(cells.shape[2], kernels.ENTRIES.value), enable_fp_fusion=FUSED,
        )  # fmt: skip

    def _launch_kept(self, kernel: Any, kept: Kept, at: int, **arguments: Any) -> None:
        """Launch `store`, `restore` or `correlate` with common and additional arguments."""
        cells = kept.values.shape[2]
        if cells == 0:
            return
        if kernel is not kernels.restore:
            arguments["LISTED"] = kept.cells is not None
        kernel[(kept.blocks, self.blueprint.shots)](
            kept=kept.values, scales=kept.scales, starts=kept.starts, cells=kept.cells,
            clock=self.clock, at=at, interval=kept.interval, slots=kept.values.shape[0],
            cells_kept=cells, size=self.blueprint.layout.size,
            UNITS=UNITS.get(kept.values.dtype, 0), enable_fp_fusion=FUSED, **arguments,
        )  # fmt: skip


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.current_stream(device) if device.type == "cuda" else None
