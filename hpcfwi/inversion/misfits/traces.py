"""A misfit and its gradient, from a differentiable measure of the traces that count.

Each misfit has its own measure. Everything is computed in float64, each shot by itself and on one
thread, so that its bits depend neither on other shots nor on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from math import fsum

import torch
from torch import Tensor

from hpcfwi.operators.vectors import one_thread

Measure = Callable[[Tensor, Tensor], Tensor]
"""A differentiable function of simulated and observed traces (trace, time), to (trace,)."""

# A trace is silent if it is 80 dB below the loudest trace of its shot. Otherwise, misfits that
# divide traces by their norms would weigh traces without an arrival as much as other traces.
SILENT = 1e-4


def compare_traces(measure: Measure, simulated: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of a measure over the traces of each shot, and its gradient.

    measure: not negative, and 0 for equal traces. It is not called for a pair of equal traces, or
    if one of the two is silent.
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
            # This is the gradient of a scalar, because for a vector torch imports sympy (1 s).
            (found,) = torch.autograd.grad(values.sum(), traces)
        misfits[shot] = fsum(values.tolist())
        gradient[shot, counts] = found.to(gradient.dtype)
    return misfits, gradient


def root_mean_square(traces: Tensor) -> Tensor:
    """Return the root mean square of each trace."""
    return traces.square().mean(dim=1).sqrt()


def typical_amplitude(observed: Tensor) -> Tensor:
    """Return the median of the root mean squares of these traces."""
    return root_mean_square(observed).median()


def to_unit_norm(traces: Tensor) -> Tensor:
    """Divide each trace by its L2 norm."""
    return traces / traces.square().sum(dim=1, keepdim=True).sqrt()


def _are_silent(traces: Tensor, among: Tensor) -> Tensor:
    """Return a mask of traces that are finite and silent compared to the loudest of `among`."""
    loudness = root_mean_square(traces)
    return loudness.isfinite() & (loudness <= SILENT * loudness.where(among, 0.0).max())
