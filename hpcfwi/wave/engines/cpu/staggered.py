"""First-order equations in the `cpu` engine: the tables of a scheme, and its derivatives.

`simulate` is the function of `engines.eager_staggered` with compiled loops, which `staggered_sweeps`
has. The loops compute traces from rates, factors of sources and signals, with the derivative and its
transpose. Everything else, from the parameters of the model to the rates, is differentiated by
autograd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import forward_ad

from hpcfwi.wave.engines.cpu import staggered_sweeps as sweeps
from hpcfwi.wave.engines.cpu.compilation import find_disk, keep_loops
from hpcfwi.wave.engines.cpu.estimates import estimate_staggered_bytes, estimate_updates
from hpcfwi.wave.engines.cpu.kernels import each_shot, run_team
from hpcfwi.wave.engines.cpu.layout import (
    HALO,
    MARGIN,
    NOWHERE,
    POOL,
    Box,
    Grid,
    field_shape,
    lay_out,
    make_grid,
    make_zeros,
    take_out,
)
from hpcfwi.wave.engines.cpu.staggered_sweeps import (
    Emitters,
    Recorders,
    Stage,
    StaggeredGradients,
    StaggeredShot,
    StaggeredState,
    StaggeredTables,
    StaggeredTape,
)
from hpcfwi.wave.engines.cpu.windows import (
    NO_STORE,
    STEPS_PER_WINDOW,
    Frame,
    fit,
    make_store,
    whole_of,
)
from hpcfwi.wave.equation import Derivative
from hpcfwi.wave.history import Kind, Snapshots, count_samples, sampling_offset
from hpcfwi.wave.problem import Gradients, Problem, crop
from hpcfwi.wave.staggered import (
    Points,
    StaggeredScheme,
    at_samples,
    discretize,
    group_terms,
    sample_signal,
    staggered_difference,
)

NAME = "cpu"
HISTORIES: tuple[Kind, ...] = ("snapshots",)


def available() -> str | None:
    """Return why this engine cannot be used here, or None if it can be used.

    Raises `InputError` if NUMBA_CACHE_DIR names a directory in which others may write.
    """
    find_disk()
    return None


def footprint(problem: Problem, steps: int) -> int:
    """Return the approximate bytes of `forward` and `backward` for so many steps."""
    return estimate_staggered_bytes(problem, steps, torch.get_num_threads())


def count_updates(problem: Problem, steps: int) -> float:
    """Return the approximate number of cells with a wave, summed over shots and steps."""
    return estimate_updates(problem, steps)


def idle() -> int:
    """Return the bytes of buffers from earlier batches."""
    return POOL.count_bytes()


def clear() -> None:
    """Release these buffers."""
    POOL.clear()


@dataclass(frozen=True, eq=False)
class _Discrete:
    """What a simulation needs, differentiable in the model and the wavelet of its problem.

    rates: the distinct ones of the scheme; factors: of each emission, (shot, source, tap); signal:
    (shot, source, time).
    """

    scheme: StaggeredScheme
    rates: list[Tensor]
    factors: list[Tensor]
    signal: Tensor

    @property
    def varying(self) -> list[int]:
        """The numbers of the rates with respect to which a derivative may be wanted."""
        return [
            number
            for number, rate in enumerate(self.rates)
            if rate.requires_grad or forward_ad.unpack_dual(rate).tangent is not None
        ]


def _discretize(problem: Problem, scheme: StaggeredScheme, wavelet: Tensor) -> _Discrete:
    """Return the numbers of a scheme, for wavelets (shot, source, time)."""
    rates = list({id(rate): rate for rate in scheme.rates.values()}.values())
    factors = [
        torch.as_tensor(e.points.weights).to(wavelet) * e.strength.flatten()[e.points.cells]
        for e in scheme.emissions
    ]
    signal = sample_signal(scheme.emissions[0].signal, wavelet, problem.dt)
    return _Discrete(scheme, rates, factors, signal)


def _as_traces(problem: Problem, scheme: StaggeredScheme, recorded: Tensor) -> Tensor:
    """Return the traces (component, shot, receiver, time) of recorded fields (shot, trace, time)."""
    each = recorded.unflatten(1, (len(scheme.recordings), -1)).transpose(0, 1)
    parts = zip(each, scheme.reading_stages, scheme.recordings, strict=True)
    return torch.stack([at_samples(*part, problem.dt) for part in parts])


def simulate(problem: Problem, scheme: StaggeredScheme, wavelet: Tensor) -> Tensor:
    """Return the traces (component, shot, receiver, time) of wavelets (shot, source, time).

    They are differentiable in the wavelet and in the arrays of the problem's model.
    """
    keep_loops()
    discrete = _discretize(problem, scheme, wavelet)
    shots = _Shots(problem, discrete)
    tensors = (discrete.signal, *discrete.rates, *discrete.factors)
    recorded: Tensor = _Recorded.apply(shots, *tensors)  # type: ignore[no-untyped-call]
    return _as_traces(problem, scheme, recorded)


class _Recorded(torch.autograd.Function):
    """The recorded fields as a function of the signal, the rates and the factors of sources."""

    @staticmethod
    def forward(shots: _Shots, *tensors: Tensor) -> Tensor:
        return shots.simulate(*shots.split(tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.shots = inputs[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, arriving: Tensor) -> tuple[Tensor | None, ...]:
        found = ctx.shots.backpropagate(arriving)
        rates = [None if each is None else each.sum(0) for each in found.rates]
        return None, found.signal, *rates, *found.factors

    @staticmethod
    def jvp(ctx: Any, _: None, *tensors: Tensor | None) -> Tensor:
        found: Tensor = ctx.shots.scatter(*ctx.shots.split(tensors))
        return found


@dataclass(frozen=True, eq=False)
class State:
    """The simulated shots, and the graphs from their parameters to their traces.

    model: leaves of the graph, by name; wavelet: another leaf, and recorded: the leaf of `traces`,
    (shot, component times receiver, time).
    """

    shots: _Shots
    discrete: _Discrete
    model: Mapping[str, Tensor]
    wavelet: Tensor
    recorded: Tensor
    traces: Tensor


def forward(problem: Problem, wavelet: Tensor, keep: bool) -> tuple[Tensor, State | None]:
    """Return traces (shot, component times receiver, time), and a state; see `Engine.forward`."""
    keep_loops()
    with torch.set_grad_enabled(keep):
        model = {
            name: array.detach().clone().requires_grad_(keep and name in problem.wanted)
            for name, array in problem.model.items()
        }
        wavelet = wavelet.detach().clone().requires_grad_(keep)
        scheme = discretize(replace(problem, model=model))
        discrete = _discretize(problem, scheme, wavelet)
        shots = _Shots(problem, discrete, keep)
        found = shots.simulate(discrete.signal, discrete.rates, discrete.factors)
        recorded = found.requires_grad_(keep)
        traces = _as_traces(problem, scheme, recorded).transpose(0, 1).flatten(1, 2)
    state = State(shots, discrete, model, wavelet, recorded, traces) if keep else None
    return traces.detach(), state


def backward(problem: Problem, state: State, adjoint_source: Tensor) -> Gradients:
    """Return the gradients, shot by shot; see `Engine.backward`."""
    (arriving,) = torch.autograd.grad(
        state.traces, state.recorded, adjoint_source, retain_graph=True
    )
    found, discrete = state.shots.backpropagate(arriving), state.discrete
    (wavelet,) = torch.autograd.grad(
        discrete.signal, state.wavelet, found.signal, retain_graph=True
    )
    leaves = [state.model[name] for name in problem.wanted]
    each = []
    for shot in range(problem.n_shots):
        pairs = [
            (rate, by_rate[shot])
            for rate, by_rate in zip(discrete.rates, found.rates, strict=True)
            if by_rate is not None
        ]
        pairs += [
            (factor[shot], by_factor[shot])
            for factor, by_factor in zip(discrete.factors, found.factors, strict=True)
            if factor.requires_grad
        ]
        outputs, gradients = zip(*pairs, strict=True)
        each.append(
            torch.autograd.grad(
                outputs,
                leaves,
                gradients,
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        )
    model = {
        name: torch.stack(list(arrays))
        for name, arrays in zip(problem.wanted, zip(*each, strict=True), strict=True)
    }
    energies = [crop(energy, *problem.padding) for energy in found.energies]
    return Gradients(model, wavelet, *(energies or (None, None)))


def scatter(problem: Problem, state: State, direction: Mapping[str, Tensor]) -> Tensor:
    """Return the first-order change of the traces with the model; see `Engine.scatter`."""
    with forward_ad.dual_level():
        model = {
            name: forward_ad.make_dual(array, direction[name]) if name in direction else array
            for name, array in problem.model.items()
        }
        scheme = discretize(replace(problem, model=model))
        discrete = _discretize(problem, scheme, state.wavelet.detach())
        rates, factors = (
            [forward_ad.unpack_dual(each).tangent for each in some]
            for some in (discrete.rates, discrete.factors)
        )
    recorded = state.shots.scatter(None, rates, factors)
    return _as_traces(problem, scheme, recorded).transpose(0, 1).flatten(1, 2)


class _Derivatives(NamedTuple):
    """The gradients of a function of the recorded fields, shot by shot.

    signal: (shot, source, time); rates: (shot, ...) on the padded grid, None if none is wanted;
    factors: (shot, source, tap); energies: the time sums of the squared samples and of the squared
    adjoint fields, (shot, ...), or none.
    """

    signal: Tensor
    rates: list[Tensor | None]
    factors: list[Tensor]
    energies: list[Tensor]


class _Shots:
    """Shots of a problem: their recorded fields, the derivative of these and its transpose."""

    def __init__(self, problem: Problem, discrete: _Discrete, keep: bool = True) -> None:
        scheme, shots = discrete.scheme, range(problem.n_shots)
        self._problem, self._scheme = problem, scheme
        self._dtype = discrete.signal.detach().numpy().dtype
        self._rates, self._varying = len(discrete.rates), discrete.varying if keep else []
        self._tables = make_tables(problem, scheme, discrete.rates, self._varying)
        self._emissions = [
            [_Entries(e.points, problem.padded_shape, shot) for e in scheme.emissions]
            for shot in shots
        ]
        self._recorders = [_make_recorders(scheme, shot, self._dtype) for shot in shots]
        self._kept: list[tuple[StaggeredShot, StaggeredTape]] = []

    def split(self, tensors: Sequence[Any]) -> tuple[Any, Sequence[Any], Sequence[Any]]:
        """Return the signal, the rates and the factors of sources."""
        end = 1 + self._rates
        return tensors[0], tensors[1:end], tensors[end:]

    def simulate(
        self,
        signal: Tensor,
        rates: Sequence[Tensor],  # noqa: ARG002 - they are in the tables
        factors: Sequence[Tensor],
    ) -> Tensor:
        """Return the recorded fields (shot, trace, time)."""
        sent = _by_time(signal)
        self._kept = []
        for number, recorders in enumerate(self._recorders):
            emitters = self._make_emitters(number, factors)
            shot = StaggeredShot(self._tables, emitters, recorders, sent[number])
            self._kept.append((shot, self._make_tape(shot)))
        return self._sweep(self._kept, None)

    def scatter(
        self,
        signal: Tensor | None,
        rates: Sequence[Tensor | None],
        factors: Sequence[Tensor | None],
    ) -> Tensor:
        """Return the change of the recorded fields with the signal, the rates and the factors."""
        weight = self._problem.interval
        change = make_zeros((len(self._varying), *self._tables.rates.shape[1:]), self._dtype)
        for place, number in enumerate(self._varying):
            direction = rates[number]
            if direction is not None:
                change[place] = lay_out(weight * direction.detach())
        varied = [
            torch.zeros(e.points.weights.shape) if factor is None else factor
            for e, factor in zip(self._scheme.emissions, factors, strict=True)
        ]
        shots = [
            (shot._replace(emitters=self._make_emitters(number, varied)), tape)
            for number, (shot, tape) in enumerate(self._kept)
        ]
        found = self._sweep(shots, change)
        if signal is not None:
            sent = _by_time(signal)
            plain = NO_TAPE
            found += self._sweep(
                [
                    (
                        shot._replace(signal=sent[k]),
                        plain._replace(windows=tape.windows.copy(), explores=True),
                    )
                    for k, (shot, tape) in enumerate(self._kept)
                ],
                None,
            )
        return found

    def _make_emitters(self, shot: int, factors: Sequence[Tensor]) -> tuple[Emitters, Emitters]:
        return self._make_stage_emitters(shot, factors, 0), self._make_stage_emitters(
            shot, factors, 1
        )

    def _make_stage_emitters(self, shot: int, factors: Sequence[Tensor], stage: int) -> Emitters:
        names = list(self._scheme.system.fields)
        order = self._order(shot, stage)
        cells, weights = [np.empty(0, sweeps.EMISSION)], [np.empty(0, self._dtype)]
        for number in self._emissions_of(stage):
            entries = self._emissions[shot][number]
            some = np.zeros(entries.tap.size, sweeps.EMISSION)
            some["field"] = names.index(self._scheme.emissions[number].field)
            some["row"], some["column"] = entries.row, entries.column
            some["source"] = entries.point
            cells.append(some)
            weights.append(entries.take(factors[number].detach()[shot].numpy()))
        return Emitters(
            np.concatenate(cells)[order], np.concatenate(weights)[order].astype(self._dtype)
        )

    def _emissions_of(self, stage: int) -> list[int]:
        """Return the numbers of the emissions into fields that a stage updates."""
        system = self._scheme.system
        emissions = enumerate(self._scheme.emissions)
        return [number for number, e in emissions if system.stage_of(e.field) == stage]

    def _order(self, shot: int, stage: int) -> NDArray[np.intp]:
        """Return the order of the entries of a stage's emissions by row."""
        rows = [self._emissions[shot][number].row for number in self._emissions_of(stage)]
        return np.argsort(np.concatenate([np.empty(0, np.int64), *rows]), kind="stable")

    def _sweep(
        self, shots: Sequence[tuple[StaggeredShot, StaggeredTape]], change: NDArray | None
    ) -> Tensor:
        steps = shots[0][0].signal.shape[0]
        count = len(self._scheme.recordings) * self._problem.receivers.shape[1]
        traces = np.empty((len(shots), steps, count), self._dtype)

        def run(k: int, threads: int) -> None:
            state = self._make_state(threads, forward=True)
            shot, tape = shots[k]
            tape = tape._replace(explores=change is None)
            span = (0, steps)
            run_team(
                threads,
                lambda team: sweeps.sweep_staggered(
                    shot, state, span, tape, traces[k], change, team
                ),
            )

        each_shot(run, len(shots), self._tables.grid)
        return torch.from_numpy(traces).transpose(1, 2).contiguous()

    def _make_state(self, threads: int, forward: bool) -> StaggeredState:
        """Return the state at rest.

        The buffers have room for two blocks and what their differences reach; in 3-D, the transpose
        needs the planes that its differences reach.
        """
        tables = self._tables
        rows, columns = field_shape(self._problem.padded_shape)
        grid, reach = tables.grid, len(tables.weights[0])
        if threads > 1:
            depth = rows + 2 * reach
        elif forward:
            depth = sweeps.MOST_ROWS
        elif grid.planes == 1:
            depth = 2 * sweeps.MOST_ROWS + 3 * reach
        else:
            depth = ((3 if tables.surface else 2) * reach + 1) * grid.stride + 2 * HALO
        ring = 1 << (depth - 1).bit_length()
        count = max(len(stage.differences) for stage in tables.stages) + 1
        return StaggeredState(
            make_zeros((len(self._scheme.system.fields), rows, columns), self._dtype),
            make_zeros((tables.memory,), self._dtype),
            make_zeros((count, ring + 1, columns), self._dtype),
        )

    def _make_tape(self, shot: StaggeredShot) -> StaggeredTape:
        tables, history = shot.tables, self._problem.history
        assert isinstance(history, Snapshots), "chosen by `simulation.set_up`"
        steps, interval = shot.signal.shape[0], self._problem.interval
        windows = np.zeros((steps // STEPS_PER_WINDOW + 1, 6), np.int64)
        windows[0] = _first_window(shot)
        samples = sum(len(stage.samples) for stage in tables.stages)
        if samples == 0:
            return NO_TAPE._replace(windows=windows)
        count = count_samples(steps, interval)
        frame = Frame(whole_of.py_func(tables.grid), NOWHERE)
        store = make_store(self, frame, history.format, tables.rates[0], count * samples)
        return StaggeredTape(interval, sampling_offset(interval), 0, store, windows, True)

    def backpropagate(self, arriving: Tensor) -> _Derivatives:
        """Return the gradients, given the one with respect to the recorded fields."""
        heard, problem, dtype = _by_time(arriving), self._problem, self._dtype
        shots, steps = heard.shape[:2]
        shape = field_shape(problem.padded_shape)
        signal = np.zeros((shots, steps, problem.sources.shape[1]), dtype)
        sums = make_zeros((shots, len(self._varying), *shape), dtype)
        energies = make_zeros((shots, 2 if problem.illuminate else 0, *shape), dtype)
        emitters = [
            tuple(np.zeros_like(stage.weights) for stage in shot.emitters) for shot, _ in self._kept
        ]

        def run(k: int, threads: int) -> None:
            (shot, tape), state = self._kept[k], self._make_state(threads, forward=False)
            first, second = emitters[k]
            gradients = StaggeredGradients(sums[k], energies[k], signal[k], (first, second))
            span = (0, steps)
            run_team(
                threads,
                lambda team: sweeps.sweep_staggered_back(
                    shot, state, span, tape, heard[k], gradients, team
                ),
            )

        each_shot(run, shots, self._tables.grid)
        rates: list[Tensor | None] = [None] * self._rates
        for place, number in enumerate(self._varying):
            rates[number] = problem.interval * take_out(sums[:, place], problem.padded_shape)
        factors = [np.zeros(e.points.weights.shape, dtype) for e in self._scheme.emissions]
        for shot, both in enumerate(emitters):
            for stage, by_weight in enumerate(both):
                values, begin = np.empty_like(by_weight), 0
                values[self._order(shot, stage)] = by_weight
                for number in self._emissions_of(stage):
                    entries = self._emissions[shot][number]
                    end = begin + entries.tap.size
                    factors[number][shot, entries.point, entries.tap] = values[begin:end]
                    begin = end
        return _Derivatives(
            torch.from_numpy(signal).transpose(1, 2),
            rates,
            [torch.from_numpy(each) for each in factors],
            [
                problem.interval * take_out(energies[:, number], problem.padded_shape)
                for number in range(energies.shape[1])
            ],
        )


NO_TAPE = StaggeredTape(0, 0, 0, NO_STORE, np.zeros((0, 6), np.int64), True)


def _by_time(values: Tensor) -> NDArray:
    """Return values (shot, point, time) as (shot, time, point)."""
    found: NDArray = values.detach().transpose(1, 2).contiguous().numpy()
    return found


class _Entries:
    """The taps of a shot's points with a weight, in the layout of the sweeps."""

    def __init__(self, points: Points, shape: tuple[int, ...], shot: int) -> None:
        self.point, self.tap = np.nonzero(points.weights[shot])
        self.row, self.column = _locate(points.cells[shot, self.point, self.tap], shape)

    def take(self, values: NDArray) -> NDArray:
        """Return values (point, tap) of these taps."""
        taken: NDArray = values[self.point, self.tap]
        return taken


def _locate(cells: NDArray[np.int64], shape: tuple[int, ...]) -> tuple[NDArray, NDArray]:
    """Return the array rows and columns of cells of the flattened grid."""
    grid = make_grid(shape)
    plane, row, x = np.unravel_index(cells, (grid.planes, grid.rows, grid.nx))
    return grid.base + plane * grid.stride + row, MARGIN + x


def _make_recorders(
    scheme: StaggeredScheme, shot: int, dtype: np.dtype
) -> tuple[Recorders, Recorders]:
    """Return the recorders that are read before each stage."""
    names = list(scheme.system.fields)
    found = []
    for stage in (0, 1):
        cells, weights, numbers = [np.empty(0, sweeps.TAP)], [np.empty(0)], [np.empty(0, np.int64)]
        for component, recording in enumerate(scheme.recordings):
            if scheme.reading_stages[component] != stage:
                continue
            for name, points in recording.points.items():
                entries = _Entries(points, scheme.shape, shot)
                some = np.zeros(entries.tap.size, sweeps.TAP)
                some["field"] = names.index(name)
                some["row"], some["column"] = entries.row, entries.column
                cells.append(some)
                weights.append(entries.take(points.weights[shot]))
                numbers.append(component * points.weights.shape[1] + entries.point)
        trace = np.concatenate(numbers)
        order = np.argsort(trace, kind="stable")
        traces = np.concatenate(
            [np.empty(0, np.int64)]
            + [
                component * next(iter(r.points.values())).weights.shape[1]
                + np.arange(next(iter(r.points.values())).weights.shape[1])
                for component, r in enumerate(scheme.recordings)
                if scheme.reading_stages[component] == stage
            ]
        )
        ends = np.append(np.searchsorted(trace[order], traces), trace.size)
        found.append(
            Recorders(
                np.concatenate(cells)[order],
                np.concatenate(weights)[order].astype(dtype),
                ends,
                traces,
            )
        )
    return found[0], found[1]


def _first_window(shot: StaggeredShot) -> Box:
    """Return a window that the wave cannot leave within STEPS_PER_WINDOW steps."""
    tables, grid = shot.tables, shot.tables.grid
    reach = 2 * len(tables.weights[0]) * STEPS_PER_WINDOW
    cells = np.concatenate([e.cells for e in shot.emitters])
    planes, rows = np.divmod(cells["row"] - grid.base, grid.stride)
    columns = cells["column"] - MARGIN
    edges = [
        edge
        for places in (planes, rows, columns)
        for edge in (int(places.min()) - reach, int(places.max()) + 1 + reach)
    ]
    window: Box = fit.py_func(grid, 0, Box(*edges))
    return window


def make_tables(
    problem: Problem, scheme: StaggeredScheme, rates: Sequence[Tensor], wanted: Sequence[int]
) -> StaggeredTables:
    """Return the tables of a scheme; wanted: numbers of the rates that have a gradient."""
    grid, ndim = make_grid(scheme.shape), len(scheme.axes)
    like = rates[0].detach().numpy().dtype
    each = [tuple(staggered_difference(problem.order, h).astype(like)) for h in problem.spacing]
    numbers = {id(rate): number for number, rate in enumerate(rates)}
    layers = _Layers(scheme, grid, like)
    stages = tuple(
        _make_stage(problem, scheme, grid, stage, numbers, wanted, layers) for stage in (0, 1)
    )
    return StaggeredTables(
        grid,
        (each[0], each[-2], each[-1]),  # of z, y and x; there is no y in 2-D
        np.stack([lay_out(rate.detach()) for rate in rates]),
        (stages[0], stages[1]),
        np.array(layers.rows, sweeps.LAYER),
        layers.a,
        layers.b,
        layers.memory,
        0 if not problem.free_surface else 1 if ndim == 2 else grid.stride,
    )


class _Layers:
    """The absorbing layers of a scheme, with its profiles."""

    def __init__(self, scheme: StaggeredScheme, grid: Grid, dtype: np.dtype) -> None:
        self.grid, self.rows, self.memory = grid, list[tuple[int, ...]](), 0
        self.axes = scheme.axes
        profiles = [each for axis in scheme.axes for each in scheme.profiles[axis]]
        longest = max(scheme.shape)
        self.a, self.b = (
            np.stack([np.pad(v, (0, longest - len(v))) for v in values]).astype(dtype)
            for values in ([p.a for p in profiles], [p.b for p in profiles])
        )

    def add(self, axis: str, between: int) -> None:
        """Append the layers of a difference at both ends of its axis."""
        number = self.axes.index(axis)
        along = number + 3 - len(self.axes)
        profile = 2 * number + between
        whole = [0, self.grid.planes, 0, self.grid.rows, 0, self.grid.nx]
        n = whole[2 * along + 1]
        inside = np.flatnonzero(self.a[profile, :n] == 0)
        low, high = (inside[0], inside[-1] + 1) if len(inside) else (n, n)
        for begin, end in ((0, low), (high, n)):
            if begin < end:
                box = whole.copy()
                box[2 * along : 2 * along + 2] = begin, end
                self.rows.append((*box, self.memory, profile, along))
                self.memory += int(np.prod(np.diff(box)[::2]))


def _make_difference(
    scheme: StaggeredScheme, grid: Grid, derivative: Derivative, slot: int, layers: _Layers
) -> tuple[int, ...]:
    axis, field = derivative
    between = int(axis not in scheme.system.fields[field].half)
    first = len(layers.rows)
    layers.add(axis, between)
    stride = {"z": grid.stride if grid.planes > 1 else 1, "y": 1, "x": 0}[axis]
    number = list(scheme.system.fields).index(field)
    return number, "zyx".index(axis), stride, between, first, len(layers.rows), slot


def _make_stage(
    problem: Problem,
    scheme: StaggeredScheme,
    grid: Grid,
    number: int,
    numbers: Mapping[int, int],
    wanted: Sequence[int],
    layers: _Layers,
) -> Stage:
    """Return the tables of a stage, and append its layers."""
    system, names = scheme.system, list(scheme.system.fields)
    stage = system.stages[number]
    used: dict[str, dict[Derivative, int]] = {
        name: {term.derivative: numbers[id(scheme.rates[name, term.derivative])] for term in terms}
        for name, terms in stage.items()
    }
    differences, groups, targets, terms, products = [], [], [], [], []
    samples: list[int] = []
    buffer: dict[Derivative, int] = {}
    for names_of_group in group_terms(used):
        derivatives = sorted(
            {d for name in names_of_group for d in used[name]},
            key=lambda d: (scheme.axes.index(d[0]), d[1]),
        )
        first = len(differences)
        found = {rate for name in names_of_group for rate in used[name].values()}
        if len(names_of_group) == len(found) == 1:
            kind = sweeps.SUM_OF_DIFFERENCES
        elif len(names_of_group) == len(derivatives) == 2 and derivatives[1][0] == "x":
            kind = sweeps.PAIR_OF_DIFFERENCES
        else:
            kind = sweeps.OTHER_DIFFERENCES
        for derivative in derivatives:
            slot = first if kind == sweeps.SUM_OF_DIFFERENCES else len(differences)
            buffer[derivative] = slot
            differences.append(_make_difference(scheme, grid, derivative, slot, layers))
        groups.append(
            (kind, len(targets), len(targets) + len(names_of_group), first, len(differences))
        )
        for name in names_of_group:
            begin = len(terms)
            each = {(used[name][d], buffer[d]): None for d in derivatives if d in used[name]}
            terms.extend(each)
            targets.append((names.index(name), begin, len(terms)))
            for rate, slot in each:
                if rate in wanted:
                    if slot not in samples:
                        samples.append(slot)
                    products.append((wanted.index(rate), names.index(name), samples.index(slot)))
    weights, ends = [], [0]
    for derivative in buffer:
        weights.extend(
            (each[derivative], names.index(name))
            for name, each in used.items()
            if derivative in each
        )
        ends.append(len(weights))
    images = [
        (
            names.index(name),
            int("z" in system.fields[name].half),
            -1 if system.fields[name].odd else 1,
        )
        for name in stage
        if problem.free_surface
    ]
    return Stage(
        np.array(differences, sweeps.DIFFERENCE),
        np.array(groups, sweeps.GROUP),
        np.array(targets, sweeps.TARGET),
        np.array(terms, sweeps.TERM),
        np.array(weights, sweeps.WEIGHT),
        np.array(ends, np.int64),
        np.array(samples, np.int64),
        np.array(products, sweeps.PRODUCT),
        np.array(images, sweeps.IMAGE),
    )
