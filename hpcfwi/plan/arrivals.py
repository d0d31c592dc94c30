"""Arrivals in observed data, and traces that are dead, loud or broken.

Delays, amplitudes and correlations of arrivals are measured in some shots by comparison with
simulated traces; `comparison` summarizes them. A scan reads every trace of external data once,
except for those that `[data]` leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.inversion.conditioning import (
    NEIGHBOURS,
    index_components,
    median_of_finite,
    median_of_neighbours,
    root_mean_square,
)
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.wavelets import CrossSpectra
from hpcfwi.parallel.context import Context
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.survey import TimeAxis

Array = NDArray[np.float64]

# The onset of a first arrival is where its trace reaches this share of its largest amplitude.
ONSET = 0.05
# Simulated traces below this share of the largest amplitude of all have no arrival.
SILENT = 1e-4
# The first arrival is the part from BEFORE to AFTER periods around the onset. It is searched for in
# the observed trace up to FURTHEST periods earlier or later.
BEFORE, AFTER, FURTHEST = 0.5, 1.5, 3.0
# After the zeros of a mute, one of the first SOON samples exceeds the share JUMP of the trace's
# largest amplitude. Simulated waves begin with smaller values.
JUMP, SOON = 1e-8, 4
AS_GOOD = 0.85
# Number of ranges of offsets in the report of picks.
RANGES = 4


@dataclass(frozen=True)
class Arrivals:
    """First arrivals, simulated and observed, in the traces (trace,) that have one.

    places: indices among all traces; onset: time of the simulated arrival, s after the first
    sample; lag: delay of the observed arrival, s; likeness: its normalized correlation with the
    simulated one at this lag, at most 1; ratio: its root mean square over that of the simulated
    one; noise: the root mean square before the arrival over its own, NaN if no samples precede it;
    sign: sign of the observed arrivals relative to the simulated ones, 1 or -1 for all together, 0
    if it cannot be determined, because a narrow-band wave shifted by half a period is similar to
    its opposite.
    """

    places: NDArray[np.int64]
    onset: Array
    lag: Array
    likeness: Array
    ratio: Array
    noise: Array
    sign: int


def find_arrivals(observed: Array, simulated: Array, dt: float, period: float) -> Arrivals:
    """Find the first arrivals of simulated traces (trace, time) in the observed traces.

    dt: sampling interval, s; period: period of the wavelet's peak frequency, s.
    """
    largest = np.abs(simulated).max(axis=1, initial=0.0)
    usable = (largest > SILENT * largest.max(initial=0.0)) & np.isfinite(observed).all(axis=1)
    places = np.flatnonzero(usable & observed.any(axis=1))
    simulated = simulated[places] / largest[places, None]
    scale = np.abs(observed[places]).max(axis=1, initial=0.0)
    observed = observed[places] / scale[:, None]  # otherwise squares could overflow
    onset = (np.abs(simulated) > ONSET).argmax(axis=1)
    samples = np.arange(simulated.shape[1])
    first, last = (np.rint(onset + k * period / dt)[:, None] for k in (-BEFORE, AFTER))
    window = ((samples >= first) & (samples <= last)).astype(np.float64)
    arrival = window * simulated
    furthest = max(1, round(FURTHEST * period / dt))
    strength = np.sqrt((arrival**2).sum(axis=1))
    energy = np.maximum(_correlate(window, observed**2, furthest), 0.0)
    # The lower limit prevents high correlations with parts of the trace that are almost silent.
    there = np.sqrt(np.maximum(energy, 1e-6 * (observed**2).sum(axis=1, keepdims=True)))
    likeness = _correlate(arrival, observed, furthest) / (strength[:, None] * there)
    against, along = -likeness.min(axis=1, initial=0.0), likeness.max(axis=1, initial=0.0)
    sign = _tell_sign(along, against)
    likeness = -likeness if sign < 0 else likeness
    best, rows = _nearest_peak(likeness), np.arange(places.size)
    lag = (best - furthest).astype(np.float64)
    loudness = np.sqrt(energy[rows, best])
    quiet = samples < np.minimum(onset, onset + lag)[:, None] - period / dt
    with np.errstate(divide="ignore", invalid="ignore"):
        before = np.sqrt((observed**2 * quiet).sum(axis=1) / quiet.sum(axis=1))
        noise = before / (loudness / np.sqrt(window.sum(axis=1)))
        ratio = loudness * scale / (strength * largest[places])
    return Arrivals(places, dt * onset, dt * lag, likeness[rows, best], ratio, noise, sign)


def _tell_sign(along: Array, against: Array) -> int:
    """Return the sign of arrivals: 1, -1, or 0 if it is unclear.

    along, against: (trace,), the largest correlations with the arrival and with its opposite.
    """
    same, opposite = (float(np.median(some)) if some.size else 0.0 for some in (along, against))
    if min(same, opposite) >= AS_GOOD * max(same, opposite):
        return 0
    return 1 if same > opposite else -1


@dataclass(frozen=True)
class PickedArrivals:
    """Picks of first breaks compared with the first simulated arrivals.

    offsets: (trace,), offsets of the traces with both, m; late: delay of the pick, s; opposite:
    share of the traces whose observed wave at the pick has the opposite sign of the simulated
    arrival.
    """

    offsets: Array
    late: Array
    opposite: float

    @property
    def lag(self) -> float:
        """The median of `late`, s; 0 without traces."""
        return float(np.median(self.late)) if self.late.size else 0.0

    def describe(self) -> str:
        """Return a line with the median delay in each of some ranges of offsets.

        The ranges have equal numbers of traces.
        """
        parts = []
        for part in np.array_split(np.argsort(self.offsets, kind="stable"), RANGES):
            if part.size:
                near, far = self.offsets[part[[0, -1]]] / 1000.0
                delay = say_delay(np.median(self.late[part]))
                parts.append(f"{near:.1f} to {far:.1f} km {delay}")
        return (
            f"picks in {self.late.size} of these traces are {say_delay(self.lag)} than the first "
            f"simulated arrivals ({', '.join(parts) or 'none'}); their sign is the opposite in "
            f"{100 * self.opposite:.0f} %"
        )


def say_delay(late: float) -> str:
    """Return a delay, s, as text, such as "40 ms later"."""
    return f"{1000 * abs(late):.0f} ms {'later' if late >= 0.0 else 'earlier'}"


def compare_picks(
    picks: Array,
    offsets: Array,
    observed: Array,
    simulated: Array,
    times: NDArray[np.floating],
    period: float,
) -> PickedArrivals:
    """Compare picks (trace,) with the first arrivals of unmuted traces (trace, time).

    picks: s, NaN for no pick; times: times of the samples, s after the shot; period: period of the
    wavelet's peak frequency, s.
    """
    largest = np.abs(simulated).max(axis=1, initial=0.0)
    usable = (largest > SILENT * largest.max(initial=0.0)) & np.isfinite(picks)
    usable &= np.isfinite(observed).all(axis=1) & observed.any(axis=1)
    picks, observed, simulated = picks[usable], observed[usable], simulated[usable]
    onset = times[(np.abs(simulated) > ONSET * largest[usable, None]).argmax(axis=1)]
    # One period of both waves from the arrival on
    after = np.arange(0.0, period, times[1] - times[0])
    signs = [
        np.sign(
            np.interp(pick + after, times, one / np.abs(one).max())
            @ np.interp(begin + after, times, other / np.abs(other).max())
        )
        for pick, begin, one, other in zip(picks, onset, observed, simulated, strict=True)
    ]
    opposite = float(np.mean(np.array(signs) < 0.0)) if signs else 0.0
    return PickedArrivals(offsets[usable], picks - onset, opposite)


def fit_wavelet(observed: Array, simulated: Array, live: NDArray[np.bool_]) -> Array:
    """Filter simulated traces (trace, time) so that they fit the observed ones best.

    The filter is `CrossSpectra.fit` with a damping of 1 %. It removes differences that another
    wavelet can explain. live: (trace,), mask of the traces from which the filter is estimated.
    """
    spectra = CrossSpectra.of(simulated[live], observed[live])
    if not spectra.power.any():
        return simulated
    n = simulated.shape[1]
    return np.fft.irfft(spectra.fit(0.01) * np.fft.rfft(simulated, 2 * n), 2 * n)[:, :n]


def predict(observed: Array, simulated: Array) -> Array:
    """Filter simulated traces (trace, time) by wavelets that were fitted to other traces.

    The traces are divided into two halves, and each half is filtered as in `fit_wavelet` for the
    other half. A filter can fit any single trace, but only the right wavelet fits traces that were
    not used to estimate it.
    """
    second = np.arange(len(simulated)) % 2 == 1
    parts = [fit_wavelet(observed, simulated, live) for live in (second, ~second)]
    return np.where(second[:, None], parts[1], parts[0])


def find_heads(traces: NDArray[np.floating], axis: TimeAxis) -> Array:
    """Return the ends of mutes in traces (..., time), in s after the shot.

    They are -inf for traces without a mute. A muted trace begins with zeros followed by a jump,
    while recordings begin with noise, and simulated waves increase slowly.
    """
    size = np.abs(traces)
    first = (size > 0.0).argmax(axis=-1)
    after = np.minimum(first[..., None] + np.arange(SOON), traces.shape[-1] - 1)
    jump = np.take_along_axis(size, after, axis=-1).max(axis=-1)
    muted = (first > 0) & (jump > JUMP * size.max(axis=-1, initial=0.0))
    return np.where(muted, axis.start + axis.dt * first, -np.inf)


def correlation(one: Array, other: Array) -> float:
    """Return the normalized correlation of all traces together, 0 if one array is zero."""
    norms = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float((one * other).sum()) / norms if norms else 0.0


def _correlate(one: Array, other: Array, furthest: int) -> Array:
    """Return the sums of one(t) other(t + lag), (trace, lag), for lags up to +-furthest samples."""
    n = one.shape[1] + furthest
    product = np.fft.rfft(one, n).conj() * np.fft.rfft(other, n)
    return np.roll(np.fft.irfft(product, n), furthest, axis=1)[:, : 2 * furthest + 1]


def _nearest_peak(likeness: Array) -> NDArray[np.int64]:
    """Return the peak of each row nearest to its middle, with at least `AS_GOOD` of the maximum.

    The maximum may by chance belong to a later wave, or to the next cycle.
    """
    padded = np.pad(likeness, ((0, 0), (1, 1)), constant_values=-np.inf)
    peaks = (likeness >= padded[:, :-2]) & (likeness >= padded[:, 2:])
    peaks &= likeness >= AS_GOOD * likeness.max(axis=1, keepdims=True, initial=0.0)
    middle = likeness.shape[1] // 2
    distance = np.abs(np.arange(likeness.shape[1]) - middle)
    return np.where(peaks, distance, likeness.shape[1]).argmin(axis=1)


# A trace is dead below, or loud above, this ratio to the median of its neighbours in offset.
DEAD, LOUD = 1e-3, 10.0
# A spike exceeds the next largest sample of its trace by this factor; waves are smoother.
SPIKE = 3.0
AT_A_TIME = 2**22  # bytes that are examined at a time
FAULTS = ("broken", "spiky", "dead", "loud")

SHOWN = 3  # number of traces with a fault that are named

Place = tuple[int, int]  # shot and receiver


@dataclass(frozen=True)
class Tally:
    """Traces with a fault: their number, and the places of the first `SHOWN` of them."""

    count: int = 0
    first: tuple[Place, ...] = ()

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.count + other.count, (*self.first, *other.first)[:SHOWN])


@dataclass(frozen=True)
class Scan:
    """The faults of the traces of a survey.

    shots, traces: numbers of shots and traces that were scanned; broken: traces that are not
    finite; silent: shots without a signal.
    """

    shots: int
    traces: int
    silent: tuple[int, ...] = ()
    broken: Tally = Tally()
    spiky: Tally = Tally()
    dead: Tally = Tally()
    loud: Tally = Tally()


def scan_traces(experiment: Experiment, reader: GatherReader, context: Context) -> Scan:
    """Read and examine the whole survey, each rank a part of the shots; collective."""
    n_shots = experiment.survey.n_shots
    share = -(-n_shots // context.size)
    mine = np.arange(n_shots)[context.rank * share :][:share]
    slowest = float(experiment.equation.slowest(experiment.initial.arrays).min())
    traces, tallies, typical = 0, dict.fromkeys(FAULTS, Tally()), torch.zeros(share).double()
    # Memory for each trace: its samples, and its neighbours in double precision.
    each = reader.survey.n_receivers * (4 * reader.survey.n_samples + 8 * NEIGHBOURS)
    at_once = max(1, AT_A_TIME // each)
    for shots in (mine[i : i + at_once] for i in range(0, mine.size, at_once)):
        with context.heartbeat.waiting():
            gathers = reader.read(shots)
        live, loudness, faults = _find_faults(experiment, slowest, shots, gathers)
        traces += int(live.sum())
        tallies = {kind: tallies[kind] + _count(shots, live & faults[kind]) for kind in FAULTS}
        typical[shots - context.rank * share] = torch.from_numpy(loudness)
        context.heartbeat.beat()
    ranks = context.all_gather((traces, tallies))
    loudness = context.all_gather_pieces(typical).view(-1)[:n_shots].numpy()
    audible = loudness[np.isfinite(loudness) & (loudness > 0.0)]
    least = DEAD * float(np.median(audible)) if audible.size else 0.0
    return Scan(
        n_shots,
        sum(traces for traces, _ in ranks),
        silent=tuple(np.flatnonzero(loudness <= least).tolist()),
        **{kind: sum((tallies[kind] for _, tallies in ranks), Tally()) for kind in FAULTS},
    )


def _find_faults(
    experiment: Experiment, slowest: float, shots: NDArray[np.int64], traces: NDArray[np.float32]
) -> tuple[NDArray[np.bool_], Array, dict[str, NDArray[np.bool_]]]:
    """Examine the traces (shot, receiver, time) of some shots; slowest: speed of waves, m/s.

    Returns a mask of the traces in use, the typical amplitude of each shot, infinite if it is
    unknown, and masks of the traces with each fault.
    """
    survey = experiment.survey.select(shots)
    live = experiment.aperture.within_offsets(survey.sources, survey.receivers)
    live &= experiment.conditioning().select(traces, survey)
    distances = np.linalg.norm(survey.receivers - survey.sources[:, None], axis=-1)
    peaks = survey.dt * np.abs(survey.wavelet).argmax(axis=1)
    due = peaks[:, None] + distances / slowest < survey.dt * survey.n_samples
    loudness = root_mean_square(traces)
    broken, spiky = ~np.isfinite(traces).all(axis=-1), find_spikes(traces)
    typical = np.empty_like(loudness)
    for shot, some in index_components(survey):
        typical[shot, some] = median_of_neighbours(loudness[shot, some], distances[shot, some])
    dead = due & (loudness <= DEAD * np.nan_to_num(typical))
    with np.errstate(invalid="ignore"):
        loud = (loudness > LOUD * typical) & ~spiky
    good = live & due & ~broken
    # Zero traces are left out, because a shot is not silent if a few traces have signal.
    of_shots = median_of_finite(np.where(good & (loudness > 0.0), loudness, np.nan))
    of_shots = np.nan_to_num(of_shots)
    dead[of_shots == 0.0] = False  # these are reported as silent shots
    faults = {"broken": broken, "spiky": spiky, "dead": dead & ~broken, "loud": loud & ~broken}
    return live, np.where(good.any(axis=1), of_shots, np.inf), faults


def _count(shots: NDArray[np.int64], which: NDArray[np.bool_]) -> Tally:
    rows, receivers = np.nonzero(which)
    first = zip(shots[rows[:SHOWN]].tolist(), receivers[:SHOWN].tolist(), strict=True)
    return Tally(rows.size, tuple(first))


def find_spikes(traces: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return a mask of the traces (..., time) with one sample much larger than the others."""
    ends = np.partition(np.abs(traces), (-2, -1), axis=-1)
    second, largest = ends[..., -2], ends[..., -1]
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray((largest > SPIKE * second) & np.isfinite(largest) & (largest > 0.0))
