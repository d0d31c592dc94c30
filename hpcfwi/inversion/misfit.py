"""How far simulated data are from observed ones, shot by shot, and the gradient of it."""

from __future__ import annotations

import torch
from torch import Tensor


def least_squares(simulated: Tensor, observed: Tensor, dt: float) -> tuple[Tensor, Tensor]:
    """Half the time integral of the squared residual, summed over receivers.

    simulated, observed: (shot, receiver, time), sampled every `dt` (s). Returns the misfits
    (shot,) in float64 and their gradient with respect to the simulated data.
    """
    residual = simulated - observed
    misfit = 0.5 * dt * residual.to(torch.float64).square().sum(dim=(1, 2))
    return misfit, dt * residual
