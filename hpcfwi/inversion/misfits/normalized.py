"""Least squares of traces without their amplitudes."""

from __future__ import annotations

from torch import Tensor

from hpcfwi.inversion.misfits.traces import compare_traces, to_unit_norm


def normalized(simulated: Tensor, observed: Tensor, dt: float) -> tuple[Tensor, Tensor]:
    """Half the squared difference of traces that are each divided by their L2 norms.

    Except for rounding, it is `correlation` (Choi and Alkhalifah 2012), because half the squared
    difference of vectors of length 1 is 1 less their scalar product.
    """

    def measure(simulated: Tensor, observed: Tensor) -> Tensor:
        return 0.5 * (to_unit_norm(simulated) - to_unit_norm(observed)).square().sum(dim=1)

    return compare_traces(measure, simulated, observed)
