"""Gradients that are made more like steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hpcfwi.config.precondition import PreconditionSection
from hpcfwi.inversion.preconditioning import Preconditioner, balance, smooth_by_depth
from hpcfwi.model import Grid, Model
from hpcfwi.report.metrics import read_metrics
from tests.inversion.examples import write_input

GRID = Grid((20, 30), (10.0, 20.0), (100.0, 0.0))
MODEL = Model(GRID, {"vp": torch.full(GRID.shape, 2000.0)})


def apply(gradient, illuminations=None, **keys):
    preconditioner = Preconditioner(PreconditionSection(**keys), 10.0)
    given = Model(GRID, {"vp": gradient})
    return preconditioner.apply(given, illuminations or {}, MODEL)["vp"]


def test_what_is_lit_a_hundredth_as_much_counts_as_much():
    source = torch.ones(GRID.shape)
    source[10:] = 1e-4
    lit = {"source_illumination": source, "receiver_illumination": torch.ones(GRID.shape)}
    gradient = torch.ones(GRID.shape)
    gradient[10:] = 1e-2
    found = apply(gradient, lit, illumination=1e-6)
    torch.testing.assert_close(found, torch.ones(GRID.shape), rtol=2e-4, atol=0.0)


def test_no_illumination_changes_nothing_and_damping_bounds_what_some_does():
    dark = [torch.zeros(3, 3), torch.zeros(3, 3)]
    assert (balance(dark, 0.1) == 1.0).all()
    half = torch.tensor([[1.0, 0.0]])
    np.testing.assert_allclose(balance([half, half], 0.1), [[1.1, 0.1]])


def test_depth_counts_from_the_models_top():
    found = apply(torch.ones(GRID.shape), depth=2.0)
    assert found[-1, 0] == pytest.approx(1.0)
    assert found[10, 0] == pytest.approx((100.0 / 190.0) ** 2)


def test_a_point_is_smoothed_to_a_gaussian_of_so_much_of_a_wavelength():
    grid = Grid((81, 81), (10.0, 20.0), (0.0, 0.0))
    point = np.zeros(grid.shape)
    point[40, 40] = 1.0
    found = smooth_by_depth(point, np.full(81, 60.0), grid.spacing)
    z, x = np.meshgrid(10.0 * (np.arange(81) - 40), 20.0 * (np.arange(81) - 40), indexing="ij")
    assert np.sqrt((found * z**2).sum()) == pytest.approx(60.0, rel=1e-2)
    assert np.sqrt((found * x**2).sum()) == pytest.approx(60.0, rel=1e-2)
    assert found.sum() == pytest.approx(1.0, rel=1e-4)


def test_what_is_the_same_everywhere_stays_so():
    same = torch.full(GRID.shape, 3.0)
    torch.testing.assert_close(apply(same, smooth=0.5), same)


@pytest.mark.usefixtures("no_figures")
def test_an_inversion_takes_it_and_comes_nearer_to_the_truth(hpcfwi, tmp_path):
    keys = {"illumination": 0.01, "smooth": 0.1, "depth": 0.5}
    assert hpcfwi("run", write_input(tmp_path, {"inversion.precondition": keys})) == 0
    errors = [entry["model_error"] for entry in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert errors == sorted(errors, reverse=True)


def test_searches_along_lines_refuse_it(hpcfwi, tmp_path, capfd):
    changes = {
        "inversion.precondition": {"smooth": 0.2},
        "inversion.optimizer": {"name": "lbfgs", "step": 20.0},
    }
    assert hpcfwi("run", write_input(tmp_path, changes)) == 2
    assert 'precondition is for "adam" and "sgd"' in capfd.readouterr().err
