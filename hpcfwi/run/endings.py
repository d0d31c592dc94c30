"""The end of a stage: what its model makes of the data, from a few shots that are simulated for it.

Nothing of the inversion depends on it. It is kept in the run directory, so that `show` draws it
again without computing: in `fits`.
"""

from __future__ import annotations

import logging
import time
from functools import cache, partial
from itertools import chain
from pathlib import Path

from hpcfwi.errors import InputError, InversionFailure, WriteFailure
from hpcfwi.inversion.memory import fit_ranks, most_at_a_time
from hpcfwi.inversion.shot_qc import (
    SHOTS,
    Fit,
    ShotFit,
    View,
    choose_shots,
    choose_views,
    describe_fit,
    knows_amplitudes,
    measure_fit,
    read_observed,
    see_shots,
)
from hpcfwi.inversion.stages import Stage
from hpcfwi.operators.batching import Chunks
from hpcfwi.parallel.watch import StopRequest, Watch
from hpcfwi.run import fits as kept
from hpcfwi.run.observation import open_observed
from hpcfwi.run.recorder import Recorder
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.system import is_there
from hpcfwi.wave.numerics import peak_frequency

log = logging.getLogger("hpcfwi")

SHOWN = 3  # whose traces are kept


def look_at_end(stage: Stage, recorder: Recorder, stop: StopRequest) -> str | None:
    """Simulate a few shots in the model that a stage has ended with, keep what is found, draw it.

    Not where it is kept already. Returns the signal that it was given up for, if any: its state is
    on disk before. Where memory or the disk do not suffice that is a warning. Collective.
    """
    context, directory, epoch = recorder.context, recorder.directory, recorder.state.epoch
    path = directory.ending(stage.number)
    if context.from_root(partial(_is_kept, path, epoch)):
        return None
    started = time.monotonic()
    context.heartbeat.begin(f"the data fit after epoch {epoch}")
    try:
        with (
            open_observed(recorder.experiment, context) as reader,
            Watch(context, stop, recorder.save),
        ):
            found = _find_fit(stage, recorder, reader, stop)
        if isinstance(found, str):
            return found

        def keep() -> None:
            assert recorder.painter is not None, "rank 0 draws"
            kept.keep_fit(path, found, epoch)
            label = directory.label(stage.number, len(recorder.stages))
            kept.draw_fit(recorder.painter.submit, directory, found, epoch, label)
            seconds = time.monotonic() - started
            log.info("Data fit after epoch %d, %.1f s: %s", epoch, seconds, describe_fit(found))
            for finding in kept.check_fit(found, epoch):
                log.warning("%s: %s. %s", finding.where, finding.found, finding.remedy)

        context.from_root(keep)
    except (InputError, InversionFailure, WriteFailure) as failure:  # on all ranks alike
        log.warning("The data fit after epoch %d is not drawn: %s", epoch, failure)
    return None


def _find_fit(
    stage: Stage, recorder: Recorder, reader: GatherReader, stop: StopRequest
) -> Fit | str:
    """Of the newest state, the same on all ranks, or the signal that has ended it; collective.

    In rounds of as many shots as memory allows with a history, of which there is none here. Raises
    `InputError` and `InversionFailure` on all ranks where it does not suffice for one shot.
    """
    experiment, context, state = stage.experiment, recorder.context, recorder.state
    config, survey = experiment.config, experiment.survey
    simulator = experiment.compared()
    fit = fit_ranks(simulator, state.model, survey, experiment, context, has_state=True)
    most = most_at_a_time(config.inversion, survey.n_shots, context)
    chunks = Chunks(min(fit.at_once, most), context)
    found = None if state.emission is None else state.emission.complete()
    if found is None:
        peak = survey.spectrum.peak
    else:
        peak = context.from_root(partial(peak_frequency, found, survey.dt))
    frequency = max(peak, 1.0 / (survey.dt * survey.n_samples))
    shots = choose_shots(survey.n_shots, SHOTS)
    shown = choose_views(shots, SHOWN)
    mine = shots[context.rank :: context.size]
    normalized = not knows_amplitudes(config.inversion.misfit.make())
    fits: list[ShotFit] = []
    views: list[View] = []

    for first in range(0, -(-shots.size // context.size), fit.at_once):
        some = mine[first : first + fit.at_once]
        traces = cache(partial(read_observed, experiment, reader, some))
        seen = see_shots(experiment, state.model, some, traces, chunks, context, found)
        for view, misfit in seen:
            fits.append(measure_fit(view, misfit, frequency, survey.dt, normalized))
            if view.number in shown:
                views.append(view)
        chunks.check()
        signal = stop.agreed()
        if signal is not None:
            return signal
    everywhere = context.all_gather((fits, views))
    return Fit(
        frequency,
        survey.axis,
        tuple(sorted(chain(*(f for f, _ in everywhere)), key=lambda fit: fit.number)),
        tuple(sorted(chain(*(v for _, v in everywhere)), key=lambda view: view.number)),
        normalized,
    )


def _is_kept(path: Path, epoch: int) -> bool:
    if not is_there(path):
        return False
    try:
        return kept.read_fit(path)[1] == epoch
    except InputError:
        return False
