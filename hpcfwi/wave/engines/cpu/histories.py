"""The histories of the `cpu` engine: the data that a shot stores for its backward pass.

Each kind of `history` is a class with the same methods: `simulate`, `backpropagate` and `scatter`,
which run the compiled `sweeps`. `engine` decides which shots run when, and on how many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu.layout import NOWHERE, Box, make_zeros
from hpcfwi.wave.engines.cpu.sweeps import (
    Fields,
    Rebuilding,
    Records,
    Scattering,
    Shot,
    Tape,
    WayBack,
    make_fields,
    no_rebuilding,
    no_records,
    sweep_backward,
    sweep_forward,
    sweep_scattered,
)
from hpcfwi.wave.engines.cpu.teams import run_team
from hpcfwi.wave.engines.cpu.windows import (
    NO_STORE,
    Frame,
    clamp,
    make_store,
    make_windows,
    whole_of,
)
from hpcfwi.wave.history import (
    Recomputation,
    Recompute,
    Snapshots,
    Span,
    count_samples,
    sampling_offset,
)
from hpcfwi.wave.problem import Problem


def make_history(problem: Problem, shot: Shot, keep: bool) -> ShotHistory:
    """Return the history of the problem for one shot, or one that keeps nothing."""
    if not keep:
        return _Nothing(shot)
    if isinstance(problem.history, Recompute):
        return _Recompute(shot, problem.interval, problem.history.states)
    kind = _Snapshots if isinstance(problem.history, Snapshots) else _Boundary
    return kind(shot, problem.interval, problem.history.format)


class _Nothing:
    """The absence of a history: nothing of the shot's simulation is stored."""

    def __init__(self, shot: Shot) -> None:
        self._shot = shot

    def simulate(self, records: Records, threads: int) -> None:
        """Simulate the shot and fill the records, with so many threads."""
        shot = self._shot
        windows = make_windows(shot.tables, shot.sources, shot.steps)
        no_u, rebuilding = np.empty((0, 0), shot.dtype), no_rebuilding(shot)
        tape = Tape(0, 0, 0, no_u, NO_STORE, windows, True, rebuilding)
        fields = make_fields(shot.tables, threads)
        run(sweep_forward, shot, fields, (0, shot.steps - 1), tape, records, threads)

    def backpropagate(self, way_back: WayBack, threads: int) -> None:
        """Raise RuntimeError; `Simulation` never propagates back without a history."""
        raise RuntimeError

    def scatter(self, scattering: Scattering, threads: int) -> None:
        """Raise RuntimeError, for the same reason."""
        raise RuntimeError


class _Samples:
    """The samples of u in a format, and their tape for the sweeps."""

    def __init__(
        self, shot: Shot, interval: int, count: int, format: str, inner: Box = NOWHERE
    ) -> None:
        self._shot, self._interval = shot, interval
        frame = Frame(whole_of.py_func(shot.tables.grid), inner)
        self._store = make_store(self, frame, format, shot.tables.v2dt2, count)
        self.windows = make_windows(shot.tables, shot.sources, shot.steps)

    def make_tape(
        self,
        first: int = 0,
        explores: bool = True,
        keeps: bool = True,
        rebuilding: Rebuilding | None = None,
    ) -> Tape:
        """Return a tape; first: first sample of the store; keeps: True if u is used."""
        shot = self._shot
        return Tape(
            self._interval,
            sampling_offset(self._interval),
            first,
            make_zeros(shot.tables.v2dt2.shape if keeps else (0, 0), shot.dtype),
            self._store,
            self.windows,
            explores,
            rebuilding or no_rebuilding(shot),
        )


class _Snapshots:
    """A history that stores u of the sampled steps, except for the cells of `inner`."""

    def __init__(self, shot: Shot, interval: int, format: str, inner: Box = NOWHERE) -> None:
        self._shot, self._interval, self._span = shot, interval, (0, shot.steps - 1)
        count = count_samples(shot.steps - 1, interval)
        self._samples = _Samples(shot, interval, count, format, inner)

    def simulate(self, records: Records, threads: int) -> None:
        fields = make_fields(self._shot.tables, threads)
        tape = self._samples.make_tape(rebuilding=self._follow(fields.waves))
        run(sweep_forward, self._shot, fields, self._span, tape, records, threads)

    def backpropagate(self, way_back: WayBack, threads: int) -> None:
        fields = make_fields(self._shot.tables, threads)
        tape = self._samples.make_tape(rebuilding=self._rebuild())
        run(sweep_backward, self._shot, fields, self._span, tape, way_back, threads)

    def scatter(self, scattering: Scattering, threads: int) -> None:
        fields, tape = make_fields(self._shot.tables, threads), self._samples.make_tape()
        run(sweep_scattered, self._shot, fields, self._span, tape, scattering, threads)

    def _follow(self, waves: NDArray) -> Rebuilding:
        """Return the data from which p is rebuilt, after a forward sweep in these fields."""
        return no_rebuilding(self._shot)

    def _rebuild(self) -> Rebuilding:
        return no_rebuilding(self._shot)


class _Boundary(_Snapshots):
    """A history of the perimeter of every step, and of u in the cells that cannot be rebuilt."""

    def __init__(self, shot: Shot, interval: int, format: str) -> None:
        super().__init__(shot, interval, format, shot.interior)
        rim = grown(shot.interior, shot.tables.radius, whole_of.py_func(shot.tables.grid))
        frame = Frame(rim, shot.interior)
        self._rim = make_store(self, frame, format, shot.tables.v2dt2, shot.steps)
        self._last: NDArray | None = None

    def scatter(self, scattering: Scattering, threads: int) -> None:
        """Simulate again and scatter, because p can only be rebuilt backwards in time."""
        _Recompute(self._shot, self._interval, 1).scatter(scattering, threads)

    def _follow(self, waves: NDArray) -> Rebuilding:
        self._last = waves
        return Rebuilding(True, self._rim, waves)

    def _rebuild(self) -> Rebuilding:
        assert self._last is not None, "the shot was simulated"
        return Rebuilding(True, self._rim, self._last.copy())


class _Recompute:
    """A history of a few whole states, see `Recomputation`."""

    def __init__(self, shot: Shot, interval: int, states: int) -> None:
        self._shot = shot
        self._replay = Recomputation(Recompute(states=states), shot.steps - 1, interval)
        self._samples = _Samples(shot, interval, self._replay.length, "full")

    def simulate(self, records: Records, threads: int) -> None:
        self._replay.simulate(_Sweeps(self._shot, self._samples, records, threads))

    def backpropagate(self, way_back: WayBack, threads: int) -> None:
        sweeps = _Sweeps(self._shot, self._samples, no_records(self._shot), threads)
        self._replay.reverse(sweeps, sweeps.make_follower(sweep_backward, way_back))

    def scatter(self, scattering: Scattering, threads: int) -> None:
        sweeps = _Sweeps(self._shot, self._samples, no_records(self._shot), threads)
        self._replay.repeat(sweeps, sweeps.make_follower(sweep_scattered, scattering))


class _Sweeps:
    """The forward sweeps of a shot, for its `Recomputation`."""

    def __init__(self, shot: Shot, samples: _Samples, records: Records, threads: int) -> None:
        self._shot, self._samples, self._records = shot, samples, records
        self._threads = threads

    @cached_property
    def _fields(self) -> Fields:
        # Stored samples need no fields
        return make_fields(self._shot.tables, self._threads)

    def advance(self, span: Span, first: int | None, explores: bool) -> None:
        tape = self._samples.make_tape(first or 0, explores, keeps=first is not None)
        run(sweep_forward, self._shot, self._fields, span, tape, self._records, self._threads)

    def save(self) -> list[NDArray]:
        return [array.copy() for array in arrays_of(self._fields)]

    def load(self, saved: list[NDArray] | None) -> None:
        load_arrays(arrays_of(self._fields), saved)

    def make_follower(
        self, sweep: Callable[..., None], ends: WayBack | Scattering
    ) -> Callable[[Span, int], None]:
        """Return a function that runs another sweep over the samples of a segment."""
        shot, threads = self._shot, self._threads
        fields = make_fields(shot.tables, threads)

        def follow(span: Span, first: int) -> None:
            run(sweep, shot, fields, span, self._samples.make_tape(first), ends, threads)

        return follow


ShotHistory = _Nothing | _Snapshots | _Recompute


def run(
    sweep: Callable[..., None],
    shot: Shot,
    fields: Fields,
    span: tuple[int, int],
    tape: Tape,
    ends: Records | WayBack | Scattering,
    threads: int,
) -> None:
    """Run one of the time loops with so many threads."""
    run_team(threads, lambda team: sweep(shot, fields, span, tape, ends, team))


def arrays_of(fields: Fields) -> list[NDArray]:
    """Return all arrays of these fields."""
    return [fields.waves, *fields.slabs, *fields.sides]


def load_arrays(arrays: Sequence[NDArray], saved: Sequence[NDArray] | None) -> None:
    """Copy saved arrays into others, or set these to 0."""
    for k, array in enumerate(arrays):
        array[...] = 0 if saved is None else saved[k]


def grown(box: Box, radius: int, whole: Box) -> Box:
    """Return a box with `radius` more cells on each side, limited to the grid."""
    edges = (edge + sign * radius for edge, sign in zip(box, (-1, 1) * 3, strict=True))
    return clamp.py_func(Box(*edges), whole)
