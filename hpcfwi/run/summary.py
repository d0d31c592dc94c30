"""`hpcfwi show RUN --report`: one page of a run, from its directory."""

from __future__ import annotations

from pathlib import Path

from hpcfwi.config import load_config
from hpcfwi.errors import InputError, WriteFailure
from hpcfwi.files import written_whole
from hpcfwi.model import PARAMETERS
from hpcfwi.report.metrics import read_metrics
from hpcfwi.report.page import make_page
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.records import show

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
    "wavelet": "Wavelet that was estimated last",
    "observed_data": "Observed data",
    "ricker": "Wavelet of the survey",
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
    page = make_page(path.resolve().name, history, unit, config, figures)
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
