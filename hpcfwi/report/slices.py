"""The figure of an epoch of a 3-D model: three slices a panel, laid out like an unfolded cube.

`figures` offers it together with the others; what it shows is decided in `picture`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from hpcfwi.model import Grid
from hpcfwi.report import scales, style
from hpcfwi.report.picture import EpochPicture, Panel, edges, panels
from hpcfwi.report.scales import KM

GAP = 0.09  # between slices, of the cube's longest side
SHORTEST = 0.25  # of the longest side: a shorter one is stretched to this
WIDE = 1.8  # from this ratio of width to height on, panels stand in two columns, else in three
WIDTH = 11.5  # inches
MARKS = 60  # positions drawn at most along each axis
NAMES = ("depth", "y", "x")


@dataclass(frozen=True)
class Slice:
    """The axes of the grid that are drawn vertically and horizontally, and the one that is cut."""

    vertical: int
    horizontal: int
    cut: int


MAP, INLINE, CROSSLINE = Slice(1, 2, 0), Slice(0, 2, 1), Slice(0, 1, 2)


def slice_figure(picture: EpochPicture) -> Figure:
    """The six panels: in each a map of one depth, the inline section below it, the crossline
    section beside that; lines mark where they cut one another.

    They go through what departs most from flat layers, in the true model or, where that is not
    known, in the starting one: in the same place in all epochs. To scale, except that short sides
    are stretched.
    """
    picture = picture.cut()
    grid, cuts = picture.grid, picture.cuts
    assert cuts is not None
    figure, places = _panels(grid)
    for place, panel in zip(places, panels(picture), strict=True):
        _draw_panel(place, grid, panel, cuts)
    return figure


def _panels(grid: Grid) -> tuple[Figure, list[Axes]]:
    """Six places for unfolded cubes of this grid; they have no axes of their own."""
    width, height = _unfolded(_sides(grid))
    ratio = width / height
    columns, mosaic = (2, "AB;CD;EF") if ratio >= WIDE else (3, "ABC;DEF")
    rows = mosaic.count(";") + 1
    figure = style.new_figure(WIDTH, rows * ((WIDTH / columns - 0.9) / ratio + 0.75))
    places = list(figure.subplot_mosaic(mosaic).values())
    for place in places:
        place.set_axis_off()
        place.set_box_aspect(height / width)
    return figure, places


def _sides(grid: Grid) -> tuple[float, float, float]:
    """Lengths of the cube as drawn along z, y and x; the longest is 1."""
    lengths = np.array([np.ptp(edges(grid, axis)) for axis in range(3)])
    z, y, x = np.maximum(lengths / lengths.max(), SHORTEST)
    return z, y, x


def _unfolded(sides: tuple[float, float, float]) -> tuple[float, float]:
    """Width and height of the unfolded cube."""
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
        _prepare(axes[which], grid, which)
    if panel.excerpt is None:
        for inset in axes.values():
            style.say_unknown(inset)
        return
    shown = {which: panel.convert(panel.excerpt.sections[which.cut]) for which in axes}
    images = {which: _draw_slice(axes[which], grid, panel, which, shown[which]) for which in axes}
    for which, inset in axes.items():
        _mark_cuts(inset, grid, which, cuts)
    extend = scales.exceeded(np.concatenate([v.ravel() for v in shown.values()]), panel.limits)
    # Lower than the map: the numbers may have a factor, which stands above the bar
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


def _prepare(axes: Axes, grid: Grid, which: Slice) -> None:
    """Limits, ticks and names; the inline section's serve the map above and the section beside."""
    axes.set_xlim(*edges(grid, which.horizontal))
    top, bottom = edges(grid, which.vertical)
    axes.set_ylim(*((top, bottom) if which is MAP else (bottom, top)))
    style.set_ticks(axes.xaxis, 5)
    style.set_ticks(axes.yaxis, 5)
    x, y = which is not MAP, which is not CROSSLINE
    style.label(axes, f"{NAMES[which.horizontal]} (km)" * x, f"{NAMES[which.vertical]} (km)" * y)
    axes.tick_params(labelbottom=x, labelleft=y)


def _mark_cuts(axes: Axes, grid: Grid, which: Slice, cuts: tuple[int, ...]) -> None:
    """Lines where the other two slices cut this one, and where this one is."""
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
    """Some of the positions (n, 3) that waves come from: stars, or dots where they are many."""
    shown = scales.thin_out(positions[:, 1:], MARKS) / KM
    few = len(shown) <= MARKS
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
