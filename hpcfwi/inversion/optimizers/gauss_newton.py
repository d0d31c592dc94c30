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
from hpcfwi.inversion.optimizers.descent import (
    Advance,
    Bend,
    Descent,
    Precondition,
    Search,
    Start,
    Step,
)
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Model
from hpcfwi.operators.vectors import dot, go_along

INNER = """Products of an epoch, at most.

Each simulates the batch as two evaluations do: the wave, and what a change of the model scatters,
with the way back."""
SAMPLE = """Shots of the batch that products simulate; all of them where not given.

A sample is as good as it has shots of all the survey (Byrd et al. 2011)."""
DAMPING = "Added to the curvature of every direction: a share of that along the gradient."

# Of the search "wolfe" (Nocedal and Wright 2006, after algorithm 3.5)
CURVATURE = 0.9
# Eisenstat and Walker (1996): of the first step, at most, and what keeps it from falling at once
FORCING, MOST, SAFEGUARD, GOLDEN = 0.5, 0.9, 0.1, (1.0 + sqrt(5.0)) / 2.0


class GaussNewton(Descent):
    """Truncated Gauss-Newton, with a line search.

    Its direction p solves (J^T H J + damping) p = -g by conjugate gradients, as far as it pays: of
    traces that change with the model by J, and a misfit whose gradient changes with them by H. An
    epoch evaluates the batch as `lbfgs` does, and each product counts as two evaluations more.
    It remembers next to nothing: epochs may have different shots (docs/optimizers.md).
    """

    tries = 1.1

    def __init__(
        self,
        _: Model,
        limits: Limits,
        *,
        step: Step,
        inner: Annotated[int, Field(gt=0, le=1000, description=INNER)] = 5,
        sample: Annotated[int | None, Field(gt=0, description=SAMPLE)] = None,
        damping: Annotated[float, Field(ge=0.0, le=1e3, description=DAMPING)] = 0.0,
        search: Search = "backtracking",
    ) -> None:
        super().__init__(limits, step, search, CURVATURE)
        self._inner, self._sample, self._damping = inner, sample, damping
        self._forcing = FORCING
        self._expected: Model | None = None

    def price(self, shots: int) -> Price:
        """What an epoch of so many shots asks for.

        The forcing term ends the iteration after half of its products, as a rule.
        """
        each = float(min(self._sample or shots, shots))
        return replace(super().price(shots), products=(each, each * max(1.0, 0.5 * self._inner)))

    def state(self) -> Mapping[str, Any]:
        """A copy of what the next step depends on beside the model, as a checkpoint keeps it."""
        return {"forcing": self._forcing}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self._forcing = state["forcing"]

    def _direct(
        self, start: Start, bend: Bend, precondition: Precondition
    ) -> tuple[Model, float] | None:
        """Algorithms 7.1 and 5.3 of Nocedal and Wright: conjugate gradients, preconditioned, up to
        a negative curvature.

        In the cells that can follow the gradient. None where the first curvature is negative. How
        large residuals are the preconditioner says: where it is zero nothing can make them smaller.
        """
        self._expected = None
        downhill = start.downhill
        left: Model[Tensor] = downhill.map(Tensor.double)
        solution, bent = left * 0.0, left * 0.0
        conjugate = precondition(left).map(_where_free, downhill)
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
            steepest = precondition(left).map(_where_free, downhill)
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
        if self._expected is None:  # straight downhill
            return
        length = dot(taken.change, taken.direction) / dot(taken.direction, taken.direction)
        off = taken.bend.map(partial(go_along, by=-length), self._expected)
        forcing = sqrt(dot(off, off) / dot(taken.start.downhill, taken.start.downhill))
        least = self._forcing**GOLDEN
        self._forcing = min(MOST, max(forcing, least) if least > SAFEGUARD else forcing)

    def _forget(self) -> None:
        self._forcing, self._expected = FORCING, None


def _where_free(product: Tensor, downhill: Tensor) -> Tensor:
    return torch.where(downhill == 0.0, 0.0, product)
