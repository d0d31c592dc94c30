"""Estimates of the wavelet of the sources from the data, in the current model.

There is one wavelet for the survey, or one for each shot. It is found by least squares at each
frequency: the filter from simulated to observed traces is the filter from the wavelet of the
simulation to the emitted one (Pratt 1999, Geophysics 64(3), 888-901, equation 17). It may then be
updated together with the model. This module decides when it is estimated; `objective` runs the
simulations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from hpcfwi.config.values import Count, Seconds
from hpcfwi.errors import InversionFailure

Wavelet = NDArray[np.float32]
"""The wavelet of the whole survey, (time,), or those of shots, (shot, time)."""

Per = Literal["survey", "shot"]
Phase = Literal["free", "zero", "minimum"]

EVERY = "Epochs of a stage from one estimate to the next; if not given, only one at its beginning."
PER = (
    '`"survey"`: one wavelet, from all shots of an epoch. `"shot"`: one wavelet for each shot, '
    "from its traces, before the first epoch of the stage that has the shot, and again before the "
    "first such epoch that is at least `every` epochs later."
)
FURTHEST = "Largest offset of the traces that are used, m; if not given, all traces are used."
DAMPING = "Power, as a share of the largest, below which a frequency has little weight."
LENGTH = (
    "Length of the wavelet, which is 0 outside. A wavelet of free phase keeps the stretch with the "
    "most energy, one of zero phase that around its centre, one of minimum phase that from its "
    "beginning."
)
TAPER = (
    "Length of the tapers to 0 at both ends of the wavelet's length, or of the record; a wavelet "
    "of minimum phase is tapered at its end only."
)
PHASE = (
    '`"free"`: the phase of the data. `"zero"`: the amplitudes of the data, symmetric about a '
    'time. `"minimum"`: the same amplitudes, with the energy as early as possible after a time. '
    "The time and the sign are those that fit the free estimate best."
)
STEP = """About the largest change of a sample per epoch, as a share of the largest sample.

This is the largest sample of the first estimate."""

# Decay rates of the means of the gradient and of its square, which are the defaults of Adam.
BETAS = 0.9, 0.999
# Amplitudes below this share of the largest do not affect a minimum phase.
FAINT = 1e-3
# Points per sample at which the time of a wavelet with a given phase is tried.
FINER = 8


@dataclass(frozen=True)
class Momentum:
    """The moments of the gradients of a wavelet that is optimized.

    mean: of the gradients, (time,); square: mean of the squares of their largest samples; steps:
    number of steps; unit: the largest sample of the wavelet before the first step.
    """

    mean: NDArray[np.float64]
    square: float
    steps: int
    unit: float


@dataclass(frozen=True)
class WaveletEstimate:
    """The estimated wavelet of the survey, or those of shots.

    wavelet: (time,), or (shot, time) with zeros for shots without an estimate; epochs: (shot,), the
    epoch before which each was estimated, 0 without an estimate, and None if the survey has a
    single wavelet; momentum: of the steps since the estimate, if there are any.
    """

    wavelet: Wavelet
    epochs: NDArray[np.int64] | None = None
    momentum: Momentum | None = None

    @classmethod
    def unknown(cls, n_shots: int, n_samples: int) -> Self:
        """Return the wavelets of shots before the first estimate."""
        return cls(np.zeros((n_shots, n_samples), np.float32), np.zeros(n_shots, np.int64))

    def having(self, shots: NDArray[np.int64], found: Wavelet, epoch: int) -> Self:
        """Return the estimates with new wavelets (shot, time) of some shots in an epoch."""
        assert self.epochs is not None, "shots have their own"
        wavelet, epochs = self.wavelet.copy(), self.epochs.copy()
        wavelet[shots], epochs[shots] = found, epoch
        return type(self)(wavelet, epochs)

    def complete(self) -> Wavelet:
        """Return the wavelet; shots without an estimate get the mean of the others."""
        if self.epochs is None:
            return self.wavelet
        there = self.epochs > 0
        mean = self.wavelet[there].mean(axis=0, dtype=np.float32)
        return np.where(there[:, None], self.wavelet, mean)

    def to_table(self) -> dict[str, Any]:
        """Return a table for a checkpoint."""
        estimated = None if self.epochs is None else self.epochs.tolist()
        momentum = self.momentum and {
            **vars(self.momentum),
            "mean": torch.from_numpy(self.momentum.mean),
        }
        wavelet = torch.from_numpy(self.wavelet)
        return {"wavelet": wavelet, "estimated": estimated, "momentum": momentum}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Return the estimate in a table of `to_table`."""
        estimated, momentum = table["estimated"], table["momentum"]
        return cls(
            table["wavelet"].numpy(),
            None if estimated is None else np.array(estimated, np.int64),
            momentum and Momentum(**{**momentum, "mean": momentum["mean"].numpy()}),
        )


@dataclass(frozen=True)
class CrossSpectra:
    """The cross-spectra of simulated and observed traces, summed over receivers and shots.

    Both arrays are (frequency,). cross: of observed traces and conjugate simulated traces; power:
    of simulated traces.
    """

    cross: NDArray[np.complex128]
    power: NDArray[np.float64]

    @classmethod
    def of(cls, simulated: NDArray[np.floating], observed: NDArray[np.floating]) -> CrossSpectra:
        """Return the sums over those traces (receiver, time) that are finite."""
        good = np.isfinite(observed).all(axis=-1) & np.isfinite(simulated).all(axis=-1)
        n = 2 * simulated.shape[-1]
        ours, theirs = (
            np.fft.rfft(traces[good].astype(np.float64), n) for traces in (simulated, observed)
        )
        return cls((ours.conj() * theirs).sum(axis=0), (np.abs(ours) ** 2).sum(axis=0))

    def fit(self, damping: float) -> NDArray[np.complex128]:
        """Return the filter (frequency,) of simulated traces that fits the observed ones best.

        It is the least-squares solution at each frequency (Pratt 1999, equation 17). The power must
        not be zero everywhere. damping: share of the largest power that is added to each.
        """
        return self.cross / (self.power + damping * self.power.max())

    def __add__(self, other: CrossSpectra) -> CrossSpectra:
        return CrossSpectra(self.cross + other.cross, self.power + other.power)


class GivenWavelet:
    """The method that uses the wavelet of the survey."""

    takes_steps = False
    per: Per = "survey"
    furthest: float | None = None

    def is_due(self, place: int) -> bool:  # noqa: ARG002
        return False


class Estimate:
    """The method that estimates the wavelet at the beginning of a stage, and every so many epochs.

    It uses the shots and the model of the epoch. It starts from the wavelet of the survey, or from
    the last estimate in the stage, of which only the band matters. Near traces are the most
    reliable, because their first arrivals have travelled through water of known velocity; far
    traces attribute errors of the model to the wavelet.
    """

    takes_steps = False

    def __init__(
        self,
        *,
        every: Annotated[Count | None, Field(description=EVERY)] = None,
        per: Annotated[Per, Field(description=PER)] = "survey",
        furthest: Annotated[float | None, Field(gt=0.0, description=FURTHEST)] = None,
        damping: Annotated[float, Field(gt=0.0, lt=1.0, description=DAMPING)] = 1e-3,
        length: Annotated[Seconds | None, Field(description=LENGTH)] = None,
        taper: Annotated[Seconds | None, Field(description=TAPER)] = None,
        phase: Annotated[Phase, Field(description=PHASE)] = "free",
    ) -> None:
        self._every, self._damping = every, damping
        self._length, self._taper, self._phase = length, taper, phase
        self.per: Per = per
        self.furthest = furthest

    def is_due(self, place: int) -> bool:
        """Return True if the survey's wavelet is due in an epoch of a stage, counted from 0."""
        return place % self._every == 0 if self._every else place == 0

    def find_due(self, epoch: int, found: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the shots whose wavelets are due in an epoch.

        found: the epochs of their last estimates, 0 without one.
        """
        due = found == 0
        if self._every:
            due |= epoch - found >= self._every
        return due

    def estimate(self, wavelet: Wavelet, spectra: CrossSpectra, dt: float) -> Wavelet:
        """Return the emitted wavelet, (time,); it is unchanged if all simulated traces are silent.

        wavelet: the wavelet of the simulated traces, (time,), sampled every `dt` s; spectra: of the
        simulated and the observed traces.
        """
        n = wavelet.shape[-1]
        if not spectra.power.any():
            return wavelet
        found = spectra.fit(self._damping)
        spectrum = np.fft.rfft(wavelet.astype(np.float64), 2 * n)
        # The periodic signal is cut, because its end is from before the beginning of the record.
        free = np.fft.irfft(found * spectrum, 2 * n)[:n]
        return self._shape(free, dt).astype(np.float32)

    def _shape(self, wavelet: NDArray[np.float64], dt: float) -> NDArray[np.float64]:
        """Return a wavelet (time,) with the requested phase, length and taper."""
        n, samples, begin = wavelet.size, wavelet.size, 0
        delay = None
        if self._phase != "free" and wavelet.any():
            wavelet, delay = give_phase(wavelet, self._phase)
        if self._length is not None:
            samples = min(n, max(1, round(self._length / dt)))
        if samples == n and self._taper is None:
            return wavelet
        if samples < n and delay is None:
            energy = np.concatenate([[0.0], np.cumsum(wavelet**2)])
            begin = int(np.argmax(energy[samples:] - energy[:-samples]))
        elif samples < n and delay is not None:
            begin = int(delay) - (samples // 2 if self._phase == "zero" else 1)
        window = np.ones(samples)
        if self._taper is not None:
            slope = min(max(1, round(self._taper / dt)), samples // 2)
            ramp = 0.5 - 0.5 * np.cos(np.pi * (np.arange(slope) + 0.5) / slope)
            window[samples - slope :] *= ramp[::-1]
            if self._phase != "minimum":
                window[:slope] *= ramp
        kept = np.zeros(n)
        first, last = max(0, begin), min(n, begin + samples)
        kept[first:last] = wavelet[first:last] * window[first - begin : last - begin]
        return kept


class Optimize(Estimate):
    """The method that estimates the wavelet at the beginning of a stage, and then optimizes it.

    After each epoch the wavelet of the survey takes a step along the negative gradient of the
    misfit, in the model at the beginning of the epoch. Evaluations of a model are valid for one
    wavelet, so that optimizers with a line search evaluate the first model of each epoch.
    """

    takes_steps = True

    def __init__(
        self,
        *,
        step: Annotated[float, Field(gt=0.0, le=1.0, description=STEP)] = 0.003,
        furthest: Annotated[float | None, Field(gt=0.0, description=FURTHEST)] = None,
        damping: Annotated[float, Field(gt=0.0, lt=1.0, description=DAMPING)] = 1e-3,
    ) -> None:
        super().__init__(furthest=furthest, damping=damping)
        self._step = step

    def step(self, estimated: WaveletEstimate, gradient: NDArray[np.float64]) -> WaveletEstimate:
        """Return the wavelet after a step along the negative gradient (time,).

        This is Adam (Kingma and Ba 2015, algorithm 1) with a single second moment, that of the
        largest sample. The curvature of the misfit is the same for all samples, because they differ
        in time only, and dividing by a single number does not change the spectrum's shape.
        """
        size = float(np.abs(estimated.wavelet).max())
        before = estimated.momentum or Momentum(np.zeros_like(gradient), 0.0, 0, size)
        decay, slow = BETAS
        now = replace(
            before,
            mean=decay * before.mean + (1.0 - decay) * gradient,
            square=slow * before.square + (1.0 - slow) * float(np.abs(gradient).max()) ** 2,
            steps=before.steps + 1,
        )
        if now.square == 0.0:
            return estimated
        slope = (now.mean / (1.0 - decay**now.steps)) / np.sqrt(
            now.square / (1.0 - slow**now.steps)
        )
        wavelet = estimated.wavelet - self._step * now.unit * slope
        return replace(estimated, wavelet=wavelet.astype(np.float32), momentum=now)


def give_phase(wavelet: NDArray[np.float64], phase: Phase) -> tuple[NDArray[np.float64], float]:
    """Return a wavelet (time,) with the same amplitude spectrum and another phase, and its time.

    The time, in samples, is that of the centre for zero phase, and that of the beginning for
    minimum phase. Time and sign are chosen so that the result is most similar to the given wavelet.
    Minimum phase follows from the logarithm of the amplitudes, whose cepstrum is folded to positive
    times (Oppenheim and Schafer 1975, section 7.2); for this, amplitudes below `FAINT` times the
    largest are replaced by that value.
    """
    n = wavelet.size
    m = 8 * n
    spectrum = np.fft.rfft(wavelet, m)
    shape = np.abs(spectrum).astype(np.complex128)
    if phase == "minimum":
        amplitude = np.abs(spectrum)
        cepstrum = np.fft.irfft(np.log(np.maximum(amplitude, FAINT * amplitude.max())), m)
        cepstrum[1 : m // 2] *= 2.0
        cepstrum[m // 2 + 1 :] = 0.0
        shape *= np.exp(1j * np.fft.rfft(cepstrum).imag)
    likeness = np.fft.irfft(spectrum * shape.conj(), FINER * m)[: FINER * n]
    k = int(np.abs(likeness).argmax())
    delay = float(k)
    if 0 < k < likeness.size - 1:
        before, here, after = np.abs(likeness[k - 1 : k + 2])
        bend = before - 2.0 * here + after
        delay += 0.5 * (before - after) / bend if bend else 0.0
    delay /= FINER
    turns = np.exp(-2j * np.pi * np.arange(shape.size) * delay / m)
    return np.sign(likeness[k]) * np.fft.irfft(shape * turns, m)[:n], delay


Wavelets = GivenWavelet | Estimate


def check_estimates(found: NDArray[np.float32], whose: Sequence[str]) -> None:
    """Raise `InversionFailure` if one of the wavelets (n, time) is zero or not finite."""
    bad = ~(np.isfinite(found).all(axis=1) & found.any(axis=1))
    if bad.any():
        first = int(bad.argmax())
        what = "zero" if np.isfinite(found[first]).all() else "not finite"
        raise InversionFailure(
            f'inversion.wavelet = "estimate" finds that the wavelet of {whose[first]} is {what}; '
            f"{bad.sum()} of {found.shape[0]} estimated wavelets are zero or not finite: the "
            "observed traces are silent, or unrelated to the simulated ones. `hpcfwi check` shows "
            "them; leave out such shots (by a /mask, or in the file), or use a known wavelet"
        )
