"""The recorder of a run, which decides when models, metrics, checkpoints and figures are written.

`records` and `storage` write the files, and `drawing` draws figures in a background thread. The
algorithm is in `inversion.loop`.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, ParamSpec, cast

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
from hpcfwi.report.panels import EpochPicture
from hpcfwi.report.text import Progress, append_metrics, mend_metrics, metric_keys, say_errors
from hpcfwi.run import drawing, records
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.drawing import Painter
from hpcfwi.storage.checkpoint import naming_checkpoint, save_checkpoint
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.storage.models import read_epoch, write_images, write_model

log = logging.getLogger("hpcfwi")

# Number of jobs that may wait for the current one, because each of them takes memory.
WAITING = 1
P = ParamSpec("P")


class BackgroundWriter(AbstractContextManager["BackgroundWriter"]):
    """A thread that runs jobs in order; a job writes files.

    An error of a job is raised at the next call and at all later calls, and later jobs are not run,
    because a checkpoint implies that the files before it exist. Close the writer, or use it in a
    `with` statement. It is used by one thread on rank 0. Jobs may use HDF5, which allows one thread
    at a time, and must not call MPI. behind: if False, `submit` returns only when the job is done.
    """

    def __init__(self, behind: bool = True) -> None:
        self._thread = ThreadPoolExecutor(1, "writer")
        self._behind = behind
        self._under_way: deque[Future[None]] = deque()
        self._error: BaseException | None = None

    def submit(self, job: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Queue `job(*args, **kwargs)`; wait while `WAITING` other jobs are queued.

        The arguments must not be changed afterwards. Raises the exception of an earlier job.
        """
        self._wait(WAITING)

        def work() -> None:
            if self._error is None:
                try:
                    job(*args, **kwargs)
                except BaseException as error:
                    self._error = error

        self._under_way.append(self._thread.submit(work))
        if not self._behind:
            self.flush()

    def check(self) -> None:
        """Raise the exception of a job, without waiting for others."""
        if self._error is not None:
            raise self._error

    def flush(self) -> None:
        """Wait until all jobs are done; raises the exception of a job."""
        self._wait(0)

    def close(self) -> None:
        """End the thread after all jobs; raises the exception of a job."""
        self._thread.shutdown(wait=True)
        self.flush()

    def _wait(self, most: int) -> None:
        """Wait until at most `most` jobs are queued or running."""
        while self._under_way and (len(self._under_way) > most or self._under_way[0].done()):
            self._under_way.popleft().result()
        self.check()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            # The program reports the error that ends it; another error is only reported here.
            if str(failure) != str(error):
                log.warning("%s", failure)


@dataclass
class Recorder:
    """The writer of a run's files, which all ranks have and rank 0 writes.

    Methods that all ranks call are collective. The others run on rank 0: `save` in the thread of
    the watch, and files of an epoch in the thread of the background writer.

    experiment: experiment of the whole run; state: state after the last finished epoch, on every
    rank.
    """

    experiment: Experiment
    stages: Sequence[Stage]
    directory: RunDirectory
    context: Context
    state: State
    painter: Painter
    writer: BackgroundWriter
    progress: Progress | None = None

    def __post_init__(self) -> None:
        self._saving = threading.Lock()
        # A state that was read from a checkpoint need not be written again.
        self._saved = self.state.epoch
        self._has_begun = False
        self._first_errors: dict[str, float] | None = None
        self._imaged: tuple[Model, Model[NDArray[np.float64]]] | None = None
        self._cuts: tuple[int, ...] = ()

    def take_newest_state(self) -> None:
        """Set the state to the newest one that any rank has; collective.

        This is for ranks that continue after a death, because some may have finished the epoch
        and others not.
        """
        context = self.context
        epochs = context.all_gather(self.state.epoch)
        if min(epochs) < max(epochs):
            newest = epochs.index(max(epochs))
            table = self.state.to_table() if context.rank == newest else {}
            # The ranks have different devices.
            table = context.broadcast(table, newest)
            self.state = State.from_table(table, self.experiment.initial.grid, context.device)

    def measure_initial_errors(self) -> None:
        """Measure the error of the initial model, for comparisons; collective.

        It is measured once, unless a rank died before all ranks had the result.
        """
        if None in self.context.all_gather(self._first_errors):
            self._first_errors = self._measure_errors(self.experiment.initial)

    def begin(self, reader: GatherReader) -> None:
        """Write the files that are due before the next epoch; rank 0 only.

        Files that do not depend on the stage are written once. The metrics are made consistent with
        the state each time, because a rank 0 that died may not have written its last epoch.
        """
        with naming_checkpoint(self.directory.checkpoints):
            mend_metrics(self.directory.metrics, self.state.metrics)
            if self._has_begun:
                return
            if self.experiment.true is not None:
                write_model(self.directory.true, self.experiment.true)
            self.directory.write_start(self.experiment)
            experiments = [self.experiment, *(stage.experiment for stage in self.stages)]
            records.write_masks(self.directory, experiments)
        survey, config = self.experiment.survey, self.experiment.config
        drawing.draw_survey(self.painter.submit, self.directory, survey, reader, config)
        self._has_begun = True

    def measure(
        self, epoch: int, batch: Batch, model: Model, evaluation: Evaluation, timings: Timings
    ) -> tuple[float, dict[str, Any]]:
        """Return the score of a model (smaller is better) and the metrics of the epoch; collective.

        It also advances the progress line, and is called once in each epoch, before `keep`.

        The score is the error of the stage's first parameter or, if the true model is not known,
        the misfit.
        """
        errors, experiment = self._measure_errors(model), self.experiment
        history, stage = self.state.metrics, self.stages[self.state.stage]
        before = history[-1].get("simulations", 0) if history else 0
        entry = {
            "epoch": epoch,
            "stage": stage.name,
            "loss": evaluation.loss,
            **{key: errors.get(name) for name, key in self._error_keys.items()},
            "shots": batch.shots.tolist(),
            "failed": list(evaluation.failed),
            "simulations": before + timings.simulations,
            "seconds": round(timings.seconds, 4),
            **{what: round(part, 4) for what, part in asdict(timings.times).items()},
            "memory_mb": round(timings.memory, 1),
        }
        # Without a true model, the model is not copied from a GPU. One rank makes the images,
        # because that takes several times the memory of a model.
        if experiment.true is not None and experiment.config.inversion.linear:
            likeness = self.context.from_root(
                lambda: experiment.compare_images(self._make_images(model))
            )
            keys = self._likeness_keys
            entry |= {keys[name]: round(each, 4) for name, each in likeness.items()}
        if self.progress is not None:
            note = timings.describe()
            if timings.simulations > batch.shots.size:
                note = f"{timings.simulations} simulations, {note}"
            if "correlation" in entry:
                note = f"correlation {self._say_likeness(entry)}, {note}"
            shown = say_errors(errors) if errors else None
            self.progress.advance(misfit=evaluation.loss, errors=shown, note=note)
        judged = entry[self._error_keys[stage.section.parameters[0]]]
        return float(entry["loss"] if judged is None else judged), entry

    @property
    def _error_keys(self) -> dict[str, str]:
        """The keys of the model errors in the metrics, by parameter."""
        return metric_keys("model_error", self.experiment.inverted.arrays)

    @property
    def _likeness_keys(self) -> dict[str, str]:
        """The keys of the correlations of images with the true ones, by parameter."""
        return metric_keys("correlation", self.experiment.inverted.arrays)

    def _say_likeness(self, entry: Mapping[str, Any]) -> str:
        """Return the correlations of an epoch; that of a single parameter is not named."""
        said = {name: f"{entry[key]:.3f}" for name, key in self._likeness_keys.items()}
        named = [f"{name} {value}" for name, value in said.items()]
        return ", ".join(named if len(said) > 1 else said.values())

    def _measure_errors(self, model: Model[Any]) -> dict[str, float]:
        """Return the errors of the inverted parameters in free cells; collective.

        There are none without a true model. They have the same bits for any number of ranks.
        """
        true, fixed = self.experiment.true, self.experiment.fixed
        found: dict[str, float] = {}
        if true is None:
            return found
        for name in self.experiment.inverted.arrays:
            arrays = [model[name], true[name], fixed]
            sums = measure_blocks(squared_difference, arrays, self.context)
            found[name] = math.sqrt(math.fsum(sums) / (fixed.size - np.count_nonzero(fixed)))
        return found

    def figures_due(self, epoch: int) -> bool:
        """Return True if figures are due after this epoch."""
        every = self.experiment.config.output.every
        return epoch % every == 0 or any(epoch == stage.last for stage in self.stages)

    def keep(self, state: State, evaluation: Evaluation, last: bool) -> None:
        """Submit the files that are due after an epoch, and all files after the last; collective.

        Raises `WriteFailure` on all ranks, also for earlier files, and `InversionFailure` if too
        many shots have failed.
        """
        self._check_failures(state)
        due = last or state.epoch % self.experiment.config.output.checkpoint == 0
        kept = state.gather(self.context) if due else state
        self.context.from_root(lambda: self._keep(kept, evaluation, due, last))
        self.state = state

    def _keep(self, state: State, evaluation: Evaluation, due: bool, last: bool) -> None:
        epoch, draw, directory = state.epoch, self.painter.submit, self.directory
        self.writer.check()
        if evaluation.failed:
            log.warning(
                "Epoch %d left out shots %s, whose misfit or gradient is not finite",
                epoch,
                list(evaluation.failed),
            )
        estimated = state.estimated if state.estimated is not self.state.estimated else None
        with naming_checkpoint(directory.checkpoints):
            append_metrics(directory.metrics, state.metrics[-1])
        pictures: list[EpochPicture] = []
        stage = self.stages[state.stage]
        if self.figures_due(epoch):
            pictures = self._make_pictures(stage.experiment, state, evaluation)
        # A wavelet that is updated in every epoch is drawn only when the model is drawn.
        if estimated is not None and (pictures or estimated.momentum is None):
            survey = stage.experiment.survey
            given = records.first_wavelet(survey)
            records.write_wavelet(directory, estimated, survey, epoch)
            drawing.draw_wavelet(draw, estimated.wavelet, survey.axis, given)
        images = None
        if due or pictures:
            # Images are computed once for all files, and not while the next epoch computes.
            images = self._images_of(state)
            self.writer.submit(self._write, state, pictures, images, due)
        # From here on, a signal saves this state.
        self.state = state
        if pictures:
            suffix = None
            if epoch == stage.last:
                suffix = directory.suffix(stage.number, len(self.stages))
            comparable = drawing.are_comparable([each.experiment.config for each in self.stages])
            history, errors = state.metrics, self._first_errors
            drawing.draw_epoch_figures(draw, pictures, history, errors, suffix, comparable)
            if images is not None:
                drawing.draw_images(draw, images, pictures)
        if last:
            self.writer.flush()

    def _make_pictures(
        self, experiment: Experiment, state: State, evaluation: Evaluation
    ) -> list[EpochPicture]:
        """Return the contents of an epoch's figure, for each parameter that its stage changes.

        The slices of a volume are those of earlier pictures.
        """
        survey, true = experiment.survey, experiment.true
        energies = {name: f.cpu().numpy() for name, f in evaluation.illuminations.items()}
        pictures: list[EpochPicture] = []
        for name in experiment.config.inversion.changing:
            gradient = evaluation.gradient[name].cpu().numpy()
            picture = EpochPicture(
                epoch=state.epoch,
                grid=experiment.initial.grid,
                parameter=PARAMETERS[name],
                true=None if true is None else true[name],
                inverted=state.model[name].cpu().numpy(),
                gradient=np.where(experiment.fixed, 0.0, gradient),
                **cast(Any, energies),
                start=experiment.initial[name],
                sources=survey.sources,
                receivers=survey.receiver_positions(),
                kept=experiment.fixed,
                cuts=self._cuts,
            ).shorten()
            self._cuts = picture.cuts
            pictures.append(picture)
        return pictures

    def _check_failures(self, state: State) -> None:
        most = self.experiment.config.inversion.max_failed_shots
        shots = self.experiment.survey.n_shots
        if len(state.failed) > most * shots:
            raise InversionFailure(
                f"{len(state.failed)} of {shots} shots, {_list(state.failed)}, "
                "gave a misfit or gradient that is not finite, which is more than "
                f"inversion.max_failed_shots = {most} allows: check their data (data.edit = {{}} "
                "leaves out traces that are not finite), and whether the last step led to extreme "
                "velocities (use a smaller inversion.optimizer.lr or step, or inversion.bounds)"
            )

    def conclude(self) -> None:
        """Log the shots that were left out, the model error and the result; rank 0 only."""
        failed = self.state.failed
        if failed:
            log.warning(
                "%d of %d shots were left out of some epochs, as their results were not finite: %s",
                len(failed),
                self.experiment.survey.n_shots,
                _list(failed),
            )
        best, last = self.state.best, self.state.metrics[-1]
        if "correlation" in last:
            log.info(
                "Correlation with the true reflectivity: %s after the first iteration, %s at the "
                "end: %s",
                *map(self._say_likeness, (self.state.metrics[0], last)),
                self.directory.image,
            )
        found = {name: last.get(key) for name, key in self._error_keys.items()}
        at_end = {name: error for name, error in found.items() if error is not None}
        first, start = next(iter(found)), self._first_errors
        if start and at_end.keys() == start.keys():
            log.log(
                logging.INFO if at_end[first] <= start[first] else logging.WARNING,
                "Model error: %s at the start, %s at the end",
                say_errors(start),
                say_errors(at_end),
            )
        if best is not None and best.epoch < self.state.epoch:
            log.info("The best model is that of epoch %d: %s", best.epoch, self.directory.best)
        log.info("Done: %s", self.directory.result(self.experiment.config.inversion.linear))

    def mend(self) -> None:
        """Write the model of the checkpoint if that in the directory differs or is missing.

        A checkpoint that was saved at a signal may be newer than the model. Rank 0 only.
        """
        if read_epoch(self.directory.model) != self.state.epoch:
            self._write(self.state, [], self._images_of(self.state), due=True)

    def save(self) -> str:
        """Write the checkpoint of the last finished epoch; return "epoch 0" if there is none.

        Another thread calls this while the next epoch is computed. If the state is divided between
        ranks, it is not written, and the previous checkpoint is used. Rank 0 only.
        """
        state = self.state
        if not state.is_sharded:
            self._save(state)
        return f"epoch {self._saved}"

    def _images_of(self, state: State) -> Model[NDArray[np.float64]] | None:
        """Return the images of a migration, None for other runs."""
        return self._make_images(state.model) if self.experiment.config.inversion.linear else None

    def _make_images(self, model: Model) -> Model[NDArray[np.float64]]:
        """Return the images of a model of tensors; the last ones are cached."""
        if self._imaged is None or self._imaged[0] is not model:
            self._imaged = model, self.experiment.images(model.as_arrays())
        return self._imaged[1]

    def _write(
        self,
        state: State,
        pictures: Sequence[EpochPicture],
        images: Model[NDArray[np.float64]] | None,
        due: bool,
    ) -> None:
        """Write the files of an epoch, and the checkpoint last.

        After a kill in between, the run is continued from the previous checkpoint and writes the
        files again. Files that were written after the checkpoint would remain missing.
        """
        directory, best = self.directory, state.best
        assert best is not None, "there is one after the first epoch"
        with naming_checkpoint(directory.checkpoints):
            if pictures:
                records.write_pictures(directory, pictures)
            if due:
                for path, result in ((directory.model, state), (directory.best, best)):
                    whole = self.experiment.complete(result.model.as_arrays())
                    write_model(path, whole, {"epoch": result.epoch})
                if images is not None:
                    write_images(directory.image, images, state.epoch)
                self._save(state)

    def _save(self, state: State) -> None:
        with self._saving:
            if state.epoch > self._saved:
                save_checkpoint(self.directory.checkpoints, state.epoch, state.to_table())
                self._saved = state.epoch


def _list(shots: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(shots)))
