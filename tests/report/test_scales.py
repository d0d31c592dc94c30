import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hpcfwi.report import scales

arrays = hnp.arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32))


@settings(deadline=None)
@given(arrays)
def test_limits_are_finite_and_apart_whatever_the_array(array):
    low, high = scales.value_limits(array)
    assert np.isfinite([low, high]).all()
    assert low < high
    assert 0.0 < scales.clip_limit(array, 98.0) < np.inf
    assert scales.exceeded(array, (low, high)) == "neither"


def test_the_clip_limit_is_the_percentile_of_the_magnitudes():
    assert scales.clip_limit(np.arange(-50, 51), 98.0) == pytest.approx(49.0, abs=1.0)


@pytest.mark.parametrize(
    ("values", "word"),
    [([1, 2], "neither"), ([0, 2], "min"), ([1, 3], "max"), ([0, 3, np.nan], "both")],
)
def test_a_colour_bar_says_which_ends_are_exceeded(values, word):
    assert scales.exceeded(values, (1, 2)) == word


def test_decibels_are_relative_to_the_maximum_and_cut_off_below():
    level = scales.decibels([100.0, 10.0, 1e-9, 0.0], -60.0)
    assert level == pytest.approx([0.0, -10.0, -60.0, -60.0])
    assert (scales.decibels(np.zeros(3), -60.0) == -60.0).all()


def test_the_running_median_ignores_spikes_and_gaps():
    values = [1.0, 1.0, 50.0, 1.0, 1.0, np.nan, 1.0]
    assert (scales.running_median(values, 3) == 1.0).all()
    assert np.isnan(scales.running_median([np.nan], 3)).all()


@settings(deadline=None)
@given(order=st.permutations(range(6)))
def test_evenly_spaced_traces_come_back_as_they_are_in_order_of_place(order):
    traces = np.arange(12.0).reshape(6, 2)
    places = 100.0 + 25.0 * np.arange(6)
    even, first, last = scales.evenly_spaced(traces[order], places[order])
    assert (even == traces).all()
    assert (first, last) == (100.0, 225.0)


def test_a_gap_is_filled_with_the_nearest_trace():
    traces = np.array([[0.0], [1.0], [2.0]])
    even, _, _ = scales.evenly_spaced(traces, np.array([0.0, 10.0, 41.0]))
    assert even[:, 0].tolist() == [0.0, 1.0, 1.0, 2.0, 2.0]


def test_receivers_at_one_place_are_one_trace():
    even, first, last = scales.evenly_spaced(np.ones((3, 4)), np.full(3, 7.0))
    assert even.shape == (1, 4)
    assert first == last == 7.0
