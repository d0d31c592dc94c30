"""Optimizers, which improve a model. `registry.OPTIMIZERS` names them.

Every rank runs the same optimizer with the same numbers, so that all take the same steps. In each
epoch, an optimizer may evaluate the misfit and gradient of models, and derivatives of the gradient,
as often as needed, always with the same shots. `parameters` keeps models within their limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hpcfwi.inversion.objective import Evaluation
from hpcfwi.model import Model


class Evaluator(Protocol):
    """The evaluation of models, for optimizers; collective."""

    def __call__(self, model: Model, /) -> Evaluation:
        """Return the misfit and gradient of a model."""

    def product(self, model: Model, direction: Model, /, shots: int | None = None) -> Model:
        """Return the change of a model's gradient in a direction, to first order in the waves.

        shots: number of shots of the batch, by default all.
        """

    def remember(self, model: Model, evaluation: Evaluation, /) -> None:
        """Store the evaluation of a model, so that it need not be simulated."""

    def precondition(self, gradient: Model, /) -> Model:
        """Return the preconditioned gradient of the epoch's first model.

        The preconditioner is linear, symmetric and positive semidefinite; it is the identity if
        there is none.
        """


@dataclass(frozen=True)
class OptimizerCost:
    """The cost of an epoch, in addition to the evaluation of the model with which it begins.

    `hpcfwi plan` uses the numbers of evaluations, and `inversion.memory` the bytes.

    tries: least and usual number of evaluations of other models, with all shots of the epoch;
    products: least and usual number of shots in products; carries: True if the last of these models
    is usually the first of the next epoch, so that it is not simulated again with the same shots;
    remembered, working: bytes for each value of the model, of the state and (measured) of what a
    step needs in addition.
    """

    tries: tuple[float, float] = (0.0, 0.0)
    products: tuple[float, float] = (0.0, 0.0)
    carries: bool = False
    remembered: int = 0
    working: int = 0


class Optimizer(Protocol):
    """An optimizer, constructed from the first model, the limits, and its own keys.

    An optimizer that can keep its state in shards takes `shards` after the limits. Its keys are
    keyword-only parameters, annotated as those of misfits are. Constructors are also called with a
    model of one cell, to find the cost.

    `step` first evaluates the given model: the object itself, not a copy. The gradient is not zero
    in fixed cells; `limits.free` sets it to zero there, before and after it is preconditioned. The
    next model is a result of `limits.apply`. The returned evaluation has the preconditioned
    gradient, for figures. All ranks take the same branches, because evaluations are collective.
    """

    def step(
        self, model: Model, evaluate: Evaluator, progress: float = 0.0
    ) -> tuple[Model, Evaluation]:
        """Return the next model, and the evaluation of the given one.

        progress: progress of the stage, 0 in its first epoch and 1 in its last. Raises
        `StepFailure` if the step leads to impossible values.
        """

    def cost(self, shots: int) -> OptimizerCost:
        """Return the cost of an epoch of so many shots."""

    def state(self) -> Mapping[str, Any]:
        """Return the state on which the next step depends, without the model; it may have shards.

        It consists of nested dicts, lists and tuples of finite numbers, None and tensors, which are
        never changed. With whole arrays, it is the form in a checkpoint.
        """

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a result of `state`, or from the one in a checkpoint."""
