"""How far a stack's outputs are from what was observed: one number, and its gradient."""

from __future__ import annotations

from collections.abc import Callable
from math import fsum
from typing import Any, Self

import torch
from torch import Tensor

from hpcfwi.operators.members import pull_back
from hpcfwi.operators.stack import Stack
from hpcfwi.parallel.context import Context

Distance = Callable[[Tensor, Tensor], Tensor]
"""Of a member's output and what was observed of it: one number, differentiable."""


def half_squares(output: Tensor, observed: Tensor) -> Tensor:
    """Half the sum of the squared differences."""
    return 0.5 * (output - observed).abs().square().sum()


class Fidelity:
    """The distances between a stack's outputs and what was observed, added up or averaged.

    observed: something like the outputs, as the stack's own methods take it; distance: of one
    member; what comes of it is a sum or a mean as the stack's `reduce` says. Methods are
    collective. Results have the same bits on any number of ranks.
    """

    def __init__(self, stack: Stack, observed: Any, distance: Distance = half_squares) -> None:
        if stack.reduce is None:
            raise ValueError("the stack's reduce is None; expected 'sum' or 'mean'")
        self.stack, self.distance = stack, distance
        self._observed, self._observed_of = observed, stack.find(observed)

    def on(self, context: Context, **ways: Any) -> Self:
        """The same on these ranks; ways: as `Stack.on` has them."""
        return type(self)(self.stack.on(context, **ways), self._observed, self.distance)

    def fn(self, x: Any) -> float:
        """The distance of what is made of x."""
        mine = {number: self._measure(number, y) for number, y in self.stack.push(x).items()}
        every = [each for rank in self.stack.context.all_gather(mine) for each in rank.values()]
        return fsum(every) / (len(self.stack) if self.stack.reduce == "mean" else 1)

    def grad(self, x: Any) -> Any:
        """Its gradient."""
        return self.stack.pull(x, self._slope)

    def _measure(self, number: int, y: Tensor) -> float:
        return float(self.distance(y, self._observed_of(number).to(y)))

    def _slope(self, number: int, y: Tensor) -> Tensor:
        observed = self._observed_of(number).to(y)
        slope: Tensor = pull_back(
            lambda output: self.distance(output, observed), y, torch.ones((), dtype=y.real.dtype)
        )
        return slope
