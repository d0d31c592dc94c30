"""Regularizers: the properties that all have, then the formulas of each."""

from __future__ import annotations

from functools import partial

import h5py
import numpy as np
import pytest
import torch

from hpcfwi.inversion.regularizers import damping, tikhonov, total_variation
from hpcfwi.model import Grid, Model, resample, resample_onto
from hpcfwi.registry import REGULARIZERS, find
from hpcfwi.storage.models import read_model, write_model
from tests.inversion.examples import read_history, true_model, write_input

EACH_BY_NAME = {name: find(place) for name, place in REGULARIZERS.items()}
EACH = pytest.mark.parametrize(
    "regularize", [partial(method, weight=0.1) for method in EACH_BY_NAME.values()]
)


@EACH
def test_penalty_of_the_prior_model_is_zero(regularize):
    grid = Grid((6, 5), (10.0, 10.0), (0.0, 0.0))
    start = Model(grid, {"vp": torch.rand(6, 5)})
    penalty, gradient = regularize(start, start)
    assert penalty == 0.0
    assert not gradient["vp"].any()


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("regularize", EACH_BY_NAME)
def test_prior_of_a_file_replaces_the_initial_model(regularize, hpcfwi, tmp_path):
    prior = resample(true_model(), (40.0, 40.0))
    write_model(tmp_path / "prior.h5", prior)
    losses = []
    for weight in (0.0, 1e-3):
        keys = {"name": regularize, "weight": weight, "prior": "prior.h5"}
        changes = {"inversion.regularize": keys, "inversion.epochs": 1}
        path, run = write_input(tmp_path, changes), tmp_path / str(weight)
        assert hpcfwi("run", path, "--output", run) == 0
        losses.append(read_history(run)[0]["loss"])
    initial = read_model(tmp_path / "0.0" / "initial.h5").as_tensors(torch.device("cpu"))
    known = resample_onto(prior, initial.grid).as_tensors(torch.device("cpu"))
    penalty, _ = EACH_BY_NAME[regularize](initial, known, weight=1e-3)
    assert penalty > 0.0
    assert losses[1] - losses[0] == pytest.approx(penalty, rel=1e-3)


@EACH
def test_weights_of_cells_scale_penalty_and_gradient(regularize):
    torch.manual_seed(0)
    grid = Grid((6, 5), (10.0, 20.0), (0.0, 0.0))
    start, array = torch.randn(2, 6, 5, dtype=torch.float64)
    weights = torch.rand(6, 5)
    known, model = Model(grid, {"vp": start}), Model(grid, {"vp": array})
    penalty, gradient = regularize(model, known, 3.0 * torch.ones(6, 5))
    plain, slope = regularize(model, known)
    assert penalty == pytest.approx(3.0 * plain, rel=1e-12)
    torch.testing.assert_close(gradient["vp"], 3.0 * slope["vp"])

    _, gradient = regularize(model, known, weights)
    step = 1e-6
    for place in ((0, 0), (2, 3), (5, 4)):
        ends = []
        for sign in (-1.0, 1.0):
            moved = array.clone()
            moved[place] += sign * step
            ends.append(regularize(Model(grid, {"vp": moved}), known, weights)[0])
        assert gradient["vp"][place].item() == pytest.approx(
            (ends[1] - ends[0]) / (2.0 * step), rel=1e-6
        )

    apart = torch.zeros(6, 5)
    apart[:, :2] = weights[:, :2]
    moved = array.clone()
    moved[:, 4] += 1.0
    one, other = (regularize(Model(grid, {"vp": a}), known, apart)[0] for a in (array, moved))
    assert one == other, "the changed cells and their neighbours have no weight"


@pytest.mark.usefixtures("no_figures")
def test_weights_of_a_file_are_resampled_to_the_grid_of_the_inversion(hpcfwi, tmp_path):
    model = true_model()
    fine = resample(model, (10.0, 10.0)).grid
    with h5py.File(tmp_path / "trust.h5", "w") as file:
        file["weights"] = np.repeat(np.linspace(0.0, 2.0, fine.shape[1])[None], fine.shape[0], 0)
        file.attrs.update(format="hpcfwi-model", version=1, axes="zx")
        file.attrs.update(spacing=fine.spacing, origin=fine.origin)
    losses = []
    for name, keys in (("none", {"weight": 0.0}), ("trust", {"weights": "trust.h5"})):
        table = {"name": "damping", "weight": 1e-3, "prior": "true.h5", **keys}
        path = write_input(tmp_path, {"inversion.regularize": table, "inversion.epochs": 1})
        assert hpcfwi("run", path, "--output", tmp_path / name) == 0
        losses.append(read_history(tmp_path / name)[0]["loss"])
    initial = read_model(tmp_path / "none" / "initial.h5").as_tensors(torch.device("cpu"))
    # All but the last column lie within the finer grid
    weights = torch.linspace(0.0, 2.0, fine.shape[1])[::2].expand(initial.grid.shape)
    known = model.as_tensors(torch.device("cpu"))
    penalty, _ = damping(initial, known, weights, weight=1e-3)
    assert losses[1] - losses[0] == pytest.approx(penalty, rel=1e-3)


def test_negative_weights_are_refused(hpcfwi, tmp_path, capsys):
    write_input(tmp_path)
    with h5py.File(tmp_path / "true.h5", "a") as file:
        file["weights"] = np.full(file["vp"].shape, -1.0)
    table = {"name": "damping", "weight": 1e-3, "weights": "true.h5"}
    assert hpcfwi("check", write_input(tmp_path, {"inversion.regularize": table})) == 2
    assert "true.h5, /weights: 1800 of 1800 values are negative" in capsys.readouterr().err


@EACH
def test_bits_of_a_regularizer_do_not_depend_on_the_threads(regularize):
    grid = Grid((301, 703), (10.0, 10.0), (0.0, 0.0))
    start, model = (Model(grid, {"vp": torch.rand(301, 703)}) for _ in range(2))
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(regularize(model, start))
    torch.set_num_threads(before)
    for penalty, gradient in found[1:]:
        assert penalty == found[0][0]
        assert torch.equal(gradient["vp"], found[0][1]["vp"])


def test_damping_and_its_gradient_match_autograd():
    torch.manual_seed(0)
    grid = Grid((5, 7), (10.0, 20.0), (0.0, 0.0))
    initial, array = torch.randn(2, 5, 7, dtype=torch.float64)
    weights = torch.rand(5, 7, dtype=torch.float64)
    array.requires_grad_()
    expected = 1.5 * (weights * (array - initial) ** 2).mean()
    expected.backward()
    model, start = Model(grid, {"vp": array.detach()}), Model(grid, {"vp": initial})
    penalty, gradient = damping(model, start, weights, weight=3.0)
    assert penalty == pytest.approx(expected.item(), rel=1e-14)
    torch.testing.assert_close(gradient["vp"], array.grad, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    ("shape", "spacing"), [((5, 7), (10.0, 10.0)), ((4, 5, 6), (5.0, 10.0, 20.0))]
)
def test_tikhonov_penalty_and_its_gradient_match_autograd(shape, spacing):
    torch.manual_seed(0)
    grid = Grid(shape, spacing, (0.0,) * len(shape))
    initial, array = torch.randn(2, *shape, dtype=torch.float64)
    array.requires_grad_()
    ratios = [spacing[0] / h for h in spacing]
    terms = [(array - initial).diff(dim=k).mul(ratios[k]).square().sum() for k in range(len(shape))]
    expected = 0.5 * 3.0 * sum(terms) / array.numel()
    expected.backward()
    model, start = Model(grid, {"vp": array.detach()}), Model(grid, {"vp": initial})
    penalty, gradient = tikhonov(model, start, weight=3.0)
    assert penalty == pytest.approx(expected.item(), rel=1e-14)
    torch.testing.assert_close(gradient["vp"], array.grad, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    ("shape", "spacing"), [((5, 7), (10.0, 10.0)), ((4, 5, 6), (5.0, 10.0, 20.0))]
)
def test_total_variation_and_its_gradient_match_autograd(shape, spacing):
    torch.manual_seed(0)
    grid = Grid(shape, spacing, (0.0,) * len(shape))
    initial, array = torch.randn(2, *shape, dtype=torch.float64)
    array.requires_grad_()
    squares = torch.zeros(shape, dtype=torch.float64)
    for axis, h in enumerate(spacing):
        slope = (array - initial).diff(dim=axis).mul(spacing[0] / h).square()
        padding = [0, 0] * len(shape)
        padding[2 * (len(shape) - axis) - 1] = 1
        squares = squares + torch.nn.functional.pad(slope, padding)
    expected = 3.0 * ((squares + 0.25).sqrt() - 0.5).mean()
    expected.backward()
    model, start = Model(grid, {"vp": array.detach()}), Model(grid, {"vp": initial})
    penalty, gradient = total_variation(model, start, weight=3.0, smallest=0.5)
    assert penalty == pytest.approx(expected.item(), rel=1e-13)
    torch.testing.assert_close(gradient["vp"], array.grad, rtol=1e-12, atol=1e-15)


def test_edge_costs_no_more_than_a_slope_of_the_same_contrast():
    grid = Grid((4, 40), (10.0, 10.0), (0.0, 0.0))
    start = Model(grid, {"vp": torch.zeros(grid.shape)})
    edge = (torch.arange(40) >= 20).float().expand(grid.shape) * 500.0
    ramp = torch.linspace(0.0, 500.0, 40).expand(grid.shape)
    sharp, smooth = (
        total_variation(Model(grid, {"vp": array}), start, weight=1.0, smallest=0.01)[0]
        for array in (edge, ramp)
    )
    assert sharp == pytest.approx(smooth, rel=1e-2)
