"""The shots that are measured: a model that grows faster with depth, seen from near its top."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from hpcfwi.wave import Acquisition, Method, Simulation, simulate
from hpcfwi.wave.numerics import ricker

SPACING, DT, FREQUENCY, BOUNDARY = 12.5, 1e-3, 10.0, 20
SLOWEST, FASTEST = 1500.0, 4500.0
EDGE = 20  # cells between the outermost points and the model's sides


@dataclass(frozen=True)
class Shots:
    """Sources and receivers at grid points, which all programs treat alike.

    vp: (nz, nx) or (nz, ny, nx), m/s; wavelet: (time,); sources: (shot, axis) and receivers:
    (receiver, axis), indices; order: of the differences.
    """

    vp: Tensor
    wavelet: Tensor
    sources: Tensor
    receivers: Tensor
    order: int = 4

    @property
    def cells(self) -> int:
        """Points of the grid, boundary included."""
        return prod(n + 2 * BOUNDARY for n in self.vp.shape)

    @property
    def updates(self) -> int:
        """Cell updates of a simulation of all shots, one way."""
        return self.cells * self.wavelet.numel() * len(self.sources)

    def simulate(self, keep: bool = True, **options: Any) -> Simulation:
        """Simulate them with hpcfwi; options: of a `wave.Method`."""
        method = Method(
            order=self.order,
            boundary=BOUNDARY,
            boundary_frequency=FREQUENCY,
            max_velocity=FASTEST,
            **options,
        )
        where = (SPACING * self.sources, SPACING * self.receivers)
        shots = Acquisition(DT, self.wavelet, *where)
        return simulate({"vp": self.vp}, SPACING, shots, method, keep=keep, illuminate=False)

    def run(self, gradient: bool, **options: Any) -> Tensor:
        """The traces or, of half their squared sum, the gradient summed over shots."""
        simulation = self.simulate(gradient, **options)
        if not gradient:
            return simulation.data
        return simulation.backpropagate(simulation.data).model["vp"].sum(0)


def make_shots(
    shape: tuple[int, ...], shots: int, steps: int, receivers: int = 100, order: int = 4
) -> Shots:
    """Shots evenly along the middle of a model of this shape, without its boundary."""
    depth = torch.linspace(0.0, 1.0, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    vp = (SLOWEST + (FASTEST - SLOWEST) * depth).expand(shape).contiguous()

    def line(count: int, row: int) -> Tensor:
        ends = torch.linspace(EDGE, shape[-1] - 1 - EDGE, count + 2)
        columns = ends[1:-1].long()
        before = [
            torch.full_like(columns, place) for place in (row, *(n // 2 for n in shape[1:-1]))
        ]
        return torch.stack([*before, columns], dim=-1)

    wavelet = torch.tensor(ricker(FREQUENCY, steps, DT, delay=0.12), dtype=torch.float32)
    return Shots(vp, wavelet, line(shots, 2), line(receivers, 4), order)
