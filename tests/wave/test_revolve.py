"""The order in which states are kept simulates as few segments again as possible."""

from __future__ import annotations

from functools import cache

import pytest

from hpcfwi.wave.history import Keep, Reverse, schedule

SIZES = [(segments, states) for segments in (1, 2, 3, 7, 20, 41) for states in range(7)]


@cache
def fewest(segments: int, states: int) -> int:
    """Segments simulated before the turn of each, by trying every place for the next state."""
    if segments == 1:
        return 0
    if states == 0:
        return segments * (segments - 1) // 2
    return min(m + fewest(segments - m, states - 1) + fewest(m, states) for m in range(1, segments))


@pytest.mark.parametrize(("segments", "states"), SIZES)
def test_every_segment_is_reversed_once_the_last_one_first(segments: int, states: int) -> None:
    reversed_ = [a.segment for a in schedule(segments, states) if isinstance(a, Reverse)]
    assert reversed_ == list(range(segments))[::-1]


@pytest.mark.parametrize(("segments", "states"), SIZES)
def test_no_more_states_are_kept_than_allowed_and_only_kept_ones_are_used(
    segments: int, states: int
) -> None:
    kept = {0}
    for action in schedule(segments, states):
        assert action.origin in kept
        if isinstance(action, Keep):
            kept.add(action.segment)
        else:
            kept -= {action.segment} - {0}
        assert len(kept - {0}) <= states


@pytest.mark.parametrize(("segments", "states"), SIZES)
def test_as_few_segments_as_possible_are_simulated_again(segments: int, states: int) -> None:
    cost = sum(a.segment - a.origin for a in schedule(segments, states))
    assert cost == fewest(segments, states)


def test_the_first_pass_goes_forwards_once() -> None:
    position = 0
    for action in schedule(30, 4):
        assert action.origin == position
        position = action.segment
        if isinstance(action, Reverse):
            break
    assert position == 29
