"""Truncated Gauss-Newton: convergence, limits, and continuation from a state."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from hpcfwi.inversion.optimizers import gauss_newton
from hpcfwi.inversion.optimizers.gauss_newton import GaussNewton
from hpcfwi.model import Model
from hpcfwi.storage.checkpoint import load_latest_checkpoint, save_checkpoint
from tests.inversion.optimizers.test_descent import Descending, quadratic, stretched

MAKE = partial(GaussNewton, step=10.0)


class Solving(Descending):
    """A model and an optimizer that minimizes a function with known curvature.

    matrix(values): the matrix (n, n) of the products.
    """

    def __init__(self, make, function, matrix, initial, **limits):
        super().__init__(make, function, initial, **limits)
        self.matrix, self.products = matrix, []

    def make_evaluate(self):
        evaluate = super().make_evaluate()
        evaluate.product = self.product
        return evaluate

    def product(self, model, direction, shots=None):
        self.products.append((model, direction, shots))
        vp, along = (m["vp"].numpy().astype(np.float64).ravel() for m in (model, direction))
        found = torch.as_tensor(self.matrix(vp) @ along).reshape(model["vp"].shape)
        return Model(model.grid, {"vp": found.to(model["vp"].dtype)})


def solve_quadratic(make, spectrum, initial, seed=0, **limits):
    function, minimum = quadratic(spectrum, seed)
    columns = [function(minimum + unit)[1] for unit in np.eye(len(spectrum))]
    matrix = np.stack(columns, axis=1)
    return Solving(make, function, lambda _: matrix, initial(minimum), **limits)


def rosenbrock(x):
    """Return residuals of Rosenbrock's function, with its minimum at 11, and their Jacobian."""
    a, b = x[::2] - 10.0, x[1::2] - 10.0
    residuals = np.concatenate([10.0 * (b - a**2), 1.0 - a])
    jacobian = np.zeros((len(x), len(x)))
    half = len(x) // 2
    for k in range(half):
        jacobian[k, 2 * k], jacobian[k, 2 * k + 1] = -20.0 * a[k], 10.0
        jacobian[half + k, 2 * k] = -1.0
    return residuals, jacobian


def solve_rosenbrock(make, initial):
    def function(x):
        residuals, jacobian = rosenbrock(x)
        return 0.5 * residuals @ residuals, jacobian.T @ residuals

    def matrix(x):
        _, jacobian = rosenbrock(x)
        return jacobian.T @ jacobian

    return Solving(make, function, matrix, initial)


@pytest.mark.parametrize("distinct", [1, 2, 4, 8])
def test_products_on_a_quadratic_are_as_many_as_its_eigenvalues(distinct, monkeypatch):
    """Theorem 5.4 of Nocedal and Wright; the full step is taken."""
    monkeypatch.setattr(gauss_newton, "FORCING", 1e-10)
    spectrum = np.repeat(np.linspace(1.0, 20.0, distinct), 8 // distinct)
    solving = solve_quadratic(
        partial(MAKE, inner=50), spectrum, lambda minimum: minimum + np.arange(1.0, 9.0)
    )
    first = solving.loss()
    solving.step()
    assert solving.loss() < 1e-18 * first
    assert len(solving.products) == distinct
    assert len(solving.asked) == 2


def test_step_solves_the_damped_equation(monkeypatch):
    monkeypatch.setattr(gauss_newton, "FORCING", 1e-12)
    solving = solve_quadratic(
        partial(MAKE, inner=50, damping=0.3), np.geomspace(1.0, 9.0, 8), lambda m: m + 1.0
    )
    start = solving.values.copy()
    gradient, matrix = solving.function(start)[1], solving.matrix(start)
    damping = 0.3 * (gradient @ matrix @ gradient) / (gradient @ gradient)
    solving.step()
    expected = start - np.linalg.solve(matrix + damping * np.eye(8), gradient)
    np.testing.assert_allclose(solving.values, expected, atol=1e-9)


def test_convergence_is_superlinear_for_vanishing_residuals():
    """Forcing terms go to zero (Dembo, Eisenstat and Steihaug 1982)."""
    solving = solve_rosenbrock(partial(MAKE, inner=50), np.tile([10.8, 10.7], 5))
    losses = [solving.loss()]
    while losses[-1] > 1e-24 and len(losses) < 40:
        solving.step()
        losses.append(solving.loss())
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 1e-24
    np.testing.assert_allclose(solving.values, 11.0, atol=1e-9)
    ratios = np.array(losses[1:]) / losses[:-1]
    assert ratios[-1] < 1e-4
    assert ratios[-1] < 0.1 * ratios[-3]


@settings(max_examples=40)
@given(st.integers(0, 1000), st.sampled_from([1e-12, 1.0, 1e6]), st.sampled_from([0.0, 0.1]))
def test_fixed_cells_keep_their_bits_and_others_stay_within_bounds(seed, scale, damping):
    initial = np.random.default_rng(seed).uniform(1999.0, 2001.0, 12).astype(np.float32)
    solving = solve_quadratic(
        partial(MAKE, damping=damping), scale * np.geomspace(1.0, 100.0, 12), lambda _: initial,
        seed, fixed=[0, 5], bounds=(1999.0, 2001.0),
    )  # fmt: skip
    first = solving.loss()
    solving.step(8)
    assert solving.loss() < first
    for model in (*solving.asked, solving.model):
        values = model["vp"].numpy().ravel()
        np.testing.assert_array_equal(values[[0, 5]], initial[[0, 5]])
        assert values.min() >= 1999.0
        assert values.max() <= 2001.0
    for _, direction, _ in solving.products:
        assert not direction["vp"].numpy().ravel()[[0, 5]].any()


def test_minimum_within_bounds_matches_scipy():
    bounds = (1999.8, 2000.3)
    solving = solve_quadratic(
        MAKE, np.geomspace(1.0, 30.0, 8), lambda _: np.full(8, 2000.0), seed=4, bounds=bounds
    )
    solving.step(40)
    theirs = minimize(
        solving.function, np.full(8, 2000.0), jac=True, method="L-BFGS-B", bounds=[bounds] * 8,
        options={"ftol": 0.0, "gtol": 1e-10},
    )  # fmt: skip
    assert 0 < np.isin(theirs.x, bounds).sum() < 8
    np.testing.assert_allclose(solving.values, theirs.x, atol=1e-5)


@pytest.mark.parametrize("done", [0, 1, 3])
def test_steps_continue_from_a_checkpoint_to_the_bit(done, tmp_path):
    initial = np.tile([8.8, 11.0], 6).astype(np.float32)
    whole, continued = (solve_rosenbrock(partial(MAKE, inner=3), initial) for _ in range(2))
    whole.step(done)
    save_checkpoint(tmp_path, 1, {"optimizer": dict(whole.optimizer.state())})
    before = deepcopy(whole.optimizer.state())
    _, table = load_latest_checkpoint(tmp_path)
    continued.model = whole.model
    continued.optimizer.step(whole.model, continued.make_evaluate())  # is undone by restore
    continued.optimizer.restore(table["optimizer"])
    whole.step(3)
    continued.step(3)
    np.testing.assert_array_equal(whole.values, continued.values)
    assert not np.array_equal(whole.values, initial)
    assert str(before) == str(table["optimizer"]), "a state is a copy"


def test_inner_and_sample_limit_products_and_their_shots(monkeypatch):
    monkeypatch.setattr(gauss_newton, "FORCING", 1e-12)
    solving = solve_quadratic(
        partial(MAKE, inner=3, sample=7), np.geomspace(1.0, 1e4, 12), lambda m: m + 1.0
    )
    solving.step()
    assert [shots for *_, shots in solving.products] == [7, 7, 7]


def test_forcing_falls_if_the_quadratic_model_holds_and_rises_if_not():
    solving = solve_quadratic(MAKE, np.geomspace(1.0, 30.0, 8), lambda m: m + 1.0)
    forcing = []
    for _ in range(4):
        forcing.append(solving.optimizer.state()["forcing"])
        solving.step()
    # A safeguard limits how fast it falls, until it is below a tenth
    np.testing.assert_allclose(forcing[:3], [0.5 ** (gauss_newton.GOLDEN**k) for k in range(3)])
    assert forcing[3] < 1e-6
    solving = solve_quadratic(MAKE, np.geomspace(1.0, 30.0, 8), lambda m: m + 1.0)
    matrix, gradient = solving.matrix(None), solving.function(solving.values)[1]
    solving.matrix = lambda _: 100.0 * np.eye(8)
    solving.step()
    off = np.linalg.norm(gradient - matrix @ gradient / 100.0) / np.linalg.norm(gradient)
    assert solving.optimizer.state()["forcing"] == pytest.approx(off)


def test_step_is_steepest_descent_at_negative_curvature():
    solving = solve_quadratic(MAKE, np.geomspace(1e-12, 1e-10, 8), lambda m: m + 1000.0)
    solving.matrix = lambda _: -np.eye(8)
    solving.step()
    assert len(solving.products) == 1
    tried = (solving.asked[1] - solving.asked[0])["vp"]
    gradient = torch.as_tensor(solving.function(solving.initial["vp"].numpy().ravel())[1])
    torch.testing.assert_close(
        tried.ravel(), -10.0 * gradient / gradient.abs().max(), rtol=1e-9, atol=0.0
    )


def test_later_negative_curvature_ends_the_inner_iteration():
    solving = solve_quadratic(MAKE, np.linspace(1.0, 2.0, 8), lambda m: m + 1.0)
    gradient = solving.function(solving.values)[1]
    matrix = np.diag([2.0, *[0.0] * 7]) - 0.1 * np.eye(8)
    solving.matrix = lambda _: matrix
    solving.step()
    assert len(solving.products) == 2
    change = (solving.asked[1] - solving.asked[0])["vp"].numpy().ravel()
    share = (gradient @ gradient) / (gradient @ matrix @ gradient)
    np.testing.assert_allclose(change, -share * gradient, rtol=1e-9)


def test_zero_gradient_needs_no_products():
    solving = solve_quadratic(MAKE, np.ones(8), lambda m: m)
    solving.step()
    assert not solving.products
    assert solving.model is solving.initial


def test_inverse_curvature_as_preconditioner_needs_one_product():
    spectrum = np.logspace(0, 4, 8)
    function, weights = stretched(spectrum)
    values, matrix = np.full(8, 2020.0), np.diag(spectrum)
    solving = Solving(MAKE, function, lambda _: matrix, values, weights=weights, fixed=[3])
    solving.step()
    assert len(solving.products) == 1
    np.testing.assert_allclose(np.delete(solving.values, 3), 2000.0, atol=1e-2)
    assert solving.values[3] == 2020.0
