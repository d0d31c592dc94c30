"""The histories of the `cpu` engine: the data that a shot stores for its backward pass.

Each kind of `history` is a class with the same methods: `simulate`, `backpropagate` and `scatter`,
which run the compiled `sweeps`. `engine` decides which shots run when, and on how many threads.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np
from numpy.typing import NDArray

from hpcfwi.wave import history
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
from hpcfwi.wave.history import Recompute, Snapshots, count_samples, sampling_offset
from hpcfwi.wave.problem import Problem

# Samples between two stored states, which take about as much memory as a state.
SAMPLES_PER_STATE = 2


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
    """A history of a few whole states, from which segments are simulated again.

    A segment lies between two states that may be stored; its samples are stored together.
    """

    def __init__(self, shot: Shot, interval: int, states: int) -> None:
        self._shot, self._states = shot, states
        count = count_samples(shot.steps - 1, interval)
        self._length = min(max(1, count), SAMPLES_PER_STATE * states)
        self._segments = max(1, -(-count // self._length))
        self._stride = self._length * interval
        self._samples = _Samples(shot, interval, self._length, "full")
        self._replay: _Replay | None = None

    def simulate(self, records: Records, threads: int) -> None:
        replay = _Replay(make_fields(self._shot.tables, threads))
        self._replay = replay
        for action in history.schedule(self._segments, self._states):
            self._go_to(replay, action, records, threads, explores=True)
            if isinstance(action, history.Reverse):
                self._simulate_segment(replay, action.segment, records, threads, explores=True)
                break

    def backpropagate(self, way_back: WayBack, threads: int) -> None:
        shot, adjoint = self._shot, make_fields(self._shot.tables, threads)
        # The states that the first pass has left can be used once.
        replay, self._replay = self._replay or _Replay(make_fields(shot.tables, threads)), None
        records = no_records(shot)
        for action in history.schedule(self._segments, self._states):
            if isinstance(action, history.Keep):
                if action.segment not in replay.states:
                    self._go_to(replay, action, records, threads)
                continue
            if replay.sampled != action.segment:
                self._go_to(replay, action, records, threads)
                self._simulate_segment(replay, action.segment, records, threads)
            tape = self._samples.make_tape(action.segment * self._length, explores=False)
            run(sweep_backward, shot, adjoint, self._span(action.segment), tape, way_back, threads)
            replay.states.pop(action.segment, None)

    def scatter(self, scattering: Scattering, threads: int) -> None:
        shot = self._shot
        replay, records = _Replay(make_fields(shot.tables, threads)), no_records(shot)
        fields = make_fields(shot.tables, threads)
        # At the end, the stored samples are those of the last segment, as after `simulate`.
        for segment in range(self._segments):
            self._simulate_segment(replay, segment, records, threads, explores=True)
            tape = self._samples.make_tape(segment * self._length)
            run(sweep_scattered, shot, fields, self._span(segment), tape, scattering, threads)

    def _go_to(
        self,
        replay: _Replay,
        action: history.Action,
        records: Records,
        threads: int,
        explores: bool = False,
    ) -> None:
        """Simulate from the state of one segment to that of another, and store it for a `Keep`."""
        if replay.position != action.origin:
            replay.load(action.origin)
        if action.segment > action.origin:
            span = action.origin * self._stride, action.segment * self._stride
            tape = self._samples.make_tape(explores=explores, keeps=False)
            run(sweep_forward, self._shot, replay.fields, span, tape, records, threads)
            replay.position = action.segment
        if isinstance(action, history.Keep):
            replay.states[action.segment] = deepcopy(replay.fields)

    def _simulate_segment(
        self,
        replay: _Replay,
        segment: int,
        records: Records,
        threads: int,
        explores: bool = False,
    ) -> None:
        tape = self._samples.make_tape(segment * self._length, explores=explores)
        run(sweep_forward, self._shot, replay.fields, self._span(segment), tape, records, threads)
        replay.position, replay.sampled = segment + 1, segment

    def _span(self, segment: int) -> tuple[int, int]:
        """Return the steps of a segment: first and last + 1."""
        last = segment == self._segments - 1
        end = self._shot.steps - 1 if last else (segment + 1) * self._stride
        return segment * self._stride, end


class _Replay:
    """A simulation that is repeated in parts: its position, and the stored states.

    position: the segment at whose beginning the fields are; sampled: the segment whose samples are
    stored.
    """

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.position = 0
        self.sampled = -1
        self.states: dict[int, Fields] = {}

    def load(self, segment: int) -> None:
        """Load the state at the beginning of a segment, or the initial state."""
        state = self.states.get(segment)
        for k, array in enumerate(arrays_of(self.fields)):
            array[...] = 0 if state is None else arrays_of(state)[k]
        self.position = segment


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


def grown(box: Box, radius: int, whole: Box) -> Box:
    """Return a box with `radius` more cells on each side, limited to the grid."""
    edges = (edge + sign * radius for edge, sign in zip(box, (-1, 1) * 3, strict=True))
    return clamp.py_func(Box(*edges), whole)
