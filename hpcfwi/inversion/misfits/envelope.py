"""The envelope misfit: when energy arrives, without its phase."""

from __future__ import annotations

import torch
from torch import Tensor

from hpcfwi.inversion.misfits.traces import compare_traces


def envelope(simulated: Tensor, observed: Tensor, dt: float) -> tuple[Tensor, Tensor]:
    """Half the time integral of the squared difference of envelopes (Bozdag et al. 2011).

    An envelope is the magnitude of a trace with its Hilbert transform (Wu et al. 2014).
    """

    def measure(simulated: Tensor, observed: Tensor) -> Tensor:
        difference = _envelope(simulated) - _envelope(observed)
        return 0.5 * dt * difference.square().sum(dim=1)

    return compare_traces(measure, simulated, observed)


def _envelope(traces: Tensor) -> Tensor:
    """Return the envelope of each trace, with silence before and after it."""
    length = traces.shape[1]
    positive = torch.fft.rfft(traces, n=2 * length)
    # The frequencies 0 and Nyquist have no negative counterpart.
    positive[:, 1:-1] *= 2.0
    # torch defines the gradient of a complex magnitude at 0 as 0; a square root has none there.
    return torch.fft.ifft(positive, n=2 * length)[:, :length].abs()
