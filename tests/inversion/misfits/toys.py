"""Traces for tests of misfits: random smooth ones, and arrivals at any time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hpcfwi.inversion.misfits import Misfit

DT, FREQUENCY, SAMPLES = 0.004, 8.0, 250  # s, Hz


def random_traces(seed: int, shots: int = 2, traces: int = 3, samples: int = 40) -> Tensor:
    """Return traces (shot, trace, time) in float64 that are smooth in time."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(shots, traces, samples + 4, generator=generator, dtype=torch.float64)
    return noise.unfold(2, 5, 1).mean(dim=3)


def burst(time: float | Tensor) -> Tensor:
    """Return a trace with a few oscillations at a time in s."""
    since = DT * torch.arange(SAMPLES, dtype=torch.float64) - time
    envelope = torch.exp(-((since / 0.1) ** 2))
    return (torch.cos(2 * torch.pi * FREQUENCY * since) * envelope)[None, None]


def ricker(time: float | Tensor) -> Tensor:
    """Return a trace with a Ricker wavelet at a time in s."""
    squares = (torch.pi * FREQUENCY * (DT * torch.arange(SAMPLES) - time)) ** 2
    return ((1.0 - 2.0 * squares) * torch.exp(-squares)).double()[None, None]


def slope(misfit: Misfit, arrival: Callable[[float | Tensor], Tensor], periods: float) -> float:
    """Return the derivative of the misfit with the time of an arrival that is periods late."""
    time = torch.tensor(0.5 + periods / FREQUENCY, dtype=torch.float64, requires_grad=True)
    simulated = arrival(time)
    _, gradient = misfit(simulated.detach(), arrival(0.5), DT)
    (simulated * gradient).sum().backward()
    assert time.grad is not None
    return float(time.grad)
