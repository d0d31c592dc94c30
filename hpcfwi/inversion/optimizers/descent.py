"""Steps along a line that goes down, as far as a search finds best: what some methods share.

A method says which direction, and remembers what it learns on the way. Searches are in `search`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from hpcfwi.errors import StepFailure
from hpcfwi.inversion.objective import Evaluation
from hpcfwi.inversion.optimizers import Evaluate, Price
from hpcfwi.inversion.optimizers.search import Point, backtrack, wolfe
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Model
from hpcfwi.operators.vectors import check_like, dot, go_along

STEP = """Largest change of a cell that the first step tries, in the parameter's unit.

Also of a step that begins anew, after a search that found nothing."""
SEARCH = """How far a step goes.

`"wolfe"`: until the misfit is lower and its slope along the line small. `"backtracking"`: until the
misfit is lower, which takes fewer simulations a step."""

Step = Annotated[float, Field(gt=0.0, le=1e9, description=STEP)]
Search = Annotated[Literal["wolfe", "backtracking"], Field(description=SEARCH)]

Bend = Callable[[Model, int | None], Model]
"""How the gradient changes in a direction, simulated with so many shots of the batch, or all."""

Precondition = Callable[[Model], Model]
"""What is asked for before steps are made of gradients, see `Evaluate.precondition`."""

log = logging.getLogger("hpcfwi")


@dataclass(frozen=True)
class Trial(Point):
    """A point of a line, with the model there and its gradient."""

    model: Model
    gradient: Model


@dataclass(frozen=True)
class Start:
    """Where a step begins.

    downhill: the gradient with its sign changed, zero in cells that cannot follow; steepest: that,
    preconditioned, and zero there again.
    """

    model: Model
    evaluation: Evaluation
    downhill: Model
    steepest: Model


@dataclass(frozen=True)
class Advance:
    """A step that was taken, all of it with the same shots.

    direction: of its line; decrease: of the loss; change: of the model; bend: of the gradient, in
    the cells that have changed.
    """

    start: Start
    direction: Model
    decrease: float
    change: Model
    bend: Model


class Descent(ABC):
    """An `Optimizer` that searches along a line, of which it evaluates a few models a step.

    curvature: of the search "wolfe". tries: models that a search evaluates as a rule.
    """

    tries: ClassVar[float]

    def __init__(self, limits: Limits, step: float, search: str, curvature: float) -> None:
        self._limits, self._step = limits, step
        self._search = partial(wolfe, curvature=curvature) if search == "wolfe" else backtrack
        self._has_told = False

    def price(self, shots: int) -> Price:  # noqa: ARG002
        """What an epoch of so many shots asks for."""
        return Price(tries=(1.0, self.tries), carries=True)

    @abstractmethod
    def state(self) -> Mapping[str, Any]:
        """A copy of what the next step depends on beside the model, as a checkpoint keeps it."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""

    @abstractmethod
    def _direct(
        self, start: Start, bend: Bend, precondition: Precondition
    ) -> tuple[Model, float] | None:
        """A direction and how far to try it first; None where nothing is known."""

    @abstractmethod
    def _learn(self, advance: Advance) -> None:
        """Remember what a step has shown."""

    @abstractmethod
    def _forget(self) -> None:
        """Remember nothing."""

    def step(
        self,
        model: Model,
        evaluate: Evaluate,
        progress: float = 0.0,  # noqa: ARG002
    ) -> tuple[Model, Evaluation]:
        """The next model, and the evaluation of this one, with the gradient preconditioned.

        Where the search finds nothing it begins anew, straight downhill. Where there is nothing
        either the model stays: the next shots may know better.
        """
        evaluation = evaluate(model)
        downhill = self._limits.within(model, evaluation.gradient * -1.0)
        spread = evaluate.precondition(downhill)
        seen = evaluation if spread is downhill else replace(evaluation, gradient=spread * -1.0)
        start = Start(model, evaluation, downhill, self._limits.within(model, spread))

        def bend(direction: Model, shots: int | None) -> Model:
            return evaluate.product(model, direction, shots)

        directed = self._direct(start, bend, evaluate.precondition)
        found = directed and self._follow(start, *directed, evaluate)
        if not found:
            self._forget()
            largest = max(float(array.abs().max()) for array in start.steepest.arrays.values())
            first = self._step / largest if largest else 0.0
            found = self._follow(start, start.steepest, first, evaluate)
        if found:
            return found, seen
        if not self._has_told:
            # Not a warning, which every rank would print
            log.info(
                "No model with a smaller misfit was found along the gradient: the model stays as "
                "it is for an epoch, and later ones may do so too without being told. It may be as "
                "good as single precision can tell; else try a smaller inversion.optimizer.step"
            )
            self._has_told = True
        return model, seen

    def _follow(
        self,
        start: Start,
        direction: Model,
        first: float,
        evaluate: Callable[[Model], Evaluation],
    ) -> Model | None:
        """The model that a search finds along a direction, from which is learnt; None for none."""
        model, evaluation = start.model, start.evaluation
        direction = self._limits.within(model, direction)
        slope = dot(evaluation.gradient, direction)
        here = Trial(0.0, evaluation.loss, slope, model, evaluation.gradient)
        if not slope < 0.0:
            return None

        def along(distance: float) -> Trial:
            nothing = Trial(distance, inf, 0.0, model, evaluation.gradient)
            try:
                trial = self._limits.apply(model.map(partial(go_along, by=distance), direction))
            except StepFailure:
                return nothing
            there = evaluate(trial)
            # The mean over other shots cannot be compared
            if there.failed != evaluation.failed:
                return nothing
            followed = self._limits.within(trial, direction)
            return Trial(distance, there.loss, dot(there.gradient, followed), trial, there.gradient)

        end: Trial | None = self._search(along, here, first)
        if end is None:
            return None
        change = end.model - model
        bend = (end.gradient - evaluation.gradient).map(_where_changed, change)
        self._learn(Advance(start, direction, here.value - end.value, change, bend))
        return end.model


def as_model(arrays: Mapping[str, Tensor], initial: Model) -> Model:
    """Return the arrays of a checkpoint as a model, on the grid and the device of another.

    Raises `ValueError` where the arrays have other names or shapes than those of that model.
    """
    check_like(arrays, initial.arrays)
    device = initial.any.device
    return Model(initial.grid, {name: array.to(device) for name, array in arrays.items()})


def _where_changed(bend: Tensor, change: Tensor) -> Tensor:
    return torch.where(change == 0.0, 0.0, bend)
