"""Line searches: conditions at their end, and searches that find nothing."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.inversion.line_search import DECREASE, TRIES, Point, backtrack, wolfe

SCALES = st.floats(1e-3, 1e3)
FIRSTS = st.floats(1e-6, 1e6)
# Shares of curvature; the optimizers have 0.1 and 0.9
SHARES = st.sampled_from([1e-3, 0.1, 0.9])


def walled(x):
    """Return a logarithm that is infinite beyond 1, like the misfit of an invalid model."""
    return (math.inf, 0.0) if x >= 1.0 else (-math.log1p(-x) - 3.0 * x, 1.0 / (1.0 - x) - 3.0)


# Values and slopes of functions that decrease at 0
FUNCTIONS = {
    "parabola": lambda x: (0.5 * x * x - x, x - 1.0),
    "quartic": lambda x: (x**4 - x, 4.0 * x**3 - 1.0),
    "waves": lambda x: (0.1 * x * x - math.sin(3.0 * x), 0.2 * x - 3.0 * math.cos(3.0 * x)),
    # Moré and Thuente 1994, (5.1) with beta 2
    "bowl": lambda x: (-x / (x * x + 2.0), (x * x - 2.0) / (x * x + 2.0) ** 2),
    "wall": walled,
}


def along(name, scale):
    """Return a stretched function of `FUNCTIONS`, and the list of evaluated distances."""
    asked = []

    def at(distance):
        asked.append(distance)
        value, slope = FUNCTIONS[name](distance / scale)
        return Point(distance, value, slope / scale)

    return at, asked


@given(st.sampled_from(sorted(FUNCTIONS)), SCALES, FIRSTS, SHARES)
def test_wolfe_search_satisfies_strong_wolfe_conditions(name, scale, first, curvature):
    at, asked = along(name, scale)
    start = at(0.0)
    end = wolfe(at, start, first, curvature, tries=100)
    assert end.value <= start.value + DECREASE * end.distance * start.slope
    assert abs(end.slope) <= -curvature * start.slope
    assert end.distance in asked


@given(st.sampled_from(sorted(FUNCTIONS)), SCALES, FIRSTS)
def test_backtracking_stops_at_the_first_sufficient_decrease(name, scale, first):
    at, asked = along(name, scale)
    start = at(0.0)
    end = backtrack(at, start, first, tries=100)
    assert end.value <= start.value + DECREASE * end.distance * start.slope
    assert asked[1] == first
    assert all(0.1 * a <= b <= 0.5 * a for a, b in pairwise(asked[1:]))
    for distance in asked[1:-1]:
        assert not at(distance).value <= start.value + DECREASE * distance * start.slope


@pytest.mark.parametrize("first", [0.3, 0.9, 1.5, 1.9])
def test_wolfe_search_finds_minimum_of_a_parabola_at_second_trial(first):
    at, asked = along("parabola", 1.0)
    end = wolfe(at, at(0.0), first, curvature=1e-6)
    assert end.distance == pytest.approx(1.0, rel=1e-12)
    assert len(asked) == 3


@pytest.mark.parametrize("value", [math.inf, math.nan, 1.0])
def test_search_without_decrease_returns_none_after_all_trials(value):
    asked = []

    def at(distance):
        asked.append(distance)
        return Point(distance, value, 0.0)

    start = Point(0.0, 0.0, -1.0)
    assert wolfe(at, start, 1.0, 0.9) is None
    assert backtrack(at, start, 1.0) is None
    assert len(asked) == 2 * TRIES


def test_search_out_of_trials_returns_lowest_point_with_decrease():
    at, asked = along("parabola", 1.0)
    end = wolfe(at, at(0.0), 1e-6, curvature=0.1, tries=3)
    assert end.distance == max(asked)
    assert end.distance < 0.5


def test_search_preserves_the_class_of_points():
    class Named(Point):
        pass

    start = Named(0.0, 0.0, -1.0)
    assert isinstance(wolfe(lambda x: Named(x, 0.5 * x * x - x, x - 1.0), start, 1.0, 0.9), Named)
