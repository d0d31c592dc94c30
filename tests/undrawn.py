"""Runs without figures, which take longer than the rest of a tiny inversion.

`python -m tests.undrawn run CONFIG` is `hpcfwi run CONFIG` without figures.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpcfwi import cli
from hpcfwi.parallel.context import Context
from hpcfwi.report import figures, style
from hpcfwi.run import drawing
from hpcfwi.run.job import run_job

DRAWING = ("draw_survey", "draw_epoch_figures", "draw_wavelet", "draw_fit")


def draw_nothing(put: Callable[..., None] = setattr) -> None:
    """Let runs draw no figures; put: a function such as `setattr`, by which this may be undone."""
    for name in DRAWING:
        put(drawing, name, lambda *_: None)
    put(figures, "comparison_figure", lambda *_: style.new_figure(1.0, 1.0))


def run_undrawn(path: Path, *, migrates: bool = False) -> Path:
    """Run the job of an input without figures, and return its run directory."""
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch.setattr)
        run_job(path, (), Context.alone(), migrates=migrates, quiet=True)
    return path.parent / "run"


def main() -> None:
    """Run the command line, which draws no figures."""
    draw_nothing()
    cli.main()


if __name__ == "__main__":
    main()
