"""Optimizers, which improve a model, and those with one evaluation per step.

Every rank runs the same optimizer with the same numbers, so that all take the same steps. In each
epoch, an optimizer may evaluate the misfit and gradient of models, and derivatives of the gradient,
as often as needed, always with the same shots. `parameters` keeps models within their limits.
`registry.OPTIMIZERS` names the optimizers, others of which are in `line_search` and `gauss_newton`.

First-order optimizers have the arithmetic of torch.optim. Only its functions are used, because its
classes import the compiler of torch, which takes a second on every rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import cos, pi
from typing import Annotated, Any, Protocol

import torch
from pydantic import Field
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from hpcfwi.config.values import OneOrPair
from hpcfwi.inversion.objective import Evaluation
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Model
from hpcfwi.operators.vectors import check_like
from hpcfwi.parallel.shards import WHOLE, Shards


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
    step needs in addition; shared: those of the state that the next state also refers to.
    """

    tries: tuple[float, float] = (0.0, 0.0)
    products: tuple[float, float] = (0.0, 0.0)
    carries: bool = False
    remembered: int = 0
    working: int = 0
    shared: int = 0


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


# Values beyond these are infinite or zero in single precision.
Rate = OneOrPair[Annotated[float, Field(gt=0.0, le=1e30)]]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]

LR = """Learning rate: the factor by which gradients are multiplied.

A pair, such as `[25.0, 5.0]`, falls from the first value to the second along half a cosine over the
epochs."""
ADAM_LR = """Learning rate: about the largest change of a cell per epoch, in the parameter's unit.

A pair, such as `[25.0, 5.0]`, falls from the first value to the second along half a cosine over the
epochs."""
EPS = """Number that is added to the denominator.

Gradients are much smaller than the usual default of 1e-8, with which Adam would hardly move."""
BETAS = "Decay rates of the means of the gradient and of its square."
MOMENTUM = "Share of the last step that is added to the next one."


def anneal(rate: float | tuple[float, float], progress: float) -> float:
    """Return the rate at a progress from 0 to 1: half a cosine from the first to the last rate.

    See Loshchilov and Hutter (2017, arXiv:1608.03983), equation 5.
    """
    if not isinstance(rate, tuple):
        return rate
    first, last = rate
    return last + 0.5 * (first - last) * (1.0 + cos(pi * progress))


class GradientOptimizer(ABC):
    """An `Optimizer` that evaluates one model per step.

    For each array, it stores others of the same size, which are zero at first and have the names
    that torch gives them. It stores and changes only this rank's shards.
    """

    def __init__(
        self,
        initial: Model,
        limits: Limits,
        shards: Shards,
        rate: float | tuple[float, float],
        *remembered: str,
    ) -> None:
        self._limits, self._shards, self._rate = limits, shards, rate
        self._initial, self._remembered = initial, len(remembered)
        self._memories = [
            {name: torch.zeros_like(shards.cut(array)) for name in remembered}
            for array in initial.arrays.values()
        ]

    @abstractmethod
    def _change(self, arrays: list[Tensor], gradients: list[Tensor], rate: float) -> None:
        """Change the arrays and the state in place."""

    def step(
        self, model: Model, evaluate: Evaluator, progress: float = 0.0
    ) -> tuple[Model, Evaluation]:
        evaluation = evaluate(model)
        free = self._limits.free(evaluation.gradient)
        preconditioned = evaluate.precondition(free)
        if preconditioned is not free:
            evaluation = replace(evaluation, gradient=preconditioned)
        # The preconditioner may smooth the gradient into fixed cells.
        gradient = self._limits.free(preconditioned)
        parts = {name: self._shards.cut(array).clone() for name, array in model.arrays.items()}
        gradients = [self._shards.cut(gradient[name]) for name in parts]
        # The last state shares these arrays, and must not change. They are copied here, not in
        # `state`, so that there is only one copy between epochs.
        self._memories = [
            {name: array.clone() for name, array in memory.items()} for memory in self._memories
        ]
        self._change([*parts.values()], gradients, anneal(self._rate, progress))
        arrays = {
            name: self._shards.all_gather(part, model[name].shape) for name, part in parts.items()
        }
        return self._limits.apply(Model(model.grid, arrays)), evaluation

    def cost(self, shots: int) -> OptimizerCost:  # noqa: ARG002
        return OptimizerCost(remembered=4 * self._remembered)

    def state(self) -> Mapping[str, Any]:
        kept = (
            {n: self._shards.wrap(a, like.shape if a.ndim else ()) for n, a in memory.items()}
            for memory, like in zip(self._memories, self._initial.arrays.values(), strict=True)
        )
        return {"state": dict(enumerate(kept))}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a result of `state`.

        Raises
        ------
        ValueError, TypeError, LookupError, AttributeError
            If it is not a state of this kind of optimizer and these arrays.
        """
        for number, kept in state["state"].items():
            memory = self._memories[number]
            taken = {name: self._shards.unwrap(kept[name]) for name in memory}
            check_like(taken, memory)
            memory.update({n: array.to(memory[n].device) for n, array in taken.items()})

    def _recall(self, name: str) -> list[Tensor]:
        return [memory[name] for memory in self._memories]


class Adam(GradientOptimizer):
    """Adam (Kingma and Ba 2015)."""

    def __init__(
        self,
        initial: Model,
        limits: Limits,
        shards: Shards = WHOLE,
        *,
        lr: Annotated[Rate, Field(description=ADAM_LR)],
        eps: Annotated[float, Field(ge=1e-37, le=1e30, description=EPS)] = 1e-22,
        betas: Annotated[tuple[Decay, Decay], Field(strict=False, description=BETAS)] = (
            0.9,
            0.999,
        ),
    ) -> None:
        super().__init__(initial, limits, shards, lr, "exp_avg", "exp_avg_sq")
        for memory in self._memories:
            memory["step"] = torch.tensor(0.0)
        self._adam = partial(
            adam, eps=eps, beta1=betas[0], beta2=betas[1],
            amsgrad=False, weight_decay=0.0, maximize=False,
        )  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        for kept in state["state"].values():
            squares, steps = self._shards.unwrap(kept["exp_avg_sq"]), float(kept["step"])
            if (squares < 0.0).any() or steps < 0.0 or not steps.is_integer():
                raise ValueError(f"a mean of squares is negative, or {steps:g} is not a step")
        super().restore(state)

    def _change(self, arrays: list[Tensor], gradients: list[Tensor], rate: float) -> None:
        means, squares, steps = map(self._recall, ("exp_avg", "exp_avg_sq", "step"))
        self._adam(arrays, gradients, means, squares, [], steps, lr=rate)


class GradientDescent(GradientOptimizer):
    """Gradient descent, with momentum (Polyak 1964) if requested."""

    def __init__(
        self,
        initial: Model,
        limits: Limits,
        shards: Shards = WHOLE,
        *,
        lr: Annotated[Rate, Field(description=LR)],
        momentum: Annotated[Decay, Field(description=MOMENTUM)] = 0.0,
    ) -> None:
        super().__init__(initial, limits, shards, lr, "momentum_buffer")
        self._sgd = partial(
            sgd, momentum=momentum,
            dampening=0.0, nesterov=False, weight_decay=0.0, maximize=False,
        )  # fmt: skip

    def _change(self, arrays: list[Tensor], gradients: list[Tensor], rate: float) -> None:
        self._sgd(arrays, gradients, [*self._recall("momentum_buffer")], lr=rate)
