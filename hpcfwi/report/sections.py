"""The figure of an epoch of a 2-D model: sections, to scale, depth downwards.

`figures` offers it together with the others; what it shows is decided in `picture`.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcfwi.model import Grid
from hpcfwi.report import scales, style
from hpcfwi.report.picture import EpochPicture, Panel, count, edges, panels
from hpcfwi.report.scales import KM

# A section is drawn to scale between these ratios of width to height, and stretched beyond them.
NARROWEST, WIDEST = 0.4, 7.0
WIDE = 2.2  # from this ratio on, panels stand one below the other
MARKS = 30  # positions drawn at most, so that they stay apart


def section_figure(picture: EpochPicture) -> Figure:
    """The six panels. Wide models are drawn one below the other, others in two rows."""
    grid = picture.grid
    figure, places = _panels(grid)
    for axes, panel in zip(places, panels(picture), strict=True):
        _draw_section(axes, grid, panel)
    _mark_positions(figure, places[0], picture)
    return figure


def _panels(grid: Grid) -> tuple[Figure, list[Axes]]:
    """Six panels for sections of this grid, in a figure that leaves little space empty."""
    ratio = _drawn_ratio(grid)
    if _is_wide(grid):
        figure = style.new_figure(8.0, 6 * (6.6 / ratio + 0.34) + 0.3)
        panels = list(figure.subplots(6, 1))
        inner_x, inner_y = panels[:-1], []
    else:
        figure = style.new_figure(10.0, 2 * (2.2 / ratio + 0.75))
        panels = list(figure.subplots(2, 3).flat)
        inner_x, inner_y = panels[:3], [*panels[1:3], *panels[4:]]
    for axes in panels:
        _prepare(axes, grid, x=axes not in inner_x, y=axes not in inner_y)
    return figure, panels


def _prepare(axes: Axes, grid: Grid, x: bool, y: bool) -> None:
    """Limits, aspect and ticks; with the axes' names and numbers where x and y say so."""
    left, right, bottom, top = _extent(grid)
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.set_aspect(_ratio(grid) / _drawn_ratio(grid))
    style.set_ticks(axes.xaxis, 10 if _is_wide(grid) else 5)
    style.set_ticks(axes.yaxis, 5)
    style.label(axes, "x (km)" if x else "", "depth (km)" if y else "")
    axes.tick_params(labelbottom=x, labelleft=y)


def _is_wide(grid: Grid) -> bool:
    return _ratio(grid) >= WIDE


def _drawn_ratio(grid: Grid) -> float:
    return min(max(_ratio(grid), NARROWEST), WIDEST)


def _ratio(grid: Grid) -> float:
    """Width over height of a section."""
    left, right, bottom, top = _extent(grid)
    return (right - left) / (bottom - top)


def _extent(grid: Grid) -> tuple[float, float, float, float]:
    """Left, right, bottom and top edge, in km."""
    (top, bottom), (left, right) = (edges(grid, axis) for axis in range(2))
    return left, right, bottom, top


def _draw_section(axes: Axes, grid: Grid, panel: Panel) -> None:
    style.title(axes, panel.title)
    if panel.excerpt is None:
        style.say_unknown(axes)
        return
    values = panel.convert(panel.excerpt.sections[0])
    image = axes.imshow(
        values,
        cmap=panel.colours,
        vmin=panel.limits[0],
        vmax=panel.limits[1],
        extent=_extent(grid),
        aspect=axes.get_aspect(),
    )
    width = 0.02 if _is_wide(grid) else 0.04
    extend = scales.exceeded(values, panel.limits)
    style.add_colour_bar(axes, image, panel.unit, extend, width)


def _mark_positions(figure: Figure, axes: Axes, picture: EpochPicture) -> None:
    """Some receivers and sources of the grid, and how many there are in the figure's lower left."""
    for positions, marker, size, colour, name in (
        (picture.receivers, "v", 3.5, "white", "receiver"),
        (picture.sources, "*", 5.5, style.MARK, "source"),
    ):
        if positions is None:
            continue
        # Sorted and each once, so that receivers that move with the source are thinned out evenly
        inside = np.unique(positions[picture.grid.contains(positions)], axis=0)
        shown = inside[:: max(1, -(-len(inside) // MARKS))] / KM
        axes.plot(
            shown[:, -1],
            shown[:, 0],
            marker,
            color=colour,
            markersize=size,
            markeredgecolor="black",
            markeredgewidth=0.4,
            label=count(positions, name),
            clip_on=len(shown) == 0,  # without points and unclipped it would stretch the layout
        )
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles=handles,
            loc="lower left",
            ncols=2 if _is_wide(picture.grid) else 1,
            fontsize=style.SMALL,
            frameon=False,
            handletextpad=0.1,
            columnspacing=1.0,
        )
