"""The observed data are met: some shots are simulated in the starting model, and all are scanned.

Collective. What the numbers say is in `comparison` and `scan`.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.inversion.chunks import Chunks
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.views import read_observed, see_shots
from hpcfwi.model import Model
from hpcfwi.parallel.context import Context
from hpcfwi.plan.comparison import Comparison, compare
from hpcfwi.plan.scan import scan_traces
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.wave.wavelet import peak_frequency

SHOTS = 3


def meet_data(
    whole: Experiment, experiment: Experiment, reader: GatherReader | None, context: Context
) -> Comparison:
    """Compare observed data with those of the starting model, as the misfit would; collective.

    whole: that the file of the data belongs to; experiment: the same as its first stage has it;
    reader: of the observed data, None where they are still to be simulated. Every trace of data
    that others have made is read. Raises `InversionFailure` on all ranks where memory does not
    suffice for one shot.
    """
    survey = experiment.survey
    spread = np.linspace(0, survey.n_shots - 1, min(SHOTS, survey.n_shots) + 2)[1:-1]
    shots = spread.round().astype(np.int64)
    context.heartbeat.begin("a first look at the data")
    mine, chunks = shots[context.rank :: context.size], Chunks(1, context)
    initial = experiment.initial.as_tensors(context.device)
    traces = cache(partial(_observe, experiment, mine, reader, context))
    seen = [view for view, _ in see_shots(experiment, initial, mine, traces, chunks, context)]
    chunks.check()
    views = sorted(chain(*context.all_gather(seen)), key=lambda view: view.number)
    scan = None
    if reader is not None and not experiment.is_synthetic:
        scan = scan_traces(whole, reader, context)
    period = 1.0 / max(
        peak_frequency(survey.wavelet, survey.dt), 1.0 / (survey.dt * survey.n_samples)
    )
    return context.from_root(lambda: compare(views, scan, survey.dt, period))


def _observe(
    experiment: Experiment,
    shots: NDArray[np.int64],
    reader: GatherReader | None,
    context: Context,
) -> NDArray[np.float32]:
    """What was, or will be, observed of some shots, in the experiment's band."""
    if reader is not None:
        return read_observed(experiment, reader, shots)
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
