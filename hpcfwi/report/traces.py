"""Traces side by side, as grey images: what figures of gathers have in common."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from hpcfwi.report import scales, style
from hpcfwi.report.scales import KM


def draw_traces(
    axes: Axes,
    traces: NDArray[np.floating],
    places: NDArray[np.float64],
    dt: float,
    limit: float,
    start: float = 0.0,
) -> tuple[AxesImage, float, float]:
    """Traces (trace, time), every `dt` (s) from `start`, at places (trace,) (m) from left to right.

    limit: the amplitude that is black, as its opposite is white. Returns also where the first and
    the last are, m.
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
            start + (traces.shape[1] - 0.5) * dt,
            start - 0.5 * dt,
        ),
    )
    style.set_ticks(axes.xaxis, 5)
    return image, first, last
