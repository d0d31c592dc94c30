"""Optimal transport: how far energy must move in time to turn simulated into observed traces."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad, softplus

from hpcfwi.inversion.misfits.traces import compare_traces, root_mean_square

SHARPNESS = (
    "Factor in the exponential that makes traces positive, divided by their root mean square: the "
    "higher it is, the less remains where the trace is negative."
)


def transport(
    simulated: Tensor,
    observed: Tensor,
    dt: float,
    *,
    sharpness: Annotated[float, Field(gt=0.0, le=10.0, description=SHARPNESS)] = 1.0,
) -> tuple[Tensor, Tensor]:
    """Squared Wasserstein distance of traces made positive, summed over them (Yang et al. 2018).

    A positive trace is log(1 + exp(`sharpness` * trace / its root mean square)), divided by its sum
    (Engquist and Yang 2020). Times are in units of the record's length.
    """

    def measure(simulated: Tensor, observed: Tensor) -> Tensor:
        # This is computed on the CPU, because the gradient of `gather` has no fixed order on a GPU.
        simulated, observed = (
            _distribute(traces.cpu(), sharpness) for traces in (simulated, observed)
        )
        # Between two of these shares, the times of both are linear in the share.
        shares = torch.cat([simulated, observed], dim=1).sort(dim=1).values
        way = _when(shares, simulated) - _when(shares, observed)
        begin, end = way[:, :-1], way[:, 1:]
        squares = (begin.square() + begin * end + end.square()) / 3.0
        return (shares.diff(dim=1) * squares).sum(dim=1)

    return compare_traces(measure, simulated, observed)


def _distribute(traces: Tensor, sharpness: float) -> Tensor:
    """Return the cumulative share of each trace before each sample, and at the end."""
    positive = softplus(traces * (sharpness / root_mean_square(traces)[:, None]))
    sums = positive.cumsum(dim=1)
    return pad(sums / sums[:, -1:], (1, 0))


def _when(shares: Tensor, arrived: Tensor) -> Tensor:
    """Return the times, in units of the record's length, at which these shares have arrived."""
    samples = arrived.shape[1] - 1
    # Only NaN is outside these bounds.
    after = torch.searchsorted(arrived.detach(), shares.detach()).clamp_(1, samples)
    low, high = arrived.gather(1, after - 1), arrived.gather(1, after)
    return (after - 1 + (shares - low) / (high - low)) / samples
