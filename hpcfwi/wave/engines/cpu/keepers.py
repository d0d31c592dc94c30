"""One shot on the `cpu` engine, and what it keeps of its simulation for the way back.

A keeper for each kind of `history`, all with the same two functions: `simulate` and
`backpropagate`. Their time loops are in `sweeps`; which shots run when, and on which threads, is in
`engine`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from threading import RLock
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.wave import revolve
from hpcfwi.wave.engines.cpu import packing, sweeps
from hpcfwi.wave.engines.cpu.layout import field_shape, make_empty, make_zeros
from hpcfwi.wave.engines.cpu.packing import (
    FULL,
    Frame,
    Store,
    make_frame,
    make_store,
)
from hpcfwi.wave.engines.cpu.rows import HALO
from hpcfwi.wave.engines.cpu.team import Team
from hpcfwi.wave.engines.cpu.windows import PATIENCE, Window, first_window
from hpcfwi.wave.history import Recompute, Snapshots, count_samples, sampling_offset
from hpcfwi.wave.problem import Problem

NOWHERE = Window(0, 0, 0, 0, 0, 0)
NO_FRAME = Frame(NOWHERE, NOWHERE, np.zeros(0, np.int64))
NO_STORE = Store(FULL, np.zeros((0, 0), np.uint8), np.zeros((0, 0), np.float32))
# Samples between two states that are kept: about as much memory as a state.
SAMPLES_PER_STATE = 2


class Shelf:
    """Large arrays that are used again: touching fresh memory costs as much as a simulation."""

    def __init__(self) -> None:
        self._arrays: list[NDArray] = []
        # Arrays come back when the garbage collector finds them, which may be in the midst of this.
        self._lock = RLock()

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
        """An array from the shelf, whatever its contents; or a new one, and all others go."""
        with self._lock:
            for k, array in enumerate(self._arrays):
                if array.shape == shape and array.dtype == dtype:
                    return self._arrays.pop(k)
            self._arrays.clear()
        return make_empty(shape, dtype)

    def put(self, array: NDArray) -> None:
        with self._lock:
            self._arrays.append(array)

    def count_bytes(self) -> int:
        with self._lock:
            return sum(array.nbytes for array in self._arrays)

    def lend(self, borrower: object, shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
        """An array that comes back to the shelf when the borrower is gone."""
        array = self.take(shape, dtype)
        weakref.finalize(borrower, self.put, array).atexit = False
        return array


SHELF = Shelf()


class Crew:
    """The threads that work on one shot."""

    def __init__(self, size: int) -> None:
        self.size = size

    def run(self, work: Callable[[Team], None]) -> None:
        """Do the same work on all threads, each with its rank in the team."""
        arrivals = np.zeros(1, np.int64)
        if self.size == 1:
            work(Team(0, 1, arrivals))
            return
        teams = [Team(rank, self.size, arrivals) for rank in range(self.size)]
        with ThreadPoolExecutor(self.size, initializer=flush_denormals) as threads:
            list(threads.map(work, teams))


def flush_denormals() -> None:
    """Numbers below 1e-38 become 0 in this thread; ahead of a wave they would slow it tenfold."""
    torch.set_flush_denormal(True)


@dataclass(frozen=True, eq=False)
class Shot:
    """One shot as the sweeps want it.

    wavelet: (time, 1), at the simulation's step; scale: 1 / cell volume; interior: the part of the
    grid where nothing absorbs.
    """

    scheme: sweeps.Scheme
    source: sweeps.Taps
    receivers: sweeps.Taps
    wavelet: NDArray
    scale: np.floating
    interior: Window

    @property
    def steps(self) -> int:
        return int(self.wavelet.shape[0])

    @property
    def dtype(self) -> np.dtype:
        return self.scheme.v2dt2.dtype

    @cached_property
    def whole(self) -> Window:
        grid = self.scheme.grid
        return Window(0, grid.planes, 0, grid.rows, 0, grid.n)

    def make_fields(self, crew: Crew) -> sweeps.Fields:
        """A simulation at rest."""
        s = self.scheme
        columns = s.v2dt2.shape[1]

        def pair(rows: int, columns: int) -> tuple[NDArray, NDArray]:
            shape = (rows, columns)
            return make_zeros(shape, self.dtype), make_zeros(shape, self.dtype)

        blocks, stretch = s.grid.planes * s.sides.blocks, s.sides.a.size + 2 * HALO
        return sweeps.Fields(
            make_zeros((2, *s.v2dt2.shape), self.dtype),
            pair(s.slabs.rows, columns),
            pair(blocks, stretch),
            make_zeros((crew.size, stretch), self.dtype),
        )

    def make_windows(self) -> NDArray[np.int64]:
        """Windows of each step, of which only the first is known."""
        s, source = self.scheme, self.source
        windows = np.zeros((self.steps // PATIENCE + 1, 6), np.int64)
        windows[0] = first_window(
            s.grid, s.sides.width, len(s.x), source.rows[0], source.columns[0]
        )
        return windows

    def make_frame(self, outer: Window, inner: Window) -> tuple[Frame, int]:
        return make_frame(self.scheme.grid, self.scheme.v2dt2.shape[0], outer, inner)

    def make_store(self, borrower: object, format: str, steps: int, length: int) -> Store:
        """Room for frames of so many numbers, which goes with the borrower."""
        rows = self.scheme.v2dt2.shape[0]
        return make_store(partial(SHELF.lend, borrower), format, self.dtype, steps, length, rows)

    def no_rebuilding(self) -> sweeps.Rebuilding:
        waves = np.empty((2, 0, 0), self.dtype)
        return sweeps.Rebuilding(False, NO_STORE, NO_FRAME, NOWHERE, waves)

    def sweep_forward(
        self,
        fields: sweeps.Fields,
        span: tuple[int, int],
        history: sweeps.History,
        crew: Crew,
        traces: NDArray | None = None,
        rebuilding: sweeps.Rebuilding | None = None,
        energy: NDArray | None = None,
    ) -> None:
        """`sweeps.sweep_forward`; traces and the energy are found where they are given."""
        receivers = self.receivers
        if traces is None:
            receivers = sweeps.Taps(*(array[:0] for array in receivers))
            traces = np.empty((self.steps, 0), self.dtype)
        energy = np.empty((0, 1), self.dtype) if energy is None else energy
        emitted = (self.source, receivers, self.wavelet, self.scale)
        rest = (traces, history, rebuilding or self.no_rebuilding(), energy)
        crew.run(
            lambda team: sweeps.sweep_forward(self.scheme, fields, span, *emitted, *rest, team)
        )

    def sweep_backward(
        self,
        fields: sweeps.Fields,
        span: tuple[int, int],
        history: sweeps.History,
        crew: Crew,
        way_back: WayBack,
        rebuilding: sweeps.Rebuilding | None = None,
    ) -> None:
        """`sweeps.sweep_backward`."""
        none = np.empty((0, 1), self.dtype)
        energy = none if way_back.energy is None else way_back.energy
        emitted = (self.source, self.receivers, self.wavelet)
        back = (way_back.residual, self.scale, way_back.wavelet)
        rest = (history, rebuilding or self.no_rebuilding(), way_back.image, energy)
        crew.run(
            lambda team: sweeps.sweep_backward(
                self.scheme, fields, span, *emitted, *back, *rest, team
            )
        )


@dataclass(frozen=True, eq=False)
class WayBack:
    """What goes into the way back, and what it fills: the arrays of `sweeps.sweep_backward`."""

    residual: NDArray
    wavelet: NDArray
    image: NDArray
    energy: NDArray | None


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


def count_bytes(problem: Problem, steps: int) -> int:
    """Bytes that a shot keeps, about."""
    history, size = problem.history, problem.vp.element_size()
    rows, columns = field_shape(problem.padded_shape)
    samples = count_samples(steps - 1, problem.interval)
    if isinstance(history, Recompute):
        share = 1.0 - np.prod(np.divide(problem.vp.shape, problem.padded_shape))
        state = 2.0 + 2.0 * problem.vp.ndim * share
        stretch = min(samples, SAMPLES_PER_STATE * history.states)
        return int((min(history.states, samples) * state + stretch) * rows * columns * size)
    dtype = np.dtype(np.float32 if size == 4 else np.float64)
    kept = packing.count_bytes(history.format, dtype)
    if isinstance(history, Snapshots):
        return samples * rows * columns * kept + (history.format != "full") * rows * columns * size
    radius = problem.order // 2
    inner = [
        n - radius * ((before > 0) + (after > 0))
        for n, before, after in zip(problem.vp.shape, *problem.padding, strict=True)
    ]
    interior = np.prod(inner)
    rim = np.prod([n + 2 * radius for n in inner]) - interior
    frame = np.prod(problem.padded_shape) - interior
    return int(steps * rim * kept + samples * frame * kept + 4 * rows * columns * size)


class _Nothing:
    """Keeps nothing."""

    def __init__(self, shot: Shot) -> None:
        self._shot = shot

    def simulate(self, traces: NDArray, energy: NDArray | None, crew: Crew) -> None:
        shot = self._shot
        u = np.empty((1, 0, 0), shot.dtype)
        windows = shot.make_windows()
        history = sweeps.History(0, 0, 0, u, False, NO_STORE, NO_FRAME, windows, True, False)
        span = (0, shot.steps - 1)
        shot.sweep_forward(shot.make_fields(crew), span, history, crew, traces, None, energy)

    def backpropagate(self, way_back: WayBack, crew: Crew) -> None:
        """Not possible: `Simulation` knows that nothing was kept."""
        raise RuntimeError


class _Samples:
    """u of some samples in a format: arrays, and the history that the sweeps want of them."""

    def __init__(
        self,
        shot: Shot,
        interval: int,
        count: int,
        format: str,
        inner: Window = NOWHERE,
    ) -> None:
        self._shot, self._interval = shot, interval
        self.windows = shot.make_windows()
        field = shot.scheme.v2dt2.shape
        self._packs = format != "full" or inner != NOWHERE
        self._store, self._frame = NO_STORE, NO_FRAME
        if self._packs:
            self._frame, length = shot.make_frame(shot.whole, inner)
            self._store = shot.make_store(self, format, count, length)
        self._u = (
            make_zeros((1, *field), shot.dtype)
            if self._packs
            else SHELF.lend(self, (count, *field), shot.dtype)
        )

    def history(self, first: int = 0, explores: bool = True, keeps: bool = True) -> sweeps.History:
        """first: the sample that is the arrays' first; the rest as in `sweeps.History`."""
        offset = sampling_offset(self._interval)
        return sweeps.History(
            self._interval,
            offset,
            first,
            self._u,
            self._packs,
            self._store,
            self._frame,
            self.windows,
            explores,
            keeps,
        )


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
        self._frame, length = shot.make_frame(rim, shot.interior)
        self._rim = shot.make_store(self, format, shot.steps, length)
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

    def __init__(self, fields: sweeps.Fields) -> None:
        self.fields = fields
        self.position = 0
        self.sampled = -1
        self.states: dict[int, sweeps.Fields] = {}

    def load(self, segment: int) -> None:
        """Go to the beginning of a segment whose state is kept, or of the first."""
        state = self.states.get(segment)
        for k, array in enumerate(arrays_of(self.fields)):
            array[...] = 0 if state is None else arrays_of(state)[k]
        self.position = segment


def arrays_of(fields: sweeps.Fields) -> list[NDArray]:
    return [fields.waves, *fields.slabs, *fields.sides]


def copy_fields(fields: sweeps.Fields) -> sweeps.Fields:
    return sweeps.Fields(
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
