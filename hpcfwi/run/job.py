"""The job of a command on all ranks: from the name of an input file to a finished run directory.

`open_input` opens an input file for a program: its shots as an operator, its models and its data.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hpcfwi import __version__
from hpcfwi.config import Config, import_plugins, load_config
from hpcfwi.convert.request import HDF5, SEGY, kind_of
from hpcfwi.errors import InputError
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.layers import describe_layers
from hpcfwi.inversion.memory import count_forward_shots, plan_memory_of_ranks
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.stages import Stage, make_stages
from hpcfwi.inversion.state import State
from hpcfwi.model import Model
from hpcfwi.operators.shots import Shots
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.recovery import retry_after_death
from hpcfwi.parallel.watch import StopRequest, Watch
from hpcfwi.report.log import start_log
from hpcfwi.run.commands import look_before_inverting, look_before_simulating
from hpcfwi.run.crews import run_in_crews
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.session import (
    check_observed,
    invert,
    open_observed,
    restore,
    simulate_observed,
)
from hpcfwi.storage.hdf5 import describe
from hpcfwi.system import is_there
from hpcfwi.wave import warm_up

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
    load = partial(load_config, path, settings, migrates)

    def work(config: Config, context: Context) -> None:
        # There is one request for the whole job; a signal between two requests would be lost.
        with StopRequest(context) as stop, ExitStack() as held:
            job = _Job(path, config, context, quiet, stop, held)
            experiment, stages, state = retry_after_death(context, partial(job.begin, inverts))
            if state is not None:
                directory, become_root = job.directory, job.become_root
                invert(experiment, stages, directory, state, context, stop, quiet, become_root)

    run_in_crews(load, context, work)


def watch_preparation(context: Context, stop: StopRequest, continues: str) -> Watch:
    """Return a watch for work that costs little to repeat; collective.

    A signal ends it at once, and ranks may wait for any time. continues: the point from which the
    same command continues.
    """
    return Watch(context, stop, lambda: continues, grace=0.0, wait=inf)


@dataclass
class _Job:
    """A job on this rank, and its run directory, which rank 0 claims until the job ends.

    held: open resources of this rank; has_claimed: True if this rank has claimed the directory.
    """

    path: Path
    config: Config
    context: Context
    quiet: bool
    stop: StopRequest
    held: ExitStack
    has_claimed: bool = False

    def __post_init__(self) -> None:
        self.directory = RunDirectory(Path(self.config.output.directory))

    def begin(self, inverts: bool) -> tuple[Experiment, list[Stage], State | None]:
        """Prepare everything before the first epoch, including the observed data; collective.

        The returned state is that from which the inversion continues, None without an inversion.
        """
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
            if state is None or state.epoch == 0:
                experiments = [stage.experiment for stage in stages] or [experiment]
                context.from_root(partial(look_before_simulating, experiments, context.device))
            context.from_root(lambda: directory.begin(config))
            _prepare_engine(experiment, context)
        simulate_observed(experiment, context, self.stop, self.quiet)
        if state is not None and state.epoch == 0:
            with watch_preparation(context, self.stop, "the beginning"):
                look_before_inverting(experiment, stages, directory, context)
        return experiment, stages, state

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
    never overwritten.

    Parameters
    ----------
    path, settings
        The input, and changes of its keys.
    target
        Gathers (.h5) or SEG-Y (.sgy). SEG-Y is written from a temporary gathers file.
    model
        A model file that replaces that of the input.
    context
        The ranks.
    quiet
        Print warnings only.

    Raises
    ------
    InputError
        On all ranks, if the data cannot be simulated, or written in this kind of file.
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
                context.from_root(partial(look_before_simulating, [experiment], context.device))
                _prepare_engine(experiment, context)
            simulate_observed(experiment, context, stop, quiet)
            if is_segy:
                convert_to_segy(gathers, target, context, quiet)
                context.from_root(gathers.unlink)

    run_in_crews(
        partial(load_config, path, settings),
        context,
        lambda config, leaders: retry_after_death(leaders, partial(simulate, config, leaders)),
        target=gathers,
    )


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
    threads = context.all_gather(context.threads)
    several = "s" * (context.size > 1)
    ranks = f"{context.size} rank{several}"
    if context.leader is not None:
        ranks = f"{context.size} crew{several} of {context.leader.size} ranks"
    log.info(
        "hpcfwi %s, torch %s: %s on %d host%s, %s, %s thread%s per rank",
        __version__,
        torch.__version__,
        ranks,
        len(set(hosts)),
        "s" * (len(set(hosts)) > 1),
        context.device.type.upper(),
        "/".join(map(str, sorted(set(threads)))),
        "s" * (max(threads) > 1),
    )
    if context.leader is not None:
        leader = context.leader
        layers = describe_layers(
            experiment, leader.size, context.threads, leader.hosts, context.device
        )
        log.info("%s", layers)
    log.info("%s", describe(context))
    log.info("%s", files)


def _prepare_engine(experiment: Experiment, context: Context) -> None:
    """Compile the wave engine before the first shot; collective.

    A rank that needs code that another rank is compiling waits for it (docs/decisions/041).
    """
    corner = (slice(1),) * experiment.initial.grid.ndim
    model = {
        name: torch.tensor(array[corner], device=context.device)
        for name, array in experiment.initial.arrays.items()
    }
    log.info("Preparing the wave engine (takes half a minute the first time on a machine)")
    warm_up(experiment.simulator(experiment.initial).method, model)
    context.barrier()


@dataclass(frozen=True)
class Opened:
    """An input file, or one stage of it, ready to be simulated on the ranks of a context.

    Attributes
    ----------
    experiment : Experiment
        The experiment that the input describes for the stage.
    whole : Experiment
        The experiment without the changes of the stage, with the recorded survey.
    context : Context
        The ranks.
    stage : int
        The number of the stage, from 1.
    """

    experiment: Experiment
    whole: Experiment
    context: Context
    stage: int

    @cached_property
    def shots(self) -> Shots:
        """The simulations of the survey, with the numerics of a run; see `operators.Shots`."""
        return self.experiment.shots(self.context)

    @cached_property
    def model(self) -> Model[Tensor]:
        """The model at the start of the inversion, for `shots`."""
        return self.see(self.experiment.initial)

    @cached_property
    def true(self) -> Model[Tensor] | None:
        """The true model, for `shots`; None if it is not known."""
        return None if self.experiment.true is None else self.see(self.experiment.true)

    def see(self, model: Model) -> Model[Tensor]:
        """Return a model of the inversion's grid as tensors on the grid of `shots`."""
        coarsening = self.experiment.coarsening
        tensors = model.as_tensors(self.context.device)
        return tensors if coarsening is None else coarsening.restrict(tensors)

    def observed(self) -> Tensor:
        """Return the observed traces (shot, receiver, time), in the form of the data of `shots`.

        They are limited to the band of the stage, and traces that do not count are zero. Every rank
        gets all of them. Collective.

        Raises
        ------
        InputError
            If the data are not simulated yet, or were made from another model or survey.
        """
        self.context.from_root(self._check_there)
        survey, band = self.experiment.survey, self.experiment.band
        with open_observed(self.whole, self.context) as reader:
            traces = reader.read(np.arange(survey.n_shots))
        if band is not None:
            traces = np.stack([band.filter(gather) for gather in traces])
        counts = self.experiment.aperture.within_offsets(survey.sources, survey.receivers)
        traces *= np.broadcast_to(counts, survey.shape[:2])[..., None]
        return torch.from_numpy(traces).to(self.context.device)

    def _check_there(self) -> None:
        path = self.whole.observed
        if self.whole.is_synthetic and not is_there(path):
            raise InputError(
                str(path),
                "the observed data have not been simulated yet",
                "Run `hpcfwi forward` with this input first.",
            )


def open_input(
    path: str | Path, context: Context, settings: Sequence[str] = (), stage: int | None = None
) -> Opened:
    """Open an input file or a run directory for a program, to simulate its shots; collective.

    Parameters
    ----------
    path : str or Path
        The input file (TOML), or a run directory.
    context : Context
        The ranks, from `hpcfwi.launch`.
    settings : sequence of str
        Changes of keys, "section.key=value", as `--set` takes them.
    stage : int, optional
        The number of the stage, from 1, whose band, offsets and grid are used; the last one if not
        given.

    Raises
    ------
    InputError
        On all ranks, for all errors in the input that a run would report, and if the stage does not
        exist.
    """
    config = context.from_root(partial(load_config, Path(path), settings))
    whole = prepare(config, context)
    stages = make_stages(whole, context)
    number = len(stages) if stage is None else stage
    if not 1 <= number <= len(stages):
        raise InputError(
            f"{path}: stage {number}",
            f"there is no such stage; the input has {len(stages)}",
            f"Give a number from 1 to {len(stages)}, or leave it out.",
        )
    return Opened(stages[number - 1].experiment, whole, context, number)
