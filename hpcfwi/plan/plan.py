"""A plan: what an experiment takes on a machine of some speed.

A pure function of these; `run.planning` finds them, and `text` writes the plan. Each part is in a
module of its own, and what may be wrong is found in `checks`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.memory import Upkeep
from hpcfwi.operators.batching import largest_task
from hpcfwi.plan.checks import Finding, check_experiment, check_room, check_sharing, check_steps
from hpcfwi.plan.comparison import Comparison
from hpcfwi.plan.machine import Machine
from hpcfwi.plan.memory import Memory, weigh_memory
from hpcfwi.plan.resolution import Resolution, find_resolution
from hpcfwi.plan.sharing import Sharing, share_work
from hpcfwi.plan.speed import Speed
from hpcfwi.plan.timing import Reading, Timing, estimate_reading, estimate_timing
from hpcfwi.plan.work import Work, count_work


@dataclass(frozen=True)
class Plan:
    """What a run will take.

    name: of the input file; timing: None where nothing could be measured; comparison: of the data
    with those of the starting model, as the stage has both; None where nothing could be
    simulated.
    """

    name: str
    findings: tuple[Finding, ...]
    resolution: Resolution
    sharing: Sharing
    work: Work
    memory: Memory
    timing: Timing | None
    reading: Reading
    comparison: Comparison | None = None


def make_plan(
    name: str,
    experiment: Experiment,
    upkeep: Upkeep,
    machine: Machine,
    has_data: bool,
    speed: Speed | None = None,
) -> Plan:
    """The plan of an experiment; without times where the speed is not known.

    experiment: with its models on the grid of its waves; upkeep: of rank 0; has_data: whether the
    observed data need not be simulated. Raises `InputError` where the engine has no such history.
    """
    model = experiment.initial.as_tensors(machine.device)
    simulator, survey = experiment.compared(), experiment.survey
    task = largest_task(simulator, model, survey, experiment.costs_of(survey, simulator))
    sharing = share_work(experiment, machine)
    memory = weigh_memory(experiment, task, upkeep, sharing, machine)
    work, timing = count_work(experiment), None
    if speed is not None:
        timing = estimate_timing(experiment, task, sharing, work, machine, speed, has_data)
    findings = [
        *check_room(memory),
        *check_experiment(experiment, task.problem.dt),
        *check_steps(experiment, task.substeps),
        *check_sharing(sharing),
    ]
    return Plan(
        name,
        tuple(findings),
        find_resolution(experiment, task),
        sharing,
        work,
        memory,
        timing,
        estimate_reading(experiment, timing),
    )
