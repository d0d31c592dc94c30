"""Line searches, L-BFGS and nonlinear conjugate gradients.

Algorithms and numbers of equations are those of Nocedal and Wright, Numerical Optimization (2006).
The module has, in this order, searches along a function of one variable, the base class of methods
that search along a descent direction, and the two methods.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isfinite, sqrt
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from hpcfwi.errors import StepFailure
from hpcfwi.inversion.objective import Evaluation
from hpcfwi.inversion.optimizers import Evaluator, OptimizerCost
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Model
from hpcfwi.operators.vectors import check_like, dot, go_along
from hpcfwi.parallel.shards import WHOLE, Shard, Shards

log = logging.getLogger("hpcfwi")


@dataclass(frozen=True)
class Point:
    """The value and the slope of a function at a distance along a line.

    A search never ends at a value that is not finite. Callers may add fields in a subclass.
    """

    distance: float
    value: float
    slope: float


P = TypeVar("P", bound=Point)
Along = Callable[[float], P]

# Required share of the decrease that the slope at the start predicts (3.4).
DECREASE = 1e-4
# Largest number of points of a search.
TRIES = 10
# A point between two others is at least this share of their distance away from both. An
# extrapolation exceeds the last step by at least and at most these multiples of it.
MARGIN = 0.1
GROWTH = (0.1, 4.0)


def backtrack(along: Along[P], start: P, first: float, tries: int = TRIES) -> P | None:
    """Return the first point, at decreasing distances, with a sufficient decrease (3.4).

    It is None if there is no such point. The slope at the start must be negative.
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
    """Return a point that satisfies the strong Wolfe conditions (3.7), by algorithms 3.5 and 3.6.

    curvature: largest slope there, as a share of the slope at the start, between `DECREASE` and 1.
    If the tries are used up, the result is the lowest point with a sufficient decrease, or None.
    The slope at the start must be negative.
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
    """Return a point between two ends as `wolfe` does, by algorithm 3.6.

    The first end is the lowest point so far, and the function decreases from it to the other end.
    """
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
    """Return a distance limited to these two, or their middle if it is None or not finite."""
    if distance is None or not isfinite(distance):
        return 0.5 * (shortest + longest)
    return min(max(distance, shortest), longest)


def _parabola(start: Point, here: Point) -> float | None:
    """Return the minimum of the parabola of both values and the slope at the start (3.58)."""
    curvature = here.value - start.value - start.slope * here.distance
    if not (isfinite(curvature) and curvature > 0.0):
        return None
    return -0.5 * start.slope * here.distance**2 / curvature


def _cubic(a: Point, b: Point) -> float | None:
    """Return the minimum of the cubic of both values and slopes (3.59), or None without one."""
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


Part = Mapping[str, Tensor | Shard]
"""The change of a model or of its gradient, by parameter, in the form of `Shards.wrap`."""

MEMORY = "Number of steps that are remembered; each takes twice the memory of the model."

# Pairs with a smaller cosine between the change of the model and that of the gradient are omitted.
COSINE = 1e-6


STEP = """Largest change of a cell in the first trial step, in the parameter's unit.

It is used again after a search that found nothing."""
SEARCH = """Condition under which a step is accepted.

`"wolfe"`: the misfit is lower and its slope along the line is small. `"backtracking"`: the misfit
is lower, which takes fewer simulations per step."""

Step = Annotated[float, Field(gt=0.0, le=1e9, description=STEP)]
Search = Annotated[Literal["wolfe", "backtracking"], Field(description=SEARCH)]

Precondition = Callable[[Model], Model]
"""A function that preconditions gradients, see `Evaluator.precondition`."""


@dataclass(frozen=True)
class Trial(Point):
    """A point of a line, with the model there and its gradient."""

    model: Model
    gradient: Model


@dataclass(frozen=True)
class Start:
    """The start of a step.

    downhill: the negative gradient, zero in cells that would leave the limits; steepest: the
    preconditioned `downhill`, again zero in cells that would leave the limits.
    """

    model: Model
    evaluation: Evaluation
    downhill: Model
    steepest: Model


@dataclass(frozen=True)
class Advance:
    """A step that was taken; both gradients are those of the same shots.

    direction: of the line; decrease: of the loss; s: change of the model; y: change of the
    gradient, in the cells that have changed.
    """

    start: Start
    direction: Model
    decrease: float
    s: Model
    y: Model


class Descent(ABC):
    """An `Optimizer` whose steps are searches along a line, with a few evaluated models each.

    curvature: that of `wolfe`, for the search "wolfe".
    """

    def __init__(self, limits: Limits, step: float, search: str, curvature: float) -> None:
        self._limits, self._step = limits, step
        self._search = partial(wolfe, curvature=curvature) if search == "wolfe" else backtrack
        self._has_told = False

    @abstractmethod
    def _direct(self, start: Start, evaluate: Evaluator) -> tuple[Model, float] | None:
        """Return a direction and the first distance to try, or None for steepest descent.

        The direction is zero in cells that would leave the limits.
        """

    @abstractmethod
    def _learn(self, advance: Advance) -> None:
        """Store the information of a step that later directions need, whatever their shots."""

    @abstractmethod
    def _forget(self) -> None:
        """Remove the information of all steps."""

    def step(
        self,
        model: Model,
        evaluate: Evaluator,
        progress: float = 0.0,  # noqa: ARG002
    ) -> tuple[Model, Evaluation]:
        """Return the next model, and the evaluation of this one with the preconditioned gradient.

        If a search finds no lower point, the method is restarted along the steepest descent. If
        that search finds none either, the model is unchanged; epochs with other shots may succeed.
        """
        evaluation = evaluate(model)
        downhill = self._limits.within(model, evaluation.gradient * -1.0)
        spread = evaluate.precondition(downhill)
        seen = evaluation if spread is downhill else replace(evaluation, gradient=spread * -1.0)
        start = Start(model, evaluation, downhill, self._limits.within(model, spread))
        directed = self._direct(start, evaluate)
        found = directed and self._follow(start, *directed, evaluate)
        if not found:
            self._forget()
            largest = max(float(array.abs().max()) for array in start.steepest.arrays.values())
            first = self._step / largest if largest else 0.0
            found = self._follow(start, start.steepest, first, evaluate)
        if found:
            return found, seen
        if not self._has_told:
            # This is not a warning, because every rank would print it.
            log.info(
                "No model with a smaller misfit was found along the gradient: the model does not "
                "change in this epoch (later epochs of this kind are not reported). It may be as "
                "good as single precision allows; otherwise try a smaller inversion.optimizer.step"
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
        """Return the model that a search along a direction finds, or None, and learn from it.

        direction: zero in cells that would leave the limits.
        """
        model, evaluation = start.model, start.evaluation
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
            # Misfits of different shots cannot be compared.
            if there.failed != evaluation.failed:
                return nothing
            followed = self._limits.within(trial, direction)
            return Trial(distance, there.loss, dot(there.gradient, followed), trial, there.gradient)

        end: Trial | None = self._search(along, here, first)
        if end is None:
            return None
        s = end.model - model
        y = (end.gradient - evaluation.gradient).map(where_nonzero, s)
        self._learn(Advance(start, direction, here.value - end.value, s, y))
        return end.model


def as_model(arrays: Mapping[str, Tensor], initial: Model) -> Model:
    """Return the arrays of a checkpoint as a model, on the grid and the device of another.

    Raises `ValueError` if names or shapes of the arrays differ from those of that model.
    """
    check_like(arrays, initial.arrays)
    device = initial.any.device
    return Model(initial.grid, {name: array.to(device) for name, array in arrays.items()})


def where_nonzero(values: Tensor, other: Tensor) -> Tensor:
    """Return the values in the cells in which another array is not 0, and 0 elsewhere."""
    return torch.where(other == 0.0, 0.0, values)


# Curvature conditions of the search "wolfe" (Nocedal and Wright 2006, after algorithm 3.5).
LBFGS_CURVATURE, NCG_CURVATURE = 0.9, 0.1


class LBFGS(Descent):
    """L-BFGS (Nocedal 1980), with a line search.

    It evaluates the batch at least once per epoch, and once more if the shots differ from those of
    the last epoch. It works best if all epochs have the same shots, with `batch` as large as the
    survey.
    """

    def __init__(
        self,
        initial: Model,
        limits: Limits,
        shards: Shards = WHOLE,
        *,
        step: Step,
        memory: Annotated[int, Field(gt=0, le=1000, description=MEMORY)] = 5,
        search: Search = "wolfe",
    ) -> None:
        super().__init__(limits, step, search, LBFGS_CURVATURE)
        self._initial, self._memory, self._shards = initial, memory, shards
        # The changes (s, y) of the model and of its gradient in the last steps
        self._pairs: list[tuple[Part, Part]] = []

    def cost(self, shots: int) -> OptimizerCost:  # noqa: ARG002
        # The direction of steepest descent, twice, that of the search, and the trial model
        return OptimizerCost(
            tries=(1.0, 1.2),
            carries=True,
            remembered=2 * 4 * self._memory,
            working=3 * 4 + 8,
            shared=2 * 4 * (self._memory - 1),
        )

    def state(self) -> Mapping[str, Any]:
        return {"pairs": self._pairs}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._pairs = [(self._take(s), self._take(y)) for s, y in state["pairs"]]

    def _direct(self, start: Start, evaluate: Evaluator) -> tuple[Model, float] | None:
        if not self._pairs:
            return None
        found = self._solve(start.downhill, evaluate.precondition)
        return self._limits.within(start.model, found), 1.0

    def _learn(self, taken: Advance) -> None:
        """Add the pair of a step if its curvature is positive, and drop the oldest if necessary."""
        s, y = taken.s, taken.y
        if dot(s, y) > COSINE * (dot(s, s) * dot(y, y)) ** 0.5:
            pair = self._shards.divide((s.arrays, y.arrays))
            self._pairs = [*self._pairs, pair][-self._memory :]

    def _forget(self) -> None:
        self._pairs = []

    def _solve(self, vector: Model, precondition: Precondition) -> Model:
        """Return the inverse Hessian times a vector, in double precision; collective.

        This is algorithm 7.4, which begins with the preconditioner, scaled by
        the last pair if there is one.
        """
        found: Model[Tensor] = vector.map(Tensor.double)
        if not self._pairs:
            return precondition(found)
        shares = []
        for s, y in map(self._gather, reversed(self._pairs)):
            share = dot(s, found) / dot(s, y)
            found = found.map(partial(go_along, by=-share), y)
            shares.append(share)
        s, y = self._gather(self._pairs[-1])
        scale = dot(s, y) / dot(y, precondition(y))
        found = precondition(found) * scale
        pairs = map(self._gather, self._pairs)
        for (s, y), share in zip(pairs, reversed(shares), strict=True):
            back = dot(y, found) / dot(s, y)
            found = found.map(partial(go_along, by=share - back), s)
        return found

    def _gather(self, pair: tuple[Part, Part]) -> tuple[Model, Model]:
        """Return a pair of whole models; collective."""
        initial, shards = self._initial, self._shards

        def gather(name: str, kept: Tensor | Shard) -> Tensor:
            return shards.all_gather(shards.unwrap(kept), initial[name].shape)

        s, y = (Model(initial.grid, {n: gather(n, a) for n, a in part.items()}) for part in pair)
        return s, y

    def _take(self, kept: Part) -> Part:
        initial, shards = self._initial, self._shards
        taken = {name: shards.unwrap(array) for name, array in kept.items()}
        check_like(taken, {name: shards.cut(array) for name, array in initial.arrays.items()})
        device = initial.any.device
        return {n: shards.wrap(a.to(device), initial[n].shape) for n, a in taken.items()}


class ConjugateGradients(Descent):
    """Nonlinear conjugate gradients (Polak and Ribière 1969, PR+), with a line search.

    It remembers one step, in two arrays of the model's size, and evaluates the batch one to three
    times per epoch, or more often. It works best if all epochs have the same shots, with `batch` as
    large as the survey, and with the search `"wolfe"`, because good directions need accurate
    searches.
    """

    def __init__(
        self, initial: Model, limits: Limits, *, step: Step, search: Search = "wolfe"
    ) -> None:
        super().__init__(limits, step, search, NCG_CURVATURE)
        self._initial = initial
        # The direction of the last step, the change of the gradient, the squared norm of the
        # gradient at the start (in the preconditioner's scalar product), the decrease of the loss
        self._before: tuple[Model, Model, float, float] | None = None

    def cost(self, shots: int) -> OptimizerCost:  # noqa: ARG002
        return OptimizerCost(tries=(1.0, 2.0), carries=True, remembered=2 * 4, working=6 * 4)

    def state(self) -> Mapping[str, Any]:
        if self._before is None:
            return {}
        direction, y, norm, decrease = self._before
        return {"direction": direction.arrays, "y": y.arrays, "norm": norm, "decrease": decrease}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._before = None
        if state:
            direction, y = (as_model(state[n], self._initial) for n in ("direction", "y"))
            self._before = direction, y, state["norm"], state["decrease"]

    def _direct(self, start: Start, _: Evaluator) -> tuple[Model, float] | None:
        """Return the direction of (5.44), preconditioned, and the first distance of (3.60)."""
        if self._before is None:
            return None
        before, y, norm, decrease = self._before
        share = max(0.0, -dot(start.steepest, y) / norm)
        direction = start.steepest.map(partial(go_along, by=share), before)
        slope = -dot(start.downhill, direction)
        first = -2.0 * decrease / slope if slope else 0.0
        return self._limits.within(start.model, direction), first

    def _learn(self, taken: Advance) -> None:
        norm = dot(taken.start.downhill, taken.start.steepest)
        self._before = taken.direction, taken.y, norm, taken.decrease

    def _forget(self) -> None:
        self._before = None
