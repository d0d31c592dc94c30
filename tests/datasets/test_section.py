"""The geology of the section."""

from __future__ import annotations

import numpy as np
import pytest

from hpcfwi.datasets import FAULT, GRADIENT, WATER, WAVES, make_section
from hpcfwi.datasets import SECTION_CREST as CREST
from hpcfwi.datasets import SECTION_GAS as GAS
from hpcfwi.datasets import SECTION_LAYERS as LAYERS
from hpcfwi.datasets import SECTION_SEA_FLOOR as SEA_FLOOR
from hpcfwi.datasets import SECTION_THROW as THROW
from hpcfwi.model import Grid

H = 25.0  # m
GRID = Grid((121, 481), (H, H), (0.0, 0.0))


@pytest.fixture(scope="module")
def vp():
    return make_section(GRID)


def trace(vp, x):
    """Return the velocities (z,) below a position in m."""
    return vp[:, round(x / H)]


def velocity_at_top(number):
    """Return the velocity at the top of a layer, the slowest in it."""
    top, velocity = LAYERS[number]
    return velocity + GRADIENT * (top - SEA_FLOOR)


def top_of_layer(vp, number, x):
    """Return the depth in m at which a fast layer begins below a position."""
    return H * np.argmax(trace(vp, x) >= velocity_at_top(number))


def test_water_lies_on_rock_with_realistic_velocities(vp):
    depths = GRID.coordinates(0)
    np.testing.assert_array_equal(vp[depths <= SEA_FLOOR], WATER)
    assert vp[depths > SEA_FLOOR].min() > WATER
    assert vp.max() < 4700.0
    assert vp.dtype == np.float32


def test_layers_rise_to_the_crest_and_deeper_ones_rise_more(vp):
    shallow, deep = (
        top_of_layer(vp, number, 1000.0) - top_of_layer(vp, number, CREST) for number in (5, 6)
    )
    assert 400.0 < shallow <= deep < 700.0


def test_layers_are_lower_by_the_throw_beyond_the_fault(vp):
    before, beyond = FAULT[0], FAULT[0] + WAVES[1]  # at the same phase of the gentle folds
    for number in (5, 6):
        lower = top_of_layer(vp, number, beyond) - top_of_layer(vp, number, before)
        assert lower == pytest.approx(THROW, abs=2.0 * H)


def test_fault_dips_towards_its_lowered_side(vp):
    for number in (5, 6):
        depth = top_of_layer(vp, number, FAULT[0])
        at = FAULT[0] + FAULT[1] * (depth - SEA_FLOOR)
        before, beyond = (top_of_layer(vp, number, x) for x in (at - 2.0 * H, at + 300.0))
        assert beyond - before > 200.0


def test_gas_is_slower_than_its_cover_down_to_the_contact(vp):
    layer, contact, _ = GAS
    for x in (CREST - 700.0, CREST + 700.0):
        gas, below = trace(vp, x)[round(contact / H) - 1 :][:2]
        assert gas < velocity_at_top(layer - 1) < velocity_at_top(layer) < below


def test_section_is_the_same_model_on_any_grid(vp):
    part = Grid((5, 7), (100.0, 50.0), (600.0, 3000.0))
    np.testing.assert_array_equal(make_section(part), vp[24:41:4, 120:133:2])
