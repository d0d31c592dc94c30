"""The inversion: from an experiment to a model, one epoch after the other.

Reads from top to bottom like the algorithm. Every rank runs all of it; only rank 0 has a
`Recorder` that writes.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import InversionFailure, Stopped
from hpcfwi.inversion import records
from hpcfwi.inversion.basis import Basis
from hpcfwi.inversion.budget import settle
from hpcfwi.inversion.directory import RunDirectory
from hpcfwi.inversion.effort import Effort, measure_effort
from hpcfwi.inversion.evaluation import Evaluation, Evaluator, References
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.optimizer import Updater
from hpcfwi.inversion.sampler import Batch, Sampler
from hpcfwi.model import rms_difference
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.schedule import open_schedule
from hpcfwi.parallel.stop import StopRequest
from hpcfwi.report.metrics import append_metrics, write_metrics
from hpcfwi.report.painter import Painter
from hpcfwi.report.progress import Progress
from hpcfwi.storage.checkpoint import load_latest_checkpoint, save_checkpoint
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.storage.prefetch import Prefetcher

log = logging.getLogger("hpcfwi")


def invert(
    experiment: Experiment, directory: RunDirectory, context: Context, quiet: bool = False
) -> None:
    """Run the epochs that are left, from the last checkpoint where there is one; collective.

    Raises `Stopped` after a signal, with a checkpoint on disk, `InversionFailure` where shots give
    no finite results, replicas differ or memory runs out, and `InputError` where it cannot suffice
    from the beginning: on all ranks.
    """
    section = experiment.config.inversion
    updater = Updater(experiment.initial.vp, experiment.fixed, section, context.device)
    recorder = Recorder(experiment, directory, updater, context.is_root)
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
    survey = experiment.survey
    physics, portions = settle(wanted, updater.vp, survey, experiment.config, context)
    recorder.basis = Basis.of(physics, context.device)
    evaluator = Evaluator(physics, context, portions, section.reproducible)
    with (
        GatherReader(experiment.observed, context) as reader,
        Prefetcher(reader) as prefetcher,
        open_schedule(section.schedule, portions.size, context) as schedule,
        Painter() as painter,
        Progress(section.epochs, done=epoch, enabled=context.is_root, quiet=quiet) as progress,
        StopRequest(context) as stop,
    ):
        sampler = Sampler(survey, physics.costs(survey), section, schedule, portions, prefetcher)
        recorder.begin(painter, reader)
        while epoch < section.epochs:
            epoch += 1
            started = time.monotonic()
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
            recorder.keep(epoch, evaluation, painter, finished=signal is not None)
            if signal is not None and epoch < section.epochs:
                raise Stopped(
                    f"stopped by {signal} after epoch {epoch}; the same command goes on from there"
                )
    recorder.conclude()


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


@dataclass
class Recorder:
    """Keeps what a run leaves behind, in the run directory; on other ranks than 0 it only counts.

    model_error: root mean square difference from the true model over the free cells, m/s,
    of the newest model; None where the truth is not known. references: for the next evaluation.
    failed: the shots that were set aside, and in how many epochs.
    """

    experiment: Experiment
    directory: RunDirectory
    updater: Updater
    writes: bool
    model_error: float | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    best: tuple[float, int, NDArray[np.float32]] | None = None
    basis: Basis | None = None
    references: References | None = None
    failed: dict[int, int] = field(default_factory=dict)

    def state(self) -> dict[str, Any]:
        """Everything that the next epoch depends on, as a checkpoint keeps it."""
        assert self.basis is not None
        return {
            "updater": self.updater.state(),
            "history": self.history,
            "best": self.best,
            "basis": asdict(self.basis),
            "references": self.references,
            "failed": self.failed,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to the state of a checkpoint."""
        self.updater.restore(state["updater"])
        self.history, self.best = state["history"], state["best"]
        self.basis = Basis(**state["basis"])
        self.references, self.failed = state["references"], state["failed"]

    def begin(self, painter: Painter, reader: GatherReader) -> None:
        """What does not change from epoch to epoch."""
        if self.writes:
            write_metrics(self.directory.metrics, self.history)
            records.keep_models(self.directory, self.experiment)
            records.draw_survey(painter.submit, self.directory, self.experiment.survey, reader)

    def set_aside(self, epoch: int, shots: Sequence[int]) -> None:
        """Note shots whose results are not finite; `InversionFailure` where they are too many."""
        if not shots:
            return
        log.warning(
            "Epoch %d goes on without shots %s, whose misfit or gradient is not finite",
            epoch,
            list(shots),
        )
        for shot in shots:
            self.failed[shot] = self.failed.get(shot, 0) + 1
        most = self.experiment.config.inversion.max_failed_shots
        if len(self.failed) > most * self.experiment.survey.n_shots:
            raise InversionFailure(
                f"{len(self.failed)} of {self.experiment.survey.n_shots} shots, {self._list()}, "
                "gave a misfit or gradient that is not finite, which is more than "
                f"inversion.max_failed_shots = {most} allows: check their data, and the model for "
                "velocities that the last step drove away (a smaller inversion.optimizer.lr, "
                "inversion.bounds)"
            )

    def conclude(self) -> None:
        """Say where the result is, and what is not in it."""
        if self.failed:
            log.warning(
                "%d of %d shots were set aside in some epoch, as their results were not finite: %s",
                len(self.failed),
                self.experiment.survey.n_shots,
                self._list(),
            )
        log.info("Done: %s", self.directory.model)

    def _list(self) -> str:
        return ", ".join(map(str, sorted(self.failed)))

    def record(self, epoch: int, batch: Batch, evaluation: Evaluation, effort: Effort) -> None:
        """Add an epoch to the metrics, and remember the best model so far.

        The best is the one nearest to the truth; where that is not known, the one with the
        smallest misfit of its shots.
        """
        self.references = evaluation.references
        vp = self.updater.vp.cpu().numpy()
        true = self.experiment.true
        if true is not None:
            self.model_error = rms_difference(vp, true.vp, ~self.experiment.fixed)
        score = evaluation.misfit if self.model_error is None else self.model_error
        if self.best is None or score < self.best[0]:
            self.best = (score, epoch, vp.copy())
        entry = {
            "epoch": epoch,
            "stage": 0,
            "loss": evaluation.misfit,
            "model_error": self.model_error,
            "shots": batch.shots.tolist(),
            "failed": list(evaluation.failed),
            "seconds": round(effort.seconds, 4),
            **{what: round(part, 4) for what, part in asdict(effort.times).items()},
            "memory_mb": round(effort.memory, 1),
        }
        self.history.append(entry)
        if self.writes:
            append_metrics(self.directory.metrics, self.history[-1])

    def draws(self, epoch: int) -> bool:
        """Whether figures are due after this epoch."""
        config = self.experiment.config
        return epoch % config.output.every == 0 or epoch == config.inversion.epochs

    def keep(self, epoch: int, evaluation: Evaluation, painter: Painter, finished: bool) -> None:
        """Write what is due after this epoch: figures, models, checkpoint.

        The checkpoint comes last: what was written before it is written again by a run that is
        killed in between, and what came after it would be missing for ever.
        """
        if not self.writes:
            return
        config = self.experiment.config
        finished = finished or epoch == config.inversion.epochs
        vp = self.updater.vp.cpu().numpy()
        if self.draws(epoch):
            picture = records.make_picture(epoch, self.experiment, vp, evaluation)
            records.keep_picture(self.directory, picture)
            records.draw_epoch_figures(painter.submit, self.directory, picture, self.history)
        if finished or epoch % config.output.checkpoint == 0:
            records.keep_result(self.directory.model, self.experiment.initial, vp, epoch)
            assert self.best is not None
            _, best_epoch, best = self.best
            records.keep_result(self.directory.best, self.experiment.initial, best, best_epoch)
            save_checkpoint(self.directory.checkpoints, epoch, self.state())
