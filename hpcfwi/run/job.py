"""The jobs `run`, `migrate` and `forward` on all ranks, from the name of an input file to the end.

`run_in_crews` runs the work of a command on ranks that simulate shots together, as the input asks
for. Before the first epoch, the data are compared with those of the starting model, as `check` in
`commands` does.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi import __version__
from hpcfwi.config import Config, import_plugins, load_config
from hpcfwi.convert.request import HDF5, SEGY, kind_of
from hpcfwi.errors import Finding, InputError, Stopped, refuse, refusing, say_count
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.layers import choose_crew_size, describe_layers
from hpcfwi.inversion.memory import count_forward_shots, find_cost, plan_memory_of_ranks
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.shot_qc import View, choose_drawn
from hpcfwi.inversion.stages import Stage, make_stages
from hpcfwi.inversion.state import State
from hpcfwi.parallel.context import Context, portable
from hpcfwi.parallel.crew import form_crews
from hpcfwi.parallel.recovery import retry_after_death
from hpcfwi.parallel.watch import StopRequest, Watch
from hpcfwi.plan.checks import check_data, check_experiment
from hpcfwi.plan.comparison import DataComparison, compare_data
from hpcfwi.report.text import start_log
from hpcfwi.run.directory import OTHER_DIRECTORY, RunDirectory
from hpcfwi.run.session import (
    check_observed,
    invert,
    open_observed,
    restore,
    simulate_observed,
)
from hpcfwi.storage.hdf5 import describe
from hpcfwi.system import is_there, written_whole
from hpcfwi.wave import warm_up
from hpcfwi.wave.engines import Leader, dismiss, serve

log = logging.getLogger("hpcfwi")


def run_job(
    path: Path,
    settings: Sequence[str],
    context: Context,
    *,
    inverts: bool = True,
    migrates: bool = False,
    quiet: bool = False,
) -> None:
    """Simulate the observed data if they are missing and, if `inverts`, invert; collective.

    If `migrates`, the section [migration] replaces [inversion].

    Nothing is written before the config, the models, the survey and its data are checked, and no
    file of a run is changed before the state from which it continues is read. If ranks die and the
    others can continue, they repeat the preparation or the interrupted epoch.

    Raises the errors of `load_config`, `prepare`, `check_observed`, `plan_memory_of_ranks`,
    `claim`, `restore`, `simulate_observed` and `invert`.
    """

    def work(config: Config, context: Context) -> None:
        # There is one request for the whole job; a signal between two requests would be lost.
        with StopRequest(context) as stop, ExitStack() as held:
            job = _Job(path, config, context, quiet, stop, held)
            experiment, stages = retry_after_death(context, partial(job.begin, inverts))
            if inverts:
                directory, become_root = job.directory, job.become_root
                # The state is not named here, because its memory is freed after the first epoch
                invert(
                    experiment,
                    stages,
                    directory,
                    job.take_state(),
                    context,
                    stop,
                    quiet,
                    become_root,
                )

    run_in_crews(path, settings, context, work, migrates)


def watch_preparation(context: Context, stop: StopRequest, continues: str) -> Watch:
    """Return a watch for work that costs little to repeat; collective.

    A signal ends it at once, and ranks may wait for any time. continues: the point from which the
    same command continues.
    """
    return Watch(context, stop, lambda: continues, grace=0.0, wait=inf)


@dataclass
class _Job:
    """A job on this rank, and its run directory, which rank 0 claims until the job ends.

    held: open resources of this rank; has_claimed: True if this rank has claimed the directory;
    state: that from which the inversion continues, None without an inversion.
    """

    path: Path
    config: Config
    context: Context
    quiet: bool
    stop: StopRequest
    held: ExitStack
    has_claimed: bool = False
    state: State | None = None

    def __post_init__(self) -> None:
        self.directory = RunDirectory(Path(self.config.output.directory))

    def begin(self, inverts: bool) -> tuple[Experiment, list[Stage]]:
        """Prepare everything before the first epoch, including the observed data; collective."""
        path, config, context, directory = self.path, self.config, self.context, self.directory
        self.held.close()  # resources of an attempt that a death has ended
        self.has_claimed = False
        stages: list[Stage] = []
        context.heartbeat.begin("the preparation")
        with watch_preparation(context, self.stop, "the last checkpoint"):
            with start_log(None, context.rank, self.quiet):
                context.from_root(partial(import_plugins, path, config))
                experiment = prepare(config, context)
                if not inverts and not experiment.is_synthetic:
                    raise InputError(
                        f"{path}: survey.file",
                        "the input has observed data already",
                        "Name another file for simulated data: `hpcfwi forward --to synthetic.h5`.",
                    )
                context.from_root(lambda: directory.check(config))
                check_observed(experiment, context)
                _check_memory_of_data(experiment, context)
                if inverts:
                    stages = make_stages(experiment, context)
                    _check_memory(stages, context)
                context.from_root(self.claim)
            self.open_log()
            _introduce(f"Input {path}, run directory {directory.path}", experiment, context)
            state = restore(experiment, stages, directory, context) if stages else None
            is_new = state is None or state.epoch == 0
            self.state = state
            if is_new:
                experiments = [stage.experiment for stage in stages] or [experiment]
                context.from_root(partial(warn_before_simulating, experiments, context.device))
            context.from_root(lambda: directory.begin(config))
            _prepare_engine(experiment, context, any(map(_multiplies, stages)))
        simulate_observed(experiment, context, self.stop, self.quiet)
        if stages and is_new:
            # The watch names this work at once for a signal that has come before
            context.heartbeat.begin("a first look at the data")
            with watch_preparation(context, self.stop, "the beginning"):
                check_before_inverting(experiment, stages, directory, context)
        return experiment, stages

    def take_state(self) -> State:
        """Return the state, to which the job then no longer refers."""
        state, self.state = self.state, None
        assert state is not None, "restored by `begin`"
        return state

    def claim(self) -> None:
        """Claim the directory on rank 0; raises the errors of `RunDirectory.claim`."""
        self.held.enter_context(self.directory.claim(self.config))
        self.has_claimed = True

    def become_root(self) -> None:
        """Claim the directory on the new rank 0 after the previous one has died."""
        if self.has_claimed:
            return
        self.claim()
        self.directory.begin(self.config)
        self.open_log()
        log.info("Rank 0 has died: this rank on %s is rank 0 now", self.context.host)

    def open_log(self) -> None:
        """Begin the log, which rank 0 also writes to a file in the directory."""
        self.held.enter_context(start_log(self.directory.log, self.context.rank, self.quiet))


def simulate_into(
    path: Path,
    settings: Sequence[str],
    target: Path | None,
    model: Path | None,
    context: Context,
    quiet: bool = False,
) -> None:
    """Simulate all shots of a survey into a file, without a run directory; collective.

    The same command continues an unfinished file, on any number of ranks. A file of other data is
    never overwritten. target: gathers (.h5), or SEG-Y (.sgy), which is written from a temporary
    gathers file; model: a model file that replaces that of the input.

    Raises `InputError` on all ranks if the data cannot be simulated, or cannot be written in this
    kind of file.
    """
    # Imported here, because few jobs need it
    from hpcfwi.convert.writing import convert_to_segy, find_interval

    if target is None:
        raise InputError("--model", "given without --to", "Name the output file: --to a.h5.")
    is_segy = context.from_root(partial(_is_segy, target))
    gathers = target.with_name(f"{target.name}.h5") if is_segy else target

    def simulate(config: Config, context: Context) -> None:
        with StopRequest(context) as stop, start_log(None, context.rank, quiet):
            context.heartbeat.begin("the preparation")
            with watch_preparation(context, stop, "the first shot"):
                if model is not None:
                    section = config.model.model_copy(update={"dataset": None, "file": str(model)})
                    config = config.model_copy(update={"model": section})
                experiment = prepare(config, context, gathers)
                if is_segy:
                    find_interval(experiment.survey, config.survey.dt_place)
                check_observed(experiment, context)
                _check_memory_of_data(experiment, context)
                _introduce(f"Input {path}, target {target}", experiment, context)
                context.from_root(partial(warn_before_simulating, [experiment], context.device))
                _prepare_engine(experiment, context)
            simulate_observed(experiment, context, stop, quiet)
            if is_segy:
                convert_to_segy(gathers, target, context, quiet)
                context.from_root(gathers.unlink)

    def work(config: Config, context: Context) -> None:
        retry_after_death(context, partial(simulate, config, context))

    run_in_crews(path, settings, context, work, target=gathers)


def _is_segy(target: Path) -> bool:
    """Return True for a SEG-Y file, False for gathers.

    Raises `InputError` for other kinds, and for a SEG-Y file that already exists.
    """
    kind = kind_of(target)
    if kind not in (SEGY, HDF5):
        raise InputError(
            f"--to {target}",
            f"traces cannot be written as {kind}",
            "Name a gathers file (.h5) or a SEG-Y file (.sgy).",
        )
    if kind == SEGY and is_there(target):
        raise InputError(
            str(target), "this file exists already", "Remove it, or choose another name."
        )
    return kind == SEGY


def _check_memory_of_data(experiment: Experiment, context: Context) -> None:
    """Raise `InputError` on all ranks if the observed data cannot be simulated in memory."""
    there = context.from_root(partial(is_there, experiment.observed))
    if experiment.is_synthetic and not there:
        count_forward_shots(experiment, context, is_loaded=False)


def _check_memory(stages: Sequence[Stage], context: Context) -> None:
    """Raise `InputError` on all ranks if memory is not sufficient, before any simulation."""
    for experiment in (stage.experiment for stage in stages):
        model = experiment.inverted.as_tensors(context.device)
        simulator, survey = experiment.make_simulator(), experiment.simulated_survey()
        plan_memory_of_ranks(simulator, model, survey, experiment, context, has_state=False)


def _introduce(files: str, experiment: Experiment, context: Context) -> None:
    hosts = context.all_gather(context.host)
    threads, leader = context.all_gather(context.threads), context.leader
    ranks = say_count(context.size, "rank")
    if leader is not None:
        ranks = f"{say_count(context.size, 'crew')} of {leader.size} ranks"
    log.info(
        "hpcfwi %s, torch %s: %s on %s, %s, %s thread%s per rank",
        __version__,
        torch.__version__,
        ranks,
        say_count(len(set(hosts)), "host"),
        context.device.type.upper(),
        "/".join(map(str, sorted(set(threads)))),
        "s" * (max(threads) > 1),
    )
    if leader is not None:
        own = context.threads, leader.hosts, context.device
        log.info("%s", describe_layers(experiment, leader.size, *own))
    log.info("%s", describe(context))
    log.info("%s", files)


def _multiplies(stage: Stage) -> bool:
    """Return True if a stage multiplies by derivatives of traces with respect to the model."""
    is_linear = stage.experiment.config.inversion.linear
    return is_linear or find_cost(stage.experiment).products[1] > 0


def _prepare_engine(experiment: Experiment, context: Context, scatter: bool = False) -> None:
    """Compile the wave engine before the first shot; collective.

    A rank that needs code that another rank is compiling waits for it (docs/decisions/041).
    scatter: see `warm_up`.
    """
    corner = (slice(1),) * experiment.initial.grid.ndim
    model = {
        name: torch.tensor(array[corner], device=context.device)
        for name, array in experiment.initial.arrays.items()
    }
    method = experiment.simulator(experiment.initial).method
    if method.choose_engine(context.device).NAME in ("cpu", "gpu"):
        seconds = 25 if scatter else 15
        log.info(
            "Preparing the wave engine (takes some %d seconds the first time on a machine)", seconds
        )
    warm_up(method, model, scatter)
    context.barrier()


def warn_before_simulating(experiments: Sequence[Experiment], device: torch.device) -> None:
    """Log the warnings and errors of a plan about models, survey and scheme; rank 0 only."""
    told: list[Finding] = []
    for experiment in experiments:
        seen = experiment.seen_by_waves()
        model, shot = seen.initial.as_tensors(device), seen.survey.select(np.arange(1))
        dt = seen.make_simulator().set_up(model, shot, window=None).problem.dt
        for finding in check_experiment(seen, dt):
            if finding.severity != "note" and finding not in told:
                log.warning("%s", finding.text)
                told.append(finding)


def check_before_inverting(
    experiment: Experiment, stages: Sequence[Stage], directory: RunDirectory, context: Context
) -> None:
    """Log the comparison of the data of all stages, and draw data with findings; collective.

    Raises `InputError` on all ranks if there is nothing to invert.
    """
    compared = compare_all_data(experiment, stages, context)
    for one in compared:
        for line in one.describe():
            log.info("Data%s: %s", f", {one.label}" if one.label else "", line)
    refuse(finding for one in compared for finding in one.findings)

    def warn() -> None:
        write_checked(directory, compared)
        for one in compared:
            for finding in one.findings:
                log.warning("%s", finding.text)
            if one.findings:
                figure = draw_comparison(one, directory)
                log.warning("Observed data and data of the starting model: %s", figure)

    context.from_root(warn)


def compare_all_data(
    experiment: Experiment, stages: Sequence[Stage], context: Context
) -> list[DataComparison]:
    """Return the comparisons of the data of all stages, with their findings; collective."""
    there = context.from_root(partial(is_there, experiment.observed))
    with open_observed(experiment, context) if there else nullcontext() as reader:
        compared = compare_data(experiment, stages, reader, context)
    return check_data(compared, experiment.config.survey.file or "survey")


def write_checked(directory: RunDirectory, compared: Sequence[DataComparison]) -> None:
    """Write the findings about the data, for the report; rank 0 only."""
    found = [
        {
            "label": one.label,
            "lines": list(one.describe()),
            "findings": list(map(str, one.findings)),
        }
        for one in compared
    ]
    path = directory.checked
    with refusing(str(path), "cannot be written", OTHER_DIRECTORY), written_whole(path) as file:
        file.write(json.dumps(found, indent=1).encode())


def draw_comparison(compared: DataComparison, directory: RunDirectory) -> Path:
    """Draw the figure in the run directory and return its path; rank 0 only."""
    from hpcfwi.report import style
    from hpcfwi.report.figures import comparison_figure

    comparison, first = compared.comparison, compared.stages[0]
    experiment = first.experiment
    path = directory.figure(f"check_{first.number + 1}" if compared.label else "check")

    def find_picks(view: View) -> NDArray[np.float64]:
        source = experiment.survey.sources[view.number]
        mutes = [experiment.picks[name] for name in experiment.config.data.picks]
        return np.array([picks.find_line(source, view.offsets) for picks in mutes])

    figure = comparison_figure(
        [
            (title, view.offsets, view.observed, view.simulated, find_picks(view))
            for title, view in choose_drawn(comparison.views)
        ],
        comparison.axis,
        comparison.factor,
        comparison.offsets,
        comparison.lags,
        comparison.period,
    )
    with refusing(str(path), "cannot be written", OTHER_DIRECTORY):
        style.save(figure, path)
    return path


def run_in_crews(
    path: Path,
    settings: Sequence[str],
    context: Context,
    work: Callable[[Config, Context], None],
    migrates: bool = False,
    needs_crews: bool = True,
    target: Path | None = None,
) -> None:
    """Read a config, and run `work` on the leaders of the crews that it asks for; collective.

    The other ranks serve them; without crews, all ranks run it. `work` gets the config and the
    context of the ranks that run it. path, settings, migrates: see `load_config`; needs_crews:
    False if a single rank may run it alone; target: see `prepare`.

    Raises `InputError` on all ranks if the config cannot be read, or the ranks cannot be divided.
    """
    config = context.from_root(partial(load_config, path, settings, migrates))
    size = config.wave.ranks_per_shot
    if context.size == 1 and (size == "auto" or not needs_crews):
        size = 1
    elif size == "auto":
        experiments = [prepare(config, context, target)]
        if target is None:
            experiments = [stage.experiment for stage in make_stages(experiments[0], context)]
        size = choose_crew_size(experiments, context)
    run_on_leaders(size, context, partial(work, config))


def run_on_leaders(size: int, context: Context, work: Callable[[Context], None]) -> None:
    """Run `work` on the leaders of crews of this size, which the other ranks serve; collective.

    Raises `InputError` on all ranks if they cannot be divided.
    """
    if size == 1:
        work(context)
        return
    context, crew = form_crews(context, size)
    with closing(crew):
        if crew.number == 0:
            try:
                work(replace(context, leader=Leader(crew)))
            except (Exception, Stopped) as error:
                dismiss(crew, portable(error))
                raise
            dismiss(crew)
        else:
            # The leaders agree on how to stop after a signal
            with StopRequest(context):
                serve(crew, context.device)
