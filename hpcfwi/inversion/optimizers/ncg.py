"""Nonlinear conjugate gradients: each direction downhill, and a share of the one before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hpcfwi.inversion.optimizers import Price
from hpcfwi.inversion.optimizers.descent import (
    Advance,
    Bend,
    Descent,
    Precondition,
    Search,
    Start,
    Step,
    as_model,
)
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Model
from hpcfwi.operators.vectors import dot, go_along

# Of the search "wolfe" (Nocedal and Wright 2006, after algorithm 3.5)
CURVATURE = 0.1


@dataclass(frozen=True)
class _Before:
    """What is remembered of a step.

    bend: of the gradient along it; norm: squared, of the gradient at its start, by the
    preconditioner; decrease: of the loss.
    """

    direction: Model
    bend: Model
    norm: float
    decrease: float


class ConjugateGradients(Descent):
    """Nonlinear conjugate gradients (Polak and Ribière 1969, PR+), with a line search.

    It remembers one step, in two arrays of the model's size, and evaluates the batch one to three
    times an epoch, or more often. It is at its best where all epochs have the same shots, `batch`
    as large as the survey, and with the search `"wolfe"`: its directions are as good as its
    searches.
    """

    tries = 2.0

    def __init__(
        self, initial: Model, limits: Limits, *, step: Step, search: Search = "wolfe"
    ) -> None:
        super().__init__(limits, step, search, CURVATURE)
        self._initial = initial
        self._before: _Before | None = None

    def price(self, shots: int) -> Price:
        """What an epoch of so many shots asks for."""
        return replace(super().price(shots), remembered=2 * 4, working=6 * 4)

    def state(self) -> Mapping[str, Any]:
        """A copy of what the next step depends on beside the model, as a checkpoint keeps it."""
        before = self._before
        if before is None:
            return {}
        return {
            "direction": dict(before.direction.arrays),
            "bend": dict(before.bend.arrays),
            "norm": before.norm,
            "decrease": before.decrease,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self._before = None
        if state:
            direction, bend = (as_model(state[n], self._initial) for n in ("direction", "bend"))
            self._before = _Before(direction, bend, state["norm"], state["decrease"])

    def _direct(self, start: Start, *_: Bend | Precondition) -> tuple[Model, float] | None:
        """(5.44) of Nocedal and Wright, preconditioned, and the first distance by (3.60).

        How the gradient has changed is that of the last step's own shots, whichever this one has.
        """
        before = self._before
        if before is None:
            return None
        share = max(0.0, -dot(start.steepest, before.bend) / before.norm)
        direction = start.steepest.map(partial(go_along, by=share), before.direction)
        slope = -dot(start.downhill, direction)
        return direction, -2.0 * before.decrease / slope if slope else 0.0

    def _learn(self, taken: Advance) -> None:
        norm = dot(taken.start.downhill, taken.start.steepest)
        self._before = _Before(taken.direction, taken.bend, norm, taken.decrease)

    def _forget(self) -> None:
        self._before = None
