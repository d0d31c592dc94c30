"""An inversion on the ranks of a job: what it goes on from, its parts, and its end.

The algorithm is in `loop`. Signals, ranks that hang and ranks that die are dealt with around it,
here, with the means of `parallel`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from hpcfwi.errors import InputError, InversionFailure, Stopped, WriteFailure, quote
from hpcfwi.inversion.draws import EncodedData
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.loop import (
    Inversion,
    divide,
    find_slabs,
    first_state,
    make_optimizer,
    run_epochs,
)
from hpcfwi.inversion.memory import choose_history_and_chunk, find_shares
from hpcfwi.inversion.objective import Objective
from hpcfwi.inversion.stages import EncodedSampler, Sampler, Stage
from hpcfwi.inversion.state import Numerics, State
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.recovery import retry_after_death
from hpcfwi.parallel.shards import make_schedule
from hpcfwi.parallel.watch import StopRequest, Watch
from hpcfwi.report.painter import Painter
from hpcfwi.report.progress import Progress
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.endings import look_at_end
from hpcfwi.run.observation import open_observed
from hpcfwi.run.recorder import Recorder
from hpcfwi.storage.background import BackgroundWriter, Prefetcher
from hpcfwi.storage.checkpoint import load_latest_checkpoint

log = logging.getLogger("hpcfwi")


def restore(
    experiment: Experiment, stages: Sequence[Stage], directory: RunDirectory, context: Context
) -> State:
    """The beginning of a run or, where there is a checkpoint, its state after that; collective.

    Raises `InputError` on all ranks where there may be one that cannot be read, or whose contents
    are not those of a state of this run.
    """
    found = context.from_root(lambda: load_latest_checkpoint(directory.checkpoints))
    if found is None:
        return first_state(stages[0].experiment, context)
    number, table = found
    # All ranks have the same contents, and find the same fault
    try:
        state = State.from_table(table, experiment.initial.grid, context.device)
        if state.epoch != number or state.model.arrays.keys() != experiment.initial.arrays.keys():
            raise ValueError(f"it is that of epoch {state.epoch}, of {list(state.model.arrays)}")
        stage = stages[state.stage]
        for model in (state.model, *([state.best.model] if state.best else [])):
            stage.experiment.limits(model).check(model)
        _, config = experiment.config.stages()[state.stage]
        state = replace(state, optimizer=divide(state.optimizer, config, context))
        # Tried here, as the next epoch could not tell what is wrong
        make_optimizer(stage.experiment, context).restore(state.optimizer)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        context.raise_alike(
            InputError(
                str(directory.checkpoints / f"epoch_{number:06d}.ckpt"),
                f"its checksum is right, but it holds no state of this run ({quote(error)})",
                "Remove it: the run then goes on from the one before, or begins anew.",
            )
        )
    log.info("Going on from the checkpoint of epoch %d", state.epoch)
    return state


def invert(
    experiment: Experiment,
    stages: Sequence[Stage],
    directory: RunDirectory,
    state: State,
    context: Context,
    stop: StopRequest,
    quiet: bool = False,
    become_root: Callable[[], None] = lambda: None,
) -> None:
    """Run the epochs that are left, stage by stage; collective.

    Where ranks die and the others can go on, they do, with the epoch that was in work.
    become_root: makes a rank that may have become rank 0 ready to write; called there.

    Raises `Stopped` after a signal, with a checkpoint on disk, what `run_epochs` raises, and
    `InputError` where memory cannot suffice from the beginning: on all ranks.
    """
    epochs = stages[-1].last

    def rejoin() -> None:
        context.from_root(become_root)

    with (
        _leaving_together(context, rejoin),
        Painter() as painter,
        # Where ranks may die the others would go on without what rank 0 has still to write.
        BackgroundWriter(behind=not context.fault_tolerant) as writer,
    ):
        recorder = Recorder(experiment, stages, directory, context, state, painter, writer)

        def go_back() -> None:
            rejoin()
            if any(context.all_gather(recorder.state.is_shared)):
                log.info("With a rank its part of the optimiser's state is lost: going back")
                recorder.state = restore(experiment, stages, directory, context)
            else:
                recorder.rejoin()

        if state.epoch >= epochs:
            retry_after_death(context, lambda: context.from_root(recorder.mend), rejoin)
        signal = None
        for stage in stages:
            if recorder.state.epoch < stage.last and signal is None:
                begin = partial(_begin, stage, recorder)
                ready, objective, numerics = retry_after_death(context, begin, go_back)
                go_on = partial(_go_on, ready, recorder, objective, numerics, stop, quiet)
                signal = retry_after_death(context, go_on, go_back)
            if recorder.state.epoch == stage.last and signal is None:
                look = partial(look_at_end, stage, recorder, stop)
                signal = retry_after_death(context, look, go_back)
    if state.epoch >= epochs:
        if state.epoch > epochs:
            log.warning("Only %d epochs are asked for: the run stays as it is", epochs)
        log.info("All %d epochs are done already: %s", state.epoch, directory.path)
        return
    if recorder.state.epoch < epochs:
        context.raise_alike(
            Stopped(
                f"stopped by {signal} after epoch {recorder.state.epoch}; "
                "the same command goes on from there"
            )
        )
    retry_after_death(context, lambda: context.from_root(recorder.conclude), rejoin)


def _begin(stage: Stage, recorder: Recorder) -> tuple[Stage, Objective, Numerics]:
    """A stage, ready; what it makes smaller, and what that is computed with; collective.

    As it was before, where the recorder's state is in the stage already.
    """
    context, state = recorder.context, recorder.state
    # First, so that what is free is what it leaves
    stage = stage.ready(context)
    experiment = stage.experiment
    known = state.numerics if state.stage == stage.number else None
    simulator = experiment.compared() if known is None else known.continue_with(experiment, context)
    section = stage.section
    if len(recorder.stages) > 1:
        log.info("Stage %s: epochs %d to %d", stage.name, stage.before + 1, stage.last)
    simulator, chunks = choose_history_and_chunk(
        simulator, state.model, experiment, context, has_state=True
    )
    misfit = section.misfit.make()
    regularizer = None
    if section.regularize is not None:
        prior = experiment.prior.as_tensors(context.device)
        weights = experiment.weights(context.device)
        regularizer = partial(section.regularize.make(), prior=prior, weights=weights)
    objective = Objective(
        simulator,
        misfit,
        context,
        chunks,
        regularizer,
        section.reproducible,
        experiment.conditioning(),
        experiment.survey.n_samples if stage.wavelets().takes_steps else 0,
        slabs=find_slabs(experiment.config, context),
    )
    return stage, objective, Numerics.of(simulator, context.device)


def _enter(stage: Stage, state: State, numerics: Numerics, context: Context) -> State:
    """The beginning of a stage that is computed with these, or the state where it is in it."""
    if state.stage < stage.number:
        experiment = stage.experiment
        optimizer = make_optimizer(experiment, context, state.optimizer).state()
        # Misfits of other data say nothing of which model is the better one
        state = state.enter(stage.number, optimizer, keeps_best=experiment.true is not None)
    if numerics != state.numerics:
        # Another engine's misfit would be compared with this one's
        state = replace(state, evaluated=None)
    return replace(state, numerics=numerics)


def _go_on(
    stage: Stage,
    recorder: Recorder,
    objective: Objective,
    numerics: Numerics,
    stop: StopRequest,
    quiet: bool,
) -> str | None:
    """A stage's epochs after the recorder's; the signal that stopped them earlier, if any.

    Collective.
    """
    experiment, context = stage.experiment, recorder.context
    state = recorder.state = _enter(stage, recorder.state, numerics, context)
    band, whole = experiment.band, recorder.stages[-1].last
    with (
        open_observed(recorder.experiment, context) as reader,
        Prefetcher(reader, band.filter if band else None, context.threads) as prefetcher,
        Progress(whole, done=state.epoch, enabled=context.is_root, quiet=quiet) as shown,
        Watch(context, stop, recorder.save),
    ):
        recorder.progress = shown
        recorder.prepare()
        context.from_root(lambda: recorder.begin(reader))
        sampler = _make_sampler(stage, objective, prefetcher)
        optimizer = make_optimizer(experiment, context)
        parts = Inversion(sampler, objective, optimizer, recorder)
        return run_epochs(state, stage, parts, stop, context)


def _make_sampler(
    stage: Stage, objective: Objective, prefetcher: Prefetcher
) -> Sampler | EncodedSampler:
    """Of a stage; collective."""
    context, chunks, survey = objective.context, objective.chunks, stage.experiment.survey
    schedule = make_schedule(stage.section.schedule, chunks.size, context)
    if stage.section.encoding == "none":
        costs = stage.experiment.costs_of(survey, objective.simulator)
        return Sampler(stage, costs, schedule, chunks, prefetcher)
    context.heartbeat.begin("the observed data for encoded shots")
    experiment = stage.experiment
    _, held = find_shares(experiment, experiment.simulated(), context, has_state=True)
    data = EncodedData(survey.shape, prefetcher, context, held > 0)
    return EncodedSampler(stage, data, schedule, chunks)


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
