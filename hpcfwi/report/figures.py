"""The figures of traces, wavelets and misfits, each drawn by one function.

The functions take arrays and do not depend on runs or other files. Gathers are grey images;
`inversion.shot_qc` and `plan.comparison` choose the shots that are compared and compute the
numbers. `models` has the figures of models, `style` and `panels` the common parts of all figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from hpcfwi.model import PARAMETERS
from hpcfwi.report import style
from hpcfwi.report.panels import (
    KM,
    Values,
    clip_limit,
    evenly_spaced,
    find_line,
    last_above,
    running_median,
    tell_factor,
    value_limits,
)
from hpcfwi.report.text import metric_keys
from hpcfwi.survey import TimeAxis, divide


def draw_traces(
    axes: Axes, traces: NDArray[np.floating], places: Values, axis: TimeAxis, limit: float
) -> tuple[AxesImage, float, float]:
    """Draw traces (trace, time) at places (trace,), in m, from left to right.

    axis: time axis of the traces; limit: amplitude of black; minus limit is white. Returns the
    image, and the places of the first and the last trace, in m.
    """
    even, first, last = evenly_spaced(traces, places)
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


CLIP = 98.0  # percentile of the magnitudes of traces
GIVEN = "0.6"  # grey of a wavelet that is replaced by another
# Names of the axes along which receivers are spread, by number of dimensions
DIRECTIONS = {2: ("depth", "position"), 3: ("depth", "y", "x")}


def wavelet_figure(
    wavelet: NDArray[np.float32], axis: TimeAxis, given: NDArray[np.float32] | None = None
) -> Figure:
    """Draw the wavelet (time,) and its amplitude spectrum.

    given: wavelet of the survey (time,) if the wavelet was estimated; it is drawn on a separate
    scale. Both axes end where the curves vanish.
    """
    figure = style.new_figure(8.0, 2.8)
    in_time, in_frequency = figure.subplots(1, 2)

    times = axis.times(wavelet.size)
    in_time.axhline(0.0, color="0.8", linewidth=0.8)
    shown = [wavelet]
    if given is not None:
        ratio = np.abs(wavelet).max() / (np.abs(given).max() or 1.0)
        factor = "" if 0.5 <= ratio <= 2.0 else f", times {tell_factor(ratio)}"
        shown.append(ratio * given if factor else given)
        in_time.plot(times, shown[1], color=GIVEN, linewidth=1.2, label=f"of the survey{factor}")
    in_time.plot(times, wavelet, color=style.STRONG, linewidth=1.4, label="estimated")
    if given is not None:
        in_time.legend(fontsize=style.SMALL, frameon=False)
    in_time.set_xlim(axis.start, max(_last_seen(wave, axis) for wave in shown))
    style.title(in_time, "Source wavelet")
    style.label(in_time, "time (s)", "amplitude")

    _draw_spectra(in_frequency, wavelet[None], axis.dt, given)
    return figure


def wavelets_figure(
    wavelets: NDArray[np.float32], axis: TimeAxis, given: NDArray[np.float32] | None = None
) -> Figure:
    """Draw the wavelets of shots (shot, time), and their spectra.

    The panels are an image of the amplitudes, and the spectrum of the mean power with the range
    from the weakest to the strongest spectrum. Shots whose wavelets are zero, because they are not
    known yet, are left out.
    """
    figure = style.new_figure(8.0, 3.4)
    in_time, in_frequency = figure.subplots(1, 2)

    known, top = np.any(wavelets, axis=1), axis.start - 0.5 * axis.dt
    limit = clip_limit(wavelets, 100.0)
    image = in_time.imshow(
        np.where(known[:, None], wavelets, np.nan).T,
        cmap=style.TRACE_COLOURS,
        vmin=-limit,
        vmax=limit,
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, len(wavelets) - 0.5, top + wavelets.shape[1] * axis.dt, top),
    )
    in_time.set_facecolor(style.LIGHT)
    in_time.set_ylim(_last_seen(np.abs(wavelets).max(axis=0), axis), top)
    style.set_ticks(in_time.xaxis, 5, integer=True)
    style.title(in_time, "Source wavelets" if known.all() else "Source wavelets (blue: unknown)")
    style.label(in_time, "shot", "time (s)")
    style.add_colour_bar(in_time, image, "amplitude", 0.03)

    _draw_spectra(in_frequency, wavelets[known], axis.dt, given)
    return figure


def _last_seen(wavelet: NDArray[np.float32], axis: TimeAxis) -> float:
    """Return the end of the panel of a wavelet (time,), s: 1.5 times its visible duration."""
    times = axis.times(wavelet.size)
    seen = 1.5 * (last_above(times, wavelet, 1e-3) - axis.start) or axis.dt
    return float(min(axis.start + seen, times[-1]))


def _draw_spectra(
    axes: Axes, wavelets: NDArray[np.float32], dt: float, given: NDArray[np.float32] | None
) -> None:
    """Draw the amplitude spectrum of wavelets (n, time); for several the mean and the range.

    given: another wavelet (time,), whose spectrum is drawn relative to its maximum.
    """
    # Appended zeros make the curve smooth and its peak accurate.
    padded = 8 * wavelets.shape[1]
    frequencies = np.fft.rfftfreq(padded, dt)
    energy, most, least = (np.full(frequencies.shape, value) for value in (0.0, 0.0, np.inf))
    for part in divide(wavelets):
        amplitudes = np.abs(np.fft.rfft(wavelets[part].astype(np.float64), padded))
        energy += (amplitudes**2).sum(axis=0)
        np.maximum(most, amplitudes.max(axis=0), out=most)
        np.minimum(least, amplitudes.min(axis=0), out=least)
    mean, largest = np.sqrt(energy / len(wavelets)), most.max() or 1.0
    peak = frequencies[mean.argmax()]
    if len(wavelets) == 1:
        least = np.zeros_like(mean)
    last = last_above(frequencies, mean, 1e-2)
    if given is not None:
        other = np.abs(np.fft.rfft(given.astype(np.float64), padded))
        axes.plot(frequencies, other / (other.max() or 1.0), color=GIVEN, linewidth=1.2)
        last = max(last, last_above(frequencies, other, 1e-2))
    axes.plot(frequencies, mean / largest, color=style.STRONG, linewidth=1.4)
    axes.fill_between(
        frequencies, least / largest, most / largest, color=style.LIGHT, alpha=0.5, linewidth=0
    )
    axes.axvline(peak, color="0.4", linewidth=0.8, linestyle="--")
    axes.set_xlim(0.0, min(1.25 * last, 0.5 / dt))
    axes.set_ylim(0.0, 1.05)
    style.title(axes, f"Amplitude spectrum, peak at {peak:.3g} Hz")
    style.label(axes, "frequency (Hz)", "amplitude / maximum")


def gathers_figure(
    gathers: Mapping[str, Sequence[tuple[NDArray[np.float32], Values]]],
    sources: Values,
    axis: TimeAxis,
    names: Sequence[str],
) -> Figure:
    """Draw the gathers of n shots side by side, with a row and a grey scale for each component.

    gathers: by component, the traces (receiver, time) and the positions (receiver, ndim), m, of the
    n shots; sources: (n, ndim), m, marked at time 0; axis: time axis of the gathers; names: n
    titles. The horizontal axis is the direction in which the receivers extend the furthest. If
    receivers cover an area, those on the line nearest to the source are shown.
    """
    rows, n = len(gathers), len(sources)
    figure = style.new_figure(max(1.2 + 2.2 * n, 4.0), 0.8 + 3.6 * rows)
    panels = figure.subplots(rows, n, sharey=True, squeeze=False)
    for row, (component, shots) in zip(panels, gathers.items(), strict=True):
        lines = [find_line(at, source) for (_, at), source in zip(shots, sources, strict=True)]
        chosen = [
            (data[line], at[line]) for (data, at), (_, line) in zip(shots, lines, strict=True)
        ]
        shown = np.concatenate([traces.ravel() for traces, _ in chosen])
        limit, image = clip_limit(shown, CLIP), None
        for axes, (traces, at), (along, _), source, name in zip(
            row, chosen, lines, sources, names, strict=True
        ):
            title = name + f", {component}" * (rows > 1)
            if not len(at):
                style.title(axes, title)
                style.say_instead(axes, "no traces")
                continue
            image, first, last = draw_traces(axes, traces, at[:, along], axis, limit)
            if first <= (x := source[along]) <= last:
                axes.plot(x / KM, 0.0, "*", color="#c03020", markersize=9, clip_on=False)
            style.title(axes, title + _place_of_line(at, along))
            direction = DIRECTIONS[at.shape[1]][along]
            style.label(axes, f"receiver {direction} (km)", "time (s)" if axes is row[0] else "")
        if image is not None:
            unit = f"{component}, clipped at {CLIP:g} %"
            style.add_colour_bar(row[-1], image, unit, 0.03, shown)
    for axes in panels[:-1].flat:
        axes.set_xlabel("")
    return figure


def _place_of_line(places: Values, along: int) -> str:
    """Return the place of a horizontal line of receivers (n, 3), empty in 2-D, or for a well."""
    if places.shape[1] == 2 or along == 0:
        return ""
    across = 3 - along
    return f", {DIRECTIONS[3][across]} = {np.median(places[:, across]) / KM:.2f} km"


ROW = 2.7  # inches
GROUPS = 12  # number of groups of interleaved traces
BINS = 40  # number of bins of offsets
CYCLIC = "twilight_shifted"  # pale at 0, dark at both ends
NOTHING = "0.75"
LEAST = 0.05  # least amplitude of frequencies that are shown, relative to the largest amplitude

Gather = tuple[str, Values, NDArray[np.float32], NDArray[np.float32]]
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
        turns = take_turns(places, min(GROUPS, places.size))
        shown = {
            f"{title}, observed": observed,
            f"interleaved, red: simulated{', scaled' * scaled}": np.where(
                turns[:, None], simulated, observed
            ),
            f"observed - simulated, epoch {epoch}": observed - simulated,
        }
        _draw_row(row, shown, places, axis, is_last=number == rows)
        for axes in row[1:]:
            axes.tick_params(labelleft=False)
        _mark_turns(row[1], places, turns)
    return figure


def _draw_row(
    row: Sequence[Axes],
    shown: Mapping[str, NDArray[np.floating]],
    places: Values,
    axis: TimeAxis,
    is_last: bool,
) -> None:
    """Draw observed and other traces of a shot by title, with the grey scale of the first ones."""
    limit = clip_limit(next(iter(shown.values())), CLIP)
    for axes, (title, traces) in zip(row, shown.items(), strict=True):
        if places.size:
            draw_traces(axes, traces, places, axis, limit)
        else:
            style.say_instead(axes, "no traces")
        style.title(axes, title)
        style.label(axes, "offset (km)" * is_last, "time (s)" * (axes is row[0]))


def take_turns(places: Values, groups: int) -> NDArray[np.bool_]:
    """Return True for the traces (trace,) of every second group, if groups have equal sizes."""
    rank = np.argsort(np.argsort(places, kind="stable"), kind="stable")
    return np.asarray((rank * groups // max(places.size, 1)) % 2 == 1)


Shot = tuple[int, float, Values, Values]
"""The number and the misfit of a shot, offsets (trace,) in m, and phases (trace,) in degrees.

Phases are NaN where they are not known.
"""


def fit_figure(
    shots: Sequence[Shot],
    frequency: float,
    spectra: tuple[Values, Values, Values],
    epoch: int,
    scaled: bool = False,
) -> Figure:
    """Draw phase differences by shot and offset, the misfit by shot, and the fit by frequency.

    frequency: frequency of the phases, Hz; spectra: frequencies (Hz), and amplitudes of the
    observed data and of the residual; epoch: number of the epoch after which the traces were
    simulated; scaled: True if all traces have the same norm.
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
    _draw_fit_by_frequency(amplitude, ratio, *spectra, scaled)
    return figure


def bin_phases(offsets: Values, phases: Values, ends: Values) -> Values:
    """Return the circular means, degrees, of phases (trace,) in bins of offsets (trace,).

    ends: limits of the bins, m. Bins without phases have NaN.
    """
    known = np.isfinite(phases)
    bins = np.clip(np.digitize(offsets[known], ends) - 1, 0, ends.size - 2)
    sums = np.zeros(ends.size - 1, dtype=np.complex128)
    np.add.at(sums, bins, np.exp(1j * np.radians(phases[known])))
    there = np.bincount(bins, minlength=sums.size) > 0
    return np.where(there, np.degrees(np.angle(sums)), np.nan)


def _draw_phases(axes: Axes, shots: Sequence[Shot], frequency: float) -> None:
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
    bar = style.add_colour_bar(axes, image, "degrees", 0.03)
    bar.set_ticks([-180, -90, 0, 90, 180])


def _draw_fit_by_frequency(
    above: Axes, below: Axes, frequencies: Values, observed: Values, residual: Values, scaled: bool
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


def _mark_turns(axes: Axes, places: Values, turns: NDArray[np.bool_]) -> None:
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
    gathers: Sequence[tuple[str, Values, NDArray, NDArray, Values]],
    axis: TimeAxis,
    ratio: float,
    offsets: Values,
    lags: Values,
    period: float,
) -> Figure:
    """Return a figure of observed, simulated and residual traces, and of first-arrival times.

    gathers: for each shot and component, a title, offsets (trace,) in m, observed and simulated
    traces (trace, time), and picks (line, trace) in s, which are marked; NaN for no pick; axis:
    time axis of the traces; ratio: ratio of observed amplitudes to simulated ones, negative if
    their signs differ; 0 or NaN if it is not known. Simulated traces are multiplied by it if the
    signs differ, or the sizes differ much. offsets, lags: of first arrivals, m and s; period: of
    the wavelet's peak frequency, s. Cycles are skipped if the times of first arrivals differ by
    more than half of it.
    """
    rows = len(gathers)
    figure = style.new_figure(9.0, CHECK_ROW * rows + LAGS)
    grid = figure.add_gridspec(rows + 1, 3, height_ratios=[CHECK_ROW] * rows + [LAGS])
    is_like = 0.5 <= ratio <= 2.0 or not abs(ratio) > 0.0
    factor = "" if is_like else f", times {tell_factor(ratio)}"
    for row, (title, places, observed, simulated, picks) in enumerate(gathers):
        scaled = simulated * ratio if factor else simulated
        shown = {
            f"{title}, observed": observed,
            f"simulated{factor}": scaled,
            "observed - simulated" + ", scaled" * bool(factor): observed - scaled,
        }
        panels = [figure.add_subplot(grid[row, column]) for column in range(3)]
        _draw_row(panels, shown, places, axis, is_last=row == rows - 1)
        for axes in panels if np.isfinite(picks).any() else ():
            for line in picks:
                axes.plot(places / KM, line, "_", color=style.MARK, markersize=2, linewidth=0)
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


def loss_figure(
    metrics: Sequence[Mapping[str, Any]],
    starts: Mapping[str, float] | None = None,
    comparable: bool = True,
) -> Figure:
    """Draw the misfit ("loss") of each epoch and the model error ("model_error") if known.

    The misfit of an epoch depends on its shots and varies with them; the strong line is a running
    median. Each stage ("stage") has separate lines, and begins at a vertical line. Values that are
    None or not finite are gaps. starts: the errors of the initial model by parameter, if they are
    known; errors of parameters after the first have keys such as "model_error_vs"; comparable: True
    if the misfits of all stages are of the same kind and data; otherwise those of each stage are
    drawn relative to its first one.
    """
    epochs, losses = (_column(metrics, key) for key in ("epoch", "loss"))
    before = starts or {next(iter(PARAMETERS)): np.nan}
    errors = [_column(metrics, key) for key in metric_keys("model_error", before).values()]
    count = len(errors) if np.isfinite(errors[0]).any() else 0
    figure = style.new_figure(5.0 + 3.0 * count, 3.0)
    panels = figure.subplots(1, 1 + count, squeeze=False)[0]
    stages = _find_stages(metrics)
    if not comparable:
        for stage in stages:
            losses[stage] /= next((v for v in losses[stage] if np.isfinite(v) and v > 0.0), 1.0)
    for number, stage in enumerate(stages):
        _plot_noisy(panels[0], epochs[stage], losses[stage], labelled=number == 0)
    positive = losses[losses > 0.0]
    if positive.size and positive.max() > 10.0 * positive.min():
        panels[0].set_yscale("log")
    style.title(panels[0], "Misfit" if comparable else "Misfit, stage by stage")
    style.label(panels[0], "epoch", "misfit" if comparable else "misfit / first of its stage")
    for axes, values, (name, start) in zip(panels[1:], errors, before.items(), strict=False):
        axes.plot(
            np.concatenate([[0.0], epochs]),
            np.concatenate([[start], values]),
            color=style.STRONG,
            linewidth=1.6,
            marker=_marker(epochs),
        )
        style.title(axes, "Model error" + f", {name}" * (count > 1))
        unit = PARAMETERS[name].unit
        style.label(axes, "epoch", f"RMS error ({unit})" if unit else "RMS error")
    for axes in panels:
        axes.grid(color="0.9", linewidth=0.6)
        style.set_ticks(axes.xaxis, 7, integer=True)
        for stage in stages[1:]:
            axes.axvline(epochs[stage][0] - 0.5, color="0.6", linewidth=0.8, linestyle="--")
    return figure


def _find_stages(metrics: Sequence[Mapping[str, Any]]) -> list[slice]:
    """Return the range of entries of each stage."""
    names = [entry.get("stage") for entry in metrics]
    begins = [k for k in range(1, len(names)) if names[k] != names[k - 1]]
    return [slice(first, last) for first, last in pairwise([0, *begins, len(names)])]


def _plot_noisy(axes: Axes, epochs: Values, values: Values, labelled: bool) -> None:
    window = 2 * (epochs.size // 30) + 3
    if epochs.size > 2 * window:
        axes.plot(epochs, values, color=style.LIGHT, linewidth=0.9, label="each epoch's shots")
        axes.plot(
            epochs,
            running_median(values, window),
            color=style.STRONG,
            linewidth=1.8,
            label=f"median of {window} epochs",
        )
        if labelled:
            axes.legend(fontsize=style.SMALL, frameon=False)
    else:
        axes.plot(epochs, values, color=style.STRONG, linewidth=1.6, marker=_marker(epochs))


def _column(metrics: Sequence[Mapping[str, Any]], key: str) -> Values:
    values = (record.get(key) for record in metrics)
    return np.array([v if isinstance(v, int | float) else np.nan for v in values], dtype=np.float64)


def _marker(epochs: Values) -> str:
    # A line through one or a few points is invisible without markers.
    return "o" if epochs.size <= 10 else ""
