"""Least squares for small residuals, absolute values for large ones."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from hpcfwi.inversion.misfits.traces import compare_traces, typical_amplitude

WIDTH = (
    "Residual above which the misfit grows linearly, in units of the typical amplitude of the "
    "observed data: the median of the root mean squares of a shot's traces."
)


def huber(
    simulated: Tensor,
    observed: Tensor,
    dt: float,
    *,
    width: Annotated[float, Field(gt=0.0, le=1e30, description=WIDTH)] = 1.0,
) -> tuple[Tensor, Tensor]:
    """Least squares of residuals up to a width, absolute values beyond (Guitton and Symes 2003)."""

    def measure(simulated: Tensor, observed: Tensor) -> Tensor:
        limit = width * typical_amplitude(observed)
        size = (simulated - observed).abs()
        within = torch.minimum(size, limit)
        return dt * (within * (size - 0.5 * within)).sum(dim=1)

    return compare_traces(measure, simulated, observed)
