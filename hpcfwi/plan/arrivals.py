"""Arrivals in observed data, and traces that are dead, loud or broken.

How late, how loud and how alike arrivals are is found in some shots, beside simulated traces;
`comparison` concludes from their numbers. A scan reads every trace of data that others have made
once, but for those that `[data]` leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.inversion.conditioning import (
    NEIGHBOURS,
    Conditioning,
    median_of_finite,
    median_of_neighbours,
    root_mean_square,
)
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.operators.simulator import Aperture
from hpcfwi.parallel.context import Context
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.survey import Survey, TimeAxis
from hpcfwi.wave.simulation import wave_speed

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
        """Return a line with the medians of ranges of offsets with equal numbers of traces."""
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
    """Return the correlation of all traces together, 0 if one is zero."""
    norms = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float((one * other).sum()) / norms if norms else 0.0


def _correlate(one: Array, other: Array, furthest: int) -> Array:
    """Sums of one(t) other(t + lag), for lags of -furthest to furthest samples: (trace, lag)."""
    n = one.shape[1] + furthest
    product = np.fft.rfft(one, n).conj() * np.fft.rfft(other, n)
    return np.roll(np.fft.irfft(product, n), furthest, axis=1)[:, : 2 * furthest + 1]


def _nearest_peak(likeness: Array) -> NDArray[np.int64]:
    """Return the peak nearest to the middle of each row that is `AS_GOOD` as the highest.

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


# Of the median of its neighbours in offset: below it a trace is dead, above it loud.
DEAD, LOUD = 1e-3, 10.0
# A sample so many times as large as the next of its trace: waves have slopes.
SPIKE = 3.0
AT_A_TIME = 2**22  # bytes that are looked at
FAULTS = ("broken", "spiky", "dead", "loud")

SHOWN = 3  # places of traces with a fault that are told

Place = tuple[int, int]  # shot and receiver


@dataclass(frozen=True)
class Tally:
    """Traces with a fault: how many, and the places of the first `SHOWN`."""

    count: int = 0
    first: tuple[Place, ...] = ()

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.count + other.count, (*self.first, *other.first)[:SHOWN])


@dataclass(frozen=True)
class Scan:
    """The faults of the traces of a survey.

    shots, traces: numbers that were scanned; broken: traces that are not finite; silent: shots
    without a signal.
    """

    shots: int
    traces: int
    silent: tuple[int, ...] = ()
    broken: Tally = Tally()
    spiky: Tally = Tally()
    dead: Tally = Tally()
    loud: Tally = Tally()


@dataclass(frozen=True)
class _Found:
    """The faults in some shots; loudness: of a typical trace of each, infinite without one."""

    traces: int
    loudness: NDArray[np.float64]
    tallies: Mapping[str, Tally]


def scan_traces(experiment: Experiment, reader: GatherReader, context: Context) -> Scan:
    """Read the whole survey, each rank its part of the shots; collective."""
    n_shots = experiment.survey.n_shots
    share = -(-n_shots // context.size)
    mine = np.arange(n_shots)[context.rank * share :][:share]
    scanner = _Scanner.of(experiment)
    traces, tallies, typical = 0, dict.fromkeys(FAULTS, Tally()), torch.zeros(share).double()
    for shots in _in_parts(mine, reader):
        with context.heartbeat.waiting():
            gathers = reader.read(shots)
        found = scanner.look_at(shots, gathers)
        traces += found.traces
        tallies = {kind: tallies[kind] + found.tallies[kind] for kind in FAULTS}
        typical[shots - context.rank * share] = torch.from_numpy(found.loudness)
        context.heartbeat.beat()
    ranks = context.all_gather((traces, tallies))
    loudness = context.gather_pieces(typical).view(-1)[:n_shots].numpy()
    audible = loudness[np.isfinite(loudness) & (loudness > 0.0)]
    least = DEAD * float(np.median(audible)) if audible.size else 0.0
    return Scan(
        n_shots,
        sum(traces for traces, _ in ranks),
        silent=tuple(np.flatnonzero(loudness <= least).tolist()),
        **{kind: sum((tallies[kind] for _, tallies in ranks), Tally()) for kind in FAULTS},
    )


def _in_parts(shots: NDArray[np.int64], reader: GatherReader) -> Iterator[NDArray[np.int64]]:
    _, n_receivers, n_samples = reader.survey.shape
    # Beside its samples each trace has its neighbours, in double precision
    size = max(1, AT_A_TIME // (n_receivers * (4 * n_samples + 8 * NEIGHBOURS)))
    return (shots[i : i + size] for i in range(0, shots.size, size))


@dataclass(frozen=True)
class _Scanner:
    """The criteria for traces; slowest: speed of waves, m/s."""

    survey: Survey
    aperture: Aperture
    conditioning: Conditioning
    slowest: float

    @classmethod
    def of(cls, experiment: Experiment) -> Self:
        return cls(
            experiment.survey,
            experiment.compared().aperture,
            experiment.conditioning(),
            float(wave_speed(experiment.initial.arrays).min()),
        )

    def look_at(self, shots: NDArray[np.int64], traces: NDArray[np.float32]) -> _Found:
        """The traces (shot, receiver, time) of these shots."""
        survey = self.survey.select(shots)
        heard = self.aperture.trace_mask(survey.sources, survey.receivers)
        heard &= self.conditioning.select(traces, survey)
        if survey.mask is not None:
            heard &= survey.mask
        distances = np.linalg.norm(survey.receivers - survey.sources[:, None], axis=-1)
        peaks = survey.dt * np.abs(survey.wavelet).argmax(axis=1)
        due = peaks[:, None] + distances / self.slowest < survey.dt * survey.n_samples
        loudness = root_mean_square(traces)
        broken, spiky = ~np.isfinite(traces).all(axis=-1), find_spikes(traces)
        typical = median_of_neighbours(loudness, distances)
        dead = due & (loudness <= DEAD * np.nan_to_num(typical))
        with np.errstate(invalid="ignore"):
            loud = (loudness > LOUD * typical) & ~spiky
        good = heard & due & ~broken
        # Of traces that hold anything: the few that do make a shot that is not silent
        of_shots = median_of_finite(np.where(good & (loudness > 0.0), loudness, np.nan))
        of_shots = np.nan_to_num(of_shots)
        dead[of_shots == 0.0] = False  # told as a shot
        faults = {"broken": broken, "spiky": spiky, "dead": dead & ~broken, "loud": loud & ~broken}
        return _Found(
            int(heard.sum()),
            np.where(good.any(axis=1), of_shots, np.inf),
            {kind: _count(shots, heard & faults[kind]) for kind in FAULTS},
        )


def _count(shots: NDArray[np.int64], which: NDArray[np.bool_]) -> Tally:
    rows, receivers = np.nonzero(which)
    first = zip(shots[rows[:SHOWN]].tolist(), receivers[:SHOWN].tolist(), strict=True)
    return Tally(rows.size, tuple(first))


def find_spikes(traces: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which traces (..., time) have one sample that is far beyond all others."""
    ends = np.partition(np.abs(traces), (-2, -1), axis=-1)
    second, largest = ends[..., -2], ends[..., -1]
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray((largest > SPIKE * second) & np.isfinite(largest) & (largest > 0.0))
