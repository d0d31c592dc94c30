"""The figure of an epoch: sections of a 2-D model, or slices of a 3-D one.

Sections are to scale, with depth downwards. For a volume each panel has three slices, laid out like
an unfolded cube. `panels` decides the contents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from hpcfwi.model import Grid
from hpcfwi.report import style
from hpcfwi.report.panels import (
    KM,
    OF_PARAMETER,
    EpochPicture,
    Panel,
    count,
    edges,
    exceeded,
    panels,
    thin_out,
)

# A section is drawn to scale if its ratio of width to height is in this range, otherwise stretched.
NARROWEST, WIDEST = 0.4, 7.0
WIDE = 2.2  # from this ratio on, panels are arranged in one column
MARKS = 30  # largest number of positions that are drawn, so that they stay apart


def section_figure(pictures: Sequence[EpochPicture]) -> Figure:
    """Draw the panels of pictures, each of another parameter of the same model.

    A single picture has one column if the model is wide, and otherwise two rows. Several pictures
    have a column each if the model is wide, and otherwise a row each.
    """
    grid = pictures[0].grid
    figure, places = _panels(grid, len(pictures))
    for axes, panel in zip(places, panels(pictures), strict=True):
        _draw_section(axes, grid, panel)
    _mark_positions(figure, places[0], pictures[0])
    return figure


def arrange(parameters: int, is_wide: bool) -> list[tuple[int, int]]:
    """Return the row and the column of each panel, in the order of `panels`."""
    if parameters == 1:
        return [(k, 0) if is_wide else (k // 3, k % 3) for k in range(6)]
    each = range(OF_PARAMETER)
    if is_wide:
        models = [(row, column) for column in range(parameters) for row in each]
        return [*models, (OF_PARAMETER, 0), (OF_PARAMETER, 1)]
    return [(row, column) for row in range(parameters) for column in each] + [
        (parameters, 0),
        (parameters, 1),
    ]


def _panels(grid: Grid, parameters: int) -> tuple[Figure, list[Axes]]:
    """Return the panels for sections of this grid, in a figure with little empty space."""
    ratio, wide = _drawn_ratio(grid), _is_wide(grid)
    at = arrange(parameters, wide)
    rows, columns = (1 + max(numbers) for numbers in zip(*at, strict=True))
    if wide:
        # Two columns fit beside each other at three quarters of the size
        size = 6.6 if columns == 1 else 5.0
        figure = style.new_figure(columns * (size + 1.4), rows * (size / ratio + 0.34) + 0.3)
    else:
        figure = style.new_figure(10.0 / 3.0 * columns, rows * (2.2 / ratio + 0.75))
    cells = figure.add_gridspec(rows, columns)
    panels = [figure.add_subplot(cells[place]) for place in at]
    for axes, (row, column) in zip(panels, at, strict=True):
        _prepare(axes, grid, x=(row + 1, column) not in at, y=column == 0)
    return figure, panels


def _prepare(axes: Axes, grid: Grid, x: bool, y: bool) -> None:
    """Set limits, aspect and ticks; x, y: True if this axis has a name and numbers."""
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
    """Return width over height of a section."""
    left, right, bottom, top = _extent(grid)
    return (right - left) / (bottom - top)


def _extent(grid: Grid) -> tuple[float, float, float, float]:
    """Return the left, right, bottom and top edge, in km."""
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
    extend = exceeded(values, panel.limits)
    style.add_colour_bar(axes, image, panel.unit, extend, width)


def _mark_positions(figure: Figure, axes: Axes, picture: EpochPicture) -> None:
    """Mark some receivers and sources, with their numbers in the lower left of the figure."""
    for positions, marker, size, colour, name in (
        (picture.receivers, "v", 3.5, "white", "receiver"),
        (picture.sources, "*", 5.5, style.MARK, "source"),
    ):
        if positions is None:
            continue
        # Sorted and unique, so that receivers that move with the source are thinned out evenly
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
            clip_on=len(shown) == 0,  # a set without points would stretch the layout if not clipped
        )
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles=handles,
            loc="outside lower left",
            ncols=2,
            fontsize=style.SMALL,
            frameon=False,
            handletextpad=0.1,
            columnspacing=1.0,
        )


GAP = 0.09  # gap between slices, relative to the cube's longest side
SHORTEST = 0.25  # least length of a side, relative to the longest one; others are stretched
WIDE_VOLUME = 1.8  # from this ratio of width to height on, there are two columns, else three
WIDTH = 11.5  # inches
VOLUME_MARKS = 60  # largest number of positions that are drawn along each axis
NAMES = ("depth", "y", "x")


@dataclass(frozen=True)
class Slice:
    """The axes of the grid that are drawn vertically and horizontally, and the one that is cut."""

    vertical: int
    horizontal: int
    cut: int


MAP, INLINE, CROSSLINE = Slice(1, 2, 0), Slice(0, 2, 1), Slice(0, 1, 2)


def slice_figure(pictures: Sequence[EpochPicture]) -> Figure:
    """Draw the panels, each with a map, the inline section below it, and the crossline section.

    Lines mark the intersections of slices. The slices go through the part of the true model, or of
    the starting model if the true one is not known, that differs most from flat layers; they are
    the same in all epochs. The figure is to scale, except that short sides are stretched.
    """
    first, *others = pictures
    first = first.cut()
    grid, cuts = first.grid, first.cuts
    assert cuts is not None
    alike = [first, *(replace(other, cuts=cuts, places=first.places) for other in others)]
    figure, places = _slice_panels(grid, len(alike))
    for place, panel in zip(places, panels(alike), strict=True):
        _draw_panel(place, grid, panel, cuts)
    return figure


def _slice_panels(grid: Grid, parameters: int) -> tuple[Figure, list[Axes]]:
    """Return the panels for unfolded cubes of this grid, whose axes are not drawn."""
    width, height = _unfolded(_sides(grid))
    ratio = width / height
    at = arrange(parameters, is_wide=False)
    if parameters == 1 and ratio >= WIDE_VOLUME:
        at = [(k // 2, k % 2) for k in range(6)]
    rows, columns = (1 + max(numbers) for numbers in zip(*at, strict=True))
    wide = WIDTH * max(1.0, columns / 3.0)
    figure = style.new_figure(wide, rows * ((wide / columns - 0.9) / ratio + 0.75))
    cells = figure.add_gridspec(rows, columns)
    places = [figure.add_subplot(cells[place]) for place in at]
    for place in places:
        place.set_axis_off()
        place.set_box_aspect(height / width)
    return figure, places


def _sides(grid: Grid) -> tuple[float, float, float]:
    """Return the lengths of the cube as drawn along z, y and x; the longest is 1."""
    lengths = np.array([np.ptp(edges(grid, axis)) for axis in range(3)])
    z, y, x = np.maximum(lengths / lengths.max(), SHORTEST)
    return z, y, x


def _unfolded(sides: tuple[float, float, float]) -> tuple[float, float]:
    """Return width and height of the unfolded cube."""
    z, y, x = sides
    return x + GAP + y, z + GAP + y


def _draw_panel(place: Axes, grid: Grid, panel: Panel, cuts: tuple[int, ...]) -> None:
    style.title(place, panel.title if panel.caption is None else f"{panel.title}, {panel.caption}")
    z, y, x = sides = _sides(grid)
    width, height = _unfolded(sides)
    boxes = {
        MAP: (0.0, z + GAP, x, y),
        INLINE: (0.0, 0.0, x, z),
        CROSSLINE: (x + GAP, 0.0, y, z),
    }
    axes = {}
    for which, (left, bottom, wide, high) in boxes.items():
        box = (left / width, bottom / height, wide / width, high / height)
        axes[which] = place.inset_axes(box)
        _prepare_slice(axes[which], grid, which)
    if panel.excerpt is None:
        for inset in axes.values():
            style.say_unknown(inset)
        return
    shown = {which: panel.convert(panel.excerpt.sections[which.cut]) for which in axes}
    images = {which: _draw_slice(axes[which], grid, panel, which, shown[which]) for which in axes}
    for which, inset in axes.items():
        _mark_cuts(inset, grid, which, cuts)
    extend = exceeded(np.concatenate([v.ravel() for v in shown.values()]), panel.limits)
    # The bar is lower than the map, because a factor of its numbers may be written above it
    style.add_colour_bar(axes[MAP], images[MAP], panel.unit, extend, 0.05, height=0.9)
    origins = np.zeros((0, 3)) if panel.origins is None else panel.origins
    inside = origins[grid.contains(origins)]
    if len(inside):
        _mark_origins(axes[MAP], inside)


def _draw_slice(axes: Axes, grid: Grid, panel: Panel, which: Slice, values: NDArray) -> AxesImage:
    left, right = edges(grid, which.horizontal)
    first, last = edges(grid, which.vertical)
    return axes.imshow(
        values,
        cmap=panel.colours,
        vmin=panel.limits[0],
        vmax=panel.limits[1],
        extent=(left, right, last, first),
        aspect="auto",
    )


def _prepare_slice(axes: Axes, grid: Grid, which: Slice) -> None:
    """Set limits, ticks and names; the other two slices share those of the inline section."""
    axes.set_xlim(*edges(grid, which.horizontal))
    top, bottom = edges(grid, which.vertical)
    axes.set_ylim(*((top, bottom) if which is MAP else (bottom, top)))
    style.set_ticks(axes.xaxis, 5)
    style.set_ticks(axes.yaxis, 5)
    x, y = which is not MAP, which is not CROSSLINE
    style.label(axes, f"{NAMES[which.horizontal]} (km)" * x, f"{NAMES[which.vertical]} (km)" * y)
    axes.tick_params(labelbottom=x, labelleft=y)


def _mark_cuts(axes: Axes, grid: Grid, which: Slice, cuts: tuple[int, ...]) -> None:
    """Draw lines where the other two slices intersect this one."""
    at = [grid.coordinates(axis)[index] / KM for axis, index in enumerate(cuts)]
    for draw, axis in ((axes.axvline, which.horizontal), (axes.axhline, which.vertical)):
        draw(at[axis], color="black", gapcolor="white", linewidth=0.7, dashes=(4, 4))
    axes.annotate(
        f"{NAMES[which.cut]} {at[which.cut]:.2f} km",
        (0.0, 1.0),
        xycoords="axes fraction",
        xytext=(4.0, -4.0),
        textcoords="offset points",
        fontsize=style.SMALL,
        verticalalignment="top",
        bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1.5},
    )


def _mark_origins(axes: Axes, positions: NDArray[np.float64]) -> None:
    """Mark some positions (n, 3) of sources or receivers by stars, or by dots if they are many."""
    shown = thin_out(positions[:, 1:], VOLUME_MARKS) / KM
    few = len(shown) <= VOLUME_MARKS
    axes.plot(
        shown[:, 1],
        shown[:, 0],
        "*" if few else ".",
        color="white",
        markersize=6.0 if few else 1.5,
        markeredgecolor="black" if few else "white",
        markeredgewidth=0.4 if few else 0.0,
        clip_on=False,
    )
