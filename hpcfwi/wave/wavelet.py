"""What a source emits: wavelets and what their spectra say."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def ricker(frequency: float, n: int, dt: float, delay: float) -> NDArray[np.float64]:
    """Ricker wavelet of peak `frequency` (Hz), n samples every `dt` (s), centred at `delay` (s).

    (1 - 2 a) exp(-a) with a = (pi f (t - delay))^2 (Ricker 1953).
    """
    a = (np.pi * frequency * (dt * np.arange(n) - delay)) ** 2
    return (1.0 - 2.0 * a) * np.exp(-a)


def peak_frequency(wavelet: NDArray[np.floating], dt: float) -> float:
    """Frequency (Hz) of the largest amplitude in the spectra of wavelets (..., time)."""
    amplitudes, frequencies = spectra(wavelet, dt)
    return float(frequencies[amplitudes.max(axis=0).argmax()])


def highest_frequency(wavelet: NDArray[np.floating], dt: float, share: float = 1e-4) -> float:
    """Frequency (Hz) above which no amplitude exceeds `share` of the largest.

    0 for a wavelet that is zero.
    """
    amplitudes, frequencies = spectra(wavelet, dt)
    amplitude = amplitudes.max(axis=0)
    if amplitude.max() == 0.0:
        return 0.0
    return float(frequencies[np.flatnonzero(amplitude > share * amplitude.max())[-1]])


def spectra(
    wavelet: NDArray[np.floating], dt: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Amplitudes (wavelet, frequency) of wavelets (..., time), and the frequencies (Hz).

    Padded to four times the length, so that a short wavelet's peak is found between the
    frequencies of its own length.
    """
    n = 4 * wavelet.shape[-1]
    found = np.fft.rfft(np.asarray(wavelet, dtype=np.float64), n).reshape(-1, n // 2 + 1)
    return np.abs(found), np.asarray(np.fft.rfftfreq(n, dt), dtype=np.float64)
