"""Some shots to look at: observed traces beside those simulated in a model, as a misfit meets them.

Simulated on the rank that asks. What these traces say is in `fit`, and before an inversion in
`plan.comparison`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hpcfwi.inversion.conditioning import Conditioning
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.misfits import Misfit
from hpcfwi.inversion.picks import sign_offsets
from hpcfwi.inversion.portions import Observe, work_through
from hpcfwi.inversion.sampler import Part
from hpcfwi.inversion.shots import condition
from hpcfwi.inversion.timings import Times
from hpcfwi.model import Model
from hpcfwi.operators.chunks import Chunks
from hpcfwi.operators.simulator import Simulator
from hpcfwi.operators.window import Window
from hpcfwi.parallel.context import Context
from hpcfwi.storage.background import Traces
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.survey import Survey

MOST_TRACES = 400  # of a shot


@dataclass(frozen=True)
class View:
    """Of one shot, the traces that are compared, some of them where there are many.

    number: the shot's; offsets: (trace,), m, negative on the side of smaller x; observed,
    simulated: (trace, time); receivers: numbers (trace,) of the shot's receivers, None where they
    were not kept.
    """

    number: int
    offsets: NDArray[np.float64]
    observed: NDArray[np.float32]
    simulated: NDArray[np.float32]
    receivers: NDArray[np.int64] | None = None


def read_observed(
    experiment: Experiment, reader: GatherReader, shots: NDArray[np.int64]
) -> NDArray[np.float32]:
    """What was observed of some shots, (shot, receiver, time), in the experiment's band."""
    return limit(experiment, reader.read(shots))


def limit(experiment: Experiment, recorded: NDArray[np.float32]) -> NDArray[np.float32]:
    """Recorded traces (shot, receiver, time) in the experiment's band.

    A shot's bits do not depend on the others.
    """
    if experiment.band is None or not len(recorded):
        return recorded
    return np.stack([experiment.band.filter(gather) for gather in recorded])


def see_shots(
    experiment: Experiment,
    model: Model,
    shots: NDArray[np.int64],
    traces: Traces,
    chunks: Chunks,
    context: Context,
    wavelet: NDArray[np.float32] | None = None,
) -> Iterator[tuple[View, float]]:
    """Views of shots of a survey, and their misfits, of all their traces.

    model: of tensors; traces: waits for what was observed of these shots, (shot, receiver, time),
    in the experiment's band; wavelet: as `Part.emitting` has it, None for the survey's. It ends
    early where memory does not suffice for a single shot: call `chunks.check` after it.
    """
    simulator = experiment.compared()
    work = partial(
        _see,
        simulator.restrict(model),
        simulator=simulator,
        conditioning=experiment.conditioning(),
        misfit=experiment.config.inversion.misfit.make(),
    )
    part = Part(shots, experiment.survey.select(shots), traces)
    if wavelet is not None:
        part = part.emitting(wavelet)
    for number, (arrays, misfit) in work_through(part, work, simulator, chunks, context, Times()):
        yield View(number, *arrays), misfit


def _see(
    model: Model,
    survey: Survey,
    window: Window,
    observe: Observe,
    simulator: Simulator,
    conditioning: Conditioning,
    misfit: Misfit,
) -> list[tuple[tuple[NDArray, NDArray, NDArray, NDArray], float]]:
    """Return what views hold, and misfits, of shots that have the same window."""
    simulated = simulator.simulate(model, survey, False, False, window).data.cpu()
    given = condition(survey, window, observe, simulator, conditioning)
    met = given.meet(simulated)
    misfits, _ = misfit(*met, survey.dt)
    ours, theirs = (traces.numpy() for traces in met)
    views = []
    for shot in range(survey.n_shots):
        places = np.flatnonzero(given.counts[shot])
        if places.size > MOST_TRACES:
            places = places[np.linspace(0, places.size - 1, MOST_TRACES).round().astype(np.int64)]
        numbers = np.arange(survey.n_receivers)[window.trace_mask][places]
        source, receivers = survey.sources[shot], survey.receivers[shot][numbers]
        signed = sign_offsets(source, receivers)
        arrays = signed, theirs[shot, places], ours[shot, places], numbers
        views.append((arrays, float(misfits[shot])))
    return views
