"""The job of a command on all ranks: from the name of a config to a finished run directory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path

import torch

from hpcfwi import __version__
from hpcfwi.config import Config, import_own, load_config
from hpcfwi.convert.request import HDF5, SEGY, kind_of
from hpcfwi.errors import InputError
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.memory import fit_forward, fit_ranks
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.stages import Stage, make_stages
from hpcfwi.inversion.state import State
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.recovery import retry_after_death
from hpcfwi.parallel.watch import StopRequest, Watch
from hpcfwi.report.log import start_log
from hpcfwi.run.commands import look_before_inverting
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.session import check_observed, invert, observe, restore
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
    """Simulate the observed data where they are missing and, if `inverts`, invert; collective.

    If `migrates`, as the section [migration] says in place of [inversion].

    Nothing is written before the config, the models, the survey and its data are known to be good,
    and nothing of a run is changed before the state that it goes on from is read.
    Where ranks die, and the others can go on, they begin anew, or with the epoch that was in work.
    Raises what `load_config`, `prepare`, `check_observed`, `fit_ranks`, `claim`, `restore`,
    `observe` and `invert` raise.
    """
    load = partial(load_config, path, settings, migrates)
    with ExitStack() as held:
        experiment, stages, custody, state, stop = retry_after_death(
            context, lambda: _begin(load, path, context, inverts, quiet, held)
        )
        if state is not None:
            directory, become_root = custody.directory, custody.become_root
            invert(experiment, stages, directory, state, context, stop, quiet, become_root)


@dataclass
class _Custody:
    """The run directory, and its log, which rank 0 keeps to itself until the job ends.

    held: by this rank; is_mine: whether this rank has the directory.
    """

    directory: RunDirectory
    config: Config
    context: Context
    quiet: bool
    held: ExitStack
    is_mine: bool = False

    def claim(self) -> None:
        """Take the directory, on rank 0; raises what `RunDirectory.claim` raises."""
        self.held.enter_context(self.directory.claim(self.config))
        self.is_mine = True

    def become_root(self) -> None:
        """Take it over from a rank 0 that has died, on the rank that is 0 now."""
        if self.is_mine:
            return
        self.claim()
        self.directory.begin(self.config)
        self.open_log()
        log.info("Rank 0 has died: this one on %s is rank 0 now", self.context.host)

    def open_log(self) -> None:
        """Tell from now on what happens, on rank 0 into the directory as well."""
        self.held.enter_context(start_log(self.directory.log, self.context.rank, self.quiet))


def _begin(
    load: Callable[[], Config],
    path: Path,
    context: Context,
    inverts: bool,
    quiet: bool,
    held: ExitStack,
) -> tuple[Experiment, list[Stage], _Custody, State | None, StopRequest]:
    """Prepare everything before the first epoch, including the observed data; collective.

    Resources that stay open are entered into `held`. The state is that from which the inversion
    continues, None without an inversion.
    """
    held.close()  # what a try has opened that a death has ended
    # One for all: what comes between two who look for signals must not be lost
    stop = held.enter_context(StopRequest(context))
    context.heartbeat.begin("the preparation")
    # Nothing is in work that a signal would have to wait for; nobody knows how long it all takes
    with Watch(context, stop, lambda: "the last checkpoint", grace=0.0, wait=inf):
        with start_log(None, context.rank, quiet):
            config = context.from_root(load)
            context.from_root(partial(import_own, path, config))
            experiment = prepare(config, context)
            if not inverts and not experiment.is_synthetic:
                raise InputError(
                    f"{path}: survey.file",
                    "these data are observed already",
                    "Name another file for simulated ones: `hpcfwi forward --to synthetic.h5`.",
                )
            directory, stages = RunDirectory(Path(config.output.directory)), []
            custody = _Custody(directory, config, context, quiet, held)
            context.from_root(lambda: directory.check(config))
            check_observed(experiment, context)
            _check_memory_of_data(experiment, context)
            if inverts:
                stages = make_stages(experiment, context)
                _check_memory(stages, context)
            context.from_root(custody.claim)
        custody.open_log()
        _introduce(f"Input {path}, run directory {directory.path}", context)
        state = restore(experiment, stages, directory, context) if stages else None
        context.from_root(lambda: directory.begin(config))
        _prepare_engine(experiment, context)
    observe(experiment, context, stop, quiet)
    if state is not None and state.epoch == 0:
        with Watch(context, stop, lambda: "the beginning", grace=0.0, wait=inf):
            look_before_inverting(experiment, stages, directory, context)
    return experiment, stages, custody, state, stop


def simulate_into(
    path: Path,
    settings: Sequence[str],
    target: Path | None,
    model: Path | None,
    context: Context,
    quiet: bool = False,
) -> None:
    """Simulate all shots of a survey into a file of its own, without a run directory; collective.

    The same command goes on with what an earlier one has left unfinished, on any number of ranks.
    A file that holds other data is never written over.

    Parameters
    ----------
    path, settings
        The input, and what is changed in it.
    target
        Gathers (.h5) or SEG-Y (.sgy). SEG-Y is written from gathers beside it, which are removed.
    model
        A model file in place of that of the input.
    context
        The ranks.
    quiet
        Print warnings only.

    Raises
    ------
    InputError
        On all ranks, for what cannot be simulated, or written in this kind of file.
    """
    # Here, as few jobs need segyio
    from hpcfwi.convert.writing import convert_to_segy, find_interval

    if target is None:
        raise InputError("--model", "given without --to", "Name the file to write, as --to a.h5.")
    is_segy = context.from_root(partial(_is_segy, target))
    gathers = target.with_name(f"{target.name}.h5") if is_segy else target

    def simulate() -> None:
        with StopRequest(context) as stop, start_log(None, context.rank, quiet):
            context.heartbeat.begin("the preparation")
            with Watch(context, stop, lambda: "the first shot", grace=0.0, wait=inf):
                config = context.from_root(partial(load_config, path, settings))
                if model is not None:
                    section = config.model.model_copy(update={"dataset": None, "file": str(model)})
                    config = config.model_copy(update={"model": section})
                experiment = prepare(config, context, gathers)
                if is_segy:
                    find_interval(experiment.survey, config.survey.dt_place)
                check_observed(experiment, context)
                _check_memory_of_data(experiment, context)
                _introduce(f"Input {path}, target {target}", context)
                _prepare_engine(experiment, context)
            observe(experiment, context, stop, quiet)
            if is_segy:
                convert_to_segy(gathers, target, context, quiet)
                context.from_root(gathers.unlink)

    retry_after_death(context, simulate)


def _is_segy(target: Path) -> bool:
    """Return True if simulated data are written as SEG-Y; `InputError` for other kinds."""
    kind = kind_of(target)
    if kind not in (SEGY, HDF5):
        raise InputError(
            f"--to {target}",
            f"traces cannot be written as {kind}",
            "Name a file of gathers (.h5) or SEG-Y (.sgy).",
        )
    if kind == SEGY and is_there(target):
        raise InputError(
            str(target), "there is such a file already", "Remove it, or choose another name."
        )
    return kind == SEGY


def _check_memory_of_data(experiment: Experiment, context: Context) -> None:
    """Raise `InputError` on all ranks where the simulation of observed data does not fit."""
    there = context.from_root(partial(is_there, experiment.observed))
    if experiment.is_synthetic and not there:
        fit_forward(experiment, context, is_loaded=False)


def _check_memory(stages: Sequence[Stage], context: Context) -> None:
    """Raise `InputError` on all ranks where memory cannot suffice, before anything is simulated."""
    model = stages[0].experiment.initial.as_tensors(context.device)
    for experiment in (stage.experiment for stage in stages):
        simulator, survey = experiment.compared(), experiment.simulated()
        fit_ranks(simulator, model, survey, experiment, context, has_state=False)


def _introduce(files: str, context: Context) -> None:
    hosts = context.all_gather(context.host)
    threads = context.all_gather(context.threads)
    log.info(
        "hpcfwi %s, torch %s: %d rank%s on %d host%s, %s, %s thread%s a rank",
        __version__,
        torch.__version__,
        context.size,
        "s" * (context.size > 1),
        len(set(hosts)),
        "s" * (len(set(hosts)) > 1),
        context.device.type.upper(),
        "/".join(map(str, sorted(set(threads)))),
        "s" * (max(threads) > 1),
    )
    log.info("%s", describe(context))
    log.info("%s", files)


def _prepare_engine(experiment: Experiment, context: Context) -> None:
    """Compile the wave engine before the first shot; collective.

    In turns, so that ranks find what others have compiled, on a disk of all hosts or of each, and
    never write it at the same time.
    """
    wave = experiment.config.wave
    initial = experiment.initial.any
    like = torch.tensor(initial[(slice(1),) * initial.ndim], device=context.device)
    log.info("Preparing the wave engine (half a minute the first time on a machine)")
    mine = 0 if context.is_root else 1 if context.local_rank == 0 else 2
    for turn in range(3):
        if turn == mine:
            warm_up(wave.engine, wave.order, like)
        context.barrier()
