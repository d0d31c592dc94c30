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
    gathers: Sequence[tuple[int, NDArray[np.float64], NDArray, NDArray, NDArray[np.float64]]],
    axis: TimeAxis,
    ratio: float,
    offsets: NDArray[np.float64],
    lags: NDArray[np.float64],
    period: float,
) -> Figure:
    """Return a figure of observed, simulated and residual traces, and of when first arrivals are.

    Parameters
    ----------
    gathers
        Of each shot its number, offsets (trace,) in m, observed and simulated traces (trace, time),
        and picks (line, trace) in s, which are marked, NaN where there is none.
    axis
        Time axis of the traces.
    ratio
        Of observed amplitudes to simulated ones, negative where their signs are opposite. Simulated
        traces are multiplied by it where they differ in sign or much in size; it is 0 or NaN where
        it is not known.
    offsets, lags
        Of first arrivals, in m and s.
    period
        In s; a misfit of traces forgives half of it.
    """
    rows = len(gathers)
    figure = style.new_figure(9.0, ROW * rows + LAGS)
    grid = figure.add_gridspec(rows + 1, 3, height_ratios=[ROW] * rows + [LAGS])
    is_like = 0.5 <= ratio <= 2.0 or not abs(ratio) > 0.0
    factor = "" if is_like else f", times {scales.tell_factor(ratio)}"
    for row, (shot, places, observed, simulated, picks) in enumerate(gathers):
        limit = scales.clip_limit(observed, CLIP)
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
            for line in picks if np.isfinite(picks).any() else ():
                axes.plot(places / KM, line, "_", color=style.MARK, markersize=2, linewidth=0)
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
