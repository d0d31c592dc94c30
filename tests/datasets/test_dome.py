"""The geology of the dome."""

from __future__ import annotations

import numpy as np
import pytest

from hpcfwi.datasets import CREST, GAS, LAYERS, SEA_FLOOR, WATER, make_dome
from hpcfwi.model import Grid

GRID = Grid((41, 81, 81), (50.0, 50.0, 50.0), (0.0, 0.0, 0.0))


@pytest.fixture(scope="module")
def vp():
    return make_dome(GRID)


def trace(vp, y, x):
    """Return the velocities (z,) below a position in m."""
    return vp[:, round(y / 50.0), round(x / 50.0)]


def top_of_the_deepest_layer(vp, y, x):
    return 50.0 * np.argmax(trace(vp, y, x) > LAYERS[-1][1])


def test_water_lies_on_rock_with_realistic_velocities(vp):
    depths = GRID.coordinates(0)
    np.testing.assert_array_equal(vp[depths <= SEA_FLOOR], WATER)
    assert vp[depths > SEA_FLOOR].min() > WATER
    assert vp.max() < 3600.0
    assert vp.dtype == np.float32


def test_layers_rise_to_the_crest_by_the_uplift(vp):
    crest, flank = (top_of_the_deepest_layer(vp, *at) for at in (CREST, (4000.0, 0.0)))
    assert flank - crest == pytest.approx(420.0, abs=50.0)


def test_layers_are_lower_beyond_the_fault(vp):
    near, beyond = (top_of_the_deepest_layer(vp, *at) for at in ((4000.0, 0.0), (0.0, 4000.0)))
    assert beyond - near == pytest.approx(180.0, abs=50.0)


def test_gas_under_the_crest_is_slower_than_rock_at_same_depth(vp):
    depth = round(GAS[0] / 50.0)
    assert trace(vp, *CREST)[depth] < trace(vp, CREST[0] + 800.0, CREST[1])[depth] - 300.0


def test_dome_is_the_same_model_on_any_grid(vp):
    part = Grid((5, 6, 7), (100.0, 50.0, 150.0), (600.0, 2000.0, 1000.0))
    np.testing.assert_array_equal(make_dome(part), vp[12:21:2, 40:46, 20:41:3])
