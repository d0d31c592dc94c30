"""Common parts of several figures: a colour, labels, and curves over the epochs of runs.

Sizes and colours of all figures of hpcfwi are in `hpcfwi.report.style`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from hpcfwi.report import style
from hpcfwi.report.text import read_metrics

GREY = "0.7"


def label_ends(panels: NDArray[np.object_], x: str, y: str) -> None:
    """Label the axes of panels that share them, at the lowest and the leftmost panels."""
    for axes in panels[-1]:
        axes.set_xlabel(x, fontsize=style.TEXT)
    for axes in panels[:, 0]:
        axes.set_ylabel(y, fontsize=style.TEXT)


def draw_errors(axes: Axes, runs: Mapping[str, Path]) -> None:
    """Draw the model errors after each epoch, with the names of the runs."""
    for name, run in runs.items():
        history = read_metrics(run / "metrics.jsonl")
        simulations = [entry["simulations"] for entry in history]
        errors = [entry["model_error"] for entry in history]
        _draw_line(axes, simulations, errors, name)
    style.title(axes, "Model error (m/s)")
    style.label(axes, "simulations", "")
    axes.legend(fontsize=style.SMALL, frameon=False)


def draw_misfits(axes: Axes, runs: Mapping[str, Path]) -> None:
    """Draw the misfits of the models at the beginning of each epoch."""
    for name, run in runs.items():
        history = read_metrics(run / "metrics.jsonl")
        simulations = [0, *(entry["simulations"] for entry in history[:-1])]
        _draw_line(axes, simulations, [entry["loss"] for entry in history], name)
    style.title(axes, "Misfit")
    style.label(axes, "simulations", "")
    axes.set_yscale("log")


def _draw_line(axes: Axes, x: list[int], y: list[float], name: str) -> None:
    # At most some twenty marks on a curve
    every = max(1, len(y) // 20)
    axes.plot(x, y, "o-", label=name, markersize=3, markevery=every)
    axes.grid(color="0.9")
