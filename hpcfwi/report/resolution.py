"""The figure of a resolution test: a perturbation, the response, and measures of both.

`inversion.resolution` has the measures. For a volume, the section nearest to the middle of y is
shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hpcfwi.model import Grid
from hpcfwi.report import style
from hpcfwi.report.panels import (
    ENERGY_COLOURS,
    KM,
    MODEL_COLOURS,
    MOST_CELLS,
    SIGNED_COLOURS,
    coarsen,
    edges,
    exceeded,
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
    (top, bottom), (left, right) = edges(grid, 0), edges(grid, grid.ndim - 1)
    for columns, width in ((1, 8.0), (2, 11.5)):
        side = min(max((width / columns - 1.4) * (bottom - top) / (right - left), 1.0), 5.0)
        rows = -(-count // columns)
        height = rows * (side + 0.34) + 0.3
        if height <= TALLEST * width:
            break
    figure = style.new_figure(width, height)
    places = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    panels = places[:count]
    for empty in places[count:]:
        empty.remove()
    for number, axes in enumerate(panels):
        axes.set_xlim(left, right)
        axes.set_ylim(bottom, top)
        axes.set_facecolor("0.93")
        style.set_ticks(axes.xaxis, 10 // columns)
        style.set_ticks(axes.yaxis, 5)
        is_lowest, is_first = number >= count - columns, number % columns == 0
        style.label(axes, "x (km)" if is_lowest else "", "depth (km)" if is_first else "")
        axes.tick_params(labelbottom=is_lowest, labelleft=is_first)
    return figure, panels


def _draw_checkerboard(panels: list[Axes], found: ResolutionTest) -> None:
    grid, measures = found.grid, found.measures
    limit = float(np.abs(found.perturbation).max()) or 1.0
    title = f"Checkerboard, cells of {found.size:.0f} m, {found.model}"
    _draw(panels[0], grid, found.perturbation, (-limit, limit), SIGNED_COLOURS, "m/s", title)
    with np.errstate(divide="ignore", invalid="ignore"):
        shown = found.response / measures["amplitude"]
    shown = shown / (_typical(shown) or 1.0)
    title = "Response, divided by its local amplitude"
    _draw(panels[1], grid, shown, (-2.0, 2.0), SIGNED_COLOURS, "relative", title)
    title = "Local correlation of perturbation and response"
    _draw(panels[2], grid, measures["correlation"], (0.0, 1.0), MODEL_COLOURS, "", title)
    _draw(panels[3], grid, *_in_decibels(measures["amplitude"]))


def _draw_points(panels: list[Axes], found: ResolutionTest, points: Values) -> None:
    grid, measures = found.grid, found.measures
    middle = points.shape[1] // 2  # of the rows along y of a volume
    plane = int(_indices(grid, points, 1)[middle])
    section, shown_ones = (points, ...) if grid.ndim == 2 else (points[:, middle], np.s_[:, middle])
    blocks = [_find_blocks(grid, points, axis) for axis in range(grid.ndim)]
    at = found.response[np.ix_(*(_indices(grid, points, axis) for axis in range(grid.ndim)))]
    there = np.isfinite(measures["amplitude"])
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(there, 1.0 / at, np.nan)
    shown = found.response * factor[np.ix_(*blocks)]
    title = f"Points {found.size:.0f} m apart, {found.model}"
    limits = value_limits(found.speed / KM)
    _draw(panels[0], grid, found.speed / KM, limits, MODEL_COLOURS, "km/s", title, plane)
    z, x = (section[there[shown_ones]][:, k] / KM for k in (0, -1))
    signs = np.where(at > 0.0, 1.0, -1.0)[shown_ones][there[shown_ones]]
    panels[0].scatter(x, z, c=signs, cmap="gray", s=16, linewidths=0.5, edgecolors="w")
    title = "Response, divided by its value at the nearest point"
    _draw(panels[1], grid, shown, (-1.0, 1.0), SIGNED_COLOURS, "relative", title, plane)
    widths = measures["width"]
    for axis, name in enumerate(grid.axes):
        values = widths[..., axis]
        known = values[np.isfinite(values)]
        limits = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
        title = f"Width along {name}"
        _draw_blocks(panels[2 + axis], grid, points, values, limits, "m", title)
    decibels, limits, colours, unit, title = _in_decibels(measures["amplitude"])
    _draw_blocks(panels[-1], grid, points, decibels, limits, unit, title, colours)


def _in_decibels(amplitude: Values) -> tuple[Values, tuple[float, float], str, str, str]:
    with np.errstate(divide="ignore", invalid="ignore"):
        decibels = 20.0 * np.log10(np.where(amplitude > 0.0, amplitude, np.nan))
    known = decibels[np.isfinite(decibels)]
    least = max(DARKEST, float(np.floor(known.min() / 10.0) * 10.0)) if known.size else DARKEST
    title = "Amplitude of the response"
    return decibels, (min(least, -10.0), 0.0), ENERGY_COLOURS, "dB re maximum", title


def _draw(
    axes: Axes,
    grid: Grid,
    values: Values,
    limits: tuple[float, float],
    colours: str,
    unit: str,
    title: str,
    plane: int | None = None,
) -> None:
    """Draw an array of the grid; plane: the index along y of the section of a volume."""
    if grid.ndim == 3:
        values = values[:, grid.shape[1] // 2 if plane is None else plane]
    (top, bottom), (left, right) = edges(grid, 0), edges(grid, grid.ndim - 1)
    image = axes.imshow(
        coarsen(values, MOST_CELLS),
        cmap=colours,
        vmin=limits[0],
        vmax=limits[1],
        extent=(left, right, bottom, top),
        aspect="auto",
    )
    style.title(axes, title + _say_section(grid))
    style.add_colour_bar(axes, image, unit, exceeded(values, limits), 0.02)


def _draw_blocks(
    axes: Axes,
    grid: Grid,
    points: Values,
    values: Values,
    limits: tuple[float, float],
    unit: str,
    title: str,
    colours: str = LENGTH_COLOURS,
) -> None:
    """Draw the value of each point in the part of the section nearest to it."""
    if grid.ndim == 3:
        values = values[:, points.shape[1] // 2]
    ends = [_find_ends(grid, points, axis) for axis in (0, grid.ndim - 1)]
    image = axes.pcolormesh(
        ends[1], ends[0], values, cmap=colours, vmin=limits[0], vmax=limits[1], edgecolors="w"
    )
    style.title(axes, title + _say_section(grid))
    style.add_colour_bar(axes, image, unit, exceeded(values, limits), 0.02)
    if values.shape[1] > MOST_NUMBERS:
        return
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            x, z = (0.5 * (e[i] + e[i + 1]) for e, i in ((ends[1], column), (ends[0], row)))
            red, green, blue, _ = image.to_rgba(np.asarray(value))
            dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
            axes.text(
                x,
                z,
                f"{value:.0f}",
                ha="center",
                va="center",
                fontsize=style.SMALL,
                color="w" if dark else "k",
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


def _typical(values: Values) -> float:
    """Return the root mean square of the finite values."""
    values = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0


def _say_section(grid: Grid) -> str:
    return "" if grid.ndim == 2 else ", at the middle of y"
