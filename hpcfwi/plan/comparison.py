"""The comparison of observed data with those of the starting model.

Some shots are simulated in the starting model, and all observed traces are scanned. `arrivals`
computes the numbers, `checks` finds problems, and `report.figures` draws the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.errors import Finding
from hpcfwi.inversion.conditioning import Band
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.shot_qc import View, balance, preprocess, see_shots
from hpcfwi.inversion.stages import Stage
from hpcfwi.inversion.wavelets import Estimate
from hpcfwi.model import Model
from hpcfwi.operators.simulator import Chunks
from hpcfwi.parallel.context import Context
from hpcfwi.plan.arrivals import (
    Array,
    PickedArrivals,
    Scan,
    compare_picks,
    correlation,
    find_arrivals,
    find_heads,
    fit_wavelet,
    predict,
    scan_traces,
)
from hpcfwi.storage.gathers import GatherReader, Traces
from hpcfwi.survey import EXPLOSIVE, Survey, TimeAxis, spread_shots

# First arrivals with at least this correlation count as the same.
ALIKE = 0.5
# Periods after the onset of a simulated arrival, by which its peak has passed. An observed trace
# that is muted up to this time does not have the arrival.
PEAK = 0.75
OFFSET_BANDS = 4
SIGNS = {1: "is the same", -1: "is the opposite", 0: "is unclear"}


@dataclass(frozen=True)
class OffsetBand:
    """A range of offsets (m), its number of arrivals, and their share with skipped cycles."""

    near: float
    far: float
    traces: int
    skipped: float


@dataclass(frozen=True)
class Convention:
    """The difference between the sources of other codes and those of hpcfwi.

    names: names of the codes; factor: their amplitudes divided by ours; reason: a description of
    the difference.
    """

    names: str
    factor: float
    reason: str


@dataclass(frozen=True)
class Comparison:
    """Observed data compared with those of the starting model.

    views: the shots; component: of their traces that are compared; axis: time axis of the traces;
    scan: faults of all traces, None if hpcfwi simulated the observed data; period: period of the
    wavelet's peak frequency, s.

    traces: number of traces with a first arrival in the simulated data; muted: number of these that
    are muted there in the observed data; alike: share of the others whose observed arrival is
    similar; ratio, noise, lag (s): medians of the quantities of `Arrivals`, noise NaN for muted
    data, lag of the third of the traces with the smallest offsets; sign: as in `Arrivals`; signs:
    by component, 0 also where most arrivals are not similar; skipped: share of the traces with
    similar arrivals whose lag is more than half a period; bands: this share by offset; offsets (m),
    lags (s): those of the traces with similar arrivals.

    correlation: normalized correlation of whole traces; fitted: the same after the wavelet was
    fitted to other traces, see `arrivals.predict`, NaN for a single trace; is_same: True if
    observed and simulated data are equal; is_silent: True if all simulated traces are zero;
    is_fitted: True if the simulated data have an estimated wavelet; left: share of the observed
    amplitude in the frequency band of the comparison; conventions: other codes' conventions with
    which the amplitudes are compared.
    """

    views: tuple[View, ...]
    component: str
    axis: TimeAxis
    scan: Scan | None
    period: float
    traces: int
    muted: int
    alike: float
    ratio: float
    noise: float
    lag: float
    sign: int
    signs: Mapping[str, int]
    skipped: float
    bands: tuple[OffsetBand, ...]
    offsets: NDArray[np.float64]
    lags: NDArray[np.float64]
    correlation: float
    fitted: float
    is_same: bool
    is_silent: bool
    is_fitted: bool
    left: float
    conventions: tuple[Convention, ...]

    @property
    def factor(self) -> float:
        """Observed amplitudes over simulated ones, negative if their signs are opposite."""
        return -self.ratio if self.sign < 0 else self.ratio

    @property
    def compared(self) -> int:
        """Number of first arrivals that can be compared."""
        return self.traces - self.muted

    def describe(self) -> Iterator[str]:
        shots = ", ".join(str(view.number) for view in self.views)
        has_others = any(len(view.components.names) > 1 for view in self.views)
        yield (
            f"shot{'s' * (len(self.views) > 1)} {shots} in the starting model"
            f"{', with an estimated wavelet' * self.is_fitted}: first arrivals in "
            f"{self.traces} traces{f' of {self.component}' * has_others}, "
            + (f"{self.muted} of which are muted in the observed data, " if self.muted else "")
            + f"found again in {100 * self.alike:.0f} % of {'the others' if self.muted else 'them'}"
        )
        if self.compared:
            yield from self._describe_arrivals()
        if self.scan is not None:
            s = self.scan
            yield (
                f"of all {s.traces} traces, {s.broken.count} are not finite, {s.spiky.count} have "
                f"a spike, {s.dead.count} are dead, {s.loud.count} are loud; {len(s.silent)} "
                "silent shots"
            )

    def _describe_arrivals(self) -> Iterator[str]:
        yield (
            f"observed amplitudes are {self.ratio:.3g} times the simulated ones, their sign "
            f"{SIGNS[self.sign]}, noise before them "
            + (f"{100 * self.noise:.1f} %" if self.noise == self.noise else "muted")
        )
        if len(self.signs) > 1:
            told = [f"{name} {SIGNS[sign]}" for name, sign in self.signs.items()]
            yield f"the sign of {', of '.join(told)}"
        yield (
            f"near arrivals {1000 * abs(self.lag):.0f} ms "
            f"{'late' if self.lag >= 0.0 else 'early'}; "
            f"correlation of the traces {self.correlation:.2f}"
            + (
                f", {self.fitted:.2f} with a wavelet fitted to other traces"
                if self.fitted == self.fitted
                else ""
            )
        )
        by_offset = ", ".join(
            f"{band.near / 1000:.1f} to {band.far / 1000:.1f} km {100 * band.skipped:.0f} %"
            for band in self.bands
        )
        yield f"off by more than half a period: {100 * self.skipped:.0f} %" + (
            f" ({by_offset})" if by_offset else ""
        )


def compare(
    views: Sequence[View],
    scan: Scan | None,
    axis: TimeAxis,
    period: float,
    left: float = 1.0,
    estimate: Estimate | None = None,
    heads: Mapping[int, NDArray[np.float64]] | None = None,
    conventions: Sequence[Convention] = (),
) -> Comparison:
    """Compare some shots; axis, period, left, conventions: as in `Comparison`.

    If there are several components, the pressure or else the first one is compared, and only the
    signs of the others.

    heads: for each shot, the ends of mutes (receiver,) in the recorded data, see `find_heads`; None
    for data that hpcfwi simulated.

    estimate: method by which the run will estimate the wavelet, None if the wavelet is known. The
    wavelet is then estimated here in the same way, so that its errors are not reported.
    """
    observed, simulated, _ = _join(views)
    is_same, is_silent = bool(np.array_equal(observed, simulated)), not simulated.any()
    if estimate is not None:
        together = [[view] for view in views] if estimate.per == "shot" else [list(views)]
        views = [fitted for some in together for fitted in _fit(some, estimate.furthest)]
    drawn, (component, *others) = tuple(views), _list_components(views)
    signs = {}
    for name in (*others, component):
        views = [view.select(name) for view in drawn]
        observed, simulated, offsets = _join(views)
        found = find_arrivals(observed, simulated, axis.dt, period)
        head = np.full(offsets.size, -np.inf)
        if heads is not None:
            head = np.concatenate([heads[view.number][view.receivers] for view in views])
        head = head[found.places]
        muted = head > axis.start + found.onset + PEAK * period
        similar = not muted.all() and np.median(found.likeness[~muted]) >= ALIKE
        signs[name] = found.sign if similar else 0
    # A muted trace begins with zeros, not with noise.
    recorded = found.noise[np.isneginf(head)]
    far, alike = offsets[found.places], (found.likeness >= ALIKE) & ~muted
    skips = np.abs(found.lag) > 0.5 * period
    near = alike & (far <= np.quantile(far, 1.0 / 3.0)) if far.size else alike
    live = np.isfinite(observed).all(axis=1) & observed.any(axis=1) & simulated.any(axis=1)
    fits = observed[live], simulated[live]
    return Comparison(
        views=drawn,
        component=component,
        axis=axis,
        scan=scan,
        period=period,
        traces=int(found.places.size),
        muted=int(muted.sum()),
        alike=float(alike[~muted].mean()) if not muted.all() else 0.0,
        ratio=_median(found.ratio[~muted]),
        noise=_median(recorded) if recorded.size or not head.size else float("nan"),
        lag=_median(found.lag[near]),
        sign=found.sign,
        signs=signs,
        skipped=float(skips[alike].mean()) if alike.any() else 0.0,
        bands=tuple(_in_bands(far[alike], skips[alike])),
        offsets=far[alike],
        lags=found.lag[alike],
        correlation=correlation(*fits),
        fitted=correlation(fits[0], predict(*fits)) if len(fits[0]) > 1 else float("nan"),
        is_same=is_same,
        is_silent=is_silent,
        is_fitted=estimate is not None,
        left=left,
        conventions=tuple(conventions),
    )


def _list_components(views: Sequence[View]) -> list[str]:
    """Return the components that have traces, the pressure first; the pressure if none has."""
    found = dict.fromkeys(
        view.components.names[kind]
        for view in views
        for kind in np.unique(view.components.of_traces((1, view.offsets.size)))
    )
    return sorted(found, key=lambda name: name != "pressure") or ["pressure"]


def _join(views: Sequence[View]) -> tuple[Array, Array, Array]:
    """Return the observed and simulated traces (trace, time) of all views, and their offsets, m."""
    observed, simulated = (
        np.concatenate([getattr(view, name) for view in views]).astype(np.float64)
        for name in ("observed", "simulated")
    )
    return observed, simulated, np.abs(np.concatenate([view.offsets for view in views]))


def _fit(views: Sequence[View], furthest: float | None) -> list[View]:
    """Return the views with an estimated wavelet; furthest: largest offset that is used, m."""
    observed, simulated, offsets = _join(views)
    near = offsets <= (np.inf if furthest is None else furthest)
    live = np.isfinite(observed).all(axis=1) & near
    fitted = fit_wavelet(observed, simulated, live).astype(np.float32)
    ends = np.cumsum([len(view.simulated) for view in views])[:-1]
    parts = np.split(fitted, ends)
    return [replace(view, simulated=part) for view, part in zip(views, parts, strict=True)]


def _in_bands(offsets: NDArray[np.float64], skips: NDArray[np.bool_]) -> Iterator[OffsetBand]:
    if not offsets.size:
        return
    ends = np.linspace(0.0, float(offsets.max()), OFFSET_BANDS + 1)
    number = np.clip(np.digitize(offsets, ends) - 1, 0, OFFSET_BANDS - 1)
    for band in range(OFFSET_BANDS):
        there = number == band
        if there.any():
            share = float(skips[there].mean())
            yield OffsetBand(ends[band], ends[band + 1], int(there.sum()), share)


def _median(values: NDArray[np.float64]) -> float:
    """Return the median of finite values, 0 if there are none."""
    usable = values[np.isfinite(values)]
    return float(np.median(usable)) if usable.size else 0.0


SHOTS = 3  # number of shots that are simulated


@dataclass(frozen=True)
class DataComparison:
    """The comparison of the data of some stages, which have the same data and waves.

    label: names of the stages, empty if there are no other stages; picked: comparison of the picks
    of the first mute that has picks, None if there is none; findings: see `checks.check_data`.
    """

    stages: tuple[Stage, ...]
    label: str
    comparison: Comparison
    picked: PickedArrivals | None = None
    findings: tuple[Finding, ...] = ()

    def describe(self) -> Iterator[str]:
        yield from self.comparison.describe()
        if self.picked is not None:
            yield self.picked.describe()


def compare_data(
    whole: Experiment, stages: Sequence[Stage], reader: GatherReader | None, context: Context
) -> list[DataComparison]:
    """Compare observed data with those of the starting model; collective.

    The traces are those that enter the misfits. Stages that use the same data and waves have one
    comparison. All comparisons use the initial model, because the starting models of later stages
    are not known yet.

    whole: experiment with the data as in their file; stages: its stages; reader: reader of the
    observed data, None if they are not simulated yet. For the first comparison, every trace of
    external data is read. Raises `InversionFailure` on all ranks if memory does not suffice for one
    shot.
    """
    together, found = _group(stages), []
    scan = None
    if reader is not None and not whole.is_synthetic and together:
        scan = scan_traces(whole, reader, context)
    for some in together:
        names = ", ".join(stage.name for stage in some)
        label = f"stage{'s' * (len(some) > 1)} {names}" if len(together) > 1 else ""
        experiment, n_shots = some[0].experiment, some[0].experiment.survey.n_shots
        mine = spread_shots(n_shots, min(SHOTS, n_shots))[context.rank :: context.size]
        recorded = None if reader is None else reader.read(mine)
        traces = cache(partial(_observe, experiment, mine, recorded, context))
        compared = _compare(experiment, whole, mine, recorded, traces, scan, context)
        picked = _compare_picks(experiment, mine, traces, context)
        found.append(DataComparison(some, label, compared, picked))
        scan = None  # it is of all data, and reported once
    return found


def _group(stages: Sequence[Stage]) -> list[tuple[Stage, ...]]:
    sights = [_sight(stage) for stage in stages]
    firsts = [k for k, sight in enumerate(sights) if sights.index(sight) == k]
    pairs = list(zip(sights, stages, strict=True))
    return [tuple(stage for sight, stage in pairs if sight == sights[k]) for k in firsts]


def _sight(stage: Stage) -> tuple[object, ...]:
    """Return the parts of the input on which the compared traces depend."""
    config = stage.experiment.config
    return config.data, config.wave, config.offset_limits, config.inversion.wavelet


def _compare_picks(
    experiment: Experiment, mine: NDArray[np.int64], traces: Traces, context: Context
) -> PickedArrivals | None:
    """Compare the picks of the first mute that has picks with unmuted traces; collective."""
    data = experiment.config.data
    if not data.picks:
        return None
    config = experiment.config.model_copy(update={"data": data.model_copy(update={"mute": ()})})
    survey, picks = experiment.survey, experiment.picks[data.picks[0]]
    views = _see(replace(experiment, config=config), mine, traces, context)

    def compare_all() -> PickedArrivals:
        lines = [picks.find_line(survey.sources[view.number], view.offsets) for view in views]
        observed, simulated, offsets = _join(views)
        at, period = np.concatenate(lines), _find_period(survey)
        times = survey.axis.times(survey.n_samples)
        return compare_picks(at, offsets, observed, simulated, times, period)

    return context.from_root(compare_all)


def _find_period(survey: Survey) -> float:
    """Return the period of the wavelet's peak frequency, or of the whole record, s."""
    return 1.0 / max(survey.spectrum.peak, 1.0 / (survey.dt * survey.n_samples))


def _see(
    experiment: Experiment, shots: NDArray[np.int64], traces: Traces, context: Context
) -> list[View]:
    """Return the views of the shots of all ranks in the starting model; collective.

    shots, traces: those of this rank, see `see_shots`.
    """
    experiment = balance(experiment, shots, traces, context)
    initial, chunks = experiment.initial.as_tensors(context.device), Chunks(1, context)
    seen = [view for view, _ in see_shots(experiment, initial, shots, traces, chunks, context)]
    chunks.check()
    return sorted(chain(*context.all_gather(seen)), key=lambda view: view.number)


def _compare(
    experiment: Experiment,
    whole: Experiment,
    mine: NDArray[np.int64],
    recorded: NDArray[np.float32] | None,
    traces: Traces,
    scan: Scan | None,
    context: Context,
) -> Comparison:
    """Compare a few shots that are spread over the survey; collective.

    mine, recorded, traces: shots of this rank, with their traces in the file and in the band.
    """
    views, survey = _see(experiment, mine, traces, context), experiment.survey
    heads: dict[int, NDArray[np.float64]] | None = None
    conventions: Sequence[Convention] = ()
    if recorded is not None and not whole.is_synthetic:
        found = find_heads(recorded, whole.survey.axis)
        heads = dict(chain(*context.all_gather([*zip(mine.tolist(), found, strict=True)])))
        conventions = find_conventions(whole)
    left = 1.0
    if recorded is not None and experiment.band is not None:
        left = _find_left(recorded, experiment.band, context)
    period = _find_period(survey)
    wavelets = experiment.config.inversion.wavelet.bind()()
    estimate = wavelets if isinstance(wavelets, Estimate) else None
    return context.from_root(
        lambda: compare(views, scan, survey.axis, period, left, estimate, heads, conventions)
    )


def find_conventions(whole: Experiment) -> tuple[Convention, ...]:
    """Return the conventions of other codes for the grid of the model.

    There are none for forces, moment tensors and other components than the pressure, because the
    codes are those of the scalar wave equation. The sampling interval of the data is assumed to be
    their time step.
    """
    initial, survey = whole.initial, whole.survey
    if "pressure" not in survey.components.names or survey.source_kinds.keys() != EXPLOSIVE.keys():
        return ()
    sources = survey.sources.reshape(-1, initial.grid.ndim)
    speed = float(np.median(initial.p_velocity[initial.grid.cells_of(sources)]))
    cell, dt = float(np.prod(initial.grid.spacing)), survey.dt
    undivided = f"are not divided by the volume of a cell ({cell:.4g})"
    return (
        Convention("Deepwave's scalar", -cell, f"{undivided} and have the opposite sign"),
        Convention("Devito and JUDI", cell, undivided),
        Convention(
            "SWEEP",
            cell / (speed * dt) ** 2,
            f"{undivided}, nor multiplied by the squares of the velocity and the time step "
            f"({speed:.4g} and {dt:.4g})",
        ),
    )


def _observe(
    experiment: Experiment,
    shots: NDArray[np.int64],
    recorded: NDArray[np.float32] | None,
    context: Context,
) -> NDArray[np.float32]:
    """Return observed traces of some shots, read or simulated, in the experiment's band."""
    if recorded is not None:
        return preprocess(experiment, shots, recorded)
    assert experiment.true is not None, "data that are simulated"
    return np.concatenate([_simulate(experiment, experiment.true, s, context) for s in shots])


def _simulate(
    experiment: Experiment, model: Model, shot: np.int64, context: Context
) -> NDArray[np.float32]:
    """Simulate all traces (1, receiver, time) of a shot in a model, within its window."""
    survey, simulator = experiment.survey.select(np.array([shot])), experiment.simulator(model)
    seen = simulator.restrict(model.as_tensors(context.device))
    (window,) = simulator.aperture.find_windows(seen.grid, survey)
    found = simulator.simulate(seen, survey, keep=False, window=window)
    traces = torch.zeros(survey.shape, dtype=found.data.dtype)
    traces[:, window.trace_mask] = found.data.cpu()
    return traces.numpy()


def _find_left(recorded: NDArray[np.float32], band: Band, context: Context) -> float:
    """Return the share of the amplitude of traces (shot, receiver, time) in a band; collective.

    Only finite traces count; the share is 1 for traces that are zero.
    """
    power = np.zeros(2)
    for gather in recorded:
        finite = gather[np.isfinite(gather).all(axis=-1)]
        # Records that are limited to a band have fewer samples.
        power += [
            float(np.square(traces, dtype=np.float64).sum()) / traces.shape[-1]
            for traces in (finite, band.filter(finite))
        ]
    whole, part = np.sum(context.all_gather(power), axis=0)
    return float(np.sqrt(part / whole)) if whole else 1.0
