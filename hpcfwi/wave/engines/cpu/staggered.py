"""The `cpu` engine for first-order equations: the shots, see `first_order`.

`staggered_tables` makes the tables of a scheme, and `staggered_sweeps` has the compiled loops. As
in `engine`, a thread computes one shot, and spare threads share the last ones; the functions of the
interface that are the same are imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave.engines import first_order
from hpcfwi.wave.engines.cpu import staggered_sweeps as sweeps
from hpcfwi.wave.engines.cpu.compilation import keep_loops
from hpcfwi.wave.engines.cpu.engine import NAME as NAME
from hpcfwi.wave.engines.cpu.engine import available as available
from hpcfwi.wave.engines.cpu.engine import clear as clear
from hpcfwi.wave.engines.cpu.engine import count_updates as count_updates
from hpcfwi.wave.engines.cpu.engine import idle as idle
from hpcfwi.wave.engines.cpu.estimates import estimate_staggered_bytes
from hpcfwi.wave.engines.cpu.layout import (
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
from hpcfwi.wave.engines.cpu.teams import each_shot, run_team
from hpcfwi.wave.engines.cpu.windows import (
    NO_STORE,
    STEPS_PER_WINDOW,
    Frame,
    fit,
    make_store,
    whole_of,
)
from hpcfwi.wave.engines.first_order import Derivatives, Discrete
from hpcfwi.wave.engines.first_order import backward as backward
from hpcfwi.wave.engines.first_order import scatter as scatter
from hpcfwi.wave.history import Kind, Snapshots, count_samples, sampling_offset
from hpcfwi.wave.layers import HALO
from hpcfwi.wave.problem import Problem

HISTORIES: tuple[Kind, ...] = ("snapshots",)


def footprint(problem: Problem, steps: int) -> int:
    """Return the approximate bytes of `forward` and `backward` for so many steps."""
    return estimate_staggered_bytes(problem, steps, torch.get_num_threads())


class _Shots:
    """Shots of a problem: their recorded fields, the derivative of these and its transpose."""

    def __init__(self, problem: Problem, discrete: Discrete, keep: bool = True) -> None:
        keep_loops()
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

    def backpropagate(self, arriving: Tensor) -> Derivatives:
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

        each_shot(run, shots, self._tables.grid)
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
        return Derivatives(
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


simulate = partial(first_order.simulate, _Shots)
forward = partial(first_order.forward, _Shots)
