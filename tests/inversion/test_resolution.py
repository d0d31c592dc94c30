"""Perturbations for tests of resolution, and measures of known responses to them."""

from __future__ import annotations

import numpy as np
import pytest

from hpcfwi.errors import InputError
from hpcfwi.inversion.resolution import (
    check_size,
    describe_measures,
    measure_checkerboard,
    measure_points,
    perturb_checkerboard,
    perturb_points,
    place_points,
)
from hpcfwi.model import Grid

GRID = Grid((41, 81), (10.0, 10.0), (0.0, 100.0))
FREE = np.arange(41)[:, None] * np.ones(81) > 10
SPEED = np.where(FREE, 2000.0, 1500.0)
APART = 100.0


def blur(perturbation, along_z, along_x):
    """Return the response that turns points into Gaussians of these standard deviations in m."""
    from scipy.ndimage import gaussian_filter

    return gaussian_filter(perturbation, (along_z / 10.0, along_x / 10.0), truncate=6.0)


def make_points():
    places = place_points(GRID, ~FREE, APART)
    return places, perturb_points(places, SPEED, FREE)


def test_points_have_given_distance_and_are_in_free_cells():
    places, perturbation = make_points()
    assert [len(place) for place in places] == [3, 8]
    assert all(set(np.diff(place)) == {10} for place in places)
    assert places[0].tolist() == [15, 25, 35]
    assert np.count_nonzero(perturbation) == 24
    assert np.abs(perturbation[perturbation != 0.0]) == pytest.approx(20.0)


def test_neighbouring_points_have_opposite_signs():
    places, perturbation = make_points()
    signs = np.sign(perturbation[np.ix_(*places)])
    assert (signs[1:] == -signs[:-1]).all()
    assert (signs[:, 1:] == -signs[:, :-1]).all()


def test_width_of_points_is_that_at_half_of_the_maximum():
    places, perturbation = make_points()
    found = measure_points(places, blur(perturbation, 12.0, 20.0), perturbation, GRID, FREE)
    half = 2.0 * np.sqrt(2.0 * np.log(2.0))
    assert found["width"][1, 3] == pytest.approx([half * 12.0, half * 20.0], rel=0.05)
    assert found["amplitude"].max() == 1.0


def test_amplitude_of_points_does_not_depend_on_surrounding_speed():
    places, _ = make_points()
    speed = SPEED * np.linspace(1.0, 2.0, 81)
    perturbation = perturb_points(places, speed, FREE)
    found = measure_points(places, 3.0 * perturbation, perturbation, GRID, FREE)
    assert found["amplitude"] == pytest.approx(np.ones((3, 8)))


def test_points_that_are_not_recovered_have_no_width():
    places, perturbation = make_points()
    response = blur(perturbation, 12.0, 12.0)
    response[:, 40:] = 1.0
    response[places[0][0], places[1][0]] = 0.0
    found = measure_points(places, response, perturbation, GRID, FREE)
    assert np.isnan(found["width"][0, 0]).all()
    assert np.isnan(found["width"][1, 6]).all()
    assert "of 24 points" in describe_measures(found, "zx")


def test_checkerboard_has_cells_of_its_size_and_alternating_signs():
    board = perturb_checkerboard(GRID, SPEED, FREE, 80.0)
    assert not board[~FREE].any()
    centres = board[15::8, 40::8]
    assert np.abs(centres) == pytest.approx(20.0)
    assert (np.sign(centres[1:]) == -np.sign(centres[:-1])).all()
    assert (np.sign(centres[:, 1:]) == -np.sign(centres[:, :-1])).all()


def test_correlation_of_checkerboard_does_not_depend_on_amplitude():
    board = perturb_checkerboard(GRID, SPEED, FREE, 80.0)
    weaker = board * 10.0 ** (-np.arange(41)[:, None] / 40.0)
    found = measure_checkerboard(weaker, board, GRID, FREE, 80.0)
    assert np.isnan(found["correlation"][~FREE]).all()
    assert found["correlation"][FREE].min() > 0.95
    ratio = found["amplitude"][20, 40] / found["amplitude"][30, 40]
    assert ratio == pytest.approx(10.0**0.25, rel=0.05)


def test_shifted_checkerboard_is_uncorrelated():
    board = perturb_checkerboard(GRID, SPEED, FREE, 80.0)
    shifted = np.roll(board, 4, axis=1)  # by half a cell, so that sines become cosines
    found = measure_checkerboard(shifted, board, GRID, FREE, 80.0)
    assert np.abs(found["correlation"][20:30, 20:60]).max() < 0.05


@pytest.mark.parametrize("size", [39.0, 811.0])
def test_sizes_that_do_not_fit_the_grid_are_refused_with_valid_range(size):
    with pytest.raises(InputError, match=r"--points: found .* Give 40 to 810 m"):
        check_size(size, GRID, "--points")
    check_size(40.0, GRID, "--points")
    check_size(810.0, GRID, "--points")
