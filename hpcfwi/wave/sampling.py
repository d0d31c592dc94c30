"""From the sampling of the data to that of the simulation, and back.

The simulation may need a shorter step than the data have. Both ways are linear, band-limited
and done in the frequency domain; their transposes follow by automatic differentiation.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import torch
from torch import Tensor

# Samples of the data's step that are simulated beyond the record's end when there are
# substeps, and for records so short, a share of it: a cosine over them takes the traces to zero, so
# that band-limiting does not ring.
LONGEST_TAIL = 64
TAIL_SHARE = 8


def count_tail(samples: int) -> int:
    """Samples beyond a record of so many."""
    return min(LONGEST_TAIL, -(-samples // TAIL_SHARE))


def count_substeps(dt: float, longest: float) -> int:
    """The smallest whole number of substeps that `longest`, the longest stable step, allows."""
    return max(1, ceil(dt / longest * (1.0 - 1e-12)))


def count_steps(samples: int, substeps: int) -> int:
    """Steps of the simulation for so many samples of the wavelet."""
    return samples if substeps == 1 else (samples + count_tail(samples)) * substeps


def refine(wavelet: Tensor, substeps: int) -> Tensor:
    """Wavelets (shot, time) at `substeps` times the sampling rate, with a tail.

    Returned as they are where substeps is 1.
    """
    if substeps == 1:
        return wavelet
    n = wavelet.shape[-1] + count_tail(wavelet.shape[-1])
    spectrum = torch.fft.rfft(wavelet, n)
    if n % 2 == 0:
        spectrum = torch.cat([spectrum[..., :-1], 0.5 * spectrum[..., -1:]], dim=-1)
    return substeps * torch.fft.irfft(spectrum, n * substeps)


def coarsen(traces: Tensor, substeps: int, n: int) -> Tensor:
    """The first n samples at the data's step of traces (..., time) simulated with substeps."""
    if substeps == 1:
        return traces
    tail = count_tail(n)
    ramp = torch.arange(tail * substeps, device=traces.device, dtype=traces.dtype)
    taper = 0.5 + 0.5 * torch.cos(torch.pi * ramp / ramp.numel())
    tapered = torch.cat([traces[..., : n * substeps], traces[..., n * substeps :] * taper], dim=-1)
    spectrum = torch.fft.rfft(tapered)[..., : (n + tail) // 2 + 1]
    return (torch.fft.irfft(spectrum, n + tail) / substeps)[..., :n]


def transpose(linear: Callable[[Tensor], Tensor], at: Tensor, vector: Tensor) -> Tensor:
    """The transpose of a linear function, applied to `vector`; `at` has an argument's shape."""
    # By way of a scalar: torch.func.vjp, and grad with a vector, import torch's compiler or sympy,
    # a second or two of every start.
    with torch.enable_grad():
        start = torch.zeros_like(at, requires_grad=True)
        result: Tensor = torch.autograd.grad((linear(start) * vector).sum(), start)[0]
    return result
