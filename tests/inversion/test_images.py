"""Images of reflectors, which are the jumps of a model without its long wavelengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.inversion.resolution import correlate, filter_image, make_images, reflectivity
from hpcfwi.model import Grid, Model

GRID = Grid((64, 40), (10.0, 10.0), (0.0, 0.0))
FREE = np.zeros(GRID.shape, dtype=bool)


def make_image(found, background, fixed, name="vp"):
    """Return the image of one parameter, where the P velocity is 2000 m/s."""
    speed = background if name == "vp" else np.full(GRID.shape, 2000.0)
    start = Model(GRID, {"vp": speed, name: background})
    return make_images(Model(GRID, {name: found}), start, {name: fixed}, 50.0)[name]


def test_reflectivity_is_the_reflection_coefficient_of_the_next_cell():
    speed = np.array([[1500.0], [1500.0], [2500.0], [2000.0]])
    np.testing.assert_allclose(reflectivity("vp", speed).ravel(), [0.0, 0.25, -1 / 9, 0.0])


def test_reflectivity_in_vs_is_zero_beside_fluids():
    vs = np.array([[0.0], [0.0], [800.0], [1200.0], [0.0]])
    np.testing.assert_array_equal(reflectivity("vs", vs).ravel(), [0.0, 0.0, 0.2, 0.0, 0.0])


@pytest.mark.parametrize("name", ["epsilon", "delta", "theta"])
def test_reflectivity_in_parameters_that_may_be_negative_is_half_of_their_contrast(name):
    values = np.array([[0.0], [0.0], [0.2], [-0.2], [0.1]])
    expected = [0.0, 0.1, -0.2, 0.15, 0.0]
    np.testing.assert_allclose(reflectivity(name, values).ravel(), expected)


@given(st.floats(1e-3, 1e-1), st.integers(0, 2**32 - 1))
def test_filter_is_linear_and_symmetric_and_removes_the_mean(wavenumber, seed):
    one, other = np.random.default_rng(seed).normal(size=(2, *GRID.shape))
    filtered = filter_image(one, GRID, wavenumber)
    twice = filter_image(2.0 * one + other, GRID, wavenumber)
    np.testing.assert_allclose(twice, 2.0 * filtered + filter_image(other, GRID, wavenumber))
    assert (filtered * other).sum() == pytest.approx(
        (one * filter_image(other, GRID, wavenumber)).sum()
    )
    assert abs(filtered.mean()) < 1e-12


@pytest.mark.parametrize(("waves", "left"), [(1, 0.06), (4, 0.5), (24, 0.97)])
def test_filter_attenuates_small_wavenumbers(waves, left):
    """The filter passes half of a cosine with four half periods over the whole depth."""
    along = np.pi * (np.arange(64) + 0.5) / 64
    change = np.broadcast_to(np.cos(waves * along)[:, None], GRID.shape)
    filtered = filter_image(change, GRID, 4 * np.pi / 640.0)
    np.testing.assert_allclose(filtered, left * change, atol=0.03)


def test_image_of_a_layer_shows_top_and_bottom_but_no_fixed_cells():
    background = np.full(GRID.shape, 2000.0)
    found = background.copy()
    found[30:34] += 100.0
    fixed = FREE.copy()
    fixed[:31] = True
    image = make_image(found, background, FREE)
    assert image[29, 20] > 0.015
    assert image[33, 20] < -0.015
    assert np.abs(image[10:20]).max() < 0.003
    kept = make_image(found, background, fixed)
    assert not kept[:31].any()
    assert not make_image(background, background, FREE).any()


@pytest.mark.parametrize("name", ["vs", "rho", "epsilon", "qp"])
def test_image_of_another_parameter_has_the_filter_of_the_p_velocity(name):
    background = np.full(GRID.shape, 0.1 if name == "epsilon" else 1000.0)
    change = np.zeros(GRID.shape)
    change[30:34] = 0.05 * background[0, 0]
    filtered = filter_image(change, GRID, 0.25 * 4.0 * np.pi * 50.0 / 2000.0)
    expected = reflectivity(name, background + filtered)
    found = make_image(background + change, background, FREE, name)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert found[29, 20] > 0.6 * reflectivity(name, background + change)[29, 20]


def test_outermost_cells_have_the_reflectors_of_their_neighbours():
    """The gradient of an outermost cell is that of all absorbing cells which continue it."""
    background = np.full(GRID.shape, 2000.0)
    found = background.copy()
    found[30:34] += 100.0
    expected = make_image(found, background, FREE)
    found[:, 0], found[:, -1], found[-1] = 2500.0, 1700.0, 2300.0
    np.testing.assert_array_equal(make_image(found, background, FREE), expected)


def test_correlation_ignores_fixed_cells():
    truth = np.random.default_rng(0).normal(size=GRID.shape)
    fixed = FREE.copy()
    fixed[:20] = True
    image = np.where(fixed, -5.0 * truth, 3.0 * truth + 1.0)
    assert correlate(image, truth, fixed) == pytest.approx(1.0)
    assert correlate(-image, truth, fixed) == pytest.approx(-1.0)
    assert correlate(np.zeros(GRID.shape), truth, fixed) == 0.0
