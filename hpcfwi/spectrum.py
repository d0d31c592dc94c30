"""What spectra say of wavelets: of one, or of all shots of a survey at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

# Samples of padded wavelets that are transformed together, of 8 bytes each
AT_A_TIME = 2**18


@dataclass(frozen=True)
class Spectrum:
    """What is left of the spectra of wavelets, however many there are.

    frequencies: Hz; largest: the largest amplitude of any wavelet at each; energy: the sum of all
    squared ones. Each is (frequency,), float64.
    """

    frequencies: NDArray[np.float64]
    largest: NDArray[np.float64]
    energy: NDArray[np.float64]

    @classmethod
    def of(cls, wavelets: NDArray[np.floating], dt: float) -> Self:
        """That of wavelets (..., time), `dt` (s) apart in time; some of them at a time."""
        rows = wavelets.reshape(-1, wavelets.shape[-1])
        frequencies = find_frequencies(rows.shape[1], dt)
        largest, energy = np.zeros_like(frequencies), np.zeros_like(frequencies)
        for part in divide(rows):
            amplitudes = find_amplitudes(rows[part])
            np.maximum(largest, amplitudes.max(axis=0), out=largest)
            energy += (amplitudes**2).sum(axis=0)
        return cls(frequencies, largest, energy)

    @classmethod
    def together(cls, parts: Sequence[Self]) -> Self:
        """That of all wavelets of which these are parts."""
        largest = np.max([part.largest for part in parts], axis=0)
        energy = np.sum([part.energy for part in parts], axis=0)
        return cls(parts[0].frequencies, largest, energy)

    @property
    def peak(self) -> float:
        """The frequency (Hz) of the largest amplitude."""
        return float(self.frequencies[self.largest.argmax()])

    def highest(self, share: float = 1e-4) -> float:
        """The frequency (Hz) above which no amplitude exceeds `share` of the largest.

        0 for wavelets that are zero.
        """
        most = self.largest.max()
        if most == 0.0:
            return 0.0
        return float(self.frequencies[np.flatnonzero(self.largest > share * most)[-1]])

    def energy_above(self, frequency: float) -> float:
        """The share of the energy at frequencies (Hz) above this one."""
        return float(self.energy[self.frequencies > frequency].sum() / self.energy.sum())

    def frequency_below(self, share: float) -> float:
        """The frequency (Hz) below which this share of the energy lies."""
        below = self.energy.cumsum() / self.energy.sum()
        return float(self.frequencies[int(np.searchsorted(below, share))])


def find_amplitudes(wavelets: NDArray[np.floating]) -> NDArray[np.float64]:
    """Amplitudes (..., frequency) of wavelets (..., time).

    Padded to four times the length, so that a short wavelet's peak is found between the
    frequencies of its own length.
    """
    n = 4 * wavelets.shape[-1]
    return np.asarray(np.abs(np.fft.rfft(np.asarray(wavelets, dtype=np.float64), n)))


def find_frequencies(samples: int, dt: float) -> NDArray[np.float64]:
    """Of these amplitudes, Hz; for wavelets of so many samples, `dt` (s) apart."""
    return np.asarray(np.fft.rfftfreq(4 * samples, dt), dtype=np.float64)


def divide(wavelets: NDArray[np.floating]) -> Iterator[slice]:
    """Which of wavelets (shot, time) are transformed together, as spectra take more than they."""
    step = max(1, AT_A_TIME // (4 * max(1, wavelets.shape[1])))
    for first in range(0, len(wavelets), step):
        yield slice(first, first + step)
