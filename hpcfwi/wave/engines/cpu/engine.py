"""The engine for CPUs: compiled sweeps, one thread per shot; spare threads share the last shots.

Shots share nothing while they run, so that threads wait for one another only if several work on the
same shot, and the bits of a shot depend neither on the others nor on the number of threads. The
ranks of a crew simulate the same shot, each a layer of its grid. A `ShotHistory` has the data that
a shot stores for the backward pass. The time loops are in `sweeps`; `staggered` is the engine of
first-order equations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave.engines.cpu import layout, sweeps, windows
from hpcfwi.wave.engines.cpu.compilation import find_disk, keep_loops
from hpcfwi.wave.engines.cpu.estimates import count_updates as count_updates
from hpcfwi.wave.engines.cpu.estimates import footprint as footprint
from hpcfwi.wave.engines.cpu.teams import each_shot, run_team
from hpcfwi.wave.history import (
    KINDS,
    Boundary,
    History,
    Kind,
    Recomputation,
    Recompute,
    Span,
    Sweeps,
    sampling_offset,
)
from hpcfwi.wave.layers import ALONE, Crew, Layer, cut, find_layers, join_fields, join_points
from hpcfwi.wave.numerics import Taps
from hpcfwi.wave.problem import Gradients, Problem, crop, make_gradients, relative_change

NAME = "cpu"
HISTORIES: tuple[Kind, ...] = KINDS


def run_sweep(
    sweep: Callable[..., None],
    threads: int,
    span: Span,
    shot: Any,
    state: Any,
    tape: Any,
    *results: Any,
    backwards: bool = False,
) -> None:
    """Run a compiled sweep through a span of steps, piece by piece, on so many threads."""

    def work(piece: Span, team: Any) -> None:
        sweep(shot, state, piece, tape, *results, team)

    run_team(threads, shot.tables.grid, span, work, backwards=backwards)


class ShotHistory:
    """The samples of a shot, and the data from which others are computed again.

    interval: steps from one sample to the next; keep: False if nothing is stored.
    """

    def __init__(
        self, history: History, interval: int, shot: sweeps.Shot, keep: bool = True
    ) -> None:
        self._shot, self._interval, self._keep = shot, interval, keep
        tables, sources = shot.tables, shot.sources
        last = sources.columns + sources.along.shape[1] - 1
        rows, columns = sources.rows[sources.weights != 0], np.append(sources.columns, last)
        self.windows = windows.make_windows(
            tables.cut, rows, columns, tables.radius, shot.steps, tables.sides.width
        )
        self._replay = Recomputation(history, shot.steps - 1, interval)
        # If p is rebuilt, it is from the rim of the interior in every step, and from the last waves
        self._rebuilds = keep and isinstance(history, Boundary)
        self._last: NDArray | None = None
        self._rim = self._samples = windows.NO_STORE
        if not keep:
            return
        if self._rebuilds:
            rim = windows.rim_of(shot.interior, tables.radius, tables.grid)
            self._rim = windows.make_store(self, rim, history.format, tables.v2dt2, shot.steps)
        inner = shot.interior if self._rebuilds else layout.NOWHERE
        frame = windows.Frame(windows.whole_of.py_func(tables.grid), inner)
        self._samples = windows.make_store(
            self, frame, history.format, tables.v2dt2, self._replay.length
        )

    def simulate(self, records: sweeps.Records, threads: int) -> None:
        """Simulate the shot and fill the records, with so many threads."""
        forward = self._sweeps(records, threads)
        if self._keep:
            self._replay.simulate(forward)
        else:
            forward.advance((0, self._shot.steps - 1), None, explores=True)

    def backpropagate(self, way_back: sweeps.WayBack, threads: int) -> None:
        """Run the backward sweep, which fills `way_back`."""
        forward = self._sweeps(sweeps.no_records(self._shot), threads)
        self._replay.reverse(forward, self._follower(sweeps.sweep_backward, way_back, threads))

    def scatter(self, scattering: sweeps.Scattering, threads: int) -> None:
        """Simulate the scattered field."""
        if self._rebuilds:
            # p can only be rebuilt backwards in time
            again = ShotHistory(Recompute(states=1), self._interval, self._shot)
            again.scatter(scattering, threads)
            return
        forward = self._sweeps(sweeps.no_records(self._shot), threads)
        self._replay.repeat(forward, self._follower(sweeps.sweep_scattered, scattering, threads))

    def _sweeps(self, records: sweeps.Records, threads: int) -> Sweeps:
        def advance(fields: sweeps.Fields, span: Span, first: int | None, explores: bool) -> None:
            if self._rebuilds:
                self._last = fields.waves
            tape = self._make_tape(first, explores, self._last)
            run_sweep(sweeps.sweep_forward, threads, span, self._shot, fields, tape, records)

        return Sweeps(partial(sweeps.make_fields, self._shot.tables, threads), advance)

    def _follower(
        self, sweep: Callable[..., None], ends: sweeps.WayBack | sweeps.Scattering, threads: int
    ) -> Callable[[Span, int], None]:
        """Return a function that runs another sweep over the samples of a segment."""
        fields = sweeps.make_fields(self._shot.tables, threads)

        def follow(span: Span, first: int) -> None:
            waves = None if self._last is None else self._last.copy()
            tape = self._make_tape(first, False, waves)
            backwards = sweep is sweeps.sweep_backward
            run_sweep(sweep, threads, span, self._shot, fields, tape, ends, backwards=backwards)

        return follow

    def _make_tape(self, first: int | None, explores: bool, waves: NDArray | None) -> sweeps.Tape:
        """Return the tape of a sweep.

        first: number of the first sample in the store, None if no samples are stored; explores: as
        in `sweeps.Tape`; waves: those with which p is rebuilt, None if it is not.
        """
        shot = self._shot
        return sweeps.Tape(
            self._interval,
            sampling_offset(self._interval),
            first or 0,
            layout.make_zeros((0, 0) if first is None else shot.tables.v2dt2.shape, shot.dtype),
            self._samples,
            self.windows,
            explores,
            sweeps.no_rebuilding(shot)
            if waves is None
            else sweeps.Rebuilding(True, self._rim, waves),
        )


@dataclass(frozen=True, eq=False)
class CpuState:
    """The stored histories of the shots, and the number of their steps.

    crew, layers: the ranks that simulate the shots, and the layer of each; energies: (shot, row,
    column), in the layout of the sweeps.
    """

    crew: Crew
    layers: list[Layer]
    tables: layout.Tables
    steps: int
    histories: list[ShotHistory]
    energies: NDArray

    @property
    def layer(self) -> Layer:
        """The layer of this rank."""
        return self.layers[self.crew.number]

    def join_points(self, values: Tensor, taps: Taps) -> Tensor:
        """Return the values (shot, point, time) of all layers on rank 0 of the crew; collective.

        Each layer has those of the points that it records; taps: of the points.
        """
        return join_points(values, find_layers(taps, self.layers), self.crew)


def available() -> str | None:
    """Return why this engine cannot be used here, or None if it can be used.

    Raises `InputError` if NUMBA_CACHE_DIR names a directory in which others may write.
    """
    find_disk()
    return None


def idle() -> int:
    """Return the bytes of buffers from earlier simulations."""
    return layout.POOL.count_bytes()


def clear() -> None:
    """Release these buffers."""
    layout.POOL.clear()


def forward(
    problem: Problem, wavelet: Tensor, keep: bool, crew: Crew = ALONE
) -> tuple[Tensor, CpuState | None]:
    """Return the traces (shot, receiver, time) of wavelets (shot, source, time), and a state."""
    keep_loops()
    layers = cut(problem, crew.size)
    tables = layout.make_tables(problem, layers[crew.number])
    emitted = wavelet.transpose(1, 2).contiguous().numpy()
    count, steps = emitted.shape[:2]
    traces = np.empty((count, steps, problem.receivers.shape[1]), tables.v2dt2.dtype)
    energies = _make_sums(tables, count if keep and problem.illuminate else 0)
    shots = sweeps.make_shots(problem, tables, emitted, layers, crew)
    histories = [ShotHistory(problem.history, problem.interval, shot, keep) for shot in shots]

    def simulate(k: int, threads: int) -> None:
        energy = energies[k] if len(energies) else sweeps.no_records(shots[k]).energy
        histories[k].simulate(sweeps.Records(traces[k], energy), threads)

    state = CpuState(crew, layers, tables, steps, histories, energies)
    each_shot(simulate, count, tables.grid, one_at_a_time=crew.size > 1)
    data = torch.from_numpy(traces).transpose(1, 2).contiguous()
    return state.join_points(data, problem.receiver_taps), state if keep else None


def backward(problem: Problem, state: CpuState, adjoint_source: Tensor) -> Gradients:
    """Return the gradients, given the one with respect to the traces, (shot, receiver, time)."""
    tables, shape = state.tables, (state.layer.planes, *problem.padded_shape[1:])
    arriving = adjoint_source.transpose(1, 2).contiguous().numpy()
    shots, steps = arriving.shape[:2]
    sources = problem.sources.shape[1]
    wavelet = torch.zeros((shots, steps, sources), dtype=problem.like.dtype)
    fields = 3 if problem.illuminate else 1
    found = torch.empty((fields, shots, *problem.like.shape), dtype=problem.like.dtype)

    def backpropagate(k: int, threads: int) -> None:
        sums = _make_sums(tables, 2 if problem.illuminate else 1)
        energy = sums[1] if problem.illuminate else sums[0, :0]
        way_back = sweeps.WayBack(arriving[k], wavelet[k].numpy(), sums[0], energy)
        state.histories[k].backpropagate(way_back, threads)

        def join(array: NDArray) -> Tensor | None:
            # Each sampled step stands for so many steps in the sums over time.
            return join_fields(problem.interval * layout.take_out(array, shape), state.crew)

        # One after the other, because each takes the memory of several fields
        image = join(sums[:1])
        if image is not None:
            emitted = wavelet[k : k + 1].transpose(1, 2)
            found[0, k] = make_gradients(problem, image, emitted, None, None).model["vp"][0]
        del image
        for number, array in enumerate((state.energies[k : k + 1], sums[1:])[: fields - 1], 1):
            energy = join(array)
            if energy is not None:
                found[number, k] = crop(energy, *problem.padding)[0]

    each_shot(backpropagate, shots, tables.grid, one_at_a_time=state.crew.size > 1)
    energies = found[1:] if problem.illuminate else (None, None)
    emitted = state.join_points(wavelet.transpose(1, 2), problem.source_taps)
    return Gradients({"vp": found[0]}, emitted, *energies)


def scatter(problem: Problem, state: CpuState, direction: Mapping[str, Tensor]) -> Tensor:
    """Return the first-order change of the traces (shot, receiver, time) with the model."""
    tables = state.tables
    whole = problem.interval * relative_change(problem, direction)
    change = layout.lay_out(whole[state.layer.first : state.layer.end])
    change *= tables.v2dt2
    size = (problem.n_shots, state.steps, problem.receivers.shape[1])
    traces = np.empty(size, tables.v2dt2.dtype)

    def scatter_one(k: int, threads: int) -> None:
        state.histories[k].scatter(sweeps.Scattering(change, traces[k]), threads)

    each_shot(scatter_one, len(traces), tables.grid, one_at_a_time=state.crew.size > 1)
    data = torch.from_numpy(traces).transpose(1, 2).contiguous()
    return state.join_points(data, problem.receiver_taps)


def _make_sums(tables: layout.Tables, count: int) -> NDArray:
    """Return fields of zeros in the layout of the sweeps."""
    return layout.make_zeros((count, *tables.v2dt2.shape), tables.v2dt2.dtype)
