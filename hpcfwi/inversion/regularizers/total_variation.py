"""The total variation of the change from the prior model."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from hpcfwi.inversion.regularizers import penalize
from hpcfwi.model import Grid, Model
from hpcfwi.operators.vectors import add_up

WEIGHT = "Weight of the penalty, in the misfit's unit over the parameter's unit."
SMALLEST = (
    "Difference between neighbours, in the parameter's unit, below which the penalty is quadratic."
)


def total_variation(
    model: Model,
    prior: Model,
    weights: Tensor | None = None,
    *,
    weight: Annotated[float, Field(ge=0.0, le=1e30, description=WEIGHT)],
    smallest: Annotated[float, Field(gt=0.0, le=1e9, description=SMALLEST)] = 1.0,
) -> tuple[float, Model]:
    """weight times the mean slope of m - m0 (Rudin, Osher and Fatemi 1992), and its gradient.

    m0 is the prior model. Layers with sharp edges cost no more than smooth ones of the same
    contrast, whereas `tikhonov` blurs them. Slopes are differences of neighbours, with lengths in
    units of the grid's first spacing h. The slope of a cell is sqrt(sum of the squared differences
    + smallest^2) - smallest (Acar and Vogel 1994, equation 2.5), times the cell's weight. The
    penalty is summed over the parameters.
    """

    def measure(array: Tensor, known: Tensor) -> tuple[float, Tensor]:
        value, gradient = _vary(array - known, model.grid, smallest, weights)
        return weight * value, weight * gradient

    return penalize(measure, model, prior)


def _vary(
    change: Tensor, grid: Grid, smallest: float, weights: Tensor | None
) -> tuple[float, Tensor]:
    """Return the mean length of the slope, and its gradient, in float64."""
    each = 1.0 if weights is None else weights.double()
    change = change.double()
    slopes = [_differ(change, axis) * (grid.spacing[0] / h) for axis, h in enumerate(grid.spacing)]
    squares = torch.zeros_like(change)
    for slope in slopes:
        squares = squares + slope * slope
    lengths = torch.sqrt(squares + smallest**2)
    gradient = torch.zeros_like(change)
    for axis, (slope, h) in enumerate(zip(slopes, grid.spacing, strict=True)):
        flow = each * slope / lengths * (grid.spacing[0] / h) / change.numel()
        gradient = gradient - flow + _shift(flow, axis)
    return float(add_up(each * (lengths - smallest))) / change.numel(), gradient


def _differ(field: Tensor, axis: int) -> Tensor:
    """Return the difference to the next cell along an axis, 0 in the last cell."""
    zero = torch.zeros_like(field.narrow(axis, 0, 1))
    return torch.cat([field.diff(dim=axis), zero], axis)


def _shift(field: Tensor, axis: int) -> Tensor:
    """Return the field shifted by a cell along an axis, with 0 in the first cell."""
    zero = torch.zeros_like(field.narrow(axis, 0, 1))
    return torch.cat([zero, field.narrow(axis, 0, field.shape[axis] - 1)], axis)
