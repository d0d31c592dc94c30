"""Tests of grids and models: resampling, smoothing and fixed cells."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import RegularGridInterpolator

from hpcfwi.model import (
    Grid,
    Model,
    fixed_cells,
    resample,
    resample_onto,
    rms_difference,
    smooth,
)

spacings = st.floats(5.0, 50.0)
lengths = st.integers(2, 25)


def checkerboard(n: int, h: float) -> Model:
    """Return a model of alternating cells of 2000 and 3000 m/s."""
    odd = np.indices((n, n)).sum(axis=0) % 2
    return Model(Grid((n, n), (h, h), (0.0, 0.0)), {"vp": (2000.0 + 1000.0 * odd).astype("f4")})


def ramp(grid: Grid) -> Model:
    """Return a model of 1500 m/s at the origin with gradients of 0.5 (z) and 0.2 (x) 1/s."""
    z, x = np.meshgrid(grid.coordinates(0), grid.coordinates(1), indexing="ij")
    z, x = z - grid.origin[0], x - grid.origin[1]
    return Model(grid, {"vp": (1500.0 + 0.5 * z + 0.2 * x).astype(np.float32)})


@given(st.tuples(lengths, lengths), st.tuples(spacings, spacings), spacings)
def test_resampled_grid_has_the_same_origin_and_lies_within_the_old_one(shape, old, new):
    grid = Grid(shape, old, (100.0, -50.0))
    result = resample(Model(grid, {"vp": np.full(shape, 2000.0, np.float32)}), (new, new)).grid
    assert result.origin == grid.origin
    for axis in range(2):
        assert result.last[axis] <= grid.last[axis] + 1e-3
        if result.spacing[axis] == new:
            assert result.last[axis] > grid.last[axis] - new - 1e-3


@given(st.tuples(lengths, lengths), st.tuples(spacings, spacings), spacings)
def test_constant_model_stays_constant_at_any_spacing(shape, old, new):
    model = Model(Grid(shape, old, (0.0, 0.0)), {"vp": np.full(shape, 2345.0, np.float32)})
    result = resample(model, (new, new))
    assert result["vp"].dtype == np.float32
    assert result["vp"].shape == result.grid.shape
    np.testing.assert_allclose(result["vp"], 2345.0, rtol=1e-6)


@given(st.tuples(lengths, lengths), spacings, st.floats(0.1, 1.0))
def test_linear_model_is_exact_on_a_finer_grid(shape, h, ratio):
    model = ramp(Grid(shape, (h, h), (20.0, 30.0)))
    result = resample(model, (h * ratio, h * ratio))
    np.testing.assert_allclose(result["vp"], ramp(result.grid)["vp"], rtol=1e-5)


def test_linear_model_is_exact_on_a_coarser_grid_away_from_the_edges():
    result = resample(ramp(Grid((120, 140), (10.0, 10.0), (0.0, 0.0))), (25.0, 25.0))
    inside = np.s_[4:-4, 4:-4]
    np.testing.assert_allclose(result["vp"][inside], ramp(result.grid)["vp"][inside], rtol=1e-5)


@pytest.mark.parametrize("ratio", [2.5, 3.0, 7.0])
def test_resampling_to_a_coarser_grid_does_not_alias(ratio):
    result = resample(checkerboard(100, 10.0), (10.0 * ratio, 10.0 * ratio))
    assert np.abs(result["vp"][2:-2, 2:-2] - 2500.0).max() < 60.0, "of 500"


def test_only_the_coarsened_axis_is_smoothed():
    stripes = np.where(np.arange(60) % 2, 3000.0, 2000.0).astype(np.float32)
    grid = Grid((60, 60), (10.0, 10.0), (0.0, 0.0))
    along_x = resample(Model(grid, {"vp": np.tile(stripes[:, None], (1, 60))}), (10.0, 40.0))
    np.testing.assert_array_equal(along_x["vp"], np.tile(stripes[:, None], (1, 15)))


@pytest.mark.parametrize("axis", range(3))
def test_only_the_coarsened_axes_of_a_volume_are_smoothed(axis):
    shape = np.full(3, 8)
    shape[axis] = 60
    stripes = np.where(np.indices(shape)[axis] % 2, 3000.0, 2000.0).astype(np.float32)
    model = Model(Grid(tuple(shape), (10.0,) * 3, (0.0,) * 3), {"vp": stripes})
    across, along = np.full(3, 30.0), np.full(3, 10.0)
    across[axis], along[axis] = along[axis], across[axis]
    others = [slice(None) if a == axis else slice(0, None, 3) for a in range(3)]
    np.testing.assert_array_equal(resample(model, tuple(across))["vp"], stripes[tuple(others)])
    inside = resample(model, tuple(along))["vp"].take(range(2, 18), axis)
    assert np.abs(inside - 2500.0).max() < 60.0, "of 500"


@settings(max_examples=30)
@given(
    shape=st.tuples(lengths, st.integers(2, 7), st.integers(2, 7)),
    spacing=st.tuples(spacings, spacings, spacings),
    ratio=st.floats(0.3, 1.0),
)
def test_refined_volume_agrees_with_an_independent_interpolation(shape, spacing, ratio):
    grid = Grid(shape, spacing, (10.0, 20.0, -30.0))
    vp = np.random.default_rng(0).uniform(1500.0, 4500.0, shape).astype(np.float32)
    fine = resample(Model(grid, {"vp": vp}), tuple(ratio * h for h in spacing))
    axes, points = (
        [g.coordinates(axis).clip(max=grid.last[axis]) for axis in range(3)]
        for g in (grid, fine.grid)
    )
    expected = RegularGridInterpolator(axes, vp)(tuple(np.meshgrid(*points, indexing="ij")))
    np.testing.assert_allclose(fine["vp"], expected, rtol=1e-5)


@given(
    st.tuples(lengths, lengths),
    spacings,
    st.tuples(st.floats(-40.0, 40.0), st.floats(-40.0, 40.0)),
    st.integers(2, 12),
)
def test_resample_onto_extends_the_model_by_its_edge_values(shape, h, origin, n):
    own = Grid(shape, (25.0, 25.0), (0.0, 0.0))
    other = Grid((n, n), (min(h, 25.0),) * 2, origin)
    found = resample_onto(ramp(own), other)
    assert found.grid == other
    places = [
        np.clip(other.coordinates(axis), own.origin[axis], own.last[axis]) for axis in range(2)
    ]
    z, x = np.meshgrid(*places, indexing="ij")
    np.testing.assert_allclose(found["vp"], 1500.0 + 0.5 * z + 0.2 * x, rtol=1e-5)


def test_grid_is_written_with_units_for_messages():
    grid = Grid((3, 4), (20.0, 12.5), (0.0, -5.0))
    assert str(grid) == "3 x 4 points, 20 x 12.5 m apart, from (0, -5) to (40, 32.5) m"


def test_grid_covers_grids_that_extend_less_than_a_cell_beyond_it():
    grid = Grid((11, 11), (10.0, 10.0), (0.0, 50.0))
    assert grid.covers(grid)
    assert grid.covers(Grid((3, 3), (59.0, 2.0), (-9.0, 60.0)))
    assert not grid.covers(Grid((3, 3), (60.0, 2.0), (-9.0, 60.0))), "it extends to 111 m"
    assert not grid.covers(Grid((3, 3), (2.0, 2.0), (0.0, 40.0)))
    assert not grid.covers(Grid((3, 3, 3), (2.0,) * 3, (50.0,) * 3))
    assert grid.agrees(Grid((11, 11), (10.0, 10.0 + 1e-9), (0.0, 50.0)))
    assert not grid.agrees(Grid((11, 11), (10.0, 10.0), (0.0, 51.0)))


def test_resampling_to_the_same_spacing_returns_the_model():
    model = checkerboard(10, 12.5)
    assert resample(model, (12.5, 12.5)) is model


def test_every_array_of_a_model_is_resampled_onto_the_same_grid():
    model = checkerboard(11, 10.0)
    both = Model(model.grid, {**model.arrays, "rho": np.full((11, 11), 2.0, np.float32)})
    result = resample(both, (20.0, 20.0))
    assert result.arrays["vp"].shape == result.arrays["rho"].shape == (6, 6)
    np.testing.assert_allclose(result.arrays["rho"], 2.0)


@pytest.mark.parametrize("shape", [(5, 6), (3, 4, 5)])
def test_grid_has_axes_coordinates_and_contained_points(shape):
    ndim = len(shape)
    grid = Grid(shape, (10.0,) * ndim, (100.0,) * ndim)
    assert grid.axes == ("zx" if ndim == 2 else "zyx")
    assert grid.last == tuple(100.0 + 10.0 * (n - 1) for n in shape)
    np.testing.assert_array_equal(grid.coordinates(0), 100.0 + 10.0 * np.arange(shape[0]))
    corners = np.array([grid.origin, grid.last])
    beyond = corners + np.array([[-1.0], [1.0]])
    assert grid.contains(corners).tolist() == [True, True]
    assert grid.contains(beyond).tolist() == [False, False]


def test_cells_down_to_and_including_the_depth_are_fixed():
    grid = Grid((5, 3), (25.0, 25.0), (100.0, 0.0))
    fixed = fixed_cells(grid, np.array([150.0, 99.0, 200.0]))
    assert fixed[:, 0].tolist() == [True, True, True, False, False]
    assert not fixed[:, 1].any()
    assert fixed[:, 2].all()


def test_smoothing_keeps_fixed_cells_and_has_the_given_length():
    grid = Grid((101, 201), (20.0, 10.0), (0.0, 0.0))
    vp = np.full(grid.shape, 2000.0, np.float32)
    vp[50, 100] = 3000.0
    fixed = np.zeros(grid.shape, dtype=bool)
    fixed[:3] = True
    vp[:3] = 1500.0
    blurred = smooth(Model(grid, {"vp": vp}), 60.0, fixed)
    assert (blurred["vp"][:3] == 1500.0).all()
    assert blurred["vp"][3, 0] < 2000.0, "fixed cells take part in the smoothing of others"
    spot = blurred["vp"][40:61, 70:131].astype(np.float64) - 2000.0
    z, x = np.meshgrid(20.0 * np.arange(-10, 11), 10.0 * np.arange(-30, 31), indexing="ij")
    for offset in (z, x):
        assert np.sqrt((spot * offset**2).sum() / spot.sum()) == pytest.approx(60.0, rel=0.02)


def test_smoothing_the_slowness_preserves_travel_times():
    grid = Grid((101, 11), (20.0, 20.0), (0.0, 0.0))
    vp = np.full(grid.shape, 2000.0, np.float32)
    vp[30:70:2] = 4000.0
    free = np.zeros(grid.shape, dtype=bool)

    def time(model):
        return (20.0 / model["vp"].astype(np.float64)).sum(axis=0)

    layers = Model(grid, {"vp": vp})
    blurred = smooth(layers, 60.0, free, -1.0)
    assert np.ptp(blurred["vp"][40:60]) < 100.0
    np.testing.assert_allclose(time(blurred), time(layers), rtol=1e-6)
    assert (time(smooth(layers, 60.0, free)) < 0.96 * time(layers)).all()


def test_smoothing_a_volume_keeps_its_water_and_has_the_given_length():
    grid = Grid((41, 35, 45), (20.0, 25.0, 15.0), (0.0, 0.0, 0.0))
    vp = np.full(grid.shape, 2000.0, np.float32)
    vp[20, 17, 22] = 90000.0
    fixed = fixed_cells(grid, np.full(grid.shape[1:], 40.0))
    assert fixed.sum() == 3 * 35 * 45
    spot = smooth(Model(grid, {"vp": vp}), 50.0, fixed)["vp"].astype(np.float64) - 2000.0
    away = np.meshgrid(*(grid.coordinates(axis) for axis in range(3)), indexing="ij")
    for offset, middle in zip(away, (400.0, 425.0, 330.0), strict=True):
        variance = (spot * (offset - middle) ** 2).sum() / spot.sum()
        assert np.sqrt(variance) == pytest.approx(50.0, rel=0.02)
    vp[fixed] = 1500.0
    blurred = smooth(Model(grid, {"vp": vp}), 50.0, fixed)["vp"]
    assert (blurred[fixed] == 1500.0).all()
    assert (blurred[3] < 2000.0).all()


@given(st.floats(-500.0, 500.0))
def test_rms_difference_uses_only_the_chosen_cells(difference):
    a = np.zeros((4, 5), np.float32)
    b = np.full((4, 5), 1e6, np.float32)
    cells = np.zeros((4, 5), dtype=bool)
    cells[1:3, 2] = True
    b[cells] = difference
    assert rms_difference(a, b, cells) == pytest.approx(abs(difference), rel=1e-6)


@pytest.mark.parametrize("power", [1.0, -1.0])
def test_smoothing_leaves_fluids_out_of_vs(power):
    grid = Grid((40, 30), (10.0, 10.0), (0.0, 0.0))
    vs = np.zeros(grid.shape, np.float32)
    vs[10:] = 800.0
    fixed = np.zeros(grid.shape, dtype=bool)
    smoothed = smooth(Model(grid, {"vs": vs}), 50.0, fixed, power)["vs"]
    assert not smoothed[:10].any()
    np.testing.assert_allclose(smoothed[10:], 800.0, rtol=1e-6)


def test_smoothing_of_slowness_averages_that_of_s_waves():
    grid = Grid((61, 10), (10.0, 10.0), (0.0, 0.0))
    vs = np.full(grid.shape, 1000.0, np.float32)
    vs[31:] = 2000.0
    vs[30] = 2.0 / (1.0 / 1000.0 + 1.0 / 2000.0)
    smoothed = smooth(Model(grid, {"vs": vs}), 50.0, np.zeros(grid.shape, dtype=bool), -1.0)
    np.testing.assert_allclose(smoothed["vs"][30], 4000.0 / 3.0, rtol=1e-4)


def test_smoothing_of_thomsens_parameters_averages_them():
    grid = Grid((61, 10), (10.0, 10.0), (0.0, 0.0))
    delta = np.full(grid.shape, -0.1, np.float32)
    delta[31:] = 0.1
    delta[30] = 0.0
    smoothed = smooth(Model(grid, {"delta": delta}), 50.0, np.zeros(grid.shape, dtype=bool), -1.0)
    np.testing.assert_allclose(smoothed["delta"][30], 0.0, atol=1e-6)


@pytest.mark.parametrize("spacing", [(7.0, 7.0), (13.0, 13.0), (25.0, 25.0)])
def test_resampling_keeps_fluids_and_averages_vs_over_rock(spacing):
    grid = Grid((30, 40), (10.0, 10.0), (0.0, 0.0))
    z = grid.coordinates(0)[:, None] + np.zeros(40)
    vs = np.where(z < 85.0, 0.0, 500.0).astype(np.float32)
    model = Model(grid, {"vp": np.full_like(vs, 1500.0), "vs": vs})
    found = resample(model, spacing)
    depth = found.grid.coordinates(0)
    fluid = np.rint(depth / 10.0) * 10.0 < 85.0
    np.testing.assert_array_equal(found["vs"][fluid], 0.0)
    np.testing.assert_allclose(found["vs"][~fluid], 500.0, rtol=1e-6)
