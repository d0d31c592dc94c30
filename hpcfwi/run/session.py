"""An inversion on the ranks of a job: what it goes on from, its parts, and its end.

The observed data are simulated if the input has none: every shot of the survey in the true model.
The algorithm is in `inversion.loop`; signals, ranks that hang and ranks that die are dealt with
around it, with the means of `parallel`. At the end of a stage some shots are simulated for its fit.
Nothing of the inversion depends on that. It is kept in the run directory, so that `show` draws it
again without computing.
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
from torch import Tensor

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
from hpcfwi.inversion.memory import (
    choose_history_and_chunk,
    find_shares,
    fit_forward,
    fit_ranks,
    most_at_a_time,
)
from hpcfwi.inversion.objective import Objective
from hpcfwi.inversion.shot_qc import (
    SHOTS,
    Fit,
    ShotFit,
    View,
    choose_shots,
    choose_views,
    describe_fit,
    knows_amplitudes,
    measure_fit,
    read_observed,
    see_shots,
)
from hpcfwi.inversion.stages import EncodedSampler, Sampler, Stage
from hpcfwi.inversion.state import Numerics, State
from hpcfwi.operators.batching import Chunks
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.recovery import retry_after_death
from hpcfwi.parallel.replicas import once_a_host
from hpcfwi.parallel.shards import make_schedule
from hpcfwi.parallel.watch import StopRequest, Watch
from hpcfwi.report.log import Progress
from hpcfwi.report.painter import Painter
from hpcfwi.run import records as kept
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.recorder import Recorder
from hpcfwi.storage.background import BackgroundWriter, Prefetcher
from hpcfwi.storage.checkpoint import load_latest_checkpoint
from hpcfwi.storage.gathers import (
    GatherReader,
    GatherWriter,
    create_gathers,
    read_labels,
    read_layout,
)
from hpcfwi.system import is_there
from hpcfwi.wave.numerics import peak_frequency

log = logging.getLogger("hpcfwi")


def check_observed(experiment: Experiment, context: Context) -> None:
    """Raise `InputError` on all ranks where a file of other data is in the way; collective."""
    if experiment.is_synthetic and context.from_root(partial(is_there, experiment.observed)):
        open_observed(experiment, context).close()


def open_observed(experiment: Experiment, context: Context) -> GatherReader:
    """The observed data; collective. Raises `InputError` on all ranks where they are other data."""
    if experiment.is_synthetic:
        context.from_root(partial(_check_made, experiment))
    return GatherReader(experiment.observed, context, experiment.survey)


def _check_made(experiment: Experiment) -> None:
    """Raise `InputError` where hpcfwi has made the observed data of something else."""
    shape, attributes = read_layout(experiment.observed)
    found = attributes.get("fingerprint")
    same = isinstance(found, str) and found == experiment.fingerprint
    if not same or shape != experiment.survey.shape:
        raise InputError(
            str(experiment.observed),
            "these data were made from another model or survey, or by another program",
            "Choose another output.directory, or another name with --to, or remove the file.",
        )


def observe(
    experiment: Experiment, context: Context, stop: StopRequest, quiet: bool = False
) -> None:
    """Simulate the observed data where they are not there yet; collective.

    Every rank simulates its shots and writes them into the one file, which has its name only when
    it is whole. What an earlier job has written of it is taken over. The waves run through the
    whole model and to all receivers, as those of the earth do, whatever windows the inversion has.

    Raises `Stopped` after a signal, with the shots so far on disk, `InputError` where a shot does
    not fit the memory, and `InversionFailure` where traces are not finite or memory runs out all
    the same: on all ranks.
    """
    if not experiment.is_synthetic:
        return
    path, n_shots = experiment.observed, experiment.survey.n_shots
    if context.from_root(partial(is_there, path)):
        log.info("Observed data: %s", path)
        return
    file = experiment.config.survey.file
    labels = {} if file is None else once_a_host(partial(read_labels, Path(file)), context)
    extras = {**labels, "fingerprint": context.from_root(lambda: experiment.fingerprint)}
    with create_gathers(path, experiment.survey, context, extras) as writer:
        before = n_shots - writer.left.size
        if before:
            there = f"{before} of {n_shots} shots are in {writer.part} already"
            log.info("Going on with the simulation: %s", there)
        else:
            log.info("Simulating %d shots into %s", n_shots, path)
        with Progress(
            n_shots, "shot", done=before, every=0.1, enabled=context.is_root, quiet=quiet
        ) as progress:
            signal, done = _simulate(experiment, writer, stop, progress, context)
        if signal is not None:
            writer.close()
            context.raise_alike(
                Stopped(
                    f"stopped by {signal} after {done} of {n_shots} shots were simulated; "
                    f"the same command goes on from shot {done}"
                )
            )


def _simulate(
    experiment: Experiment,
    writer: GatherWriter,
    stop: StopRequest,
    progress: Progress,
    context: Context,
) -> tuple[str | None, int]:
    """The shots that are left; the signal that stopped them, if any, and how many are done."""
    survey, true = experiment.survey, experiment.true
    assert true is not None
    simulator = experiment.simulator(true)
    model = true.as_tensors(context.device)
    mine = np.array_split(writer.left, context.size)[context.rank]
    most = fit_forward(experiment, context, is_loaded=True)
    chunks = Chunks(most, context)
    rounds = [mine[i : i + most] for i in range(0, mine.size, most)]
    none = np.empty((0, survey.n_receivers, survey.n_samples), dtype=np.float32)
    done, signal = survey.n_shots - writer.left.size, None

    def simulate(shots: NDArray[np.int64], part: slice) -> NDArray[np.float32]:
        traces: Tensor = simulator.simulate(model, survey.select(shots[part]), keep=False).data
        return traces.cpu().numpy()

    context.heartbeat.begin("the simulation of the observed data")
    with Watch(context, stop, lambda: f"shot {done}"):
        for k in range(max(context.all_gather(len(rounds)))):
            shots = rounds[k] if k < len(rounds) else mine[:0]
            traces = np.concatenate([none, *chunks.each(shots.size, partial(simulate, shots))])
            chunks.check()
            # What is in the file is not looked at again
            _check_finite(context.all_gather(shots[~np.isfinite(traces).all(axis=(1, 2))]))
            writer.write(shots, traces)
            count = sum(context.all_gather(int(shots.size)))
            done += count
            progress.advance(count)
            if done < survey.n_shots:
                signal = stop.agreed()
                if signal is not None:
                    break
    return signal, done


def _check_finite(failed: list[NDArray[np.int64]]) -> None:
    shots = np.concatenate(failed)
    if shots.size:
        raise InversionFailure(
            f"shots {shots.tolist()} gave traces that are not finite: the model or wavelet has "
            "values that the simulation cannot carry"
        )


SHOWN = 3  # whose traces are kept


def look_at_end(stage: Stage, recorder: Recorder, stop: StopRequest) -> str | None:
    """Simulate a few shots in the model that a stage has ended with, keep what is found, draw it.

    Not where it is kept already. Returns the signal that it was given up for, if any: its state is
    on disk before. Where memory or the disk do not suffice that is a warning. Collective.
    """
    context, directory, epoch = recorder.context, recorder.directory, recorder.state.epoch
    path = directory.ending(stage.number)
    if context.from_root(partial(_is_kept, path, epoch)):
        return None
    started = time.monotonic()
    context.heartbeat.begin(f"the data fit after epoch {epoch}")
    try:
        with (
            open_observed(recorder.experiment, context) as reader,
            Watch(context, stop, recorder.save),
        ):
            found = _find_fit(stage, recorder, reader, stop)
        if isinstance(found, str):
            return found

        def keep() -> None:
            assert recorder.painter is not None, "rank 0 draws"
            kept.keep_fit(path, found, epoch)
            label = directory.label(stage.number, len(recorder.stages))
            kept.draw_fit(recorder.painter.submit, directory, found, epoch, label)
            seconds = time.monotonic() - started
            log.info("Data fit after epoch %d, %.1f s: %s", epoch, seconds, describe_fit(found))
            for finding in kept.check_fit(found, epoch):
                log.warning("%s: %s. %s", finding.where, finding.found, finding.remedy)

        context.from_root(keep)
    except (InputError, InversionFailure, WriteFailure) as failure:  # on all ranks alike
        log.warning("The data fit after epoch %d is not drawn: %s", epoch, failure)
    return None


def _find_fit(
    stage: Stage, recorder: Recorder, reader: GatherReader, stop: StopRequest
) -> Fit | str:
    """Return the fit of the newest state, or the signal that has interrupted it; collective.

    It is simulated in rounds of as many shots as memory allows with a history, although none is
    needed. Raises `InputError` and `InversionFailure` on all ranks if memory does not suffice for
    one shot.
    """
    experiment, context, state = stage.experiment, recorder.context, recorder.state
    config, survey = experiment.config, experiment.survey
    simulator = experiment.compared()
    fit = fit_ranks(simulator, state.model, survey, experiment, context, has_state=True)
    most = most_at_a_time(config.inversion, survey.n_shots, context)
    chunks = Chunks(min(fit.at_once, most), context)
    found = None if state.emission is None else state.emission.complete()
    if found is None:
        peak = survey.spectrum.peak
    else:
        peak = context.from_root(partial(peak_frequency, found, survey.dt))
    frequency = max(peak, 1.0 / (survey.dt * survey.n_samples))
    shots = choose_shots(survey.n_shots, SHOTS)
    shown = choose_views(shots, SHOWN)
    mine = shots[context.rank :: context.size]
    normalized = not knows_amplitudes(config.inversion.misfit.make())
    fits: list[ShotFit] = []
    views: list[View] = []

    for first in range(0, -(-shots.size // context.size), fit.at_once):
        some = mine[first : first + fit.at_once]
        traces = cache(partial(read_observed, experiment, reader, some))
        seen = see_shots(experiment, state.model, some, traces, chunks, context, found)
        for view, misfit in seen:
            fits.append(measure_fit(view, misfit, frequency, survey.dt, normalized))
            if view.number in shown:
                views.append(view)
        chunks.check()
        signal = stop.agreed()
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
    if not is_there(path):
        return False
    try:
        return kept.read_fit(path)[1] == epoch
    except InputError:
        return False


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
    """Return the sampler of a stage; collective."""
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
