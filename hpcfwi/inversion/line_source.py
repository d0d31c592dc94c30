"""Data of point sources in the earth, as line sources of a 2-D earth would have given them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def correct_point_source(
    traces: NDArray[np.floating], wavelet: NDArray[np.floating], dt: float, speed: float
) -> NDArray[np.float32]:
    """Traces (receiver, time) with the phase and the amplitude that waves have in two dimensions.

    In a medium of velocity c, at many wavelengths, the Green's function of a line is that of a
    point times sqrt(2 pi r c / (i omega)): an integration by half an order, and a factor
    sqrt(2 pi r c), for which c sqrt(2 pi t) is taken, as r = c t (Forbriger, Gross and Schaefer
    2014, single-trace transformation; Auer et al. 2013). That is right for every arrival that has
    travelled at c, and elsewhere in phase. The transformation of a trace is its own: no other
    trace is needed.

    wavelet: (time,), from the peak of which times of travel count, or (source, time) of several
    that peak at the same time; dt: s; speed: c, m/s.
    """
    n = traces.shape[-1]
    travelled = np.maximum(np.arange(n) - find_peak(wavelet), 0) * dt
    # Padded, as what leaves at the end must not come back at the beginning
    operator = np.fft.rfft(half_integral(n, dt), 2 * n)
    halfway = np.fft.irfft(operator * np.fft.rfft(traces.astype(np.float64), 2 * n), 2 * n)[..., :n]
    return (halfway * speed * np.sqrt(2.0 * np.pi * travelled)).astype(np.float32)


def find_peak(wavelet: NDArray[np.floating]) -> int:
    """The sample at which a wavelet (time,), or the strongest of several (..., time), peaks."""
    return int(np.abs(wavelet).reshape(-1, wavelet.shape[-1]).max(axis=0).argmax())


def half_integral(n: int, dt: float) -> NDArray[np.float64]:
    """The first n weights of integration by half an order, of samples every dt (s).

    Each is the integral of 1 / sqrt(pi t) over a sample, from its middle to the next (the first
    over half of one), so that the singularity at 0 does no harm.
    """
    ends = np.sqrt(dt * np.maximum(np.arange(n + 1) - 0.5, 0.0))
    return np.asarray(2.0 / np.sqrt(np.pi) * np.diff(ends))
