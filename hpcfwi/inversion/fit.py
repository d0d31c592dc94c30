"""How well simulated traces fit observed ones: by shot, by offset and by frequency.

Numbers from views at hand, which `views` makes; the figures are in `report.fit`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcfwi.inversion.views import View

# Amplitude at a frequency, of the largest of a shot's traces, that has no phase to speak of
FAINT = 1e-3
CLOSE = 60.0  # degrees: further off, a residual is larger than what it is the residual of
# Of the largest observed amplitude, what belongs to the band that is told of
WITHIN = 0.1
SHOTS = 12  # that are simulated at the end of a stage


@dataclass(frozen=True)
class ShotFit:
    """Of one shot.

    number, misfit: the shot's; offsets: (trace,), m, as a view has them; phases: (trace,), degrees
    by which observed traces are later than simulated ones, NaN where there is nothing; observed,
    residual: power of these traces (frequency,).
    """

    number: int
    misfit: float
    offsets: NDArray[np.float64]
    phases: NDArray[np.float64]
    observed: NDArray[np.float64]
    residual: NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """Of some shots of a survey.

    frequency: of the phases, Hz; dt: s; start: of the first sample, after the shot, s; shots: in
    the order of their numbers; views: of a few of them.
    """

    frequency: float
    dt: float
    start: float
    shots: tuple[ShotFit, ...]
    views: tuple[View, ...]

    @property
    def n_samples(self) -> int:
        """Of the traces."""
        return int(self.views[0].observed.shape[-1])

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """Of the powers, Hz."""
        return np.asarray(np.fft.rfftfreq(self.n_samples, self.dt), dtype=np.float64)

    @property
    def amplitudes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of observed traces and of the residual (frequency,), over all shots that are finite."""
        observed, residual = (
            np.array([getattr(shot, name) for shot in self.shots])
            for name in ("observed", "residual")
        )
        good = np.isfinite(observed).all(axis=1) & np.isfinite(residual).all(axis=1)
        return np.sqrt(observed[good].sum(axis=0)), np.sqrt(residual[good].sum(axis=0))


def measure_fit(view: View, misfit: float, frequency: float, dt: float) -> ShotFit:
    """The numbers of one shot, from its view and its misfit; frequency: of the phases, Hz."""
    observed, simulated = (a.astype(np.float64) for a in (view.observed, view.simulated))
    return ShotFit(
        view.number,
        misfit,
        view.offsets,
        find_phases(observed, simulated, frequency, dt),
        find_power(observed),
        find_power(observed - simulated),
    )


def find_phases(
    observed: NDArray[np.float64], simulated: NDArray[np.float64], frequency: float, dt: float
) -> NDArray[np.float64]:
    """Degrees, from -180 to 180, by which observed traces (trace, time) are later than simulated.

    At one frequency (Hz), of whole traces, as Shah et al. (2012, SEG Expanded Abstracts) compare
    them. NaN where one of both has next to nothing.
    """
    wave = np.exp(-2j * np.pi * frequency * dt * np.arange(observed.shape[-1]))
    # Not as a product of matrices, whose last digits depend on threads
    theirs, ours = ((traces * wave).sum(axis=-1) for traces in (observed, simulated))
    phases = np.degrees(np.angle(ours * theirs.conj()))
    for found in (theirs, ours):
        sizes = np.abs(found)
        finite = sizes[np.isfinite(sizes)]
        phases[~(sizes > FAINT * finite.max(initial=0.0))] = np.nan
    return np.asarray(phases)


def find_power(traces: NDArray[np.float64]) -> NDArray[np.float64]:
    """At each frequency, summed over traces (trace, time); those that are not finite do not count.

    NaN where none is.
    """
    good = np.isfinite(traces).all(axis=-1)
    if not good.any():
        return np.full(traces.shape[-1] // 2 + 1, np.nan)
    return np.asarray((np.abs(np.fft.rfft(traces[good])) ** 2).sum(axis=0))


def find_ratio(observed: NDArray[np.float64], residual: NDArray[np.float64]) -> float:
    """The residual's size, of what is observed: of amplitudes (frequency,), within their band."""
    within = observed > WITHIN * observed.max(initial=0.0)
    if not within.any():
        return float("nan")
    return float(np.sqrt(np.sum(residual[within] ** 2) / np.sum(observed[within] ** 2)))


def describe_fit(fit: Fit) -> str:
    """A fit in one line."""
    phases = np.concatenate([shot.phases for shot in fit.shots])
    phases = phases[np.isfinite(phases)]
    close = np.mean(np.abs(phases) < CLOSE) if phases.size else 0.0
    return (
        f"of {len(fit.shots)} shots the residual is {100.0 * find_ratio(*fit.amplitudes):.0f} % of "
        f"what was observed; at {fit.frequency:.3g} Hz {100.0 * close:.0f} % of the traces are "
        f"less than {CLOSE:.0f} degrees off"
    )


def choose_shots(n_shots: int, most: int) -> NDArray[np.int64]:
    """Numbers of so many shots at most, spread along a survey from its first to its last."""
    return np.linspace(0, n_shots - 1, min(most, n_shots)).round().astype(np.int64)


def choose_views(shots: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Of these shots so many at most of which traces are shown, as far from the ends as apart."""
    count = min(most, shots.size)
    return shots[(2 * np.arange(count) + 1) * shots.size // (2 * count)]
