"""Steps along the gradient, by the methods of torch.optim: one evaluation each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch

from hpcfwi.config.inversion import Optimizer as Section
from hpcfwi.inversion.objective import Evaluation
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Model


class FirstOrder:
    """An `Optimizer` around one of torch's, whose keys not given are torch's defaults."""

    method: type[torch.optim.Optimizer]

    def __init__(self, section: Section, initial: Model, limits: Limits) -> None:
        options = section.model_dump(exclude={"name"}, exclude_none=True)
        self._arrays = {name: array.clone() for name, array in initial.arrays.items()}
        self._method = self.method(list(self._arrays.values()), **options)
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
    """Kingma and Ba (2015)."""

    method = torch.optim.Adam


class GradientDescent(FirstOrder):
    """With momentum, where asked for."""

    method = torch.optim.SGD
