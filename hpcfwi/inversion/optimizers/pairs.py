"""What steps have shown of the curvature: an inverse of it, of L-BFGS's kind."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from hpcfwi.inversion.optimizers.descent import Advance, Precondition
from hpcfwi.model import Model
from hpcfwi.operators.vectors import check_like, dot, go_along
from hpcfwi.parallel.shards import WHOLE, Slab, Slabs

Pair = tuple[dict[str, Tensor], dict[str, Tensor]]
"""The change of a model and that of its gradient: this rank's slabs, by parameter."""

MEMORY = "Steps that it remembers; each takes twice the memory of the model."

# Smallest cosine between the change of a model and that of its gradient from which to learn
COSINE = 1e-6


class Pairs:
    """Of the last steps, the change of the model and that of its gradient.

    initial: a model like those that change; memory: of so many steps; slabs: in which they are
    kept, and from which they are put together one at a time as they are used.
    """

    def __init__(self, initial: Model, memory: int, slabs: Slabs = WHOLE) -> None:
        self._initial, self._memory, self._slabs = initial, memory, slabs
        self._pairs: list[Pair] = []

    def __len__(self) -> int:
        return len(self._pairs)

    def solve(self, vector: Model, precondition: Precondition) -> Model:
        """The inverse of the curvature, times a vector, in double precision; collective.

        Algorithm 7.4 of Nocedal and Wright, which begins with the preconditioner, scaled by what
        the last step has shown, or as it is where there was none.
        """
        found: Model[Tensor] = vector.map(Tensor.double)
        if not self._pairs:
            return precondition(found)
        shares = []
        for change, bend in map(self._gather, reversed(self._pairs)):
            share = dot(change, found) / dot(change, bend)
            found = found.map(partial(go_along, by=-share), bend)
            shares.append(share)
        change, bend = self._gather(self._pairs[-1])
        scale = dot(change, bend) / dot(bend, precondition(bend))
        found = precondition(found) * scale
        pairs = map(self._gather, self._pairs)
        for (change, bend), share in zip(pairs, reversed(shares), strict=True):
            back = dot(bend, found) / dot(change, bend)
            found = found.map(partial(go_along, by=share - back), change)
        return found

    def learn(self, taken: Advance) -> None:
        """Remember a step, where its curvature is positive, in place of the oldest."""
        change, bend = taken.change, taken.bend
        if dot(change, bend) > COSINE * (dot(change, change) * dot(bend, bend)) ** 0.5:
            pair = self._cut(change), self._cut(bend)
            self._pairs = [*self._pairs, pair][-self._memory :]

    def forget(self) -> None:
        """Remember nothing."""
        self._pairs = []

    def state(self) -> list[tuple[Mapping[str, Tensor | Slab], ...]]:
        """A copy, of which there may be slabs."""
        return [tuple(map(self._keep, pair)) for pair in self._pairs]

    def restore(self, state: list[Any]) -> None:
        """Go on from a `state`."""
        self._pairs = [(self._take(change), self._take(bend)) for change, bend in state]

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
        initial = self._initial
        taken = {name: self._slabs.take(slab) for name, slab in kept.items()}
        check_like(taken, {name: self._slabs.cut(array) for name, array in initial.arrays.items()})
        return {name: array.to(initial.any.device) for name, array in taken.items()}
