"""A survey: sources, receivers, wavelets, sampling and duration, and the spectra of its wavelets.

`storage.gathers` reads and writes survey files, and `wave` simulates the shots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

# Number of traces whose positions are examined together
AT_A_TIME = 2**18


@dataclass(frozen=True)
class TimeAxis:
    """Time axis of traces: a sample every `dt` s, the first of them `start` s after the shot.

    Traces of a frequency band begin before the shot, so that their start is negative.
    """

    dt: float
    start: float

    def times(self, n: int) -> NDArray[np.float64]:
        """Return the times of the first n samples, in s after the shot."""
        return self.start + self.dt * np.arange(n, dtype=np.float64)


# The component that is not a field of waves, but a difference between points along a fibre.
STRAIN = "strain"
# Components and kinds of sources that some equation has; moment tensors are further kinds.
COMPONENTS = ("pressure", "vz", "vy", "vx", STRAIN)
SOURCE_KINDS = ("explosive", "force-z", "force-y", "force-x")

SourceKinds = Mapping[str, NDArray[np.float64]]
"""The kinds of sources, such as "force-z", each with the factor of the wavelet in that kind.

The factors are those of all sources, (), of each shot, (shot,), or of each source, (shot, source).
A moment tensor is the sum of kinds such as "moment-zx", see `moment_kinds`.
"""

EXPLOSIVE: SourceKinds = {"explosive": np.ones(())}


def moment_kinds(tensors: NDArray[np.float64], axes: str) -> SourceKinds:
    """Return the kinds of sources with symmetric moment tensors (..., ndim, ndim).

    axes: "zx" or "zyx", the order of the tensors' axes.
    """
    return {
        f"moment-{axes[row]}{axes[column]}": np.array(tensors[..., row, column])
        for row, column in combinations_with_replacement(range(len(axes)), 2)
    }


def moment_tensors(kinds: SourceKinds, axes: str, n_shots: int) -> NDArray[np.float64]:
    """Return the tensors (shot, ndim, ndim) of the moments among the kinds of sources."""
    ndim = len(axes)
    tensors = np.zeros((n_shots, ndim, ndim))
    for row, column in combinations_with_replacement(range(ndim), 2):
        factors = kinds.get(f"moment-{axes[row]}{axes[column]}", 0.0)
        tensors[:, row, column] = tensors[:, column, row] = factors
    return tensors


def select_kinds(kinds: SourceKinds, shots: Any) -> SourceKinds:
    """Return the kinds of the sources of some shots, given by an index of NumPy."""
    return {name: factors[shots] if factors.ndim else factors for name, factors in kinds.items()}


@dataclass(frozen=True)
class Components:
    """The components of the waves that traces record.

    names: of the components, such as "pressure", "vz" or "strain"; kinds: (receiver,) or (shot,
    receiver), the index in `names` of each trace's component, None if all have the first; gauge: of
    the component strain, the length of fibre over which it is averaged, m; directions: (receiver,
    ndim) or (shot, receiver, ndim), of unit length along the fibre, 0 for other components.
    """

    names: tuple[str, ...] = ("pressure",)
    kinds: NDArray[np.int8] | None = None
    gauge: float | None = None
    directions: NDArray[np.float64] | None = None

    def of_traces(self, shape: tuple[int, int]) -> NDArray[np.int8]:
        """Return the kind of each trace, (shot, receiver), for so many shots and receivers."""
        kinds = np.zeros(shape, np.int8) if self.kinds is None else self.kinds
        return np.broadcast_to(kinds, shape)

    def select_shots(self, shots: Any) -> Components:
        """Return the components of some shots, given by an index of NumPy."""
        kinds, directions = self.kinds, self.directions
        return replace(
            self,
            kinds=kinds if kinds is None or kinds.ndim == 1 else kinds[shots],
            directions=(
                directions if directions is None or directions.ndim == 2 else directions[shots]
            ),
        )

    def select_receivers(self, receivers: Any) -> Components:
        """Return the components of some receivers, given by an index of NumPy."""
        kinds, directions = self.kinds, self.directions
        return replace(
            self,
            kinds=None if kinds is None else kinds[..., receivers],
            directions=None if directions is None else directions[..., receivers, :],
        )


PRESSURE = Components()


@dataclass(frozen=True)
class Survey:
    """An acquisition geometry with its wavelets and sampling.

    Positions are in m, in axis order (z, x) or (z, y, x). sources: (shot, ndim), or (shot, source,
    ndim) if several act at once; receivers: (receiver, ndim), the same for all shots, or (shot,
    receiver, ndim); wavelet: (time,), the same for all shots, (shot, time) or (shot, source, time);
    dt: sampling interval of wavelets and recorded traces, s; mask: (shot, receiver), True for
    traces that count, None if all do. The other traces also have positions; they pad shots with
    fewer receivers to a common number. start: time of the first sample, s after the shot.
    components, source_kinds: of its traces and of its sources. A receiver with several components
    has a position, and a trace, for each of them.
    """

    sources: NDArray[np.float64]
    receivers: NDArray[np.float64]
    wavelet: NDArray[np.float32]
    dt: float
    mask: NDArray[np.bool_] | None = None
    start: float = 0.0
    components: Components = PRESSURE
    source_kinds: SourceKinds = field(default_factory=lambda: EXPLOSIVE)

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
        """Return the same survey with a spectrum that is then not computed again."""
        known = replace(self)
        vars(known)["spectrum"] = spectrum
        return known

    def encoded(self, signs: NDArray[np.int8]) -> Survey:
        """Return the survey of encoded shots, which have all sources and signed wavelets.

        signs: (encoded shot, shot), each -1 or 1. Its sources are (encoded shot, source, ndim), its
        wavelet (encoded shot, source, time). The receivers are the same for all shots.
        """
        count, n_shots = signs.shape
        wavelet = np.broadcast_to(self.wavelet, (n_shots, self.n_samples))
        return replace(
            self,
            sources=np.broadcast_to(self.sources, (count, *self.sources.shape)),
            source_kinds={
                name: factors if factors.ndim == 0 else np.broadcast_to(factors, (count, n_shots))
                for name, factors in self.source_kinds.items()
            },
            wavelet=signs[:, :, None].astype(np.float32) * wavelet,
        )

    def between(self, first: int, end: int) -> Survey:
        """Return the survey of the shots from `first` to before `end`; its arrays are views.

        Arrays that all shots share are not copied.
        """
        return self._take(slice(first, end))

    def blocks(self) -> Iterator[Survey]:
        """Yield all shots in order, some at a time, see `between`."""
        step = max(1, AT_A_TIME // self.n_receivers)
        for first in range(0, self.n_shots, step):
            yield self.between(first, first + step)

    def select(self, shots: NDArray[np.int64]) -> Survey:
        """Return the survey of some shots, in the given order and without shared arrays.

        Its receivers are (shot, receiver, ndim), and its wavelet has one or more for each shot.
        """
        receivers, wavelet = self.receivers, self.wavelet
        if wavelet.ndim == 1:
            wavelet = np.broadcast_to(wavelet, (self.n_shots, *wavelet.shape))
        receivers = np.broadcast_to(receivers, (self.n_shots, *receivers.shape[-2:]))
        return replace(self, receivers=receivers, wavelet=wavelet)._take(shots)

    def _take(self, shots: Any) -> Survey:
        """Return the survey of some shots, given by an index of NumPy."""
        return replace(
            self,
            sources=self.sources[shots],
            receivers=self.receivers if self.receivers.ndim == 2 else self.receivers[shots],
            wavelet=self.wavelet if self.wavelet.ndim == 1 else self.wavelet[shots],
            mask=None if self.mask is None else self.mask[shots],
            components=self.components.select_shots(shots),
            source_kinds=select_kinds(self.source_kinds, shots),
        )

    def receiver_positions(self) -> NDArray[np.float64]:
        """Return positions (n, ndim) of the receivers whose traces count, once for each shot.

        Receivers that all shots share are included only once if all traces count. With several
        components, each position is included only once.
        """
        receivers = self.receivers.reshape(-1, self.receivers.shape[-1])
        if self.mask is not None:
            shape = *self.mask.shape, self.receivers.shape[-1]
            receivers = np.broadcast_to(self.receivers, shape)[self.mask]
        return receivers if len(self.components.names) == 1 else np.unique(receivers, axis=0)

    def receiver_positions_by_part(self) -> Iterator[NDArray[np.float64]]:
        """Yield the positions of `receiver_positions` in parts (n, ndim), which may repeat some."""
        if self.mask is None and self.receivers.ndim == 2:
            yield self.receivers
        else:
            yield from (block.receiver_positions() for block in self.blocks())


def spread_shots(n_shots: int, count: int) -> NDArray[np.int64]:
    """Return the numbers of `count` shots, evenly spread and away from the ends of a survey."""
    return np.arange(1, count + 1) * n_shots // (count + 1)


# Number of samples of padded wavelets that are transformed together, of 8 bytes each
VALUES_AT_A_TIME = 2**18


@dataclass(frozen=True)
class Spectrum:
    """A summary of the spectra of any number of wavelets.

    frequencies: Hz; largest: the largest amplitude of any wavelet at each frequency; energy: the
    sum of the squared amplitudes of all wavelets. Each is (frequency,), float64.
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
        """Return the summary of all wavelets from the summaries of parts of them."""
        largest = np.max([part.largest for part in parts], axis=0)
        energy = np.sum([part.energy for part in parts], axis=0)
        return cls(parts[0].frequencies, largest, energy)

    @property
    def peak(self) -> float:
        """The frequency (Hz) of the largest amplitude."""
        return float(self.frequencies[self.largest.argmax()])

    def highest(self, share: float = 1e-4) -> float:
        """Return the frequency (Hz) above which no amplitude exceeds `share` of the largest.

        It is 0 for wavelets that are zero.
        """
        most = self.largest.max()
        if most == 0.0:
            return 0.0
        return float(self.frequencies[np.flatnonzero(self.largest > share * most)[-1]])

    def energy_above(self, frequency: float) -> float:
        """Return the share of the energy at frequencies above this one (Hz)."""
        return float(self.energy[self.frequencies > frequency].sum() / self.energy.sum())

    def frequency_below(self, share: float) -> float:
        """Return the frequency (Hz) below which this share of the energy lies."""
        below = self.energy.cumsum() / self.energy.sum()
        return float(self.frequencies[int(np.searchsorted(below, share))])


def find_amplitudes(wavelets: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the amplitudes (..., frequency) of wavelets (..., time).

    Wavelets are padded with zeros to four times their length, so that the peak of a short wavelet
    is resolved between the frequencies of the unpadded transform.
    """
    n = 4 * wavelets.shape[-1]
    return np.asarray(np.abs(np.fft.rfft(np.asarray(wavelets, dtype=np.float64), n)))


def find_frequencies(samples: int, dt: float) -> NDArray[np.float64]:
    """Return the frequencies (Hz) of the amplitudes of wavelets with `samples` samples.

    dt: sampling interval, s.
    """
    return np.asarray(np.fft.rfftfreq(4 * samples, dt), dtype=np.float64)


def divide(wavelets: NDArray[np.floating]) -> Iterator[slice]:
    """Yield the parts of wavelets (shot, time) that are transformed together, to save memory."""
    step = max(1, VALUES_AT_A_TIME // (4 * max(1, wavelets.shape[1])))
    for first in range(0, len(wavelets), step):
        yield slice(first, first + step)
