"""Half the energy of the residual."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def least_squares(simulated: Tensor, observed: Tensor, dt: float) -> tuple[Tensor, Tensor]:
    """Half the time integral of the squared residual, summed over receivers (Tarantola 1984)."""
    residual = simulated - observed
    # NumPy adds up one shot in an order of its own, whatever the threads and the other shots are.
    squares = [np.square(shot, dtype=np.float64).sum() for shot in residual.cpu().numpy()]
    return 0.5 * dt * torch.tensor(squares, dtype=torch.float64), dt * residual
