"""The correlation misfit: how far traces are from being in phase."""

from __future__ import annotations

from torch import Tensor

from hpcfwi.inversion.misfits.traces import compare_traces, to_unit_norm


def correlation(simulated: Tensor, observed: Tensor, dt: float) -> tuple[Tensor, Tensor]:
    """1 less the normalised zero-lag correlation, summed over traces (Choi and Alkhalifah 2012).

    It is 0 for a trace in phase and at most 2, and does not depend on amplitudes.
    """

    def measure(simulated: Tensor, observed: Tensor) -> Tensor:
        return 1.0 - (to_unit_norm(simulated) * to_unit_norm(observed)).sum(dim=1)

    return compare_traces(measure, simulated, observed)
