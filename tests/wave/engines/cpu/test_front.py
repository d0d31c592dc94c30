"""Tests of the front of a wave, the box of cells that it can have reached."""

import numpy as np
import pytest

from hpcfwi.wave.engines.cpu.estimates import AHEAD, Front, follow_wave

SINGLE = AHEAD[np.dtype(np.float32)]
STEPS = np.array([1000, 2000])


def reach_of(front, source):
    """Return the cells reached before and after the source, (step, ndim), without the margin."""
    return source - front.near - SINGLE, front.far - 1.0 - source - SINGLE


def test_front_in_a_homogeneous_medium_has_the_same_reach_along_each_axis():
    vp = np.full((60, 40, 50), 2000.0, np.float32)
    front = follow_wave(vp, (10.0, 10.0, 20.0), 0.001, (30.0, 7.0, 11.0), STEPS)
    for reach in reach_of(front, (30.0, 7.0, 11.0)):
        assert reach == pytest.approx(np.array([[200.0, 200.0, 100.0], [400.0, 400.0, 200.0]]))


def test_front_follows_the_faster_wave_below_a_slow_layer():
    vp = np.full((400, 50), 1000.0, np.float32)
    vp[100:] = 4000.0
    source = (0.0, 25.0)
    before, after = reach_of(follow_wave(vp, (10.0, 10.0), 0.001, source, STEPS), source)
    # The wave crosses the layer in 1 s, and then travels down and sideways in the faster medium.
    assert after[:, 0] == pytest.approx([100.0, 500.0], abs=2.0)
    assert after[:, 1] == pytest.approx([100.0, 400.0], abs=2.0)
    assert before[:, 0] == pytest.approx([100.0, 200.0])


@pytest.mark.parametrize("dtype", AHEAD)
def test_margin_ahead_of_the_front_grows_with_the_steps(dtype):
    at_rest = np.full((9, 9), 1e-6, dtype)
    front = follow_wave(at_rest, (1.0, 1.0), 1e-3, (4, 4), np.array([0, 10, 999]))
    assert front.far[:, 1] - 5.0 == pytest.approx([20.0, 40.0, AHEAD[dtype]])


def test_front_counts_only_cells_within_the_grid():
    near = np.array([[0.0, 10.0], [-2.0, 8.0], [-100.0, -90.0], [20.0, 10.0]])
    far = np.array([[1.0, 11.0], [3.0, 13.0], [101.0, 111.0], [30.0, 11.0]])
    cells = Front(near, far).count_cells((-2, -2), (13, 23))
    assert cells.tolist() == [1.0, 5 * 5, 15 * 25, 0.0]
