"""The `cpu` engine for first-order equations: shots, their traces and their derivatives.

`staggered_tables` makes the tables of a scheme, and `staggered_sweeps` has the compiled loops. They
compute the recorded fields from rates, factors of sources and signals, with the derivative and its
transpose. Everything else, from the parameters of the model to the rates, and from the recorded
fields to the traces, is differentiated by autograd. As in `engine`, a thread computes one shot, and
spare threads share the last ones; the functions of the interface that are the same are imported.
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
from hpcfwi.wave.engines.cpu.compilation import keep_loops
from hpcfwi.wave.engines.cpu.engine import NAME as NAME
from hpcfwi.wave.engines.cpu.engine import available as available
from hpcfwi.wave.engines.cpu.engine import clear as clear
from hpcfwi.wave.engines.cpu.engine import count_updates as count_updates
from hpcfwi.wave.engines.cpu.engine import idle as idle
from hpcfwi.wave.engines.cpu.estimates import estimate_staggered_bytes
from hpcfwi.wave.engines.cpu.kernels import each_shot, run_team
from hpcfwi.wave.engines.cpu.layout import (
    HALO,
    MARGIN,
    NOWHERE,
    Box,
    field_shape,
    lay_out,
    make_zeros,
    take_out,
)
from hpcfwi.wave.engines.cpu.staggered_tables import (
    EMISSION,
    Emitters,
    Entries,
    StaggeredGradients,
    StaggeredShot,
    StaggeredState,
    StaggeredTape,
    make_recorders,
    make_tables,
)
from hpcfwi.wave.engines.cpu.windows import (
    NO_STORE,
    STEPS_PER_WINDOW,
    Frame,
    fit,
    make_store,
    whole_of,
)
from hpcfwi.wave.history import Kind, Snapshots, count_samples, sampling_offset
from hpcfwi.wave.problem import Gradients, Problem, crop
from hpcfwi.wave.staggered import StaggeredScheme, combine, discretize, sample_signal

HISTORIES: tuple[Kind, ...] = ("snapshots",)


def footprint(problem: Problem, steps: int) -> int:
    """Return the approximate bytes of `forward` and `backward` for so many steps."""
    return estimate_staggered_bytes(problem, steps, torch.get_num_threads())


@dataclass(frozen=True, eq=False)
class _Discrete:
    """The numbers of a simulation, differentiable in the model and the wavelet of its problem.

    rates: the distinct ones of the scheme; factors: of each emission, (shot, source, tap); signal:
    (shot, signal times source, time), for the signals of `StaggeredScheme.signals`.
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
            if rate.requires_grad or forward_ad.unpack_dual(rate).tangent is not None  # type: ignore[no-untyped-call]
        ]


def _discretize(problem: Problem, scheme: StaggeredScheme, wavelet: Tensor) -> _Discrete:
    """Return the numbers of a scheme, for wavelets (shot, source, time)."""
    rates = list({id(rate): rate for rate in scheme.rates.values()}.values())
    factors = [
        torch.as_tensor(e.points.weights).to(wavelet) * e.strength.flatten()[e.points.cells]
        for e in scheme.emissions
    ]
    signals = [sample_signal(kind, wavelet, problem.dt) for kind in scheme.signals]
    return _Discrete(scheme, rates, factors, torch.cat(signals, dim=1))


def simulate(problem: Problem, scheme: StaggeredScheme, wavelet: Tensor) -> Tensor:
    """Return the traces (shot, receiver, time) of wavelets (shot, source, time).

    They are differentiable in the wavelet and in the arrays of the problem's model.
    """
    keep_loops()
    discrete = _discretize(problem, scheme, wavelet)
    shots = _Shots(problem, discrete)
    tensors = (discrete.signal, *discrete.rates, *discrete.factors)
    recorded: Tensor = _Recorded.apply(shots, *tensors)  # type: ignore[no-untyped-call]
    return _as_traces(problem, scheme, recorded)


def _as_traces(problem: Problem, scheme: StaggeredScheme, recorded: Tensor) -> Tensor:
    """Return traces (shot, receiver, time), given the fields that they have recorded."""
    return combine([recorded] * len(scheme.recordings), scheme, problem.dt)


class _Recorded(torch.autograd.Function):
    """The recorded fields as a function of the signals, the rates and the factors of sources."""

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
    (shot, receiver, time).
    """

    shots: _Shots
    discrete: _Discrete
    model: Mapping[str, Tensor]
    wavelet: Tensor
    recorded: Tensor
    traces: Tensor


def forward(problem: Problem, wavelet: Tensor, keep: bool) -> tuple[Tensor, State | None]:
    """Return traces (shot, receiver, time), and a state; see `Engine.forward`."""
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
        traces = _as_traces(problem, scheme, recorded)
    state = State(shots, discrete, model, wavelet, recorded, traces) if keep else None
    return traces.detach(), state


@torch.enable_grad()
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
    for shot in range(problem.n_shots if leaves else 0):
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
        name: torch.stack([arrays[place] for arrays in each])
        for place, name in enumerate(problem.wanted)
    }
    energies = [crop(energy, *problem.padding) for energy in found.energies]
    return Gradients(model, wavelet, *(energies or (None, None)))


def scatter(problem: Problem, state: State, direction: Mapping[str, Tensor]) -> Tensor:
    """Return the first-order change of the traces with the model; see `Engine.scatter`."""
    with forward_ad.dual_level():
        model = {
            name: forward_ad.make_dual(array, direction[name]) if name in direction else array  # type: ignore[no-untyped-call]
            for name, array in problem.model.items()
        }
        scheme = discretize(replace(problem, model=model))
        discrete = _discretize(problem, scheme, state.wavelet.detach())
        rates, factors = (
            [forward_ad.unpack_dual(each).tangent for each in some]  # type: ignore[no-untyped-call]
            for some in (discrete.rates, discrete.factors)
        )
    recorded = state.shots.scatter(None, rates, factors)
    return _as_traces(problem, scheme, recorded)


class _Derivatives(NamedTuple):
    """The gradients of a function of the recorded fields, shot by shot.

    signal: (shot, signal times source, time); rates: (shot, ...) on the padded grid, None if none
    is wanted; factors: (shot, source, tap); energies: the time sums of the squared samples and of
    the squared adjoint fields, (shot, ...), or none.
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
            [Entries(e.points, problem.padded_shape, shot) for e in scheme.emissions]
            for shot in shots
        ]
        # The emitters of a shot are sorted by stage and by row
        self._orders = [
            np.lexsort((np.concatenate([e.row for e in self._emissions[k]]), self._stages_of(k)))
            for k in shots
        ]
        self._recorders = [make_recorders(scheme, shot, self._dtype) for shot in shots]
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
            again = [
                (
                    shot._replace(signal=sent[number]),
                    NO_TAPE._replace(windows=tape.windows.copy()),
                )
                for number, (shot, tape) in enumerate(self._kept)
            ]
            found += self._sweep(again, None)
        return found

    def _make_emitters(self, shot: int, factors: Sequence[Tensor]) -> Emitters:
        names, order = list(self._scheme.system.fields), self._orders[shot]
        cells, weights = [], []
        for emission, entries, factor in zip(
            self._scheme.emissions, self._emissions[shot], factors, strict=True
        ):
            some = np.zeros(entries.tap.size, EMISSION)
            some["field"] = names.index(emission.field)
            some["row"], some["column"] = entries.row, entries.column
            number = self._scheme.signals.index(emission.signal)
            some["source"] = number * self._problem.sources.shape[1] + entries.point
            cells.append(some)
            weights.append(entries.take(factor.detach()[shot].numpy()))
        stages = self._stages_of(shot)
        return Emitters(
            np.concatenate(cells)[order],
            np.concatenate(weights)[order].astype(self._dtype),
            (0, int((stages == 0).sum()), stages.size),
        )

    def _stages_of(self, shot: int) -> NDArray[np.int64]:
        """Return the stage that each entry of a shot's emissions belongs to."""
        system = self._scheme.system
        return np.concatenate(
            [
                np.full(entries.tap.size, system.stage_of(emission.field))
                for emission, entries in zip(
                    self._scheme.emissions, self._emissions[shot], strict=True
                )
            ]
        )

    def _sweep(
        self, shots: Sequence[tuple[StaggeredShot, StaggeredTape]], change: NDArray | None
    ) -> Tensor:
        steps = shots[0][0].signal.shape[0]
        traces = np.empty((len(shots), steps, self._problem.receivers.shape[1]), self._dtype)

        def run(k: int, threads: int) -> None:
            state = self._make_state(threads, forward=True)
            shot, tape = shots[k]
            tape = tape._replace(explores=change is None)
            run_team(
                threads,
                lambda team: sweeps.sweep_staggered(shot, state, tape, traces[k], change, team),
            )

        each_shot(run, len(shots), self._tables.grid.planes, self._tables.grid.rows)
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
            depth = ((3 if tables.surface else 2) * reach + 2) * grid.stride + 2 * HALO
        ring = 1 << (depth - 1).bit_length()
        count = int(tables.stages["n_differences"].max()) + 1
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
        samples = int(tables.stages["n_samples"].sum())
        if samples == 0:
            return NO_TAPE._replace(windows=windows)
        count = count_samples(steps, interval)
        frame = Frame(whole_of.py_func(tables.grid), NOWHERE)
        store = make_store(self, frame, history.format, tables.rates[0], count * samples)
        return StaggeredTape(interval, sampling_offset(interval), store, windows, True)

    def backpropagate(self, arriving: Tensor) -> _Derivatives:
        """Return the gradients, given the one with respect to the recorded fields."""
        heard, problem, dtype = _by_time(arriving), self._problem, self._dtype
        shots, steps = heard.shape[:2]
        shape = field_shape(problem.padded_shape)
        sources = len(self._scheme.signals) * problem.sources.shape[1]
        signal = np.zeros((shots, steps, sources), dtype)
        sums = make_zeros((shots, len(self._varying), *shape), dtype)
        energies = make_zeros((shots, 2 if problem.illuminate else 0, *shape), dtype)
        emitters = [np.zeros_like(shot.emitters.weights) for shot, _ in self._kept]

        def run(k: int, threads: int) -> None:
            (shot, tape), state = self._kept[k], self._make_state(threads, forward=False)
            gradients = StaggeredGradients(sums[k], energies[k], signal[k], emitters[k])
            run_team(
                threads,
                lambda team: sweeps.sweep_staggered_back(
                    shot, state, tape, heard[k], gradients, team
                ),
            )

        each_shot(run, shots, self._tables.grid.planes, self._tables.grid.rows)
        rates: list[Tensor | None] = [None] * self._rates
        for place, number in enumerate(self._varying):
            rates[number] = problem.interval * take_out(sums[:, place], problem.padded_shape)
        factors = [np.zeros(e.points.weights.shape, dtype) for e in self._scheme.emissions]
        for number, by_weight in enumerate(emitters):
            values, begin = np.empty_like(by_weight), 0
            values[self._orders[number]] = by_weight
            for factor, entries in zip(factors, self._emissions[number], strict=True):
                end = begin + entries.tap.size
                factor[number, entries.point, entries.tap] = values[begin:end]
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


NO_TAPE = StaggeredTape(0, 0, NO_STORE, np.zeros((0, 6), np.int64), True)


def _by_time(values: Tensor) -> NDArray:
    """Return values (shot, point, time) as (shot, time, point)."""
    found: NDArray = values.detach().transpose(1, 2).contiguous().numpy()
    return found


def _first_window(shot: StaggeredShot) -> Box:
    """Return a window that the wave cannot leave within STEPS_PER_WINDOW steps."""
    tables, grid = shot.tables, shot.tables.grid
    reach = 2 * len(tables.weights[0]) * STEPS_PER_WINDOW
    cells = shot.emitters.cells
    if not cells.size:
        return whole_of.py_func(grid)
    planes, rows = np.divmod(cells["row"] - grid.base, grid.stride)
    columns = cells["column"] - MARGIN
    edges = [
        edge
        for places in (planes, rows, columns)
        for edge in (int(places.min()) - reach, int(places.max()) + 1 + reach)
    ]
    window: Box = fit.py_func(grid, 0, Box(*edges))
    return window
