"""Residuals as if Student's t had made them: large ones hardly matter."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from hpcfwi.inversion.misfits.traces import compare_traces, typical_amplitude

FREEDOM = "Degrees of freedom: 1 is Cauchy's distribution; the more, the nearer to least squares."
SCALE = (
    "Residual that is usual, over the typical amplitude of what was observed: the median, over a "
    "shot's traces, of their root mean squares."
)


def student(
    simulated: Tensor,
    observed: Tensor,
    dt: float,
    *,
    freedom: Annotated[float, Field(gt=0.0, le=1e30, description=FREEDOM)] = 3.0,
    scale: Annotated[float, Field(gt=0.0, le=1e30, description=SCALE)] = 1.0,
) -> tuple[Tensor, Tensor]:
    """The time integral of n s^2 / 2 log(1 + r^2 / (n s^2)), of residuals r (Aravkin et al. 2011).

    n: `freedom`; s: `scale`. Up to a factor, minus the logarithm of Student's density; with this
    one, least squares for small residuals.
    """

    def measure(simulated: Tensor, observed: Tensor) -> Tensor:
        width = freedom * (scale * typical_amplitude(observed)).square()
        ratios = (simulated - observed).square() / width
        return 0.5 * dt * width * ratios.log1p().sum(dim=1)

    return compare_traces(measure, simulated, observed)
