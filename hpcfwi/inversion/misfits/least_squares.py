"""Half the energy of the residual."""

from __future__ import annotations

import torch
from torch import Tensor

from hpcfwi.operators.vectors import add_up


def least_squares(simulated: Tensor, observed: Tensor, dt: float) -> tuple[Tensor, Tensor]:
    """Half the time integral of the squared residual, summed over receivers (Tarantola 1984)."""
    residual = simulated - observed
    squares = torch.stack([add_up(shot.double().square()) for shot in residual])
    return 0.5 * dt * squares.cpu(), dt * residual
