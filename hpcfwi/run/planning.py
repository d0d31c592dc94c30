"""`hpcfwi plan`: what a run would take here, found on all ranks and written by one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from hpcfwi.config import Config, load_config
from hpcfwi.errors import InputError
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.memory import weigh_upkeep
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.stages import make_stages
from hpcfwi.parallel.context import Context
from hpcfwi.plan.checks import Finding
from hpcfwi.plan.data import check_meetings, meet_data
from hpcfwi.plan.machine import describe_machine, seconds_since_start
from hpcfwi.plan.plan import Plan, make_plan
from hpcfwi.plan.speed import BUDGET, LONGEST, Stopwatch, measure_speed
from hpcfwi.plan.text import write_plans
from hpcfwi.registry import NETWORKS
from hpcfwi.report.log import start_log
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.observation import check_observed, open_observed
from hpcfwi.system import exists


def plan_job(
    path: Path,
    settings: Sequence[str],
    context: Context,
    quiet: bool = False,
    migrates: bool = False,
    quick: bool = False,
) -> None:
    """Check a config, measure, and write the plan to stdout; collective, writes no file.

    migrates: whether of the section [migration] in place of [inversion]; quick: whether no times
    are measured.

    Raises `InputError` on all ranks for what a run would refuse, and, after the plan was written,
    where it has found an error.
    """
    with start_log(None, context.rank, quiet=True):
        config = context.from_root(lambda: load_config(path, settings, migrates))
        seen, notes = _leave_out_own(config)
        experiment = prepare(seen, context)
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
            # The first simulates the observed data for all
            there = has_data or stage.number > 0
            budget = 0.0 if quick else min(BUDGET, LONGEST / len(stages))
            plans.append(_plan_stage(name, stage.experiment, ready, there, budget, context))
        fitting = [stage for stage in stages if plans[stage.number].memory.chosen is not None]
        with open_observed(experiment, context) if has_data else nullcontext() as reader:
            meetings = meet_data(experiment, fitting, reader, context)
        found = check_meetings(meetings, config.survey.file or "survey")
        for meeting, new in zip(meetings, found, strict=True):
            first = meeting.stages[0].number
            plans[first] = replace(plans[first], findings=(*plans[first].findings, *new))
            for stage in meeting.stages:
                plan = plans[stage.number]
                plans[stage.number] = replace(plan, comparison=meeting.comparison)
        if other:
            note = Finding(
                "note",
                f"output.directory: {directory.path}",
                f"the run in this directory has other values: {other}",
                "To run what is planned here, choose another directory with --output.",
            )
            notes.append(note)
        plans[0] = replace(plans[0], findings=(*plans[0].findings, *notes))
        if context.is_root:
            write_plans(plans, sys.stdout, quiet)
    errors = [f for plan in plans for f in plan.findings if f.severity == "error"]
    if errors:
        raise InputError(errors[0].where, errors[0].found, errors[0].remedy)


def _leave_out_own(config: Config) -> tuple[Config, list[Finding]]:
    """A config without a network of the user's own, which is not imported, and a note of that."""
    network = config.model.network
    if network is None or network.kind in NETWORKS:
        return config, []
    note = Finding(
        "note",
        "model.network.kind",
        f'found "{network.kind}", which is not imported to make a plan: this is the plan of the '
        "same inversion without a network",
        "A run takes the memory and the time of the network besides.",
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
    """The plan of a stage, with times where its memory suffices; collective.

    budget: seconds to measure these with, 0 for none.
    """
    upkeep = weigh_upkeep(experiment, context.size, rank=0)
    machine = describe_machine(experiment, context, ready)
    seen = experiment.seen_by_waves()
    # By one rank, as it looks at all shots; what the others have is gathered already
    make = partial(make_plan, name, seen, upkeep)
    plan = context.from_root(partial(make, machine, has_data))
    if plan.memory.chosen is None or not budget:
        return plan
    watch = Stopwatch(seen, context)
    machine = describe_machine(experiment, context, ready, watch.warm_up())
    speed = measure_speed(watch, budget)
    return context.from_root(partial(make, machine, has_data, speed))
