"""The figure of `hpcfwi check`: observed traces beside those of the starting model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hpcfwi.report import scales, style
from hpcfwi.report.scales import KM
from hpcfwi.report.traces import draw_traces
from hpcfwi.survey import TimeAxis

CLIP = 98.0  # percentile of the magnitudes
ROW, LAGS = 2.6, 2.4  # inches


def comparison_figure(
    gathers: Sequence[tuple[int, NDArray[np.float64], NDArray, NDArray]],
    axis: TimeAxis,
    ratio: float,
    offsets: NDArray[np.float64],
    lags: NDArray[np.float64],
    period: float,
) -> Figure:
    """Observed, simulated and residual traces of some shots; below, how late first arrivals are.

    gathers: of each shot its number, offsets (trace,) in m, and observed and simulated traces
    (trace, time); axis: their time axis; ratio: of observed amplitudes to
    simulated ones, by which these are multiplied where they differ much; offsets (m) and lags (s)
    of first arrivals; period: s, half of which is what a misfit of traces forgives.
    """
    rows = len(gathers)
    figure = style.new_figure(9.0, ROW * rows + LAGS)
    grid = figure.add_gridspec(rows + 1, 3, height_ratios=[ROW] * rows + [LAGS])
    for row, (shot, places, observed, simulated) in enumerate(gathers):
        limit = scales.clip_limit(observed, CLIP)
        factor = "" if 0.5 <= ratio <= 2.0 else f", times {ratio:.2g}"
        scaled = simulated * ratio if factor else simulated
        for column, (name, traces) in enumerate(
            (
                (f"Shot {shot}, observed", observed),
                (f"simulated{factor}", scaled),
                ("observed - simulated" + ", scaled" * bool(factor), observed - scaled),
            )
        ):
            axes = figure.add_subplot(grid[row, column])
            draw_traces(axes, traces, places, axis, limit)
            style.title(axes, name)
            style.label(
                axes,
                "offset (km)" if row == rows - 1 else "",
                "time (s)" if column == 0 else "",
            )
    axes = figure.add_subplot(grid[rows, :])
    half = 0.5e3 * period
    axes.axhspan(-half, half, color=style.LIGHT, alpha=0.3, linewidth=0)
    axes.axhline(0.0, color="0.6", linewidth=0.8)
    skipped = np.abs(lags) > 0.5 * period
    for which, colour in ((~skipped, style.STRONG), (skipped, style.MARK)):
        axes.plot(offsets[which] / KM, 1e3 * lags[which], ".", color=colour, markersize=3)
    style.title(axes, f"First arrivals; shaded: off by less than half a period ({half:.0f} ms)")
    style.label(axes, "offset (km)", "observed later by (ms)")
    return figure
