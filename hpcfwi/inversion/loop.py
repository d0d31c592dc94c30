"""The inversion: from an experiment to a model, one epoch after the other.

Reads from top to bottom like the algorithm. Every rank runs all of it, but for what writes.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from hpcfwi.errors import InversionFailure, Stopped, WriteFailure
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
from hpcfwi.parallel.schedule import make_schedule
from hpcfwi.parallel.stop import StopRequest
from hpcfwi.parallel.watch import Watch
from hpcfwi.report.painter import Painter
from hpcfwi.report.progress import Progress
from hpcfwi.storage.checkpoint import load_latest_checkpoint
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.storage.prefetch import Prefetcher
from hpcfwi.storage.writer import BackgroundWriter

log = logging.getLogger("hpcfwi")


def restore(experiment: Experiment, directory: RunDirectory, context: Context) -> Recorder:
    """The beginning of a run or, where there is a checkpoint, its state after that; collective.

    Raises `InputError` on all ranks where there may be one that cannot be read.
    """
    section = experiment.config.inversion
    updater = Updater(experiment.initial.vp, experiment.fixed, section, context.device)
    recorder = Recorder(experiment, directory, updater)
    found = context.from_root(lambda: load_latest_checkpoint(directory.checkpoints))
    if found is not None:
        recorder.restore(found[1])
        log.info("Going on from the checkpoint of epoch %d", recorder.epoch)
    return recorder


def invert(
    recorder: Recorder,
    context: Context,
    stop: StopRequest,
    quiet: bool = False,
    lead: Callable[[], None] = lambda: None,
) -> None:
    """Run the epochs that are left; collective.

    Where ranks die and the others can go on, they do, with the epoch that was in work. lead: makes
    a rank that may have become rank 0 ready to write; called there.

    Raises `Stopped` after a signal, with a checkpoint on disk, `InversionFailure` where shots give
    no finite results, replicas differ or memory runs out, and `InputError` where it cannot suffice
    from the beginning: on all ranks.
    """
    experiment, basis = recorder.experiment, recorder.basis
    section = experiment.config.inversion
    if recorder.epoch >= section.epochs:
        context.from_root(recorder.mend)
        log.info("All %d epochs are done already: %s", section.epochs, recorder.directory.path)
        return
    wanted = (
        experiment.physics(experiment.initial)
        if basis is None
        else basis.continue_with(experiment, context)
    )
    physics, portions = settle(
        wanted, recorder.updater.vp, experiment.survey, experiment.config, context
    )
    recorder.basis = Basis.of(physics, context.device)
    if context.survives:
        recorder.mark()
    with (
        _leaving_together(context),
        Painter() as painter,
        BackgroundWriter() as writer,
    ):
        evaluator = Evaluator(physics, context, portions, section.reproducible)
        outputs = _Outputs(recorder, painter, writer)

        def rejoin() -> None:
            context.from_root(lead)
            recorder.rejoin(context)

        signal = survive(context, lambda: _run_epochs(evaluator, outputs, stop, quiet), rejoin)
    if recorder.epoch < section.epochs:
        context.raise_alike(
            Stopped(
                f"stopped by {signal} after epoch {recorder.epoch}; "
                "the same command goes on from there"
            )
        )
    survive(context, lambda: context.from_root(recorder.conclude))


@dataclass(frozen=True)
class _Outputs:
    """What keeps the results of epochs, and what writes them in the background."""

    recorder: Recorder
    painter: Painter
    writer: BackgroundWriter


def _run_epochs(
    evaluator: Evaluator, outputs: _Outputs, stop: StopRequest, quiet: bool
) -> str | None:
    """All epochs after the recorder's; the signal that stopped them earlier, if any. Collective."""
    recorder, painter, writer = outputs.recorder, outputs.painter, outputs.writer
    experiment, updater = recorder.experiment, recorder.updater
    section, survey = experiment.config.inversion, experiment.survey
    physics, portions, context = evaluator.physics, evaluator.portions, evaluator.context
    epoch, signal = recorder.epoch, None
    with (
        GatherReader(experiment.observed, context) as reader,
        Prefetcher(reader) as prefetcher,
        Progress(section.epochs, done=epoch, enabled=context.is_root, quiet=quiet) as progress,
        Watch(context, stop, recorder.save),
    ):
        schedule = make_schedule(section.schedule, portions.size, context)
        sampler = Sampler(survey, physics.costs(survey), section, schedule, portions, prefetcher)
        context.from_root(lambda: recorder.begin(painter, reader))
        while epoch < section.epochs and signal is None:
            epoch += 1
            started = time.monotonic()
            context.pulse.begin(epoch)
            batch = sampler.take(epoch)
            drawn = recorder.draws(epoch)
            evaluation = evaluator.evaluate(updater.vp, batch, recorder.references, drawn)
            recorder.set_aside(evaluation.failed)
            updater.step(evaluation.gradient)
            _compare_replicas(updater, epoch, context)
            effort = measure_effort(evaluation.times, time.monotonic() - started, context)
            recorder.record(epoch, batch, evaluation, effort)
            progress.advance(
                misfit=evaluation.misfit, model_error=recorder.model_error, note=effort.describe()
            )
            signal = stop.agreed()
            last = signal is not None or epoch == section.epochs
            keep = partial(recorder.keep, evaluation, painter, writer, last, context.survives)
            context.from_root(keep)
            if context.survives and not context.is_root:
                recorder.mark()
    return signal


@contextmanager
def _leaving_together(context: Context) -> Iterator[None]:
    """At the end all ranks wait for rank 0, which may have figures to finish; collective.

    A rank that is alone in leaving would be taken for one that has failed.
    """
    try:
        yield
    except (InversionFailure, WriteFailure):  # on all ranks alike
        survive(context, context.barrier)
        raise
    survive(context, context.barrier)


def _compare_replicas(updater: Updater, epoch: int, context: Context) -> None:
    digest = hashlib.sha256(updater.vp.cpu().numpy().tobytes()).hexdigest()
    digests = context.all_gather(digest)
    differing = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if differing:
        context.raise_alike(
            InversionFailure(
                f"after epoch {epoch} the models of ranks {differing} differ from that of rank 0: "
                "a rank computes wrongly (its memory, or another processor or library than the "
                "others')"
            )
        )
