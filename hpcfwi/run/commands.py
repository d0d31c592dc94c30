"""The commands `check`, `plan` and `show --report`.

`check` compares the observed data with those of the starting model; a run does the same before its
first epoch. `plan` estimates the memory and the time of a run on all ranks, and one rank writes the
plan. `show --report` makes a page about a run from its directory.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.config import Config, load_config
from hpcfwi.errors import Finding, InputError, WriteFailure, refuse
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.memory import estimate_overhead
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.shot_qc import View, choose_drawn, describe_fit
from hpcfwi.inversion.stages import Stage, make_stages
from hpcfwi.model import PARAMETERS
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
from hpcfwi.report.page import make_page, read_metrics
from hpcfwi.run.crews import run_in_crews
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.records import check_fit, read_fit, show
from hpcfwi.run.session import check_observed, open_observed
from hpcfwi.system import check_regular, exists, is_there, written_whole

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
    load = cache(partial(load_config, path, settings, migrates))
    run_in_crews(load, context, partial(_check, load, path, quiet), needs_crews=False)


def _check(load: Callable[[], Config], path: Path, quiet: bool, context: Context) -> None:
    with start_log(None, context.rank, quiet=True):
        config = context.from_root(load)
        experiment = prepare(config, context)
        directory = RunDirectory(Path(config.output.directory))
        context.from_root(lambda: directory.check(config))
        check_observed(experiment, context)
        compared = look_at_data(experiment, make_stages(experiment, context), context)
        findings = _list_findings(compared)

        def tell() -> None:
            keep_checked(directory, compared)
            write_findings(str(path), findings, sys.stdout, quiet)
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
    with _refusing_unwritable(directory.checked), written_whole(directory.checked) as file:
        file.write(json.dumps(found, indent=1).encode())


@contextmanager
def _refusing_unwritable(path: Path) -> Iterator[None]:
    """Raise `InputError` if a file of the run directory, or the directory, cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, WriteFailure) as failure:
        reason = failure.reason if isinstance(failure, WriteFailure) else failure.strerror
        raise InputError(
            str(path),
            f"cannot be written ({reason})",
            "Choose a directory to which you may write, with --output or output.directory.",
        ) from failure


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
    path = directory.figure("check", first.number + 1 if compared.label else 0)

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
    with _refusing_unwritable(path):
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
    load = cache(partial(load_config, path, settings, migrates))
    run_in_crews(load, context, partial(_plan, load, path, quiet, quick), needs_crews=False)


def _plan(
    load: Callable[[], Config], path: Path, quiet: bool, quick: bool, context: Context
) -> None:
    with start_log(None, context.rank, quiet=True):
        config = context.from_root(load)
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


# Titles of figures, in the order of the page, by the beginning of the file name; of several epochs
# only the last one is shown.
TITLES = {
    "image": "Image of the migration",
    "epoch_": "Last epoch with a figure",
    "loss": "Misfit and model error",
    "profiles": "Profiles through the models at the end of the last stage",
    "traces": "Observed and simulated traces at the end of the last stage",
    "fit": "Data fit at the end",
    "resolution": "Resolution",
    "check": "Observed data and data of the starting model",
    "wavelet": "Wavelet of the survey and the last estimated wavelet, if any",
    "observed_data": "Observed data",
}
# Figures that are shown for every stage, not only for the last stage that has them.
OF_EACH = ("fit", "check")


def write_report(path: Path, pdf: bool = False) -> Path:
    """Draw the figures of a run again, write report.html to its directory, and return the path.

    pdf: as in `show`.

    Raises `InputError` as `show` does, and if the page cannot be written.
    """
    show(path, pdf)
    directory = RunDirectory(path)
    figures = []
    for beginning, title in TITLES.items():
        # Numbers in file names have no leading zeros, so that longer names come later
        there = sorted(path.glob(f"{beginning}*.png"), key=lambda file: (len(file.name), file.name))
        for file in there if beginning in OF_EACH else there[-1:]:
            stage = file.stem.removeprefix(beginning).strip("_")
            full_title = f"{title}, stage {stage}" if stage and beginning in OF_EACH else title
            figures.append((full_title, file.read_bytes()))
    history = read_metrics(directory.metrics) if directory.metrics.exists() else []
    config = directory.config.read_text(encoding="utf-8")
    first, *_ = load_config(path).changing
    unit = PARAMETERS[first].unit
    page = make_page(path.resolve().name, history, unit, config, figures, _read_findings(directory))
    report = path / "report.html"
    try:
        with written_whole(report) as whole:
            whole.write(page.encode())
    except WriteFailure as failure:
        raise InputError(
            str(report),
            f"cannot be written ({failure.reason})",
            "Get permission to write in the run directory, or free space on its disk.",
        ) from failure
    return report


def _read_findings(directory: RunDirectory) -> list[tuple[str, list[str], list[str]]]:
    """Return the results of `check` and of the fits after stages: titles, lines and warnings."""
    findings = _read_checked(directory.checked) if exists(directory.checked) else []
    stages = load_config(directory.path).stages()
    for number, (name, _) in enumerate(stages):
        if exists(directory.ending(number)):
            fit, epoch = read_fit(directory.ending(number))
            title = "Data fit" + (f" of stage {name}" if len(stages) > 1 else "")
            findings.append((title, [describe_fit(fit)], [*map(str, check_fit(fit, epoch))]))
    return findings


def _read_checked(path: Path) -> list[tuple[str, list[str], list[str]]]:
    """Return the results of `check` for the data of each group of stages."""
    title = "Observed data and data of the starting model"
    try:
        check_regular(path)
        return [
            (
                f"{title}, {part['label']}" if part["label"] else title,
                [*map(str, part["lines"])],
                [*map(str, part["findings"])],
            )
            for part in json.loads(path.read_bytes())
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            str(path),
            f"what was found of the data cannot be read ({error})",
            "Remove the file: the page is made without, and `hpcfwi check` writes it again.",
        ) from error
