"""Plug and play: models go through a denoiser between the steps of any optimiser.

Which denoisers have names is in `registry.DENOISERS`; how ranks share tiles is in
`operators.tiles`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from hpcfwi.config.prior import PriorSection
from hpcfwi.errors import InversionFailure
from hpcfwi.inversion.objective import Evaluation
from hpcfwi.inversion.optimizers import Evaluate, Optimizer, Price
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Model
from hpcfwi.operators.threads import one_thread
from hpcfwi.operators.tiles import Tiles
from hpcfwi.parallel.context import Context

Denoiser = Callable[[Tensor, float], Tensor]
"""Makes images of the same shape of (image, 1, z, x) or (image, 1, z, y, x), and a strength."""


class Denoised:
    """An `Optimizer` whose steps end with a denoised model, every so many epochs.

    After Venkatakrishnan, Bouman and Wohlberg (2013), with a step of the optimiser in place of the
    proximal operator of the misfit (as in Kamilov, Mansour and Wohlberg 2017, algorithm 1). The
    denoiser is given each parameter on a scale from 0 to 1; cells that are kept stay as they are.

    reproducible: whether the denoiser computes on one thread, as its bits would depend on how many
    there are.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        limits: Limits,
        section: PriorSection,
        denoiser: Denoiser,
        context: Context,
        reproducible: bool,
    ) -> None:
        self._optimizer, self._limits, self._section = optimizer, limits, section
        shape = limits.initial.grid.shape
        patch, overlap = (
            (max(shape), 0) if section.patch is None else (section.patch, section.overlap)
        )
        self._tiles = Tiles(
            denoiser, context, patch=patch, overlap=overlap, batch=1, axes=len(shape)
        )
        self._computing = one_thread if reproducible else nullcontext
        self._steps = 0

    def step(
        self, model: Model, evaluate: Evaluate, progress: float = 0.0
    ) -> tuple[Model, Evaluation]:
        """The next model, and the evaluation of this one; collective."""
        found, evaluation = self._optimizer.step(model, evaluate, progress)
        self._steps += 1
        if self._steps % self._section.every == 0:
            found = self._limits.apply(self._denoise(found))
        return found, evaluation

    def price(self, shots: int) -> Price:
        """What an epoch of so many shots asks for."""
        return self._optimizer.price(shots)

    def state(self) -> Mapping[str, Any]:
        """A copy of what the next step depends on beside the model, as a checkpoint keeps it."""
        return {"steps": self._steps, "optimizer": dict(self._optimizer.state())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self._steps = state["steps"]
        self._optimizer.restore(state["optimizer"])

    def _denoise(self, model: Model) -> Model:
        found = {name: self._denoise_one(name, array) for name, array in model.arrays.items()}
        return Model(model.grid, found)

    def _denoise_one(self, name: str, array: Tensor) -> Tensor:
        lowest, highest = self._limits.bounds.get(name, torch.aminmax(array))
        lowest, highest = float(lowest), float(highest)
        extent = highest - lowest or 1.0
        image = ((array - lowest) / extent)[None, None]
        with self._computing():
            made = self._tiles(image, self._section.strength)[0, 0]
        if not torch.isfinite(made).all():
            raise InversionFailure(
                f'the denoiser "{self._section.denoiser}" of inversion.prior made values of {name} '
                "that are not finite, of images with values between 0 and 1 that are: try it by "
                "itself, or another inversion.prior.strength"
            )
        return made.to(array) * extent + lowest
