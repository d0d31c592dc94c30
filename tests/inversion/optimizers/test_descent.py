"""Line search methods: convergence, limits, and continuation from a state."""

from __future__ import annotations

import gc
import logging
from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, rosen, rosen_der

from hpcfwi.inversion.gauss_newton import GaussNewton
from hpcfwi.inversion.line_search import LBFGS, TRIES, ConjugateGradients
from hpcfwi.inversion.objective import Evaluation, Times
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Grid, Model
from hpcfwi.operators.vectors import dot
from hpcfwi.parallel.shards import LINE, WHOLE, Shard, Shards
from hpcfwi.storage.checkpoint import load_latest_checkpoint, save_checkpoint
from tests.parallel.together import on_ranks

BOTH = pytest.mark.parametrize("method", [LBFGS, ConjugateGradients])
METHODS = [
    partial(method, step=10.0, search=search)
    for method in (LBFGS, ConjugateGradients)
    for search in ("wolfe", "backtracking")
]
WITH_GAUSS_NEWTON = [
    *METHODS,
    *(partial(GaussNewton, step=10.0, damping=damping) for damping in (0.0, 0.1)),
]


def model_of(values):
    values = torch.as_tensor(values).reshape(2, -1)
    return Model(Grid(tuple(values.shape), (10.0, 10.0), (0.0, 0.0)), {"vp": values})


class Descending:
    """A model and an optimizer that minimizes a function of its values.

    function(values) returns a value and its gradient, for a NumPy array (n,); its attribute
    `matrix` (n, n) is that of the products; weights (n,): the preconditioner.
    """

    def __init__(self, make, function, initial, fixed=(), bounds=None, weights=None):
        self.function, self.asked, self.products, self.failed = function, [], [], ()
        self.weights = None if weights is None else model_of(weights)["vp"]
        self.model = self.initial = model_of(initial)
        kept = np.isin(np.arange(len(initial)), fixed).reshape(2, -1)
        limits = Limits(self.model, {"vp": torch.tensor(kept)}, {"vp": bounds} if bounds else {})
        self.optimizer = make(self.model, limits)

    @property
    def values(self):
        return self.model["vp"].numpy().ravel()

    def evaluate(self, model):
        self.asked.append(model)
        vp = model["vp"]
        value, gradient = self.function(vp.numpy().astype(np.float64).ravel())
        gradient = torch.as_tensor(gradient).reshape(vp.shape).to(vp.dtype)
        found = Model(model.grid, {"vp": gradient})
        return Evaluation(float(value), 0.0, found, {}, self.failed, {}, Times(), 1)

    def precondition(self, gradient):
        if self.weights is None:
            return gradient
        return gradient.map(lambda array: array * self.weights.to(array.dtype))

    def matrix(self, _):
        return self.function.matrix

    def product(self, model, direction, shots=None):
        self.products.append((model, direction, shots))
        vp, along = (m["vp"].numpy().astype(np.float64).ravel() for m in (model, direction))
        found = torch.as_tensor(self.matrix(vp) @ along).reshape(model["vp"].shape)
        return Model(model.grid, {"vp": found.to(model["vp"].dtype)})

    def make_evaluate(self):
        """Return the callable that the optimizer evaluates."""

        def evaluate(model):
            return self.evaluate(model)

        evaluate.precondition, evaluate.product = self.precondition, self.product
        return evaluate

    def step(self, n=1):
        evaluation = None
        for _ in range(n):
            before = self.model
            self.model, evaluation = self.optimizer.step(before, self.make_evaluate())
        return evaluation

    def loss(self):
        return self.function(self.values.astype(np.float64))[0]


def quadratic(spectrum, seed=0):
    """Return a quadratic with eigenvalues `spectrum`, and its minimum near 2000."""
    n, generator = len(spectrum), np.random.default_rng(seed)
    axes = np.linalg.qr(generator.normal(size=(n, n)))[0]
    matrix, minimum = axes @ np.diag(spectrum) @ axes.T, 2000.0 + generator.normal(size=n)

    def function(x):
        slope = matrix @ (x - minimum)
        return 0.5 * (x - minimum) @ slope, slope

    function.matrix = matrix
    return function, minimum


def shifted_rosenbrock(x):
    """Return Rosenbrock's function with its minimum at 11 for all values, and its gradient."""
    return rosen(x - 10.0), rosen_der(x - 10.0)


@BOTH
@pytest.mark.parametrize("distinct", [2, 4, 8])
def test_steps_on_a_quadratic_are_as_many_as_its_eigenvalues(method, distinct, monkeypatch):
    """Theorem 5.4 of Nocedal and Wright; L-BFGS with exact searches makes the same steps."""
    monkeypatch.setattr("hpcfwi.inversion.line_search.LBFGS_CURVATURE", 1e-9)
    monkeypatch.setattr("hpcfwi.inversion.line_search.NCG_CURVATURE", 1e-9)
    spectrum = np.repeat(np.linspace(1.0, 20.0, distinct), 8 // distinct)
    function, minimum = quadratic(spectrum)
    descending = Descending(partial(method, step=20.0), function, minimum + 10.0 * np.arange(1, 9))
    first = descending.loss()
    losses = []
    for _ in range(distinct):
        descending.step()
        losses.append(descending.loss() / first)
    assert losses[-1] < 1e-15
    assert min(losses[:-1]) > 1e-8
    # Each step evaluates its start, a first trial and the lowest point. The first step, which has
    # no scale yet, and the last, whose decrease is that of rounding, may take more.
    assert len(descending.asked) <= 3 * distinct + 4


def test_lbfgs_on_rosenbrock_takes_about_as_many_evaluations_as_scipy():
    initial = np.tile([8.8, 11.0], 5)
    theirs = minimize(
        shifted_rosenbrock, initial, jac=True, method="L-BFGS-B",
        options={"maxcor": 5, "gtol": 1e-7, "ftol": 0.0},
    )  # fmt: skip
    ours = Descending(partial(LBFGS, step=0.1), shifted_rosenbrock, initial)
    steps = 0
    while np.abs(shifted_rosenbrock(ours.values)[1]).max() > 1e-7:
        ours.step()
        steps += 1
        assert steps < 500
    np.testing.assert_allclose(ours.values, theirs.x, atol=1e-6)
    # Unlike SciPy, each step evaluates its start once more
    assert len(ours.asked) - steps < 1.3 * theirs.nfev


@pytest.mark.parametrize("make", METHODS)
def test_every_method_finds_minimum_of_rosenbrock(make):
    descending = Descending(make, shifted_rosenbrock, np.tile([8.8, 11.0], 2))
    losses = [descending.loss()]
    for _ in range(150):
        descending.step()
        losses.append(descending.loss())
    assert losses == sorted(losses, reverse=True)
    # Conjugate directions are slow with backtracking, since they need better searches.
    slow = make is METHODS[-1]
    assert losses[-1] < (1e-2 if slow else 1e-10) * losses[0]


@settings(max_examples=40)
@given(st.sampled_from(WITH_GAUSS_NEWTON), st.integers(0, 1000), st.sampled_from([1e-12, 1.0, 1e6]))
def test_fixed_cells_keep_their_bits_and_others_stay_within_bounds(make, seed, scale):
    initial = np.random.default_rng(seed).uniform(1999.0, 2001.0, 12).astype(np.float32)
    function, _ = quadratic(scale * np.geomspace(1.0, 100.0, 12), seed)
    descending = Descending(make, function, initial, fixed=[0, 5], bounds=(1999.0, 2001.0))
    first = descending.loss()
    descending.step(8)
    assert descending.loss() < first
    for model in (*descending.asked, descending.model):
        values = model["vp"].numpy().ravel()
        np.testing.assert_array_equal(values[[0, 5]], initial[[0, 5]])
        assert values.min() >= 1999.0
        assert values.max() <= 2001.0
    for _, direction, _ in descending.products:
        assert not direction["vp"].numpy().ravel()[[0, 5]].any()


@pytest.mark.parametrize("make", WITH_GAUSS_NEWTON)
def test_minimum_within_bounds_matches_scipy(make):
    function, _ = quadratic(np.geomspace(1.0, 30.0, 8), seed=4)
    bounds = (1999.8, 2000.3)
    descending = Descending(make, function, np.full(8, 2000.0), bounds=bounds)
    descending.step(60)
    theirs = minimize(
        function, np.full(8, 2000.0), jac=True, method="L-BFGS-B", bounds=[bounds] * 8,
        options={"ftol": 0.0, "gtol": 1e-10},
    )  # fmt: skip
    assert 0 < np.isin(theirs.x, bounds).sum() < 8
    np.testing.assert_allclose(descending.values, theirs.x, atol=1e-5)


def test_cells_at_bounds_do_not_slow_down_lbfgs():
    """L-BFGS would take ten times as many evaluations with the whole gradient in its pairs."""
    function, _ = quadratic(np.geomspace(1.0, 300.0, 40))
    bounds = (1999.5, 2000.5)
    theirs = minimize(
        function, np.full(40, 2000.0), jac=True, method="L-BFGS-B", bounds=[bounds] * 40,
        options={"ftol": 0.0, "gtol": 1e-12},
    )  # fmt: skip
    ours = Descending(METHODS[0], function, np.full(40, 2000.0), bounds=bounds)
    most = 1e-9 * (ours.loss() - theirs.fun)
    while ours.loss() - theirs.fun > most:
        ours.step()
        assert len(ours.asked) < 400


@pytest.mark.parametrize("make", WITH_GAUSS_NEWTON)
@pytest.mark.parametrize("done", [0, 1, 7])
def test_steps_continue_from_a_checkpoint_to_the_bit(make, done, tmp_path):
    initial = np.random.default_rng(3).uniform(1500.0, 2500.0, 12).astype(np.float32)
    function, _ = quadratic(np.geomspace(1e-3, 10.0, 12))
    whole, continued = (Descending(make, function, initial, fixed=[2]) for _ in range(2))
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


@pytest.mark.parametrize("size", [1, 2, 3])
def test_lbfgs_with_sharded_pairs_takes_same_steps_to_the_bit(size):
    n, memory, epochs = 300, 4, 7
    initial = np.random.default_rng(3).uniform(1500.0, 2500.0, n).astype(np.float32)
    function, _ = quadratic(np.geomspace(1e-3, 10.0, n))

    def descend(shards):
        def make(*given):
            return LBFGS(*given, shards, step=10.0, memory=memory)

        descending = Descending(make, function, initial)
        for _ in range(epochs):  # restored after each step, as after the loss of a rank
            descending.step()
            descending.optimizer.restore(descending.optimizer.state())
        return descending

    whole = descend(WHOLE)
    for found in on_ranks(size, lambda context: descend(Shards(context))):
        np.testing.assert_array_equal(found.values, whole.values)
        pairs = found.optimizer.state()["pairs"]
        assert len(pairs) == memory
        for kept in (part["vp"] for pair in pairs for part in pair):
            shard = kept.values if isinstance(kept, Shard) else kept
            assert shard.untyped_storage().nbytes() <= 4 * (n / size + LINE)
        assert found.optimizer.cost(1).remembered == 2 * memory * 4


@pytest.mark.parametrize("make", METHODS)
def test_first_trial_step_changes_the_model_by_at_most_the_given_step(make):
    function, minimum = quadratic(np.geomspace(1e-12, 1e-10, 8))
    descending = Descending(make, function, minimum + 1000.0)
    descending.step()
    start, tried, *_ = descending.asked
    assert start is descending.initial
    assert float((tried - start)["vp"].abs().max()) == pytest.approx(10.0)


@pytest.mark.parametrize("make", METHODS)
def test_model_stays_and_is_reported_once_if_search_finds_nothing_better(make, caplog):
    def misled(x):
        """Return a wrong gradient, along which no step is downhill."""
        return np.abs(x - 2000.0).sum(), np.ones(8)

    descending = Descending(make, misled, np.full(8, 2000.0))
    with caplog.at_level(logging.INFO, "hpcfwi"):
        evaluation = descending.step(2)
    assert descending.model is descending.initial
    assert evaluation.loss == 0.0
    assert len(descending.asked) == 2 * (1 + TRIES)
    assert caplog.text.count("the model does not change") == 1


@pytest.mark.parametrize("make", METHODS)
def test_failed_search_is_followed_by_steepest_descent(make):
    function, minimum = quadratic(np.geomspace(1.0, 10.0, 8))
    other, _ = quadratic(np.geomspace(1.0, 10.0, 8), seed=1)
    descending = Descending(make, function, minimum + 1000.0)
    descending.step(3)
    before = len(descending.asked)

    def misled(x):
        """Return infinite values for all trials of the first search."""
        tried = len(descending.asked) - before
        value, gradient = other(x)
        return np.inf if 2 <= tried <= 1 + TRIES else value, gradient

    descending.function = misled
    start = descending.model
    descending.step()
    retried = descending.asked[before + 1 + TRIES]
    gradient = torch.as_tensor(other(start["vp"].numpy().ravel())[1].reshape(2, -1))
    torch.testing.assert_close((retried - start)["vp"], -10.0 * gradient / gradient.abs().max())
    assert other(descending.values)[0] < other(start["vp"].numpy().ravel())[0]
    assert len(descending.optimizer.state().get("pairs", [None])) == 1, (
        "earlier pairs are discarded"
    )


@pytest.mark.parametrize("make", METHODS)
def test_search_rejects_invalid_models_and_models_that_lose_shots(make):
    """The minimum is at negative speeds, which are invalid, and shots fail on the way to it."""
    descending = Descending(
        make, lambda x: (0.5 * ((x + 5.0) ** 2).sum(), x + 5.0), np.full(8, 9.0)
    )
    evaluate = descending.evaluate

    def failing(model):
        descending.failed = (3,) if float(model["vp"].min()) < 4.0 else ()
        return evaluate(model)

    descending.evaluate = failing
    descending.step(5)
    assert 4.0 <= descending.values.min() < 9.0


def test_lbfgs_ignores_steps_without_positive_curvature():
    descending = Descending(partial(LBFGS, step=1.0, search="backtracking"),
                            lambda x: (-0.5 * (x**2).sum(), -x), np.full(8, 9.0))  # fmt: skip
    descending.step(3)
    assert not descending.optimizer.state()["pairs"]


def test_search_holds_its_direction_once():
    """The direction of L-BFGS is in double precision, and the model in single precision."""
    function, minimum = quadratic(np.linspace(1.0, 20.0, 14))
    start = (minimum + 5.0).astype(np.float32)
    descending = Descending(partial(LBFGS, step=1.0), function, start)
    descending.step(2)
    evaluate, held = descending.evaluate, []

    def count(model):
        # `isinstance` asks a weak proxy for the class of its object, which may be gone.
        arrays = (one for one in gc.get_objects() if issubclass(type(one), torch.Tensor))
        held.append(sum(a.dtype == torch.float64 and a.shape == (2, 7) for a in arrays))
        return evaluate(model)

    descending.evaluate = count
    descending.step()
    assert held[:2] == [0, 1], "before the first evaluation and in the search"


def test_lbfgs_stores_as_many_steps_as_its_memory():
    function, minimum = quadratic(np.geomspace(1e-4, 10.0, 12))
    descending = Descending(partial(LBFGS, step=1.0, memory=3), function, minimum + 100.0)
    descending.step(6)
    assert len(descending.optimizer.state()["pairs"]) == 3


def test_scalar_products_have_the_same_bits_with_any_number_of_threads():
    generator = torch.Generator().manual_seed(0)
    a, b = (model_of(torch.randn(300_000, generator=generator)) for _ in range(2))
    threads, found = torch.get_num_threads(), set()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            found.add(dot(a, b))
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1
    assert found.pop() == pytest.approx(
        float(torch.dot(a["vp"].double().ravel(), b["vp"].double().ravel()))
    )


def stretched(spectrum):
    """Return a quadratic with a diagonal matrix, and the inverse of its diagonal."""
    spectrum = np.asarray(spectrum)

    def function(x):
        return 0.5 * (spectrum * (x - 2000.0) ** 2).sum(), spectrum * (x - 2000.0)

    return function, 1.0 / spectrum


@pytest.mark.parametrize("make", METHODS)
def test_inverse_curvature_as_preconditioner_leads_straight_to_minimum(make):
    function, weights = stretched(np.logspace(0, 4, 8))
    straight = Descending(make, function, np.full(8, 2020.0), weights=weights)
    straight.step(3)
    bent = Descending(make, function, np.full(8, 2020.0))
    bent.step(3)
    np.testing.assert_allclose(straight.values, 2000.0, atol=1e-2)
    assert bent.loss() > 1e3 * straight.loss()


@pytest.mark.parametrize("make", METHODS)
def test_preconditioner_does_not_mix_fixed_and_free_cells(make):
    function, _ = stretched(np.ones(8))
    initial = np.where(np.isin(np.arange(8), [0, 5]), 1000.0, 2020.0)
    descending = Descending(make, function, initial, fixed=[0, 5])
    mean = partial(torch.mean, dim=(0, 1), keepdim=True)
    descending.precondition = lambda g: g.map(lambda a: 0.5 * a + 0.5 * mean(a).expand(a.shape))
    seen = descending.step()
    assert seen.gradient["vp"][0, 0] > 0.0, "gradient after preconditioning"
    descending.step(3)
    assert descending.values[[0, 5]].tolist() == [1000.0, 1000.0]
    np.testing.assert_allclose(np.delete(descending.values, [0, 5]), 2000.0, atol=0.1)
