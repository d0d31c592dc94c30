"""Which states of a simulation to keep, so that it can be gone through backwards.

A simulation of some segments is reversed segment by segment, the last one first. Each needs the
state at its beginning, and only a few states can be kept at a time: the others are found by
simulating again from a kept one before. The order given here simulates as few segments as possible
(Griewank and Walther 2000, section 2). What a state is, and how one simulates, is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import comb
from typing import NamedTuple


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
    """What to do, in order, to reverse so many segments with at most so many states kept.

    The state at the very beginning does not count: it is always at hand. All actions up to the
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
    """How far to go before the next state is kept.

    With `free` states and the one at hand, comb(free + 1 + r, r) segments can be reversed where
    none is simulated more than r times before its own turn; neither part may need more than that,
    the first one less.
    """
    r = 1
    while comb(free + 1 + r, r) < segments:
        r += 1
    return max(segments - comb(free + r, r), comb(free + r - 1, r - 2) if r > 1 else 1)
