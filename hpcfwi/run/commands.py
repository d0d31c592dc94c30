"""The commands `check`, `plan` and `show --report`.

`check` shows the observed data beside those of the starting model; a run does the same before its
first epoch. `plan` finds on all ranks what a run would take here, and one rank writes it. `show
--report` makes one page of a run, from its directory.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfwi.config import Config, load_config
from hpcfwi.errors import InputError, WriteFailure
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.memory import weigh_upkeep
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.shot_qc import View, describe_fit
from hpcfwi.inversion.stages import Stage, make_stages
from hpcfwi.model import PARAMETERS
from hpcfwi.parallel.context import Context
from hpcfwi.plan.checks import Finding
from hpcfwi.plan.data import Meeting, check_meetings, meet_data
from hpcfwi.plan.estimate import describe_machine, seconds_since_start
from hpcfwi.plan.plan import Plan, make_plan, write_findings, write_plans
from hpcfwi.plan.speed import BUDGET, LONGEST, Stopwatch, measure_speed
from hpcfwi.registry import NETWORKS
from hpcfwi.report.log import start_log
from hpcfwi.report.page import make_page, read_metrics
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
    """Compare, write what was found to stdout, and draw check.png in the run directory; collective.

    migrates: whether for the section [migration] in place of [inversion].

    Raises `InputError` on all ranks for what a run would refuse.
    """
    with start_log(None, context.rank, quiet=True):
        config = context.from_root(lambda: load_config(path, settings, migrates))
        experiment = prepare(config, context)
        directory = RunDirectory(Path(config.output.directory))
        context.from_root(lambda: directory.check(config))
        check_observed(experiment, context)
        met = look_at_data(experiment, make_stages(experiment, context), context)

        def tell() -> None:
            keep_checked(directory, met)
            write_findings(str(path), list(chain(*(found for _, found in met))), sys.stdout, quiet)
            for meeting, _ in met:
                figure = draw(meeting, directory)
                if not quiet:
                    _write_meeting(meeting, figure)

        context.from_root(tell)
    refuse(met)


def look_before_inverting(
    experiment: Experiment, stages: Sequence[Stage], directory: RunDirectory, context: Context
) -> None:
    """Warn in the log of what is wrong with the data, and draw it where anything is; collective.

    The data of all stages. Raises `InputError` on all ranks where there is nothing to invert.
    """
    met = look_at_data(experiment, stages, context)
    for meeting, _ in met:
        for line in meeting.describe():
            log.info("Data%s: %s", f", {meeting.label}" if meeting.label else "", line)
    refuse(met)
    context.from_root(partial(keep_checked, directory, met))

    def warn(meeting: Meeting, findings: list[Finding]) -> None:
        for finding in findings:
            log.warning("%s: %s. %s", finding.where, finding.found, finding.remedy)
        figure = draw(meeting, directory)
        log.warning("What was observed beside what the starting model gives: %s", figure)

    for meeting, findings in met:
        if findings:
            context.from_root(partial(warn, meeting, findings))


def keep_checked(directory: RunDirectory, met: Sequence[tuple[Meeting, list[Finding]]]) -> None:
    """Write what was found of the data, for the report; rank 0 only."""
    found = [
        {
            "label": meeting.label,
            "lines": list(meeting.describe()),
            "findings": list(map(str, findings)),
        }
        for meeting, findings in met
    ]
    with _refusing_unwritable(directory.checked), written_whole(directory.checked) as file:
        file.write(json.dumps(found, indent=1).encode())


@contextmanager
def _refusing_unwritable(path: Path) -> Iterator[None]:
    """Raise `InputError` where a file of the run directory, or that itself, cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, WriteFailure) as failure:
        reason = failure.reason if isinstance(failure, WriteFailure) else failure.strerror
        raise InputError(
            str(path),
            f"cannot be written ({reason})",
            "Choose a directory that you may write, with --output or output.directory.",
        ) from failure


def look_at_data(
    experiment: Experiment, stages: Sequence[Stage], context: Context
) -> list[tuple[Meeting, list[Finding]]]:
    """Return the comparisons of the data of all stages, and their findings; collective."""
    there = context.from_root(partial(is_there, experiment.observed))
    with open_observed(experiment, context) if there else nullcontext() as reader:
        meetings = meet_data(experiment, stages, reader, context)
    findings = check_meetings(meetings, experiment.config.survey.file or "survey")
    return list(zip(meetings, findings, strict=True))


def refuse(met: Iterable[tuple[Meeting, list[Finding]]]) -> None:
    """Raise `InputError` for the first error that was found."""
    for _, findings in met:
        for finding in findings:
            if finding.severity == "error":
                raise InputError(finding.where, finding.found, finding.remedy)


def _write_meeting(meeting: Meeting, figure: Path) -> None:
    """Write a comparison in lines, under its label."""
    lines = [*meeting.describe(), f"figure: {figure}"]
    head = [f"{meeting.label}:"] if meeting.label else []
    sys.stdout.write("".join(f"{line}\n" for line in [*head, *(f"  {line}" for line in lines)]))
    sys.stdout.flush()


def draw(meeting: Meeting, directory: RunDirectory) -> Path:
    """The figure, in the run directory; its path. Rank 0 only."""
    from hpcfwi.report import style
    from hpcfwi.report.fit import comparison_figure

    comparison, first = meeting.comparison, meeting.stages[0]
    experiment = first.experiment
    path = directory.figure("check", first.number + 1 if meeting.label else 0)

    def find_picks(view: View) -> NDArray[np.float64]:
        source = experiment.survey.sources[view.number]
        mutes = [experiment.picks[name] for name in experiment.config.data.picks]
        return np.array([picks.find_line(source, view.offsets) for picks in mutes])

    figure = comparison_figure(
        [
            (view.number, view.offsets, view.observed, view.simulated, find_picks(view))
            for view in comparison.views
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


# Figures by the beginnings of their files' names, in the order of the page; of epochs the last.
TITLES = {
    "image": "Reflectors that the migration has found",
    "epoch_": "The last epoch that was drawn",
    "loss": "Misfit and error of the model",
    "profiles": "Profiles through the models at the end of the last stage",
    "traces": "Observed and simulated traces at its end",
    "fit": "How well the data are fitted at the end",
    "resolution": "Resolution",
    "check": "Observed data against the starting model",
    "wavelet": "Wavelet of the survey and, where one was estimated, the last of these",
    "observed_data": "Observed data",
}
# Of which each stage has one to see, not only the last that has any.
OF_EACH = ("fit", "check")


def write_report(path: Path, pdf: bool = False) -> Path:
    """Draw the figures of a run again, and write report.html beside them; returns its path.

    pdf: as in `show`.

    Raises `InputError` as `show` does, and where the page cannot be written.
    """
    show(path, pdf)
    directory = RunDirectory(path)
    figures = []
    for beginning, title in TITLES.items():
        # Numbers have no more digits than they need
        there = sorted(path.glob(f"{beginning}*.png"), key=lambda file: (len(file.name), file.name))
        for file in there if beginning in OF_EACH else there[-1:]:
            stage = file.stem.removeprefix(beginning).strip("_")
            told = f"{title}, stage {stage}" if stage and beginning in OF_EACH else title
            figures.append((told, file.read_bytes()))
    history = read_metrics(directory.metrics) if directory.metrics.exists() else []
    config = directory.config.read_text(encoding="utf-8")
    first, *_ = load_config(path).inversion.parameters
    unit = PARAMETERS[first].unit
    page = make_page(path.resolve().name, history, unit, config, figures, _read_told(directory))
    report = path / "report.html"
    try:
        with written_whole(report) as whole:
            whole.write(page.encode())
    except WriteFailure as failure:
        raise InputError(
            str(report),
            f"cannot be written ({failure.reason})",
            "Ask for the permission to write in the run directory, or make room on its disk.",
        ) from failure
    return report


def _read_told(directory: RunDirectory) -> list[tuple[str, list[str], list[str]]]:
    """Return what `check` and the ends of stages have said: titles, lines and warnings."""
    told = _read_checked(directory.checked) if exists(directory.checked) else []
    stages = load_config(directory.path).stages()
    for number, (name, _) in enumerate(stages):
        if exists(directory.ending(number)):
            fit, epoch = read_fit(directory.ending(number))
            title = "Data fit" + (f" of stage {name}" if len(stages) > 1 else "")
            told.append((title, [describe_fit(fit)], [*map(str, check_fit(fit, epoch))]))
    return told


def _read_checked(path: Path) -> list[tuple[str, list[str], list[str]]]:
    """Return what `check` has said of the data of each group of stages."""
    title = "Observed data against the starting model"
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
