"""Optimizers: from a model to a better one. `registry.OPTIMIZERS` names them.

An optimizer is the same on every rank: it is given the same numbers, and so takes the same steps.
It asks for the misfit and gradient of models, and for derivatives of the gradient, as often as it
likes; the shots are the same each time. `parameters` keeps models within their limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hpcfwi.inversion.objective import Evaluation
from hpcfwi.model import Model


class Evaluate(Protocol):
    """The evaluation of models, for optimizers; collective."""

    def __call__(self, model: Model, /) -> Evaluation:
        """Misfit and gradient of a model."""

    def product(self, model: Model, direction: Model, /, shots: int | None = None) -> Model:
        """Return the change of a model's gradient in a direction, to first order in the waves.

        shots: number of shots of the batch, by default all.
        """

    def remember(self, model: Model, evaluation: Evaluation, /) -> None:
        """Take for known what a model would give, so that it need not be simulated."""

    def precondition(self, gradient: Model, /) -> Model:
        """A gradient of the epoch's first model, more like a step, where that is asked for.

        Linear, symmetric and never negative; the gradient itself where nothing is asked for.
        """


@dataclass(frozen=True)
class Price:
    """The cost of an epoch, in addition to the evaluation of the model with which it begins.

    tries: evaluations of other models with all shots of the epoch, at least and as a rule;
    products: shots of its products, likewise; carries: the last of these models is as a rule the
    first of the next epoch, which is not simulated again if its shots are the same; remembered:
    bytes for each value of the model from one epoch to the next; working: bytes that a step takes
    in addition, as measured.
    """

    tries: tuple[float, float] = (0.0, 0.0)
    products: tuple[float, float] = (0.0, 0.0)
    carries: bool = False
    remembered: int = 0
    working: int = 0


class Optimizer(Protocol):
    """Made of the model that it begins with, the limits, and keys of its own.

    One that keeps its state in slabs, where that is asked for, takes `slabs` after the limits.
    """

    def step(
        self, model: Model, evaluate: Evaluate, progress: float = 0.0
    ) -> tuple[Model, Evaluation]:
        """The next model, and the evaluation of this one.

        progress: how much of the stage is done, 0 in its first epoch and 1 in its last. Raises
        `StepFailure` where the step leads to no model.
        """

    def price(self, shots: int) -> Price:
        """Return the cost of an epoch of so many shots."""

    def state(self) -> Mapping[str, Any]:
        """Return the state on which the next step depends, beside the model; it may have slabs.

        It is made of nested dicts, lists and tuples, whose arrays are never changed. With whole
        arrays it is the form in a checkpoint.
        """

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`, or from what a checkpoint has kept of one."""
