"""`hpcfwi show RUN --report`: one page of a run, from its directory."""

from __future__ import annotations

import json
from pathlib import Path

from hpcfwi.config import load_config
from hpcfwi.errors import InputError, WriteFailure
from hpcfwi.inversion.shot_qc import describe_fit
from hpcfwi.model import PARAMETERS
from hpcfwi.report.metrics import read_metrics
from hpcfwi.report.page import make_page
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.fits import check_fit, read_fit
from hpcfwi.run.records import show
from hpcfwi.system import check_regular, exists, written_whole

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
