"""Conjugate gradients, for traces that change with the model to first order only."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import scipy
import torch
from pydantic import Field
from torch import Tensor

from hpcfwi.inversion.objective import Evaluation
from hpcfwi.inversion.optimizers import Evaluate, Price
from hpcfwi.inversion.optimizers.line_search import as_model
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Model
from hpcfwi.operators.vectors import add_up, dot, go_along

log = logging.getLogger("hpcfwi")

BALANCE = """Weigh depths by what the first step has shown, from the second on.

By how little a change of the first step's kind has bent the misfit there."""
# Standard deviation of what weights are means over, in cells, and what keeps them finite: a share
# of the largest curvature
CELLS, DAMPING = 8.0, 0.01


class LinearConjugateGradients:
    """Conjugate gradients on the normal equations, preconditioned (Hestenes and Stiefel 1952).

    The misfit is quadratic in the model, as least squares are if the inversion is linear:
    each step ends at the least of its line, which follows from one product, and so does the
    gradient there. Where epochs have the same shots nothing else is simulated; where they have
    others, each begins with their gradient, and its direction is as good as they are alike.

    The first step is along the gradient as the preconditioner leaves it, which of waves is
    reverse-time migration. Its product shows how unlike depths are that the preconditioner takes
    for equal, so that those that follow have weights beside (`weigh_depths`). Directions begin anew
    with the second, as ones that go on from another kind do not end at the least (Crowder and Wolfe
    1972).
    """

    def __init__(
        self,
        initial: Model,
        limits: Limits,
        *,
        balance: Annotated[bool, Field(description=BALANCE)] = False,
    ) -> None:
        self._initial, self._limits, self._balances = initial, limits, balance
        self._weights: dict[str, Tensor] = {}
        self._direction: Model | None = None
        self._bend: Model | None = None
        self._norm = 0.0

    def price(self, shots: int) -> Price:
        return Price(products=(shots, shots), carries=True, remembered=2 * 8)

    def state(self) -> Mapping[str, Any]:
        """A copy of what the next step depends on beside the model, as a checkpoint keeps it."""
        state: dict[str, Any] = {"weights": dict(self._weights)}
        if self._direction is not None and self._bend is not None:
            state["direction"] = dict(self._direction.arrays)
            state["bend"] = dict(self._bend.arrays)
            state["norm"] = self._norm
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self._direction = self._bend = None
        # Older checkpoints know no weights
        device, weights = self._initial.any.device, state.get("weights", {})
        self._weights = {name: array.to(device) for name, array in weights.items()}
        if "direction" in state:
            self._direction = as_model(state["direction"], self._initial)
            self._bend, self._norm = as_model(state["bend"], self._initial), state["norm"]

    def step(
        self,
        model: Model,
        evaluate: Evaluate,
        progress: float = 0.0,  # noqa: ARG002
    ) -> tuple[Model, Evaluation]:
        """The next model, and the evaluation of this one, with the gradient preconditioned.

        (5.53) of Nocedal and Wright, with the share of (5.44). The model stays where the data
        say nothing of a direction.
        """
        evaluation = evaluate(model)
        downhill = self._limits.within(model, evaluation.gradient * -1.0)
        steepest = self._limits.within(model, evaluate.precondition(downhill))
        if self._weights:
            weighed = {name: array * self._weights[name] for name, array in steepest.arrays.items()}
            steepest = Model(steepest.grid, weighed)
        seen = replace(evaluation, gradient=steepest * -1.0)
        direction: Model[Tensor] = steepest.map(Tensor.double)
        if self._direction is not None and self._bend is not None:
            share = max(0.0, -dot(steepest, self._bend) / self._norm)
            direction = direction.map(partial(go_along, by=share), self._direction)
        slope, norm = dot(downhill, direction), dot(downhill, steepest)
        if not slope > 0.0:
            self._direction = None
            log.info("The gradient is zero wherever the model may change: it stays as it is")
            return model, seen
        # Of a quadratic it is the same everywhere, and without a change of the model it costs least
        product = evaluate.product(self._initial, direction)
        curvature = dot(direction, product)
        if not curvature > 0.0:
            self._direction = None
            log.info("The data say nothing of the direction of this step: the model stays")
            return model, seen
        far = slope / curvature
        moved = model.map(partial(go_along, by=far), direction)
        found = self._limits.apply(moved)
        self._direction, self._norm = direction, norm
        bend = product.map(lambda array: array * far)
        self._bend = bend.map(_where_free, downhill)
        if self._balances and not self._weights:
            spread = evaluate.precondition(product)
            self._weights = dict(steepest.map(weigh_depths, spread).arrays)
            self._direction = None
        if _are_equal(found, moved) and not evaluation.penalty:
            misfit = evaluation.misfit - 0.5 * far * slope
            gradient = evaluation.gradient.map(partial(go_along, by=1.0), bend)
            evaluate.remember(found, replace(evaluation, misfit=misfit, gradient=gradient))
        return found, seen


def weigh_depths(direction: Tensor, bend: Tensor) -> Tensor:
    """Factors of depths, (z, 1, ...), from a change and the preconditioned gradient that it brings.

    The inverse of the diagonal of the curvature, as the ratio of an image and what modelling and
    migrating it makes of it, in means over all cells of a depth and its neighbours (Claerbout and
    Nichols 1994; Rickett 2003), up to a factor of all. What is nowhere bent has the largest.
    """
    one, level = direction.double(), tuple(range(1, direction.ndim))
    squares, products = (
        scipy.ndimage.gaussian_filter1d(
            add_up(one * each.double(), level).cpu().numpy(), CELLS, mode="reflect"
        )
        for each in (direction, bend)
    )
    curvature = np.divide(products, squares, out=np.zeros_like(squares), where=squares > 0.0)
    largest = DAMPING * max(curvature.max(), np.finfo(np.float64).tiny)
    weights = largest / (np.maximum(curvature, 0.0) + largest)
    return torch.from_numpy(weights.reshape(-1, *[1] * len(level))).to(direction)


def _where_free(bend: Tensor, downhill: Tensor) -> Tensor:
    return torch.where(downhill == 0.0, 0.0, bend)


def _are_equal(one: Model, other: Model) -> bool:
    pairs = zip(one.arrays.values(), other.arrays.values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
