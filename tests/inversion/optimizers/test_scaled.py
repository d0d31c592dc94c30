"""Tests of optimizers of other unknowns than the parameters of a model."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hpcfwi.inversion.gauss_newton import GaussNewton, LinearConjugateGradients
from hpcfwi.inversion.line_search import LBFGS, ConjugateGradients
from hpcfwi.inversion.objective import Evaluation, Times
from hpcfwi.inversion.optimizers import Adam
from hpcfwi.inversion.parameters import VELOCITY, Limits, Medium, Unknowns
from hpcfwi.inversion.wrappers import OptimizerOfUnknowns
from hpcfwi.model import Grid, Model

GRID = Grid((2, 3), (10.0, 10.0), (0.0, 0.0))
SCALES = {"vp": 1.0, "epsilon": 2.0**-11}
ONES = dict.fromkeys(SCALES, 1.0)
MINIMUM = {"vp": 2050.0, "epsilon": 0.04}
METHODS = {
    "adam": partial(Adam, lr=5.0),
    "lbfgs": partial(LBFGS, step=20.0),
    "ncg": partial(ConjugateGradients, step=20.0),
    "gauss-newton": partial(GaussNewton, step=20.0),
    "cg": LinearConjugateGradients,
}


def model_of(values, scales):
    arrays = {}
    for name, array in values.items():
        full = torch.as_tensor(array, dtype=torch.float64).expand(GRID.shape)
        arrays[name] = full / scales[name]
    return Model(GRID, arrays)


class Quadratic:
    """An evaluator of a quadratic function of models that are divided by scales."""

    def __init__(self, scales):
        generator = np.random.default_rng(3)
        spread = generator.normal(size=(12, 12)) + 4.0 * np.eye(12)
        sizes = np.repeat([1.0, 2.0**11], 6)
        matrix = sizes[:, None] * (spread.T @ spread) * sizes
        factors = np.repeat([*scales.values()], 6)
        self.matrix = torch.from_numpy(factors[:, None] * matrix * factors)
        self.minimum = model_of(MINIMUM, scales)
        self.remembered = []

    def product(self, model, direction, shots=None):  # noqa: ARG002
        flat = torch.cat([direction[name].double().ravel() for name in SCALES])
        parts = (self.matrix * flat).sum(1).reshape(2, *GRID.shape)
        return Model(GRID, dict(zip(SCALES, parts, strict=True)))

    def __call__(self, model):
        off = model - self.minimum
        gradient = self.product(model, off)
        value = 0.5 * sum(float((off[name] * gradient[name]).sum()) for name in SCALES)
        return Evaluation(value, 0.0, gradient, {}, (), {}, Times(), 1)

    def remember(self, model, evaluation):
        self.remembered.append((model, evaluation))

    def precondition(self, gradient):
        return gradient.map(lambda array: 0.5 * array)


def change(limits):
    return Unknowns(VELOCITY, limits, Medium({}, {}), SCALES)


@pytest.mark.parametrize("name", METHODS)
def test_scaled_steps_are_those_of_a_scaled_problem_to_the_bit(name):
    start = {"vp": 2000.0, "epsilon": 0.01}
    fixed = torch.zeros(GRID.shape, dtype=torch.bool)
    fixed[0, 0] = True
    kept = dict.fromkeys(SCALES, fixed)
    top = {} if name == "cg" else {"epsilon": 0.035}
    models, evaluations = [], []
    for scales, wrap in (
        (ONES, partial(OptimizerOfUnknowns, METHODS[name], change)),
        (SCALES, METHODS[name]),
    ):
        model = first = model_of(start, scales)
        bounds = {n: (-0.1 / scales[n], high / scales[n]) for n, high in top.items()}
        limits = Limits(first, kept, bounds, linear=True)
        evaluate, state = Quadratic(scales), wrap(first, limits).state()
        for _ in range(4):
            optimizer = wrap(first, limits)
            optimizer.restore(state)
            model, evaluation = optimizer.step(model, evaluate)
            state = optimizer.state()
        if evaluate.remembered:
            assert evaluate.remembered[-1][0] is model
        models.append(model)
        evaluations.append(evaluation)
    for key, scale in SCALES.items():
        assert torch.equal(models[0][key], models[1][key] * scale)
        gradients = [evaluation.gradient[key] for evaluation in evaluations]
        assert torch.equal(gradients[0] * scale, gradients[1])
        assert (models[0][key][0, 0] == start[key]).all()
        assert (models[0][key] != start[key]).sum() == fixed.numel() - 1
    assert models[0]["epsilon"].max() <= top.get("epsilon", 1.0)
