"""Regularizers, which are penalties of a model; `registry.REGULARIZERS` names them.

A regularizer is a function of a model and a prior model, both of tensors, of the weights of cells,
a tensor or None if all are 1, and of its keys. It returns the penalty, which is added to the
misfit, and the gradient of the penalty, which is a model. Every rank computes it, so that its
results must not depend on the number of threads. Gauss-Newton differentiates the gradient by
torch's forward mode, so that it must not be detached from the model.
"""

from __future__ import annotations

from collections.abc import Callable
from math import fsum
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from hpcfwi.model import Model
from hpcfwi.operators.vectors import add_up

Regularizer = Callable[[Model], tuple[float, Model]]
"""A regularizer whose prior model, weights and keys are given."""

Measure = Callable[[Tensor, Tensor], tuple[float, Tensor]]
"""A function of an array and that of the prior model to the penalty and its gradient."""


def penalize(measure: Measure, model: Model, prior: Model) -> tuple[float, Model]:
    """Return the penalty, summed over the parameters, and its gradient."""
    found = model.map(measure, prior)
    gradient = found.map(lambda pair, array: pair[1].to(array.dtype), model)
    return fsum(penalty for penalty, _ in found.arrays.values()), gradient


WEIGHT = "Weight of the penalty, in the misfit's unit over the square of the parameter's unit."


def damping(
    model: Model,
    prior: Model,
    weights: Tensor | None = None,
    *,
    weight: Annotated[float, Field(ge=0.0, le=1e30, description=WEIGHT)],
) -> tuple[float, Model]:
    """weight / 2 times the mean of w (m - m0)^2 (Levenberg 1944), and its gradient.

    m0 is the prior model, and w are the weights of the cells, by default 1. They say how reliable
    each cell of the prior model is (Asnaashari and others 2013, equation 4), for example along a
    well or in salt. The penalty is summed over the parameters.
    """

    def measure(array: Tensor, known: Tensor) -> tuple[float, Tensor]:
        change = array.double() - known.double()
        slope = change if weights is None else weights.double() * change
        penalty = 0.5 * weight * float(add_up(slope * change)) / change.numel()
        return penalty, weight / change.numel() * slope

    return penalize(measure, model, prior)


def tikhonov(
    model: Model,
    prior: Model,
    weights: Tensor | None = None,
    *,
    weight: Annotated[float, Field(ge=0.0, le=1e30, description=WEIGHT)],
) -> tuple[float, Model]:
    """weight / 2 times the integral of the squared slope of m - m0 (Tikhonov 1963); its gradient.

    m0 is the prior model, so that the structure of the prior model is not penalized. The penalty is
    summed over the parameters. With lengths in units of the grid's first spacing h, and the
    integral divided by the number of cells, it is half the mean of the squared differences between
    neighbours. A difference is weighted by the mean of the weights of both cells.
    """

    def measure(array: Tensor, known: Tensor) -> tuple[float, Tensor]:
        change = (array - known).double()
        total, gradient = 0.0, torch.zeros_like(change)
        for axis, h in enumerate(model.grid.spacing):
            step = change.diff(dim=axis) * (model.grid.spacing[0] / h) / change.numel() ** 0.5
            weighed = step
            if weights is not None:
                n = weights.shape[axis] - 1
                both = weights.narrow(axis, 0, n).double() + weights.narrow(axis, 1, n).double()
                weighed = 0.5 * both * step
            total += 0.5 * float(add_up(weighed * step))
            step = weighed * (model.grid.spacing[0] / h) / change.numel() ** 0.5
            zero = torch.zeros_like(step.narrow(axis, 0, 1))
            gradient -= torch.cat([step, zero], axis) - torch.cat([zero, step], axis)
        return weight * total, weight * gradient

    return penalize(measure, model, prior)


TV_WEIGHT = "Weight of the penalty, in the misfit's unit over the parameter's unit."
SMALLEST = (
    "Difference between neighbours, in the parameter's unit, below which the penalty is quadratic."
)


def total_variation(
    model: Model,
    prior: Model,
    weights: Tensor | None = None,
    *,
    weight: Annotated[float, Field(ge=0.0, le=1e30, description=TV_WEIGHT)],
    smallest: Annotated[float, Field(gt=0.0, le=1e9, description=SMALLEST)] = 1.0,
) -> tuple[float, Model]:
    """weight times the mean slope of m - m0 (Rudin, Osher and Fatemi 1992), and its gradient.

    m0 is the prior model. Layers with sharp edges cost no more than smooth ones of the same
    contrast, whereas `tikhonov` blurs them. Slopes are differences of neighbours, with lengths in
    units of the grid's first spacing h. The slope of a cell is sqrt(sum of the squared differences
    + smallest^2) - smallest (Acar and Vogel 1994, equation 2.5), times the cell's weight. The
    penalty is summed over the parameters.
    """
    each = 1.0 if weights is None else weights.double()
    ratios = [model.grid.spacing[0] / h for h in model.grid.spacing]

    def measure(array: Tensor, known: Tensor) -> tuple[float, Tensor]:
        change = (array - known).double()
        # The slope of the last cell along an axis is 0.
        slopes = [
            change.diff(dim=axis, append=change.narrow(axis, -1, 1)) * ratio
            for axis, ratio in enumerate(ratios)
        ]
        squares = torch.zeros_like(change)
        for slope in slopes:
            squares = squares + slope * slope
        lengths = torch.sqrt(squares + smallest**2)
        gradient = torch.zeros_like(change)
        for axis, (slope, ratio) in enumerate(zip(slopes, ratios, strict=True)):
            flow = each * slope / lengths * ratio / change.numel()
            gradient = gradient - flow + flow.roll(1, axis)
        value = float(add_up(each * (lengths - smallest))) / change.numel()
        return weight * value, weight * gradient

    return penalize(measure, model, prior)
