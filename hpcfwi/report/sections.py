"""The figure of an epoch: sections through the earth, to scale, depth downwards.

`figures` offers it together with the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hpcfwi.model import Grid
from hpcfwi.report import scales, style
from hpcfwi.report.style import KM

GRADIENT_CLIP = 99.0  # percentile of the magnitudes
DARKEST = -60.0  # dB
# A section is drawn to scale between these ratios of width to height, and stretched beyond them.
NARROWEST, WIDEST = 0.4, 7.0
WIDE = 2.2  # from this ratio on, panels stand one below the other
MARKS = 30  # positions drawn at most, so that they stay apart


@dataclass(frozen=True)
class EpochPicture:
    """What the figure of an epoch shows. Arrays have the grid's shape.

    true: m/s, None where it is not known, and then start, the starting model, takes its place;
    inverted: m/s; gradient: misfit per m/s; illuminations: time sums of squared fields;
    sources, receivers: (n, ndim), m, in the grid's coordinates, marked where given.
    """

    epoch: int
    grid: Grid
    true: NDArray[np.float32] | None
    inverted: NDArray[np.float32]
    gradient: NDArray[np.float32]
    source_illumination: NDArray[np.float32]
    receiver_illumination: NDArray[np.float32]
    start: NDArray[np.float32] | None = None
    sources: NDArray[np.float64] | None = None
    receivers: NDArray[np.float64] | None = None


def draw_epoch(path: Path, picture: EpochPicture) -> None:
    """Write `epoch_figure` to `path`."""
    style.save(epoch_figure(picture), path)


def epoch_figure(picture: EpochPicture) -> Figure:
    """True model, inverted model, gradient, source and receiver illumination.

    Both models have the colour scale of the true one, or of the inverted one where the true one
    is not known. Wide models are drawn one below the other, others in two rows.
    """
    grid = picture.grid
    figure, panels = _panels(grid)
    _draw_reference(panels[0], picture)
    _mark_positions(figure, panels[0], picture)
    _draw_velocity(panels[1], picture, picture.inverted, f"Inverted model, epoch {picture.epoch}")

    limit = scales.clip_limit(picture.gradient, GRADIENT_CLIP)
    _draw_section(
        panels[2],
        grid,
        picture.gradient,
        (-limit, limit),
        style.SIGNED_COLOURS,
        f"Gradient, clipped at {GRADIENT_CLIP:g} %",
        "misfit per m/s",
    )
    for axes, energy, title in (
        (panels[3], picture.source_illumination, "Source illumination"),
        (panels[4], picture.receiver_illumination, "Receiver illumination"),
    ):
        level = scales.decibels(energy, DARKEST)
        limits = (DARKEST, 0.0)
        unit = "dB re maximum"
        _draw_section(axes, grid, level, limits, style.ENERGY_COLOURS, title, unit)
    return figure


def _panels(grid: Grid) -> tuple[Figure, list[Axes]]:
    """Five panels for sections of this grid, in a figure that leaves little space empty."""
    ratio = _drawn_ratio(grid)
    if _is_wide(grid):
        figure = style.new_figure(8.0, 5 * (6.6 / ratio + 0.34) + 0.3)
        panels = list(figure.subplots(5, 1))
        inner_x, inner_y = panels[:-1], []
    else:
        figure = style.new_figure(10.0, 2 * (2.2 / ratio + 0.75))
        panels = list(figure.subplot_mosaic("AABBCC;.DDEE.").values())
        inner_x, inner_y = [], [panels[1], panels[2], panels[4]]
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
    """Left, right, bottom and top edge of the first and last cells, in km."""
    (top, bottom), (left, right) = (
        (
            (grid.origin[axis] - 0.5 * grid.spacing[axis]) / KM,
            (grid.last[axis] + 0.5 * grid.spacing[axis]) / KM,
        )
        for axis in (0, -1)
    )
    return left, right, bottom, top


def _draw_reference(axes: Axes, picture: EpochPicture) -> None:
    if picture.true is not None:
        _draw_velocity(axes, picture, picture.true, "True model")
    elif picture.start is not None:
        _draw_velocity(axes, picture, picture.start, "Starting model")
    else:
        style.title(axes, "True model")
        axes.set_facecolor("0.95")
        axes.text(0.5, 0.5, "not known", transform=axes.transAxes, ha="center", va="center")


def _draw_velocity(
    axes: Axes, picture: EpochPicture, velocity: NDArray[np.float32], title: str
) -> None:
    common = picture.inverted if picture.true is None else picture.true
    low, high = scales.value_limits(common)
    # In double precision, or rounding would exceed the limits.
    section = velocity.astype(np.float64) / KM
    _draw_section(
        axes,
        picture.grid,
        section,
        (low / KM, high / KM),
        style.VELOCITY_COLOURS,
        title,
        "P velocity (km/s)",
    )


def _draw_section(
    axes: Axes,
    grid: Grid,
    section: NDArray,
    limits: tuple[float, float],
    colours: str,
    title: str,
    unit: str,
) -> None:
    image = axes.imshow(
        section,
        cmap=colours,
        vmin=limits[0],
        vmax=limits[1],
        extent=_extent(grid),
        aspect=axes.get_aspect(),
    )
    style.title(axes, title)
    width = 0.02 if _is_wide(grid) else 0.04
    style.add_colour_bar(axes, image, unit, scales.exceeded(section, limits), width)


def _mark_positions(figure: Figure, axes: Axes, picture: EpochPicture) -> None:
    """Some of the receivers and sources, and how many there are in the figure's lower left."""
    for positions, marker, size, colour, name in (
        (picture.receivers, "v", 3.5, "white", "receiver"),
        (picture.sources, "*", 5.5, style.MARK, "source"),
    ):
        if positions is None:
            continue
        shown = positions[:: -(-len(positions) // MARKS)] / KM
        axes.plot(
            shown[:, -1],
            shown[:, 0],
            marker,
            color=colour,
            markersize=size,
            markeredgecolor="black",
            markeredgewidth=0.4,
            label=f"{len(positions)} {name}{'s' if len(positions) > 1 else ''}",
            clip_on=False,
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
