"""Figures that compare simulated with observed traces, before and after a stage.

The functions take arrays; `inversion.shot_qc` and `plan.comparison` choose the shots and compute
the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hpcfwi.report import style
from hpcfwi.report.figures import draw_traces
from hpcfwi.report.panels import KM, clip_limit, last_above, tell_factor, value_limits
from hpcfwi.survey import TimeAxis

CLIP = 98.0  # percentile of the magnitudes
ROW = 2.7  # inches
GROUPS = 12  # number of groups of interleaved traces
BINS = 40  # number of bins of offsets
CYCLIC = "twilight_shifted"  # pale at 0, dark at both ends
NOTHING = "0.75"
LEAST = 0.05  # least amplitude of frequencies that are shown, relative to the largest amplitude

Gather = tuple[str, NDArray[np.float64], NDArray[np.float32], NDArray[np.float32]]
"""A title, offsets (trace,) in m, observed and simulated traces (trace, time) of a shot."""


def traces_figure(
    gathers: Sequence[Gather], axis: TimeAxis, epoch: int, scaled: bool = False
) -> Figure:
    """Return a figure with a row for each gather: observed, interleaved and residual traces.

    Each row has one grey scale. axis: time axis of the traces; epoch: number of the epoch after
    which they were simulated; scaled: True if each simulated trace has the norm of the observed
    one.
    """
    rows = len(gathers)
    figure = style.new_figure(9.0, ROW * rows + 0.3)
    panels = figure.subplots(rows, 3, squeeze=False)
    for number, (title, places, observed, simulated) in enumerate(gathers, start=1):
        row = panels[number - 1]
        limit = clip_limit(observed, CLIP)
        turns = take_turns(places, min(GROUPS, places.size))
        mixed = np.where(turns[:, None], simulated, observed)
        for axes, (name, traces) in zip(
            row,
            (
                (f"{title}, observed", observed),
                (f"interleaved, red: simulated{', scaled' * scaled}", mixed),
                (f"observed - simulated, epoch {epoch}", observed - simulated),
            ),
            strict=True,
        ):
            if places.size:
                draw_traces(axes, traces, places, axis, limit)
            else:
                style.say_unknown(axes, "no traces")
            style.title(axes, name)
            style.label(
                axes, "offset (km)" if number == rows else "", "time (s)" if axes is row[0] else ""
            )
            axes.tick_params(labelleft=axes is row[0])
        _mark_turns(row[1], places, turns)
    return figure


def take_turns(places: NDArray[np.float64], groups: int) -> NDArray[np.bool_]:
    """Return True for the traces (trace,) of every second group, if groups have equal sizes."""
    rank = np.argsort(np.argsort(places, kind="stable"), kind="stable")
    return np.asarray((rank * groups // max(places.size, 1)) % 2 == 1)


def fit_figure(
    shots: Sequence[tuple[int, float, NDArray[np.float64], NDArray[np.float64]]],
    frequency: float,
    spectra: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]],
    epoch: int,
    scaled: bool = False,
) -> Figure:
    """Draw phase differences by shot and offset, the misfit by shot, and the fit by frequency.

    shots: number, misfit, offsets (trace,) in m and phases (trace,) in degrees of each shot, with
    NaN for no phase; frequency: frequency of the phases, Hz; spectra: frequencies (Hz), and
    amplitudes of the observed data and of the residual; epoch: number of the epoch after which the
    traces were simulated; scaled: True if all traces have the same norm.
    """
    figure = style.new_figure(9.0, 5.2)
    grid = figure.add_gridspec(2, 2, height_ratios=[3, 2], width_ratios=[5, 4])
    phases = figure.add_subplot(grid[0, 0])
    misfits = figure.add_subplot(grid[1, 0], sharex=phases)
    amplitude = figure.add_subplot(grid[0, 1])
    ratio = figure.add_subplot(grid[1, 1], sharex=amplitude)
    _draw_phases(phases, shots, frequency)
    misfits.bar(np.arange(len(shots)), [shot[1] for shot in shots], 0.8, color=style.STRONG)
    misfits.set_xticks(np.arange(len(shots)), [str(shot[0]) for shot in shots])
    style.title(misfits, f"Misfit by shot, epoch {epoch}")
    style.label(misfits, "shot", "misfit")
    misfits.ticklabel_format(axis="y", scilimits=(-2, 3))
    _draw_spectra(amplitude, ratio, *spectra, scaled)
    return figure


def bin_phases(
    offsets: NDArray[np.float64], phases: NDArray[np.float64], ends: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the circular means, degrees, of phases (trace,) in bins of offsets (trace,).

    ends: limits of the bins, m. Bins without phases have NaN.
    """
    known = np.isfinite(phases)
    bins = np.clip(np.digitize(offsets[known], ends) - 1, 0, ends.size - 2)
    sums = np.zeros(ends.size - 1, dtype=np.complex128)
    np.add.at(sums, bins, np.exp(1j * np.radians(phases[known])))
    there = np.bincount(bins, minlength=sums.size) > 0
    return np.where(there, np.degrees(np.angle(sums)), np.nan)


def _draw_phases(
    axes: Axes,
    shots: Sequence[tuple[int, float, NDArray[np.float64], NDArray[np.float64]]],
    frequency: float,
) -> None:
    offsets = np.concatenate([shot[2] for shot in shots])
    low, high = value_limits(offsets)
    ends = np.linspace(low, high, BINS + 1)
    image = axes.imshow(
        np.stack([bin_phases(places, phases, ends) for _, _, places, phases in shots], axis=1),
        cmap=CYCLIC,
        vmin=-180.0,
        vmax=180.0,
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        extent=(-0.5, len(shots) - 0.5, low / KM, high / KM),
    )
    axes.set_facecolor(NOTHING)
    style.title(axes, f"Phase delay of the observed data at {frequency:.3g} Hz")
    style.label(axes, "", "offset (km)")
    axes.tick_params(labelbottom=False)
    bar = style.add_colour_bar(axes, image, "degrees", "neither", 0.03)
    bar.set_ticks([-180, -90, 0, 90, 180])


def _draw_spectra(
    above: Axes,
    below: Axes,
    frequencies: NDArray[np.float64],
    observed: NDArray[np.float64],
    residual: NDArray[np.float64],
    scaled: bool,
) -> None:
    most = observed.max(initial=0.0) or 1.0
    shown = observed > LEAST * most
    for values, name, colour in (
        (observed, "observed", style.STRONG),
        (residual, "observed - simulated", style.MARK),
    ):
        above.plot(frequencies, values / most, color=colour, linewidth=1.4, label=name)
    # The legend is in the room above the curves.
    above.legend(fontsize=style.SMALL, frameon=False, ncols=2, loc="upper right")
    above.set_ylim(0.0, 1.3)
    style.title(above, f"Amplitude spectra of these shots{', scaled' * scaled}")
    style.label(above, "", "amplitude / maximum")
    above.tick_params(labelbottom=False)
    ratios = np.divide(residual, observed, out=np.full(observed.shape, np.nan), where=shown)
    below.axhline(1.0, color="0.6", linewidth=0.8, linestyle="--")
    below.plot(frequencies, ratios, color=style.MARK, linewidth=1.4)
    below.set_ylim(0.0, max(1.1, min(1.05 * np.nanmax(ratios, initial=0.0), 2.0)))
    below.set_xlim(0.0, 1.1 * last_above(frequencies, observed, LEAST))
    style.title(below, "Residual by frequency")
    style.label(below, "frequency (Hz)", "residual / observed")


def _mark_turns(axes: Axes, places: NDArray[np.float64], turns: NDArray[np.bool_]) -> None:
    """Mark the simulated traces by a strip above them."""
    order = np.argsort(places, kind="stable")
    ends = np.flatnonzero(np.diff(turns[order])) + 1
    for part in np.split(order, ends):
        if part.size and turns[part[0]]:
            axes.axvspan(
                places[part[0]] / KM,
                places[part[-1]] / KM,
                0.98,
                1.0,
                color=style.MARK,
                linewidth=0,
            )


CHECK_ROW, LAGS = 2.6, 2.4  # inches


def comparison_figure(
    gathers: Sequence[tuple[str, NDArray[np.float64], NDArray, NDArray, NDArray[np.float64]]],
    axis: TimeAxis,
    ratio: float,
    offsets: NDArray[np.float64],
    lags: NDArray[np.float64],
    period: float,
) -> Figure:
    """Return a figure of observed, simulated and residual traces, and of first-arrival times.

    Parameters
    ----------
    gathers
        For each shot and component, a title, offsets (trace,) in m, observed and simulated traces
        (trace, time), and picks (line, trace) in s, which are marked; NaN for no pick.
    axis
        Time axis of the traces.
    ratio
        Ratio of observed amplitudes to simulated ones, negative if their signs differ; 0 or NaN if
        it is not known. Simulated traces are multiplied by it if the signs differ, or the sizes
        differ much.
    offsets, lags
        Offsets and times of first arrivals, in m and s.
    period
        Period of the wavelet's peak frequency, s. Cycles are skipped if the times of first arrivals
        differ by more than half of it.
    """
    rows = len(gathers)
    figure = style.new_figure(9.0, CHECK_ROW * rows + LAGS)
    grid = figure.add_gridspec(rows + 1, 3, height_ratios=[CHECK_ROW] * rows + [LAGS])
    is_like = 0.5 <= ratio <= 2.0 or not abs(ratio) > 0.0
    factor = "" if is_like else f", times {tell_factor(ratio)}"
    for row, (title, places, observed, simulated, picks) in enumerate(gathers):
        limit = clip_limit(observed, CLIP)
        scaled = simulated * ratio if factor else simulated
        for column, (name, traces) in enumerate(
            (
                (f"{title}, observed", observed),
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
    style.title(axes, f"First arrivals; shaded: less than half a period ({half:.0f} ms)")
    style.label(axes, "offset (km)", "observed - simulated (ms)")
    return figure
