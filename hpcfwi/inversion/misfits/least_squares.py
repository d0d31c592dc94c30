"""Half the energy of the residual."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def least_squares(simulated: Tensor, observed: Tensor, dt: float) -> tuple[Tensor, Tensor]:
    """Half the time integral of the squared residual, summed over receivers (Tarantola 1984)."""
    residual = simulated - observed
    if residual.device.type == "cpu":
        # NumPy adds up a shot in an order of its own, whatever the threads and the other shots are
        squares = [np.square(shot, dtype=np.float64).sum() for shot in residual.numpy()]
    else:
        squares = add_squares(residual).tolist()
    return 0.5 * dt * torch.tensor(squares, dtype=torch.float64), dt * residual


def add_squares(residual: Tensor) -> Tensor:
    """Of each shot, by the device that has it, one after the other: traces stay where they are."""
    return torch.stack([shot.double().square().sum() for shot in residual])
