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
    """What is asked of models; collective."""

    def __call__(self, model: Model, /) -> Evaluation:
        """Misfit and gradient of a model."""

    def product(self, model: Model, direction: Model, /, shots: int | None = None) -> Model:
        """How the gradient of a model changes in a direction, to first order in the waves.

        shots: so many of the batch, or all of them.
        """

    def remember(self, model: Model, evaluation: Evaluation, /) -> None:
        """Take for known what a model would give, so that it need not be simulated."""

    def precondition(self, gradient: Model, /) -> Model:
        """A gradient of the epoch's first model, more like a step, where that is asked for.

        Linear, symmetric and never negative; the gradient itself where nothing is asked for.
        """


@dataclass(frozen=True)
class Price:
    """What an epoch asks for beside the evaluation of the model that it begins with.

    Of simulations, each at least, and as a rule: tries, evaluations of other models with all shots
    of the epoch; products, shots of its products. carries: whether the last of these models is as a
    rule the one that the next epoch begins with, of which nothing is simulated again where its
    shots are the same. Of memory, bytes for each value of the model: remembered, from one epoch to
    the next; working, what a step takes beside, as it was measured.
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
        """What an epoch of so many shots asks for."""

    def state(self) -> Mapping[str, Any]:
        """What the next step depends on beside the model, of which there may be slabs.

        Arrays in it are not changed any more. In nested dicts, lists and tuples: with whole arrays
        it is what a checkpoint keeps.
        """

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`, or from what a checkpoint has kept of one."""
