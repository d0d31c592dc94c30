"""Optimizers with products of the Hessian: truncated Gauss-Newton, and linear conjugate gradients.

Gauss-Newton finds its directions from the curvature of the misfit, by simulation. Linear conjugate
gradients are for traces that change with the model to first order only, as in a migration.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import sqrt
from typing import Annotated, Any

import numpy as np
import scipy
import torch
from pydantic import Field
from torch import Tensor

from hpcfwi.inversion.line_search import (
    LBFGS,
    MEMORY,
    Advance,
    Search,
    Start,
    Step,
    as_model,
    where_nonzero,
)
from hpcfwi.inversion.objective import Evaluation
from hpcfwi.inversion.optimizers import Evaluator, OptimizerCost
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Model
from hpcfwi.operators.vectors import add_up, dot, go_along
from hpcfwi.parallel.shards import WHOLE, Shards

log = logging.getLogger("hpcfwi")

INNER = """Largest number of Hessian products per epoch.

Each product simulates its shots at the cost of two evaluations: the wave and the wave scattered by
a change of the model, forward and backward."""
SAMPLE = """Number of shots of the batch that products simulate; all if the batch has no more.

The sample should represent the whole survey (Byrd et al. 2011)."""
DAMPING = "Damping of all directions, as a share of the curvature along the epoch's first one."

# Forcing term (Eisenstat and Walker 1996): the first, the largest, and two limits of its decrease.
FORCING, MOST, SAFEGUARD, GOLDEN = 0.5, 0.9, 0.1, (1.0 + sqrt(5.0)) / 2.0


class GaussNewton(LBFGS):
    """Truncated Gauss-Newton, with a line search.

    Its direction p solves (J^T H J + damping) p = -g approximately, by conjugate gradients, where J
    is the derivative of the traces with respect to the model, and H that of the gradient of the
    misfit with respect to the traces. The iteration is preconditioned by L-BFGS with the last
    steps, and uses products with a few shots, each of which counts as two simulations. Epochs may
    have different shots (docs/optimizers.md).
    """

    def __init__(
        self,
        initial: Model,
        limits: Limits,
        shards: Shards = WHOLE,
        *,
        step: Step,
        inner: Annotated[int, Field(gt=0, le=1000, description=INNER)] = 2,
        sample: Annotated[int, Field(gt=0, description=SAMPLE)] = 8,
        damping: Annotated[float, Field(ge=0.0, le=1e3, description=DAMPING)] = 0.0,
        memory: Annotated[int, Field(gt=0, le=1000, description=MEMORY)] = 5,
        search: Search = "backtracking",
    ) -> None:
        super().__init__(initial, limits, shards, step=step, memory=memory, search=search)
        self._inner, self._sample, self._damping = inner, sample, damping
        self._forcing = FORCING
        self._expected: Model | None = None

    def cost(self, shots: int) -> OptimizerCost:
        each = float(min(self._sample, shots))
        # The forcing term usually ends a long iteration after half of its products.
        products = each, each * max(min(2.0, self._inner), 0.5 * self._inner)
        return replace(super().cost(shots), tries=(1.0, 1.1), products=products, working=5 * 8)

    def state(self) -> Mapping[str, Any]:
        return {"forcing": self._forcing, **super().state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._forcing = state["forcing"]
        super().restore(state)

    def _direct(self, start: Start, evaluate: Evaluator) -> tuple[Model, float] | None:
        """Return a direction by preconditioned conjugate gradients, up to a negative curvature.

        These are algorithms 7.1 and 5.3 of Nocedal and Wright (2006). The preconditioner is that of
        the last steps (Morales and Nocedal 2000), in the cells that can follow the gradient. It
        also defines the norm of residuals. The result is None if the first curvature is negative.
        """
        self._expected = None
        downhill, precondition = start.downhill, evaluate.precondition
        left: Model[Tensor] = downhill.map(Tensor.double)
        solution, bent = left * 0.0, left * 0.0
        conjugate = self._solve(left, precondition).map(where_nonzero, downhill)
        first = squares = dot(left, conjugate)
        damping: float | None = None
        for _ in range(self._inner):
            if squares <= self._forcing**2 * first:
                break
            product = evaluate.product(start.model, conjugate, self._sample)
            product = product.map(where_nonzero, downhill)
            curvature, length = dot(conjugate, product), dot(conjugate, conjugate)
            if damping is None:
                damping = self._damping * max(curvature, 0.0) / length
            curvature += damping * length
            if not curvature > 0.0:
                break
            share = squares / curvature
            solution = solution.map(partial(go_along, by=share), conjugate)
            bent = bent.map(partial(go_along, by=share), product)
            left = left.map(partial(go_along, by=-share), product)
            left = left.map(partial(go_along, by=-share * damping), conjugate)
            steepest = self._solve(left, precondition).map(where_nonzero, downhill)
            before, squares = squares, dot(left, steepest)
            conjugate = steepest.map(partial(go_along, by=squares / before), conjugate)
        if dot(solution, downhill) == 0.0:
            return None
        self._expected = bent
        return self._limits.within(start.model, solution), 1.0

    def _learn(self, taken: Advance) -> None:
        """Set the forcing term, (2.1) of Eisenstat and Walker, by the error of the linear model."""
        super()._learn(taken)
        if self._expected is None:  # a step of steepest descent
            return
        length = dot(taken.s, taken.direction) / dot(taken.direction, taken.direction)
        off = taken.y.map(partial(go_along, by=-length), self._expected)
        forcing = sqrt(dot(off, off) / dot(taken.start.downhill, taken.start.downhill))
        least = self._forcing**GOLDEN
        self._forcing = min(MOST, max(forcing, least) if least > SAFEGUARD else forcing)

    def _forget(self) -> None:
        super()._forget()
        self._forcing, self._expected = FORCING, None


BALANCE = """Weight depths from the second step on by the curvature of the misfit in the first step.

Depths in which the curvature was small get larger weights."""
# Standard deviation, in cells, of the mean over depths in weights, and the share of the largest
# curvature that keeps weights finite.
CELLS, DEPTH_DAMPING = 8.0, 0.01


class LinearConjugateGradients:
    """Conjugate gradients on the normal equations, preconditioned (Hestenes and Stiefel 1952).

    The misfit must be quadratic in the model, such as least squares in a linear inversion. Each
    step ends at the minimum of its line, which follows from one product, as does the gradient
    there. If epochs have the same shots, nothing else is simulated. Otherwise, each epoch begins
    with the gradient of its shots, and the direction is only good if the shots are similar.

    The first step is along the preconditioned gradient, which is reverse-time migration. With
    `balance`, its product determines weights of depths for the later steps. Directions are then
    restarted with the second step, because conjugate gradients that do not begin along the gradient
    do not terminate at the minimum (Crowder and Wolfe 1972).
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
        # The direction of the last step, the change of the gradient, and its squared norm before
        self._before: tuple[Model, Model, float] | None = None

    def cost(self, shots: int) -> OptimizerCost:
        return OptimizerCost(products=(shots, shots), carries=True, remembered=2 * 8)

    def state(self) -> Mapping[str, Any]:
        state: dict[str, Any] = {"weights": dict(self._weights)}
        if self._before is not None:
            direction, y, norm = self._before
            state |= {"direction": direction.arrays, "y": y.arrays, "norm": norm}
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        self._before = None
        device = self._initial.any.device
        self._weights = {name: array.to(device) for name, array in state["weights"].items()}
        if "direction" in state:
            direction, y = (as_model(state[n], self._initial) for n in ("direction", "y"))
            self._before = direction, y, state["norm"]

    def step(
        self,
        model: Model,
        evaluate: Evaluator,
        progress: float = 0.0,  # noqa: ARG002
    ) -> tuple[Model, Evaluation]:
        """Return the next model, and the evaluation of this one with the preconditioned gradient.

        This is (5.53) of Nocedal and Wright, with the share of (5.44). The model is not changed if
        the data do not depend on the direction.
        """
        evaluation = evaluate(model)
        downhill = self._limits.within(model, evaluation.gradient * -1.0)
        steepest = self._limits.within(model, evaluate.precondition(downhill))
        if self._weights:
            weighed = {name: array * self._weights[name] for name, array in steepest.arrays.items()}
            steepest = Model(steepest.grid, weighed)
        seen = replace(evaluation, gradient=steepest * -1.0)
        direction: Model[Tensor] = steepest.map(Tensor.double)
        if self._before is not None:
            before, y, norm = self._before
            share = max(0.0, -dot(steepest, y) / norm)
            direction = direction.map(partial(go_along, by=share), before)
        self._before, slope = None, dot(downhill, direction)
        if not slope > 0.0:
            log.info("The gradient is zero wherever the model may change: the model is unchanged")
            return model, seen
        # The product of a quadratic is the same in all models, and cheapest in the initial one.
        product = evaluate.product(self._initial, direction)
        curvature = dot(direction, product)
        if not curvature > 0.0:
            log.info("The data do not depend on the direction of this step: the model is unchanged")
            return model, seen
        far = slope / curvature
        moved = model.map(partial(go_along, by=far), direction)
        found = self._limits.apply(moved)
        y = product.map(lambda array: array * far)
        if self._balances and not self._weights:
            spread = evaluate.precondition(product)
            self._weights = dict(steepest.map(weigh_depths, spread).arrays)
        else:
            norm = dot(downhill, steepest)
            self._before = direction, y.map(where_nonzero, downhill), norm
        is_within = all(torch.equal(found[name], moved[name]) for name in found.arrays)
        if is_within and not evaluation.penalty:
            misfit = evaluation.misfit - 0.5 * far * slope
            gradient = evaluation.gradient.map(partial(go_along, by=1.0), y)
            evaluate.remember(found, replace(evaluation, misfit=misfit, gradient=gradient))
        return found, seen


def weigh_depths(direction: Tensor, product: Tensor) -> Tensor:
    """Return factors of depths, (z, 1, ...), from a direction and its preconditioned product.

    They approximate the inverse of the diagonal of the Hessian by the ratio of an image and the
    image that is modelled and migrated again, in means over all cells of a depth and its neighbours
    (Claerbout and Nichols 1994; Rickett 2003), up to a common factor. A depth without curvature has
    the largest factor.
    """
    one, level = direction.double(), tuple(range(1, direction.ndim))
    squares, products = (
        scipy.ndimage.gaussian_filter1d(
            add_up(one * each.double(), level).cpu().numpy(), CELLS, mode="reflect"
        )
        for each in (direction, product)
    )
    curvature = np.divide(products, squares, out=np.zeros_like(squares), where=squares > 0.0)
    largest = DEPTH_DAMPING * max(curvature.max(), np.finfo(np.float64).tiny)
    weights = largest / (np.maximum(curvature, 0.0) + largest)
    return torch.from_numpy(weights.reshape(-1, *[1] * len(level))).to(direction)
