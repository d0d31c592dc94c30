"""What a run remembers from epoch to epoch, and when it is written.

The files themselves are those of `records` and of `storage`; the algorithm is in `loop`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import InversionFailure
from hpcfwi.inversion import records
from hpcfwi.inversion.basis import Basis
from hpcfwi.inversion.directory import RunDirectory
from hpcfwi.inversion.effort import Effort
from hpcfwi.inversion.evaluation import Evaluation, References
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.optimizer import Updater
from hpcfwi.inversion.sampler import Batch
from hpcfwi.model import rms_difference
from hpcfwi.parallel.context import Context
from hpcfwi.report.figures import EpochPicture
from hpcfwi.report.metrics import append_metrics, write_metrics
from hpcfwi.report.painter import Painter
from hpcfwi.storage.checkpoint import naming_checkpoint, save_checkpoint
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.storage.models import read_epoch
from hpcfwi.storage.writer import BackgroundWriter

log = logging.getLogger("hpcfwi")


@dataclass(frozen=True)
class _Finished:
    """An epoch that is done, and a copy of the state after it."""

    epoch: int
    state: dict[str, Any]

    @property
    def vp(self) -> NDArray[np.float32]:
        vp: NDArray[np.float32] = self.state["updater"]["vp"].numpy()
        return vp

    @property
    def best(self) -> tuple[float, int, NDArray[np.float32]]:
        best: tuple[float, int, NDArray[np.float32]] = self.state["best"]
        return best

    @property
    def score(self) -> float:
        """Of this model, as `best` has it of the best."""
        entry = self.state["history"][-1]
        return float(entry["loss"] if entry["model_error"] is None else entry["model_error"])


@dataclass
class Recorder:
    """Keeps what a run leaves behind, in the run directory; on other ranks than 0 it only counts.

    What writes is called on rank 0 alone.

    model_error: root mean square difference from the true model over the free cells, m/s,
    of the newest model; None where the truth is not known. references: for the next evaluation.
    failed: the shots that were set aside, and in how many epochs.
    """

    experiment: Experiment
    directory: RunDirectory
    updater: Updater
    model_error: float | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    best: tuple[float, int, NDArray[np.float32]] | None = None
    basis: Basis | None = None
    references: References | None = None
    failed: dict[int, int] = field(default_factory=dict)
    _finished: _Finished | None = None
    _saved: int = 0
    _saving: threading.Lock = field(default_factory=threading.Lock)

    @property
    def epoch(self) -> int:
        """The last one that is done; 0 at the beginning."""
        return int(self.history[-1]["epoch"]) if self.history else 0

    def state(self) -> dict[str, Any]:
        """A copy of everything that the next epoch depends on, as a checkpoint keeps it."""
        assert self.basis is not None
        return {
            "updater": self.updater.state(),
            "history": list(self.history),
            "best": self.best,
            "basis": asdict(self.basis),
            "references": self.references,
            "failed": dict(self.failed),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to the state of a checkpoint."""
        self.updater.restore(state["updater"])
        self.history, self.best = state["history"], state["best"]
        self.basis = Basis(**state["basis"])
        self.references, self.failed = state["references"], state["failed"]
        self._saved = self.epoch

    def mark(self) -> None:
        """Keep a copy of the state as it is, to save it, or to go back to it."""
        self._finished = _Finished(self.epoch, self.state())

    def rejoin(self, context: Context) -> None:
        """Go back to the newest state that any rank has marked; collective.

        For ranks that go on without one that has died: each may have got into the epoch as far as
        it could, and some to its end.
        """
        finished = self._finished
        assert finished is not None, "marked from the beginning"
        epochs = context.all_gather(finished.epoch)
        if min(epochs) < max(epochs):
            finished = context.broadcast(finished, epochs.index(max(epochs)))
        state = finished.state
        self._finished = finished
        self.updater.restore(state["updater"])
        self.history, self.best = list(state["history"]), state["best"]
        self.references, self.failed = state["references"], dict(state["failed"])

    def begin(self, painter: Painter, reader: GatherReader) -> None:
        """Write what does not change from epoch to epoch; rank 0 only, as all that writes."""
        with naming_checkpoint(self.directory.checkpoints):
            write_metrics(self.directory.metrics, self.history)
            records.keep_models(self.directory, self.experiment)
        records.draw_survey(painter.submit, self.directory, self.experiment.survey, reader)

    def set_aside(self, shots: Sequence[int]) -> None:
        """Note shots whose results are not finite; `InversionFailure` where they are too many."""
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

    def draws(self, epoch: int) -> bool:
        """Whether figures are due after this epoch."""
        config = self.experiment.config
        return epoch % config.output.every == 0 or epoch == config.inversion.epochs

    def keep(
        self,
        evaluation: Evaluation,
        painter: Painter,
        writer: BackgroundWriter,
        last: bool,
        waits: bool = False,
    ) -> None:
        """Have written what is due after this epoch, and all of it if it is the last for now.

        waits: until it is on disk, as the others would go on without this rank.

        Raises `WriteFailure`, also of what was handed to the writer before.
        """
        epoch = self.epoch
        if evaluation.failed:
            log.warning(
                "Epoch %d went on without shots %s, whose misfit or gradient is not finite",
                epoch,
                list(evaluation.failed),
            )
        self.mark()
        finished = self._finished
        assert finished is not None
        with naming_checkpoint(self.directory.checkpoints):
            append_metrics(self.directory.metrics, self.history[-1])
        picture = None
        if self.draws(epoch):
            picture = records.make_picture(epoch, self.experiment, finished.vp, evaluation)
        due = last or epoch % self.experiment.config.output.checkpoint == 0
        if due or picture is not None:
            writer.submit(self._write, finished, picture, due)
        if picture is not None:
            records.draw_epoch_figures(painter.submit, self.directory, picture, self.history)
        if last or waits:
            writer.flush()

    def mend(self) -> None:
        """Write the result that belongs to the checkpoint, where the directory has another or none.

        A checkpoint that was saved in a hurry, at a signal, comes before it.
        """
        if read_epoch(self.directory.model) != self.epoch:
            self._write(_Finished(self.epoch, self.state()), None, due=True)

    def save(self) -> str:
        """Write the checkpoint of the last finished epoch; "epoch 0" where there is none yet.

        For another thread than the one of the epochs, which may be in the middle of the next.
        """
        finished = self._finished
        if finished is not None:
            self._save(finished)
        return f"epoch {self._saved}"

    def _write(self, finished: _Finished, picture: EpochPicture | None, due: bool) -> None:
        """The checkpoint comes last: what was written before it is written again by a run that
        is killed in between, and what came after it would be missing for ever."""
        initial, directory = self.experiment.initial, self.directory
        with naming_checkpoint(directory.checkpoints):
            if picture is not None:
                records.keep_picture(directory, picture)
            if due:
                records.keep_result(directory.model, initial, finished.vp, finished.epoch)
                _, epoch, vp = finished.best
                records.keep_result(directory.best, initial, vp, epoch)
                self._save(finished)

    def _save(self, finished: _Finished) -> None:
        with self._saving:
            if finished.epoch > self._saved:
                checkpoints = self.directory.checkpoints
                save_checkpoint(checkpoints, finished.epoch, finished.state, score=finished.score)
                self._saved = finished.epoch
