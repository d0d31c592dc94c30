"""A diagram of boxes and arrows: ways to split the work."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from drawing.panels import GREY
from hpcfwi.report import style

CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": style.TEXT}


def splitting() -> Figure:
    """Draw the parts of ranks and their messages, for four ways to split the work."""
    figure = style.new_figure(9.0, 4.4)
    panels = figure.subplots(2, 2)
    shots, domain, pipeline, server = panels.flat
    for axes in panels.flat:
        axes.set(xlim=(0.0, 10.0), ylim=(4.0, 0.0))
        axes.set_axis_off()
    for left in (0.3, 5.3):
        shots.add_patch(Rectangle((left, 0.6), 4.4, 1.8, color=style.LIGHT))
        shots.plot(left + np.array([0.7, 2.2, 3.7]), [0.6] * 3, "*", color=style.MARK, markersize=9)
        shots.text(left + 2.2, 1.6, "the whole model", ha="center", fontsize=style.TEXT)
    _arrow(shots, "an epoch: the gradients, added", (2.5, 3.0), (7.5, 3.0), "<->")
    style.title(shots, "shots over ranks")

    for top, halo in ((0.6, 1.3), (1.9, 1.9)):
        domain.add_patch(Rectangle((0.3, top), 6.4, 0.9, color=style.LIGHT))
        domain.add_patch(Rectangle((0.3, halo), 6.4, 0.2, color=style.STRONG))
        domain.text(3.5, 2.5 if halo == top else 1.1, "a layer of the grid", **CENTRED)
    domain.plot(3.5, 0.6, "*", color=style.MARK, markersize=9)
    _arrow(domain, "", (7.0, 1.35), (7.0, 2.05), "<->")
    domain.text(7.2, 1.8, "each time step:\nthe halo", va="center", fontsize=style.TEXT)
    style.title(domain, "a shot's domain over ranks")

    for shot in range(3):
        for stage in range(2):
            place = (0.8 + 2.2 * (shot + stage), 0.6 + 1.1 * stage)
            pipeline.add_patch(Rectangle(place, 2.1, 0.9, color=style.LIGHT))
            middle = (place[0] + 1.05, place[1] + 0.5)
            pipeline.text(
                *middle, f"shot {shot + 1}", ha="center", va="center", fontsize=style.SMALL
            )
    for idle in ((7.4, 0.6), (0.8, 1.7)):
        pipeline.add_patch(Rectangle(idle, 2.1, 0.9, fill=False, hatch="///", edgecolor=GREY))
    for rank, half in enumerate(("first", "second")):
        row = 1.1 + 1.1 * rank
        pipeline.text(0.7, row, f"{half}\nhalf", ha="right", va="center", fontsize=style.SMALL)
    _arrow(pipeline, "time; each shot: the whole field", (0.8, 3.0), (9.5, 3.0), "->")
    style.title(pipeline, "time steps over ranks, a pipeline")

    server.add_patch(Rectangle((3.6, 0.5), 2.8, 0.8, color=style.MARK, alpha=0.4))
    server.text(5.0, 0.95, "server", ha="center", va="center", fontsize=style.TEXT)
    for left in (0.3, 2.75, 5.2, 7.65):
        server.add_patch(Rectangle((left, 2.4), 2.05, 0.8, color=style.LIGHT))
        _arrow(server, "", (left + 1.0, 2.3), (5.0 + 0.2 * (left - 4.0), 1.4), "<->")
    server.text(5.0, 3.6, "an epoch: gradients up, the model down", **CENTRED)
    style.title(server, "a parameter server")
    return figure


def _arrow(
    axes: Axes, text: str, start: tuple[float, float], end: tuple[float, float], kind: str
) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": kind, "color": style.STRONG})
    if text:
        axes.text(0.5 * (start[0] + end[0]), start[1] + 0.6, text, **CENTRED)
