"""`hpcfwi check`: the observed data beside those of the starting model, told and drawn.

A run has the same look before its first epoch.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfwi.config import load_config
from hpcfwi.errors import InputError, WriteFailure
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.shot_qc import View
from hpcfwi.inversion.stages import Stage, make_stages
from hpcfwi.parallel.context import Context
from hpcfwi.plan.checks import Finding
from hpcfwi.plan.data import Meeting, check_meetings, meet_data
from hpcfwi.plan.text import write_findings
from hpcfwi.report.log import start_log
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.observation import check_observed, open_observed
from hpcfwi.system import is_there, written_whole

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
    """How the data of all stages are met, and what is found each time; collective."""
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
    """In lines, under what tells it apart from others."""
    lines = [*meeting.describe(), f"figure: {figure}"]
    head = [f"{meeting.label}:"] if meeting.label else []
    sys.stdout.write("".join(f"{line}\n" for line in [*head, *(f"  {line}" for line in lines)]))
    sys.stdout.flush()


def draw(meeting: Meeting, directory: RunDirectory) -> Path:
    """The figure, in the run directory; its path. Rank 0 only."""
    from hpcfwi.report import style
    from hpcfwi.report.comparison import comparison_figure

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
