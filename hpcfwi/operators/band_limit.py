"""Residuals without the frequencies that a history sampled in time does not carry.

Decision 033 says why, and when nothing is done. Filters of the data themselves are not here.
"""

from __future__ import annotations

from math import ceil, pi

import torch
from torch import Tensor

from hpcfwi.operators.threads import one_thread
from hpcfwi.wave import Simulation

# Of a residual's energy, what may lie above the wavelet's band: what that folds into a gradient is
# some 2 % of it, and the residuals of clean data have a thousandth of it at most.
TOLERATED = 1e-2
# Shortest periods at the end of a record that are faded out where energies are weighed: a residual
# that the record cuts off has all frequencies, though its waves have not.
FADED = 2.0
# Of the highest frequency that passes, where the filter begins to fall.
CORNER = 0.9


def limit_residual(residual: Tensor, simulation: Simulation, dt: float) -> Tensor:
    """A residual (shot, receiver, time) as the history of its simulation can carry it.

    It is returned as it is where the history has every step, or the band is not known, and so is
    each shot that has no more than `TOLERATED` above it. Results of a shot do not depend on others.
    dt: of the residual, s.
    """
    history = simulation.history
    if history.interval == 1 or history.frequency is None:
        return residual
    shots = list(residual)
    with one_thread():
        loud = [share_above(shot, history.frequency, dt) > TOLERATED for shot in shots]
        if not any(loud):
            return residual
        limited = [
            low_pass(shot, history.frequency, dt) if is_loud else shot
            for shot, is_loud in zip(shots, loud, strict=True)
        ]
    return torch.stack(limited)


def carry(traces: Tensor, simulation: Simulation, dt: float) -> Tensor:
    """Traces (shot, receiver, time) as the history of a simulation can carry them.

    A linear operator, and its own transpose, where `limit_residual` leaves alone what is quiet.
    """
    history = simulation.history
    if history.interval == 1 or history.frequency is None:
        return traces
    with one_thread():
        return torch.stack([low_pass(shot, history.frequency, dt) for shot in traces])


def share_above(traces: Tensor, frequency: float, dt: float) -> float:
    """The share of the energy of traces (..., time) above a frequency (Hz); 0 of silence."""
    n = traces.shape[-1]
    fading = min(n, ceil(FADED / (frequency * dt)))
    window = torch.ones(n, dtype=traces.dtype, device=traces.device)
    ramp = torch.arange(1, fading + 1, dtype=traces.dtype, device=traces.device) / fading
    window[-fading:] = 0.5 + 0.5 * torch.cos(pi * ramp)
    energy = torch.fft.rfft(traces * window).abs().square().double()
    total = float(energy.sum())
    above = float(energy[..., _frequencies(n, dt, traces) > frequency].sum())
    return above / total if total else 0.0


def low_pass(traces: Tensor, frequency: float, dt: float) -> Tensor:
    """Traces (..., time) up to a frequency (Hz), with zero phase: a symmetric operator.

    A cosine falls to it from `CORNER` times it. Silence on both sides of the record is assumed.
    """
    n = traces.shape[-1]
    frequencies = _frequencies(2 * n, dt, traces)
    fall = ((frequencies / frequency - CORNER) / (1.0 - CORNER)).clamp(0.0, 1.0)
    gain = 0.5 + 0.5 * torch.cos(pi * fall)
    return torch.fft.irfft(torch.fft.rfft(traces, 2 * n) * gain, 2 * n)[..., :n]


def _frequencies(n: int, dt: float, like: Tensor) -> Tensor:
    return torch.fft.rfftfreq(n, dt, dtype=like.dtype, device=like.device)
