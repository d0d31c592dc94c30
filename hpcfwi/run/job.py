"""A command's work on all ranks: from the name of a config to a finished run directory."""

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
from hpcfwi.errors import InputError
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.resources import fit_ranks
from hpcfwi.inversion.stages import Stage, make_stages
from hpcfwi.inversion.state import State
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.faults.recovery import retry_after_death
from hpcfwi.parallel.faults.stop import StopRequest
from hpcfwi.parallel.faults.watch import Watch
from hpcfwi.report.log import start_log
from hpcfwi.run.checking import look_before_inverting
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.observation import check_observed, observe
from hpcfwi.run.session import invert, restore
from hpcfwi.storage.hdf5 import describe
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
    """All that comes before the first epoch, so that the observed data are there; collective.

    What it opens for longer is `held`. The state is that from which the inversion goes on, None
    where there is to be none.
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
                    "these data are observed already, there is nothing to simulate",
                    "Describe the survey by sources, receivers, wavelet, dt and duration instead.",
                )
            directory, stages = RunDirectory(Path(config.output.directory)), []
            custody = _Custody(directory, config, context, quiet, held)
            context.from_root(lambda: directory.check(config))
            check_observed(experiment, context)
            if inverts:
                stages = make_stages(experiment, context)
                _check_memory(stages, context)
            context.from_root(custody.claim)
        custody.open_log()
        _introduce(path, directory, context)
        state = restore(experiment, stages, directory, context) if stages else None
        context.from_root(lambda: directory.begin(config))
        _prepare_engine(experiment, context)
    observe(experiment, context, stop, quiet)
    if state is not None and state.epoch == 0:
        with Watch(context, stop, lambda: "the beginning", grace=0.0, wait=inf):
            look_before_inverting(experiment, stages, directory, context)
    return experiment, stages, custody, state, stop


def _check_memory(stages: Sequence[Stage], context: Context) -> None:
    """Raise `InputError` on all ranks where memory cannot suffice, before anything is simulated."""
    model = stages[0].experiment.initial.as_tensors(context.device)
    for experiment in (stage.experiment for stage in stages):
        simulator, survey = experiment.compared(), experiment.simulated()
        fit_ranks(simulator, model, survey, experiment, context, has_state=False)


def _introduce(path: Path, directory: RunDirectory, context: Context) -> None:
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
    log.info("Input %s, run directory %s", path, directory.path)


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
