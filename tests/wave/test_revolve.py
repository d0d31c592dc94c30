"""Tests of the schedule of states that recomputes as few segments as possible."""

from __future__ import annotations

from functools import cache

import pytest

from hpcfwi.wave.history import schedule

SIZES = [(segments, states) for segments in (1, 2, 3, 7, 20, 41) for states in range(7)]


@cache
def fewest(segments: int, states: int) -> int:
    """Return the least number of recomputed segments, by trying every place for the next state."""
    if segments == 1:
        return 0
    if states == 0:
        return segments * (segments - 1) // 2
    return min(m + fewest(segments - m, states - 1) + fewest(m, states) for m in range(1, segments))


@pytest.mark.parametrize(("segments", "states"), SIZES)
def test_segments_are_reversed_once_each_in_reverse_order(segments: int, states: int) -> None:
    reversed_ = [a.segment for a in schedule(segments, states) if not a.keeps]
    assert reversed_ == list(range(segments))[::-1]


@pytest.mark.parametrize(("segments", "states"), SIZES)
def test_schedule_keeps_at_most_the_allowed_number_of_states(segments: int, states: int) -> None:
    kept = {0}
    for action in schedule(segments, states):
        assert action.origin in kept
        if action.keeps:
            kept.add(action.segment)
        else:
            kept -= {action.segment} - {0}
        assert len(kept - {0}) <= states


@pytest.mark.parametrize(("segments", "states"), SIZES)
def test_schedule_recomputes_as_few_segments_as_possible(segments: int, states: int) -> None:
    cost = sum(a.segment - a.origin for a in schedule(segments, states))
    assert cost == fewest(segments, states)


def test_first_pass_goes_forward_once() -> None:
    position = 0
    for action in schedule(30, 4):
        assert action.origin == position
        position = action.segment
        if not action.keeps:
            break
    assert position == 29
