"""The recorder of a run: what it leaves behind, and when it is written.

`records` and `storage` write the files; the algorithm is in `inversion.loop`.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import InversionFailure
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.objective import Evaluation, Timings
from hpcfwi.inversion.stages import Batch, Stage
from hpcfwi.inversion.state import State
from hpcfwi.model import PARAMETERS, Model, squared_difference
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.replicas import measure_blocks
from hpcfwi.report.log import Progress
from hpcfwi.report.page import append_metrics, mend_metrics
from hpcfwi.report.painter import Painter
from hpcfwi.report.panels import EpochPicture
from hpcfwi.run import records
from hpcfwi.run.directory import RunDirectory
from hpcfwi.storage.background import BackgroundWriter
from hpcfwi.storage.checkpoint import naming_checkpoint, save_checkpoint
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.storage.models import read_epoch, write_image, write_model

log = logging.getLogger("hpcfwi")


@dataclass
class Recorder:
    """Keeps what a run leaves behind, in the run directory; rank 0 alone writes.

    experiment: that of the whole run; state: the newest that is done, on every rank.
    """

    experiment: Experiment
    stages: Sequence[Stage]
    directory: RunDirectory
    context: Context
    state: State
    painter: Painter | None = None
    writer: BackgroundWriter | None = None
    progress: Progress | None = None
    _saving: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        # The state of a checkpoint need not be written again.
        self._saved = self.state.epoch
        self._has_begun = False
        self._first_error: float | None = None
        self._imaged: tuple[Model, NDArray[np.float64]] | None = None
        self._cuts: tuple[int, ...] | None = None

    def rejoin(self) -> None:
        """Go back to the newest state that any rank has; collective.

        For ranks that go on without one that has died: each may have got into the epoch as far as
        it could, and some to its end.
        """
        epochs = self.context.all_gather(self.state.epoch)
        if min(epochs) < max(epochs):
            self.state = self.context.broadcast(self.state, epochs.index(max(epochs)))

    def prepare(self) -> None:
        """Find out what errors are compared with, that of the initial model; collective.

        Once, unless a rank has died before all knew it.
        """
        if None in self.context.all_gather(self._first_error):
            self._first_error = self._measure_error(self.experiment.initial)

    def begin(self, reader: GatherReader) -> None:
        """Write what there is before the next epoch; rank 0 only.

        Once all that does not change from stage to stage; the metrics up to the state each time, as
        a rank that has died may have been the only one to know of its last epoch.
        """
        assert self.painter is not None, "rank 0 draws"
        with naming_checkpoint(self.directory.checkpoints):
            mend_metrics(self.directory.metrics, map(self._name_shots, self.state.history))
            if self._has_begun:
                return
            if self.experiment.true is not None:
                write_model(self.directory.true, self.experiment.true)
            write_model(self.directory.initial, self.experiment.initial)
            experiments = [self.experiment, *(stage.experiment for stage in self.stages)]
            records.keep_masks(self.directory, experiments)
        survey, config = self.experiment.survey, self.experiment.config
        records.draw_survey(self.painter.submit, self.directory, survey, reader, config)
        self._has_begun = True

    def describe(
        self, epoch: int, batch: Batch, model: Model, evaluation: Evaluation, timings: Timings
    ) -> tuple[float, dict[str, Any]]:
        """Return the score of a model, less is better, and the metrics of the epoch; collective.

        The score is the model error or, if the truth is not known, the loss.
        """
        error = likeness = None
        if self.experiment.true is not None:  # or a card's model stays there
            error, likeness = self._measure_error(model), self._correlate(model)
        history, stage = self.state.history, self.stages[self.state.stage]
        before = history[-1].get("simulations", 0) if history else 0
        entry = {
            "epoch": epoch,
            "stage": stage.name,
            "loss": evaluation.loss,
            "model_error": error,
            # Which they are follows from the input, and its end, which another try may move
            "shots": None,
            "planned": stage.section.epochs,
            "failed": list(evaluation.failed),
            "simulations": before + timings.simulations,
            "seconds": round(timings.seconds, 4),
            **{what: round(part, 4) for what, part in asdict(timings.times).items()},
            "memory_mb": round(timings.memory, 1),
        }
        if likeness is not None:
            entry["correlation"] = round(likeness, 4)
        if self.progress is not None:
            note = timings.describe()
            if timings.simulations > batch.shots.size:
                note = f"{timings.simulations} simulations, {note}"
            self.progress.advance(misfit=evaluation.loss, model_error=error, note=note)
        return evaluation.loss if error is None else error, entry

    def _name_shots(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """An entry of the history as the metrics have it, with what finds the epoch's shots."""
        told = {key: value for key, value in entry.items() if key != "planned"}
        epoch = entry["epoch"]
        stage = next(stage for stage in self.stages if epoch <= stage.last)
        told["shots"] = partial(stage.shots, epoch, entry["planned"])
        return told

    def _measure_error(self, model: Model[Any]) -> float | None:
        """Return the error of the first parameter in free cells, None if the truth is not known.

        Collective: the same bits for any number of ranks.
        """
        true, fixed = self.experiment.true, self.experiment.fixed
        if true is None:
            return None
        (name, *_) = self.experiment.config.inversion.parameters
        sums = measure_blocks(squared_difference, [model[name], true[name], fixed], self.context)
        return math.sqrt(math.fsum(sums) / (fixed.size - np.count_nonzero(fixed)))

    def _correlate(self, model: Model) -> float | None:
        """Return the correlation of a migration's image with the truth, None for other runs."""
        experiment = self.experiment
        if not experiment.config.inversion.linear:
            return None
        # By one rank: images take several times the memory of a model
        return self.context.from_root(lambda: experiment.compare_image(self._make_image(model)))

    def draws(self, epoch: int) -> bool:
        """Return True if figures are due after this epoch."""
        every = self.experiment.config.output.every
        return epoch % every == 0 or any(epoch == stage.last for stage in self.stages)

    def keep(self, state: State, evaluation: Evaluation, last: bool) -> None:
        """Have written what is due after an epoch, and all of it if it is the last; collective.

        Raises `WriteFailure`, also of what was handed to the writer before, and `InversionFailure`
        where too many shots have failed by now: on all ranks.
        """
        self._check_failures(state)
        due = last or state.epoch % self.experiment.config.output.checkpoint == 0
        kept = state.gather(self.context) if due else state
        self.context.from_root(lambda: self._keep(kept, evaluation, due, last))
        self.state = state

    def _keep(self, state: State, evaluation: Evaluation, due: bool, last: bool) -> None:
        assert self.painter is not None, "rank 0 draws"
        assert self.writer is not None, "rank 0 writes"
        epoch = state.epoch
        if evaluation.failed:
            log.warning(
                "Epoch %d went on without shots %s, whose misfit or gradient is not finite",
                epoch,
                list(evaluation.failed),
            )
        emission = state.emission if state.emission is not self.state.emission else None
        # From here on a signal may save it.
        self.state = state
        with naming_checkpoint(self.directory.checkpoints):
            append_metrics(self.directory.metrics, self._name_shots(state.history[-1]))
        picture = None
        if self.draws(epoch):
            stage = self.stages[state.stage]
            picture = records.make_picture(stage.experiment, state, evaluation, self._cuts)
            self._cuts = picture.cuts
        # One that takes a step in every epoch is shown when the model is
        if emission is not None and (picture is not None or emission.momentum is None):
            survey = self.stages[state.stage].experiment.survey
            records.keep_wavelet(self.directory, emission, survey, epoch)
            records.draw_wavelet(
                self.painter.submit,
                self.directory,
                emission.wavelet,
                survey.axis,
                records.first_wavelet(survey),
            )
        image = None
        if due or picture is not None:
            # Once for both, and not beside the sums of the next epoch
            image = self._image_of(state)
            self.writer.submit(self._write, state, picture, image, due)
        if picture is not None:
            start = self._first_error
            label = None
            if epoch == stage.last:
                label = self.directory.label(stage.number, len(self.stages))
            records.draw_epoch_figures(
                self.painter.submit,
                self.directory,
                picture,
                state.history,
                start,
                label,
                records.are_comparable([stage.experiment.config for stage in self.stages]),
            )
            if image is not None:
                records.draw_image(
                    self.painter.submit,
                    self.directory,
                    image,
                    self.experiment.initial,
                    self.experiment.true,
                    picture,
                )
        if last:
            self.writer.flush()

    def _check_failures(self, state: State) -> None:
        most = self.experiment.config.inversion.max_failed_shots
        shots = self.experiment.survey.n_shots
        if len(state.failed) > most * shots:
            raise InversionFailure(
                f"{len(state.failed)} of {shots} shots, {_list(state.failed)}, "
                "gave a misfit or gradient that is not finite, which is more than "
                f"inversion.max_failed_shots = {most} allows: check their data, and the model for "
                "velocities that the last step drove away (a smaller inversion.optimizer.lr or "
                "step, inversion.bounds)"
            )

    def conclude(self) -> None:
        """Say where the result is, and what is not in it; rank 0 only."""
        failed = self.state.failed
        if failed:
            log.warning(
                "%d of %d shots were set aside in some epoch, as their results were not finite: %s",
                len(failed),
                self.experiment.survey.n_shots,
                _list(failed),
            )
        self._judge()
        log.info("Done: %s", self.directory.model)

    def _judge(self) -> None:
        """Say what has become of the error, and which model is the best."""
        best, last = self.state.best, self.state.history[-1]
        if "correlation" in last:
            log.info(
                "Correlation with the true reflectivity: %.3f after the first iteration, %.3f now: "
                "%s",
                self.state.history[0]["correlation"],
                last["correlation"],
                self.directory.image,
            )
        start, error = self._first_error, last["model_error"]
        if start is not None and error is not None:
            (name, *_) = self.experiment.config.inversion.parameters
            unit = PARAMETERS[name].unit
            log.log(
                logging.INFO if error <= start else logging.WARNING,
                "Error of the model: %.1f %s at the start, %.1f %s now",
                start,
                unit,
                error,
                unit,
            )
        if best is not None and best.epoch < self.state.epoch:
            log.info("The best model is that of epoch %d: %s", best.epoch, self.directory.best)

    def mend(self) -> None:
        """Write the result that belongs to the checkpoint, where the directory has another or none.

        A checkpoint that was saved in a hurry, at a signal, comes before it. Rank 0 only.
        """
        if read_epoch(self.directory.model) != self.state.epoch:
            self._write(self.state, None, self._image_of(self.state), due=True)

    def save(self) -> str:
        """Write the checkpoint of the last finished epoch; "epoch 0" where there is none yet.

        For another thread than the one of the epochs, which may be in the middle of the next: where
        other ranks have parts of its state it is not written, and what counts is the one before.
        Rank 0 only.
        """
        state = self.state
        if not state.is_shared:
            self._save(state)
        return f"epoch {self._saved}"

    def _image_of(self, state: State) -> NDArray[np.float64] | None:
        """Return the image of a migration, None for other runs."""
        return self._make_image(state.model) if self.experiment.config.inversion.linear else None

    def _make_image(self, model: Model) -> NDArray[np.float64]:
        """Return the image of a model of tensors; the last one is cached."""
        if self._imaged is None or self._imaged[0] is not model:
            self._imaged = model, self.experiment.image(model.as_arrays())
        return self._imaged[1]

    def _write(
        self,
        state: State,
        picture: EpochPicture | None,
        image: NDArray[np.float64] | None,
        due: bool,
    ) -> None:
        """Write the files of an epoch, and the checkpoint last.

        A run that is killed in between writes the files again; files that came after the checkpoint
        would be missing for ever.
        """
        directory, best = self.directory, state.best
        assert best is not None, "there is one after the first epoch"
        with naming_checkpoint(directory.checkpoints):
            if picture is not None:
                records.keep_picture(directory, picture)
            if due:
                for path, result in ((directory.model, state), (directory.best, best)):
                    write_model(path, result.model.as_arrays(), {"epoch": result.epoch})
                if image is not None:
                    grid = self.experiment.initial.grid
                    write_image(directory.image, image, grid, state.epoch)
                self._save(state)

    def _save(self, state: State) -> None:
        with self._saving:
            if state.epoch > self._saved:
                checkpoints, entry = self.directory.checkpoints, state.history[-1]
                score = entry["loss"] if entry["model_error"] is None else entry["model_error"]
                save_checkpoint(checkpoints, state.epoch, state.to_table(), score=score)
                self._saved = state.epoch


def _list(shots: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(shots)))
