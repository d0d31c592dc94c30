"""The inversion: from an experiment to a model, one epoch after the other.

Reads from top to bottom like the algorithm. Every rank runs all of it, but for what writes.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from functools import partial

from hpcfwi.errors import InversionFailure, Stopped
from hpcfwi.inversion.basis import Basis
from hpcfwi.inversion.budget import settle
from hpcfwi.inversion.directory import RunDirectory
from hpcfwi.inversion.effort import measure_effort
from hpcfwi.inversion.evaluation import Evaluator
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.optimizer import Updater
from hpcfwi.inversion.recorder import Recorder
from hpcfwi.inversion.sampler import Sampler
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.recovery import survive
from hpcfwi.parallel.schedule import open_schedule
from hpcfwi.parallel.stop import StopRequest
from hpcfwi.parallel.watch import Watch
from hpcfwi.report.painter import Painter
from hpcfwi.report.progress import Progress
from hpcfwi.storage.checkpoint import load_latest_checkpoint
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.storage.prefetch import Prefetcher
from hpcfwi.storage.writer import BackgroundWriter

log = logging.getLogger("hpcfwi")


def invert(
    experiment: Experiment,
    directory: RunDirectory,
    context: Context,
    quiet: bool = False,
    lead: Callable[[], None] = lambda: None,
) -> None:
    """Run the epochs that are left, from the last checkpoint where there is one; collective.

    Where ranks have died and the others can go on, they do, with the epoch that was in work.
    lead: makes a rank that has become rank 0 ready to write, and does nothing on one that was.

    Raises `Stopped` after a signal, with a checkpoint on disk, `InversionFailure` where shots give
    no finite results, replicas differ or memory runs out, and `InputError` where it cannot suffice
    from the beginning: on all ranks.
    """
    section = experiment.config.inversion
    updater = Updater(experiment.initial.vp, experiment.fixed, section, context.device)
    recorder = Recorder(experiment, directory, updater)
    epoch = _restore(recorder, directory, context)
    if epoch >= section.epochs:
        log.info("All %d epochs are done already: %s", section.epochs, directory.path)
        return
    basis = recorder.basis
    wanted = (
        experiment.physics(experiment.initial)
        if basis is None
        else basis.continue_with(experiment, context.device)
    )
    physics, portions = settle(wanted, updater.vp, experiment.survey, experiment.config, context)
    recorder.basis = Basis.of(physics, context.device)
    evaluator = Evaluator(physics, context, portions, section.reproducible)
    if context.survives:
        recorder.mark(epoch)
    with Painter() as painter, BackgroundWriter() as writer, StopRequest(context) as stop:

        def go_on() -> None:
            done = epoch
            if context.survives:
                context.from_root(lead)
                done = recorder.rejoin(context)
            if done < section.epochs:
                _run_epochs(done, evaluator, recorder, stop, painter, writer, quiet)

        survive(context, go_on)
    recorder.conclude()


def _run_epochs(
    epoch: int,
    evaluator: Evaluator,
    recorder: Recorder,
    stop: StopRequest,
    painter: Painter,
    writer: BackgroundWriter,
    quiet: bool,
) -> None:
    """All epochs after this one; collective."""
    experiment, updater = recorder.experiment, recorder.updater
    section, survey = experiment.config.inversion, experiment.survey
    physics, portions, context = evaluator.physics, evaluator.portions, evaluator.context
    with (
        GatherReader(experiment.observed, context) as reader,
        Prefetcher(reader) as prefetcher,
        open_schedule(section.schedule, portions.size, context) as schedule,
        Progress(section.epochs, done=epoch, enabled=context.is_root, quiet=quiet) as progress,
        Watch(context, stop, recorder.save),
    ):
        sampler = Sampler(survey, physics.costs(survey), section, schedule, portions, prefetcher)
        context.from_root(lambda: recorder.begin(painter, reader))
        while epoch < section.epochs:
            epoch += 1
            started = time.monotonic()
            context.pulse.begin(epoch)
            batch = sampler.take(epoch)
            drawn = recorder.draws(epoch)
            evaluation = evaluator.evaluate(updater.vp, batch, recorder.references, drawn)
            recorder.set_aside(epoch, evaluation.failed)
            updater.step(evaluation.gradient)
            _compare_replicas(updater, epoch, context)
            effort = measure_effort(evaluation.times, time.monotonic() - started, context)
            recorder.record(epoch, batch, evaluation, effort)
            progress.advance(
                misfit=evaluation.misfit, model_error=recorder.model_error, note=effort.describe()
            )
            signal = stop.agreed()
            last = signal is not None or epoch == section.epochs
            keep = partial(
                recorder.keep, epoch, evaluation, painter, writer, last, context.survives
            )
            context.from_root(keep)
            if context.survives and not context.is_root:
                recorder.mark(epoch)
            if signal is not None and epoch < section.epochs:
                raise Stopped(
                    f"stopped by {signal} after epoch {epoch}; the same command goes on from there"
                )


def _restore(recorder: Recorder, directory: RunDirectory, context: Context) -> int:
    """Go back to the last checkpoint; the number of epochs done."""
    found = context.from_root(lambda: load_latest_checkpoint(directory.checkpoints))
    if found is None:
        return 0
    epoch, state = found
    recorder.restore(state)
    log.info("Going on from the checkpoint of epoch %d", epoch)
    return epoch


def _compare_replicas(updater: Updater, epoch: int, context: Context) -> None:
    digest = hashlib.sha256(updater.vp.cpu().numpy().tobytes()).hexdigest()
    digests = context.all_gather(digest)
    differing = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if differing:
        raise InversionFailure(
            f"after epoch {epoch} the models of ranks {differing} differ from that of rank 0: a "
            "rank computes wrongly (its memory, or another processor or library than the others')"
        )
