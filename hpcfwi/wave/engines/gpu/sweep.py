"""Time loops of the `gpu` engine: one batch of shots, forwards or backwards in time.

A `Sweep` goes forwards, and then backwards, or forwards with what a change of the model scatters,
any number of times, in the arrays of its `blueprint`. Here is what happens in a step; how a field
gets to the next one is in `stepper`, how steps are repeated in `loop`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcfwi.wave.engines.gpu.blueprint import KEPT, UNITS, Blueprint
from hpcfwi.wave.engines.gpu.cells import Matrix
from hpcfwi.wave.engines.gpu.kernels import history
from hpcfwi.wave.engines.gpu.kernels.frame import BACKWARDS, FORWARDS
from hpcfwi.wave.engines.gpu.kernels.points import ENTRIES, exchange
from hpcfwi.wave.engines.gpu.loop import Loop
from hpcfwi.wave.engines.gpu.stepper import FUSED, INTERPRETED, Stepper, _blocks, on_device
from hpcfwi.wave.engines.gpu.tables import upload
from hpcfwi.wave.problem import Problem
from hpcfwi.wave.revolve import Keep, Reverse, schedule

# Rows of a matrix to a program; an interpreted one takes as long for many as for few.
ROWS = 256 if INTERPRETED else 16


@dataclass(frozen=True)
class Kept:
    """Values at some cells in some steps, and the scales of those that are integers.

    values: (slot, shot, cell); cells: their offsets, or None for whole fields; interval: steps
    from one slot to the next.
    """

    values: Tensor
    scales: Tensor
    cells: Tensor | None
    interval: int


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
        self.samples = Kept(arrays["samples"], arrays["samples_scales"], frame, blueprint.interval)
        self.edges = Kept(arrays["edges"], arrays["edges_scales"], perimeter, 1)
        self._stream = _stream(device)
        self.clock = torch.zeros((), dtype=torch.int64, device=device)
        self.forwards, self.backwards, self.repeats, self.keeps, self.scatters = (
            Loop(self.clock, direction, blueprint.period) for direction in (1, -1, 1, 1, 1)
        )
        # The slots of the states that are kept, by segment.
        self.stored: dict[int, int] = {}
        self.stepper = Stepper(blueprint, problem, arrays, self.clock)

    def load(self, problem: Problem, sources: Matrix, receivers: Matrix) -> None:
        """Take over a problem's numbers, its sizes being those of the blueprint."""
        self._take_over()
        arrays = self.arrays
        self.stepper.load(problem)
        for name, matrix in (("sources", sources), ("receivers", receivers)):
            for table in ("cells", "weights", "occupied", "points", "spreading"):
                upload(arrays[f"{name}_{table}"], getattr(matrix, table))

    def _take_over(self) -> None:
        """Go on in the stream of now, after what is still at work in another one.

        What has been let go is nobody else's before the streams that it was used in are done.
        """
        now = _stream(self.blueprint.device)
        if now is None or self._stream is None or now == self._stream:
            return
        now.wait_stream(self._stream)
        for tensor in self._list_tensors():
            tensor.record_stream(now)
        self._stream = now

    def _list_tensors(self) -> Iterator[Tensor]:
        """All that launches are given."""
        yield from self.arrays.values()
        yield from (kept.cells for kept in (self.samples, self.edges) if kept.cells is not None)
        yield self.clock
        yield from self.stepper.tables

    def run_forward(self, wavelet: Tensor) -> Tensor:
        """Traces (shot, receiver, time) for wavelets (shot, source, time)."""
        self._take_over()
        arrays, last = self.arrays, self.blueprint.steps - 1
        with on_device(self.blueprint.device):
            for name in ("fields", "memory", "energies"):
                arrays[name].zero_()
            arrays["wavelet"].copy_(wavelet.transpose(1, 2))
            self._run_storing(last)
            self.clock.fill_(last)
            self._exchange(0, field=arrays["fields"][last % 2], receivers="receivers")
            if self.blueprint.rebuilds:
                arrays["last"].copy_(arrays["fields"])
        return self._copy_traces()

    def run_scattered(self, change: Tensor) -> Tensor:
        """Traces (shot, receiver, time) of what scatters, for a change of v2dt2 on the grid."""
        self._take_over()
        arrays, last = self.arrays, self.blueprint.steps - 1
        with on_device(self.blueprint.device):
            for name in ("fields", "memory", "u", "rebuilt", "past", "past_memory"):
                arrays[name].zero_()
            arrays["image"].copy_(-self.blueprint.interval * self.blueprint.layout.lay_out(change))
            self.scatters.run(self._step_scattered, 0, last)
            self.clock.fill_(last)
            self._exchange(0, field=arrays["fields"][last % 2], receivers="receivers")
        return self._copy_traces()

    def _copy_traces(self) -> Tensor:
        """A copy in any case, also where there is one receiver and the transpose is contiguous."""
        traces = self.arrays["traces"].transpose(1, 2)
        return traces.clone(memory_format=torch.contiguous_format)

    def run_backward(self, residual: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Image, wavelet's gradient and energies, from the gradient with respect to the traces."""
        self._take_over()
        arrays, last = self.arrays, self.blueprint.steps - 1
        with on_device(self.blueprint.device):
            for name in ("fields", "memory", "u", "image", "wavelet_gradient"):
                arrays[name].zero_()
            arrays["energies"][1:].zero_()
            arrays["rebuilt"].copy_(arrays["last"])
            arrays["traces"].copy_(residual.transpose(1, 2))
            self.clock.fill_(last)
            self._exchange(0, target=arrays["fields"][last % 2], sources="receivers")
            if self.blueprint.recomputes:
                self._run_segments(last)
            else:
                self.backwards.run(self._step_backward, last - 1, last)
        image, *energies = (
            self.blueprint.interval * self.blueprint.layout.take_out(fields)
            for fields in (arrays["image"][0], *arrays["energies"])
        )
        return image, arrays["wavelet_gradient"].transpose(1, 2).clone(), energies

    def _run_storing(self, last: int) -> None:
        """All steps up to the last, and the states on the way that the way back begins with."""
        blueprint, arrays, begin = self.blueprint, self.arrays, 0
        self.stored.clear()
        for action in schedule(blueprint.segments, blueprint.states) if blueprint.states else ():
            if isinstance(action, Reverse):
                break
            end = action.segment * blueprint.segment
            self.forwards.run(self._step_forward, begin, end - begin)
            self._store(action.segment, arrays["fields"], arrays["memory"][:2])
            begin = end
        self.forwards.run(self._step_forward, begin, last - begin)

    def _run_segments(self, last: int) -> None:
        """Simulate the segments again, the last one first, each followed by its way back."""
        blueprint, arrays = self.blueprint, self.arrays
        for action in schedule(blueprint.segments, blueprint.states):
            if isinstance(action, Keep) and action.segment in self.stored:
                continue
            self._load_state(action.origin)
            origin, begin = (k * blueprint.segment for k in action)
            self.repeats.run(self._step_past, origin, begin - origin)
            if isinstance(action, Keep):
                self._store(action.segment, arrays["past"], arrays["past_memory"])
            else:
                steps = min(blueprint.segment, last - begin)
                self.keeps.run(self._step_kept, begin, steps)
                self.backwards.run(self._step_backward, begin + steps - 1, steps)
                self.stored.pop(action.segment, None)

    def _store(self, segment: int, fields: Tensor, memory: Tensor) -> None:
        slot = min(set(range(self.blueprint.states)) - set(self.stored.values()))
        self.arrays["states"][slot].copy_(fields)
        self.arrays["states_memory"][slot].copy_(memory)
        self.stored[segment] = slot

    def _load_state(self, segment: int) -> None:
        for name in ("past", "past_memory"):
            past = self.arrays[name]
            if segment in self.stored:
                past.copy_(self.arrays[name.replace("past", "states")][self.stored[segment]])
            else:
                past.zero_()

    def _step_forward(self, n: int, at: int) -> None:
        """From the field of step n to the next; `at` is n less the time of the clock."""
        blueprint, arrays = self.blueprint, self.arrays
        sampled, cur = blueprint.is_sampled(n), arrays["fields"][n % 2]
        keep = sampled and not blueprint.recomputes
        self._simulate(n, at, arrays["fields"], arrays["memory"], keep, records=True)
        if sampled and len(arrays["energies"]):
            arrays["energies"][0].addcmul_(cur, cur)
        if blueprint.rebuilds:
            self._launch_kept(history.keep, self.edges, at, field=cur)

    def _step_past(self, n: int, at: int) -> None:
        """The same once more."""
        self._simulate(n, at, self.arrays["past"], self.arrays["past_memory"], keep=False)

    def _step_kept(self, n: int, at: int) -> None:
        """The same, in the segment that the way back comes to."""
        keep = self.blueprint.is_sampled(n)
        self._simulate(n, at, self.arrays["past"], self.arrays["past_memory"], keep)

    def _simulate(
        self, n: int, at: int, fields: Tensor, memory: Tensor, keep: bool, records: bool = False
    ) -> None:
        cur, new = fields[n % 2], fields[(n + 1) % 2]
        psi, zeta = memory[0], memory[1]
        self.stepper.advance(at, FORWARDS, cur, new, psi, zeta, zeta, keep=keep)
        self._exchange(
            at,
            target=new,
            sources="sources",
            field=cur if records else None,
            receivers="receivers",
        )
        if keep and not self.blueprint.keeps_straight:
            self._launch_kept(history.keep, self.samples, at, field=self.arrays["u"])

    def _step_scattered(self, n: int, at: int) -> None:
        """From the scattered field of step n to the next.

        Its source is the image, here minus the change, times u: it comes first, where the field is
        still that of the step before, which the next one has with a minus.
        """
        blueprint, arrays = self.blueprint, self.arrays
        cur, new = arrays["fields"][n % 2], arrays["fields"][(n + 1) % 2]
        psi, zeta = arrays["memory"][:2]
        sampled, change = blueprint.is_sampled(n), arrays["image"][0]
        if blueprint.recomputes:
            self._step_kept(n, at)
        if blueprint.rebuilds:
            self._rebuild(n, at, 1, keep=sampled)
        if sampled:
            if blueprint.rebuilds:
                new.addcmul_(change, arrays["u"][0])
            self._launch_kept(history.correlate, self.samples, at, total=new, field=change)
            self._exchange(at, target=new, factor=change, sources="sources")
        self.stepper.advance(at, FORWARDS, cur, new, psi, zeta, zeta, keep=False)
        self._exchange(at, field=cur, receivers="receivers")

    def _step_backward(self, n: int, at: int) -> None:
        """From the adjoint field of step n + 1 to that of step n."""
        blueprint, arrays = self.blueprint, self.arrays
        cur, new = arrays["fields"][(n + 1) % 2], arrays["fields"][n % 2]
        phi, *zeta = arrays["memory"]
        sampled = blueprint.is_sampled(n)
        self.stepper.advance(
            at, BACKWARDS, cur, new, phi, zeta[n % 2], zeta[(n + 1) % 2], keep=False
        )
        self._exchange(at, target=new, sources="receivers", field=cur, receivers="sources")
        if blueprint.rebuilds:
            self._rebuild(n, at, -1, keep=sampled)
        if sampled:
            image = arrays["image"][0]
            if blueprint.rebuilds:
                image.addcmul_(cur, arrays["u"][0])
            self._launch_kept(history.correlate, self.samples, at, total=image, field=cur)
            self._exchange(at, target=image, factor=cur, sources="sources")
            if len(arrays["energies"]):
                arrays["energies"][1].addcmul_(cur, cur)

    def _rebuild(self, n: int, at: int, way: int, keep: bool) -> None:
        """The interior of the forward field of step n + way, from those of n and n - way."""
        now, then = (self.arrays["rebuilt"][(n + k) % 2] for k in (0, 1))
        self.stepper.advance_interior(at, now, then, keep)
        self._exchange(at, target=then, sources="sources")
        self._launch_kept(
            history.restore, self.edges, at + way, field=then, origin=self.blueprint.layout.origin,
            stride_z=self.blueprint.layout.strides[0], RADIUS=self.blueprint.layout.radius,
            FREE_SURFACE=self.blueprint.free_surface,
        )  # fmt: skip

    def _exchange(
        self,
        at: int,
        target: Tensor | None = None,
        factor: Tensor | None = None,
        sources: str | None = None,
        field: Tensor | None = None,
        receivers: str | None = None,
    ) -> None:
        """Add the signals of `sources` to a field, and record another one at `receivers`.

        Each is the name of a matrix; receivers send their residuals, and sources receive the
        gradient of their wavelet, on the way back. factor: what signals are multiplied by; v2dt2
        where it is not given.
        """
        blueprint, arrays = self.blueprint, self.arrays
        sending, listening = sources or "sources", receivers or "receivers"
        signal = arrays["wavelet" if sending == "sources" else "traces"]
        record = arrays["traces" if listening == "receivers" else "wavelet_gradient"]
        occupied, points = arrays[f"{sending}_occupied"], arrays[f"{sending}_points"]
        cells = arrays[f"{listening}_cells"]
        senders = _blocks(points.shape[1], ROWS) if target is not None else 0
        listeners = _blocks(cells.shape[1], ROWS) if field is not None else 0
        exchange[(senders + listeners, blueprint.shots)](
            record if target is None else target,
            arrays["v2dt2"] if factor is None else factor,
            0 if factor is None else blueprint.layout.size,
            occupied, points, arrays[f"{sending}_spreading"], signal,
            points.shape[1], points.shape[2], signal.shape[2],
            record if field is None else field, cells, arrays[f"{listening}_weights"], record,
            cells.shape[1], cells.shape[2], self.clock, at, blueprint.steps, senders,
            blueprint.layout.size, blueprint.layout.origin, blueprint.layout.strides[0],
            RADIUS=blueprint.layout.radius, FREE_SURFACE=blueprint.free_surface, BLOCK=ROWS,
            ADDED=_blocks(points.shape[2], ENTRIES.value),
            RECORDED=_blocks(cells.shape[2], ENTRIES.value), enable_fp_fusion=FUSED,
        )  # fmt: skip

    def _launch_kept(self, kernel: Any, kept: Kept, at: int, **arguments: Any) -> None:
        """`keep`, `restore` or `correlate`: what they have in common, and their own arguments."""
        cells = kept.values.shape[2]
        if cells == 0:
            return
        if kernel is not history.restore:
            arguments["LISTED"] = kept.cells is not None
        kernel[(_blocks(cells, KEPT), self.blueprint.shots)](
            kept=kept.values, scales=kept.scales, cells=kept.cells, clock=self.clock, at=at,
            interval=kept.interval, slots=kept.values.shape[0], cells_kept=cells,
            size=self.blueprint.layout.size, UNITS=UNITS.get(kept.values.dtype, 0),
            enable_fp_fusion=FUSED, **arguments,
        )  # fmt: skip


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.current_stream(device) if device.type == "cuda" else None
