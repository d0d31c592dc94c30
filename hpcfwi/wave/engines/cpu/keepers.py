"""What a shot on the `cpu` engine keeps of its simulation for the way back.

A keeper for each kind of `history`, all with the same two functions: `simulate` and
`backpropagate`. The shot itself is in `shot`; which shots run when, and on how many threads, is in
`engine`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hpcfwi.wave import revolve
from hpcfwi.wave.engines.cpu import sweeps
from hpcfwi.wave.engines.cpu.layout import make_zeros
from hpcfwi.wave.engines.cpu.packing import Frame
from hpcfwi.wave.engines.cpu.shot import NO_FRAME, NO_STORE, NOWHERE, Crew, Shot, WayBack
from hpcfwi.wave.engines.cpu.steps import Fields
from hpcfwi.wave.engines.cpu.windows import Window
from hpcfwi.wave.history import Recompute, Snapshots, count_samples, sampling_offset
from hpcfwi.wave.problem import Problem

# Samples between two states that are kept: about as much memory as a state.
SAMPLES_PER_STATE = 2


class Keeper(Protocol):
    """One shot's simulation, with what it keeps."""

    def simulate(self, traces: NDArray, energy: NDArray | None, crew: Crew) -> None:
        """Fill traces (time, receiver); add to the energy, a field, where one is given."""

    def backpropagate(self, way_back: WayBack, crew: Crew) -> None:
        """Propagate a residual back, through the same simulation."""


def make_keeper(problem: Problem, shot: Shot, keep: bool) -> Keeper:
    """The keeper of the problem's history, or one that keeps nothing."""
    if not keep:
        return _Nothing(shot)
    if isinstance(problem.history, Recompute):
        return _Recompute(shot, problem.interval, problem.history.states)
    kind = _Snapshots if isinstance(problem.history, Snapshots) else _Boundary
    return kind(shot, problem.interval, problem.history.format)


class _Nothing:
    """Keeps nothing."""

    def __init__(self, shot: Shot) -> None:
        self._shot = shot

    def simulate(self, traces: NDArray, energy: NDArray | None, crew: Crew) -> None:
        shot = self._shot
        u, windows = np.empty((0, 0), shot.dtype), shot.make_windows()
        history = sweeps.History(0, 0, 0, u, NO_STORE, NO_FRAME, windows, True, False)
        span = (0, shot.steps - 1)
        shot.sweep_forward(shot.make_fields(crew), span, history, crew, traces, None, energy)

    def backpropagate(self, way_back: WayBack, crew: Crew) -> None:
        """Not possible: `Simulation` knows that nothing was kept."""
        raise RuntimeError


class _Samples:
    """u of some samples in a format, and the history that the sweeps want of them."""

    def __init__(
        self,
        shot: Shot,
        interval: int,
        count: int,
        format: str,
        inner: Window = NOWHERE,
    ) -> None:
        self._shot, self._interval = shot, interval
        self.windows, self._frame = shot.make_windows(), Frame(shot.whole, inner)
        self._store = shot.make_store(self, format, count, self._frame)

    def history(self, first: int = 0, explores: bool = True, keeps: bool = True) -> sweeps.History:
        """first: the sample that is the store's first; the rest as in `sweeps.History`."""
        offset = sampling_offset(self._interval)
        shape = self._shot.scheme.v2dt2.shape if keeps else (0, 0)
        u = make_zeros(shape, self._shot.dtype)
        kept = (self._store, self._frame, self.windows)
        return sweeps.History(self._interval, offset, first, u, *kept, explores, keeps)


class _Snapshots:
    """Keeps u of the sampled steps."""

    def __init__(self, shot: Shot, interval: int, format: str) -> None:
        self._shot = shot
        self._span = (0, shot.steps - 1)
        count = count_samples(shot.steps - 1, interval)
        self._samples = _Samples(shot, interval, count, format)

    def simulate(self, traces: NDArray, energy: NDArray | None, crew: Crew) -> None:
        shot, history = self._shot, self._samples.history()
        fields = shot.make_fields(crew)
        shot.sweep_forward(fields, self._span, history, crew, traces, None, energy)

    def backpropagate(self, way_back: WayBack, crew: Crew) -> None:
        shot, history = self._shot, self._samples.history()
        shot.sweep_backward(shot.make_fields(crew), self._span, history, crew, way_back)


class _Boundary:
    """Keeps the perimeter of every step, and u of the sampled steps where p cannot be rebuilt."""

    def __init__(self, shot: Shot, interval: int, format: str) -> None:
        self._shot = shot
        self._span = (0, shot.steps - 1)
        count = count_samples(shot.steps - 1, interval)
        self._samples = _Samples(shot, interval, count, format, shot.interior)
        rim = grown(shot.interior, len(shot.scheme.x), shot.whole)
        self._frame = Frame(rim, shot.interior)
        self._rim = shot.make_store(self, format, shot.steps, self._frame)
        self._last: NDArray | None = None

    def simulate(self, traces: NDArray, energy: NDArray | None, crew: Crew) -> None:
        shot = self._shot
        fields = shot.make_fields(crew)
        self._last = fields.waves
        rebuilding, history = self._rebuilding(fields.waves), self._samples.history()
        shot.sweep_forward(fields, self._span, history, crew, traces, rebuilding, energy)

    def backpropagate(self, way_back: WayBack, crew: Crew) -> None:
        assert self._last is not None, "the shot was simulated"
        shot, fields = self._shot, self._shot.make_fields(crew)
        rebuilding, history = self._rebuilding(self._last.copy()), self._samples.history()
        shot.sweep_backward(fields, self._span, history, crew, way_back, rebuilding)

    def _rebuilding(self, waves: NDArray) -> sweeps.Rebuilding:
        return sweeps.Rebuilding(True, self._rim, self._frame, self._shot.interior, waves)


class _Recompute:
    """Keeps a few whole states, and simulates again from them.

    A segment is what lies between two states that may be kept; its samples are kept together.
    """

    def __init__(self, shot: Shot, interval: int, states: int) -> None:
        self._shot, self._states = shot, states
        count = count_samples(shot.steps - 1, interval)
        self._length = min(max(1, count), SAMPLES_PER_STATE * states)
        self._segments = max(1, -(-count // self._length))
        self._stride = self._length * interval
        self._samples = _Samples(shot, interval, self._length, "full")
        self._replay: _Replay | None = None

    def simulate(self, traces: NDArray, energy: NDArray | None, crew: Crew) -> None:
        replay = _Replay(self._shot.make_fields(crew))
        self._replay = replay
        for action in revolve.schedule(self._segments, self._states):
            self._go_to(replay, action, crew, traces, energy, explores=True)
            if isinstance(action, revolve.Reverse):
                self._simulate_segment(replay, action.segment, crew, traces, energy, explores=True)
                break

    def backpropagate(self, way_back: WayBack, crew: Crew) -> None:
        shot, adjoint = self._shot, self._shot.make_fields(crew)
        # What the first pass has left can be used once.
        replay, self._replay = self._replay or _Replay(shot.make_fields(crew)), None
        for action in revolve.schedule(self._segments, self._states):
            if isinstance(action, revolve.Store):
                if action.segment not in replay.states:
                    self._go_to(replay, action, crew)
                continue
            if replay.sampled != action.segment:
                self._go_to(replay, action, crew)
                self._simulate_segment(replay, action.segment, crew)
            history = self._samples.history(action.segment * self._length, explores=False)
            shot.sweep_backward(adjoint, self._span(action.segment), history, crew, way_back)
            replay.states.pop(action.segment, None)

    def _go_to(
        self,
        replay: _Replay,
        action: revolve.Action,
        crew: Crew,
        traces: NDArray | None = None,
        energy: NDArray | None = None,
        explores: bool = False,
    ) -> None:
        """From the state of a segment to that of another, which is kept if it is to be."""
        if replay.position != action.origin:
            replay.load(action.origin)
        if action.segment > action.origin:
            span = action.origin * self._stride, action.segment * self._stride
            history = self._samples.history(explores=explores, keeps=False)
            self._shot.sweep_forward(replay.fields, span, history, crew, traces, None, energy)
            replay.position = action.segment
        if isinstance(action, revolve.Store):
            replay.states[action.segment] = copy_fields(replay.fields)

    def _simulate_segment(
        self,
        replay: _Replay,
        segment: int,
        crew: Crew,
        traces: NDArray | None = None,
        energy: NDArray | None = None,
        explores: bool = False,
    ) -> None:
        history = self._samples.history(segment * self._length, explores=explores)
        span = self._span(segment)
        self._shot.sweep_forward(replay.fields, span, history, crew, traces, None, energy)
        replay.position, replay.sampled = segment + 1, segment

    def _span(self, segment: int) -> tuple[int, int]:
        """The steps of a segment: from, to before."""
        last = segment == self._segments - 1
        end = self._shot.steps - 1 if last else (segment + 1) * self._stride
        return segment * self._stride, end


class _Replay:
    """A simulation that goes to and fro: where it is, and the states that it has kept.

    position: the segment whose beginning the fields are at; sampled: the segment whose samples are
    kept.
    """

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.position = 0
        self.sampled = -1
        self.states: dict[int, Fields] = {}

    def load(self, segment: int) -> None:
        """Go to the beginning of a segment whose state is kept, or of the first."""
        state = self.states.get(segment)
        for k, array in enumerate(arrays_of(self.fields)):
            array[...] = 0 if state is None else arrays_of(state)[k]
        self.position = segment


def arrays_of(fields: Fields) -> list[NDArray]:
    return [fields.waves, *fields.slabs, *fields.sides]


def copy_fields(fields: Fields) -> Fields:
    return Fields(
        fields.waves.copy(),
        (fields.slabs[0].copy(), fields.slabs[1].copy()),
        (fields.sides[0].copy(), fields.sides[1].copy()),
        fields.work,
    )


def grown(box: Window, radius: int, whole: Window) -> Window:
    """A box with `radius` more cells along each axis, as far as the grid goes."""
    return Window(
        max(whole.front, box.front - radius),
        min(whole.back, box.back + radius),
        max(whole.top, box.top - radius),
        min(whole.bottom, box.bottom + radius),
        max(whole.left, box.left - radius),
        min(whole.right, box.right + radius),
    )
