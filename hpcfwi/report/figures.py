"""The figures of a run, each made by a function of what it shows; `style.save` writes them.

They take arrays, and know neither runs nor files of other kinds. The figure of an epoch is in
`sections` (2-D) and `slices` (3-D) and offered here with the others; what the figures have in
common is in `style` and `scales`; drawing them in the background is in `painter`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hpcfwi.report import scales, style
from hpcfwi.report.picture import EpochPicture
from hpcfwi.report.profiles import profiles_figure as profiles_figure
from hpcfwi.report.scales import KM
from hpcfwi.report.sections import section_figure
from hpcfwi.report.slices import slice_figure
from hpcfwi.report.traces import draw_traces
from hpcfwi.survey import TimeAxis, divide

GATHER_CLIP = 98.0  # percentile of the magnitudes
GIVEN = "0.6"  # grey, of a wavelet that another takes the place of
# Names of the axes that receivers are spread along, by dimension
DIRECTIONS = {2: ("depth", "position"), 3: ("depth", "y", "x")}


def epoch_figure(picture: EpochPicture) -> Figure:
    """True model, inverted model, what it has changed, gradient and both illuminations.

    Both models have the colour scale of the true one, or of the inverted one where the true one
    is not known.
    """
    return slice_figure(picture) if picture.grid.ndim == 3 else section_figure(picture)


def wavelet_figure(
    wavelet: NDArray[np.float32], axis: TimeAxis, given: NDArray[np.float32] | None = None
) -> Figure:
    """The wavelet (time,) and its amplitude spectrum.

    given: that of the survey (time,), where the wavelet was estimated; it is drawn on its scale.
    Both axes end where nothing is left to see.
    """
    figure = style.new_figure(8.0, 2.8)
    in_time, in_frequency = figure.subplots(1, 2)

    times = axis.times(wavelet.size)
    in_time.axhline(0.0, color="0.8", linewidth=0.8)
    shown = [wavelet]
    if given is not None:
        ratio = np.abs(wavelet).max() / (np.abs(given).max() or 1.0)
        factor = "" if 0.5 <= ratio <= 2.0 else f", times {scales.tell_factor(ratio)}"
        shown.append(ratio * given if factor else given)
        in_time.plot(times, shown[1], color=GIVEN, linewidth=1.2, label=f"of the survey{factor}")
    label = None if given is None else "estimated"
    in_time.plot(times, wavelet, color=style.STRONG, linewidth=1.4, label=label)
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
    """The wavelets of shots (shot, time), and their spectra.

    Beside an image of the amplitudes, on one scale, the spectrum of the mean power, within those of
    the faintest and the strongest. Shots whose wavelets are zero, not known yet, are left out.
    """
    figure = style.new_figure(8.0, 3.4)
    in_time, in_frequency = figure.subplots(1, 2)

    known, top = np.any(wavelets, axis=1), axis.start - 0.5 * axis.dt
    limit = scales.clip_limit(wavelets, 100.0)
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
    style.title(
        in_time, "Source wavelets" if known.all() else "Source wavelets, blue: not known yet"
    )
    style.label(in_time, "shot", "time (s)")
    style.add_colour_bar(in_time, image, "amplitude", "neither", 0.03)

    _draw_spectra(in_frequency, wavelets[known], axis.dt, given)
    return figure


def _last_seen(wavelet: NDArray[np.float32], axis: TimeAxis) -> float:
    """End of a panel of a wavelet (time,): half as long again as there is something to see, s."""
    times = axis.times(wavelet.size)
    seen = 1.5 * (scales.last_above(times, wavelet, 1e-3) - axis.start) or axis.dt
    return float(min(axis.start + seen, times[-1]))


def _draw_spectra(
    axes: Axes, wavelets: NDArray[np.float32], dt: float, given: NDArray[np.float32] | None
) -> None:
    """The amplitude spectrum of wavelets (n, time); of several the mean, and from least to most.

    given: another one (time,), which is drawn with its own maximum.
    """
    # Zeros appended make the curve smooth and its peak exact.
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
    last = scales.last_above(frequencies, mean, 1e-2)
    if given is not None:
        other = np.abs(np.fft.rfft(given.astype(np.float64), padded))
        axes.plot(frequencies, other / (other.max() or 1.0), color=GIVEN, linewidth=1.2)
        last = max(last, scales.last_above(frequencies, other, 1e-2))
    axes.plot(frequencies, mean / largest, color=style.STRONG, linewidth=1.4)
    axes.fill_between(
        frequencies,
        least / largest,
        most / largest,
        color=style.LIGHT,
        alpha=0.5,
        linewidth=0,
    )
    axes.axvline(peak, color="0.4", linewidth=0.8, linestyle="--")
    axes.set_xlim(0.0, min(1.25 * last, 0.5 / dt))
    axes.set_ylim(0.0, 1.05)
    style.title(axes, f"Amplitude spectrum, peak at {peak:.3g} Hz")
    style.label(axes, "frequency (Hz)", "amplitude / maximum")


def gathers_figure(
    data: Sequence[NDArray[np.float32]],
    receivers: Sequence[NDArray[np.float64]],
    sources: NDArray[np.float64],
    axis: TimeAxis,
    names: Sequence[str],
) -> Figure:
    """The gathers (receiver, time) of n shots side by side, on one scale of grey.

    receivers: (receiver, ndim) of each, m; sources: (n, ndim), m, marked at time 0; axis: time axis
    of the gathers; names: n titles. The horizontal axis is the direction in which the receivers
    extend the furthest. Of receivers that cover an area, those on the line next to the source are
    shown.
    """
    figure = style.new_figure(max(1.2 + 2.2 * len(data), 4.0), 4.4)
    panels = figure.subplots(1, len(data), sharey=True, squeeze=False)[0]
    lines = [scales.find_line(*at) for at in zip(receivers, sources, strict=True)]
    shown = np.concatenate([g[line].ravel() for g, (_, line) in zip(data, lines, strict=True)])
    limit = scales.clip_limit(shown, GATHER_CLIP)
    for axes, gather, places, source, name, (along, line) in zip(
        panels, data, receivers, sources, names, lines, strict=True
    ):
        image, first, last = draw_traces(axes, gather[line], places[line, along], axis, limit)
        if first <= source[along] <= last:
            axes.plot(source[along] / KM, 0.0, "*", color="#c03020", markersize=9, clip_on=False)
        style.title(axes, name + _place_of_line(places[line], along))
        direction = DIRECTIONS[places.shape[1]][along]
        style.label(axes, f"receiver {direction} (km)", "time (s)" if axes is panels[0] else "")
    extend = scales.exceeded(shown, (-limit, limit))
    style.add_colour_bar(panels[-1], image, f"pressure, clipped at {GATHER_CLIP:g} %", extend, 0.03)
    return figure


def _place_of_line(places: NDArray[np.float64], along: int) -> str:
    """Where a horizontal line of receivers (n, 3) is; nothing to say in 2-D, or of a well."""
    if places.shape[1] == 2 or along == 0:
        return ""
    across = 3 - along
    return f", {DIRECTIONS[3][across]} = {np.median(places[:, across]) / KM:.2f} km"


def loss_figure(
    metrics: Sequence[Mapping[str, Any]], start: float | None = None, comparable: bool = True
) -> Figure:
    """The misfit ("loss") of each epoch and, where known, the model error ("model_error", m/s).

    An epoch's misfit is that of its own shots and jumps with them; the strong line is a running
    median. Each stage ("stage") has lines of its own, and begins at a vertical one. Values that
    are None or not finite are gaps. start: the error of the initial model, where it is known;
    comparable: whether misfits of all stages are the same of the same data; else those of each
    stage are drawn relative to its first.
    """
    epochs, losses, errors = (_column(metrics, key) for key in ("epoch", "loss", "model_error"))
    with_errors = bool(np.isfinite(errors).any())
    figure = style.new_figure(8.0 if with_errors else 5.0, 3.0)
    panels = figure.subplots(1, 2 if with_errors else 1, squeeze=False)[0]
    stages = _find_stages(metrics)
    if not comparable:
        for stage in stages:
            losses[stage] /= next((v for v in losses[stage] if np.isfinite(v) and v > 0.0), 1.0)
    for number, stage in enumerate(stages):
        _plot_noisy(panels[0], epochs[stage], losses[stage], labelled=number == 0)
    _scale_misfits(panels[0], losses)
    style.title(panels[0], "Misfit" if comparable else "Misfit, stage by stage")
    style.label(panels[0], "epoch", "misfit" if comparable else "misfit / first of its stage")
    if with_errors:
        before = [] if start is None else [start]
        panels[1].plot(
            np.concatenate([np.zeros(len(before)), epochs]),
            np.concatenate([before, errors]),
            color=style.STRONG,
            linewidth=1.6,
            marker=_marker(epochs),
        )
        style.title(panels[1], "Model error")
        style.label(panels[1], "epoch", "RMS error (m/s)")
    for axes in panels:
        axes.grid(color="0.9", linewidth=0.6)
        style.set_ticks(axes.xaxis, 7, integer=True)
        for stage in stages[1:]:
            axes.axvline(epochs[stage][0] - 0.5, color="0.6", linewidth=0.8, linestyle="--")
    return figure


def _find_stages(metrics: Sequence[Mapping[str, Any]]) -> list[slice]:
    """Where the entries of each stage are."""
    names = [entry.get("stage") for entry in metrics]
    begins = [k for k in range(1, len(names)) if names[k] != names[k - 1]]
    return [slice(first, last) for first, last in pairwise([0, *begins, len(names)])]


def _plot_noisy(
    axes: Axes, epochs: NDArray[np.float64], values: NDArray[np.float64], labelled: bool
) -> None:
    window = 2 * (epochs.size // 30) + 3
    if epochs.size > 2 * window:
        axes.plot(epochs, values, color=style.LIGHT, linewidth=0.9, label="each epoch's shots")
        axes.plot(
            epochs,
            scales.running_median(values, window),
            color=style.STRONG,
            linewidth=1.8,
            label=f"median of {window} epochs",
        )
        if labelled:
            axes.legend(fontsize=style.SMALL, frameon=False)
    else:
        axes.plot(epochs, values, color=style.STRONG, linewidth=1.6, marker=_marker(epochs))


def _scale_misfits(axes: Axes, values: NDArray[np.float64]) -> None:
    positive = values[values > 0.0]
    if positive.size and positive.max() > 10.0 * positive.min():
        axes.set_yscale("log")


def _column(metrics: Sequence[Mapping[str, Any]], key: str) -> NDArray[np.float64]:
    values = (record.get(key) for record in metrics)
    return np.array([v if isinstance(v, int | float) else np.nan for v in values], dtype=np.float64)


def _marker(epochs: NDArray[np.float64]) -> str:
    # A line through few points, or one, shows nothing without them.
    return "o" if epochs.size <= 10 else ""
