"""The misfit of Student's t distribution, to which large residuals contribute little."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from hpcfwi.inversion.misfits.traces import compare_traces, typical_amplitude

FREEDOM = "Degrees of freedom: 1 is the Cauchy distribution; large numbers approach least squares."
SCALE = (
    "Scale of the residuals, in units of the typical amplitude of the observed data: the median of "
    "the root mean squares of a shot's traces."
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

    n: `freedom`; s: `scale`. Up to a factor, it is minus the logarithm of Student's density. The
    factor makes it least squares for small residuals.
    """

    def measure(simulated: Tensor, observed: Tensor) -> Tensor:
        width = freedom * (scale * typical_amplitude(observed)).square()
        ratios = (simulated - observed).square() / width
        return 0.5 * dt * width * ratios.log1p().sum(dim=1)

    return compare_traces(measure, simulated, observed)
