"""From a gradient to the next model: torch.optim's methods, kept within what is known."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.errors import InversionFailure
from hpcfwi.schema import InversionSection


class Updater:
    """A velocity model and the optimiser that changes it; the same on every rank.

    vp: the current model, m/s. Cells in `fixed` keep their initial values, the others stay
    within the bounds.
    """

    def __init__(
        self,
        initial: NDArray[np.float32],
        fixed: NDArray[np.bool_],
        section: InversionSection,
        device: torch.device,
    ) -> None:
        self.vp = torch.tensor(initial, device=device)
        self._initial = self.vp.clone()
        self._fixed = torch.tensor(fixed, device=device)
        self._bounds = section.bounds
        method = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[section.optimizer.name]
        options = section.optimizer.model_dump(exclude={"name"}, exclude_none=True)
        self._optimizer = method([self.vp], **options)

    def step(self, gradient: Tensor) -> None:
        """One step of the optimiser along the gradient of the free cells.

        Raises `InversionFailure` where it leads to velocities that no wave can have.
        """
        self.vp.grad = torch.where(self._fixed, 0.0, gradient)
        self._optimizer.step()
        with torch.no_grad():
            if self._bounds:
                self.vp.clamp_(*self._bounds)
            self.vp.copy_(torch.where(self._fixed, self._initial, self.vp))
        if not (torch.isfinite(self.vp).all() and self.vp.min() > 0.0):
            raise InversionFailure(
                "the last step led to velocities that are not finite or not above 0 m/s: take a "
                "smaller inversion.optimizer.lr, or give inversion.bounds"
            )

    def state(self) -> dict[str, object]:
        """A copy of everything the next step depends on, as a checkpoint keeps it."""
        return {"vp": self.vp.cpu().clone(), "optimizer": deepcopy(self._optimizer.state_dict())}

    def restore(self, state: dict[str, object]) -> None:
        """Go on from a `state`."""
        vp, optimizer = state["vp"], state["optimizer"]
        assert isinstance(vp, Tensor)
        assert isinstance(optimizer, dict)
        with torch.no_grad():
            self.vp.copy_(vp)
        # It would take the tensors themselves, and change them at the next step.
        self._optimizer.load_state_dict(deepcopy(optimizer))
