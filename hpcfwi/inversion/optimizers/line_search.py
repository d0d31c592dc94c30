"""Line searches, L-BFGS and nonlinear conjugate gradients.

Algorithms and numbers of equations are those of Nocedal and Wright, Numerical Optimization (2006).
In this order: searches, which know nothing but a function of one number; the inverse of the
curvature that past steps have shown; the base class of methods that step along a descent direction
as far as a search finds best; the two methods.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isfinite, sqrt
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from hpcfwi.errors import StepFailure
from hpcfwi.inversion.objective import Evaluation
from hpcfwi.inversion.optimizers import Evaluate, Price
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Model
from hpcfwi.operators.vectors import check_like, dot, go_along
from hpcfwi.parallel.shards import WHOLE, Slab, Slabs


@dataclass(frozen=True)
class Point:
    """The value and the slope of a function at a distance along a line.

    A search does not stop at a value that is not finite. Callers may add fields in a subclass.
    """

    distance: float
    value: float
    slope: float


P = TypeVar("P", bound=Point)
Along = Callable[[float], P]

# Share of the decrease that the slope at the start promises (3.4)
DECREASE = 1e-4
# What a search may cost, in points
TRIES = 10
# A distance between two others stays away from both by this share of what is between them; a longer
# one is longer than the last by at least and at most these multiples of what the last was.
MARGIN = 0.1
GROWTH = (0.1, 4.0)


def backtrack(along: Along[P], start: P, first: float, tries: int = TRIES) -> P | None:
    """The first of shorter and shorter distances that brings a sufficient decrease (3.4).

    None where none of them does. The slope at the start is negative.
    """
    distance = first
    for _ in range(tries):
        here = along(distance)
        if _is_lower(start, here):
            return here
        distance = _inside(_parabola(start, here), MARGIN * distance, 0.5 * distance)
    return None


def wolfe(
    along: Along[P], start: P, first: float, curvature: float, tries: int = TRIES
) -> P | None:
    """A distance with the strong Wolfe conditions (3.7), by algorithms 3.5 and 3.6.

    curvature: share of the slope at the start that may be left there, more than `DECREASE` and less
    than 1. Where tries run out it is the lowest with a sufficient decrease; None where none has
    that. The slope at the start is negative.
    """
    before, distance = start, first
    for done in range(1, tries + 1):
        here = along(distance)
        if not _is_lower(start, here) or here.value >= before.value:
            return _zoom(along, start, (before, here), curvature, tries - done)
        if _is_flat(start, here, curvature):
            return here
        if here.slope >= 0.0:
            return _zoom(along, start, (here, before), curvature, tries - done)
        shortest, longest = (here.distance + g * (here.distance - before.distance) for g in GROWTH)
        before, distance = here, _inside(_cubic(before, here), shortest, longest)
    return before


def _zoom(along: Along[P], start: P, ends: tuple[P, P], curvature: float, tries: int) -> P | None:
    """Algorithm 3.6: the first end is the lowest point so far, and slopes down to the other."""
    low, high = ends
    for _ in range(tries):
        width = high.distance - low.distance
        margins = (low.distance + MARGIN * width, high.distance - MARGIN * width)
        here = along(_inside(_cubic(low, high), min(margins), max(margins)))
        if not _is_lower(start, here) or here.value >= low.value:
            high = here
            continue
        if _is_flat(start, here, curvature):
            return here
        if here.slope * width >= 0.0:
            high = low
        low = here
    return None if low is start else low


def _is_lower(start: Point, here: Point) -> bool:
    return here.value <= start.value + DECREASE * here.distance * start.slope


def _is_flat(start: Point, here: Point, curvature: float) -> bool:
    return abs(here.slope) <= -curvature * start.slope


def _inside(distance: float | None, shortest: float, longest: float) -> float:
    """The distance, or the nearest between the two; the middle where there is none."""
    if distance is None or not isfinite(distance):
        return 0.5 * (shortest + longest)
    return min(max(distance, shortest), longest)


def _parabola(start: Point, here: Point) -> float | None:
    """Return the minimum of the parabola of both values and the slope at the start (3.58)."""
    bend = here.value - start.value - start.slope * here.distance
    if not (isfinite(bend) and bend > 0.0):
        return None
    return -0.5 * start.slope * here.distance**2 / bend


def _cubic(a: Point, b: Point) -> float | None:
    """Return the minimum of the cubic of both values and both slopes (3.59), None without one."""
    width = b.distance - a.distance
    if width == 0.0:
        return None
    one = a.slope + b.slope - 3.0 * (a.value - b.value) / (a.distance - b.distance)
    radicand = one * one - a.slope * b.slope
    if not (isfinite(radicand) and radicand >= 0.0):
        return None
    two = sqrt(radicand) if width > 0.0 else -sqrt(radicand)
    below = b.slope - a.slope + 2.0 * two
    return None if below == 0.0 else b.distance - width * (b.slope + two - one) / below


Pair = tuple[dict[str, Tensor], dict[str, Tensor]]
"""The change of a model and that of its gradient: this rank's slabs, by parameter."""

MEMORY = "Steps that it remembers; each takes twice the memory of the model."

# Smallest cosine between the change of a model and that of its gradient from which to learn
COSINE = 1e-6


class Pairs:
    """The pairs of L-BFGS: the changes of the model and of its gradient in the last steps.

    initial: a model of the same form; memory: number of steps; slabs: in which the pairs are kept,
    and from which they are gathered one at a time.
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


STEP = """Largest change of a cell that the first step tries, in the parameter's unit.

Also of a step that begins anew, after a search that found nothing."""
SEARCH = """How far a step goes.

`"wolfe"`: until the misfit is lower and its slope along the line small. `"backtracking"`: until the
misfit is lower, which takes fewer simulations a step."""

Step = Annotated[float, Field(gt=0.0, le=1e9, description=STEP)]
Search = Annotated[Literal["wolfe", "backtracking"], Field(description=SEARCH)]

Bend = Callable[[Model, int | None], Model]
"""A function: the gradient's change in a direction, from so many shots of the batch, or all."""

Precondition = Callable[[Model], Model]
"""A function that preconditions gradients, see `Evaluate.precondition`."""

log = logging.getLogger("hpcfwi")


@dataclass(frozen=True)
class Trial(Point):
    """A point of a line, with the model there and its gradient."""

    model: Model
    gradient: Model


@dataclass(frozen=True)
class Start:
    """The start of a step.

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


# Of the search "wolfe" (Nocedal and Wright 2006, after algorithm 3.5)
LBFGS_CURVATURE = 0.9


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
        super().__init__(limits, step, search, LBFGS_CURVATURE)
        self._memory, self._pairs = memory, Pairs(initial, memory, slabs)

    def price(self, shots: int) -> Price:
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


# Of the search "wolfe" (Nocedal and Wright 2006, after algorithm 3.5)
NCG_CURVATURE = 0.1


@dataclass(frozen=True)
class _Before:
    """The quantities of the step before.

    bend: change of the gradient along it; norm: squared norm of the gradient at its start, by the
    preconditioner; decrease: that of the loss.
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
        super().__init__(limits, step, search, NCG_CURVATURE)
        self._initial = initial
        self._before: _Before | None = None

    def price(self, shots: int) -> Price:
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
