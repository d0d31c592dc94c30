"""Tests of colour scales, and of the choice of slices, lines and positions to draw."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hpcfwi.report.panels import (
    clip_limit,
    coarsen,
    decibels,
    evenly_spaced,
    exceeded,
    find_line,
    find_structure,
    greatest_of,
    running_median,
    thin_out,
    value_limits,
)

arrays = hnp.arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32))


@given(arrays)
def test_colour_limits_are_finite_and_distinct_for_any_array(array):
    low, high = value_limits(array)
    assert np.isfinite([low, high]).all()
    assert low < high
    assert 0.0 < clip_limit(array, 98.0) < np.inf
    assert exceeded(array, (low, high)) == "neither"


def test_clip_limit_is_the_percentile_of_the_magnitudes():
    assert clip_limit(np.arange(-50, 51), 98.0) == pytest.approx(49.0, abs=1.0)


@pytest.mark.parametrize(
    ("values", "word"),
    [([1, 2], "neither"), ([0, 2], "min"), ([1, 3], "max"), ([0, 3, np.nan], "both")],
)
def test_colour_bar_extends_at_the_exceeded_ends(values, word):
    assert exceeded(values, (1, 2)) == word


def test_decibels_are_relative_to_the_maximum_and_clipped_below():
    energy = [100.0, 10.0, 1e-9, 0.0]
    level = decibels(energy, greatest_of([*energy, np.inf, np.nan]))
    assert level == pytest.approx([0.0, -10.0, -60.0, -60.0])
    assert (decibels(np.zeros(3), greatest_of([0.0, np.nan])) == -60.0).all()


def test_coarse_array_has_the_means_of_blocks():
    array = np.arange(14.0, dtype=np.float32).reshape(2, 7)
    assert coarsen(array, 7) is array
    assert coarsen(array, 3) == pytest.approx(np.array([[1.0, 4.0, 6.0], [8.0, 11.0, 13.0]]))


@given(hnp.arrays(np.float32, st.tuples(*2 * [st.integers(1, 40)]), elements=st.just(2.5)))
def test_coarse_array_has_at_most_the_given_size_and_the_same_mean(array):
    coarse = coarsen(array, 9)
    assert max(coarse.shape) <= 9
    assert (coarse == 2.5).all()


def test_running_median_ignores_spikes_and_gaps():
    values = [1.0, 1.0, 50.0, 1.0, 1.0, np.nan, 1.0]
    assert (running_median(values, 3) == 1.0).all()
    assert np.isnan(running_median([np.nan], 3)).all()


@given(order=st.permutations(range(6)))
def test_evenly_spaced_traces_are_only_sorted_by_place(order):
    traces = np.arange(12.0).reshape(6, 2)
    places = 100.0 + 25.0 * np.arange(6)
    even, first, last = evenly_spaced(traces[order], places[order])
    assert (even == traces).all()
    assert (first, last) == (100.0, 225.0)


def test_gap_between_traces_is_filled_with_the_nearest_trace():
    traces = np.array([[0.0], [1.0], [2.0]])
    even, _, _ = evenly_spaced(traces, np.array([0.0, 10.0, 41.0]))
    assert even[:, 0].tolist() == [0.0, 1.0, 1.0, 2.0, 2.0]


def test_receivers_at_the_same_place_give_one_trace():
    even, first, last = evenly_spaced(np.ones((3, 4)), np.full(3, 7.0))
    assert even.shape == (1, 4)
    assert first == last == 7.0


def volume(ball=(7, 12, 20), shape=(15, 21, 31)):
    """Return flat layers with a ball in them."""
    away = sum((i - c) ** 2 for i, c in zip(np.indices(shape), ball, strict=True))
    layers = 1500.0 + 100.0 * np.arange(shape[0])[:, None, None]
    return (layers + 500.0 * (away < 16)).astype(np.float32)


def test_slices_pass_through_the_structure_of_a_volume():
    found = np.array(find_structure(volume()))
    np.testing.assert_allclose(found, (7, 12, 20), atol=1)


def test_slices_of_flat_layers_pass_through_the_middle():
    assert find_structure(volume(ball=(99, 99, 99))) == (7, 10, 15)


def test_slices_of_a_slope_avoid_the_edges_of_the_volume():
    slope = np.arange(31.0) + np.zeros((15, 21, 31))
    _, y, x = find_structure(slope)
    assert y == 10
    assert 3 < x < 27


def area(n=5):
    """Return places (n * n, 3) in m, 100 m apart along y and x, with y running slowest."""
    y, x = (along.ravel() for along in np.indices((n, n)) * 100.0)
    return np.stack([np.full_like(x, 50.0), y, x], axis=1)


def test_line_of_receivers_nearest_to_the_source_is_found():
    along, line = find_line(area(), np.array([0.0, 290.0, 120.0]))
    assert along == 2
    assert line.tolist() == [15, 16, 17, 18, 19]


def test_line_of_receivers_can_bend_and_run_along_either_axis():
    places = area()[:, [0, 2, 1]] * [1.0, 2.0, 1.0] + [0.0, 0.0, 3.0] * (np.arange(25)[:, None] % 2)
    along, line = find_line(places, np.array([0.0, 0.0, 310.0]))
    assert along == 1
    assert line.tolist() == [15, 16, 17, 18, 19]


@pytest.mark.parametrize(("axis", "ndim"), [(0, 3), (0, 2), (1, 2)])
def test_receivers_of_a_well_or_a_section_are_one_line(axis, ndim):
    places = np.zeros((7, ndim))
    places[:, axis] = 10.0 * np.arange(7)
    along, line = find_line(places, np.zeros(ndim))
    assert (along, line.size) == (axis, 7)


def test_positions_are_thinned_evenly_over_their_area():
    assert len(thin_out(area()[:, 1:], 60)) == 25, "places far apart all stay"
    many = np.random.default_rng(0).uniform(0.0, 1000.0, (20000, 2))
    few = thin_out(many, 10)
    assert 100 <= len(few) <= 121
    assert np.ptp(few, axis=0).min() > 900.0
    assert len(thin_out(np.zeros((3, 2)), 10)) == 1
