"""The figures of models: epochs, images, vertical profiles, and resolution tests.

Sections are to scale, with depth downwards. For a volume each panel of an epoch has three slices,
laid out like an unfolded cube, and a resolution test the section nearest to the middle of y.
`panels` decides the contents of an epoch, and `inversion.resolution` has the measures of a test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from hpcfwi.model import PARAMETERS, Grid
from hpcfwi.report import style
from hpcfwi.report.panels import (
    DARKEST,
    ENERGY_COLOURS,
    KM,
    MODEL_COLOURS,
    OF_PARAMETER,
    SIGNED_COLOURS,
    EpochPicture,
    Excerpt,
    Panel,
    ResolutionTest,
    Values,
    clip_limit,
    count,
    edges,
    panels,
    take_section,
    thin_out,
    value_limits,
)

Extent = tuple[float, float, float, float]
"""The left, right, bottom and top edge of a section as drawn, km."""


def find_extent(grid: Grid, vertical: int = 0, horizontal: int = -1) -> Extent:
    """Return the extent of a section of a grid, whose vertical axis points downwards."""
    (top, bottom), (left, right) = edges(grid, vertical), edges(grid, horizontal)
    return left, right, bottom, top


def prepare(axes: Axes, extent: Extent, x: str, y: str, ticks: int = 5) -> None:
    """Set limits, ticks and names of axes; an axis without a name has no numbers.

    ticks: largest number of intervals along x.
    """
    left, right, bottom, top = extent
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    style.set_ticks(axes.xaxis, ticks)
    style.set_ticks(axes.yaxis, 5)
    style.label(axes, x, y)
    axes.tick_params(labelbottom=bool(x), labelleft=bool(y))


def draw_section(
    axes: Axes,
    values: NDArray[np.floating],
    extent: Extent,
    colours: str,
    limits: tuple[float | None, float | None] = (None, None),
    alpha: float | None = None,
) -> AxesImage:
    """Draw a section and return its image; limits: of the colours, by default those of values."""
    return axes.imshow(
        values,
        cmap=colours,
        vmin=limits[0],
        vmax=limits[1],
        extent=extent,
        aspect=axes.get_aspect(),
        alpha=alpha,
    )


# A section is drawn to scale if its ratio of width to height is in this range, otherwise stretched.
NARROWEST, WIDEST = 0.4, 7.0
WIDE = 2.2  # from this ratio on, panels are arranged in one column
MARKS = 30  # largest number of positions that are drawn, so that they stay apart


def epoch_figure(*pictures: EpochPicture) -> Figure:
    """Draw the true and the inverted model, its change, the gradient and both illuminations.

    pictures: one for each inverted parameter.
    """
    first, *others = pictures
    first = first.cut()
    alike = [first, *(replace(other, cuts=first.cuts, places=first.places) for other in others)]
    return (_draw_volumes if first.grid.ndim == 3 else _draw_sections)(alike)


def _draw_sections(pictures: Sequence[EpochPicture]) -> Figure:
    """Draw the panels of pictures, each of another parameter of the same model.

    A single picture has one column if the model is wide, and otherwise two rows. Several pictures
    have a column each if the model is wide, and otherwise a row each.
    """
    extent = left, right, bottom, top = find_extent(pictures[0].grid)
    ratio = (right - left) / (bottom - top)
    drawn, is_wide = min(max(ratio, NARROWEST), WIDEST), ratio >= WIDE
    at = _arrange(len(pictures), is_wide)
    rows, columns = (1 + max(numbers) for numbers in zip(*at, strict=True))
    if is_wide:
        # Two columns fit beside each other at three quarters of the size
        size = 6.6 if columns == 1 else 5.0
        figure = style.new_figure(columns * (size + 1.4), rows * (size / drawn + 0.34) + 0.3)
    else:
        figure = style.new_figure(10.0 / 3.0 * columns, rows * (2.2 / drawn + 0.75))
    cells = figure.add_gridspec(rows, columns)
    places = [figure.add_subplot(cells[place]) for place in at]
    for axes, panel, (row, column) in zip(places, panels(pictures), at, strict=True):
        is_lowest = (row + 1, column) not in at
        axes.set_aspect(ratio / drawn)
        x, y = "x (km)" * is_lowest, "depth (km)" * (column == 0)
        prepare(axes, extent, x, y, 10 if is_wide else 5)
        style.title(axes, panel.title)
        if panel.sections is None:
            style.say_instead(axes, panel.instead)
            continue
        image = draw_section(axes, panel.sections[0], extent, panel.colours, panel.limits)
        width = 0.02 if is_wide else 0.04
        style.add_colour_bar(axes, image, panel.unit, width, panel.sections[0])
    _mark_positions(figure, places[0], pictures[0])
    return figure


def _arrange(parameters: int, is_wide: bool) -> list[tuple[int, int]]:
    """Return the row and the column of each panel, in the order of `panels`."""
    if parameters == 1:
        return [(k, 0) if is_wide else (k // 3, k % 3) for k in range(6)]
    models = [(number, k) for number in range(parameters) for k in range(OF_PARAMETER)]
    if is_wide:
        models = [(k, number) for number, k in models]
    last = 1 + models[-1][0]
    return [*models, (last, 0), (last, 1)]


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
        style.add_legend(figure, handles, 2, handletextpad=0.1, columnspacing=1.0)


GAP = 0.09  # gap between slices, relative to the cube's longest side
SHORTEST = 0.25  # least length of a side, relative to the longest one; others are stretched
WIDE_VOLUME = 1.8  # from this ratio of width to height on, there are two columns, else three
WIDTH = 11.5  # inches
VOLUME_MARKS = 60  # largest number of positions that are drawn along each axis
NAMES = ("depth", "y", "x")
# The axes drawn vertically and horizontally in the map, the inline and the crossline section, which
# are cut across z, y and x
SLICES = ((1, 2), (0, 2), (0, 1))


def _draw_volumes(pictures: Sequence[EpochPicture]) -> Figure:
    """Draw the panels, each with a map, the inline section below it, and the crossline section.

    Lines mark the intersections of slices. The figure is to scale, except that short sides are
    stretched.
    """
    grid, cuts = pictures[0].grid, pictures[0].cuts
    # The lengths of the cube as drawn along z, y and x, and the size of the unfolded cube
    lengths = np.array([np.ptp(edges(grid, axis)) for axis in range(3)])
    z, y, x = sides = np.maximum(lengths / lengths.max(), SHORTEST)
    width, height = x + GAP + y, z + GAP + y
    at = _arrange(len(pictures), is_wide=False)
    if len(pictures) == 1 and width / height >= WIDE_VOLUME:
        at = [(k // 2, k % 2) for k in range(6)]
    rows, columns = (1 + max(numbers) for numbers in zip(*at, strict=True))
    wide = WIDTH * max(1.0, columns / 3.0)
    figure = style.new_figure(wide, rows * ((wide / columns - 0.9) / (width / height) + 0.75))
    cells = figure.add_gridspec(rows, columns)
    for where, panel in zip(at, panels(pictures), strict=True):
        place = figure.add_subplot(cells[where])
        place.set_axis_off()
        place.set_box_aspect(height / width)
        _draw_volume(place, grid, panel, cuts, sides)
    return figure


def _draw_volume(
    place: Axes, grid: Grid, panel: Panel, cuts: tuple[int, ...], sides: Values
) -> None:
    style.title(place, panel.title if panel.caption is None else f"{panel.title}, {panel.caption}")
    z, y, x = sides
    width, height = x + GAP + y, z + GAP + y
    boxes = (0.0, z + GAP, x, y), (0.0, 0.0, x, z), (x + GAP, 0.0, y, z)
    insets = []
    for cut, (left, bottom, wide, high) in enumerate(boxes):
        inset = place.inset_axes((left / width, bottom / height, wide / width, high / height))
        insets.append(inset)
        vertical, horizontal = SLICES[cut]
        extent = west, east, last, first = find_extent(grid, vertical, horizontal)
        ends = (last, first) if vertical == 0 else (first, last)
        # The other two slices share the axes of the inline section
        across = f"{NAMES[horizontal]} (km)" * (cut != 0)
        along = f"{NAMES[vertical]} (km)" * (cut != 2)
        prepare(inset, (west, east, *ends), across, along)
        if panel.sections is None:
            style.say_instead(inset, panel.instead)
            continue
        draw_section(inset, panel.sections[cut], extent, panel.colours, panel.limits)
        _mark_cuts(inset, grid, cut, cuts)
    if panel.sections is None:
        return
    shown = np.concatenate([section.ravel() for section in panel.sections])
    # The bar is lower than the map, because a factor of its numbers may be written above it
    style.add_colour_bar(insets[0], insets[0].images[0], panel.unit, 0.05, shown, height=0.9)
    origins = panel.origins
    if origins is not None and (inside := grid.contains(origins)).any():
        _mark_origins(insets[0], origins[inside])


def _mark_cuts(axes: Axes, grid: Grid, cut: int, cuts: tuple[int, ...]) -> None:
    """Draw lines where the other two slices intersect the one that cuts an axis."""
    at = [grid.coordinates(axis)[index] / KM for axis, index in enumerate(cuts)]
    vertical, horizontal = SLICES[cut]
    for draw, axis in ((axes.axvline, horizontal), (axes.axhline, vertical)):
        draw(at[axis], color="black", gapcolor="white", linewidth=0.7, dashes=(4, 4))
    axes.annotate(
        f"{NAMES[cut]} {at[cut]:.2f} km",
        (0.0, 1.0),
        xycoords="axes fraction",
        xytext=(4.0, -4.0),
        textcoords="offset points",
        fontsize=style.SMALL,
        verticalalignment="top",
        bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1.5},
    )


def _mark_origins(axes: Axes, positions: Values) -> None:
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


CLIP = 98.0  # percentile of the magnitudes
OPAQUE = 0.55  # opacity of the image over the model


def image_figure(
    images: Mapping[str, NDArray[np.floating]],
    truths: Mapping[str, NDArray[np.floating]],
    *pictures: EpochPicture,
) -> Figure:
    """Draw reflectivities, alone and over the starting model, and the true ones.

    images, truths: by parameter, with the shape of the grid; truths are empty if they are not
    known. pictures: one for each parameter, with its starting model.

    The panels of a parameter are a column or, if there are several parameters and the model is not
    wide, a row. Each reflectivity has a separate grey scale, because an image lacks the frequencies
    that the wavelet lacks. The scale is clipped at a percentile of the cells that both waves of the
    first picture illuminate.
    """
    first = pictures[0].cut()
    grid, lit = first.grid, first.find_lit()
    _, plane, _ = first.cuts or (0, 0, 0)
    where = f", y = {grid.coordinates(1)[plane] / KM:.2f} km" if first.cuts else ""
    extent = left, right, bottom, top = find_extent(grid)
    shape = 2 + bool(truths), len(pictures)
    are_rows = len(pictures) > 1 and (right - left) / (bottom - top) < WIDE
    rows, columns = shape[::-1] if are_rows else shape
    width = 8.0 if columns == 1 else 5.0
    height = min(max((width - 1.0) * (bottom - top) / (right - left), 1.2), 6.0)
    figure = style.new_figure(columns * width, rows * (height + 0.35) + 0.3)
    places = figure.subplots(rows, columns, sharex=True, squeeze=False)
    for axes, (row, column) in zip(places.flat, np.ndindex(rows, columns), strict=True):
        prepare(axes, extent, "x (km)" * (row == rows - 1), "depth (km)" * (column == 0), 10)
    for picture, own in zip(pictures, places if are_rows else places.T, strict=True):
        name, start = picture.parameter.name, picture.start
        assert start is not None
        of = "" if len(pictures) == 1 else f" in {name}"
        shown = [(f"Reflectivity{of}, iteration {picture.epoch}", images[name])]
        shown.append((f"Reflectivity{of} over the starting model", images[name]))
        if truths:
            shown.append((f"True reflectivity{of}", truths[name]))
        for number, (axes, (title, array)) in enumerate(zip(own, shown, strict=True)):
            style.title(axes, title + where)
            values = take_section(array, plane)
            # Cells that were kept, such as the sea floor, have no image, but a true reflectivity
            free = take_section(images[name], plane) != 0.0
            limit = clip_limit(values, CLIP, lit & free if number == 2 else lit)
            if number == 1:
                draw_section(axes, take_section(start, plane), extent, MODEL_COLOURS)
                draw_section(axes, values, extent, "gray", (-limit, limit), OPAQUE)
            else:
                drawn = draw_section(axes, values, extent, "gray", (-limit, limit))
                style.add_colour_bar(axes, drawn, "reflectivity", 0.02, values)
    return figure


KEPT = "0.92"


def profiles_figure(*pictures: EpochPicture) -> Figure:
    """Draw the true, initial and inverted model over depth; cells that are kept are shaded.

    pictures: one for each inverted parameter, which has a row.
    """
    cut = [picture.cut() for picture in pictures]
    places = cut[0].places
    rows, middle = len(cut), len(places) // 2
    figure = style.new_figure(1.2 + 1.7 * len(places), 4.2 * rows)
    panels = figure.subplots(rows, len(places), sharex="row", sharey=True, squeeze=False)
    for row, picture in zip(panels, cut, strict=True):
        for number, (axes, place) in enumerate(zip(row, places, strict=True)):
            _draw_profiles(axes, picture, number, place)
            style.label(
                axes, picture.parameter.label * (number == middle), "depth (km)" * (number == 0)
            )
        if picture.scaled is not None:
            models = (picture.excerpt(name) for name in ("true", "start", "inverted"))
            low, high = value_limits([model.limits for model in models if model is not None])
            margin = 0.05 * (high - low)
            scale = picture.parameter.figure_scale
            row[0].set_xlim((low - margin) / scale, (high + margin) / scale)
        style.set_ticks(row[0].xaxis, 4)
    # Profiles may have no kept cells, or several ranges of them, so that labels are made unique
    named = {
        name: handle
        for axes in panels.flat
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    style.add_legend(figure, [*named.values()], 4)
    return figure


def _draw_profiles(axes: Axes, picture: EpochPicture, number: int, place: tuple[int, ...]) -> None:
    """Draw the profiles at a place; number: its index in `find_places`."""
    grid, scale = picture.grid, picture.parameter.figure_scale
    depths = grid.coordinates(0) / KM
    top, bottom = edges(grid, 0)
    axes.set_ylim(bottom, top)
    if picture.kept is not None:
        # Edges at which cells change from not kept to kept, or back
        column = np.pad(picture.kept.T[place[::-1]], 1)
        turns = np.flatnonzero(column[1:] != column[:-1])
        for first, end in (top + turns * grid.spacing[0] / KM).reshape(-1, 2):
            axes.axhspan(first, end, color=KEPT, linewidth=0, label="kept")
    for model, name, colour, line in (
        (picture.true, "true", "0.25", "-"),
        (picture.start, "initial", "0.6", "--"),
        (picture.inverted, f"inverted, epoch {picture.epoch}", style.MARK, "-"),
    ):
        if model is not None:
            values = model.profiles[number] if isinstance(model, Excerpt) else model.T[place[::-1]]
            axes.plot(values / scale, depths, line, color=colour, linewidth=1.3, label=name)
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    named = zip(grid.axes[1:], range(1, grid.ndim), place, strict=True)
    style.title(
        axes, ", ".join(f"{n} = {grid.coordinates(a)[k] / KM:.2f}" for n, a, k in named) + " km"
    )


LENGTH_COLOURS = "viridis_r"
TALLEST = 1.5  # height over width of a figure in one column
MOST_NUMBERS = 16  # number of points in a row up to which values are written


def resolution_figure(found: ResolutionTest) -> Figure:
    """Return a figure of the perturbation, the response and the measures."""
    figure, panels = _make_panels(found.grid, 4 if found.points is None else 3 + found.grid.ndim)
    if found.points is None:
        _draw_checkerboard(panels, found)
    else:
        _draw_points(panels, found, found.points)
    return figure


def _make_panels(grid: Grid, count: int) -> tuple[Figure, list[Axes]]:
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
    measures, draw = found.measures, partial(_draw_values, found.grid, found.grid.shape[1] // 2)
    limit = float(np.abs(found.perturbation).max()) or 1.0
    title = f"Checkerboard, cells of {found.size:.0f} m in {found.model}"
    of = PARAMETERS[found.parameter]
    unit = f"{of.title} ({of.unit})" if of.unit else of.title
    draw(panels[0], title, found.perturbation, (-limit, limit), SIGNED_COLOURS, unit)
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
    along = [np.unique(points[..., axis]) for axis in range(grid.ndim)]
    # The number of the nearest point for each cell along an axis
    blocks = [
        np.searchsorted(0.5 * (places[1:] + places[:-1]), grid.coordinates(axis))
        for axis, places in enumerate(along)
    ]
    at = found.response[grid.cells_of(points)].reshape(points.shape[:-1])
    there = np.isfinite(measures["amplitude"])
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(there & (at != 0.0), 1.0 / at, np.nan)
    draw = partial(_draw_values, grid, int(grid.cells_of(points[0, middle])[1][0]))
    title, of = f"Points {found.size:.0f} m apart in {found.model}", PARAMETERS[found.parameter]
    values = found.values / of.figure_scale
    draw(panels[0], title, values, value_limits(values), MODEL_COLOURS, of.label)
    row = np.s_[:, middle] if grid.ndim == 3 else np.s_[:]
    z, x = (points[row][there[row]][:, k] / KM for k in (0, -1))
    signs = np.where(at > 0.0, 1.0, -1.0)[row][there[row]]
    panels[0].scatter(x, z, c=signs, cmap="gray", s=16, linewidths=0.5, edgecolors="w")
    shown = found.response * factor[np.ix_(*blocks)]
    title = "Response, divided by its value at the nearest point"
    draw(panels[1], title, shown, (-1.0, 1.0), SIGNED_COLOURS, "relative")
    ends = [_find_ends(grid, along[axis], axis) for axis in (0, grid.ndim - 1)]
    draw = partial(_draw_blocks, grid, ends, row)
    for axis, name in enumerate(grid.axes):
        widths = measures["width"][..., axis]
        known = widths[np.isfinite(widths)]
        limits = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
        draw(panels[2 + axis], f"Width along {name}", widths, limits, LENGTH_COLOURS, "m")
    draw(panels[-1], *_in_decibels(measures["amplitude"]))


Shown = tuple[str, Values, tuple[float, float], str, str]
"""A title, values, the limits of the colours, the colours, and the unit."""


def _in_decibels(amplitude: Values) -> Shown:
    with np.errstate(divide="ignore", invalid="ignore"):
        decibels = 20.0 * np.log10(np.where(amplitude > 0.0, amplitude, np.nan))
    known = decibels[np.isfinite(decibels)]
    least = max(DARKEST, float(np.floor(known.min() / 10.0) * 10.0)) if known.size else DARKEST
    title = "Amplitude of the response"
    return title, decibels, (min(least, -10.0), 0.0), ENERGY_COLOURS, "dB re maximum"


def _draw_values(grid: Grid, plane: int, axes: Axes, *shown: *Shown) -> None:
    """Draw an array of the grid; plane: see `take_section`."""
    title, values, limits, colours, unit = shown
    section = take_section(values, plane)
    image = draw_section(axes, section, find_extent(grid), colours, limits)
    style.title(axes, title + _say_section(grid))
    style.add_colour_bar(axes, image, unit, 0.02, section)


def _draw_blocks(grid: Grid, ends: Sequence[Values], row: Any, axes: Axes, *shown: *Shown) -> None:
    """Draw the values of points; ends: of their blocks along z and x, km; row: of the section."""
    title, values, limits, colours, unit = shown
    values = values[row]
    image = axes.pcolormesh(
        ends[1], ends[0], values, cmap=colours, vmin=limits[0], vmax=limits[1], edgecolors="w"
    )
    style.title(axes, title + _say_section(grid))
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


def _find_ends(grid: Grid, coordinates: Values, axis: int) -> Values:
    """Return the ends of the parts of the model that are nearest to each point, km."""
    places = coordinates / KM
    if len(places) == 1:
        return np.array(edges(grid, axis))
    half = 0.5 * np.diff(places)
    middles = places[:-1] + half
    return np.array([places[0] - half[0], *middles, places[-1] + half[-1]])


def _say_section(grid: Grid) -> str:
    return "" if grid.ndim == 2 else ", at the middle of y"
