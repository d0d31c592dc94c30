"""The figure of a migration: reflectors, alone and over the model in which they were found.

What an image is, is `inversion.images`'. Of a volume the section through the middle of y is shown.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hpcfwi.model import Grid
from hpcfwi.report import scales, style
from hpcfwi.report.excerpts import MOST_CELLS
from hpcfwi.report.picture import MODEL_COLOURS, edges

CLIP = 98.0  # percentile of the magnitudes
# Of the image, where the model is seen through it
OPAQUE = 0.55


def image_figure(
    image: NDArray[np.floating],
    background: NDArray[np.floating],
    truth: NDArray[np.floating] | None,
    grid: Grid,
    epoch: int,
) -> Figure:
    """Reflectivity after an iteration; over the background; and the true one, where it is known.

    Arrays have the grid's shape. Each reflectivity has a grey scale of its own, as an image knows
    no frequencies beyond the wavelet's.
    """
    shown = {f"Reflectivity, iteration {epoch}": image, "Over the model of the waves": image}
    if truth is not None:
        shown["True reflectivity"] = truth
    (top, bottom), (left, right) = edges(grid, 0), edges(grid, grid.ndim - 1)
    extent = left, right, bottom, top
    height = min(max(7.0 * (bottom - top) / (right - left), 1.2), 6.0)
    figure = style.new_figure(8.0, len(shown) * (height + 0.35) + 0.3)
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (title, values) in zip(panels, shown.items(), strict=True):
        last = axes is panels[-1]
        over = _section(background) if "Over" in title else None
        _draw(axes, _section(values), over, extent)
        style.title(axes, title + ("" if grid.ndim == 2 else ", middle of y"))
        style.label(axes, "x (km)" if last else "", "depth (km)")
        style.set_ticks(axes.xaxis, 10)
        style.set_ticks(axes.yaxis, 5)
    return figure


def _draw(
    axes: Axes,
    values: NDArray[np.floating],
    over: NDArray[np.floating] | None,
    extent: tuple[float, float, float, float],
) -> None:
    limit = scales.clip_limit(values, CLIP)
    if over is not None:
        axes.imshow(over, cmap=MODEL_COLOURS, extent=extent, aspect="auto")
    drawn = axes.imshow(
        values,
        cmap="gray",
        vmin=-limit,
        vmax=limit,
        extent=extent,
        aspect="auto",
        alpha=None if over is None else OPAQUE,
    )
    if over is None:
        extend = scales.exceeded(values, (-limit, limit))
        style.add_colour_bar(axes, drawn, "reflectivity", extend, 0.02)


def _section(values: NDArray[np.floating]) -> NDArray[np.floating]:
    section = values if values.ndim == 2 else values[:, values.shape[1] // 2]
    return scales.coarsen(section, MOST_CELLS)
