"""Preconditioning of gradients."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import scipy
import torch

from hpcfwi.config.inversion import PreconditionSection
from hpcfwi.inversion.preconditioning import (
    Preconditioner,
    Smoothing,
    balance,
    find_outermost,
    rise_from,
    thin_out,
)
from hpcfwi.model import Grid, Model
from hpcfwi.storage.models import read_model
from hpcfwi.wave.equation import ACOUSTIC
from tests.inversion.examples import read_history, read_metric, read_vp, write_input

GRID = Grid((20, 30), (10.0, 20.0), (100.0, 0.0))
MODEL = Model(GRID, {"vp": torch.full(GRID.shape, 2000.0)})


def apply(gradient, illuminations=None, factors=None, **keys):
    preconditioner = Preconditioner(PreconditionSection(**keys), 10.0, ACOUSTIC.slowest, factors)
    given = Model(GRID, {"vp": gradient})
    return preconditioner.apply(given, illuminations or {}, MODEL)["vp"]


def test_illumination_is_compensated():
    source = torch.ones(GRID.shape)
    source[10:] = 1e-4
    lit = {"source_illumination": source, "receiver_illumination": torch.ones(GRID.shape)}
    gradient = torch.ones(GRID.shape)
    gradient[10:] = 1e-2
    found = apply(gradient, lit, illumination=1e-6)
    torch.testing.assert_close(found, torch.ones(GRID.shape), rtol=2e-4, atol=0.0)


def test_balance_without_illumination_is_1_and_is_bounded_by_damping():
    dark = [torch.zeros(3, 3), torch.zeros(3, 3)]
    assert (balance(dark, 0.1) == 1.0).all()
    half = torch.tensor([[1.0, 0.0]])
    np.testing.assert_allclose(balance([half, half], 0.1), [[1.1, 0.1]])


def test_depth_weight_is_a_power_of_depth_below_the_top():
    found = apply(torch.ones(GRID.shape), depth=2.0)
    assert found[-1, 0] == pytest.approx(1.0)
    assert found[10, 0] == pytest.approx((100.0 / 190.0) ** 2)


def test_point_is_smoothed_to_gaussian_of_given_width():
    grid = Grid((81, 81), (10.0, 20.0), (0.0, 0.0))
    point = torch.zeros(grid.shape, dtype=torch.float64)
    point[40, 40] = 1.0
    found = Smoothing(np.full(81, 60.0), grid.spacing).apply(point).numpy()
    z, x = np.meshgrid(10.0 * (np.arange(81) - 40), 20.0 * (np.arange(81) - 40), indexing="ij")
    assert np.sqrt((found * z**2).sum()) == pytest.approx(60.0, rel=1e-2)
    assert np.sqrt((found * x**2).sum()) == pytest.approx(60.0, rel=1e-2)
    assert found.sum() == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("shape", [(20, 30), (9, 12, 17), (20, 90, 70)])
def test_smoothing_of_rows_matches_scipy(shape):
    rng = np.random.default_rng(0)
    array, lengths = rng.normal(size=shape), rng.uniform(2.0, 90.0, shape[0])
    spacing = (1e9, 20.0, 5.0)[: len(shape)]  # rows are so far apart that they are not mixed
    found = Smoothing(lengths, spacing).apply(torch.from_numpy(array))
    rows = [
        scipy.ndimage.gaussian_filter(row, [length / h for h in spacing[1:]], mode="reflect")
        for row, length in zip(array, lengths, strict=True)
    ]
    np.testing.assert_allclose(found, rows, rtol=1e-13, atol=1e-13)


def test_smoothing_preserves_a_constant():
    same = torch.full(GRID.shape, 3.0)
    torch.testing.assert_close(apply(same, smooth=0.5), same)


def test_taper_is_half_a_cosine_of_distance_to_the_nearest_point():
    points = np.array([[100.0, 200.0], [100.0, 200.0], [155.0, 590.0]])
    factors = rise_from(points, 40.0, GRID)
    assert factors[0, 10] == 0.0
    assert factors[1, 10] == pytest.approx(0.5 - 0.5 * np.cos(np.pi * 10.0 / 40.0))
    assert factors[0, 11] == factors[0, 9] == factors[2, 10] == pytest.approx(0.5)
    assert factors[2, 11] == pytest.approx(0.5 - 0.5 * np.cos(np.pi * np.sqrt(800.0) / 40.0))
    assert factors[5, 29] == factors[6, 29], "point between two cells"
    assert factors[5, 29] == pytest.approx(0.5 - 0.5 * np.cos(np.pi * np.hypot(5.0, 10.0) / 40.0))
    z, x = np.meshgrid(GRID.coordinates(0), GRID.coordinates(1), indexing="ij")
    away = [np.hypot(z - at[0], x - at[1]) >= 40.0 for at in points]
    np.testing.assert_array_equal(factors == 1.0, np.all(away, axis=0))


def test_taper_in_3d_uses_distance_along_all_axes():
    grid = Grid((6, 7, 8), (10.0, 20.0, 5.0), (0.0, 0.0, 100.0))
    factors = rise_from(np.array([[20.0, 60.0, 115.0]]), 30.0, grid)
    assert factors[2, 3, 3] == 0.0
    distance = np.sqrt(10.0**2 + 20.0**2 + 10.0**2)
    assert factors[3, 4, 5] == pytest.approx(0.5 - 0.5 * np.cos(np.pi * distance / 30.0))


def rise_from_all(points, length, grid):
    """Return the result of `rise_from` by a search over all points."""
    places = np.stack(np.meshgrid(*map(grid.coordinates, range(grid.ndim)), indexing="ij"), axis=-1)
    distances, _ = scipy.spatial.cKDTree(points).query(places, distance_upper_bound=length)
    return 0.5 - 0.5 * np.cos(np.pi * np.minimum(distances / length, 1.0))


@pytest.mark.parametrize("depths", [1, 3, 500])
@pytest.mark.parametrize("shape", [(8, 40), (6, 7, 20)])
def test_thinned_points_give_taper_of_all_points(shape, depths):
    grid = Grid(shape, (10.0, 20.0, 12.5)[: len(shape)], (100.0, -40.0, 5.0)[: len(shape)])
    draw = np.random.default_rng(depths)
    points = np.array(grid.origin) + draw.random((500, len(shape))) * (
        np.array(grid.last) - np.array(grid.origin)
    )
    points[:, :-1] = points[draw.integers(depths, size=500), :-1]
    points[:50] = points[50:100]
    points[100:150, -1] = grid.coordinates(len(shape) - 1)[draw.integers(shape[-1], size=50)]
    left = thin_out(np.array_split(points, 9), grid)
    np.testing.assert_array_equal(left, find_outermost(points, grid))
    assert len(left) <= min(450, depths * 2 * shape[-1])
    np.testing.assert_array_equal(rise_from(points, 45.0, grid), rise_from_all(points, 45.0, grid))


def test_gradient_is_tapered_before_it_is_smoothed():
    gradient = torch.ones(GRID.shape)
    gradient[0, 10] = 1e6
    factors = rise_from(np.array([[100.0, 200.0]]), 40.0, GRID)
    found = apply(gradient, factors=factors, taper=40.0, smooth=0.2)
    assert found.max() < 1.1
    assert found[0, 10] == 0.0


@pytest.mark.parametrize(
    "keys",
    [
        {"illumination": 0.01},
        {"depth": 1.5},
        {"smooth": 0.3},
        {"illumination": 0.01, "depth": 1.0, "taper": 40.0, "smooth": 0.5},
    ],
)
def test_preconditioner_is_symmetric_positive_semidefinite(keys):
    rng = torch.Generator().manual_seed(1)
    one, other, *lit = torch.rand((4, *GRID.shape), generator=rng, dtype=torch.float64) - 0.3
    fields = {"source_illumination": lit[0] ** 2, "receiver_illumination": lit[1] ** 2}
    speeds = torch.linspace(1500.0, 4500.0, GRID.shape[0])[:, None].expand(GRID.shape)
    model = Model(GRID, {"vp": speeds.clone()})
    factors = rise_from(np.array([[100.0, 200.0]]), 40.0, GRID) if "taper" in keys else None
    preconditioner = Preconditioner(PreconditionSection(**keys), 10.0, ACOUSTIC.slowest, factors)

    def through(values):
        return preconditioner.apply(Model(GRID, {"vp": values}), fields, model)["vp"]

    left, right = (one * through(other)).sum(), (through(one) * other).sum()
    assert left.item() == pytest.approx(right.item(), rel=1e-12)
    for values in (one, other, one - other):
        assert (values * through(values)).sum() >= 0.0


@pytest.mark.usefixtures("no_figures")
def test_inversion_with_taper_keeps_cells_of_sources_and_receivers(hpcfwi, tmp_path):
    changes = {
        "survey.sources": {"count": 10, "depth": 100.0, "first": 20.0, "last": 1100.0},
        "survey.receivers": {"count": 60, "depth": 80.0},
        "inversion.precondition": {"taper": 90.0},
        "inversion.epochs": 1,
        "output.every": 1,
    }
    assert hpcfwi("run", write_input(tmp_path, changes)) == 0
    found, initial = (
        read_model(tmp_path / "run" / name)["vp"] for name in ("model.h5", "initial.h5")
    )
    changed = found != initial
    assert not changed[4].any(), "each cell has a receiver"
    assert changed[5:].any(axis=0).all()
    with h5py.File(tmp_path / "run" / "epochs" / "epoch_0001.h5") as file:
        gradient = file["gradient"][...]
    assert not gradient[4].any()
    assert not gradient[5, 1:56:6].any(), "cells of sources"
    assert gradient[5, 2:56:6].all()


@pytest.mark.usefixtures("no_figures")
def test_inversion_with_preconditioner_reduces_model_error(hpcfwi, tmp_path):
    keys = {"illumination": 0.01, "smooth": 0.1, "depth": 0.5}
    assert hpcfwi("run", write_input(tmp_path, {"inversion.precondition": keys})) == 0
    errors = read_metric(tmp_path / "run", "model_error")
    assert errors == sorted(errors, reverse=True)


@pytest.mark.usefixtures("no_figures")
def test_line_search_with_preconditioner_continues_to_the_bit(hpcfwi, tmp_path):
    changes = {
        "inversion.precondition": {"illumination": 0.01, "smooth": 0.1},
        "inversion.optimizer": {"name": "lbfgs", "step": 30.0, "search": "backtracking"},
        "inversion.sampling": "all",
        "inversion.epochs": 4,
    }
    whole = write_input(tmp_path / "whole", changes)
    parts = write_input(tmp_path / "parts", changes)
    assert hpcfwi("run", whole) == 0
    for epochs in (2, 4):
        assert hpcfwi("run", parts, "--set", f"inversion.epochs={epochs}") == 0
    entries = read_history(tmp_path / "whole" / "run")
    errors = [entry["model_error"] for entry in entries]
    assert errors == sorted(errors, reverse=True)
    found, other = (read_vp(tmp_path / n / "run") for n in ("whole", "parts"))
    np.testing.assert_array_equal(found, other)
