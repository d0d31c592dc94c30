"""The history of a simulation: what the backward pass keeps of the forward one.

The gradient correlates the adjoint field q with u, the second time derivative of the forward
field over v^2. The wavelet limits the band of both, so that the sum of their product over time is
found from samples at the Nyquist rate of the data: everything in between is redundant. A history
says where u comes from at these samples: it was kept, it is rebuilt backwards in time from the
perimeter of the field, or it is computed again from states that were kept now and then.

This module has the choices, how one of them is made from the memory at hand, which steps are
sampled, and the order in which states are kept and simulated again (Griewank and Walther 2000,
section 2). The arrays belong to the engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import comb, floor
from typing import Any, NamedTuple, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.errors import say_bytes
from hpcfwi.registry import HistoryFormat, HistoryKind
from hpcfwi.system import free_on_host
from hpcfwi.wave.numerics import highest_frequency

Kind = HistoryKind
KINDS: tuple[Kind, ...] = get_args(HistoryKind)
# How numbers are kept: as they are computed ("full"), or shorter. A float16 or an int8 is scaled by
# the largest magnitude of a stretch of its row.
Format = HistoryFormat
# More states than this make a second forward pass only a little cheaper.
MOST_STATES = 64


@dataclass(frozen=True)
class Sampling:
    """The steps of the simulation from which the image is made: every `interval`-th.

    interval: 1 gives the exact gradient of the discrete scheme; None takes the largest that samples
    frequencies up to `frequency` (Hz) at their Nyquist rate; frequency: None takes the highest in
    the wavelets of the batch. Raises ValueError if one is not positive.
    """

    interval: int | None = None
    frequency: float | None = None

    def __post_init__(self) -> None:
        if self.interval is not None and self.interval < 1:
            raise ValueError(f"interval is {self.interval}; expected a number of steps, 1 or more")
        if self.frequency is not None and not 0.0 < self.frequency < np.inf:
            raise ValueError(f"frequency is {self.frequency}; expected a positive frequency (Hz)")


@dataclass(frozen=True)
class Snapshots(Sampling):
    """Keep u of the sampled steps."""

    format: Format = "full"


@dataclass(frozen=True)
class Boundary(Sampling):
    """Keep the perimeter of the field of every step, and rebuild the interior backwards in time.

    Absorbing cells cannot be rebuilt: of these, u of the sampled steps is kept.
    """

    format: Format = "full"


@dataclass(frozen=True)
class Recompute(Sampling):
    """Keep `states` whole states of a shot's simulation, and simulate again from the nearest one.

    Which ones is optimal (binomial checkpointing). Raises ValueError where states is below 1.
    """

    states: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.states < 1:
            raise ValueError(f"states is {self.states}; expected a number of states, 1 or more")


@dataclass(frozen=True)
class Auto(Sampling):
    """The fastest history that fits into `memory` (bytes, for the whole batch).

    kind: the only one to choose from, None for all; memory: None takes what is free on the device,
    less a margin; exact: whether numbers are kept as they are computed where they fit, though
    shorter ones are faster; None wants that where every step is sampled, or computed in double
    precision. Raises ValueError where one is impossible.
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
    """The name of a history's kind."""
    return cast(Kind, type(history).__name__.lower())


def describe(history: History) -> str:
    """A history in words; its interval is resolved."""
    every = "step" if history.interval == 1 else f"{history.interval} steps"
    if isinstance(history, Recompute):
        detail = "1 state" if history.states == 1 else f"{history.states} states"
    else:
        detail = "full precision" if history.format == "full" else history.format
    return f"{kind_of(history)}, every {every}, {detail}"


def to_table(history: History) -> dict[str, Any]:
    """A history as plain values."""
    return {"kind": kind_of(history), **asdict(history)}


def from_table(table: Mapping[str, Any]) -> History:
    """The history that these plain values describe; keys not given are its defaults.

    Raises ValueError, TypeError or KeyError where there is no such history.
    """
    kinds: dict[str, type[History]] = {
        "snapshots": Snapshots,
        "boundary": Boundary,
        "recompute": Recompute,
    }
    return kinds[table["kind"]](**{key: value for key, value in table.items() if key != "kind"})


def computes_alike(one: History, other: History) -> bool:
    """Return True if gradients have the same bits with both: states do not change them."""
    if isinstance(one, Recompute) and isinstance(other, Recompute):
        return replace(one, states=other.states) == other
    return one == other


def parse(name: str | Auto | History) -> Auto | History:
    """The history of that name, "auto" or that of a kind; an object is returned as it is.

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
    """No history fits into the memory at hand; needed: bytes of the smallest one."""

    def __init__(self, needed: int, memory: int) -> None:
        super().__init__(
            f"the batch needs {say_bytes(needed)} with the most frugal history, and "
            f"{say_bytes(memory)} are at hand: simulate fewer shots at a time"
        )
        self.needed = needed


def choose(
    auto: Auto, kinds: tuple[Kind, ...], memory: int, footprint: Callable[[History], int]
) -> History:
    """The fastest history of these kinds whose footprint (bytes) is within `memory` (bytes).

    Raises NothingFits where none is.
    """
    least: list[int] = []
    for history in candidates(auto, kinds):
        if isinstance(history, Recompute):
            history = _most_states(history, memory, footprint)
        needed = footprint(history)
        if needed <= memory:
            return history
        least.append(needed)
    raise NothingFits(min(least), memory)


def _most_states(history: Recompute, memory: int, footprint: Callable[[History], int]) -> Recompute:
    """Return the history with as many states as fit, with 1 if none does."""
    fewer = [replace(history, states=n) for n in range(history.states, 0, -1)]
    return next((h for h in fewer if footprint(h) <= memory), fewer[-1])


def sampling_interval(
    sampling: Sampling, wavelet: NDArray[np.floating], dt: float, substeps: int
) -> int:
    """Steps of the simulation from one sampled step to the next.

    wavelet: (..., time), sampled at `dt` (s); a step of the simulation is dt / substeps.
    """
    if sampling.interval is not None:
        return sampling.interval
    frequency = sampling.frequency
    if frequency is None:
        frequency = highest_frequency(wavelet, dt)
    if frequency == 0.0:
        return max(1, wavelet.shape[-1])
    return max(1, floor(substeps / (2.0 * frequency * dt)))


def sampling_offset(interval: int) -> int:
    """The first sampled step: the middle of the interval that it stands for."""
    return interval // 2


def sampled_steps(steps: int, interval: int) -> range:
    """Return which of so many steps are sampled."""
    return range(sampling_offset(interval), steps, interval)


def count_samples(steps: int, interval: int) -> int:
    """Return how many of so many steps are sampled."""
    return len(sampled_steps(steps, interval))


# Of what is free, this share is left to everything else: other arrays of the program, and other
# programs that may want more meanwhile.
MARGIN = 0.2
# What torch's allocators say in a RuntimeError without a class of its own.
_COMPLAINTS = ("can't allocate memory", "out of memory")


def memory_at_hand(device: torch.device) -> int:
    """Bytes on `device` that may be taken now, less a margin of 20 %."""
    return int((1.0 - MARGIN) * free_on(device))


def free_on(device: torch.device) -> int:
    """Bytes on `device` that are free now.

    On a CPU it is shared by all processes of the machine, or of the control group that limits
    this one.
    """
    return _free_on_gpu(device) if device.type == "cuda" else free_on_host()


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error says that memory has run out, on a CPU or on a GPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _COMPLAINTS)


def _free_on_gpu(device: torch.device) -> int:
    """Return the bytes that are free on the device, with those that torch holds unused."""
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + held


class Keep(NamedTuple):
    """Go from the state of segment `origin` to that of `segment`, and keep it."""

    origin: int
    segment: int


class Reverse(NamedTuple):
    """Go from the state of segment `origin` to that of `segment`, simulate it and reverse it.

    A state kept of `segment` is not needed any more.
    """

    origin: int
    segment: int


Action = Keep | Reverse


def schedule(segments: int, states: int) -> Iterator[Action]:
    """Yield the actions that reverse so many segments with at most so many stored states.

    The state at the very beginning does not count, as it is always at hand. All actions up to the
    first `Reverse` go forwards through the whole simulation once.
    """
    yield from _reverse(0, segments, states)


def _reverse(begin: int, end: int, free: int) -> Iterator[Action]:
    """Reverse the segments from `begin`, whose state is at hand, to before `end`."""
    if end - begin == 1 or free == 0:
        for segment in range(end - 1, begin - 1, -1):
            yield Reverse(begin, segment)
        return
    middle = begin + _first_part(end - begin, free)
    yield Keep(begin, middle)
    yield from _reverse(middle, end, free - 1)
    yield from _reverse(begin, middle, free)


def _first_part(segments: int, free: int) -> int:
    """Return the number of segments before the next state is stored.

    With `free` states and the one at hand, comb(free + 1 + r, r) segments can be reversed where
    none is simulated more than r times before its own turn; neither part may need more than that,
    the first one less.
    """
    r = 1
    while comb(free + 1 + r, r) < segments:
        r += 1
    return max(segments - comb(free + r, r), comb(free + r - 1, r - 2) if r > 1 else 1)
