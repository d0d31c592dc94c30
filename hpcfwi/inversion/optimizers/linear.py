"""Conjugate gradients, for traces that change with the model to first order only."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hpcfwi.inversion.objective import Evaluation
from hpcfwi.inversion.optimizers import Evaluate, Price
from hpcfwi.inversion.optimizers.descent import as_model
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Model
from hpcfwi.operators.vectors import dot, go_along
from hpcfwi.wave.simulation import wave_speed

log = logging.getLogger("hpcfwi")

SPEED = (
    """From the second step on, multiply by this power of the waves' speed in the initial model."""
)


class LinearConjugateGradients:
    """Conjugate gradients on the normal equations, preconditioned (Hestenes and Stiefel 1952).

    Of a misfit that is quadratic in the model, as least squares are where the inversion is linear:
    each step ends at the least of its line, which follows from one product, and so does the
    gradient there. Where epochs have the same shots nothing else is simulated; where they have
    others, each begins with their gradient, and its direction is as good as they are alike.

    The first step is along the gradient as the preconditioner leaves it, which of waves is
    reverse-time migration. Those that follow have weights beside, powers of the waves' speed, by
    which curvature varies where they are lit alike; the second, with other weights than the first,
    begins anew, as directions that go on from one of another kind do not end at the least (Crowder
    and Wolfe 1972).
    """

    def __init__(
        self,
        initial: Model,
        limits: Limits,
        *,
        speed: Annotated[float, Field(ge=0.0, le=10.0, description=SPEED)] = 0.0,
    ) -> None:
        self._initial, self._limits = initial, limits
        self._power = speed
        self._direction: Model | None = None
        self._bend: Model | None = None
        self._norm, self._weighed = 0.0, False

    @cached_property
    def _weights(self) -> Tensor:
        """Factors of cells, 1 where waves are fastest."""
        # Not torch, whose powers may depend on the number of threads
        speed = wave_speed(self._initial.as_arrays().arrays).astype(np.float64)
        return torch.from_numpy((speed / speed.max()) ** self._power).to(self._initial.any)

    def price(self, shots: int) -> Price:
        """What an epoch of so many shots asks for."""
        return Price(products=(shots, shots), carries=True, remembered=2 * 8)

    def state(self) -> Mapping[str, Any]:
        """A copy of what the next step depends on beside the model, as a checkpoint keeps it."""
        if self._direction is None or self._bend is None:
            return {}
        return {
            "direction": dict(self._direction.arrays),
            "bend": dict(self._bend.arrays),
            "norm": self._norm,
            "weighed": self._weighed,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self._direction = self._bend = None
        if state:
            self._direction = as_model(state["direction"], self._initial)
            self._bend, self._norm = as_model(state["bend"], self._initial), state["norm"]
            self._weighed = state.get("weighed", False)  # older checkpoints know no weights

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
        weighed = self._direction is not None and self._power > 0.0
        if weighed:
            steepest = steepest.map(partial(torch.mul, other=self._weights))
        seen = replace(evaluation, gradient=steepest * -1.0)
        direction: Model[Tensor] = steepest.map(Tensor.double)
        goes_on = weighed == self._weighed
        if goes_on and self._direction is not None and self._bend is not None:
            share = max(0.0, -dot(steepest, self._bend) / self._norm)
            direction = direction.map(partial(go_along, by=share), self._direction)
        slope, norm = dot(downhill, direction), dot(downhill, steepest)
        if not slope > 0.0:
            self._direction, self._weighed = None, False
            log.info("The gradient is zero wherever the model may change: it stays as it is")
            return model, seen
        # Of a quadratic it is the same everywhere, and without a change of the model it costs least
        product = evaluate.product(self._initial, direction)
        curvature = dot(direction, product)
        if not curvature > 0.0:
            self._direction, self._weighed = None, False
            log.info("The data say nothing of the direction of this step: the model stays")
            return model, seen
        far = slope / curvature
        moved = model.map(partial(go_along, by=far), direction)
        found = self._limits.apply(moved)
        self._direction, self._norm, self._weighed = direction, norm, weighed
        bend = product.map(lambda array: array * far)
        self._bend = bend.map(_where_free, downhill)
        if _are_equal(found, moved) and not evaluation.penalty:
            misfit = evaluation.misfit - 0.5 * far * slope
            gradient = evaluation.gradient.map(partial(go_along, by=1.0), bend)
            evaluate.remember(found, replace(evaluation, misfit=misfit, gradient=gradient))
        return found, seen


def _where_free(bend: Tensor, downhill: Tensor) -> Tensor:
    return torch.where(downhill == 0.0, 0.0, bend)


def _are_equal(one: Model, other: Model) -> bool:
    pairs = zip(one.arrays.values(), other.arrays.values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
