"""L-BFGS: steps of Newton's kind, of what the last steps have shown of the curvature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

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
from hpcfwi.parallel.slabs import WHOLE, Slab, Slabs

Pair = tuple[dict[str, Tensor], dict[str, Tensor]]
"""The change of a model and that of its gradient: this rank's slabs, by parameter."""

MEMORY = "Steps that it remembers; each takes twice the memory of the model."

# Of the search "wolfe" (Nocedal and Wright 2006, after algorithm 3.5)
CURVATURE = 0.9
# Smallest cosine between the change of a model and that of its gradient from which to learn
COSINE = 1e-6


class LBFGS(Descent):
    """L-BFGS (Nocedal 1980), with a line search.

    It evaluates the batch once an epoch, or more often, and once more where its shots are others
    than those before. It is at its best where all epochs have the same: `batch` as large as the
    survey. Its pairs may be kept in slabs; they are put together one at a time as they are used.
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
        self._initial, self._slabs, self._memory = initial, slabs, memory
        self._pairs: list[Pair] = []

    def price(self, shots: int) -> Price:
        """What an epoch of so many shots asks for."""
        return replace(super().price(shots), remembered=2 * 4 * self._memory)

    def state(self) -> Mapping[str, Any]:
        """A copy of what the next step depends on beside the model, of which there may be slabs."""
        return {"pairs": [tuple(map(self._keep, pair)) for pair in self._pairs]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self._pairs = [(self._take(change), self._take(bend)) for change, bend in state["pairs"]]

    def _direct(
        self, start: Start, _: Bend, precondition: Precondition
    ) -> tuple[Model, float] | None:
        """Algorithm 7.4 of Nocedal and Wright, which begins with the preconditioner, scaled."""
        if not self._pairs:
            return None
        direction: Model[Tensor] = start.downhill.map(Tensor.double)
        shares = []
        for change, bend in map(self._gather, reversed(self._pairs)):
            share = dot(change, direction) / dot(change, bend)
            direction = direction.map(partial(go_along, by=-share), bend)
            shares.append(share)
        change, bend = self._gather(self._pairs[-1])
        scale = dot(change, bend) / dot(bend, precondition(bend))
        direction = precondition(direction) * scale
        pairs = map(self._gather, self._pairs)
        for (change, bend), share in zip(pairs, reversed(shares), strict=True):
            back = dot(bend, direction) / dot(change, bend)
            direction = direction.map(partial(go_along, by=share - back), change)
        return direction, 1.0

    def _learn(self, taken: Advance) -> None:
        change, bend = taken.change, taken.bend
        if dot(change, bend) > COSINE * (dot(change, change) * dot(bend, bend)) ** 0.5:
            pair = self._cut(change), self._cut(bend)
            self._pairs = [*self._pairs, pair][-self._memory :]

    def _forget(self) -> None:
        self._pairs = []

    def _cut(self, whole: Model) -> dict[str, Tensor]:
        return {name: self._slabs.cut(array).clone() for name, array in whole.arrays.items()}

    def _gather(self, pair: Pair) -> tuple[Model, Model]:
        """Whole; collective."""
        initial = self._initial
        change, bend = (
            Model(
                initial.grid,
                {n: self._slabs.gather(slab, initial[n].shape) for n, slab in part.items()},
            )
            for part in pair
        )
        return change, bend

    def _keep(self, part: Mapping[str, Tensor]) -> dict[str, Tensor | Slab]:
        return {
            name: self._slabs.keep(slab, tuple(self._initial[name].shape))
            for name, slab in part.items()
        }

    def _take(self, kept: Mapping[str, Tensor | Slab]) -> dict[str, Tensor]:
        device = self._initial.any.device
        return {name: self._slabs.take(slab).to(device) for name, slab in kept.items()}
