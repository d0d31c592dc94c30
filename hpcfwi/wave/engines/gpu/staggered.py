"""The `gpu` engine for first-order equations: the shots of a chunk, see `first_order`.

All shots are advanced together. Tables of the description are constants of the kernels in
`staggered_kernels`; sources, receivers, images above a free surface and the history are operations
of torch between them. Functions of the interface that do not depend on the equation are those of
`engine`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave.engines import first_order
from hpcfwi.wave.engines.eager import clear as clear
from hpcfwi.wave.engines.eager import idle as idle
from hpcfwi.wave.engines.first_order import Derivatives, Discrete
from hpcfwi.wave.engines.first_order import backward as backward
from hpcfwi.wave.engines.first_order import scatter as scatter
from hpcfwi.wave.engines.gpu.device import keep_kernels, on_device
from hpcfwi.wave.engines.gpu.engine import NAME as NAME
from hpcfwi.wave.engines.gpu.engine import available as available
from hpcfwi.wave.engines.gpu.engine import count_updates as count_updates
from hpcfwi.wave.engines.gpu.engine import is_interpreted
from hpcfwi.wave.engines.gpu.layout import FORMATS, Layout, layout_of
from hpcfwi.wave.equation import Derivative
from hpcfwi.wave.history import Kind, Recomputation, Snapshots, Span, Sweeps, sampling_offset
from hpcfwi.wave.numerics import staggered_difference
from hpcfwi.wave.problem import Problem
from hpcfwi.wave.staggered import StaggeredScheme

HISTORIES: tuple[Kind, ...] = ("snapshots", "recompute")

# Cells of a program, and its warps: one cell for each thread. The time of an interpreted program
# hardly depends on its cells.
BLOCK, WARPS = 1 << 14 if is_interpreted() else 128, 4
# Formats with scales, and the value to which the largest magnitude of a shot's sample is scaled.
UNITS = {torch.float16: 1024.0, torch.int8: 127.0}


def footprint(problem: Problem, steps: int) -> int:
    """Return an upper bound of the bytes that `forward` and `backward` take for so many steps."""
    system, history = problem.system, problem.history
    derivatives = len(system.derivatives)
    rates = len({(name, t.coefficient) for s in system.stages for name in s for t in s[name]})
    size, shots = problem.like.element_size(), problem.n_shots
    # Fields, memory variables, buffers, samples, gradients and energies of a shot
    state = len(system.fields) + derivatives
    fields = state + 2 * derivatives + rates + 2
    replay = Recomputation(history, steps, problem.interval)
    if replay.states:
        fields += state * (1 + replay.states)
    kept = derivatives * replay.length * FORMATS.get(history.format, problem.like.dtype).itemsize
    cells = find_layout(problem).size
    points = steps * (4 * problem.receivers.shape[1] + 3 * problem.sources.shape[1])
    # Models, rates and their graph, and mixed profiles exist once
    once = 8 * rates + (2 * len(system.find_places()) if system.multiaxial else 0)
    return cells * (once * size + shots * (fields * size + kept)) + shots * points * size


def find_layout(problem: Problem) -> Layout:
    """Return the layout of a problem, with wide margins along z.

    Differences reach twice as far above the grid, because of images above a free surface.
    """
    layout = layout_of(problem)
    return replace(layout, halo=2 * layout.radius)


def _flatten(rows: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return the rows of a table, one after the other."""
    return tuple(chain.from_iterable(rows))


class _Stage:
    """The tables of a stage, see `staggered_kernels`."""

    def __init__(self, scheme: StaggeredScheme, number: int, varying: list[int]) -> None:
        system, names = scheme.system, list(scheme.system.fields)
        stage = system.stages[number]
        self.fields = [names.index(name) for name in stage]
        used = scheme.number_rates(number)
        derivatives = list(dict.fromkeys(d for each in used.values() for d in each))
        place = {derivative: k for k, derivative in enumerate(derivatives)}
        others = sum(
            len({term.derivative for t in system.stages[k].values() for term in t})
            for k in range(number)
        )
        differences = [(*self._describe(scheme, d), others + k) for k, d in enumerate(derivatives)]
        self.n_differences = len(differences)
        self.differences = _flatten(differences)
        self.targets = tuple(self.fields)
        self.terms = _flatten(
            (t, rate, place[d]) for t, each in enumerate(used.values()) for d, rate in each.items()
        )
        self.weights = _flatten(
            (place[d], each[d], names.index(name))
            for d in derivatives
            for name, each in used.items()
            if d in each
        )
        targets = list(stage)
        relaxations = [(k, it) for k, it in enumerate(scheme.relaxations) if it.memory in stage]
        self.relaxations = _flatten(
            (targets.index(it.memory), targets.index(it.field), k) for k, it in relaxations
        )
        self.relaxed_fields = _flatten(
            (names.index(it.memory), names.index(it.field), k) for k, it in relaxations
        )
        samples: dict[tuple[int, ...], int] = {}
        products = []
        for t, each in enumerate(used.values()):
            for rate in dict.fromkeys(each.values()):
                if rate in varying:
                    summed = tuple(place[d] for d in each if each[d] == rate)
                    sample = samples.setdefault(summed, len(samples))
                    products.append((varying.index(rate), t, sample))
        self.n_samples = len(samples)
        self.samples = _flatten((s, d) for summed, s in samples.items() for d in summed)
        self.products = _flatten(products)
        self.products_of_fields = _flatten((g, self.fields[t], s) for g, t, s in products)
        sources = dict.fromkeys(field for field, *_ in differences)
        self.sources = tuple(sources)
        self.source_terms = _flatten(
            (self.sources.index(field), k, axis, between)
            for k, (field, axis, between, *_) in enumerate(differences)
        )
        self.images = [
            (names.index(name), int("z" in system.fields[name].half), system.fields[name].odd)
            for name in stage
            if name not in system.memories
        ]

    @staticmethod
    def _describe(scheme: StaggeredScheme, derivative: Derivative) -> tuple[int, int, int, int]:
        """Return the field, the axis (0 for z, 2 for x), the place, and the profile."""
        axis, name = derivative
        place = scheme.system.place_of(derivative)
        between = int(axis in place)
        profile = 2 * scheme.axes.index(axis) + between
        if scheme.system.multiaxial:
            profile = scheme.system.find_places().index((axis, place))
        return list(scheme.system.fields).index(name), "zyx".index(axis), between, profile


class _Additions:
    """Additions to places in a flat array, of which several may be the same.

    Each place adds its entries in their order, so that bits do not change.
    """

    def __init__(self, places: Tensor) -> None:
        self.places = places
        self.cells, inverse, counts = torch.unique(
            places.flatten(), return_inverse=True, return_counts=True
        )
        most = int(counts.max()) if len(counts) else 0
        order = inverse.argsort(stable=True)
        begins = counts.cumsum(0) - counts
        rank = torch.arange(len(order), device=places.device) - begins[inverse[order]]
        self.entries = places.new_full((len(self.cells), most), len(order))
        self.entries[inverse[order], rank] = order

    def apply(self, flat: Tensor, values: Tensor) -> None:
        """Add values in the shape of the places to a flat array."""
        padded = torch.cat([values.flatten(), values.new_zeros(1)])[self.entries]
        total = flat[self.cells]
        for column in padded.unbind(1):
            total = total + column
        flat[self.cells] = total


class _GpuShots:
    """Shots of a problem on one device, see `first_order.FirstOrderShots`."""

    def __init__(self, problem: Problem, discrete: Discrete, keep: bool = True) -> None:
        if not is_interpreted():
            keep_kernels()
        scheme, like = discrete.scheme, discrete.signal.detach()
        self._problem, self._scheme, self._like = problem, scheme, like
        self._count, self._varying = problem.n_shots, discrete.varying if keep else []
        self._layout = layout = find_layout(problem)
        self._rates = torch.stack([layout.lay_out(r.detach()) for r in discrete.rates])
        self._stages = [_Stage(scheme, k, self._varying) for k in range(2)]
        self._fields, self._is_mixed = len(scheme.system.fields), scheme.system.multiaxial > 0.0
        self._memories = sum(stage.n_differences for stage in self._stages)
        self._samples = max(stage.n_samples for stage in self._stages)
        self._longest = max(problem.padded_shape)
        self._a, self._b = map(like.new_tensor, scheme.pad_profiles())
        if self._is_mixed:
            # One after the other, because those of a whole grid take much memory
            mixed = (scheme.mixed_profile(*each) for each in scheme.system.find_places())
            each = [[layout.lay_out(like.new_tensor(v)) for v in (p.a, p.b)] for p in mixed]
            self._longest = layout.size
            self._a, self._b = map(torch.stack, zip(*each, strict=True))
        weights = [staggered_difference(problem.order, h) for h in problem.spacing]
        self._weights = like.new_tensor(np.stack([weights[0], weights[-2], weights[-1]]))
        decays = [it.decay for it in scheme.relaxations]
        self._constants = like.new_tensor([0.5 * problem.dt, *decays])
        # The samples of some steps, the first of which has this number
        self._history: list[list[tuple[Tensor, Tensor]]] = []
        self._first = 0
        self._replay: Recomputation
        self._sent: Tensor
        self._factors: Sequence[Tensor]

    def simulate(self, signal: Tensor, factors: Sequence[Tensor]) -> Tensor:
        self._sent, self._factors = signal.detach(), [f.detach() for f in factors]
        history = self._problem.history if self._samples > 0 else Snapshots()
        self._history = []
        self._replay = Recomputation(history, signal.shape[-1], self._problem.interval)
        recorded = self._make_traces()
        self._replay.simulate(self._sweeps(self._sent, self._factors, recorded))
        return recorded

    def scatter(self, rates: Sequence[Tensor | None], factors: Sequence[Tensor | None]) -> Tensor:
        change = self._zeros(len(self._varying))
        for place, number in enumerate(self._varying):
            direction = rates[number]
            if direction is not None:
                change[place] = self._layout.lay_out(self._problem.interval * direction.detach())
        varied = [
            torch.zeros_like(known) if factor is None else factor.detach()
            for known, factor in zip(self._factors, factors, strict=True)
        ]
        found = self._make_traces()
        scattered = self._sweeps(self._sent, varied, found, change)

        def follow(span: Span, first: int) -> None:
            self._first = first
            scattered.advance(span, None)

        self._replay.repeat(self._sweeps(self._sent, self._factors), follow)
        return found

    def backpropagate(self, arriving: Tensor) -> Derivatives:
        problem, layout, shots = self._problem, self._layout, self._count
        fields, memory = self._zeros(self._fields, shots), self._zeros(self._memories, shots)
        most = max(stage.n_differences for stage in self._stages)
        buffers, samples = self._zeros(most, shots), self._zeros(self._samples, shots)
        gradients = self._zeros(len(self._varying), shots)
        energies = [self._zeros(shots) for _ in range(2 if problem.illuminate else 0)]
        signal = torch.zeros_like(self._sent)
        factors = [torch.zeros_like(f) for f in self._factors]
        additions = [_Additions(places) for places, _ in self._heard]
        flat = fields.view(-1)

        def follow(span: Span, first: int) -> None:
            self._first = first
            for n in range(span[1] - 1, span[0] - 1, -1):
                for k in (1, 0):
                    stage = self._stages[k]
                    for number, emitted in self._emitted[k]:
                        values = flat[emitted.places]
                        sent = self._signal_of(self._sent, number, n)
                        factors[number] += values * sent[..., None]
                        self._signal_of(signal, number, n).add_(
                            (values * self._factors[number]).sum(-1)
                        )
                    is_sampled = self._stores(n) and bool(stage.samples)
                    if is_sampled:
                        self._load(n, k, samples)
                        if energies:
                            energies[0] += samples[: stage.n_samples].square().sum(0)
                            energies[1] += fields[stage.fields].square().sum(0)
                    self._launch(
                        "weigh", fields, self._rates, memory, self._a, self._b, self._constants,
                        samples, gradients, buffers, longest=self._longest,
                        DIFFERENCES=stage.differences, TERMS=stage.weights,
                        RELAXATIONS=stage.relaxed_fields, PRODUCTS=stage.products_of_fields,
                        MIXED=self._is_mixed, SAMPLED=is_sampled,
                    )  # fmt: skip
                    self._scatter(stage, fields, buffers, 0)
                    if problem.free_surface:
                        self._scatter(stage, fields, buffers, -layout.radius)
                        self._fold(fields, self._stages[1 - k])
                    weights = self._heard[k][1]
                    additions[k].apply(flat, weights * arriving[..., n, None])

        self._replay.reverse(self._sweeps(self._sent, self._factors), follow)
        rates: list[Tensor | None] = [None] * len(self._rates)
        for place, number in enumerate(self._varying):
            rates[number] = self._take_out(gradients[place])
        return Derivatives(signal, rates, factors, [*map(self._take_out, energies)])

    def _sweeps(
        self,
        signal: Tensor,
        factors: Sequence[Tensor],
        recorded: Tensor | None = None,
        change: Tensor | None = None,
    ) -> Sweeps:
        """Return sweeps of the waves of sources, or of those scattered by a change of the rates.

        recorded: a tensor of zeros (shot, trace, time) for the recorded fields, if they are wanted.
        The scattered field reads the samples.
        """

        def make_state() -> tuple[Tensor, ...]:
            counts = self._fields, self._memories, self._samples
            return tuple(self._zeros(count, self._count) for count in counts)

        def run(
            state: tuple[Tensor, ...],
            span: Span,
            first: int | None,
            explores: bool,  # noqa: ARG001
        ) -> None:
            fields, memory, samples = state
            flat, stores = fields.view(-1), first is not None
            if first is not None:
                self._history, self._first = [], first
            for n in range(*span):
                if recorded is not None:
                    self._record(flat, recorded, 0, n)
                for k, stage in enumerate(self._stages):
                    sampled = self._stores(n) and bool(stage.samples)
                    if sampled and change is not None:
                        self._load(n, k, samples)
                    self._launch(
                        "advance", fields, self._rates, memory, self._a, self._b, self._weights,
                        self._constants, samples, self._rates if change is None else change,
                        longest=self._longest, DIFFERENCES=stage.differences, TARGETS=stage.targets,
                        TERMS=stage.terms, RELAXATIONS=stage.relaxations, SAMPLES=stage.samples,
                        PRODUCTS=stage.products, COUNT=stage.n_samples, RADIUS=self._layout.radius,
                        MIXED=self._is_mixed, STORE=sampled and stores,
                        CHANGE=sampled and change is not None,
                    )  # fmt: skip
                    if sampled and stores:
                        self._store(k, samples)
                    for number, additions in self._emitted[k]:
                        sent = self._signal_of(signal, number, n)
                        additions.apply(flat, factors[number] * sent[..., None])
                    if self._problem.free_surface:
                        self._reflect(fields, stage)
                if recorded is not None:
                    self._record(flat, recorded, 1, n)

        return Sweeps(make_state, run)

    def _make_traces(self) -> Tensor:
        receivers, steps = self._problem.receivers.shape[1], self._sent.shape[-1]
        return self._like.new_zeros((self._count, receivers, steps))

    def _take_out(self, sums: Tensor) -> Tensor:
        """Return sums over time (shot, ...) from sums over samples (shot, cell)."""
        shape = self._count, *self._problem.padded_shape
        return self._problem.interval * self._layout.take_out(sums).reshape(shape)

    def _zeros(self, *counts: int) -> Tensor:
        return self._like.new_zeros((*counts, self._layout.size))

    def _stores(self, n: int) -> bool:
        interval = self._problem.interval
        return n % interval == sampling_offset(interval)

    def _signal_of(self, signal: Tensor, number: int, n: int) -> Tensor:
        """Return the signal (shot, source) of an emission in a step, as a view."""
        kind = self._scheme.signals.index(self._scheme.emissions[number].signal)
        count = self._problem.sources.shape[1]
        return signal[:, kind * count : (kind + 1) * count, n]

    def _find_places(self, field: str, cells: NDArray[np.int64]) -> Tensor:
        """Return the places of cells (shot, point, tap) of a field in the flattened fields."""
        number, layout = list(self._scheme.system.fields).index(field), self._layout
        shots = number * self._count + np.arange(self._count)
        index = np.stack(np.unravel_index(cells, layout.shape), axis=-1)
        places = shots[:, None, None] * layout.size + layout.origin + index @ layout.strides
        return torch.as_tensor(places, device=self._like.device)

    @cached_property
    def _emitted(self) -> list[list[tuple[int, _Additions]]]:
        """The emissions of each stage, by number, and the additions to their taps."""
        found: list[list[tuple[int, _Additions]]] = [[], []]
        for number, it in enumerate(self._scheme.emissions):
            additions = _Additions(self._find_places(it.field, it.points.cells))
            found[self._scheme.system.stage_of(it.field)].append((number, additions))
        return found

    @cached_property
    def _heard(self) -> list[tuple[Tensor, Tensor]]:
        """The places and weights (shot, receiver, tap) of what is read before each stage."""
        found = []
        for stage in range(2):
            points = [
                (name, each)
                for when, it in zip(
                    self._scheme.reading_stages, self._scheme.recordings, strict=True
                )
                if when == stage
                for name, each in it.points.items()
            ]
            shape = (*self._problem.receivers.shape[:2], 0)
            places = [self._find_places(name, each.cells) for name, each in points]
            weights = [self._like.new_tensor(each.weights) for _, each in points]
            none = torch.zeros(shape, dtype=torch.int64, device=self._like.device)
            together = torch.cat([self._like.new_zeros(shape), *weights], -1)
            found.append((torch.cat([none, *places], -1), together))
        return found

    def _record(self, flat: Tensor, recorded: Tensor, stage: int, n: int) -> None:
        places, weights = self._heard[stage]
        if places.shape[-1]:
            recorded[..., n] += (weights * flat[places]).sum(-1)

    def _store(self, stage: int, samples: Tensor) -> None:
        """Append the samples of a stage to the history."""
        values = samples[: self._stages[stage].n_samples]
        kind = FORMATS.get(self._problem.history.format, values.dtype)
        scale = values.new_ones((*values.shape[:2], 1))
        if kind in UNITS:
            scale = values.abs().amax(-1, keepdim=True) / UNITS[kind]
            scale = torch.where(scale > 0.0, scale, 1.0)
            values = values / scale
            values = values.round() if kind == torch.int8 else values
        kept = values.to(kind, copy=True)
        if not stage or not self._stages[0].samples:
            self._history.append([])
        self._history[-1].append((kept, scale))

    def _load(self, n: int, stage: int, samples: Tensor) -> None:
        each = self._history[n // self._problem.interval - self._first]
        kept, scale = each[-1] if stage else each[0]
        samples[: len(kept)] = kept.to(samples.dtype) * scale

    def _lines(self, fields: Tensor, number: int, first: int, last: int) -> Tensor:
        """Return the depths first to last - 1 of a field, as a view (shot, depth, ...)."""
        top = self._layout.margin
        whole = fields[number].view(self._count, *self._layout.field_shape)
        return whole[:, top + first : top + last]

    def _reflect(self, fields: Tensor, stage: _Stage) -> None:
        """Set the fields of a stage above a free surface to the images of those below it."""
        h = self._layout.radius
        for number, shift, odd in stage.images:
            below = self._lines(fields, number, 1 - shift, h + 1 - shift).flip(1)
            self._lines(fields, number, -h, 0).copy_(-below if odd else below)

    def _fold(self, fields: Tensor, stage: _Stage) -> None:
        h = self._layout.radius
        for number, shift, odd in stage.images:
            above = self._lines(fields, number, -h, 0)
            below = self._lines(fields, number, 1 - shift, h + 1 - shift)
            below.add_(above.flip(1), alpha=-1 if odd else 1)
            above.zero_()

    def _launch(self, name: str, *arrays: Tensor, depths: int = 0, **arguments: Any) -> None:
        """Launch a kernel for the cells of so many depths, by default those of the grid."""
        from hpcfwi.wave.engines.gpu import staggered_kernels

        shape, layout = self._problem.padded_shape, self._layout
        depths = depths or shape[0]
        programs = -(-depths * prod(shape[1:]) // BLOCK), self._count
        with on_device(self._like.device):
            getattr(staggered_kernels, name)[programs](
                *arrays, origin=layout.origin, stride_z=layout.strides[0],
                stride_y=layout.strides[1], depths=depths,
                rows=1 if len(shape) == 2 else shape[1], columns=shape[-1], shots=self._count,
                size=layout.size, BLOCK=BLOCK, num_warps=WARPS, enable_fp_fusion=False, **arguments,
            )  # fmt: skip

    def _scatter(self, stage: _Stage, fields: Tensor, buffers: Tensor, first: int) -> None:
        """Apply the transposed differences of a stage, in the grid or above it from a depth on."""
        self._launch(
            "scatter", fields, buffers, self._weights, first=first, depths=-first,
            SOURCES=stage.sources, TERMS=stage.source_terms, RADIUS=self._layout.radius,
        )  # fmt: skip


forward = partial(first_order.forward, _GpuShots)
