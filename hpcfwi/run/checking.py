"""`hpcfwi check`: the observed data beside those of the starting model, told and drawn.

A run has the same look before its first epoch.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from hpcfwi.config import load_config
from hpcfwi.errors import InputError, WriteFailure
from hpcfwi.host import is_there
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.preparation import prepare
from hpcfwi.inversion.stages import make_stages
from hpcfwi.parallel.context import Context
from hpcfwi.plan.checks import Finding
from hpcfwi.plan.comparison import Comparison, check_comparison, describe
from hpcfwi.plan.data import meet_data
from hpcfwi.plan.text import write_findings
from hpcfwi.report.log import start_log
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.observation import check_observed, open_observed

log = logging.getLogger("hpcfwi")


def check_job(path: Path, settings: Sequence[str], context: Context, quiet: bool = False) -> None:
    """Compare, write what was found to stdout, and draw check.png in the run directory; collective.

    Raises `InputError` on all ranks for what a run would refuse.
    """
    with start_log(None, context.rank, quiet=True):
        config = context.from_root(lambda: load_config(path, settings))
        experiment = prepare(config, context)
        directory = RunDirectory(Path(config.output.directory))
        context.from_root(lambda: directory.check(config))
        check_observed(experiment, context)
        comparison, findings = look_at_data(experiment, context)

        def tell() -> None:
            write_findings(str(path), findings, sys.stdout, quiet)
            figure = draw(comparison, experiment, directory)
            if not quiet:
                lines = [*describe(comparison), f"figure: {figure}"]
                sys.stdout.write("".join(f"  {line}\n" for line in lines))
                sys.stdout.flush()

        context.from_root(tell)
    refuse(findings)


def look_before_inverting(
    experiment: Experiment, directory: RunDirectory, context: Context
) -> None:
    """Warn in the log of what is wrong with the data, and draw it where anything is; collective.

    Raises `InputError` on all ranks where there is nothing to invert.
    """
    comparison, findings = look_at_data(experiment, context)
    for line in describe(comparison):
        log.info("Data: %s", line)
    refuse(findings)

    def warn() -> None:
        for finding in findings:
            log.warning("%s: %s. %s", finding.where, finding.found, finding.remedy)
        figure = draw(comparison, experiment, directory)
        log.warning("What was observed beside what the starting model gives: %s", figure)

    if findings:
        context.from_root(warn)


def look_at_data(experiment: Experiment, context: Context) -> tuple[Comparison, list[Finding]]:
    """The comparison, of the first stage, and what it finds; collective."""
    there = context.from_root(partial(is_there, experiment.observed))
    with open_observed(experiment, context) if there else nullcontext() as reader:
        first = make_stages(experiment)[0].experiment
        comparison = meet_data(experiment, first, reader, context)
    where = experiment.config.survey.file or "survey"
    return comparison, check_comparison(comparison, where)


def refuse(findings: Iterable[Finding]) -> None:
    """Raise `InputError` for the first error among them."""
    for finding in findings:
        if finding.severity == "error":
            raise InputError(finding.where, finding.found, finding.remedy)


def draw(comparison: Comparison, experiment: Experiment, directory: RunDirectory) -> Path:
    """The figure, in the run directory; its path. Rank 0 only."""
    from hpcfwi.report import style
    from hpcfwi.report.comparison import comparison_figure

    path = directory.figure("check")
    figure = comparison_figure(
        [(view.number, view.offsets, view.observed, view.simulated) for view in comparison.views],
        make_stages(experiment)[0].experiment.survey.dt,
        comparison.ratio,
        comparison.offsets,
        comparison.lags,
        comparison.period,
    )
    try:
        directory.path.mkdir(parents=True, exist_ok=True)
        style.save(figure, path)
    except (OSError, WriteFailure) as failure:
        reason = failure.reason if isinstance(failure, WriteFailure) else failure.strerror
        raise InputError(
            str(path),
            f"the figure cannot be written ({reason})",
            "Choose a directory that you may write, with --output or output.directory.",
        ) from failure
    return path
