"""The `cpu` engine for first-order equations: the shots, see `first_order`.

`staggered_tables` makes the tables of a scheme, and `staggered_sweeps` has the compiled loops. As
in `engine`, a thread computes one shot, spare threads share the last ones, and the ranks of a crew
compute a layer of each shot; the functions of the interface that are the same are imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

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
from hpcfwi.wave.engines.cpu.engine import idle as idle
from hpcfwi.wave.engines.cpu.engine import run_sweep
from hpcfwi.wave.engines.cpu.estimates import count_updates as count_updates
from hpcfwi.wave.engines.cpu.estimates import staggered_footprint
from hpcfwi.wave.engines.cpu.layout import NOWHERE, field_shape, lay_out, make_zeros, take_out
from hpcfwi.wave.engines.cpu.staggered_tables import (
    EMISSION,
    Emitters,
    Entries,
    StaggeredGradients,
    StaggeredShot,
    StaggeredState,
    StaggeredTape,
    depths_of,
    divide_recorders,
    find_owners,
    make_recorders,
    make_tables,
    select_emitters,
    select_recorders,
    sort_recorders,
    widen_seams,
)
from hpcfwi.wave.engines.cpu.teams import each_shot, make_neighbours
from hpcfwi.wave.engines.cpu.windows import NO_STORE, Frame, make_store, make_windows, whole_of
from hpcfwi.wave.engines.first_order import Derivatives, Discrete
from hpcfwi.wave.engines.first_order import backward as backward
from hpcfwi.wave.engines.first_order import scatter as scatter
from hpcfwi.wave.history import Kind, Recomputation, Snapshots, Span, Sweeps, sampling_offset
from hpcfwi.wave.layers import ALONE, HALO, Crew, cut, find_layer, join_fields, join_points
from hpcfwi.wave.problem import Problem

HISTORIES: tuple[Kind, ...] = ("snapshots", "recompute")
footprint = staggered_footprint


class _CpuShots:
    """Shots of a problem, which the ranks of a crew make and use together."""

    def __init__(
        self, problem: Problem, discrete: Discrete, keep: bool = True, crew: Crew = ALONE
    ) -> None:
        keep_loops()
        scheme, shots = discrete.scheme, range(problem.n_shots)
        self._problem, self._scheme = problem, scheme
        self._dtype = discrete.signal.detach().numpy().dtype
        self._rates, self._varying = len(discrete.rates), discrete.varying if keep else []
        self._crew, self._layers = crew, cut(problem, crew.size)
        self._layer = self._layers[crew.number]
        self._shape = (self._layer.planes, *problem.padded_shape[1:])
        self._tables = make_tables(problem, scheme, self._varying, self._layer)
        # The taps of all emissions are numbered together
        self._taps = [emission.points.weights.shape[2] for emission in scheme.emissions]
        self._emitters, self._places = zip(*map(self._place_emitters, shots), strict=True)
        self._recorders = [
            make_recorders(scheme, shot, self._dtype, self._tables.cut) for shot in shots
        ]
        self._kept: list[_KeptShot] = []
        self._divide()

    def _divide(self) -> None:
        """Find the layers that read the sources and the traces, and what they read of others."""
        sources, count = self._problem.sources.shape[1], self._problem.receivers.shape[1]
        self._of_sources, emitted = self._find_readers(
            [(e.cells, p[0]) for e, p in zip(self._emitters, self._places, strict=True)], sources
        )
        self._of_traces, recorded = self._find_readers(
            [(each.cells, each.trace_of_entries) for each in self._recorders], count
        )
        seams = widen_seams(self._tables.seams, self._scheme.system, recorded, emitted)
        self._tables = self._tables._replace(seams=seams)
        most = max(len(numbers) for arrays in seams for numbers in arrays)
        rows, columns = most * HALO * self._tables.cut.rows, self._tables.rates.shape[2]
        self._neighbours = make_neighbours(self._crew, self._dtype, rows, columns)

    def _find_readers(
        self, shots: Sequence[tuple[NDArray, NDArray[np.int64]]], count: int
    ) -> tuple[NDArray[np.int64], set[int]]:
        """Return the layer that reads each point, (shot, point), and the fields read across cuts.

        shots: cells and the point of each, of so many points.
        """
        cut, layers, found, across = self._tables.cut, self._layers, [], set[int]()
        for cells, points in shots:
            owners = find_owners(cells, points, count, cut, layers)
            found.append(owners)
            reading = owners[points]
            is_across = (reading >= 0) & (reading != find_layer(depths_of(cells, cut), layers))
            across.update(cells["field"][is_across].tolist())
        return np.stack(found), across

    def _is_here(self, cells: NDArray) -> NDArray[np.bool_]:
        """Return True for each of some cells that is in the layer."""
        depths = depths_of(cells, self._tables.cut)
        return (depths >= self._layer.first) & (depths < self._layer.end)

    def simulate(self, signal: Tensor, factors: Sequence[Tensor]) -> Tensor:
        sent, count = _by_time(signal), self._problem.receivers.shape[1]
        self._kept = []
        for number, recorders in enumerate(self._recorders):
            emitters = self._weigh_emitters(number, factors)
            owners, here = self._of_entries(number), self._is_here(recorders.cells)
            shot = StaggeredShot(
                self._tables,
                self._neighbours,
                select_emitters(emitters, self._is_here(emitters.cells)),
                sort_recorders(
                    divide_recorders(
                        recorders, owners == self._crew.number, here & (owners < 0), count
                    )
                ),
                select_emitters(emitters, self._is_mine(number)),
                select_recorders(recorders, here),
                sent[number],
            )
            self._kept.append(self._keep_samples(shot, emitters))

        def run(number: int, threads: int, traces: NDArray) -> None:
            kept = self._kept[number]
            kept.replay.simulate(self._sweeps(kept.shot, kept.tape, threads, traces))

        return self._record(run)

    def scatter(self, rates: Sequence[Tensor | None], factors: Sequence[Tensor | None]) -> Tensor:
        weight = self._problem.interval
        change = make_zeros((len(self._varying), *self._tables.rates.shape[1:]), self._dtype)
        for place, number in enumerate(self._varying):
            direction = rates[number]
            if direction is not None:
                part = direction.detach()[self._layer.first : self._layer.end]
                change[place] = lay_out(weight * part)
        varied = [
            torch.zeros(e.points.weights.shape) if factor is None else factor
            for e, factor in zip(self._scheme.emissions, factors, strict=True)
        ]

        def run(number: int, threads: int, traces: NDArray) -> None:
            kept, state = self._kept[number], self._make_state(threads, forward=True)
            emitters = self._weigh_emitters(number, varied)
            here = select_emitters(emitters, self._is_here(emitters.cells))
            scattered = kept.shot._replace(emitters=here)

            def follow(span: Span, first: int) -> None:
                tape = kept.tape._replace(first=first, explores=False)
                run_sweep(
                    sweeps.sweep_staggered, threads, span, scattered, state, tape, traces, change
                )

            kept.replay.repeat(
                self._sweeps(_unheard(kept.shot), kept.tape, threads, traces), follow
            )

        return self._record(run)

    def _place_emitters(self, shot: int) -> tuple[Emitters, tuple[NDArray[np.int64], ...]]:
        """Return a shot's emitters, by stage and row, with weights of 0, and their places.

        The places are the source and the tap of each.
        """
        system, signals, cells, stages, taps = self._scheme.system, self._scheme.signals, [], [], []
        sources = self._problem.sources.shape[1]
        for number, emission in enumerate(self._scheme.emissions):
            entries = Entries(emission.points, self._tables.cut, shot)
            some = np.zeros(entries.tap.size, EMISSION)
            some["field"] = list(system.fields).index(emission.field)
            some["row"], some["column"] = entries.row, entries.column
            some["source"] = signals.index(emission.signal) * sources + entries.point
            cells.append(some)
            stages.append(np.full(entries.tap.size, system.stage_of(emission.field)))
            taps.append(sum(self._taps[:number]) + entries.tap)
        together, stage, tap = map(np.concatenate, (cells, stages, taps))
        order = np.lexsort((together["row"], stage))
        ends = (0, int((stage == 0).sum()), stage.size)
        emitters = Emitters(together[order], np.zeros(stage.size, self._dtype), ends)
        return emitters, (emitters.cells["source"] % sources, tap[order])

    def _weigh_emitters(self, shot: int, factors: Sequence[Tensor]) -> Emitters:
        """Return the emitters of a shot in the whole grid with these factors."""
        together = torch.cat([factor.detach()[shot] for factor in factors], dim=1).numpy()
        weights = together[self._places[shot]].astype(self._dtype)
        return self._emitters[shot]._replace(weights=weights)

    def _of_entries(self, shot: int) -> NDArray[np.int64]:
        """Return the layer that records the trace of each entry of a shot's recorders, or -1."""
        return self._of_traces[shot, self._recorders[shot].trace_of_entries]

    def _is_mine(self, shot: int) -> NDArray[np.bool_]:
        """Return True for each emitter whose source's derivative this rank computes."""
        return self._of_sources[shot, self._places[shot][0]] == self._crew.number

    def _record(self, run: Callable[[int, int, NDArray], None]) -> Tensor:
        """Return the recorded fields (shot, trace, time) of all layers on rank 0; collective.

        run: a function of a shot's number, a number of threads and the shot's traces (time, trace),
        which it sets.
        """
        steps, count = self._kept[0].shot.signal.shape[0], self._problem.receivers.shape[1]
        most = max(kept.shot.recorders.traces.size for kept in self._kept)
        traces = np.empty((len(self._kept), steps, most), self._dtype)
        self._each_shot(lambda k, threads: run(k, threads, traces[k]), len(self._kept))
        found = torch.from_numpy(traces[..., :count]).transpose(1, 2).contiguous()
        found = join_points(found, self._of_traces, self._crew)
        if (self._of_traces < 0).any():
            self._join_wide(found.numpy(), traces[..., count:])
        return found

    def _sweeps(
        self, shot: StaggeredShot, tape: StaggeredTape, threads: int, traces: NDArray
    ) -> Sweeps:
        """Return the forward sweeps of a shot, which set its traces (time, trace)."""

        def run(state: StaggeredState, span: Span, first: int | None, explores: bool) -> None:
            used = NO_TAPE._replace(windows=tape.windows) if first is None else tape
            used = used._replace(first=first or 0, explores=explores)
            run_sweep(sweeps.sweep_staggered, threads, span, shot, state, used, traces, None)

        return Sweeps(partial(self._make_state, threads, forward=True), run)

    def _join_wide(self, traces: NDArray, alone: NDArray) -> None:
        """Set the traces (shot, trace, time) that no layer can record, on rank 0; collective.

        They are strains along a fibre that crosses a cut. alone: the fields that they read in this
        layer, (shot, time, entry).
        """
        parts = self._crew.gather(alone)
        if parts is None:
            return
        for number, recorders in enumerate(self._recorders):
            layers = find_layer(depths_of(recorders.cells, self._tables.cut), self._layers)
            read = [0] * self._crew.size
            wide = np.flatnonzero(self._of_entries(number) < 0)
            numbers = recorders.trace_of_entries[wide]
            traces[number, numbers] = 0
            for entry, trace in zip(wide, numbers, strict=True):
                layer = layers[entry]
                values = parts[layer][number, :, read[layer]]
                sweeps.add_values(traces[number, trace], recorders.weights[entry], values)
                read[layer] += 1

    def _each_shot(self, run: Callable[[int, int], None], count: int) -> None:
        each_shot(run, count, self._tables.grid, one_at_a_time=self._crew.size > 1)

    def _make_state(self, threads: int, forward: bool) -> StaggeredState:
        """Return the state at rest.

        The buffers have room for two blocks and what their differences reach; in 3-D, the transpose
        needs the planes that its differences reach. Layers exchange its buffers of the whole grid,
        which then also have images above a free surface.
        """
        tables = self._tables
        rows, columns = field_shape(self._shape)
        grid, reach = tables.grid, len(tables.weights[0])
        if self._crew.size > 1 and not forward:
            depth = rows + 2 * reach * tables.cut.stride
        elif threads > 1:
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

    def _keep_samples(self, shot: StaggeredShot, emitters: Emitters) -> _KeptShot:
        """Return a shot with room for its samples; emitters: those of the whole grid."""
        tables, history = shot.tables, self._problem.history
        steps, interval = shot.signal.shape[0], self._problem.interval
        rows, columns = emitters.cells["row"], emitters.cells["column"]
        windows = make_windows(tables.cut, rows, columns, len(tables.weights[0]), steps)
        samples = int(tables.stages["n_samples"].sum())
        if samples == 0:
            nothing = NO_TAPE._replace(windows=windows)
            return _KeptShot(shot, nothing, Recomputation(Snapshots(), steps, interval))
        replay = Recomputation(history, steps, interval)
        frame = Frame(whole_of.py_func(tables.grid), NOWHERE)
        store = make_store(self, frame, history.format, tables.rates[0], replay.length * samples)
        tape = StaggeredTape(interval, sampling_offset(interval), 0, store, windows, True)
        return _KeptShot(shot, tape, replay)

    def backpropagate(self, arriving: Tensor) -> Derivatives | None:
        heard, problem, dtype = _by_time(arriving), self._problem, self._dtype
        shots, steps = heard.shape[:2]
        shape = field_shape(self._shape)
        sources = len(self._scheme.signals) * problem.sources.shape[1]
        signal = np.zeros((shots, steps, sources), dtype)
        sums = make_zeros((shots, len(self._varying), *shape), dtype)
        energies = make_zeros((shots, 2 if problem.illuminate else 0, *shape), dtype)
        by_weights = [np.zeros_like(kept.shot.sources.weights) for kept in self._kept]
        nothing = np.zeros((steps, 0), dtype)

        def run(k: int, threads: int) -> None:
            kept, state = self._kept[k], self._make_state(threads, forward=False)
            gradients = StaggeredGradients(sums[k], energies[k], signal[k], by_weights[k])

            def follow(span: Span, first: int) -> None:
                tape, back = kept.tape._replace(first=first), sweeps.sweep_staggered_back
                ends = heard[k], gradients
                run_sweep(back, threads, span, kept.shot, state, tape, *ends, backwards=True)

            again = self._sweeps(_unheard(kept.shot), kept.tape, threads, nothing)
            kept.replay.reverse(again, follow)

        self._each_shot(run, shots)
        rates: list[Tensor | None] = [None] * self._rates
        for place, number in enumerate(self._varying):
            image = problem.interval * take_out(sums[:, place], self._shape)
            rates[number] = join_fields(image, self._crew)
        factors = np.zeros((shots, problem.sources.shape[1], sum(self._taps)), dtype)
        for number, by_weight in enumerate(by_weights):
            mine = self._is_mine(number)
            point, tap = self._places[number]
            factors[number, point[mine], tap[mine]] = by_weight
        by_factor = join_points(torch.from_numpy(factors), self._of_sources, self._crew)
        of_signals = np.tile(self._of_sources, len(self._scheme.signals))
        sent = join_points(torch.from_numpy(signal).transpose(1, 2), of_signals, self._crew)
        squares = [
            join_fields(problem.interval * take_out(energies[:, number], self._shape), self._crew)
            for number in range(energies.shape[1])
        ]
        if self._crew.number > 0:
            return None
        found = [each for each in squares if each is not None]
        return Derivatives(sent, rates, list(torch.split(by_factor, self._taps, dim=2)), found)


NO_TAPE = StaggeredTape(0, 0, 0, NO_STORE, np.zeros((0, 6), np.int64), True)


class _KeptShot(NamedTuple):
    """A shot, its samples, and the states from which they are simulated again."""

    shot: StaggeredShot
    tape: StaggeredTape
    replay: Recomputation


def _unheard(shot: StaggeredShot) -> StaggeredShot:
    """Return a shot that records nothing."""
    return shot._replace(recorders=shot.recorders._replace(stages=(0, 0, 0)))


def _by_time(values: Tensor) -> NDArray:
    """Return values (shot, point, time) as (shot, time, point)."""
    return values.detach().transpose(1, 2).contiguous().numpy()


def forward(
    problem: Problem, wavelet: Tensor, keep: bool, crew: Crew = ALONE
) -> tuple[Tensor, first_order.FirstOrderState | None]:
    """Return the traces (shot, receiver, time) of wavelets (shot, source, time), and a state."""
    return first_order.forward(partial(_CpuShots, crew=crew), problem, wavelet, keep)
