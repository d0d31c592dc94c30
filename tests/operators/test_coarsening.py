"""Restriction of models to a coarser grid for waves, its transpose, and refinement."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcfwi.model import Grid, Model, resample
from hpcfwi.operators.vectors import Coarsening

FLAT = Grid((41, 61), (20.0, 20.0), (100.0, 0.0))
DEEP = Grid((41, 21, 33), (10.0, 20.0, 20.0), (0.0, 0.0, 50.0))
BOTH = pytest.mark.parametrize("grid", [FLAT, DEEP])


def field(grid, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Model(grid, {"vp": torch.rand(grid.shape, generator=generator, dtype=torch.float64)})


@BOTH
@pytest.mark.parametrize("spacing", [25.0, 40.0, 55.0])
def test_transpose_of_restriction_passes_dot_product_test(grid, spacing):
    coarsening = Coarsening.to(grid, spacing)
    model, gradient = field(grid), field(coarsening.coarse, 1)
    there = (coarsening.restrict(model)["vp"] * gradient["vp"]).sum()
    back = (model["vp"] * coarsening.transpose(gradient)["vp"]).sum()
    assert float(there / back) == pytest.approx(1.0, abs=1e-12)


@BOTH
def test_coarse_grid_has_same_extent_and_at_most_requested_spacing(grid):
    coarse = Coarsening.to(grid, 47.0).coarse
    assert max(coarse.spacing) <= 47.0
    np.testing.assert_allclose(coarse.last, grid.last)
    assert coarse.origin == grid.origin


def test_grid_that_is_coarse_enough_gets_no_coarsening():
    assert Coarsening.to(FLAT, 20.0) is None
    assert Coarsening.to(FLAT, 5.0) is None


def test_restricted_model_is_close_to_resampled_model():
    z, x = np.meshgrid(*map(FLAT.coordinates, range(2)), indexing="ij")
    model = Model(FLAT, {"vp": torch.tensor(np.sin(z / 150.0) * np.cos(x / 200.0))})
    expected = resample(model.as_arrays(), (40.0, 40.0))["vp"]
    seen = Coarsening.to(FLAT, 40.0).restrict(model)["vp"]
    np.testing.assert_allclose(seen[1:-1, 1:-1], expected[1:-1, 1:-1], atol=0.02)


def test_transpose_of_constant_gradient_has_no_grid_pattern():
    coarsening = Coarsening.to(FLAT, 29.0)
    ones = Model(coarsening.coarse, {"vp": torch.ones(coarsening.coarse.shape).double()})
    back = coarsening.transpose(ones)["vp"][4:-4, 4:-4]
    share = coarsening.coarse.shape[0] * coarsening.coarse.shape[1] / (41 * 61)
    np.testing.assert_allclose(back, share, rtol=0.25)


@BOTH
def test_restriction_and_refinement_preserve_linear_models(grid):
    slope = np.add.outer(grid.coordinates(0), np.zeros(grid.shape[1:])) + 3.0 * grid.coordinates(-1)
    coarsening = Coarsening.to(grid, 50.0)
    coarse = coarsening.coarse
    seen = coarsening.restrict(Model(grid, {"vp": torch.tensor(slope)}))["vp"].numpy()
    expected = np.add.outer(
        coarse.coordinates(0), np.zeros(coarse.shape[1:])
    ) + 3.0 * coarse.coordinates(-1)
    inner = tuple(slice(2, -2) for _ in coarse.shape)
    slack = 3.0 * 0.05 * max(coarse.spacing)
    np.testing.assert_allclose(seen[inner], expected[inner], atol=slack)
    np.testing.assert_allclose(coarsening.refine(torch.tensor(expected)), slope)
