"""The figure of vertical profiles: how the models change with depth, in a few places.

It shows what the figure of an epoch does, of which `picture` is made, cut otherwise.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hpcfwi.report import style
from hpcfwi.report.excerpts import Excerpt
from hpcfwi.report.picture import EpochPicture, edges
from hpcfwi.report.scales import KM

KEPT = "0.92"


def profiles_figure(picture: EpochPicture) -> Figure:
    """True, initial and inverted model over depth; what the inversion keeps is shaded."""
    picture = picture.cut()
    places = picture.places
    assert places is not None
    figure = style.new_figure(1.2 + 1.7 * len(places), 4.2)
    panels = figure.subplots(1, len(places), sharex=True, sharey=True, squeeze=False)[0]
    for number, (axes, place) in enumerate(zip(panels, places, strict=True)):
        _draw_profiles(axes, picture, number, place)
        style.label(
            axes,
            f"{picture.parameter.title} ({picture.parameter.figure_unit})"
            if axes is panels[len(panels) // 2]
            else "",
            "depth (km)" if axes is panels[0] else "",
        )
    style.set_ticks(panels[0].xaxis, 4)
    # In some places nothing is kept, in others cells apart from each other
    named = {
        name: handle
        for axes in panels
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles=[*named.values()],
        loc="outside lower left",
        ncols=4,
        fontsize=style.SMALL,
        frameon=False,
    )
    return figure


def _draw_profiles(axes: Axes, picture: EpochPicture, number: int, place: tuple[int, ...]) -> None:
    """Those at a place, which is that of this number of `find_places`."""
    grid, scale = picture.grid, picture.parameter.figure_scale
    depths = grid.coordinates(0) / KM
    top, bottom = edges(grid, 0)
    axes.set_ylim(bottom, top)
    if picture.kept is not None:
        # Cells change from not kept to kept, or back, at these of their edges
        column = np.pad(picture.kept.T[place[::-1]], 1)
        turns = np.flatnonzero(column[1:] != column[:-1])
        for first, end in (top + turns * grid.spacing[0] / KM).reshape(-1, 2):
            axes.axhspan(first, end, color=KEPT, linewidth=0, label="kept")

    def draw(
        model: NDArray[np.float32] | Excerpt | None, name: str, colour: str, line: str
    ) -> None:
        if model is None:
            return
        values = model.profiles[number] if isinstance(model, Excerpt) else model.T[place[::-1]]
        axes.plot(values / scale, depths, line, color=colour, linewidth=1.3, label=name)

    draw(picture.true, "true", "0.25", "-")
    draw(picture.start, "initial", "0.6", "--")
    draw(picture.inverted, f"inverted, epoch {picture.epoch}", style.MARK, "-")
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    named = zip(grid.axes[1:], range(1, grid.ndim), place, strict=True)
    style.title(
        axes, ", ".join(f"{n} = {grid.coordinates(a)[k] / KM:.2f}" for n, a, k in named) + " km"
    )
