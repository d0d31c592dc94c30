"""How far to go along a line: searches that know nothing but a function of one number.

Algorithms and numbers of equations are those of Nocedal and Wright, Numerical Optimization (2006).
What the line leads through, and which direction it has, is its caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import TypeVar


@dataclass(frozen=True)
class Point:
    """A function and its slope at a distance along a line; a value that is not finite is no point
    to stop at. A caller's own kind may hold what else belongs to it."""

    distance: float
    value: float
    slope: float


P = TypeVar("P", bound=Point)
Along = Callable[[float], P]

# Share of the decrease that the slope at the start promises (3.4)
DECREASE = 1e-4
# What a search may cost, in points
TRIES = 10
# A distance between two others stays away from both by this share of what is between them; a longer
# one is longer than the last by at least and at most these multiples of what the last was.
MARGIN = 0.1
GROWTH = (0.1, 4.0)


def backtrack(along: Along[P], start: P, first: float, tries: int = TRIES) -> P | None:
    """The first of shorter and shorter distances that brings a sufficient decrease (3.4).

    None where none of them does. The slope at the start is negative.
    """
    distance = first
    for _ in range(tries):
        here = along(distance)
        if _is_lower(start, here):
            return here
        distance = _inside(_parabola(start, here), MARGIN * distance, 0.5 * distance)
    return None


def wolfe(
    along: Along[P], start: P, first: float, curvature: float, tries: int = TRIES
) -> P | None:
    """A distance with the strong Wolfe conditions (3.7), by algorithms 3.5 and 3.6.

    curvature: share of the slope at the start that may be left there, more than `DECREASE` and less
    than 1. Where tries run out it is the lowest with a sufficient decrease; None where none has
    that. The slope at the start is negative.
    """
    before, distance = start, first
    for done in range(1, tries + 1):
        here = along(distance)
        if not _is_lower(start, here) or here.value >= before.value:
            return _zoom(along, start, (before, here), curvature, tries - done)
        if _is_flat(start, here, curvature):
            return here
        if here.slope >= 0.0:
            return _zoom(along, start, (here, before), curvature, tries - done)
        shortest, longest = (here.distance + g * (here.distance - before.distance) for g in GROWTH)
        before, distance = here, _inside(_cubic(before, here), shortest, longest)
    return before


def _zoom(along: Along[P], start: P, ends: tuple[P, P], curvature: float, tries: int) -> P | None:
    """Algorithm 3.6: the first end is the lowest point so far, and slopes down to the other."""
    low, high = ends
    for _ in range(tries):
        width = high.distance - low.distance
        margins = (low.distance + MARGIN * width, high.distance - MARGIN * width)
        here = along(_inside(_cubic(low, high), min(margins), max(margins)))
        if not _is_lower(start, here) or here.value >= low.value:
            high = here
            continue
        if _is_flat(start, here, curvature):
            return here
        if here.slope * width >= 0.0:
            high = low
        low = here
    return None if low is start else low


def _is_lower(start: Point, here: Point) -> bool:
    return here.value <= start.value + DECREASE * here.distance * start.slope


def _is_flat(start: Point, here: Point, curvature: float) -> bool:
    return abs(here.slope) <= -curvature * start.slope


def _inside(distance: float | None, shortest: float, longest: float) -> float:
    """The distance, or the nearest between the two; the middle where there is none."""
    if distance is None or not isfinite(distance):
        return 0.5 * (shortest + longest)
    return min(max(distance, shortest), longest)


def _parabola(start: Point, here: Point) -> float | None:
    """Where the parabola of both values and the slope at the start is lowest (3.58)."""
    bend = here.value - start.value - start.slope * here.distance
    if not (isfinite(bend) and bend > 0.0):
        return None
    return -0.5 * start.slope * here.distance**2 / bend


def _cubic(a: Point, b: Point) -> float | None:
    """Where the cubic of both values and both slopes is lowest (3.59); None where it nowhere is."""
    width = b.distance - a.distance
    if width == 0.0:
        return None
    one = a.slope + b.slope - 3.0 * (a.value - b.value) / (a.distance - b.distance)
    radicand = one * one - a.slope * b.slope
    if not (isfinite(radicand) and radicand >= 0.0):
        return None
    two = sqrt(radicand) if width > 0.0 else -sqrt(radicand)
    below = b.slope - a.slope + 2.0 * two
    return None if below == 0.0 else b.distance - width * (b.slope + two - one) / below
