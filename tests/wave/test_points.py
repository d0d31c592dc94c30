"""Tests of points off the grid, at which the field is interpolated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpcfwi.wave.numerics import ORDERS, spread, staggered_difference, surface_shifts
from tests.wave.examples import random_shots, relative

SPACING, SHAPE = (10.0, 8.0), (24, 26)
# Shares of the Nyquist wavenumber, up to four points per wavelength.
shares = st.floats(-0.5, 0.5)
# The largest error of the interpolation along one axis, for the shortest of these waves.
ALONG_AN_AXIS = 1.35e-3


def at(z: float, x: float) -> NDArray[np.float64]:
    return np.array([[[z, x]]])


@given(st.integers(0, 23), st.integers(0, 25), st.booleans())
def test_point_on_the_grid_uses_only_that_grid_point(
    row: int, column: int, free_surface: bool
) -> None:
    taps = spread(at(10.0 * row, 8.0 * column), SPACING, (3, 5), (40, 40), free_surface)
    assert taps.cells.tolist() == [[[[row + 3, column + 5]]]]
    assert taps.weights.tolist() == [[[1.0]]]


def test_point_on_the_grid_is_not_spread_next_to_points_off_the_grid() -> None:
    positions = np.array([[[50.0, 64.0], [53.0, 61.0]]])
    taps = spread(positions, SPACING, (0, 0), SHAPE, False)
    effective = taps.weights[0, 0] != 0.0
    assert taps.cells[0, 0][effective].tolist() == [[5, 8]]
    assert taps.weights[0, 0][effective].tolist() == [1.0]


@given(st.floats(40.0, 180.0), st.floats(32.0, 160.0), shares, shares, st.floats(0.0, 2.0 * np.pi))
def test_plane_wave_of_four_points_per_wavelength_is_interpolated(
    z: float, x: float, k_z: float, k_x: float, phase: float
) -> None:
    wavenumber = np.pi * np.array([k_z, k_x]) / SPACING
    taps = spread(at(z, x), SPACING, (0, 0), SHAPE, False)
    on_grid = np.cos(taps.cells * np.array(SPACING) @ wavenumber + phase)
    exact = np.cos(np.array([z, x]) @ wavenumber + phase)
    both = (1.0 + ALONG_AN_AXIS) ** 2 - 1.0
    assert float((on_grid * taps.weights).sum()) == pytest.approx(exact, abs=both)


@given(st.floats(0.0, 40.0), shares)
def test_field_is_interpolated_up_to_the_free_surface(z: float, k_z: float) -> None:
    wavenumber = np.pi * k_z / SPACING[0]
    taps = spread(at(z, 80.0), SPACING, (0, 0), SHAPE, True)
    on_grid = np.sin(wavenumber * taps.cells[..., 0] * SPACING[0])
    assert float((on_grid * taps.weights).sum()) == pytest.approx(
        np.sin(wavenumber * z), abs=ALONG_AN_AXIS
    )


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_differences_of_a_shifted_slope_are_exact_below_a_free_surface(
    order: int, half: bool
) -> None:
    depths = np.arange(40) + 0.5 * half
    shifts = surface_shifts(order, half)
    values = depths + np.pad(shifts, (0, depths.size - shifts.size))
    # With the even image above the surface, in which the row on it occurs once
    values = np.concatenate([values[::-1] if half else values[:0:-1], values])
    weights = staggered_difference(order, 1.0)
    kernel = np.concatenate([-weights[::-1], weights])
    slopes = np.correlate(values, kernel, "valid")
    below = slopes[len(slopes) // 2 + half :]
    np.testing.assert_allclose(below, 1.0, rtol=0.0, atol=1e-10)
    assert np.abs(shifts).max() > 0.03 or order == 2


@given(st.floats(0.0, 29.0), st.booleans(), st.floats(-1.0, 1.0))
def test_slope_at_a_free_surface_is_interpolated_from_shifted_rows(
    z: float, half: bool, slope: float
) -> None:
    shifts = surface_shifts(8, half)
    taps = spread(at(z, 80.0), SPACING, (0, 0), SHAPE, True, "z" * half, False, shifts[None, None])
    rows = taps.cells[0, 0, :, 0]
    depths = rows + 0.5 * half + np.pad(shifts, (0, SHAPE[0]))[rows]
    values = 1.0 + slope * SPACING[0] * depths
    found = float((values * taps.weights).sum())
    assert found == pytest.approx(1.0 + slope * z, abs=1e-9)


def test_weights_outside_the_grid_are_dropped() -> None:
    taps = spread(at(3.0, 80.0), SPACING, (0, 0), SHAPE, False)
    whole = spread(at(3.0, 80.0), SPACING, (4, 0), (28, 26), False)
    inside = whole.cells[..., 0] >= 4
    assert taps.weights.sum() == pytest.approx(whole.weights[inside].sum())
    outside = (taps.cells < 0).any(axis=-1)
    assert outside.any()
    assert not taps.weights[outside].any()


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from((2, 8)))
def test_source_and_receiver_are_reciprocal_at_any_position(
    seed: int, free_surface: bool, order: int
) -> None:
    shots = random_shots(
        seed=seed,
        shots=3,
        receivers=1,
        samples=80,
        boundary=0,
        free_surface=free_surface,
        order=order,
    )
    exchanged = replace(
        shots, sources=shots.receivers[:, 0, :], receivers=shots.sources[:, None, :]
    )
    assert relative(exchanged.acoustic(), shots.acoustic()) < 1e-10
