"""The section: what a geophysicist would see in it."""

from __future__ import annotations

import numpy as np
import pytest

from hpcfwi.datasets.dome import GRADIENT, WATER
from hpcfwi.datasets.section import CREST, FAULT, GAS, LAYERS, SEA_FLOOR, THROW, WAVES, make_section
from hpcfwi.model import Grid

H = 25.0  # m
GRID = Grid((121, 481), (H, H), (0.0, 0.0))


@pytest.fixture(scope="module")
def vp():
    return make_section(GRID)


def trace(vp, x):
    """Velocities (z,) below a place (m)."""
    return vp[:, round(x / H)]


def velocity_at_top(number):
    """Of a layer, and the slowest in it."""
    top, velocity = LAYERS[number]
    return velocity + GRADIENT * (top - SEA_FLOOR)


def top_of_layer(vp, number, x):
    """The depth (m) at which the velocities of a fast layer begin below a place."""
    return H * np.argmax(trace(vp, x) >= velocity_at_top(number))


def test_water_lies_on_rock_of_velocities_that_rock_has(vp):
    depths = GRID.coordinates(0)
    np.testing.assert_array_equal(vp[depths <= SEA_FLOOR], WATER)
    assert vp[depths > SEA_FLOOR].min() > WATER
    assert vp.max() < 4700.0
    assert vp.dtype == np.float32


def test_the_layers_rise_to_the_crest_and_the_deeper_ones_more(vp):
    shallow, deep = (
        top_of_layer(vp, number, 1000.0) - top_of_layer(vp, number, CREST) for number in (5, 6)
    )
    assert 400.0 < shallow <= deep < 700.0


def test_beyond_the_fault_the_layers_are_lower_by_the_throw(vp):
    before, beyond = FAULT[0], FAULT[0] + WAVES[1]  # alike on the gentle folds
    for number in (5, 6):
        lower = top_of_layer(vp, number, beyond) - top_of_layer(vp, number, before)
        assert lower == pytest.approx(THROW, abs=2.0 * H)


def test_the_fault_dips_towards_what_has_gone_down(vp):
    for number in (5, 6):
        depth = top_of_layer(vp, number, FAULT[0])
        at = FAULT[0] + FAULT[1] * (depth - SEA_FLOOR)
        before, beyond = (top_of_layer(vp, number, x) for x in (at - 2.0 * H, at + 300.0))
        assert beyond - before > 200.0


def test_gas_under_the_crest_is_slower_than_what_covers_it_down_to_a_level(vp):
    layer, contact, _ = GAS
    for x in (CREST - 700.0, CREST + 700.0):
        gas, below = trace(vp, x)[round(contact / H) - 1 :][:2]
        assert gas < velocity_at_top(layer - 1) < velocity_at_top(layer) < below


def test_section_is_the_same_earth_on_any_grid(vp):
    part = Grid((5, 7), (100.0, 50.0), (600.0, 3000.0))
    np.testing.assert_array_equal(make_section(part), vp[24:41:4, 120:133:2])
