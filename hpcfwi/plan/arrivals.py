"""Observed traces beside simulated ones: first arrivals, how late, how loud, how alike.

Pure functions of the traces of some shots. What follows from their numbers is in `comparison`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcfwi.survey import TimeAxis

Array = NDArray[np.float64]

# Of a trace's largest amplitude, where its first arrival begins.
ONSET = 0.05
# Of the loudest simulated trace, below which nothing has arrived.
SILENT = 1e-4
# Periods before and after the onset that are taken for the first arrival, and how far around it
# it is looked for in the observed trace.
BEFORE, AFTER, FURTHEST = 0.5, 1.5, 3.0
# Of a trace's largest amplitude, what one of its first samples after zeros exceeds where a mute has
# left them: waves that are simulated begin with less.
JUMP, SOON = 1e-8, 4
AS_GOOD = 0.85
# Of offsets, for which the delays of picks are told
RANGES = 4


@dataclass(frozen=True)
class Arrivals:
    """First arrivals of the traces (trace,) in which something arrives, simulated and observed.

    places: their numbers among all; onset: of the simulated arrival, s after the first sample; lag:
    how much later the observed arrival is, s; likeness: its normalised correlation with the
    simulated one at that lag, at most 1; ratio: of its root mean square to the simulated one's;
    noise: that of what comes before to its own, NaN where nothing does; sign: of the observed
    ones against the simulated ones, 1 or -1 for all together, 0 where it cannot be told: a wave of
    few frequencies resembles its own opposite half a period later.
    """

    places: NDArray[np.int64]
    onset: Array
    lag: Array
    likeness: Array
    ratio: Array
    noise: Array
    sign: int


def find_arrivals(observed: Array, simulated: Array, dt: float, period: float) -> Arrivals:
    """Look for the first simulated arrivals (trace, time) in the observed traces.

    dt: s; period: of the wavelet's peak frequency, s.
    """
    largest = np.abs(simulated).max(axis=1, initial=0.0)
    usable = (largest > SILENT * largest.max(initial=0.0)) & np.isfinite(observed).all(axis=1)
    places = np.flatnonzero(usable & observed.any(axis=1))
    simulated = simulated[places] / largest[places, None]
    scale = np.abs(observed[places]).max(axis=1, initial=0.0)
    observed = observed[places] / scale[:, None]  # squares must not overflow
    onset = (np.abs(simulated) > ONSET).argmax(axis=1)
    samples = np.arange(simulated.shape[1])
    first, last = (np.rint(onset + k * period / dt)[:, None] for k in (-BEFORE, AFTER))
    window = ((samples >= first) & (samples <= last)).astype(np.float64)
    arrival = window * simulated
    furthest = max(1, round(FURTHEST * period / dt))
    strength = np.sqrt((arrival**2).sum(axis=1))
    energy = np.maximum(_correlate(window, observed**2, furthest), 0.0)
    # What is next to silence beside the trace is not compared
    there = np.sqrt(np.maximum(energy, 1e-6 * (observed**2).sum(axis=1, keepdims=True)))
    likeness = _correlate(arrival, observed, furthest) / (strength[:, None] * there)
    against, along = -likeness.min(axis=1, initial=0.0), likeness.max(axis=1, initial=0.0)
    sign = _tell_sign(along, against)
    likeness = -likeness if sign < 0 else likeness
    best, rows = _nearest_peak(likeness), np.arange(places.size)
    lag = (best - furthest).astype(np.float64)
    loudness = np.sqrt(energy[rows, best])
    quiet = samples < np.minimum(onset, onset + lag)[:, None] - period / dt
    before = np.sqrt(_mean(observed**2, quiet))
    with np.errstate(divide="ignore", invalid="ignore"):
        noise = before / (loudness / np.sqrt(window.sum(axis=1)))
        ratio = loudness * scale / (strength * largest[places])
    return Arrivals(places, dt * onset, dt * lag, likeness[rows, best], ratio, noise, sign)


def _tell_sign(along: Array, against: Array) -> int:
    """The sign of traces (trace,), of which these are the largest and least correlations."""
    same, opposite = (float(np.median(some)) if some.size else 0.0 for some in (along, against))
    if min(same, opposite) >= AS_GOOD * max(same, opposite):
        return 0
    return 1 if same > opposite else -1


@dataclass(frozen=True)
class PickedArrivals:
    """Picks of first breaks beside the first simulated arrivals.

    offsets: (trace,), of the traces that have both, m; late: how much later the pick is, s;
    opposite: in which share of them the observed wave at the pick has the other sign than the
    simulated one at its arrival.
    """

    offsets: Array
    late: Array
    opposite: float

    @property
    def lag(self) -> float:
        """The median of `late`, s; 0 where there is no trace."""
        return float(np.median(self.late)) if self.late.size else 0.0

    def describe(self) -> str:
        """One line, with the medians of ranges of offsets that have as many traces each."""
        parts = []
        for part in np.array_split(np.argsort(self.offsets, kind="stable"), RANGES):
            if part.size:
                near, far = self.offsets[part[[0, -1]]] / 1000.0
                parts.append(f"{near:.1f} to {far:.1f} km {_say(np.median(self.late[part]))}")
        return (
            f"picks in {self.late.size} of these traces are {_say(self.lag)} than the first "
            f"simulated arrivals ({', '.join(parts) or 'none'}); the sign there is the opposite in "
            f"{100 * self.opposite:.0f} %"
        )


def _say(late: float) -> str:
    return f"{1000 * abs(late):.0f} ms {'later' if late >= 0.0 else 'earlier'}"


def compare_picks(
    picks: Array,
    offsets: Array,
    observed: Array,
    simulated: Array,
    times: NDArray[np.floating],
    period: float,
) -> PickedArrivals:
    """Compare picks (trace,) with the first arrivals of traces (trace, time) that no mute has cut.

    picks: s, NaN where there is none; times: of the samples, s after the shot; period: of the
    wavelet's peak frequency, s.
    """
    largest = np.abs(simulated).max(axis=1, initial=0.0)
    usable = (largest > SILENT * largest.max(initial=0.0)) & np.isfinite(picks)
    usable &= np.isfinite(observed).all(axis=1) & observed.any(axis=1)
    picks, observed, simulated = picks[usable], observed[usable], simulated[usable]
    onset = times[(np.abs(simulated) > ONSET * largest[usable, None]).argmax(axis=1)]
    # From the arrival on, a period of both
    after = np.arange(0.0, period, times[1] - times[0])
    signs = [
        np.sign(
            np.interp(pick + after, times, one / np.abs(one).max())
            @ np.interp(begin + after, times, other / np.abs(other).max())
        )
        for pick, begin, one, other in zip(picks, onset, observed, simulated, strict=True)
    ]
    opposite = float(np.mean(np.array(signs) < 0.0)) if signs else 0.0
    return PickedArrivals(np.abs(offsets[usable]), picks - onset, opposite)


def fit_wavelet(observed: Array, simulated: Array, heard: NDArray[np.bool_] | None = None) -> Array:
    """Pass simulated traces (trace, time) through the filter that brings them nearest to observed.

    Least squares at each frequency, damped by 1 % of the strongest (Pratt 1999, equation 17): what
    a wavelet alone can mend. heard: (trace,), from which it is found; all where not given.
    """
    n = simulated.shape[1]
    made = np.fft.rfft(simulated, 2 * n)
    found = slice(None) if heard is None else heard
    given, known = np.fft.rfft(observed[found], 2 * n), made[found]
    power = (np.abs(known) ** 2).sum(axis=0)
    if not power.any():
        return simulated
    fit = (known.conj() * given).sum(axis=0) / (power + 0.01 * power.max())
    return np.asarray(np.fft.irfft(fit * made, 2 * n)[:, :n])


def predict(observed: Array, simulated: Array) -> Array:
    """Pass simulated traces (trace, time) through wavelets that others were fitted with.

    Every second trace is filtered with what `fit_wavelet` finds from the rest: a filter explains
    any single trace, but only a wavelet explains traces that it was not fitted to.
    """
    second = np.arange(len(simulated)) % 2 == 1
    parts = [fit_wavelet(observed, simulated, heard) for heard in (second, ~second)]
    return np.where(second[:, None], parts[1], parts[0])


def find_heads(traces: NDArray[np.floating], axis: TimeAxis) -> Array:
    """Return until when traces (..., time) were muted, in s after the shot.

    It is -inf of those that were not. A muted trace begins with zeros and then jumps: recordings
    begin with noise, and simulated waves grow from next to nothing.
    """
    size = np.abs(traces)
    first = (size > 0.0).argmax(axis=-1)
    after = np.minimum(first[..., None] + np.arange(SOON), traces.shape[-1] - 1)
    jump = np.take_along_axis(size, after, axis=-1).max(axis=-1)
    muted = (first > 0) & (jump > JUMP * size.max(axis=-1, initial=0.0))
    return np.where(muted, axis.start + axis.dt * first, -np.inf)


def correlation(one: Array, other: Array) -> float:
    """Of all traces together, 0 where there is nothing to correlate."""
    norms = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float((one * other).sum()) / norms if norms else 0.0


def _correlate(one: Array, other: Array, furthest: int) -> Array:
    """Sums of one(t) other(t + lag), for lags of -furthest to furthest samples: (trace, lag)."""
    n = one.shape[1] + furthest
    product = np.fft.rfft(one, n).conj() * np.fft.rfft(other, n)
    return np.roll(np.fft.irfft(product, n), furthest, axis=1)[:, : 2 * furthest + 1]


def _nearest_peak(likeness: Array) -> NDArray[np.int64]:
    """Of the peaks along each row that are `AS_GOOD` as the highest, the one nearest to its middle.

    A later wave, or the next cycle, may by chance be a little more alike.
    """
    padded = np.pad(likeness, ((0, 0), (1, 1)), constant_values=-np.inf)
    peaks = (likeness >= padded[:, :-2]) & (likeness >= padded[:, 2:])
    peaks &= likeness >= AS_GOOD * likeness.max(axis=1, keepdims=True, initial=0.0)
    middle = likeness.shape[1] // 2
    distance = np.abs(np.arange(likeness.shape[1]) - middle)
    return np.where(peaks, distance, likeness.shape[1]).argmin(axis=1)


def _mean(values: Array, where: NDArray[np.bool_]) -> Array:
    count = where.sum(axis=1)
    return np.where(count > 0, (values * where).sum(axis=1) / np.maximum(count, 1), np.nan)
