"""Tikhonov: half the squared gradient in space of the change from the prior model."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from hpcfwi.inversion.regularizers import penalize
from hpcfwi.model import Grid, Model
from hpcfwi.operators.vectors import add_up

WEIGHT = "Weight of the penalty, in the misfit's unit over the square of the parameter's unit."


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
        value, gradient = _roughness(array - known, model.grid, weights)
        return weight * value, weight * gradient

    return penalize(measure, model, prior)


def _roughness(change: Tensor, grid: Grid, weights: Tensor | None) -> tuple[float, Tensor]:
    """Return half the mean of squared differences of neighbours, and its gradient, in float64."""
    change = change.double()
    total, gradient = 0.0, torch.zeros_like(change)
    for axis, h in enumerate(grid.spacing):
        step = change.diff(dim=axis) * (grid.spacing[0] / h) / change.numel() ** 0.5
        weighed = step
        if weights is not None:
            n = weights.shape[axis] - 1
            both = weights.narrow(axis, 0, n).double() + weights.narrow(axis, 1, n).double()
            weighed = 0.5 * both * step
        total += 0.5 * float(add_up(weighed * step))
        step = weighed * (grid.spacing[0] / h) / change.numel() ** 0.5
        zero = torch.zeros_like(step.narrow(axis, 0, 1))
        gradient -= torch.cat([step, zero], axis) - torch.cat([zero, step], axis)
    return total, gradient
