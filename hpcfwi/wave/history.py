"""The history of a simulation: the data of the forward pass that the backward pass needs.

The gradient correlates the adjoint field q with u, the second time derivative of the forward field
over v^2 (`problem.Problem`). The wavelet limits the band of both, so that the sum of their product
over time is found from samples at the Nyquist rate of the data: everything in between is redundant.
A history is the way in which u is found at these samples: it is stored, rebuilt backwards in time
from the perimeter of the field, or computed again from stored states.

This module has the kinds of histories, the choice for the available memory, the sampled steps, and
the order in which states are stored and simulated again (Griewank and Walther 2000, section 2), by
`Recomputation`. The arrays belong to the engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import comb, floor
from numbers import Integral
from typing import Any, ClassVar, NamedTuple, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.errors import say_bytes
from hpcfwi.registry import HistoryFormat, HistoryKind
from hpcfwi.survey import Spectrum
from hpcfwi.system import free_on_host

Kind = HistoryKind
KINDS: tuple[Kind, ...] = get_args(HistoryKind)
# Formats of kept numbers: as computed ("full"), or shorter. A float16 or an int8 is scaled by the
# largest magnitude of a stretch of its row.
Format = HistoryFormat
# More states than this make a second forward pass only a little cheaper.
MOST_STATES = 64


@dataclass(frozen=True)
class Sampling:
    """The steps of the simulation from which the image is made: every `interval`-th.

    interval: 1 gives the exact gradient of the discrete scheme; None takes the largest that samples
    frequencies up to `frequency` (Hz) at their Nyquist rate; frequency: None takes the highest in
    the wavelets of the chunk. Raises ValueError if one is not positive.
    """

    interval: int | None = None
    frequency: float | None = None

    def __post_init__(self) -> None:
        if self.interval is not None and not (
            isinstance(self.interval, Integral) and self.interval >= 1
        ):
            raise ValueError(f"interval is {self.interval}; expected a number of steps, 1 or more")
        if self.frequency is not None and not 0.0 < self.frequency < np.inf:
            raise ValueError(f"frequency is {self.frequency}; expected a positive frequency (Hz)")


@dataclass(frozen=True)
class _Formatted(Sampling):
    format: Format = "full"

    def __post_init__(self) -> None:
        super().__post_init__()
        known = get_args(Format)
        if self.format not in known:
            raise ValueError(f"format is {self.format!r}; expected one of {', '.join(known)}")


class Snapshots(_Formatted):
    """A history that stores the sampled steps in the forward simulation.

    format: of the stored numbers. Raises ValueError for an unknown one.
    """


class Boundary(_Formatted):
    """A history that stores the perimeter of every step, and rebuilds the field backwards in time.

    Absorbing cells cannot be rebuilt: their sampled steps are stored. format: of the stored
    numbers. Raises ValueError for an unknown one.
    """


@dataclass(frozen=True)
class Recompute(Sampling):
    """A history that stores a few whole states of a shot, and simulates again from the nearest one.

    states: their number. The choice of their steps is optimal (binomial checkpointing). Raises
    ValueError if states is below 1.
    """

    format: ClassVar[Format] = "full"
    states: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.states, Integral) or self.states < 1:
            raise ValueError(f"states is {self.states}; expected a number of states, 1 or more")


@dataclass(frozen=True)
class Auto(Sampling):
    """The fastest history that fits into `memory` (bytes, for all shots together).

    kind: the only kind to choose from, None for all; memory: None takes the free memory of the
    device, less a margin; exact: True stores numbers in full precision if they fit, although
    shorter formats are faster; None means True if every step is sampled, or if the model is in
    double precision. Raises ValueError for an impossible value.
    """

    kind: Kind | None = None
    memory: int | None = None
    exact: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind is not None and self.kind not in KINDS:
            names = ", ".join(f'"{kind}"' for kind in KINDS)
            raise ValueError(f'history is {self.kind!r}; expected "auto", {names}')
        if self.memory is not None and self.memory < 1:
            raise ValueError(f"memory is {self.memory}; expected a number of bytes, 1 or more")


History = Snapshots | Boundary | Recompute


def kind_of(history: History) -> Kind:
    """Return the name of a history's kind."""
    return cast(Kind, type(history).__name__.lower())


def describe(history: History) -> str:
    """Return the description of a history whose interval is resolved."""
    every = "step" if history.interval == 1 else f"{history.interval} steps"
    if isinstance(history, Recompute):
        detail = "1 state" if history.states == 1 else f"{history.states} states"
    else:
        detail = "full precision" if history.format == "full" else history.format
    return f"{kind_of(history)}, every {every}, {detail}"


def to_table(history: History) -> dict[str, Any]:
    """Return a history as a table of plain values."""
    return {"kind": kind_of(history), **asdict(history)}


def from_table(table: Mapping[str, Any]) -> History:
    """Return the history of a table of plain values; missing keys have their defaults.

    Raises ValueError, TypeError or KeyError if there is no such history.
    """
    kinds = {each.__name__.lower(): each for each in get_args(History)}
    return kinds[table["kind"]](**{key: value for key, value in table.items() if key != "kind"})


def computes_alike(one: History, other: History) -> bool:
    """Return True if gradients have the same bits with both: states do not change them."""
    if isinstance(one, Recompute) and isinstance(other, Recompute):
        return replace(one, states=other.states) == other
    return one == other


def parse(name: str | Auto | History) -> Auto | History:
    """Return the history of a name, "auto" or a kind; an object is returned unchanged.

    Raises ValueError for any other.
    """
    if isinstance(name, Sampling):
        return name
    return Auto() if name == "auto" else Auto(kind=cast(Kind, name))


def candidates(auto: Auto, kinds: tuple[Kind, ...]) -> Iterator[History]:
    """Yield the histories that `auto` may take of these kinds, the fastest first."""
    at = (auto.interval, auto.frequency)
    formats: tuple[Format, ...] = ("float16", "full", "int8")
    if auto.exact:
        formats = ("full", "float16", "int8")
    for kind in kinds if auto.kind is None else (auto.kind,):
        if kind == "snapshots":
            yield from (Snapshots(*at, f) for f in formats)
        elif kind == "boundary":
            yield from (Boundary(*at, f) for f in formats[:2])
        else:
            yield Recompute(*at, MOST_STATES)


class NothingFits(MemoryError):
    """The error if no history fits into the available memory; needed: bytes of the smallest one."""

    def __init__(self, needed: int, memory: int) -> None:
        super().__init__(
            f"the simulation needs {say_bytes(needed)} with the smallest history, but only "
            f"{say_bytes(memory)} are available: simulate fewer shots at a time"
        )
        self.needed = needed


def choose(
    auto: Auto, kinds: tuple[Kind, ...], memory: int, footprint: Callable[[History], int]
) -> History:
    """Return the fastest history of these kinds whose footprint (bytes) is within `memory`.

    Raises NothingFits if there is none.
    """
    least: list[int] = []
    for history in candidates(auto, kinds):
        if isinstance(history, Recompute):
            # As many states as fit, or 1
            fewer = [replace(history, states=n) for n in range(history.states, 0, -1)]
            history = next((h for h in fewer if footprint(h) <= memory), fewer[-1])
        needed = footprint(history)
        if needed <= memory:
            return history
        least.append(needed)
    raise NothingFits(min(least), memory)


def sampling_interval(
    sampling: Sampling, wavelet: NDArray[np.floating], dt: float, substeps: int
) -> int:
    """Return the number of steps from one sampled step to the next.

    wavelet: (..., time), sampled at `dt` (s); a step of the simulation is dt / substeps.
    """
    if sampling.interval is not None:
        return sampling.interval
    frequency = sampling.frequency
    if frequency is None:
        frequency = Spectrum.of(wavelet, dt).highest()
    if frequency == 0.0:
        return max(1, wavelet.shape[-1])
    return max(1, floor(substeps / (2.0 * frequency * dt)))


def sampling_offset(interval: int) -> int:
    """Return the first sampled step, which is in the middle of the first interval."""
    return interval // 2


def sampled_steps(steps: int, interval: int) -> range:
    """Return the steps that are sampled, of so many."""
    return range(sampling_offset(interval), steps, interval)


# Share of the free memory that is left to other arrays of the program, and to other programs.
MARGIN = 0.2


def memory_at_hand(device: torch.device) -> int:
    """Return the bytes that may be allocated on a device now, less a margin of 20 %."""
    return int((1.0 - MARGIN) * free_on(device))


def free_on(device: torch.device) -> int:
    """Return the bytes that are free on a device now, on a GPU with those that torch holds unused.

    On a CPU, this memory is shared by all processes of the machine, or of the control group that
    limits this process.
    """
    if device.type != "cuda":
        return free_on_host()
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + held


def graph_is_kept() -> bool:
    """Return True if autograd keeps the graph of the running backward pass for another one.

    If not, autograd releases the tensors of the graph after the pass, but not other objects.
    """
    return torch._C._autograd._get_current_graph_task_keep_graph()


class Action(NamedTuple):
    """Simulate from the state of segment `origin` to that of `segment`, and store it if `keeps`.

    Otherwise the segment is simulated too, and reversed. If its state is stored, it is not needed
    any more.
    """

    origin: int
    segment: int
    keeps: bool


def schedule(segments: int, states: int, first: int = 0) -> Iterator[Action]:
    """Yield the actions that reverse so many segments with at most so many stored states.

    first: number of the first segment, whose state does not count, because it is known. All actions
    up to the first that reverses go once through the whole simulation.
    """
    if segments == 1 or states == 0:
        for segment in reversed(range(first, first + segments)):
            yield Action(first, segment, keeps=False)
        return
    part = _first_part(segments, states)
    yield Action(first, first + part, keeps=True)
    yield from schedule(segments - part, states - 1, first + part)
    yield from schedule(part, states, first)


def _first_part(segments: int, free: int) -> int:
    """Return the number of segments before the next state is stored.

    With `free` states and the current one, comb(free + 1 + r, r) segments can be reversed if none
    is simulated more than r times before it is reversed. Neither part may need more than r; the
    first, which has been simulated once to reach the second, may need only r - 1.
    """
    r = 1
    while comb(free + 1 + r, r) < segments:
        r += 1
    return max(segments - comb(free + r, r), comb(free + r - 1, r - 2) if r > 1 else 1)


# Samples between two stored states, which take about as much memory as a state.
SAMPLES_PER_STATE = 2

Span = tuple[int, int]
"""The first step of a segment, and the last one + 1."""


class Sweeps:
    """The forward sweeps of a shot or of several, which are at rest at first.

    make_state: returns the arrays of the state at rest, or tuples of them; the last has only
    intermediate results. It is called when the state is needed, which is never for stored samples.
    run: simulates some steps. Its arguments are the state at the first of them, their span, the
    number of the first sample in the store (None if none is stored), and True if windows are found,
    False if they are known.
    """

    def __init__(
        self, make_state: Callable[[], Any], run: Callable[[Any, Span, int | None, bool], None]
    ) -> None:
        self._make_state, self._run = make_state, run

    @cached_property
    def _state(self) -> Any:
        return self._make_state()

    def _arrays(self) -> Iterator[Any]:
        for field in self._state[:-1]:
            yield from field if isinstance(field, tuple) else (field,)

    def save(self) -> list[Any]:
        return [deepcopy(array) for array in self._arrays()]

    def load(self, saved: list[Any] | None) -> None:
        """Return to a state that `save` has returned, or for None to the state at rest."""
        for k, array in enumerate(self._arrays()):
            array[...] = 0 if saved is None else saved[k]

    def advance(self, span: Span, first: int | None, explores: bool = False) -> None:
        """Simulate some steps, from the state at the first; the arguments are those of `run`."""
        self._run(self._state, span, first, explores)


class Recomputation:
    """The stored states of a shot, from which segments of its simulation are repeated.

    A segment lies between two states that may be stored; its samples are stored together. With a
    single segment, as for snapshots, no state is stored and nothing is repeated.

    steps: number of steps of the simulation; interval: steps from one sample to the next; length:
    number of samples of a segment; states: largest number of stored states; kept: the stored ones,
    by the segment that begins with them.
    """

    def __init__(self, history: History, steps: int, interval: int) -> None:
        self._steps, self.length = steps, max(1, len(sampled_steps(steps, interval)))
        self.states = 0
        self._segments = 1
        if isinstance(history, Recompute):
            count = self.length
            self.length = min(count, SAMPLES_PER_STATE * history.states)
            self._segments = -(-count // self.length)
            self.states = min(history.states, self._segments - 1)
        self._stride = self.length * interval
        self.kept: dict[int, Any] = {}
        # The segment at whose beginning the state is, and the one whose samples are stored
        self._position, self._sampled = 0, -1

    def simulate(self, sweeps: Sweeps) -> None:
        self.kept, self._position, self._sampled = {}, 0, -1
        for action in schedule(self._segments, self.states):
            self._go_to(sweeps, action, explores=True)
            if not action.keeps:
                self._sample(sweeps, action.segment, explores=True)
                break

    def reverse(self, sweeps: Sweeps, follow: Callable[[Span, int], None]) -> None:
        """Go through the samples of all segments, the last one first.

        follow: a function of a segment's span and of the number of its first sample, which is
        called when these samples are stored.
        """
        self._position = -1
        for action in schedule(self._segments, self.states):
            if action.keeps:
                # The states that `simulate` has left can be used once
                if action.segment not in self.kept:
                    self._go_to(sweeps, action)
                continue
            if self._sampled != action.segment:
                self._go_to(sweeps, action)
                self._sample(sweeps, action.segment)
            follow(self._span(action.segment), action.segment * self.length)
            self.kept.pop(action.segment, None)

    def repeat(self, sweeps: Sweeps, follow: Callable[[Span, int], None]) -> None:
        """Do so with the first segment first."""
        if self._sampled < 0 or self._segments > 1:
            self._load(sweeps, 0)
        for segment in range(self._segments):
            if self._sampled != segment or self._segments > 1:
                self._sample(sweeps, segment, explores=True)
            follow(self._span(segment), segment * self.length)

    def _go_to(self, sweeps: Sweeps, action: Action, explores: bool = False) -> None:
        """Simulate from the state of one segment to that of another, and store it if it `keeps`."""
        if self._position != action.origin:
            self._load(sweeps, action.origin)
        if action.segment > action.origin:
            span = action.origin * self._stride, action.segment * self._stride
            sweeps.advance(span, None, explores)
            self._position = action.segment
        if action.keeps:
            self.kept[action.segment] = sweeps.save()

    def _load(self, sweeps: Sweeps, segment: int) -> None:
        """Load the state at the beginning of a segment, or the initial state."""
        sweeps.load(self.kept.get(segment))
        self._position = segment

    def _sample(self, sweeps: Sweeps, segment: int, explores: bool = False) -> None:
        self._sampled = -1  # until all of them are stored
        sweeps.advance(self._span(segment), segment * self.length, explores)
        self._position, self._sampled = segment + 1, segment

    def _span(self, segment: int) -> Span:
        last = segment == self._segments - 1
        end = self._steps if last else (segment + 1) * self._stride
        return segment * self._stride, end
