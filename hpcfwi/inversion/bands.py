"""Frequency bands: filters of zero phase, and the sampling that is enough for what they leave.

Wavelet and observed traces pass the same filter, so that simulated traces need none. One of zero
phase begins before the signal: records of a band begin `lead` seconds earlier, and end as much
earlier, as what is observed ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy
from numpy.typing import NDArray

from hpcfwi.survey import Survey, divide

# Of the Butterworth filters whose squared magnitude is the response
ORDER = 4
# Share of an impulse's energy that may come earlier than `lead` before it
EARLY = 1e-4
# Amplitude, of 1, that is as good as none: that above the Nyquist frequency folds back
SILENT = 1e-3
# Share of the amplitude of signals below which a band has nothing of them but rounding errors
NOTHING = 1e-4


@dataclass(frozen=True)
class Band:
    """A filter of traces of `n` samples, `dt` s apart.

    low, high: frequencies (Hz) at which half of the amplitude is left; low may be 0, for none.
    """

    low: float
    high: float
    n: int
    dt: float

    @cached_property
    def factor(self) -> int:
        """Of how many samples one is kept; a product of small primes, as transforms like it."""
        # 1 / (1 + (f / high)^(2 ORDER)) = SILENT
        highest = self.high * (1.0 / SILENT - 1.0) ** (0.5 / ORDER)
        most = max(1, int(0.5 / (highest * self.dt)))
        return next(k for k in range(most, 0, -1) if scipy.fft.next_fast_len(k) == k)

    @property
    def interval(self) -> float:
        """Between the samples that are kept, s."""
        return self.factor * self.dt

    @cached_property
    def lead(self) -> float:
        """Seconds by which its records begin before the shot; a whole number of kept samples."""
        n = 4 * self.n
        pulse = scipy.fft.irfft(self.response(scipy.fft.rfftfreq(n, self.dt)), n)
        energy = pulse[: n // 2] ** 2
        late = np.cumsum(energy[::-1])[::-1] / (2.0 * energy.sum() - energy[0])
        samples = min(int(np.count_nonzero(late > EARLY)), self.n // 2)
        return -(-samples // self.factor) * self.interval

    def filter(self, traces: NDArray[np.float32]) -> NDArray[np.float32]:
        """Traces (..., time) of the band, in its sampling; each is found without the others."""
        early, kept = round(self.lead / self.interval), -(-self.n // self.factor)
        # So many that what comes before the beginning does not reach the end
        m = int(scipy.fft.next_fast_len(kept + 2 * early, real=True))
        # SciPy's transforms stay in single precision, in which traces are recorded
        spectra = scipy.fft.rfft(np.asarray(traces, np.float32), m * self.factor)[..., : m // 2 + 1]
        response = self.response(scipy.fft.rfftfreq(m, self.interval)) / self.factor
        whole = scipy.fft.irfft(spectra * response.astype(np.float32), m)
        # What is periodic has at its end what comes before the beginning
        return np.asarray(np.roll(whole, early, axis=-1)[..., :kept], np.float32)

    def filter_each(self, wavelets: NDArray[np.float32]) -> NDArray[np.float32]:
        """Wavelets (shot, time) in the band, some at a time."""
        found = np.empty((len(wavelets), -(-self.n // self.factor)), np.float32)
        for part in divide(wavelets):
            found[part] = self.filter(wavelets[part])
        return found

    def survey(self, survey: Survey, wavelet: NDArray[np.float32]) -> Survey:
        """The survey in this band, with its wavelet as `filter` gives it."""
        return replace(
            survey,
            wavelet=wavelet,
            dt=self.interval,
            start=survey.start - self.lead,
        )

    def response(self, frequencies: NDArray[np.floating]) -> NDArray[np.float64]:
        """Its amplitude at frequencies (Hz): that of a filter run forwards and back.

        Butterworth (1930).
        """
        response = 1.0 / (1.0 + (frequencies / self.high) ** (2 * ORDER))
        if self.low > 0.0:
            with np.errstate(divide="ignore"):
                response /= 1.0 + (self.low / frequencies) ** (2 * ORDER)
        return np.asarray(response, dtype=np.float64)
