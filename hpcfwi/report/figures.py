"""The figures of a run, each drawn by one function.

The functions take arrays and do not depend on runs or other files. The figures show gathers as grey
images, reflectors alone and over the background model, vertical profiles, misfits and wavelets.
`epoch_figure` chooses between the figures of the module `epoch_figure`. `style` and `panels` have
the common parts of the figures.
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
from hpcfwi.report.epoch_figure import section_figure, slice_figure
from hpcfwi.report.page import error_keys
from hpcfwi.report.panels import (
    KM,
    MODEL_COLOURS,
    MOST_CELLS,
    EpochPicture,
    Excerpt,
    clip_limit,
    coarsen,
    edges,
    evenly_spaced,
    exceeded,
    find_line,
    last_above,
    running_median,
    tell_factor,
)
from hpcfwi.survey import TimeAxis, divide


def draw_traces(
    axes: Axes,
    traces: NDArray[np.floating],
    places: NDArray[np.float64],
    axis: TimeAxis,
    limit: float,
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


CLIP = 98.0  # percentile of the magnitudes
# Opacity of the image over the model
OPAQUE = 0.55


def image_figure(
    image: NDArray[np.floating],
    background: NDArray[np.floating],
    truth: NDArray[np.floating] | None,
    picture: EpochPicture,
) -> Figure:
    """Return a figure of the reflectivity, alone and over the background, and of the true one.

    Arrays have the shape of the picture's grid; truth is None if it is not known. Each reflectivity
    has a separate grey scale, because an image lacks the frequencies that the wavelet lacks. The
    scale is clipped at a percentile of the cells that both waves of the picture illuminate.
    """
    picture = picture.cut()
    grid, lit = picture.grid, picture.find_lit()
    plane = picture.cuts[1] if picture.cuts else None
    # Titles, images, and the models below them
    shown: list[tuple[str, NDArray[np.floating], NDArray[np.floating] | None]] = [
        (f"Reflectivity, iteration {picture.epoch}", image, None),
        ("Reflectivity over the migration velocity", image, background),
    ]
    if truth is not None:
        shown.append(("True reflectivity", truth, None))
    (top, bottom), (left, right) = edges(grid, 0), edges(grid, grid.ndim - 1)
    extent = left, right, bottom, top
    height = min(max(7.0 * (bottom - top) / (right - left), 1.2), 6.0)
    figure = style.new_figure(8.0, len(shown) * (height + 0.35) + 0.3)
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (title, values, model) in zip(panels, shown, strict=True):
        last = axes is panels[-1]
        over = None if model is None else _section(model, plane)
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
    limit = clip_limit(values, CLIP, lit)
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
        extend = exceeded(values, (-limit, limit))
        style.add_colour_bar(axes, drawn, "reflectivity", extend, 0.02)


def _section(values: NDArray[np.floating], plane: int | None) -> NDArray[np.floating]:
    """Return the section of an array that is drawn; plane: the index along y in a volume."""
    return coarsen(values if plane is None else values[:, plane], MOST_CELLS)


KEPT = "0.92"


def profiles_figure(*pictures: EpochPicture) -> Figure:
    """Draw the true, initial and inverted model over depth; cells that are kept are shaded.

    pictures: one for each inverted parameter, which has a row.
    """
    cut = [picture.cut() for picture in pictures]
    places = cut[0].places
    assert places is not None
    rows, middle = len(cut), len(places) // 2
    figure = style.new_figure(1.2 + 1.7 * len(places), 4.2 * rows)
    panels = figure.subplots(rows, len(places), sharex="row", sharey=True, squeeze=False)
    for row, picture in zip(panels, cut, strict=True):
        for number, (axes, place) in enumerate(zip(row, places, strict=True)):
            _draw_profiles(axes, picture, number, place)
            style.label(
                axes, picture.parameter.label * (number == middle), "depth (km)" * (number == 0)
            )
        style.set_ticks(row[0].xaxis, 4)
    # Profiles may have no kept cells, or several ranges of them, so that labels are made unique
    named = {
        name: handle
        for axes in panels.flat
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles=[*named.values()],
        loc="outside lower left",
        ncols=4,
        fontsize=style.SMALL,
        frameon=False,
    )
    return figure


def _draw_profiles(axes: Axes, picture: EpochPicture, number: int, place: tuple[int, ...]) -> None:
    """Draw the profiles at a place; number: its index in `find_places`."""
    grid, scale = picture.grid, picture.parameter.figure_scale
    depths = grid.coordinates(0) / KM
    top, bottom = edges(grid, 0)
    axes.set_ylim(bottom, top)
    if picture.kept is not None:
        # Edges at which cells change from not kept to kept, or back
        column = np.pad(picture.kept.T[place[::-1]], 1)
        turns = np.flatnonzero(column[1:] != column[:-1])
        for first, end in (top + turns * grid.spacing[0] / KM).reshape(-1, 2):
            axes.axhspan(first, end, color=KEPT, linewidth=0, label="kept")

    def draw(
        model: NDArray[np.float32] | Excerpt | None, name: str, colour: str, line: str
    ) -> None:
        if model is None:
            return
        values = model.profiles[number] if isinstance(model, Excerpt) else model.T[place[::-1]]
        axes.plot(values / scale, depths, line, color=colour, linewidth=1.3, label=name)

    draw(picture.true, "true", "0.25", "-")
    draw(picture.start, "initial", "0.6", "--")
    draw(picture.inverted, f"inverted, epoch {picture.epoch}", style.MARK, "-")
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    named = zip(grid.axes[1:], range(1, grid.ndim), place, strict=True)
    style.title(
        axes, ", ".join(f"{n} = {grid.coordinates(a)[k] / KM:.2f}" for n, a, k in named) + " km"
    )


GATHER_CLIP = 98.0  # percentile of the magnitudes
GIVEN = "0.6"  # grey of a wavelet that is replaced by another
# Names of the axes along which receivers are spread, by number of dimensions
DIRECTIONS = {2: ("depth", "position"), 3: ("depth", "y", "x")}


def epoch_figure(*pictures: EpochPicture) -> Figure:
    """Draw the true and the inverted model, its change, the gradient and both illuminations.

    Both models have the colour scale of the true one, or of the inverted one if the true one is not
    known. pictures: one for each inverted parameter.
    """
    return (slice_figure if pictures[0].grid.ndim == 3 else section_figure)(pictures)


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
    style.add_colour_bar(in_time, image, "amplitude", "neither", 0.03)

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
    components: Sequence[str] = ("pressure",),
) -> Figure:
    """Draw the gathers (receiver, time) of n shots side by side, on a common grey scale.

    Each component has a row with its own scale. data, receivers: the gathers and positions
    (receiver, ndim), m, of the n shots for each component in turn; sources: (n, ndim), m, marked at
    time 0; axis: time axis of the gathers; names: n titles. The horizontal axis is the direction in
    which the receivers extend the furthest. If receivers cover an area, those on the line nearest
    to the source are shown.
    """
    rows, n = len(components), len(sources)
    figure = style.new_figure(max(1.2 + 2.2 * n, 4.0), 0.8 + 3.6 * rows)
    panels = figure.subplots(rows, n, sharey=True, squeeze=False)
    for row, component in enumerate(components):
        part = slice(row * n, (row + 1) * n)
        titles = names if rows == 1 else [f"{name}, {component}" for name in names]
        _draw_gathers(panels[row], data[part], receivers[part], sources, axis, titles, component)
        for axes in panels[row]:
            if row < rows - 1:
                axes.set_xlabel("")
    return figure


def _draw_gathers(
    panels: NDArray[Any],
    data: Sequence[NDArray[np.float32]],
    receivers: Sequence[NDArray[np.float64]],
    sources: NDArray[np.float64],
    axis: TimeAxis,
    names: Sequence[str],
    component: str,
) -> None:
    """Draw the gathers of a component, see `gathers_figure`."""
    lines = [
        find_line(*at) if len(at[0]) else (0, np.zeros(0, np.int64))
        for at in zip(receivers, sources, strict=True)
    ]
    shown = np.concatenate([g[line].ravel() for g, (_, line) in zip(data, lines, strict=True)])
    limit, image = clip_limit(shown, GATHER_CLIP), None
    for axes, gather, places, source, name, (along, line) in zip(
        panels, data, receivers, sources, names, lines, strict=True
    ):
        if not len(places):
            style.title(axes, name)
            style.say_unknown(axes, "no traces")
            continue
        image, first, last = draw_traces(axes, gather[line], places[line, along], axis, limit)
        if first <= source[along] <= last:
            axes.plot(source[along] / KM, 0.0, "*", color="#c03020", markersize=9, clip_on=False)
        style.title(axes, name + _place_of_line(places[line], along))
        direction = DIRECTIONS[places.shape[1]][along]
        style.label(axes, f"receiver {direction} (km)", "time (s)" if axes is panels[0] else "")
    if image is not None:
        label = f"{component}, clipped at {GATHER_CLIP:g} %"
        style.add_colour_bar(panels[-1], image, label, exceeded(shown, (-limit, limit)), 0.03)


def _place_of_line(places: NDArray[np.float64], along: int) -> str:
    """Return the place of a horizontal line of receivers (n, 3), empty in 2-D, or for a well."""
    if places.shape[1] == 2 or along == 0:
        return ""
    across = 3 - along
    return f", {DIRECTIONS[3][across]} = {np.median(places[:, across]) / KM:.2f} km"


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
    errors = [_column(metrics, key) for key in error_keys(before).values()]
    count = len(errors) if np.isfinite(errors[0]).any() else 0
    figure = style.new_figure(5.0 + 3.0 * count, 3.0)
    panels = figure.subplots(1, 1 + count, squeeze=False)[0]
    stages = _find_stages(metrics)
    if not comparable:
        for stage in stages:
            losses[stage] /= next((v for v in losses[stage] if np.isfinite(v) and v > 0.0), 1.0)
    for number, stage in enumerate(stages):
        _plot_noisy(panels[0], epochs[stage], losses[stage], labelled=number == 0)
    _scale_misfits(panels[0], losses)
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


def _plot_noisy(
    axes: Axes, epochs: NDArray[np.float64], values: NDArray[np.float64], labelled: bool
) -> None:
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


def _scale_misfits(axes: Axes, values: NDArray[np.float64]) -> None:
    positive = values[values > 0.0]
    if positive.size and positive.max() > 10.0 * positive.min():
        axes.set_yscale("log")


def _column(metrics: Sequence[Mapping[str, Any]], key: str) -> NDArray[np.float64]:
    values = (record.get(key) for record in metrics)
    return np.array([v if isinstance(v, int | float) else np.nan for v in values], dtype=np.float64)


def _marker(epochs: NDArray[np.float64]) -> str:
    # A line through one or a few points is invisible without markers.
    return "o" if epochs.size <= 10 else ""
