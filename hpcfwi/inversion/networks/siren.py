"""A network of sines: smooth at first, and finer the longer it learns."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

WIDTH = "Numbers of each hidden layer."
DEPTH = "Hidden layers, beside the first."
OMEGA = """Of the first layer: how fast its sines are, and with them what is learnt first.

In 2-D the shortest of their wavelengths is about six lengths of the shortest axis over this."""


class Siren(nn.Module):
    """Layers of sines of the coordinates (Sitzmann et al. 2020, equation 4 and section 3.2).

    In an inversion as Sun et al. (2023, "Implicit seismic full waveform inversion with deep neural
    representation") have it.
    """

    pointwise = True

    def __init__(
        self,
        shape: tuple[int, ...],
        count: int,
        *,
        width: Annotated[int, Field(gt=0, le=10_000, description=WIDTH)] = 64,
        depth: Annotated[int, Field(gt=0, le=100, description=DEPTH)] = 3,
        omega: Annotated[float, Field(gt=0.0, le=1e4, description=OMEGA)] = 30.0,
    ) -> None:
        super().__init__()
        self._omega = omega
        sizes = [len(shape), *[width] * (depth + 1)]
        self.hidden = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))
        self.last = nn.Linear(width, count)
        with torch.no_grad():
            for number, layer in enumerate([*self.hidden, self.last]):
                n = layer.in_features
                bound = 1.0 / n if number == 0 else sqrt(6.0 / n) / omega
                layer.weight.uniform_(-bound, bound)

    def forward(self, coordinates: Tensor) -> Tensor:
        """Values (..., count) at coordinates (..., ndim)."""
        found = coordinates
        for layer in self.hidden:
            found = torch.sin(self._omega * layer(found))
        made: Tensor = self.last(found)
        return made
