"""Quality control of shots: the fit of simulated to observed traces, by shot and offset.

Some shots are simulated on the calling rank, and their traces are conditioned as for the misfit.
The figures are in `report.figures`; `plan.comparison` compares the same traces before an inversion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import fsum, isclose

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.errors import Finding
from hpcfwi.inversion.conditioning import (
    find_gains,
    measure_energies,
    sign_offsets,
)
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.misfits import SILENT, Misfit
from hpcfwi.inversion.objective import AlikeShots, Objective, Times
from hpcfwi.inversion.stages import Part
from hpcfwi.model import Model
from hpcfwi.operators.simulator import Chunks
from hpcfwi.parallel.context import Context
from hpcfwi.storage.gathers import GatherReader, Traces
from hpcfwi.survey import PRESSURE, Components, TimeAxis

# Smaller amplitudes at a frequency, as a share of the largest in a shot, have no reliable phase.
FAINT = 1e-3
CLOSE = 60.0  # degrees; with a larger phase, the residual is larger than the trace
# Frequencies with at least this share of the largest observed amplitude are in the reported band.
WITHIN = 0.1
# A fit is poor if the share of close traces is smaller, or the residual larger.
FEW_CLOSE, POOR = 0.6, 0.7
SHOTS = 12  # number of shots that are simulated at the end of a stage


@dataclass(frozen=True)
class ShotFit:
    """The fit of one shot.

    number, misfit: of the shot; offsets: (trace,), m, as in `View`; phases: (trace,), degrees by
    which observed traces are later than simulated ones, NaN without a signal; observed, residual:
    power (frequency,) of these traces, which have norm 1 if the misfit ignores amplitudes.
    """

    number: int
    misfit: float
    offsets: NDArray[np.float64]
    phases: NDArray[np.float64]
    observed: NDArray[np.float64]
    residual: NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """The fit of some shots of a survey.

    frequency: of the phases, Hz; axis: of the traces; shots: in the order of their numbers; views:
    of a few of them; normalized: True if the misfit ignores amplitudes, so that powers are those of
    traces with norm 1.
    """

    frequency: float
    axis: TimeAxis
    shots: tuple[ShotFit, ...]
    views: tuple[View, ...]
    normalized: bool

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """The frequencies of the powers, Hz."""
        n = self.views[0].observed.shape[-1]
        return np.asarray(np.fft.rfftfreq(n, self.axis.dt), dtype=np.float64)

    @property
    def ratio(self) -> float:
        """The ratio of the size of the residual to that of the observed data, within their band."""
        observed, residual = self.amplitudes
        within = observed > WITHIN * observed.max(initial=0.0)
        if not within.any():
            return float("nan")
        return float(np.sqrt(np.sum(residual[within] ** 2) / np.sum(observed[within] ** 2)))

    @property
    def close(self) -> float:
        """The share of the traces whose phase is less than `CLOSE`; NaN if there is no phase."""
        phases = np.concatenate([shot.phases for shot in self.shots])
        phases = phases[np.isfinite(phases)]
        return float(np.mean(np.abs(phases) < CLOSE)) if phases.size else float("nan")

    @property
    def amplitudes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The amplitudes (frequency,) of observed traces and of residuals, of finite shots."""
        observed, residual = (
            np.array([getattr(shot, name) for shot in self.shots])
            for name in ("observed", "residual")
        )
        good = np.isfinite(observed).all(axis=1) & np.isfinite(residual).all(axis=1)
        return np.sqrt(observed[good].sum(axis=0)), np.sqrt(residual[good].sum(axis=0))

    def describe(self) -> str:
        """Return the description of the fit, as a clause without a full stop."""
        scaled = " with all traces scaled to the same norm, as the misfit ignores amplitudes"
        return (
            f"the residual of {len(self.shots)} shots is {100.0 * self.ratio:.0f} % of the "
            f"observed data{scaled * self.normalized}; at {self.frequency:.3g} Hz, "
            f"{100.0 * self.close:.0f} % of the traces are less than {CLOSE:.0f} degrees off"
        )

    def judge(self, epoch: int) -> list[Finding]:
        """Return a warning if the fit is poor; epoch: the one after which it was measured."""
        if self.close < FEW_CLOSE:
            found = (
                f"at {self.frequency:.3g} Hz, only {100.0 * self.close:.0f} % of the traces are "
                f"less than {CLOSE:.0f} degrees off: the model does not explain the arrival times, "
                "and cycles may be skipped"
            )
        elif self.ratio > POOR:
            found = (
                f"the residual is {100.0 * self.ratio:.0f} % of the observed data: much of them is "
                "noise or is not explained, for example because cycles are skipped"
            )
        else:
            return []
        remedy = (
            "Look at the figures fit and traces. Start with lower frequencies, shorter offsets or "
            "a better starting model, or use another misfit."
        )
        return [Finding("warning", f"data fit after epoch {epoch}", found, remedy)]


def measure_fit(
    view: View, misfit: float, frequency: float, dt: float, normalized: bool
) -> ShotFit:
    """Return the fit of one shot, given its view and its misfit; others: as in `Fit`."""
    observed, simulated = (a.astype(np.float64) for a in (view.observed, view.simulated))
    phases = find_phases(observed, simulated, frequency, dt)
    if normalized:
        observed, simulated = (to_unit_norm(traces) for traces in (observed, simulated))
        there = observed.any(axis=-1) & simulated.any(axis=-1)
        observed, simulated = observed[there], simulated[there]
    powers = find_power(observed), find_power(observed - simulated)
    return ShotFit(view.number, misfit, view.offsets, phases, *powers)


def knows_amplitudes(misfit: Misfit) -> bool:
    """Return True if a misfit changes when simulated traces are multiplied by 2.

    This is tested with two traces of noise, so that it works for any misfit.
    """
    simulated, observed = np.random.default_rng(0).normal(size=(2, 1, 2, 64))
    once, twice = (
        float(misfit(torch.from_numpy(factor * simulated), torch.from_numpy(observed), 1.0)[0])
        for factor in (1.0, 2.0)
    )
    return not isclose(once, twice, rel_tol=1e-6)


def to_unit_norm(traces: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide traces (trace, time) by their norms.

    Traces that are nearly silent compared to the loudest one become zero, as misfits omit them.
    """
    norms = np.sqrt(np.square(traces).sum(axis=-1, keepdims=True))
    loudest = norms[np.isfinite(norms)].max(initial=0.0)
    return np.divide(traces, norms, out=np.zeros_like(traces), where=~(norms <= SILENT * loudest))


def find_phases(
    observed: NDArray[np.float64], simulated: NDArray[np.float64], frequency: float, dt: float
) -> NDArray[np.float64]:
    """Return the degrees, from -180 to 180, by which observed traces (trace, time) are later.

    Whole traces are compared with simulated ones at one frequency (Hz), as in Shah et al. (2012,
    SEG Expanded Abstracts). The result is NaN if one of the two is nearly zero.
    """
    wave = np.exp(-2j * np.pi * frequency * dt * np.arange(observed.shape[-1]))
    # This is not a product of matrices, whose last digits depend on the number of threads.
    theirs, ours = ((traces * wave).sum(axis=-1) for traces in (observed, simulated))
    phases = np.degrees(np.angle(ours * theirs.conj()))
    for found in (theirs, ours):
        sizes = np.abs(found)
        finite = sizes[np.isfinite(sizes)]
        phases[~(sizes > FAINT * finite.max(initial=0.0))] = np.nan
    return np.asarray(phases)


def find_power(traces: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the power at each frequency, summed over the finite traces (trace, time).

    It is NaN if no trace is finite.
    """
    good = np.isfinite(traces).all(axis=-1)
    if not good.any():
        return np.full(traces.shape[-1] // 2 + 1, np.nan)
    return np.asarray((np.abs(np.fft.rfft(traces[good])) ** 2).sum(axis=0))


def choose_shots(n_shots: int) -> NDArray[np.int64]:
    """Return the numbers of at most `SHOTS` shots, spread over a survey."""
    return np.linspace(0, n_shots - 1, min(SHOTS, n_shots)).round().astype(np.int64)


def choose_views(shots: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return at most so many of these shots, evenly spaced, whose traces are shown."""
    count = min(most, shots.size)
    return shots[(2 * np.arange(count) + 1) * shots.size // (2 * count)]


MOST_TRACES = 400  # of a shot in a view
MOST_ROWS = 4  # of a figure, each for the traces of a shot or of one of its components


@dataclass(frozen=True)
class View:
    """The traces of one shot that are compared, or some of them if there are many.

    number: of the shot; offsets: (trace,), m, negative on the side of smaller x; observed,
    simulated: (trace, time); receivers: numbers (trace,) of the shot's receivers, None if they are
    not known; components: of these traces.
    """

    number: int
    offsets: NDArray[np.float64]
    observed: NDArray[np.float32]
    simulated: NDArray[np.float32]
    receivers: NDArray[np.int64] | None = None
    components: Components = PRESSURE

    def split(self) -> Iterator[tuple[str, View]]:
        """Yield the view of each component that has traces, with a title."""
        names = self.components.names
        if len(names) == 1:
            yield f"Shot {self.number}", self
            return
        for name in names:
            view = self.select(name)
            if view.offsets.size:
                yield f"Shot {self.number}, {name}", view

    def select(self, name: str) -> View:
        """Return the view of the traces of a component."""
        names = self.components.names
        kinds = self.components.of_traces((1, self.offsets.size))[0]
        some = kinds == (names.index(name) if name in names else -1)
        return View(
            self.number,
            self.offsets[some],
            self.observed[some],
            self.simulated[some],
            None if self.receivers is None else self.receivers[some],
            Components((name,)),
        )


def choose_drawn(views: Sequence[View]) -> list[tuple[str, View]]:
    """Return the views of all components, with titles, of as many shots as a figure can show."""
    parts = [[*view.split()] for view in views]
    count = min(len(parts), MOST_ROWS // max(map(len, parts), default=1) or 1)
    first = (len(parts) - count) // 2
    return [pair for some in parts[first : first + count] for pair in some]


def read_observed(
    experiment: Experiment, reader: GatherReader, shots: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the preprocessed traces (shot, receiver, time) of some shots."""
    return preprocess(experiment, shots, reader.read(shots))


def preprocess(
    experiment: Experiment, shots: NDArray[np.int64], recorded: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return recorded traces (shot, receiver, time), corrected and in the band, shot by shot."""
    prepare = experiment.preprocessing()
    if prepare is None or not shots.size:
        return recorded
    return np.stack([prepare(gather, shot) for gather, shot in zip(recorded, shots, strict=True)])


def balance(
    experiment: Experiment, shots: NDArray[np.int64], traces: Traces, context: Context
) -> Experiment:
    """Return the experiment with gains that balance the components of its traces; collective.

    shots: numbers of this rank's part of the shots whose energies are compared; traces: returns
    their observed traces (shot, receiver, time) in the experiment's band.
    """
    survey = experiment.survey
    names = survey.components.names
    if names == PRESSURE.names:
        return experiment
    found = np.zeros((0, len(names)))
    if shots.size:
        some = survey.select(shots)
        given = experiment.conditioning().apply(traces(), some)
        near = experiment.aperture.within_offsets(some.sources, some.receivers)
        found = measure_energies(replace(given, counts=given.counts & near), some)
    # The sums are exact, so that they do not depend on the number of ranks.
    each_shot = np.concatenate(context.all_gather(found))
    energies = np.array([fsum(each) for each in each_shot.T])
    # With this energy of each component, traces have a root mean square of 1.
    energy = len(each_shot) * survey.n_receivers * survey.n_samples / len(names)
    weights = experiment.config.data.components
    return replace(experiment, gains=find_gains(energies / energy, names, weights))


def balance_recorded(experiment: Experiment, reader: GatherReader, context: Context) -> Experiment:
    """Return the result of `balance` for some shots that are spread over the survey; collective."""
    mine = choose_shots(experiment.survey.n_shots)[context.rank :: context.size]
    return balance(experiment, mine, partial(read_observed, experiment, reader, mine), context)


def see_shots(
    experiment: Experiment,
    model: Model,
    shots: NDArray[np.int64],
    traces: Traces,
    chunks: Chunks,
    context: Context,
    wavelet: NDArray[np.float32] | None = None,
) -> Iterator[tuple[View, float]]:
    """Yield views of shots of a survey, and the misfits of all their traces.

    model: of tensors; traces: returns the observed traces of these shots, (shot, receiver, time),
    in the experiment's band; wavelet: see `Part.with_wavelet`, None for that of the survey. The
    iterator ends early if memory does not suffice for a single shot: call `chunks.check` after it.
    """
    simulator, conditioning = experiment.make_simulator(), experiment.conditioning()
    misfit = experiment.config.inversion.misfit.bind()
    objective = Objective(simulator, misfit, context, chunks, conditioning=conditioning)
    work = partial(_see, model=simulator.restrict(model), misfit=misfit)
    part = Part(shots, experiment.survey.select(shots), traces)
    if wavelet is not None:
        part = part.with_wavelet(wavelet)
    for _, seen in objective.work_on(part, work, Times()):
        yield seen


def _see(shots: AlikeShots, model: Model, misfit: Misfit) -> list[tuple[View, float]]:
    survey, simulated, given = shots.survey, shots.simulate(model), shots.condition()
    pair = given.pair_traces(simulated)
    misfits, _ = misfit(*pair, survey.dt)
    ours, theirs = (traces.numpy() for traces in pair)
    views = []
    for shot in range(survey.n_shots):
        places = np.flatnonzero(given.counts[shot])
        if places.size > MOST_TRACES:
            places = places[np.linspace(0, places.size - 1, MOST_TRACES).round().astype(np.int64)]
        numbers = np.arange(survey.n_receivers)[shots.window.trace_mask][places]
        source, receivers = survey.sources[shot], survey.receivers[shot][numbers]
        signed = sign_offsets(source, receivers)
        components = survey.components.select_shots(shot).select_receivers(numbers)
        traces = theirs[shot, places], ours[shot, places]
        view = View(int(shots.numbers[shot]), signed, *traces, numbers, components)
        views.append((view, float(misfits[shot])))
    return views
