"""Truncated Gauss-Newton: its products, its forcing term and its convergence."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hpcfwi.inversion import gauss_newton
from hpcfwi.inversion.gauss_newton import GaussNewton
from tests.inversion.optimizers.test_descent import Descending, quadratic, stretched

MAKE = partial(GaussNewton, step=10.0)


class Solving(Descending):
    """A model and an optimizer that minimizes a function with known curvature.

    matrix(values): the matrix (n, n) of the products.
    """

    def __init__(self, make, function, matrix, initial, **limits):
        super().__init__(make, function, initial, **limits)
        self.matrix = matrix


def solve_quadratic(make, spectrum, initial):
    function, minimum = quadratic(spectrum)
    return Descending(make, function, initial(minimum))


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
