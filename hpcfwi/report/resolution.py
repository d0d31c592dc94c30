"""The figure of a resolution test: a perturbation, the response, and measures of both.

`inversion.resolution` has the measures. For a volume, the section nearest to the middle of y is
shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hpcfwi.model import Grid
from hpcfwi.report import style
from hpcfwi.report.models import draw_section, find_extent, prepare
from hpcfwi.report.panels import (
    ENERGY_COLOURS,
    KM,
    MODEL_COLOURS,
    MOST_CELLS,
    SIGNED_COLOURS,
    coarsen,
    edges,
    value_limits,
)

DARKEST = -60.0  # dB
LENGTH_COLOURS = "viridis_r"
TALLEST = 1.5  # height over width of a figure in one column
MOST_NUMBERS = 16  # number of points in a row up to which values are written

Values = NDArray[np.float64]


@dataclass(frozen=True)
class ResolutionTest:
    """A resolution test; arrays have the shape of the grid unless stated otherwise.

    Attributes
    ----------
    size : float
        The size of a checkerboard's cells, or the distance between points, m.
    model : str
        A description of the model around which the waves were linearised.
    speed : ndarray
        Speed of the waves in that model, m/s.
    perturbation : ndarray
        m/s.
    response : ndarray
        J^T J of the perturbation.
    points : ndarray or None
        Positions (nz, ..., nx, ndim), m, of the points of point spread functions.
    measures : mapping
        The result of `measure_points` or `measure_checkerboard`.
    """

    grid: Grid
    size: float
    model: str
    speed: Values
    perturbation: Values
    response: Values
    points: Values | None
    measures: Mapping[str, Values]


def resolution_figure(found: ResolutionTest) -> Figure:
    """Return a figure of the perturbation, the response and the measures."""
    figure, panels = _panels(found.grid, 4 if found.points is None else 3 + found.grid.ndim)
    if found.points is None:
        _draw_checkerboard(panels, found)
    else:
        _draw_points(panels, found, found.points)
    return figure


def _panels(grid: Grid, count: int) -> tuple[Figure, list[Axes]]:
    """Return panels in one column or, if the figure would be too tall, in two columns."""
    extent = left, right, bottom, top = find_extent(grid)
    for columns, width in ((1, 8.0), (2, 11.5)):
        side = min(max((width / columns - 1.4) * (bottom - top) / (right - left), 1.0), 5.0)
        rows = -(-count // columns)
        height = rows * (side + 0.34) + 0.3
        if height <= TALLEST * width:
            break
    figure = style.new_figure(width, height)
    places = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for empty in places[count:]:
        empty.remove()
    for number, axes in enumerate(places[:count]):
        is_lowest, is_first = number >= count - columns, number % columns == 0
        prepare(axes, extent, "x (km)" * is_lowest, "depth (km)" * is_first, 10 // columns)
        axes.set_facecolor("0.93")
    return figure, places[:count]


def _draw_checkerboard(panels: list[Axes], found: ResolutionTest) -> None:
    measures, draw = found.measures, partial(_draw, found.grid, found.grid.shape[1] // 2)
    limit = float(np.abs(found.perturbation).max()) or 1.0
    title = f"Checkerboard, cells of {found.size:.0f} m, {found.model}"
    draw(panels[0], title, found.perturbation, (-limit, limit), SIGNED_COLOURS, "m/s")
    with np.errstate(divide="ignore", invalid="ignore"):
        response = found.response / measures["amplitude"]
    finite = response[np.isfinite(response)]
    typical = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
    shown, title = response / (typical or 1.0), "Response, divided by its local amplitude"
    draw(panels[1], title, shown, (-2.0, 2.0), SIGNED_COLOURS, "relative")
    title = "Local correlation of perturbation and response"
    draw(panels[2], title, measures["correlation"], (0.0, 1.0), MODEL_COLOURS, "")
    draw(panels[3], *_in_decibels(measures["amplitude"]))


def _draw_points(panels: list[Axes], found: ResolutionTest, points: Values) -> None:
    grid, measures = found.grid, found.measures
    middle = points.shape[1] // 2  # of the rows along y of a volume
    indices = [_indices(grid, points, axis) for axis in range(grid.ndim)]
    blocks = [_find_blocks(grid, points, axis) for axis in range(grid.ndim)]
    at = found.response[np.ix_(*indices)]
    there = np.isfinite(measures["amplitude"])
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(there & (at != 0.0), 1.0 / at, np.nan)
    draw = partial(_draw, grid, int(indices[1][middle]))
    title, speed = f"Points {found.size:.0f} m apart, {found.model}", found.speed / KM
    draw(panels[0], title, speed, value_limits(speed), MODEL_COLOURS, "km/s")
    row = np.s_[:, middle] if grid.ndim == 3 else np.s_[:]
    z, x = (points[row][there[row]][:, k] / KM for k in (0, -1))
    signs = np.where(at > 0.0, 1.0, -1.0)[row][there[row]]
    panels[0].scatter(x, z, c=signs, cmap="gray", s=16, linewidths=0.5, edgecolors="w")
    shown = found.response * factor[np.ix_(*blocks)]
    title = "Response, divided by its value at the nearest point"
    draw(panels[1], title, shown, (-1.0, 1.0), SIGNED_COLOURS, "relative")
    ends = [_find_ends(grid, points, axis) for axis in (0, grid.ndim - 1)]
    for axis, name in enumerate(grid.axes):
        widths = measures["width"][..., axis]
        known = widths[np.isfinite(widths)]
        limits = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
        title = f"Width along {name}" + _say_section(grid)
        _draw_blocks(panels[2 + axis], ends, title, widths[row], limits, LENGTH_COLOURS, "m")
    title, amplitude, limits, colours, unit = _in_decibels(measures["amplitude"])
    title += _say_section(grid)
    _draw_blocks(panels[-1], ends, title, amplitude[row], limits, colours, unit)


def _in_decibels(amplitude: Values) -> tuple[str, Values, tuple[float, float], str, str]:
    with np.errstate(divide="ignore", invalid="ignore"):
        decibels = 20.0 * np.log10(np.where(amplitude > 0.0, amplitude, np.nan))
    known = decibels[np.isfinite(decibels)]
    least = max(DARKEST, float(np.floor(known.min() / 10.0) * 10.0)) if known.size else DARKEST
    title = "Amplitude of the response"
    return title, decibels, (min(least, -10.0), 0.0), ENERGY_COLOURS, "dB re maximum"


def _draw(
    grid: Grid,
    plane: int,
    axes: Axes,
    title: str,
    values: Values,
    limits: tuple[float, float],
    colours: str,
    unit: str,
) -> None:
    """Draw an array of the grid; plane: the index along y of the section of a volume."""
    section = coarsen(values[:, plane] if grid.ndim == 3 else values, MOST_CELLS)
    image = draw_section(axes, section, find_extent(grid), colours, limits)
    style.title(axes, title + _say_section(grid))
    style.add_colour_bar(axes, image, unit, 0.02, section)


def _draw_blocks(
    axes: Axes,
    ends: Sequence[Values],
    title: str,
    values: Values,
    limits: tuple[float, float],
    colours: str,
    unit: str,
) -> None:
    """Draw the values of points (z, x) of the section; ends: of their blocks along z and x, km."""
    image = axes.pcolormesh(
        ends[1], ends[0], values, cmap=colours, vmin=limits[0], vmax=limits[1], edgecolors="w"
    )
    style.title(axes, title)
    style.add_colour_bar(axes, image, unit, 0.02, values)
    if values.shape[1] > MOST_NUMBERS:
        return
    z, x = ((0.5 * (along[1:] + along[:-1])).tolist() for along in ends)
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = image.to_rgba(np.asarray(value))
            axes.text(
                x[column],
                z[row],
                f"{value:.0f}",
                ha="center",
                va="center",
                fontsize=style.SMALL,
                color="w" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else "k",
            )


def _coordinates(points: Values, axis: int) -> Values:
    """Return the coordinates of points (nz, ..., nx, ndim) along an axis, m."""
    along = np.moveaxis(points[..., axis], axis, 0)
    return along.reshape(len(along), -1)[:, 0]


def _indices(grid: Grid, points: Values, axis: int) -> NDArray[np.int64]:
    places = _coordinates(points, axis) - grid.origin[axis]
    return np.rint(places / grid.spacing[axis]).astype(np.int64)


def _find_ends(grid: Grid, points: Values, axis: int) -> Values:
    """Return the ends of the parts of the model that are nearest to each point, km."""
    places = _coordinates(points, axis) / KM
    if len(places) == 1:
        return np.array(edges(grid, axis))
    half = 0.5 * np.diff(places)
    middles = places[:-1] + half
    return np.array([places[0] - half[0], *middles, places[-1] + half[-1]])


def _find_blocks(grid: Grid, points: Values, axis: int) -> NDArray[np.int64]:
    """Return the number of the nearest point for each cell along an axis."""
    places = _coordinates(points, axis)
    return np.searchsorted(0.5 * (places[1:] + places[:-1]), grid.coordinates(axis))


def _say_section(grid: Grid) -> str:
    return "" if grid.ndim == 2 else ", at the middle of y"
