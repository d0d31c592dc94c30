"""The commands `check` and `plan`.

`check` compares the observed data with those of the starting model; a run does the same before its
first epoch. `plan` estimates the memory and the time of a run on all ranks, and one rank writes the
plan.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.config import Config, load_config
from hpcfwi.errors import Finding, InputError, refuse
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.memory import estimate_overhead
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.shot_qc import View, choose_drawn
from hpcfwi.inversion.stages import Stage, make_stages
from hpcfwi.parallel.context import Context
from hpcfwi.plan.checks import check_data, check_experiment
from hpcfwi.plan.comparison import DataComparison, compare_data
from hpcfwi.plan.estimate import describe_machine, seconds_since_start
from hpcfwi.plan.plan import (
    BUDGET,
    LONGEST,
    Plan,
    Stopwatch,
    make_plan,
    measure_speed,
    write_findings,
    write_plans,
)
from hpcfwi.registry import NETWORKS
from hpcfwi.report.log import start_log
from hpcfwi.run.crews import run_in_crews
from hpcfwi.run.directory import OTHER_DIRECTORY, RunDirectory, refusing_unwritable
from hpcfwi.run.session import check_observed, open_observed
from hpcfwi.system import exists, is_there, written_whole

log = logging.getLogger("hpcfwi")


def check_job(
    path: Path,
    settings: Sequence[str],
    context: Context,
    quiet: bool = False,
    migrates: bool = False,
) -> None:
    """Compare the data, write the findings to stdout, and draw check.png; collective.

    migrates: True if the section [migration] replaces [inversion].

    Raises `InputError` on all ranks for all errors in the input that a run would report.
    """
    load = partial(load_config, path, settings, migrates)
    run_in_crews(load, context, partial(_check, path, quiet), needs_crews=False)


def _check(path: Path, quiet: bool, config: Config, context: Context) -> None:
    with start_log(None, context.rank, quiet=True):
        experiment = prepare(config, context)
        directory = RunDirectory(Path(config.output.directory))
        context.from_root(lambda: directory.check(config))
        check_observed(experiment, context)
        compared = look_at_data(experiment, make_stages(experiment, context), context)
        findings = _list_findings(compared)

        def tell() -> None:
            # The findings come first, because the directory may not be writable
            write_findings(str(path), findings, sys.stdout, quiet)
            keep_checked(directory, compared)
            for one in compared:
                figure = draw(one, directory)
                if not quiet:
                    _write_comparison(one, figure)

        context.from_root(tell)
    refuse(findings)


def look_before_simulating(experiments: Sequence[Experiment], device: torch.device) -> None:
    """Log the warnings and errors of a plan about models, survey and scheme; rank 0 only."""
    told: list[Finding] = []
    for experiment in experiments:
        seen = experiment.seen_by_waves()
        model, shot = seen.initial.as_tensors(device), seen.survey.select(np.arange(1))
        dt = seen.make_simulator().set_up(model, shot, window=None).problem.dt
        for finding in check_experiment(seen, dt):
            if finding.severity != "note" and finding not in told:
                log.warning("%s: %s. %s", finding.where, finding.found, finding.remedy)
                told.append(finding)


def look_before_inverting(
    experiment: Experiment, stages: Sequence[Stage], directory: RunDirectory, context: Context
) -> None:
    """Log the comparison of the data of all stages, and draw data with findings; collective.

    Raises `InputError` on all ranks if there is nothing to invert.
    """
    compared = look_at_data(experiment, stages, context)
    for one in compared:
        for line in one.describe():
            log.info("Data%s: %s", f", {one.label}" if one.label else "", line)
    refuse(_list_findings(compared))
    context.from_root(partial(keep_checked, directory, compared))

    def warn(one: DataComparison) -> None:
        for finding in one.findings:
            log.warning("%s: %s. %s", finding.where, finding.found, finding.remedy)
        figure = draw(one, directory)
        log.warning("Observed data and data of the starting model: %s", figure)

    for one in compared:
        if one.findings:
            context.from_root(partial(warn, one))


def _list_findings(compared: Sequence[DataComparison]) -> list[Finding]:
    return [finding for one in compared for finding in one.findings]


def keep_checked(directory: RunDirectory, compared: Sequence[DataComparison]) -> None:
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
    with refusing_unwritable(path, OTHER_DIRECTORY), written_whole(path) as file:
        file.write(json.dumps(found, indent=1).encode())


def look_at_data(
    experiment: Experiment, stages: Sequence[Stage], context: Context
) -> list[DataComparison]:
    """Return the comparisons of the data of all stages, with their findings; collective."""
    there = context.from_root(partial(is_there, experiment.observed))
    with open_observed(experiment, context) if there else nullcontext() as reader:
        compared = compare_data(experiment, stages, reader, context)
    return check_data(compared, experiment.config.survey.file or "survey")


def _write_comparison(one: DataComparison, figure: Path) -> None:
    """Write a comparison in lines, under its label."""
    lines = [*one.describe(), f"figure: {figure}"]
    head = [f"{one.label}:"] if one.label else []
    sys.stdout.write("".join(f"{line}\n" for line in [*head, *(f"  {line}" for line in lines)]))
    sys.stdout.flush()


def draw(compared: DataComparison, directory: RunDirectory) -> Path:
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
    with refusing_unwritable(path, OTHER_DIRECTORY):
        style.save(figure, path)
    return path


def plan_job(
    path: Path,
    settings: Sequence[str],
    context: Context,
    quiet: bool = False,
    migrates: bool = False,
    quick: bool = False,
) -> None:
    """Check a config, measure, and write the plan to stdout; collective, writes no file.

    migrates: True if the section [migration] replaces [inversion]; quick: True if no times are
    measured.

    Raises `InputError` on all ranks for all errors in the input that a run would report, and for
    errors in the plan, after it is written.
    """
    load = partial(load_config, path, settings, migrates)
    run_in_crews(load, context, partial(_plan, path, quiet, quick), needs_crews=False)


def _plan(path: Path, quiet: bool, quick: bool, config: Config, context: Context) -> None:
    with start_log(None, context.rank, quiet=True):
        seen, notes = _leave_out_own(config)
        try:
            experiment = prepare(seen, context)
        except InputError as error:
            if context.is_root and error.findings:
                write_findings(str(path), error.findings, sys.stdout, quiet)
            raise
        directory = RunDirectory(Path(config.output.directory))
        stages = make_stages(experiment, context)
        other = context.from_root(lambda: directory.other_values(config))
        if not other:
            check_observed(experiment, context)
        ready = max(context.all_gather(seconds_since_start()))
        is_another_s = bool(other) and experiment.is_synthetic
        has_data = not is_another_s and context.from_root(partial(exists, experiment.observed))
        plans = []
        for stage in stages:
            name = f"{path}, stage {stage.name}" if len(stages) > 1 else str(path)
            # Only the first stage may have to simulate the observed data.
            there = has_data or stage.number > 0
            budget = 0.0 if quick else min(BUDGET, LONGEST / len(stages))
            plans.append(_plan_stage(name, stage.experiment, ready, there, budget, context))
        fitting = [stage for stage in stages if plans[stage.number].memory.chosen is not None]
        with open_observed(experiment, context) if has_data else nullcontext() as reader:
            compared = compare_data(experiment, fitting, reader, context)
        for one in check_data(compared, config.survey.file or "survey"):
            first = one.stages[0].number
            plans[first] = replace(plans[first], findings=(*plans[first].findings, *one.findings))
            for stage in one.stages:
                plan = plans[stage.number]
                plans[stage.number] = replace(plan, comparison=one.comparison)
        if other:
            note = Finding(
                "note",
                f"output.directory: {directory.path}",
                f"the run in this directory has other values: {other}",
                "To run this plan, choose another directory with --output.",
            )
            notes.append(note)
        plans[0] = replace(plans[0], findings=(*plans[0].findings, *notes))
        if context.is_root:
            write_plans(plans, sys.stdout, quiet)
    refuse(finding for plan in plans for finding in plan.findings)


def _leave_out_own(config: Config) -> tuple[Config, list[Finding]]:
    """Return a config without a user's network, which is not imported, and a note about it."""
    network = config.model.network
    if network is None or network.kind in NETWORKS:
        return config, []
    note = Finding(
        "note",
        "model.network.kind",
        f'found "{network.kind}", which is not imported for a plan: this plan is for the same '
        "inversion without a network",
        "A run also needs the memory and the time of the network.",
    )
    model = config.model.model_copy(update={"network": None})
    return config.model_copy(update={"model": model}), [note]


def _plan_stage(
    name: str,
    experiment: Experiment,
    ready: float,
    has_data: bool,
    budget: float,
    context: Context,
) -> Plan:
    """Return the plan of a stage, with times if its memory suffices; collective.

    budget: time for measurements, s; 0 for no measurements.
    """
    overhead = estimate_overhead(experiment, context.size, rank=0)
    machine = describe_machine(experiment, context, ready)
    seen = experiment.seen_by_waves()
    # One rank does this, because it takes the memory of all shots. The values of the other ranks
    # are already gathered.
    make = partial(make_plan, name, seen, overhead)
    plan = context.from_root(partial(make, machine, has_data))
    if plan.memory.chosen is None or not budget:
        return plan
    watch = Stopwatch(seen, context)
    machine = describe_machine(experiment, context, ready, watch.warm_up())
    speed = measure_speed(watch, budget)
    return context.from_root(partial(make, machine, has_data, speed))
