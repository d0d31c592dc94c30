"""Traces side by side, as grey images: what figures of gathers have in common."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from hpcfwi.report import scales, style
from hpcfwi.report.scales import KM
from hpcfwi.survey import TimeAxis


def draw_traces(
    axes: Axes,
    traces: NDArray[np.floating],
    places: NDArray[np.float64],
    axis: TimeAxis,
    limit: float,
) -> tuple[AxesImage, float, float]:
    """Draw traces (trace, time) at places (trace,), in m, from left to right.

    axis: time axis of the traces; limit: the amplitude that is black, as its opposite is white.
    Returns the image, and the places of the first and the last trace, in m.
    """
    even, first, last = scales.evenly_spaced(traces, places)
    half = 0.5 * (last - first) / max(len(even) - 1, 1) or 0.5
    image = axes.imshow(
        even.T,
        cmap=style.TRACE_COLOURS,
        vmin=-limit,
        vmax=limit,
        aspect="auto",
        extent=(
            (first - half) / KM,
            (last + half) / KM,
            axis.start + (traces.shape[1] - 0.5) * axis.dt,
            axis.start - 0.5 * axis.dt,
        ),
    )
    style.set_ticks(axes.xaxis, 5)
    return image, first, last
