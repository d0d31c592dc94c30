"""What a source emits: wavelets, and which frequencies they have (`spectrum`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcfwi.spectrum import Spectrum


def ricker(frequency: float, n: int, dt: float, delay: float) -> NDArray[np.float64]:
    """Ricker wavelet of peak `frequency` (Hz), n samples every `dt` (s), centred at `delay` (s).

    (1 - 2 a) exp(-a) with a = (pi f (t - delay))^2 (Ricker 1953).
    """
    a = (np.pi * frequency * (dt * np.arange(n) - delay)) ** 2
    return (1.0 - 2.0 * a) * np.exp(-a)


def peak_frequency(wavelet: NDArray[np.floating], dt: float) -> float:
    """Frequency (Hz) of the largest amplitude in the spectra of wavelets (..., time)."""
    return Spectrum.of(wavelet, dt).peak


def highest_frequency(wavelet: NDArray[np.floating], dt: float, share: float = 1e-4) -> float:
    """Frequency (Hz) above which no amplitude exceeds `share` of the largest.

    0 for a wavelet that is zero.
    """
    return Spectrum.of(wavelet, dt).highest(share)
