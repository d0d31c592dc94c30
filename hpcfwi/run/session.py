"""An inversion on the ranks of a job: its stages, first state, observed data, and data fits.

If the input has no observed data, every shot of the survey is simulated in the true model. The
algorithm is in `inversion.loop`; this module handles signals, ranks that hang and ranks that die,
with `parallel`. At the end of a stage some shots are simulated for its data fit, on which the
inversion does not depend. The fit is stored in the run directory, so that `show` can draw it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import InputError, InversionFailure, Stopped, WriteFailure, quote
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.loop import (
    Inversion,
    divide,
    find_shards,
    first_state,
    make_optimizer,
    run_epochs,
)
from hpcfwi.inversion.memory import (
    choose_history_and_chunk,
    count_forward_shots,
    find_shares,
    most_at_a_time,
    plan_memory_of_ranks,
)
from hpcfwi.inversion.objective import Objective
from hpcfwi.inversion.shot_qc import (
    Fit,
    ShotFit,
    View,
    balance_recorded,
    choose_shots,
    choose_views,
    knows_amplitudes,
    measure_fit,
    read_observed,
    see_shots,
)
from hpcfwi.inversion.stages import EncodedData, EncodedSampler, Sampler, Stage
from hpcfwi.inversion.state import EngineChoice, State
from hpcfwi.operators.simulator import Aperture, Chunks, Window
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.recovery import retry_after_death
from hpcfwi.parallel.replicas import once_per_host
from hpcfwi.parallel.shards import make_schedule
from hpcfwi.parallel.watch import StopRequest, Watch
from hpcfwi.report.text import Progress
from hpcfwi.run import drawing, records
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.recorder import BackgroundWriter, Recorder
from hpcfwi.storage.checkpoint import latest_epoch, load_latest_checkpoint
from hpcfwi.storage.gathers import (
    GatherReader,
    GatherWriter,
    Prefetcher,
    create_gathers,
    read_labels,
    read_layout,
)
from hpcfwi.survey import PRESSURE, Spectrum, Survey
from hpcfwi.system import is_there

log = logging.getLogger("hpcfwi")


def invert(
    experiment: Experiment,
    stages: Sequence[Stage],
    directory: RunDirectory,
    state: State,
    context: Context,
    stop: StopRequest,
    quiet: bool,
    become_root: Callable[[], None],
) -> None:
    """Run the epochs that are left, stage by stage; collective.

    If ranks die and the others can continue, these repeat the interrupted epoch. become_root: a
    function that is called after a death, and prepares a rank that has become rank 0 for writing.

    Raises `Stopped` on all ranks after a signal, with a checkpoint on disk, `InputError` if memory
    is not sufficient from the beginning, and the errors of `run_epochs`.
    """
    epochs, done = stages[-1].last, state.epoch

    def claim_directory() -> None:
        context.from_root(become_root)

    with (
        _leaving_together(context, claim_directory),
        drawing.Painter(directory) as painter,
        # If ranks may die, files are not written in the background, because they would be lost with
        # rank 0 while the others continue.
        BackgroundWriter(behind=not context.fault_tolerant) as writer,
    ):
        recorder = Recorder(experiment, stages, directory, context, state, painter, writer)
        # The recorder replaces it by later states
        del state

        def return_to_last_epoch() -> None:
            claim_directory()
            if any(context.all_gather(recorder.state.is_sharded)):
                log.info("The optimizer's state of a dead rank is lost: reading a checkpoint")
                recorder.state = restore(experiment, stages, directory, context)
            else:
                recorder.take_newest_state()

        # Without fault tolerance this only calls the function.
        survive = partial(retry_after_death, context, rejoin=return_to_last_epoch)
        signal = None
        if done >= epochs:
            survive(partial(context.from_root, recorder.mend))
        for stage in stages:
            if recorder.state.epoch < stage.last and signal is None:
                begun = survive(partial(_begin_stage, stage, recorder, stop))
                signal = survive(partial(_run_stage, *begun, recorder, stop, quiet))
            if recorder.state.epoch == stage.last and signal is None:
                signal = survive(partial(fit_at_end, stage, recorder, stop))
    if done >= epochs:
        if done > epochs and context.is_root:
            log.warning("Only %d epochs are requested: the run stays as it is", epochs)
        log.info("All %d epochs are done already: %s", done, directory.path)
        return
    if recorder.state.epoch < epochs:
        context.raise_on_all_ranks(
            Stopped(
                f"stopped by {signal} after epoch {recorder.state.epoch}; "
                "the same command continues from there"
            )
        )
    retry_after_death(context, lambda: context.from_root(recorder.conclude), claim_directory)


def _begin_stage(
    stage: Stage, recorder: Recorder, stop: StopRequest
) -> tuple[Stage, Objective, EngineChoice]:
    """Return the prepared stage, its objective, and the engine and history; collective.

    If the recorder's state is already in the stage, its engine and history are kept.
    """
    context, state = recorder.context, recorder.state
    context.heartbeat.begin(f"the beginning of stage {stage.name}")
    with Watch(context, stop, recorder.save):
        # This comes first, so that the free memory is measured afterwards.
        stage = replace(stage, experiment=stage.experiment.holding(state.model)).ready(context)
        if stage.experiment.survey.components.names != PRESSURE.names:
            with open_observed(recorder.experiment, context) as reader:
                balanced = balance_recorded(stage.experiment, reader, context)
            stage = replace(stage, experiment=balanced)
        experiment, section = stage.experiment, stage.section
        known = state.engine if state.stage == stage.number else None
        if known is None:
            simulator = experiment.make_simulator()
        else:
            simulator = known.continue_with(experiment, context)
        if len(recorder.stages) > 1:
            log.info("Stage %s: epochs %d to %d", stage.name, stage.before + 1, stage.last)
        model = state.model.select(experiment.inverted.arrays)
        simulator, chunks = choose_history_and_chunk(
            simulator, model, experiment, context, has_state=True
        )
        objective = Objective(
            simulator=simulator,
            misfit=section.misfit.bind(),
            context=context,
            chunks=chunks,
            regularizer=experiment.regularizer(context.device),
            reproducible=section.reproducible,
            conditioning=experiment.conditioning(),
            wavelet_samples=experiment.survey.n_samples if stage.wavelets().takes_steps else 0,
            shards=find_shards(experiment.config, context),
        )
        return stage, objective, EngineChoice.of(simulator, context.device)


def _run_stage(
    stage: Stage,
    objective: Objective,
    engine: EngineChoice,
    recorder: Recorder,
    stop: StopRequest,
    quiet: bool,
) -> str | None:
    """Run the remaining epochs of a stage; collective.

    Returns the signal that stopped them early, if any.
    """
    experiment, context = stage.experiment, recorder.context
    recorder.state = _enter(stage, engine, recorder)
    whole = recorder.stages[-1].last
    with (
        # This comes first, because ranks also wait for each other when they close a file
        Watch(context, stop, recorder.save),
        open_observed(recorder.experiment, context) as reader,
        Prefetcher(reader, experiment.preprocessing(), context.threads) as prefetcher,
        Progress(whole, done=recorder.state.epoch, enabled=context.is_root, quiet=quiet) as shown,
    ):
        recorder.progress = shown
        recorder.measure_initial_errors()
        context.from_root(lambda: recorder.begin(reader))
        sampler = _make_sampler(stage, objective, prefetcher)
        optimizer = make_optimizer(experiment, context)
        parts = Inversion(sampler, objective, optimizer, recorder)
        return run_epochs(recorder.state, stage, parts, stop, context)


def _enter(stage: Stage, engine: EngineChoice, recorder: Recorder) -> State:
    """Return the state at the beginning of a stage, or the recorder's if it is in the stage."""
    state = recorder.state
    if state.stage < stage.number:
        experiment, earlier = stage.experiment, recorder.stages[state.stage]
        optimizer = make_optimizer(experiment, recorder.context, state.optimizer).state()
        # Misfits of different data do not show which model is better.
        alike = stage.section.parameters[0] == earlier.section.parameters[0]
        keeps_best = experiment.true is not None and alike
        state = state.enter(stage.number, optimizer, keeps_best)
    if engine != state.engine:
        # The misfits of different engines must not be compared.
        state = replace(state, evaluated=None)
    return replace(state, engine=engine)


def _make_sampler(
    stage: Stage, objective: Objective, prefetcher: Prefetcher
) -> Sampler | EncodedSampler:
    """Return the sampler of a stage; collective."""
    context, chunks, survey = objective.context, objective.chunks, stage.experiment.survey
    schedule = make_schedule(stage.section.schedule, chunks.size, context)
    if stage.section.encoding == "none":
        costs = stage.experiment.costs_of(survey, objective.simulator)
        return Sampler(stage, costs, schedule, chunks, prefetcher)
    context.heartbeat.begin("the observed data for encoded shots")
    experiment = stage.experiment
    _, held = find_shares(experiment, experiment.simulated_survey(), context, has_state=True)
    data = EncodedData(survey.shape, prefetcher, context, held > 0)
    return EncodedSampler(stage, data, schedule, chunks)


@contextmanager
def _leaving_together(context: Context, rejoin: Callable[[], None]) -> Iterator[None]:
    """Let all ranks wait at the end for rank 0, which may have to finish figures; collective.

    A rank that exits alone would be considered to have failed.
    """
    try:
        yield
    except Exception as error:
        common = isinstance(error, InversionFailure | WriteFailure)
        if common or getattr(error, "raised_on_all_ranks", False):
            retry_after_death(context, context.barrier, rejoin)
        raise
    retry_after_death(context, context.barrier, rejoin)


def restore(
    experiment: Experiment, stages: Sequence[Stage], directory: RunDirectory, context: Context
) -> State:
    """Return the first state of a run or, if there is a checkpoint, the state in it; collective.

    Raises `InputError` on all ranks if a checkpoint cannot be read, or is not a state of this run.
    """
    found = context.from_root(lambda: load_latest_checkpoint(directory.checkpoints))
    if found is None:
        if context.from_root(partial(latest_epoch, directory.checkpoints)):
            context.raise_on_all_ranks(
                InputError(
                    str(directory.checkpoints),
                    "all checkpoints of the run are damaged",
                    "Restore one of them, or choose another directory with --output.",
                )
            )
        return first_state(experiment, stages[0].experiment, context)
    number, table = found
    # All ranks have the same contents, so that all raise the same error.
    try:
        state = State.from_table(table, experiment.initial.grid, context.device)
        stage, changed = stages[state.stage], state.model.arrays.keys()
        so_far = {n for each in stages[: state.stage + 1] for n in each.experiment.inverted.arrays}
        if state.epoch != number or not so_far <= changed <= experiment.inverted.arrays.keys():
            raise ValueError(f"it is that of epoch {state.epoch}, of {list(changed)}")
        for model in (state.model, *([state.best.model] if state.best else [])):
            stage.experiment.limits(model).check(model)
        state = state.having(experiment.inverted.as_tensors(context.device))
        _, config = experiment.config.stages()[state.stage]
        state = replace(state, optimizer=divide(state.optimizer, config, context))
        # Restore the optimizer here, because an error in the next epoch would not name the cause.
        make_optimizer(stage.experiment.holding(state.model), context).restore(state.optimizer)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        context.raise_on_all_ranks(
            InputError(
                str(directory.checkpoints / f"epoch_{number:06d}.ckpt"),
                f"its checksum is right, but it does not hold a state of this run ({quote(error)})",
                "Remove it: the run then continues from the previous one, or starts again.",
            )
        )
    if state.epoch > stage.last and stage.number + 1 < len(stages):
        done = state.epoch - stage.before
        context.raise_on_all_ranks(
            InputError(
                f"stage.{stage.number + 1}.inversion.epochs",
                f"found {stage.section.epochs}, but {done} epochs of this stage are done, and "
                "another stage follows it",
                f"Give {done} or more.",
            )
        )
    context.from_root(partial(directory.check_start, experiment))
    log.info("Continuing from the checkpoint of epoch %d", state.epoch)
    return state


def check_observed(experiment: Experiment, context: Context) -> None:
    """Raise `InputError` on all ranks if the file of observed data has other data; collective."""
    if experiment.is_synthetic and context.from_root(partial(is_there, experiment.observed)):
        open_observed(experiment, context).close()


def open_observed(experiment: Experiment, context: Context) -> GatherReader:
    """Open the observed data; raise `InputError` on all ranks for other data; collective."""
    if experiment.is_synthetic:
        context.from_root(partial(_check_made, experiment))
    return GatherReader(experiment.observed, context, experiment.survey)


def _check_made(experiment: Experiment) -> None:
    """Raise `InputError` if the observed data are not those that would be simulated now."""
    shape, attributes = read_layout(experiment.observed)
    found = attributes.get("fingerprint")
    same = isinstance(found, str) and found == experiment.fingerprint
    if not same or shape != experiment.survey.shape:
        raise InputError(
            str(experiment.observed),
            "these data are of another model or survey, of another scheme ([wave] and "
            "inversion.bounds), or of another program",
            "Choose another output.directory, or another name with --to, or remove the file.",
        )


def simulate_observed(
    experiment: Experiment, context: Context, stop: StopRequest, quiet: bool = False
) -> None:
    """Simulate the observed data if there are none; collective.

    Every rank simulates its shots and writes them into one file, which is renamed when it is
    complete. An unfinished file of an earlier job is continued. The waves are simulated in the
    whole model and for all receivers, even if the inversion uses windows.

    Raises `Stopped` on all ranks after a signal, with the simulated shots on disk, `InputError` if
    a shot does not fit into memory, and `InversionFailure` if traces are not finite or an
    allocation fails nevertheless.
    """
    if not experiment.is_synthetic:
        return
    path, n_shots = experiment.observed, experiment.survey.n_shots
    if context.from_root(partial(is_there, path)):
        log.info("Observed data: %s", path)
        return
    file = experiment.config.survey.file
    labels = {} if file is None else once_per_host(partial(read_labels, Path(file)), context)
    extras = {**labels, "fingerprint": context.from_root(lambda: experiment.fingerprint)}
    with create_gathers(path, experiment.survey, context, extras) as writer:
        before = n_shots - writer.left.size
        if before:
            there = f"{before} of {n_shots} shots are already in {writer.part}"
            log.info("Continuing with the simulation: %s", there)
        else:
            log.info("Simulating %d shots into %s", n_shots, path)
        with Progress(
            n_shots, "shot", done=before, every=0.1, enabled=context.is_root, quiet=quiet
        ) as progress:
            signal, done = _simulate(experiment, writer, stop, progress, context)
        if signal is not None:
            writer.close()
            context.raise_on_all_ranks(
                Stopped(
                    f"stopped by {signal} after {done} of {n_shots} shots were simulated; "
                    f"the same command continues from shot {done}"
                )
            )


def _simulate(
    experiment: Experiment,
    writer: GatherWriter,
    stop: StopRequest,
    progress: Progress,
    context: Context,
) -> tuple[str | None, int]:
    """Simulate the missing shots; return a signal that stopped this, and the number done."""
    survey, true = experiment.survey, experiment.true
    assert true is not None
    simulator = replace(experiment.simulator(true), aperture=Aperture())
    model = true.as_tensors(context.device)
    most = count_forward_shots(experiment, context, is_loaded=True)
    chunks = Chunks(most, context)
    none = np.empty((0, survey.n_receivers, survey.n_samples), dtype=np.float32)
    done, signal = survey.n_shots - writer.left.size, None

    def simulate(_: NDArray[np.int64], part: Survey, window: Window) -> list[NDArray[np.float32]]:
        return list(simulator.simulate(model, part, keep=False, window=window).data.cpu().numpy())

    context.heartbeat.begin("the simulation of the observed data")
    with Watch(context, stop, lambda: f"shot {done}"):
        for shots in writer.rounds(most):
            each = chunks.for_each_shot(survey.select(shots), simulator, simulate)
            traces = np.concatenate([none, *(found[None] for _, found in each)])
            chunks.check()
            # Checked before they are written, because traces in the file are not checked again.
            wrong = context.all_gather(shots[~np.isfinite(traces).all(axis=(1, 2))])
            failed = np.concatenate(wrong).tolist()
            if failed:
                raise InversionFailure(
                    f"shots {failed} gave traces that are not finite: the model or the wavelet has "
                    "values too extreme for the simulation"
                )
            writer.write(shots, traces)
            count = sum(context.all_gather(int(shots.size)))
            done += count
            progress.advance(count)
            if done < survey.n_shots:
                signal = stop.agree_to_stop()
                if signal is not None:
                    break
    return signal, done


SHOWN = 3  # number of shots whose traces are stored


def fit_at_end(stage: Stage, recorder: Recorder, stop: StopRequest) -> str | None:
    """Simulate a few shots in the last model of a stage, and write and draw their fit; collective.

    It does nothing if the fit already exists. Returns the signal that interrupted it, if any; the
    state of the run was written before. Too little memory or disk space causes only a warning.
    """
    context, directory, epoch = recorder.context, recorder.directory, recorder.state.epoch
    path = directory.fit(stage.number)
    if context.from_root(partial(_is_kept, path, epoch)):
        return None
    started = time.monotonic()
    context.heartbeat.begin(f"the data fit after epoch {epoch}")
    try:
        with (
            Watch(context, stop, recorder.save),
            open_observed(recorder.experiment, context) as reader,
        ):
            try:
                found = _find_fit(stage, recorder, reader, stop)
            except (InputError, InversionFailure):
                reader.close()  # on all ranks, which all have this error
                raise
        if isinstance(found, str):
            return found

        def keep() -> None:
            records.write_fit(path, found, epoch)
            suffix = directory.suffix(stage.number, len(recorder.stages))
            drawing.draw_fit(recorder.painter.submit, found, epoch, suffix)
            seconds = time.monotonic() - started
            log.info("Data fit after epoch %d, %.1f s: %s", epoch, seconds, found.describe())
            for finding in found.judge(epoch):
                log.warning("%s", finding.text)

        context.from_root(keep)
    except (InputError, InversionFailure, WriteFailure) as failure:  # on all ranks alike
        if context.is_root:
            log.warning("The data fit after epoch %d is not drawn: %s", epoch, failure)
    return None


def _find_fit(
    stage: Stage, recorder: Recorder, reader: GatherReader, stop: StopRequest
) -> Fit | str:
    """Return the fit of the newest state, or the signal that has interrupted it; collective.

    Shots are simulated in rounds of as many as memory allows with a history, although the fit needs
    no history. Raises `InputError` on all ranks if one of them cannot read its data, and
    `InversionFailure` if memory does not suffice for one shot.
    """
    context, state = recorder.context, recorder.state
    experiment = balance_recorded(stage.experiment.holding(state.model), reader, context)
    model = state.model.select(experiment.inverted.arrays)
    config, survey = experiment.config, experiment.survey
    simulator = experiment.make_simulator()
    plan = plan_memory_of_ranks(simulator, model, survey, experiment, context, has_state=True)
    most = most_at_a_time(config.inversion, survey.n_shots, context)
    chunks = Chunks(min(plan.at_once, most), context)
    found = None if state.estimated is None else state.estimated.complete()
    if found is None:
        peak = survey.spectrum.peak
    else:
        peak = context.from_root(lambda: Spectrum.of(found, survey.dt).peak)
    frequency = max(peak, 1.0 / (survey.dt * survey.n_samples))
    shots = choose_shots(survey.n_shots)
    shown = choose_views(shots, SHOWN)
    mine = shots[context.rank :: context.size]
    normalized = not knows_amplitudes(config.inversion.misfit.bind())
    fits: list[ShotFit] = []
    views: list[View] = []
    unreadable: InputError | None = None

    for first in range(0, -(-shots.size // context.size), plan.at_once):
        some = mine[first : first + plan.at_once]
        traces = cache(partial(read_observed, experiment, reader, some))
        seen = see_shots(experiment, model, some, traces, chunks, context, found)
        try:
            for view, misfit in seen:
                fits.append(measure_fit(view, misfit, frequency, survey.dt, normalized))
                if view.number in shown:
                    views.append(view)
        except InputError as error:
            unreadable = error
        for failure in context.all_gather(unreadable):
            if failure is not None:
                raise failure
        chunks.check()
        signal = stop.agree_to_stop()
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
    try:
        return is_there(path) and records.read_fit(path)[1] == epoch
    except InputError:
        return False
