"""The source's wavelet, where it is not known: found from the data, in the current model.

One for the survey, or one a shot, by least squares at each frequency: the filter that makes
simulated traces the observed ones makes the wavelet that they were simulated with the one that was
emitted (Pratt 1999, Geophysics 64(3), 888-901, equation 17). From there it may take steps with the
model. When it is found anew is decided here; the simulations are `objective`'s.
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
"""(time,), of the whole survey, or (shot, time)."""

Per = Literal["survey", "shot"]
Phase = Literal["free", "zero", "minimum"]

EVERY = "Epochs of a stage from one estimate to the next; only at its beginning where not given."
PER = (
    '`"survey"`: one wavelet, from all shots of an epoch. `"shot"`: each shot its own, from its '
    "own traces, before the first epoch of the stage that has the shot; and again before the first "
    "that is `every` epochs later, or more."
)
FURTHEST = "Furthest offset of the traces that it is found from, m; where not given, of all."
DAMPING = "Power, as a share of the largest, below which a frequency counts little."
LENGTH = (
    "How long the wavelet is; it is 0 outside. Of a free phase the stretch with the most energy is "
    "kept, of zero phase that around its centre, of minimum phase that from its beginning."
)
TAPER = (
    "Over how long it comes to 0 at both ends of its length, or of the record; of minimum phase at "
    "the end alone."
)
PHASE = (
    '`"free"`: as the data say. `"zero"`: the amplitudes that they say, symmetric about a time. '
    '`"minimum"`: the same with the energy as early as can be after a time. The time and the sign '
    "are those that fit the free estimate best."
)
STEP = """About the largest change of a sample in an epoch, as a share of the largest sample.

Of the wavelet that is estimated at first."""

# Decay of the means of the gradient and of its square, as Adam has them where nothing is said
BETAS = 0.9, 0.999
# Amplitude, of the largest, below which a spectrum says nothing of a minimum phase
FAINT = 1e-3
# Times a sample, at which a wavelet of another phase is looked for
FINER = 8


@dataclass(frozen=True)
class Momentum:
    """The moments of the gradients of a wavelet that is optimized.

    mean: of the gradients, (time,); square: mean of the squares of their largest samples; steps:
    number of steps; unit: the largest sample of the wavelet before the first.
    """

    mean: NDArray[np.float64]
    square: float
    steps: int
    unit: float

    def to_table(self) -> dict[str, Any]:
        """Return a table for a checkpoint."""
        return {**vars(self), "mean": torch.from_numpy(self.mean)}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Return the object of a table of `to_table`."""
        return cls(**{**table, "mean": table["mean"].numpy()})


@dataclass(frozen=True)
class Emission:
    """Estimated wavelets.

    wavelet: of the survey, or of each shot, zeros for those that are not known yet; epochs:
    (shot,), the epoch before which each was estimated, 0 for not yet, None if the survey has one;
    momentum: of steps since the estimate, if there were any.
    """

    wavelet: Wavelet
    epochs: NDArray[np.int64] | None = None
    momentum: Momentum | None = None

    @classmethod
    def unknown(cls, n_shots: int, n_samples: int) -> Self:
        """Return wavelets for each of some shots, none of which is known yet."""
        return cls(np.zeros((n_shots, n_samples), np.float32), np.zeros(n_shots, np.int64))

    def having(self, shots: NDArray[np.int64], found: Wavelet, epoch: int) -> Self:
        """Return these with wavelets of some shots, (shot, time), estimated before an epoch."""
        assert self.epochs is not None, "shots have their own"
        wavelet, epochs = self.wavelet.copy(), self.epochs.copy()
        wavelet[shots], epochs[shots] = found, epoch
        return type(self)(wavelet, epochs)

    def complete(self) -> Wavelet:
        """The wavelet, with the mean of the others for shots whose own is not found yet."""
        if self.epochs is None:
            return self.wavelet
        there = self.epochs > 0
        mean = self.wavelet[there].mean(axis=0, dtype=np.float32)
        return np.where(there[:, None], self.wavelet, mean)

    def to_table(self) -> dict[str, Any]:
        """Return a table for a checkpoint."""
        estimated = None if self.epochs is None else self.epochs.tolist()
        momentum = None if self.momentum is None else self.momentum.to_table()
        wavelet = torch.from_numpy(self.wavelet)
        return {"wavelet": wavelet, "estimated": estimated, "momentum": momentum}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Return the object of a table of `to_table`."""
        estimated, momentum = table.get("estimated"), table.get("momentum")
        return cls(
            table["wavelet"].numpy(),
            None if estimated is None else np.array(estimated, np.int64),
            None if momentum is None else Momentum.from_table(momentum),
        )


@dataclass(frozen=True)
class Products:
    """Products of simulated and observed traces by frequency, summed over receivers and shots.

    cross: of observed traces and conjugate simulated ones; power: of simulated ones.
    """

    cross: NDArray[np.complex128]
    power: NDArray[np.float64]

    @classmethod
    def of(cls, simulated: NDArray[np.float32], observed: NDArray[np.float32]) -> Products:
        """Return the products of traces (receiver, time) that are finite."""
        good = np.isfinite(observed).all(axis=-1) & np.isfinite(simulated).all(axis=-1)
        n = 2 * simulated.shape[-1]
        ours, theirs = (
            np.fft.rfft(traces[good].astype(np.float64), n) for traces in (simulated, observed)
        )
        return cls((ours.conj() * theirs).sum(axis=0), (np.abs(ours) ** 2).sum(axis=0))

    def __add__(self, other: Products) -> Products:
        return Products(self.cross + other.cross, self.power + other.power)


class Known:
    """The wavelet is that of the survey."""

    takes_steps = False
    per: Per = "survey"
    furthest: float | None = None

    def is_due(self, place: int) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def estimate(self, wavelet: Wavelet, products: Products, dt: float) -> Wavelet:  # noqa: ARG002
        """The same."""
        return wavelet


class Estimate:
    """The wavelet is estimated at the beginning of a stage, and every so many of its epochs.

    From shots of the epoch, in its model. That of the survey is what it begins with, of which
    nothing but the band matters. Near traces know it best: their first arrivals have come through
    what is known, the water, while far ones blame the wavelet for an earth that is wrong.
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
        """Return which shots' wavelets are due in an epoch, from the epochs of their estimates."""
        due = found == 0
        if self._every:
            due |= epoch - found >= self._every
        return due

    def estimate(self, wavelet: Wavelet, products: Products, dt: float) -> Wavelet:
        """Return what was emitted.

        wavelet: what the simulated traces were made with, sampled every `dt` s.
        """
        n = wavelet.shape[-1]
        most = float(products.power.max())
        if most == 0.0:
            return wavelet
        found = products.cross / (products.power + self._damping * most)
        spectrum = np.fft.rfft(wavelet.astype(np.float64), 2 * n)
        # What is periodic ends with what would come before the record begins
        free = np.fft.irfft(found * spectrum, 2 * n)[:n]
        return self._shape(free, dt).astype(np.float32)

    def _shape(self, wavelet: NDArray[np.float64], dt: float) -> NDArray[np.float64]:
        """Give a wavelet (time,) the phase, the length and the taper that are asked for."""
        n, samples, begin = wavelet.size, wavelet.size, 0
        delay = None
        if self._phase != "free" and wavelet.any():
            wavelet, delay = give_phase(wavelet, self._phase)
        if self._length is not None:
            samples = min(n, max(1, round(self._length / dt)))
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
        if samples == n and self._taper is None:
            return wavelet
        kept = np.zeros(n)
        first, last = max(0, begin), min(n, begin + samples)
        kept[first:last] = wavelet[first:last] * window[first - begin : last - begin]
        return kept


class Optimize(Estimate):
    """The wavelet is estimated at the beginning of a stage, and is one more unknown from there.

    After each epoch it takes a step down the gradient of the misfit with respect to it, in the
    model that the epoch began with; the survey has one. What is evaluated of a model holds for one
    wavelet: optimisers that search along a line evaluate the model they begin with in each epoch.
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

    def step(self, emission: Emission, gradient: NDArray[np.float64]) -> Emission:
        """Return the wavelet after a step along the negative gradient (time,).

        Adam (Kingma and Ba 2015, algorithm 1), but with one second moment, of the largest sample:
        how the misfit bends with one sample it does with any other, as these differ in time alone;
        and what is divided by one number keeps its frequencies.
        """
        size = float(np.abs(emission.wavelet).max())
        before = emission.momentum or Momentum(np.zeros_like(gradient), 0.0, 0, size)
        decay, slow = BETAS
        now = replace(
            before,
            mean=decay * before.mean + (1.0 - decay) * gradient,
            square=slow * before.square + (1.0 - slow) * float(np.abs(gradient).max()) ** 2,
            steps=before.steps + 1,
        )
        if now.square == 0.0:
            return emission
        slope = (now.mean / (1.0 - decay**now.steps)) / np.sqrt(
            now.square / (1.0 - slow**now.steps)
        )
        wavelet = emission.wavelet - self._step * now.unit * slope
        return replace(emission, wavelet=wavelet.astype(np.float32), momentum=now)


def give_phase(wavelet: NDArray[np.float64], phase: Phase) -> tuple[NDArray[np.float64], float]:
    """Return a wavelet (time,) with the same amplitude spectrum and another phase, and its time.

    The time, in samples, is that of the centre of zero phase, and of the beginning of minimum
    phase: where, with its sign, it is most like the wavelet that was given. Minimum phase follows
    from the logarithm of the amplitudes, whose cepstrum is folded to positive times (Oppenheim and
    Schafer 1975, section 7.2); amplitudes below `FAINT` of the largest count as that for it.
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


Wavelets = Known | Estimate


def check_estimates(found: NDArray[np.float32], whose: Sequence[str]) -> None:
    """Raise `InversionFailure` where one of the wavelets (n, time) is zero or not finite."""
    bad = ~(np.isfinite(found).all(axis=1) & found.any(axis=1))
    if bad.any():
        first = int(bad.argmax())
        what = "zero" if np.isfinite(found[first]).all() else "not finite"
        raise InversionFailure(
            f'inversion.wavelet = "estimate" finds that the wavelet of {whose[first]} is {what}, '
            f"as {bad.sum()} of {found.shape[0]} that were estimated are zero or not finite: the "
            "observed traces are silent, or have nothing to do with the simulated ones. "
            "`hpcfwi check` shows them; leave such shots out, by a /mask or of the file, or take a "
            "wavelet that is known"
        )
