"""What of a model an inversion may change, and within which limits.

How it is changed is the optimisers' business; which values a parameter can have at all is in
`model.PARAMETERS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hpcfwi.errors import StepFailure
from hpcfwi.model import PARAMETERS, Model


@dataclass(frozen=True)
class Limits:
    """What is known of the earth beforehand.

    initial: the model at the start, of tensors, whose values the cells in `fixed` keep, by
    parameter; bounds: the lowest and the highest value of those that have any; linear: whether
    waves change with the model to first order only, so that any finite value can be simulated.
    """

    initial: Model
    fixed: Mapping[str, Tensor]
    bounds: Mapping[str, tuple[float, float]]
    linear: bool = False

    def free(self, gradient: Model) -> Model:
        """A gradient that is zero where the model is kept."""
        return Model(
            gradient.grid,
            {n: torch.where(self.fixed[n], 0.0, array) for n, array in gradient.arrays.items()},
        )

    def within(self, model: Model, direction: Model) -> Model:
        """A direction that is zero where it would lead out of the limits at once."""
        return Model(
            model.grid,
            {
                name: torch.where(self._is_stuck(name, model[name], array), 0.0, array)
                for name, array in direction.arrays.items()
            },
        )

    def _is_stuck(self, name: str, values: Tensor, direction: Tensor) -> Tensor:
        if name not in self.bounds:
            return self.fixed[name]
        lowest, highest = self.bounds[name]
        low, high = values <= lowest, values >= highest
        return self.fixed[name] | (low & (direction < 0.0)) | (high & (direction > 0.0))

    def apply(self, model: Model) -> Model:
        """The nearest model within the limits.

        Raises `StepFailure` where a value is not finite, or none that there can be.
        """
        kept = {name: self._apply(name, array) for name, array in model.arrays.items()}
        return Model(model.grid, kept)

    def check(self, model: Model) -> None:
        """Raise `ValueError` where a model that was kept has values that there cannot be."""
        for name, array in model.arrays.items():
            parameter = PARAMETERS[name]
            lowest, highest = float(array.min()), float(array.max())
            if not self.linear and not parameter.lowest <= lowest <= highest <= parameter.highest:
                found = f"from {lowest:g} to {highest:g} {parameter.unit}"
                raise ValueError(f"{name} has values {found}")

    def _apply(self, name: str, array: Tensor) -> Tensor:
        if name in self.bounds:
            array = array.clamp(*self.bounds[name])
        array = torch.where(self.fixed[name], self.initial[name], array)
        if not (torch.isfinite(array).all() and (self.linear or array.min() > 0.0)):
            parameter = PARAMETERS[name]
            low = "" if self.linear else f" or not above 0 {parameter.unit}"
            raise StepFailure(
                f"the last step led to values of {name} ({parameter.title}) that are not finite"
                f"{low}. Take a smaller inversion.optimizer.lr, or give inversion.bounds."
            )
        return array
