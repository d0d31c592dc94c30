"""Steps along the gradient, by the methods of torch.optim: one evaluation each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Annotated, Any

import torch
from pydantic import Field

from hpcfwi.inversion.objective import Evaluation
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Model

# What is beyond these is infinite, or zero, in single precision.
Rate = Annotated[float, Field(gt=0.0, le=1e30)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]

LR = "Learning rate: what a gradient is multiplied by."
ADAM_LR = "Learning rate: about the largest change of a cell in an epoch, in the parameter's unit."
EPS = """What is added to the denominator.

Gradients are often below 1e-8, the default, which then slows the inversion down: give a tiny one
such as 1e-22."""
BETAS = "Decay of the means of the gradient and of its square."
MOMENTUM = "Share of its last step that it goes on with."


class FirstOrder:
    """An `Optimizer` around one of torch's; keys that are None have torch's defaults."""

    def __init__(
        self,
        method: Callable[..., torch.optim.Optimizer],
        initial: Model,
        limits: Limits,
        **keys: Any,
    ) -> None:
        self._arrays = {name: array.clone() for name, array in initial.arrays.items()}
        given = {key: value for key, value in keys.items() if value is not None}
        self._method = method(list(self._arrays.values()), **given)
        self._limits = limits

    def step(
        self, model: Model, evaluate: Callable[[Model], Evaluation]
    ) -> tuple[Model, Evaluation]:
        """The next model, and the evaluation of this one."""
        evaluation = evaluate(model)
        gradient = self._limits.free(evaluation.gradient)
        with torch.no_grad():
            for name, array in self._arrays.items():
                array.copy_(model[name])
                array.grad = gradient[name]
        self._method.step()
        return self._limits.apply(Model(model.grid, self._arrays).map(torch.clone)), evaluation

    def state(self) -> Mapping[str, Any]:
        """A copy of what the next step depends on beside the model, as a checkpoint keeps it."""
        return deepcopy(self._method.state_dict())

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        # It would take the tensors themselves, and change them at the next step.
        self._method.load_state_dict(deepcopy(dict(state)))


class Adam(FirstOrder):
    """Adam (Kingma and Ba 2015) of `torch.optim`; keys not given have torch's defaults."""

    def __init__(
        self,
        initial: Model,
        limits: Limits,
        *,
        lr: Annotated[Rate, Field(description=ADAM_LR)],
        eps: Annotated[float | None, Field(ge=1e-37, le=1e30, description=EPS)] = None,
        betas: Annotated[tuple[Decay, Decay] | None, Field(strict=False, description=BETAS)] = None,
    ) -> None:
        super().__init__(torch.optim.Adam, initial, limits, lr=lr, eps=eps, betas=betas)


class GradientDescent(FirstOrder):
    """Steps down the gradient, SGD of `torch.optim`; keys not given have torch's defaults."""

    def __init__(
        self,
        initial: Model,
        limits: Limits,
        *,
        lr: Annotated[Rate, Field(description=LR)],
        momentum: Annotated[Decay | None, Field(description=MOMENTUM)] = None,
    ) -> None:
        super().__init__(torch.optim.SGD, initial, limits, lr=lr, momentum=momentum)
