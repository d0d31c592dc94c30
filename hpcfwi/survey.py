"""A survey: sources, receivers, wavelets, sampling and duration, and the spectra of its wavelets.

A survey is data. Its files are in `storage.gathers`, its waves in `wave`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

# Traces whose positions are looked at together
AT_A_TIME = 2**18


@dataclass(frozen=True)
class TimeAxis:
    """Time axis of traces: a sample every `dt` s, the first of them `start` s after the shot.

    Traces of a band begin before the shot: their start is negative.
    """

    dt: float
    start: float

    def times(self, n: int) -> NDArray[np.float64]:
        """Return the times of the first n samples, in s after the shot."""
        return self.start + self.dt * np.arange(n, dtype=np.float64)


@dataclass(frozen=True)
class Survey:
    """An acquisition. Positions in m, in axis order (z, x) or (z, y, x).

    sources: (shot, ndim), or (shot, source, ndim) where several act at once; receivers:
    (receiver, ndim), the same for all shots, or (shot, receiver, ndim); wavelet: (time,), the same
    for all shots, (shot, time) or (shot, source, time), sampled at `dt` (s), as the recorded traces
    are. mask: (shot, receiver), which of the traces count; None where all do. Those that do not
    have positions as the others, for shots with fewer receivers than the survey has room for.
    start: when the first sample is, after the shot, s.
    """

    sources: NDArray[np.float64]
    receivers: NDArray[np.float64]
    wavelet: NDArray[np.float32]
    dt: float
    mask: NDArray[np.bool_] | None = None
    start: float = 0.0

    @property
    def n_shots(self) -> int:
        return self.sources.shape[0]

    @property
    def n_receivers(self) -> int:
        return self.receivers.shape[-2]

    @property
    def n_samples(self) -> int:
        return self.wavelet.shape[-1]

    @property
    def axis(self) -> TimeAxis:
        """Time axis of its wavelets and traces."""
        return TimeAxis(self.dt, self.start)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of its traces: (shot, receiver, time)."""
        return self.n_shots, self.n_receivers, self.n_samples

    @cached_property
    def spectrum(self) -> Spectrum:
        """The spectrum of its wavelets."""
        return Spectrum.of(self.wavelet, self.dt)

    def knowing(self, spectrum: Spectrum) -> Survey:
        """The same, whose spectrum was found elsewhere."""
        known = replace(self)
        vars(known)["spectrum"] = spectrum
        return known

    def between(self, first: int, end: int) -> Survey:
        """The survey of the shots from the first to before the end; its arrays are views.

        Arrays that all shots share are not copied.
        """
        part = slice(first, end)
        return replace(
            self,
            sources=self.sources[part],
            receivers=self.receivers if self.receivers.ndim == 2 else self.receivers[part],
            wavelet=self.wavelet if self.wavelet.ndim == 1 else self.wavelet[part],
            mask=None if self.mask is None else self.mask[part],
        )

    def blocks(self) -> Iterator[Survey]:
        """All of its shots, in order, some at a time: views, as `between` has them."""
        step = max(1, AT_A_TIME // self.n_receivers)
        for first in range(0, self.n_shots, step):
            yield self.between(first, first + step)

    def select(self, shots: NDArray[np.int64]) -> Survey:
        """The survey of some of the shots only, in the order asked, fully written out.

        Its receivers are (shot, receiver, ndim), and its wavelet has one or more for each shot.
        """
        receivers = self.receivers
        if receivers.ndim == 2:
            receivers = np.broadcast_to(receivers, (self.n_shots, *receivers.shape))
        wavelet = self.wavelet
        if wavelet.ndim == 1:
            wavelet = np.broadcast_to(wavelet, (self.n_shots, *wavelet.shape))
        return replace(
            self,
            sources=self.sources[shots],
            receivers=receivers[shots],
            wavelet=wavelet[shots],
            mask=None if self.mask is None else self.mask[shots],
        )

    def listeners(self) -> NDArray[np.float64]:
        """Positions (n, ndim) of the receivers whose traces count, once for each shot they hear.

        Those that all shots share are there once.
        """
        if self.mask is None:
            return self.receivers.reshape(-1, self.receivers.shape[-1])
        receivers = np.broadcast_to(self.receivers, (*self.mask.shape, self.receivers.shape[-1]))
        return receivers[self.mask]

    def listeners_by_parts(self) -> Iterator[NDArray[np.float64]]:
        """The same, one part (n, ndim) after the other."""
        if self.mask is None and self.receivers.ndim == 2:
            yield self.receivers
        else:
            yield from (block.listeners() for block in self.blocks())


def spread_shots(n_shots: int, count: int) -> NDArray[np.int64]:
    """Numbers of `count` shots of a survey, evenly and away from its ends; each once, if it can."""
    return np.arange(1, count + 1) * n_shots // (count + 1)


# Samples of padded wavelets that are transformed together, of 8 bytes each
VALUES_AT_A_TIME = 2**18


@dataclass(frozen=True)
class Spectrum:
    """A summary of the spectra of any number of wavelets.

    frequencies: Hz; largest: the largest amplitude of any wavelet at each; energy: the sum of all
    squared amplitudes. Each is (frequency,), float64.
    """

    frequencies: NDArray[np.float64]
    largest: NDArray[np.float64]
    energy: NDArray[np.float64]

    @classmethod
    def of(cls, wavelets: NDArray[np.floating], dt: float) -> Self:
        """Return the summary of wavelets (..., time) with the sampling `dt` (s)."""
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
        """Return the summary of all wavelets from those of their parts."""
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
    """Return the frequencies (Hz) of amplitudes, for wavelets of so many samples of `dt` (s)."""
    return np.asarray(np.fft.rfftfreq(4 * samples, dt), dtype=np.float64)


def divide(wavelets: NDArray[np.floating]) -> Iterator[slice]:
    """Yield the parts of wavelets (shot, time) that are transformed together, to save memory."""
    step = max(1, VALUES_AT_A_TIME // (4 * max(1, wavelets.shape[1])))
    for first in range(0, len(wavelets), step):
        yield slice(first, first + step)
