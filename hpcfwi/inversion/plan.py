"""What a run will take, before it runs: an experiment, a machine and its speed make a plan.

`make_plan` is a pure function of these; `plan_job` finds them, on all ranks, and has the plan
written. What may be wrong is found in `checks`, the speed is measured in `speed`, the text is
`report.plan`'s.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf, prod
from pathlib import Path

import numpy as np
import torch

from hpcfwi.config import load_config
from hpcfwi.errors import InputError
from hpcfwi.host import exists
from hpcfwi.inversion.budget import choose, memory_of_rank
from hpcfwi.inversion.checks import (
    check_experiment,
    check_memory,
    check_sharing,
    check_steps,
    frequency_below,
    slowest_velocity,
)
from hpcfwi.inversion.directory import RunDirectory
from hpcfwi.inversion.experiment import Experiment, prepare
from hpcfwi.inversion.observation import check_observed
from hpcfwi.inversion.speed import Speed, Stopwatch, measure_speed
from hpcfwi.parallel.context import Context
from hpcfwi.report.log import start_log
from hpcfwi.report.plan import (
    Band,
    Choice,
    Finding,
    Memory,
    Plan,
    Reading,
    Resolution,
    Sharing,
    Timing,
    size,
    write_plan,
)
from hpcfwi.wave import history as histories
from hpcfwi.wave import stencil
from hpcfwi.wave.acoustic import wave_speed
from hpcfwi.wave.dispersion import phase_velocity_error
from hpcfwi.wave.history import Auto, History, Recompute, describe
from hpcfwi.wave.memory import resident_bytes
from hpcfwi.wave.task import Task
from hpcfwi.wave.wavelet import highest_frequency, peak_frequency

# Bytes of a sample of a trace while it is compared, beyond the traces that an engine counts.
COMPARED = 8
# Bytes of a cell: models (initial, true, current, first, best), masks, the optimiser's state, the
# gradient, sums in float64 and their means.
CELL = 5 * 4 + 2 + 8 + 4 + 3 * 8 + 3 * 4
# Bytes of a cell for each shot at once: its gradient and illuminations.
SHOT_CELL = 3 * 4


@dataclass(frozen=True)
class Machine:
    """What the ranks of this launch have; by rank where there are several.

    memory: bytes that the simulations of a rank may take; program: what it has before any data;
    ready: seconds from the start to the experiment; compiling: to prepare the engine.
    """

    hosts: tuple[str, ...]
    threads: tuple[int, ...]
    device: torch.device
    memory: int
    program: int
    ready: float
    compiling: float


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
        machine = describe_machine(experiment, context, ready)
        is_another_s = bool(other) and experiment.is_synthetic
        has_data = not is_another_s and context.from_root(partial(exists, experiment.observed))
        plan = make_plan(str(path), experiment, machine, has_data)
        if plan.memory.chosen is not None:
            watch = Stopwatch(experiment, context)
            machine = describe_machine(experiment, context, ready, watch.warm_up())
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


def describe_machine(
    experiment: Experiment, context: Context, ready: float, compiling: float = 0.0
) -> Machine:
    """What the ranks have now; collective. The times are those of a `Machine`."""
    return Machine(
        tuple(context.all_gather(context.host)),
        tuple(context.all_gather(context.threads)),
        context.device,
        min(context.all_gather(memory_of_rank(experiment.config.wave, context))),
        max(context.all_gather(resident_bytes())),
        ready,
        compiling,
    )


def make_plan(
    name: str,
    experiment: Experiment,
    machine: Machine,
    has_data: bool,
    speed: Speed | None = None,
) -> Plan:
    """The plan of an experiment; without times where the speed is not known.

    has_data: whether the observed data need not be simulated.
    """
    task = _task(experiment, machine.device)
    sharing = _sharing(experiment, machine)
    memory = _memory(experiment, task, sharing, machine)
    timing = None
    if speed is not None:
        timing = _timing(experiment, task, sharing, machine, speed, has_data)
    findings = [
        *check_memory(memory, machine.memory, machine.device),
        *check_experiment(experiment, task.problem.dt),
        *check_steps(experiment, task.substeps),
        *check_sharing(sharing),
    ]
    return Plan(
        name,
        tuple(findings),
        _resolution(experiment, task),
        sharing,
        memory,
        timing,
        _reading(experiment, timing),
    )


def _task(experiment: Experiment, device: torch.device) -> Task:
    """One shot as the engine sees it, that with the largest window."""
    model, survey = experiment.initial, experiment.survey
    physics = experiment.physics(model)
    windows = list(physics.reach.find_windows(model.grid, survey))
    largest = int(np.argmax([window.size for window in windows]))
    shot = survey.select(np.array([largest]))
    return physics.set_up(model.as_tensors(device), shot, windows[largest])


def _footprint(task: Task, history: History, shots: int) -> int:
    """Bytes that the engine takes for so many shots at once, all like the one of the task."""
    sources, receivers = (
        np.repeat(points, shots, axis=0)
        for points in (task.problem.sources, task.problem.receivers)
    )
    problem = replace(task.problem, sources=sources, receivers=receivers)
    return replace(task, problem=problem).footprint(history)


def _choices(task: Task) -> list[History]:
    """All that the engine offers, the fastest first, and what was asked for."""
    asked = task.asked
    if isinstance(asked, Auto):
        return list(histories.candidates(replace(asked, kind=None), task.engine.HISTORIES))
    offered = list(
        histories.candidates(Auto(asked.interval, asked.frequency), task.engine.HISTORIES)
    )
    return offered if asked in offered else [asked, *offered]


def _resolution(experiment: Experiment, task: Task) -> Resolution:
    model, survey, problem = experiment.initial, experiment.survey, task.problem
    fastest_in_model = float(wave_speed(model.arrays).max())
    fastest = max(fastest_in_model, problem.max_velocity)
    slowest = slowest_velocity(experiment)
    path = longest_path(experiment)
    bands = []
    for name, frequency in (
        ("peak", peak_frequency(survey.wavelet, survey.dt)),
        ("98 % of the energy up to", frequency_below(survey.wavelet, survey.dt, 0.98)),
        ("highest (1e-4 of the peak)", highest_frequency(survey.wavelet, survey.dt)),
    ):
        h, dt = problem.spacing, problem.dt
        error = phase_velocity_error(problem.order, h, dt, slowest, frequency)
        points = slowest / (frequency * max(h)) if frequency else inf
        delay = path / slowest * (1.0 / (1.0 + error) - 1.0) if error > -1.0 else inf
        bands.append(Band(name, frequency, points, error, delay))
    return Resolution(
        model.grid.shape,
        problem.padded_shape,
        model.grid.spacing,
        survey.dt,
        survey.n_samples,
        stencil.longest_step(problem.order, problem.spacing, fastest),
        task.substeps,
        fastest * problem.dt / min(problem.spacing),
        (slowest, fastest_in_model),
        path,
        tuple(bands),
    )


def longest_path(experiment: Experiment) -> float:
    """How far the slowest waves of a record get: across the model, or until it ends, m."""
    grid, survey = experiment.initial.grid, experiment.survey
    diagonal = float(np.linalg.norm(np.asarray(grid.last) - np.asarray(grid.origin)))
    return min(diagonal, slowest_velocity(experiment) * survey.n_samples * survey.dt)


def _sharing(experiment: Experiment, machine: Machine) -> Sharing:
    section, ranks = experiment.config.inversion, len(machine.threads)
    parts = [len(part) for part in np.array_split(np.arange(section.batch), ranks)]
    rounds, rank = max(
        (ceil(part / threads), -k)
        for k, (part, threads) in enumerate(zip(parts, machine.threads, strict=True))
    )
    return Sharing(
        experiment.survey.n_shots,
        section.batch,
        section.epochs,
        ranks,
        len(set(machine.hosts)),
        machine.threads,
        parts[-rank],
        min(parts[-rank], machine.threads[-rank]),
        rounds,
        _advise(section.batch, experiment.survey.n_shots, sum(machine.threads)),
    )


def _advise(batch: int, shots: int, threads: int) -> str:
    left = batch % threads
    if left == 0:
        return (
            f"The batch fills all {threads} threads in every round; more ranks or threads shorten "
            f"an epoch up to {batch}."
        )
    more, less = batch - left + threads, batch - left
    better = [n for n in (less, more) if 0 < n <= shots]
    if not better:
        return f"The survey's {shots} shots cannot fill {threads} threads: give fewer ranks."
    return (
        f"The last round leaves {threads - left} of {threads} threads idle: a batch of "
        f"{' or '.join(map(str, better))} would fill them."
    )


def _memory(experiment: Experiment, task: Task, sharing: Sharing, machine: Machine) -> Memory:
    asked, histories_at_hand = task.asked, machine.memory
    if isinstance(asked, Auto) and asked.memory is not None:
        histories_at_hand = asked.memory
    reproducible = experiment.config.inversion.reproducible
    chosen, at_once, why = _choose(task, sharing.at_once, histories_at_hand, reproducible)
    counts = tuple(sorted({1, at_once, *(2**k for k in range(1, 4) if 2**k <= sharing.batch)}))
    options = [_fitted(h, task, at_once, histories_at_hand) for h in _choices(task)]
    survey, cells = experiment.survey, prod(experiment.initial.grid.shape)
    traces = survey.n_receivers * survey.n_samples
    # The next epoch's are read while this one's are used.
    held = min(2, sharing.epochs) * sharing.part
    return Memory(
        task.engine.NAME,
        counts,
        tuple(
            Choice(describe(h), tuple(_footprint(task, h, count) for count in counts))
            for h in options
        ),
        None if chosen is None else describe(chosen),
        why,
        0 if chosen is None else _footprint(task, chosen, at_once),
        traces * (4 * held + COMPARED * at_once),
        cells * (CELL + SHOT_CELL * at_once),
        machine.program,
    )


def _choose(
    task: Task, at_once: int, memory: int, reproducible: bool
) -> tuple[History | None, int, str]:
    """What a run keeps, with how many shots at once, and why."""
    asked = task.asked

    def weigh(limit: int) -> tuple[History, int]:
        history = asked
        if isinstance(history, Auto):
            history = replace(task, asked=replace(history, memory=limit)).choose_history()
        return history, _footprint(task, history, 1)

    try:
        chosen, _, most = choose(weigh, [(memory, at_once)], reproducible)
    except InputError as error:
        return None, at_once, error.problem
    shots = min(at_once, most)
    reason = "asked for"
    if isinstance(asked, Auto):
        fastest = next(histories.candidates(asked, task.engine.HISTORIES))
        reason = "the fastest" if chosen == fastest else "the fastest of those that fit"
    return (
        chosen,
        shots,
        f"{describe(chosen)}: {reason}; {shots} shot{'s' * (shots > 1)} at once: "
        f"{size(_footprint(task, chosen, shots))} of {size(memory)} at hand.",
    )


def _fitted(history: History, task: Task, shots: int, memory: int) -> History:
    """Recomputation with as many states as fit."""
    if not isinstance(history, Recompute):
        return history
    kind = Auto(history.interval, history.frequency, kind="recompute")
    try:
        return histories.choose(
            kind, task.engine.HISTORIES, memory, lambda h: _footprint(task, h, shots)
        )
    except MemoryError:
        return history


def _timing(
    experiment: Experiment,
    task: Task,
    sharing: Sharing,
    machine: Machine,
    speed: Speed,
    has_data: bool,
) -> Timing:
    config, survey = experiment.config, experiment.survey
    observe = 0.0
    if experiment.is_synthetic and not has_data:
        part = ceil(survey.n_shots / sharing.ranks)
        observe = ceil(part / min(machine.threads)) * speed.forward
    drawn = ceil(sharing.epochs / config.output.every)
    gradients = (sharing.epochs - drawn) * speed.gradient + drawn * speed.illuminated
    epoch = sharing.rounds * gradients / sharing.epochs
    return Timing(
        machine.ready,
        machine.compiling,
        observe,
        epoch,
        machine.ready + observe + sharing.epochs * epoch,
        2.0 * prod(task.problem.padded_shape) * task.steps * sharing.batch,
        speed.measured,
        survey.n_samples,
    )


def _reading(experiment: Experiment, timing: Timing | None) -> Reading:
    survey, batch = experiment.survey, experiment.config.inversion.batch
    shot = 4 * survey.n_receivers * survey.n_samples
    rate = None if timing is None else batch * shot / timing.epoch
    return Reading(batch * shot, survey.n_shots * shot, rate)


def seconds_since_start() -> float:
    """Since this process began (Linux; elsewhere since its first use of the processor)."""
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return time.process_time()
    # The second field, a name in parentheses, may itself hold spaces: count after it.
    began = int(stat.read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began
