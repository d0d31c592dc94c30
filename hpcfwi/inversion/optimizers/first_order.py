"""Optimizers with one evaluation per step, with the arithmetic of torch.optim.

Only the functions of torch.optim are used, because its classes import the compiler of torch, which
takes a second on every rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import cos, pi
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from hpcfwi.config.values import OneOrPair
from hpcfwi.inversion.objective import Evaluation
from hpcfwi.inversion.optimizers import Evaluator, OptimizerCost
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Model
from hpcfwi.operators.vectors import check_like
from hpcfwi.parallel.shards import WHOLE, Shards

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


class FirstOrder(ABC):
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


class Adam(FirstOrder):
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


class GradientDescent(FirstOrder):
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
