"""The comparison of observed data with the starting model, on the ranks of a job; collective.

Some shots are simulated in the starting model, and all observed traces are scanned. `comparison`
and `arrivals` say what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.shot_qc import View, knows_amplitudes, limit, see_shots
from hpcfwi.inversion.stages import Stage
from hpcfwi.inversion.wavelets import Estimate
from hpcfwi.model import Model
from hpcfwi.operators.batching import Chunks
from hpcfwi.parallel.context import Context
from hpcfwi.plan.arrivals import PickedArrivals, compare_picks, find_heads, scan_traces
from hpcfwi.plan.checks import Finding
from hpcfwi.plan.comparison import (
    Comparison,
    Convention,
    check_comparison,
    compare,
    describe,
    join,
    list_conventions,
)
from hpcfwi.storage.background import Traces
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.survey import Survey, spread_shots
from hpcfwi.wave.simulation import wave_speed

SHOTS = 3


@dataclass(frozen=True)
class Meeting:
    """Observed data beside those of the starting model, as some stages have both.

    label: what tells the stages apart from those of other meetings; nothing where there are none;
    picked: how the picks of the first mute that has any compare, None where none has.
    """

    stages: tuple[Stage, ...]
    label: str
    comparison: Comparison
    picked: PickedArrivals | None = None

    def describe(self) -> Iterator[str]:
        """Yield the results in lines."""
        yield from describe(self.comparison)
        if self.picked is not None:
            yield self.picked.describe()


def meet_data(
    whole: Experiment, stages: Sequence[Stage], reader: GatherReader | None, context: Context
) -> list[Meeting]:
    """Compare observed data with those of the starting model, as misfits would; collective.

    Once for all stages that have the same of the data and the same waves. All of them see the
    model that the first begins with: what later ones begin with nobody knows yet.

    whole: that the file of the data belongs to; stages: of it; reader: of the observed data, None
    where they are still to be simulated. Every trace of data that others have made is read, for the
    first. Raises `InversionFailure` on all ranks where memory does not suffice for one shot.
    """
    context.heartbeat.begin("a first look at the data")
    together = _group(stages)
    meetings = []
    for some in together:
        names = ", ".join(stage.name for stage in some)
        label = f"stage{'s' * (len(some) > 1)} {names}" if len(together) > 1 else ""
        first = some[0].experiment
        compared = _compare(first, whole, reader, context)
        picked = _compare_picks(first, reader, context)
        meetings.append(Meeting(some, label, compared, picked))
    if reader is not None and not whole.is_synthetic and meetings:
        scan = scan_traces(whole, reader, context)
        met = replace(meetings[0].comparison, scan=scan)
        meetings[0] = replace(meetings[0], comparison=met)
    return meetings


def check_meetings(meetings: Sequence[Meeting], where: str) -> list[list[Finding]]:
    """Return the findings about the data of each; where: the file, or the key, of the data.

    Findings of an earlier one are not repeated.
    """
    told: set[str] = set()
    findings = []
    for number, meeting in enumerate(meetings):
        linear = meeting.stages[0].section.linear
        misfits = [stage.section.misfit.make() for stage in meeting.stages]
        found = [
            *check_comparison(
                meeting.comparison,
                where,
                number == 0,
                linear,
                any(knows_amplitudes(misfit) for misfit in misfits),
            ),
            *_check_picks(meeting),
        ]
        new = [finding for finding in found if finding.remedy not in told]
        told.update(finding.remedy for finding in new)
        name = f", {meeting.label}" if meeting.label else ""
        findings.append([replace(finding, where=finding.where + name) for finding in new])
    return findings


def _group(stages: Sequence[Stage]) -> list[tuple[Stage, ...]]:
    """The stages in order, those together to which observed and simulated traces are the same."""
    groups: list[list[Stage]] = []
    for stage in stages:
        for group in groups:
            if _sight(group[0]) == _sight(stage):
                group.append(stage)
                break
        else:
            groups.append([stage])
    return [tuple(group) for group in groups]


def _sight(stage: Stage) -> tuple[object, ...]:
    """The keys that the traces of a model, and what becomes of them, depend on."""
    config = stage.experiment.config
    return config.data, config.wave, config.offset_limits, config.inversion.wavelet


def _check_picks(meeting: Meeting) -> Iterator[Finding]:
    picked, period = meeting.picked, meeting.comparison.period
    if picked is not None and abs(picked.lag) > period:
        yield Finding(
            "warning",
            f"data.mute.picks: {meeting.stages[0].experiment.config.data.picks[0]}",
            f"picks are {1000 * abs(picked.lag):.0f} ms {'later' if picked.lag > 0 else 'earlier'} "
            "than the first simulated arrivals, at the median, of a period of "
            f"{1000 * period:.0f} ms",
            "Check that they are in s after the shot, that their shots and receivers are those of "
            "the gathers file, and the wavelet's delay.",
        )


def _compare_picks(
    experiment: Experiment, reader: GatherReader | None, context: Context
) -> PickedArrivals | None:
    """Compare the picks of the first mute that has any with traces before mutes; collective."""
    data = experiment.config.data
    if not data.picks:
        return None
    config = experiment.config.model_copy(update={"data": data.model_copy(update={"mute": ()})})
    survey, picks = experiment.survey, experiment.picks[data.picks[0]]
    mine = _choose_shots(survey, context)
    recorded = None if reader is None else reader.read(mine)
    traces = cache(partial(_observe, experiment, mine, recorded, context))
    views = _see(replace(experiment, config=config), mine, traces, context)
    times = survey.start + survey.dt * np.arange(survey.n_samples)

    def compare_all() -> PickedArrivals:
        lines = [picks.find_line(survey.sources[view.number], view.offsets) for view in views]
        offsets = np.concatenate([view.offsets for view in views])
        observed, simulated = join(views)
        at, period = np.concatenate(lines), _find_period(survey)
        return compare_picks(at, offsets, observed, simulated, times, period)

    return context.from_root(compare_all)


def _find_period(survey: Survey) -> float:
    """Return the period of the wavelet's peak frequency, or of the whole record, s."""
    return 1.0 / max(survey.spectrum.peak, 1.0 / (survey.dt * survey.n_samples))


def _see(
    experiment: Experiment, shots: NDArray[np.int64], traces: Traces, context: Context
) -> list[View]:
    """Views of shots in the starting model, those of all ranks; collective.

    shots, traces: this rank's, as `see_shots` has them.
    """
    initial, chunks = experiment.initial.as_tensors(context.device), Chunks(1, context)
    seen = [view for view, _ in see_shots(experiment, initial, shots, traces, chunks, context)]
    chunks.check()
    return sorted(chain(*context.all_gather(seen)), key=lambda view: view.number)


def _choose_shots(survey: Survey, context: Context) -> NDArray[np.int64]:
    """This rank's of a few shots that are spread over the survey."""
    shots = spread_shots(survey.n_shots, min(SHOTS, survey.n_shots))
    return shots[context.rank :: context.size]


def _compare(
    experiment: Experiment, whole: Experiment, reader: GatherReader | None, context: Context
) -> Comparison:
    """Compare a few shots, spread over the survey; without a scan. Collective."""
    survey, mine = experiment.survey, _choose_shots(experiment.survey, context)
    recorded = None if reader is None else reader.read(mine)
    traces = cache(partial(_observe, experiment, mine, recorded, context))
    views = _see(experiment, mine, traces, context)
    heads: dict[int, NDArray[np.float64]] | None = None
    conventions: tuple[Convention, ...] = ()
    if recorded is not None and not whole.is_synthetic:
        found = find_heads(recorded, whole.survey.axis)
        heads = dict(chain(*context.all_gather([*zip(mine.tolist(), found, strict=True)])))
        conventions = _find_conventions(whole)
    left = 1.0
    if recorded is not None and experiment.band is not None:
        left = _find_left(recorded, traces(), context)
    period = _find_period(survey)
    wavelets = experiment.config.inversion.wavelet.make()()
    estimate = wavelets if isinstance(wavelets, Estimate) else None
    return context.from_root(
        lambda: compare(views, None, survey.axis, period, left, estimate, heads, conventions)
    )


def _find_conventions(whole: Experiment) -> tuple[Convention, ...]:
    """Return what amplitudes other codes would have on the grid of the model."""
    initial, survey = whole.initial, whole.survey
    sources = survey.sources.reshape(-1, initial.grid.ndim)
    speed = float(np.median(wave_speed(initial.arrays)[initial.grid.cells_of(sources)]))
    return list_conventions(float(np.prod(initial.grid.spacing)), speed, survey.dt)


def _observe(
    experiment: Experiment,
    shots: NDArray[np.int64],
    recorded: NDArray[np.float32] | None,
    context: Context,
) -> NDArray[np.float32]:
    """Return observed traces of some shots, read or simulated, in the experiment's band."""
    if recorded is not None:
        return limit(experiment, recorded)
    assert experiment.true is not None, "data that are simulated"
    return np.concatenate([_simulate(experiment, experiment.true, s, context) for s in shots])


def _simulate(
    experiment: Experiment, model: Model, shot: np.int64, context: Context
) -> NDArray[np.float32]:
    """All traces (1, receiver, time) of a shot in a model, within its window."""
    survey, simulator = experiment.survey.select(np.array([shot])), experiment.simulator(model)
    seen = simulator.restrict(model.as_tensors(context.device))
    (window,) = simulator.aperture.find_windows(seen.grid, survey)
    found = simulator.simulate(seen, survey, keep=False, window=window)
    traces = torch.zeros(survey.shape, dtype=found.data.dtype)
    traces[:, window.trace_mask] = found.data.cpu()
    return traces.numpy()


def _find_left(
    recorded: NDArray[np.float32], limited: NDArray[np.float32], context: Context
) -> float:
    """The share of the amplitude of traces (shot, receiver, time) that a band leaves; collective.

    Only values that are finite on all ranks count; 1 if they are silent.
    """
    finite = np.isfinite(recorded).all(axis=-1)
    # A band has fewer samples
    power = [
        float(np.square(traces[finite], dtype=np.float64).sum()) / traces.shape[-1]
        for traces in (recorded, limited)
    ]
    whole, part = np.sum(context.all_gather(power), axis=0)
    return float(np.sqrt(part / whole)) if whole else 1.0
