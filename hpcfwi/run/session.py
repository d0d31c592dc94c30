"""An inversion on the ranks of a job: what it goes on from, its parts, and its end.

The algorithm is in `loop`. Signals, ranks that hang and ranks that die are dealt with around it,
here, with the means of `parallel`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import cast

from hpcfwi.errors import InversionFailure, Stopped, WriteFailure
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.loop import Inversion, run_epochs
from hpcfwi.inversion.numerics import Numerics
from hpcfwi.inversion.objective import Objective
from hpcfwi.inversion.optimizers import Optimizer
from hpcfwi.inversion.resources import choose_history_and_chunk
from hpcfwi.inversion.sampler import Sampler
from hpcfwi.inversion.state import State
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.faults.recovery import retry_after_death
from hpcfwi.parallel.faults.stop import StopRequest
from hpcfwi.parallel.faults.watch import Watch
from hpcfwi.parallel.schedule import make_schedule
from hpcfwi.report.painter import Painter
from hpcfwi.report.progress import Progress
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.observation import open_observed
from hpcfwi.run.recorder import Recorder
from hpcfwi.storage.checkpoint import load_latest_checkpoint
from hpcfwi.storage.prefetch import Prefetcher
from hpcfwi.storage.writer import BackgroundWriter

log = logging.getLogger("hpcfwi")


def restore(experiment: Experiment, directory: RunDirectory, context: Context) -> State:
    """The beginning of a run or, where there is a checkpoint, its state after that; collective.

    Raises `InputError` on all ranks where there may be one that cannot be read.
    """
    initial = experiment.initial.as_tensors(context.device)
    found = context.from_root(lambda: load_latest_checkpoint(directory.checkpoints))
    if found is None:
        return State(0, initial, _make_optimizer(experiment, context).state())
    state = State.from_table(found[1], initial.grid, context.device)
    log.info("Going on from the checkpoint of epoch %d", state.epoch)
    return state


def invert(
    experiment: Experiment,
    directory: RunDirectory,
    state: State,
    context: Context,
    stop: StopRequest,
    quiet: bool = False,
    become_root: Callable[[], None] = lambda: None,
) -> None:
    """Run the epochs that are left; collective.

    Where ranks die and the others can go on, they do, with the epoch that was in work.
    become_root: makes a rank that may have become rank 0 ready to write; called there.

    Raises `Stopped` after a signal, with a checkpoint on disk, what `run_epochs` raises, and
    `InputError` where memory cannot suffice from the beginning: on all ranks.
    """
    epochs = experiment.config.inversion.epochs

    def rejoin() -> None:
        context.from_root(become_root)

    if state.epoch >= epochs:
        mend = Recorder(experiment, directory, context, state).mend
        retry_after_death(context, lambda: context.from_root(mend), rejoin)
        if state.epoch > epochs:
            log.warning("Only %d epochs are asked for: the run stays as it is", epochs)
        log.info("All %d epochs are done already: %s", state.epoch, directory.path)
        return
    objective, state = retry_after_death(
        context, lambda: _make_objective(experiment, state, context), rejoin
    )
    with (
        _leaving_together(context, rejoin),
        Painter() as painter,
        # Where ranks may die the others would go on without what rank 0 has still to write.
        BackgroundWriter(behind=not context.fault_tolerant) as writer,
    ):
        recorder = Recorder(experiment, directory, context, state, painter, writer)

        def go_back() -> None:
            rejoin()
            recorder.rejoin()

        signal = retry_after_death(
            context, lambda: _go_on(recorder, objective, stop, quiet), go_back
        )
    if recorder.state.epoch < epochs:
        context.raise_alike(
            Stopped(
                f"stopped by {signal} after epoch {recorder.state.epoch}; "
                "the same command goes on from there"
            )
        )
    retry_after_death(context, lambda: context.from_root(recorder.conclude), rejoin)


def _go_on(recorder: Recorder, objective: Objective, stop: StopRequest, quiet: bool) -> str | None:
    """All epochs after the recorder's; the signal that stopped them earlier, if any. Collective."""
    experiment, context, state = recorder.experiment, recorder.context, recorder.state
    section, survey = experiment.config.inversion, experiment.survey
    chunks, costs = objective.chunks, objective.simulator.costs(survey)
    with (
        open_observed(experiment, context) as reader,
        Prefetcher(reader) as prefetcher,
        Progress(section.epochs, done=state.epoch, enabled=context.is_root, quiet=quiet) as shown,
        Watch(context, stop, recorder.save),
    ):
        recorder.progress = shown
        context.from_root(lambda: recorder.begin(reader))
        schedule = make_schedule(section.schedule, chunks.size, context)
        sampler = Sampler(survey, costs, section, schedule, chunks, prefetcher)
        parts = Inversion(sampler, objective, _make_optimizer(experiment, context), recorder)
        return run_epochs(state, section.epochs, parts, stop, context)


def _make_objective(
    experiment: Experiment, state: State, context: Context
) -> tuple[Objective, State]:
    """The objective, and the state with the numerics that were chosen for it; collective."""
    simulator = (
        experiment.simulator(experiment.initial)
        if state.numerics is None
        else state.numerics.continue_with(experiment, context)
    )
    section = experiment.config.inversion
    simulator, chunks = choose_history_and_chunk(
        simulator, state.model, experiment.survey, experiment.config, context
    )
    state = replace(state, numerics=Numerics.of(simulator, context.device))
    misfit = section.misfit.make()
    regularizer = None
    if section.regularize is not None:
        initial = experiment.initial.as_tensors(context.device)
        regularizer = partial(section.regularize.make(), initial=initial)
    objective = Objective(
        simulator,
        misfit,
        context,
        chunks,
        regularizer,
        section.reproducible,
        experiment.conditioning(),
    )
    return objective, state


def _make_optimizer(experiment: Experiment, context: Context) -> Optimizer:
    initial = experiment.initial.as_tensors(context.device)
    make = experiment.config.inversion.optimizer.make()
    return cast(Optimizer, make(initial, experiment.limits(initial)))


@contextmanager
def _leaving_together(context: Context, rejoin: Callable[[], None]) -> Iterator[None]:
    """At the end all ranks wait for rank 0, which may have figures to finish; collective.

    A rank that is alone in leaving would be taken for one that has failed.
    """
    try:
        yield
    except (InversionFailure, WriteFailure):  # on all ranks alike
        retry_after_death(context, context.barrier, rejoin)
        raise
    retry_after_death(context, context.barrier, rejoin)
