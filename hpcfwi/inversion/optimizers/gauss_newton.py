"""Truncated Gauss-Newton: directions from the curvature of the misfit itself, by simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import sqrt
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from hpcfwi.inversion.optimizers import Price
from hpcfwi.inversion.optimizers.line_search import (
    MEMORY,
    Advance,
    Bend,
    Descent,
    Pairs,
    Precondition,
    Search,
    Start,
    Step,
)
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Model
from hpcfwi.operators.vectors import dot, go_along
from hpcfwi.parallel.shards import WHOLE, Slabs

INNER = """Products of an epoch, at most.

Each simulates its shots as two evaluations do: the wave, and what a change of the model scatters,
with the way back."""
SAMPLE = """Shots of the batch that products simulate; all of them where it has no more.

A sample is as good as it has shots of all the survey (Byrd et al. 2011)."""
DAMPING = "Added to the curvature of every direction: a share of that along the epoch's first."

# Of the search "wolfe" (Nocedal and Wright 2006, after algorithm 3.5)
CURVATURE = 0.9
# Eisenstat and Walker (1996): of the first step, at most, and what keeps it from falling at once
FORCING, MOST, SAFEGUARD, GOLDEN = 0.5, 0.9, 0.1, (1.0 + sqrt(5.0)) / 2.0


class GaussNewton(Descent):
    """Truncated Gauss-Newton, with a line search.

    Its direction p solves (J^T H J + damping) p = -g by conjugate gradients, as far as it pays: of
    traces that change with the model by J, and a misfit whose gradient changes with them by H. They
    begin with what `lbfgs` would do, which remembers the last steps, and go on with products of a
    few shots, of which each counts as two simulations. Epochs may have different shots
    (docs/optimizers.md).
    """

    tries = 1.1

    def __init__(
        self,
        initial: Model,
        limits: Limits,
        slabs: Slabs = WHOLE,
        *,
        step: Step,
        inner: Annotated[int, Field(gt=0, le=1000, description=INNER)] = 2,
        sample: Annotated[int, Field(gt=0, description=SAMPLE)] = 8,
        damping: Annotated[float, Field(ge=0.0, le=1e3, description=DAMPING)] = 0.0,
        memory: Annotated[int, Field(gt=0, le=1000, description=MEMORY)] = 5,
        search: Search = "backtracking",
    ) -> None:
        super().__init__(limits, step, search, CURVATURE)
        self._inner, self._sample, self._damping = inner, sample, damping
        self._memory, self._pairs = memory, Pairs(initial, memory, slabs)
        self._forcing = FORCING
        self._expected: Model | None = None

    def price(self, shots: int) -> Price:
        """Return the cost of an epoch of so many shots.

        The forcing term ends a long iteration after half of its products, as a rule.
        """
        each = float(min(self._sample, shots))
        products = each, each * max(min(2.0, self._inner), 0.5 * self._inner)
        price = super().price(shots)
        return replace(price, products=products, remembered=2 * 4 * self._memory, working=5 * 8)

    def state(self) -> Mapping[str, Any]:
        """A copy of what the next step depends on beside the model, of which there may be slabs."""
        return {"forcing": self._forcing, "pairs": self._pairs.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self._forcing = state["forcing"]
        self._pairs.restore(state.get("pairs", []))  # older checkpoints have none

    def _direct(
        self, start: Start, bend: Bend, precondition: Precondition
    ) -> tuple[Model, float] | None:
        """Return a direction by preconditioned conjugate gradients, up to a negative curvature.

        Algorithms 7.1 and 5.3 of Nocedal and Wright (2006).

        By what the last steps have shown (Morales and Nocedal 2000), in the cells that can follow
        the gradient. None where the first curvature is negative. How large residuals are the
        preconditioner says: where it is zero nothing can make them smaller.
        """
        self._expected = None
        downhill = start.downhill
        left: Model[Tensor] = downhill.map(Tensor.double)
        solution, bent = left * 0.0, left * 0.0
        conjugate = self._pairs.solve(left, precondition).map(_where_free, downhill)
        first = squares = dot(left, conjugate)
        damping: float | None = None
        for _ in range(self._inner):
            if squares <= self._forcing**2 * first:
                break
            product = bend(conjugate, self._sample).map(_where_free, downhill)
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
            steepest = self._pairs.solve(left, precondition).map(_where_free, downhill)
            before, squares = squares, dot(left, steepest)
            conjugate = steepest.map(partial(go_along, by=squares / before), conjugate)
        if dot(solution, downhill) == 0.0:
            return None
        self._expected = bent
        return solution, 1.0

    def _learn(self, taken: Advance) -> None:
        """(2.1) of Eisenstat and Walker: how exactly to solve follows from how far curvature held.

        The gradient's change is that of the last step's own shots, whichever the next one has.
        """
        self._pairs.learn(taken)
        if self._expected is None:  # straight downhill
            return
        length = dot(taken.change, taken.direction) / dot(taken.direction, taken.direction)
        off = taken.bend.map(partial(go_along, by=-length), self._expected)
        forcing = sqrt(dot(off, off) / dot(taken.start.downhill, taken.start.downhill))
        least = self._forcing**GOLDEN
        self._forcing = min(MOST, max(forcing, least) if least > SAFEGUARD else forcing)

    def _forget(self) -> None:
        self._forcing, self._expected = FORCING, None
        self._pairs.forget()


def _where_free(product: Tensor, downhill: Tensor) -> Tensor:
    return torch.where(downhill == 0.0, 0.0, product)
