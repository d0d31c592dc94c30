"""Damping: half the square of the change from the prior model."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from hpcfwi.inversion.regularizers import penalize
from hpcfwi.model import Model
from hpcfwi.operators.vectors import add_up

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
