"""A command's work on all ranks: from the name of a config to a finished run directory."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from hpcfwi import __version__
from hpcfwi.config import load_config
from hpcfwi.errors import InputError
from hpcfwi.host import exists
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.resources import fit_ranks
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.faults.recovery import retry_after_death
from hpcfwi.parallel.faults.stop import StopRequest
from hpcfwi.plan.findings import Finding
from hpcfwi.plan.machine import describe_machine, seconds_since_start
from hpcfwi.plan.plan import make_plan
from hpcfwi.plan.speed import Stopwatch, measure_speed
from hpcfwi.plan.text import write_plan
from hpcfwi.report.log import start_log
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.observation import check_observed, observe
from hpcfwi.run.session import invert, restore
from hpcfwi.storage.hdf5 import describe
from hpcfwi.wave import warm_up

log = logging.getLogger("hpcfwi")


def run_job(
    path: Path, settings: Sequence[str], context: Context, *, inverts: bool, quiet: bool = False
) -> None:
    """Simulate the observed data where they are missing and, if `inverts`, invert; collective.

    Nothing is written before the config, the models, the survey and its data are known to be good,
    and nothing of a run is changed before the state that it goes on from is read.
    Where ranks die, and the others can go on, they begin anew, or with the epoch that was in work.
    Raises what `load_config`, `prepare`, `check_observed`, `fit_ranks`, `claim`, `restore`,
    `observe` and `invert` raise.
    """
    retry_after_death(context, lambda: _run(path, settings, context, inverts, quiet))


def _run(path: Path, settings: Sequence[str], context: Context, inverts: bool, quiet: bool) -> None:
    with ExitStack() as held:
        with start_log(None, context.rank, quiet):
            config = context.from_root(lambda: load_config(path, settings))
            experiment = prepare(config, context)
            if not inverts and not experiment.is_synthetic:
                raise InputError(
                    f"{path}: survey.file",
                    "these data are observed already, there is nothing to simulate",
                    "Describe the survey by sources, receivers, wavelet, dt and duration instead.",
                )
            directory = RunDirectory(Path(config.output.directory))
            context.from_root(lambda: directory.check(config))
            check_observed(experiment, context)
            if inverts:
                _check_memory(experiment, context)
            context.from_root(lambda: held.enter_context(directory.claim(config)))
        is_ready = context.is_root

        def become_root() -> None:
            nonlocal is_ready
            if not is_ready:
                held.enter_context(directory.claim(config))
                directory.begin(config)
                held.enter_context(start_log(directory.log, context.rank, quiet))
                log.info("Rank 0 has died: this one on %s is rank 0 now", context.host)
                is_ready = True

        with start_log(directory.log, context.rank, quiet):
            _introduce(path, directory, context)
            state = restore(experiment, directory, context) if inverts else None
            context.from_root(lambda: directory.begin(config))
            _prepare_engine(experiment, context)
            # One for both: what comes between the two must not be lost
            with StopRequest(context) as stop:
                observe(experiment, context, stop, quiet)
                if state is not None:
                    invert(experiment, directory, state, context, stop, quiet, become_root)


def plan_job(path: Path, settings: Sequence[str], context: Context, quiet: bool = False) -> None:
    """Check a config, measure, and write the plan to stdout; collective, writes no file.

    Raises `InputError` on all ranks for what a run would refuse, and, after the plan was written,
    where it has found an error.
    """
    with start_log(None, context.rank, quiet=True):
        config = context.from_root(lambda: load_config(path, settings))
        experiment = prepare(config, context)
        directory = RunDirectory(Path(config.output.directory))
        other = context.from_root(lambda: directory.other_values(config))
        if not other:
            check_observed(experiment, context)
        ready = max(context.all_gather(seconds_since_start()))
        machine = describe_machine(config, context, ready)
        is_another_s = bool(other) and experiment.is_synthetic
        has_data = not is_another_s and context.from_root(partial(exists, experiment.observed))
        plan = make_plan(str(path), experiment, machine, has_data)
        if plan.memory.chosen is not None:
            watch = Stopwatch(experiment, context)
            machine = describe_machine(config, context, ready, watch.warm_up())
            plan = make_plan(str(path), experiment, machine, has_data, measure_speed(watch))
        if other:
            plan = replace(plan, findings=(*plan.findings, _another_run(directory, other)))
        if context.is_root:
            write_plan(plan, sys.stdout, quiet)
    errors = [finding for finding in plan.findings if finding.severity == "error"]
    if errors:
        raise InputError(errors[0].where, errors[0].found, errors[0].remedy)


def _another_run(directory: RunDirectory, other: str) -> Finding:
    return Finding(
        "note",
        f"output.directory: {directory.path}",
        f"the run in this directory has other values: {other}",
        "To run what is planned here, choose another directory with --output.",
    )


def _check_memory(experiment: Experiment, context: Context) -> None:
    """Raise `InputError` on all ranks where memory cannot suffice, before anything is simulated."""
    model = experiment.initial.as_tensors(context.device)
    simulator = experiment.simulator(experiment.initial)
    fit_ranks(simulator, model, experiment.survey, experiment.config, context)


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
    like = experiment.initial.as_tensors(context.device).any
    log.info("Preparing the wave engine (half a minute the first time on a machine)")
    mine = 0 if context.is_root else 1 if context.local_rank == 0 else 2
    for turn in range(3):
        if turn == mine:
            warm_up(wave.engine, wave.order, like)
        context.barrier()
