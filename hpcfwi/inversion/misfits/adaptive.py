"""The adaptive misfit: how far filters from observed to simulated traces are from the identity."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from hpcfwi.inversion.misfits.traces import compare_traces, to_unit_norm

DAMPING = (
    "Damping at frequencies that were not observed: power, as a share of the largest in the "
    "spectrum of the observed trace, below which the filter changes nothing."
)


def adaptive(
    simulated: Tensor,
    observed: Tensor,
    dt: float,
    *,
    damping: Annotated[float, Field(gt=0.0, le=1e30, description=DAMPING)] = 1e-3,
) -> tuple[Tensor, Tensor]:
    """Half the energy-weighted mean squared lag of matching filters (Warner and Guasch 2016).

    A matching filter turns the observed trace into the simulated one, both with norm 1. It is the
    least-squares filter, damped towards the identity. Lags are in units of the record's length.
    """

    def measure(simulated: Tensor, observed: Tensor) -> Tensor:
        length = simulated.shape[1]
        made, given = (
            torch.fft.rfft(to_unit_norm(traces), n=2 * length) for traces in (simulated, observed)
        )
        power = given.abs().square()
        floor = damping * power.amax(dim=1, keepdim=True)
        filters = torch.fft.irfft((made * given.conj() + floor) / (power + floor), n=2 * length)
        lags = torch.fft.fftfreq(2 * length, 0.5, dtype=filters.dtype, device=filters.device)
        energy = filters.square()
        return 0.5 * (energy * lags.square()).sum(dim=1) / energy.sum(dim=1)

    return compare_traces(measure, simulated, observed)
