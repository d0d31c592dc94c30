"""The figure of a migration: reflectors, alone and over the model in which they were found.

`inversion.resolution` says what an image is. Of a volume the same section across y is shown as in
the figure of an epoch.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hpcfwi.report import scales, style
from hpcfwi.report.excerpts import MOST_CELLS
from hpcfwi.report.picture import MODEL_COLOURS, EpochPicture, edges
from hpcfwi.report.scales import KM

CLIP = 98.0  # percentile of the magnitudes
# Of the image, where the model is seen through it
OPAQUE = 0.55


def image_figure(
    image: NDArray[np.floating],
    background: NDArray[np.floating],
    truth: NDArray[np.floating] | None,
    picture: EpochPicture,
) -> Figure:
    """Return a figure of the reflectivity, alone and over the background, and of the true one.

    Arrays have the shape of the picture's grid; truth is None where it is not known. Each
    reflectivity has a grey scale of its own, as an image knows no frequencies beyond the wavelet's.
    It is clipped at a percentile of the cells that both waves of the picture light.
    """
    picture = picture.cut()
    grid, lit = picture.grid, picture.find_lit()
    plane = picture.cuts[1] if picture.cuts else None
    shown = {
        f"Reflectivity, iteration {picture.epoch}": image,
        "Over the model of the waves": image,
    }
    if truth is not None:
        shown["True reflectivity"] = truth
    (top, bottom), (left, right) = edges(grid, 0), edges(grid, grid.ndim - 1)
    extent = left, right, bottom, top
    height = min(max(7.0 * (bottom - top) / (right - left), 1.2), 6.0)
    figure = style.new_figure(8.0, len(shown) * (height + 0.35) + 0.3)
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (title, values) in zip(panels, shown.items(), strict=True):
        last = axes is panels[-1]
        over = _section(background, plane) if "Over" in title else None
        _draw(axes, _section(values, plane), over, lit, extent)
        where = "" if plane is None else f", y = {grid.coordinates(1)[plane] / KM:.2f} km"
        style.title(axes, title + where)
        style.label(axes, "x (km)" if last else "", "depth (km)")
        style.set_ticks(axes.xaxis, 10)
        style.set_ticks(axes.yaxis, 5)
    return figure


def _draw(
    axes: Axes,
    values: NDArray[np.floating],
    over: NDArray[np.floating] | None,
    lit: NDArray[np.bool_],
    extent: tuple[float, float, float, float],
) -> None:
    limit = scales.clip_limit(values, CLIP, lit)
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


def _section(values: NDArray[np.floating], plane: int | None) -> NDArray[np.floating]:
    """Return what is drawn of an array; plane: the index along y in a volume."""
    return scales.coarsen(values if plane is None else values[:, plane], MOST_CELLS)
