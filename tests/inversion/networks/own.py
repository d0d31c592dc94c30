"""User-defined networks for tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Waves(nn.Module):
    """A sum of sines of the coordinates, with an annotated key and one that is not."""

    pointwise = True

    def __init__(self, shape, count, *, waves: int = 9, fastest=6.0):
        super().__init__()
        self.register_buffer("rates", fastest * torch.rand(waves, len(shape)))
        self.sizes = nn.Parameter(0.1 * torch.randn(count, 2 * waves))

    def forward(self, coordinates: Tensor) -> Tensor:
        phases = coordinates @ self.rates.T
        return torch.cat([phases.sin(), phases.cos()], -1) @ self.sizes.T


class Grid(nn.Module):
    """A value for each cell, as in an inversion without a network; coordinates are ignored."""

    def __init__(self, shape, count):
        super().__init__()
        self.values = nn.Parameter(torch.zeros(*shape, count))

    def forward(self, coordinates: Tensor) -> Tensor:
        assert coordinates.shape[:-1] == self.values.shape[:-1]
        return self.values


class ChannelsFirst(nn.Module):
    """Convolutions whose output is (count, z, x) instead of (z, x, count)."""

    def __init__(self, shape, count):
        super().__init__()
        self.layer = nn.Conv2d(len(shape), count, 1)

    def forward(self, coordinates: Tensor) -> Tensor:
        return self.layer(coordinates.movedim(-1, 0)[None])[0]
