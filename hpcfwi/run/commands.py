"""The commands `check`, `plan` and `resolve`, and `open_input`, which do not change a run.

`check` compares the observed data with those of the starting model; a run does the same before its
first epoch. `plan` estimates the memory and the time of a run on all ranks, and one rank writes the
plan. `resolve` computes the resolution of an inversion, by point spread functions or a
checkerboard. `open_input` opens an input file for a program: its shots as an operator, its models
and its data.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hpcfwi.config import Config, load_config
from hpcfwi.errors import Finding, InputError, refuse, refusing
from hpcfwi.inversion import resolution
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.memory import estimate_overhead, estimate_resolution
from hpcfwi.inversion.preparation import load_onto, prepare
from hpcfwi.inversion.shot_qc import read_observed
from hpcfwi.inversion.stages import make_stages
from hpcfwi.model import PARAMETERS, Model
from hpcfwi.operators.shots import Shots
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.watch import StopRequest
from hpcfwi.plan.checks import check_data
from hpcfwi.plan.comparison import compare_data
from hpcfwi.plan.estimate import Machine, describe_machine, seconds_since_start
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
from hpcfwi.report.panels import ResolutionTest
from hpcfwi.report.text import start_log
from hpcfwi.run.directory import OTHER_DIRECTORY, RunDirectory
from hpcfwi.run.job import (
    compare_all_data,
    draw_comparison,
    run_in_crews,
    watch_preparation,
    write_checked,
)
from hpcfwi.run.records import write_resolution
from hpcfwi.run.session import check_observed, open_observed
from hpcfwi.system import exists, is_there

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
    work = partial(_check, path, quiet)
    run_in_crews(path, settings, context, work, migrates, needs_crews=False)


def _check(path: Path, quiet: bool, config: Config, context: Context) -> None:
    with start_log(None, context.rank, quiet=True):
        experiment = prepare(config, context)
        directory = RunDirectory(Path(config.output.directory))
        context.from_root(lambda: directory.check(config))
        context.from_root(directory.check_writable)
        compared = compare_all_data(experiment, make_stages(experiment, context), context)
        findings = [finding for one in compared for finding in one.findings]

        def tell() -> None:
            # The findings come first, because the disk may be full
            write_findings(str(path), findings, sys.stdout, quiet)
            write_checked(directory, compared)
            for one in compared:
                figure = draw_comparison(one, directory)
                if not quiet:
                    lines = [*one.describe(), f"figure: {figure}"]
                    head = f"{one.label}:\n" if one.label else ""
                    sys.stdout.write(head + "".join(f"  {line}\n" for line in lines))
                    sys.stdout.flush()

        context.from_root(tell)
    refuse(findings)


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
    work = partial(_plan, path, quiet, quick)
    run_in_crews(path, settings, context, work, migrates, needs_crews=False)


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
        # Before any of them loads the wave engine, whose memory is counted on its own
        machines = [describe_machine(stage.experiment, context, ready) for stage in stages]
        plans = []
        for stage, machine in zip(stages, machines, strict=True):
            name = f"{path}, stage {stage.name}" if len(stages) > 1 else str(path)
            # Only the first stage may have to simulate the observed data.
            there = has_data or stage.number > 0
            budget = 0.0 if quick else min(BUDGET, LONGEST / len(stages))
            plans.append(_plan_stage(name, stage.experiment, machine, there, budget, context))
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
    machine: Machine,
    has_data: bool,
    budget: float,
    context: Context,
) -> Plan:
    """Return the plan of a stage, with times if its memory suffices; collective.

    budget: time for measurements, s; 0 for no measurements.
    """
    overhead = estimate_overhead(experiment, context.size, rank=0)
    seen = experiment.seen_by_waves()
    # One rank does this, because it takes the memory of all shots. The values of the other ranks
    # are already gathered.
    make = partial(make_plan, name, seen, overhead)
    plan = context.from_root(partial(make, machine, has_data))
    if plan.memory.chosen is None or not budget:
        return plan
    watch = Stopwatch(seen, context)
    machine = replace(machine, compiling=watch.warm_up())
    speed = measure_speed(watch, budget)
    return context.from_root(partial(make, machine, has_data, speed))


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

        They are corrected for point sources if the input says so, and limited to the band of the
        stage; traces that do not count are zero. Every rank gets all of them. Collective.

        Raises
        ------
        InputError
            If the data are not simulated yet, or were made from another model or survey.
        """
        self.context.from_root(self._check_there)
        survey = self.experiment.survey
        with open_observed(self.whole, self.context) as reader:
            traces = read_observed(self.experiment, reader, np.arange(survey.n_shots))
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


def resolve_job(
    path: Path,
    settings: Sequence[str],
    context: Context,
    *,
    model: Path | None = None,
    points: float | None = None,
    checkerboard: float | None = None,
    stage: int | None = None,
    quiet: bool = False,
) -> None:
    """Apply J^T J to a perturbation, and write and draw the response; collective.

    path: the input file, or a run directory, whose result is then the default model; model: a file
    with the model around which the waves are linearized; points: the distance between points, m;
    one wavelength if neither it nor checkerboard is given; checkerboard: the size of the cells of a
    checkerboard, m, which replaces points; stage: the number of the stage, from 1, whose data are
    used; the last one if not given.

    Raises `InputError` on all ranks for all errors in the input that a run would report, for sizes
    that are not possible on the grid, and if the result cannot be written.
    """
    if points is not None and checkerboard is not None:
        raise InputError(
            "command line", "--points and --checkerboard exclude each other", "Give only one."
        )
    with StopRequest(context) as stop, start_log(None, context.rank, quiet):
        context.heartbeat.begin("the resolution")
        with watch_preparation(context, stop, "the beginning"):
            job = open_input(path, context, settings, stage)
            directory = RunDirectory(Path(job.experiment.config.output.directory))
            context.from_root(lambda: directory.check(job.whole.config))
            context.from_root(directory.check_writable)
            around, label = _find_reference(job, path, model)
            found = _resolve(job, around, label, points, checkerboard)
            context.from_root(lambda: _save_resolution(directory, found, job))


def _find_reference(job: Opened, path: Path, model: Path | None) -> tuple[Model, str]:
    """Return the model around which waves are linearized, on the inversion's grid, and its name."""
    initial = job.experiment.initial
    if model is None and path.is_dir():
        model = RunDirectory(path).model
        if not job.context.from_root(partial(exists, model)):
            raise InputError(
                str(model),
                "the run has no result yet",
                "Continue the run, or name the input file to use the starting model.",
            )
    if model is None:
        return initial, "the starting model"
    names = [*initial.arrays]
    return load_onto(initial.grid, str(model), names, "--model", job.context), model.name


def _resolve(
    job: Opened, around: Model, label: str, points: float | None, checkerboard: float | None
) -> ResolutionTest:
    """Perturb a model, simulate, and measure the response; collective."""
    experiment = job.experiment
    grid, free = around.grid, ~experiment.fixed
    (name, *_) = experiment.config.inversion.parameters
    parameter, values = PARAMETERS[name], around[name].astype(np.float64)
    # Parameters that may have any sign may also be zero everywhere.
    sizes = values if parameter.lowest >= 0.0 else np.full_like(values, parameter.scale)
    if not free.any():
        raise InputError(
            "inversion.fixed", "no cell may change, so none can be resolved", "Fix fewer cells."
        )
    slowest = experiment.equation.slowest(around.arrays).astype(np.float64)
    wavelength = float(np.median(slowest[free])) / experiment.survey.spectrum.peak
    if checkerboard is not None:
        size = checkerboard
        resolution.check_size(size, grid, "--checkerboard")
        perturbation = resolution.perturb_checkerboard(grid, sizes, free, size)
        what = f"a checkerboard with cells of {size:g} m"
    else:
        size = resolution.APART * wavelength if points is None else points
        if points is not None:
            resolution.check_size(size, grid, "--points")
        places = resolution.place_points(grid, ~free, size)
        perturbation = resolution.perturb_points(places, sizes, free)
        what = f"{np.count_nonzero(perturbation)} points, {size:.4g} m apart"
    log.info(
        "Resolution of %s in %s for %s: %d shots, wavelength %.0f m at %.3g Hz",
        name,
        label,
        what,
        experiment.survey.n_shots,
        wavelength,
        experiment.survey.spectrum.peak,
    )
    change = around.map(np.zeros_like)
    change.arrays[name][...] = perturbation
    shots = experiment.shots(job.context, estimate_resolution(experiment, job.context))
    found = shots.linearize(job.see(around)).normal(job.see(change))
    if experiment.coarsening is not None:
        found = experiment.coarsening.transpose(found)
    response = np.where(free, found[name].cpu().numpy().astype(np.float64), 0.0)
    at = None
    if checkerboard is not None:
        measures = resolution.measure_checkerboard(response, perturbation, grid, free, size)
    else:
        measures = resolution.measure_points(places, response, perturbation, grid, free)
        along = [grid.coordinates(axis)[place] for axis, place in enumerate(places)]
        at = np.stack(np.meshgrid(*along, indexing="ij"), axis=-1)
    return ResolutionTest(grid, size, label, name, values, perturbation, response, at, measures)


def _save_resolution(directory: RunDirectory, found: ResolutionTest, job: Opened) -> None:
    """Log the result, and write it and its figure; rank 0 only."""
    from hpcfwi.report import style
    from hpcfwi.report.models import resolution_figure

    log.info("%s", resolution.describe_measures(found.measures, found.grid.axes))
    with refusing(str(directory.path), "cannot be written", OTHER_DIRECTORY):
        peak = job.experiment.survey.spectrum.peak
        write_resolution(directory.resolution, found, job.stage, peak)
        style.save(resolution_figure(found), directory.figure("resolution"))
    log.info("Saved in %s, drawn in %s", directory.resolution, directory.figure("resolution"))
