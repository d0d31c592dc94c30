"""The history of a shot in the `cpu` engine: the data that it stores for its backward pass.

`engine` decides which shots run when, and on how many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

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
    Boundary,
    History,
    Recomputation,
    Recompute,
    Span,
    sampling_offset,
)


class ShotHistory:
    """The samples of a shot, and the data from which others are computed again.

    interval: steps from one sample to the next; keep: False if nothing is stored.
    """

    def __init__(self, history: History, interval: int, shot: Shot, keep: bool = True) -> None:
        self._shot, self._interval, self._keep = shot, interval, keep
        self.windows = make_windows(shot.tables, shot.sources, shot.steps)
        self._replay = Recomputation(history, shot.steps - 1, interval)
        # If p is rebuilt, it is from the rim of the interior in every step, and from the last waves
        self._rebuilds = keep and isinstance(history, Boundary)
        self._last: NDArray | None = None
        self._rim = self._samples = NO_STORE
        inner, whole = NOWHERE, whole_of.py_func(shot.tables.grid)
        if not keep:
            return
        format = "full" if isinstance(history, Recompute) else history.format
        like = shot.tables.v2dt2
        if self._rebuilds:
            inner = shot.interior
            rim = Frame(grown(inner, shot.tables.radius, whole), inner)
            self._rim = make_store(self, rim, format, like, shot.steps)
        self._samples = make_store(self, Frame(whole, inner), format, like, self._replay.length)

    def simulate(self, records: Records, threads: int) -> None:
        """Simulate the shot and fill the records, with so many threads."""
        sweeps = self._sweeps(records, threads)
        if self._keep:
            self._replay.simulate(sweeps)
        else:
            sweeps.advance((0, self._shot.steps - 1), None, explores=True)

    def backpropagate(self, way_back: WayBack, threads: int) -> None:
        """Run the backward sweep, which fills `way_back`."""
        sweeps = self._sweeps(no_records(self._shot), threads)
        self._replay.reverse(sweeps, self._follower(sweep_backward, way_back, threads))

    def scatter(self, scattering: Scattering, threads: int) -> None:
        """Simulate the scattered field."""
        if self._rebuilds:
            # p can only be rebuilt backwards in time
            again = ShotHistory(Recompute(states=1), self._interval, self._shot)
            again.scatter(scattering, threads)
            return
        sweeps = self._sweeps(no_records(self._shot), threads)
        self._replay.repeat(sweeps, self._follower(sweep_scattered, scattering, threads))

    def _sweeps(self, records: Records, threads: int) -> Sweeps:
        def advance(fields: Fields, span: Span, first: int | None, explores: bool) -> None:
            if self._rebuilds:
                self._last = fields.waves
            shot, tape = self._shot, self._make_tape(first, explores, self._last)
            run_team(threads, lambda team: sweep_forward(shot, fields, span, tape, records, team))

        return Sweeps(partial(make_fields, self._shot.tables, threads), advance)

    def _follower(
        self, sweep: Callable[..., None], ends: WayBack | Scattering, threads: int
    ) -> Callable[[Span, int], None]:
        """Return a function that runs another sweep over the samples of a segment."""
        shot, fields = self._shot, make_fields(self._shot.tables, threads)

        def follow(span: Span, first: int) -> None:
            waves = None if self._last is None else self._last.copy()
            tape = self._make_tape(first, False, waves)
            run_team(threads, lambda team: sweep(shot, fields, span, tape, ends, team))

        return follow

    def _make_tape(self, first: int | None, explores: bool, waves: NDArray | None) -> Tape:
        """Return the tape of a sweep.

        first: number of the first sample in the store, None if no samples are stored; explores: as
        in `Tape`; waves: those with which p is rebuilt, None if it is not.
        """
        shot = self._shot
        return Tape(
            self._interval,
            sampling_offset(self._interval),
            first or 0,
            make_zeros((0, 0) if first is None else shot.tables.v2dt2.shape, shot.dtype),
            self._samples,
            self.windows,
            explores,
            no_rebuilding(shot) if waves is None else Rebuilding(True, self._rim, waves),
        )


class Sweeps:
    """The forward sweeps of a shot, for its `Recomputation`; see `history.ForwardSweeps`.

    make_state: returns the state at rest, a named tuple whose last array has only intermediate
    results; run: a function of the state and of the arguments of `advance`.
    """

    def __init__(
        self, make_state: Callable[[], Any], run: Callable[[Any, Span, int | None, bool], None]
    ) -> None:
        self._make_state, self._run = make_state, run

    @cached_property
    def _state(self) -> Any:
        # Stored samples need no state
        return self._make_state()

    def _arrays(self) -> Iterator[NDArray]:
        for field in self._state[:-1]:
            yield from field if isinstance(field, tuple) else (field,)

    def save(self) -> list[NDArray]:
        return [array.copy() for array in self._arrays()]

    def load(self, saved: list[NDArray] | None) -> None:
        for k, array in enumerate(self._arrays()):
            array[...] = 0 if saved is None else saved[k]

    def advance(self, span: Span, first: int | None, explores: bool) -> None:
        self._run(self._state, span, first, explores)


def grown(box: Box, radius: int, whole: Box) -> Box:
    """Return a box with `radius` more cells on each side, limited to the grid."""
    edges = (edge + sign * radius for edge, sign in zip(box, (-1, 1) * 3, strict=True))
    return clamp.py_func(Box(*edges), whole)
