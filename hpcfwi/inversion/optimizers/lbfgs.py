"""L-BFGS: steps of Newton's kind, of what the last steps have shown of the curvature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

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
from hpcfwi.inversion.optimizers.pairs import MEMORY, Pairs
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Model
from hpcfwi.parallel.shards import WHOLE, Slabs

# Of the search "wolfe" (Nocedal and Wright 2006, after algorithm 3.5)
CURVATURE = 0.9


class LBFGS(Descent):
    """L-BFGS (Nocedal 1980), with a line search.

    It evaluates the batch once an epoch, or more often, and once more where its shots are others
    than those before. It is at its best where all epochs have the same: `batch` as large as the
    survey.
    """

    tries = 1.2

    def __init__(
        self,
        initial: Model,
        limits: Limits,
        slabs: Slabs = WHOLE,
        *,
        step: Step,
        memory: Annotated[int, Field(gt=0, le=1000, description=MEMORY)] = 5,
        search: Search = "wolfe",
    ) -> None:
        super().__init__(limits, step, search, CURVATURE)
        self._memory, self._pairs = memory, Pairs(initial, memory, slabs)

    def price(self, shots: int) -> Price:
        """What an epoch of so many shots asks for."""
        return replace(super().price(shots), remembered=2 * 4 * self._memory)

    def state(self) -> Mapping[str, Any]:
        """A copy of what the next step depends on beside the model, of which there may be slabs."""
        return {"pairs": self._pairs.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self._pairs.restore(state["pairs"])

    def _direct(
        self, start: Start, _: Bend, precondition: Precondition
    ) -> tuple[Model, float] | None:
        if not self._pairs:
            return None
        return self._pairs.solve(start.downhill, precondition), 1.0

    def _learn(self, taken: Advance) -> None:
        self._pairs.learn(taken)

    def _forget(self) -> None:
        self._pairs.forget()
