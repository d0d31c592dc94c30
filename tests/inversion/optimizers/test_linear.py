"""Linear conjugate gradients on a quadratic: convergence, and no repeated simulation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from hpcfwi.inversion.gauss_newton import LinearConjugateGradients, weigh_depths
from hpcfwi.inversion.objective import Evaluation, Times
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Grid, Model

N = 12
GRID = Grid((3, 4), (1.0, 1.0), (0.0, 0.0))


def model(values):
    return Model(GRID, {"vp": torch.as_tensor(np.reshape(values, GRID.shape))})


def flat(found):
    return found["vp"].numpy().ravel()


@dataclass
class Quadratic:
    """Half of (x - x0)^T A (x - x0), which records its evaluations and directions of products."""

    matrix: np.ndarray
    least: np.ndarray
    weights: float = 1.0
    asked: list[str] = field(default_factory=list)
    directions: list[np.ndarray] = field(default_factory=list)
    known: tuple | None = None

    def __call__(self, x):
        if self.known is not None and self.known[0] is x:
            return self.known[1]
        self.asked.append("gradient")
        off = flat(x) - self.least
        bent = self.matrix @ off
        return Evaluation(0.5 * off @ bent, 0.0, model(bent), {}, (), {}, Times(), 1)

    def product(self, _, direction, shots=None):
        assert shots is None
        self.asked.append("product")
        self.directions.append(flat(direction))
        return model(self.matrix @ flat(direction))

    def precondition(self, gradient):
        return gradient * self.weights

    def remember(self, x, evaluation):
        self.known = x, evaluation


def make_quadratic(curvatures, seed=0):
    random = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(random.normal(size=(N, N)))
    matrix = turn @ np.diag(np.resize(curvatures, N)) @ turn.T
    return Quadratic(matrix, 2000.0 + random.normal(size=N))


def limits(initial, fixed=None, bounds=None):
    kept = torch.zeros(GRID.shape, dtype=torch.bool) if fixed is None else fixed
    return Limits(initial, {"vp": kept}, bounds or {})


@pytest.mark.parametrize("curvatures", [[3.0], [1.0, 4.0], [1.0, 2.0, 9.0, 30.0]])
def test_steps_to_minimum_are_as_many_as_distinct_curvatures(curvatures):
    problem, x = make_quadratic(curvatures), model(np.full(N, 2000.0))
    optimizer = LinearConjugateGradients(x, limits(x))
    for _ in curvatures:
        assert np.abs(flat(x) - problem.least).max() > 1e-3
        x, _ = optimizer.step(x, problem)
    np.testing.assert_allclose(flat(x), problem.least, atol=1e-6)
    assert problem.asked == ["gradient", *["product"] * len(curvatures)]


def test_depth_weights_are_inverse_to_curvature():
    random = np.random.default_rng(2)
    change = torch.from_numpy(random.normal(size=(300, 400)))
    curvature = np.exp(-np.arange(300) / 60.0)
    weights = weigh_depths(change, change * torch.from_numpy(curvature[:, None]))
    assert weights.shape == (300, 1)
    inner = slice(40, -40)
    expected = 1.0 / (curvature + 0.01)
    ratio = weights.numpy()[:, 0] / expected
    np.testing.assert_allclose(ratio[inner], ratio[150], rtol=0.05)


@pytest.mark.parametrize("bend", [0.0, -1.0])
def test_depth_weights_are_equal_without_positive_curvature(bend):
    change = torch.ones((3, 4))
    assert torch.equal(weigh_depths(change, bend * change), torch.ones((3, 1)))


def test_depth_balance_starts_at_second_step_with_conjugate_directions():
    plain = make_quadratic([1.0, 2.0, 9.0, 30.0])
    start = model(np.full(N, 2000.0))
    found = {}
    for balance in (False, True):
        problem = Quadratic(plain.matrix, plain.least)
        optimizer = LinearConjugateGradients(start, limits(start), balance=balance)
        x, _ = optimizer.step(start, problem)
        left = problem.known[1].gradient
        x, seen = optimizer.step(x, problem)
        optimizer.step(x, problem)
        first, one, other = problem.directions
        found[balance] = problem.directions
        expected = left["vp"]
        if balance:
            bent = model(plain.matrix @ first)["vp"]
            expected = expected * weigh_depths(model(first)["vp"], bent)
        np.testing.assert_allclose(flat(seen.gradient), expected.numpy().ravel())
        sizes = (one @ plain.matrix @ one) * (other @ plain.matrix @ other)
        assert abs(one @ plain.matrix @ other) < 1e-9 * np.sqrt(sizes)
    np.testing.assert_array_equal(found[False][0], found[True][0])
    assert np.abs(found[False][1] - found[True][1]).max() > 1e-6 * np.abs(found[True][1]).max()


def test_depth_balance_reaches_the_same_minimum():
    problem, x = make_quadratic([1.0, 5.0, 20.0]), model(np.linspace(1500.0, 2500.0, N))
    optimizer = LinearConjugateGradients(x, limits(x), balance=True)
    for _ in range(2 * N):
        x, _ = optimizer.step(x, problem)
    np.testing.assert_allclose(flat(x), problem.least, atol=1e-4)


def test_updated_evaluation_matches_a_new_evaluation():
    problem, x = make_quadratic([1.0, 5.0, 20.0]), model(np.full(N, 2000.0))
    x, _ = LinearConjugateGradients(x, limits(x)).step(x, problem)
    known = problem.known[1]
    problem.known = None
    evaluated = problem(x)
    assert known.misfit == pytest.approx(evaluated.misfit, rel=1e-9)
    np.testing.assert_allclose(flat(known.gradient), flat(evaluated.gradient), atol=1e-9)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_linear_conjugate_gradients_continue_from_a_checkpoint(steps):
    problem, start = make_quadratic([1.0, 5.0, 20.0]), model(np.linspace(1900.0, 2100.0, N))
    whole, x = LinearConjugateGradients(start, limits(start), balance=True), start
    for _ in range(steps):
        x, _ = whole.step(x, problem)
    again = LinearConjugateGradients(start, limits(start), balance=True)
    again.restore(whole.state())
    found, expected = (o.step(x, replace(problem))[0] for o in (again, whole))
    np.testing.assert_array_equal(flat(found), flat(expected))


def test_fixed_cells_stay_and_others_reach_their_minimum():
    problem, x = make_quadratic([1.0, 5.0, 20.0]), model(np.full(N, 2000.0))
    fixed = torch.zeros(GRID.shape, dtype=torch.bool)
    fixed[0] = True
    optimizer = LinearConjugateGradients(x, limits(x, fixed))
    for _ in range(2 * N):
        x, _ = optimizer.step(x, problem)
    assert (flat(x)[:4] == 2000.0).all()
    np.testing.assert_allclose((problem.matrix @ (flat(x) - problem.least))[4:], 0.0, atol=1e-5)


def test_evaluation_is_not_reused_if_bounds_cut_a_step():
    problem, x = make_quadratic([1.0, 5.0]), model(np.full(N, 2000.0))
    optimizer = LinearConjugateGradients(x, limits(x, bounds={"vp": (1999.9, 2000.1)}))
    x, _ = optimizer.step(x, problem)
    assert problem.known is None
    assert flat(x).max() <= 2000.1


def test_model_stays_at_zero_gradient_or_zero_curvature(caplog):
    caplog.set_level("INFO")
    problem = make_quadratic([1.0])
    x = model(problem.least)
    assert LinearConjugateGradients(x, limits(x)).step(x, problem)[0] is x
    assert "The gradient is zero wherever the model may change" in caplog.text
    problem.product = lambda *_: model(np.zeros(N))
    other = model(problem.least + 1.0)
    assert LinearConjugateGradients(other, limits(other)).step(other, problem)[0] is other
    assert "The data do not depend on the direction" in caplog.text
