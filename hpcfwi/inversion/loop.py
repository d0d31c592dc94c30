"""The inversion: from a model to a better one, epoch after epoch.

Every rank runs all of it. How the parts are put together, and what becomes of signals and of ranks
that die, is in `run.session`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from hpcfwi.errors import InversionFailure
from hpcfwi.inversion.evaluations import Evaluations
from hpcfwi.inversion.journal import Journal
from hpcfwi.inversion.objective import Objective
from hpcfwi.inversion.optimizers import Optimizer
from hpcfwi.inversion.sampler import EncodedSampler, Sampler
from hpcfwi.inversion.stages import Stage
from hpcfwi.inversion.state import State
from hpcfwi.inversion.timings import measure_timings
from hpcfwi.model import Model
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.replicas import find_differing
from hpcfwi.parallel.watch import StopRequest


@dataclass(frozen=True)
class Inversion:
    """Its parts: which shots an epoch has, their misfit, the next model, what is kept of it all."""

    sampler: Sampler | EncodedSampler
    objective: Objective
    optimizer: Optimizer
    journal: Journal


def run_epochs(
    state: State, stage: Stage, parts: Inversion, stop: StopRequest, context: Context
) -> str | None:
    """Go on to the last epoch of a stage, or until a signal, whose name is returned; collective.

    Raises `InversionFailure` on all ranks where shots give no finite results, a step leads to no
    model, replicas differ or memory runs out.
    """
    journal, signal = parts.journal, None
    parts.optimizer.restore(state.optimizer)
    while state.epoch < stage.last and signal is None:
        epoch, started = state.epoch + 1, time.monotonic()
        context.heartbeat.begin(f"epoch {epoch}")
        batch = parts.sampler.take(epoch)
        evaluate = Evaluations(parts.objective, stage, batch, state, journal.draws(epoch))
        evaluate.renew_wavelet(epoch)
        model, evaluation = parts.optimizer.step(state.model, evaluate, stage.progress(epoch))
        _compare_replicas(model, epoch, context)
        seconds = time.monotonic() - started
        timings = measure_timings(evaluate.times, evaluate.simulations, seconds, context)
        score, entry = journal.describe(epoch, batch, model, evaluation, timings)
        optimizer, learnt = parts.optimizer.state(), evaluate.learnt(model)
        state = state.after(model, optimizer, evaluation, score, entry, *learnt)
        signal = stop.agreed()
        journal.keep(state, evaluation, last=signal is not None or epoch == stage.last)
    return signal


def _compare_replicas(model: Model, epoch: int, context: Context) -> None:
    differing = find_differing(model.arrays.values(), context)
    if differing:
        context.raise_alike(
            InversionFailure(
                f"after epoch {epoch} the models of ranks {differing} differ from that of rank 0: "
                "a rank computes wrongly (its memory, or another processor or library than the "
                "others')"
            )
        )
