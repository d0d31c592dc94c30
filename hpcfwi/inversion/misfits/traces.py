"""A misfit and its gradient, from a differentiable measure of the traces that count.

Each misfit has a measure of its own. All is in float64, a shot by itself and on one thread, so
that its bits depend on neither the other shots nor the threads.
"""

from __future__ import annotations

from collections.abc import Callable
from math import fsum

import torch
from torch import Tensor

from hpcfwi.operators.vectors import one_thread

Measure = Callable[[Tensor, Tensor], Tensor]
"""A differentiable function of simulated and observed traces (trace, time): a value each."""

# Of the loudest trace of a shot, 80 dB: what little runs ahead of a wave that does not arrive in
# time would weigh, where traces are divided by their norms, as much as any other.
SILENT = 1e-4


def compare_traces(measure: Measure, simulated: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of a measure over each shot's traces, and its gradient: what a misfit returns.

    measure: 0 where the traces are equal, and nowhere less. Traces that are silent, simulated or
    observed, or equal already, are not shown to it.
    """
    misfits = torch.zeros(len(simulated), dtype=torch.float64)
    gradient = torch.zeros_like(simulated)
    for shot, pair in enumerate(zip(simulated.double(), observed.double(), strict=True)):
        counts = (pair[0] != pair[1]).any(dim=1)
        counts = counts & ~(_are_silent(pair[0], counts) | _are_silent(pair[1], counts))
        if not counts.any():
            continue
        with torch.enable_grad(), one_thread():
            traces = pair[0][counts].requires_grad_()
            values = measure(traces, pair[1][counts])
            # By way of a scalar: a gradient with a vector imports sympy, for a second.
            (found,) = torch.autograd.grad(values.sum(), traces)
        misfits[shot] = fsum(values.tolist())
        gradient[shot, counts] = found.to(gradient.dtype)
    return misfits, gradient


def root_mean_square(traces: Tensor) -> Tensor:
    """Return the root mean square of each trace."""
    return traces.square().mean(dim=1).sqrt()


def typical_amplitude(observed: Tensor) -> Tensor:
    """Return the median of the root mean squares of a shot's traces."""
    return root_mean_square(observed).median()


def to_unit_norm(traces: Tensor) -> Tensor:
    """Each trace divided by its L2 norm."""
    return traces / traces.square().sum(dim=1, keepdim=True).sqrt()


def _are_silent(traces: Tensor, among: Tensor) -> Tensor:
    """Return which traces are silent beside the loudest of `among`; they are finite."""
    loudness = root_mean_square(traces)
    return loudness.isfinite() & (loudness <= SILENT * loudness.where(among, 0.0).max())
