"""Figures of inversions: models and misfits over epochs, and final models.

The keys of each run are here; `runs` runs them. `networks`, `field` and `elastic` draw existing
runs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from drawing.panels import GREY, draw_errors, draw_misfits, label_ends
from drawing.runs import INPUT, ROOT, clean_data, invert, read_array, record
from hpcfwi.report import style
from hpcfwi.report.text import read_metrics
from hpcfwi.survey import find_amplitudes, find_frequencies
from hpcfwi.wave.numerics import ricker

NOISE = 0.5  # root mean square, over that of all traces
# Lines of the true wavelet, of the wrong guess, and of three estimates
WAVELET_LOOKS: tuple[dict[str, Any], ...] = (
    {"color": GREY, "linewidth": 3.0},
    {"color": style.MARK, "linewidth": 1.4, "linestyle": ":"},
    {"color": style.LIGHT, "linewidth": 1.6},
    {"color": style.STRONG, "linewidth": 1.4},
    {"color": "#3a9a3a", "linewidth": 1.4, "linestyle": "--"},
)

SEARCHES = {
    name: (f'{{name="{name}", step=60.0}}', epochs)
    for name, epochs in (("lbfgs", 8), ("ncg", 5), ("gauss-newton", 4))
}
STEPS = {
    "adam": ('{name="adam", lr=60.0, eps=1e-22}', 10),
    "sgd": ('{name="sgd", lr=2.5e9}', 10),
}


def optimizers() -> Figure:
    """Draw misfits and model errors of each optimizer, with all shots in each epoch."""
    runs = {
        name: invert(name, {"epochs": str(epochs), "sampling": '"all"', "optimizer": optimizer})
        for name, (optimizer, epochs) in {**STEPS, **SEARCHES}.items()
    }
    figure = style.new_figure(8.0, 3.0)
    left, right = figure.subplots(1, 2)
    draw_misfits(left, runs)
    draw_errors(right, runs)
    return figure


def encoding() -> Figure:
    """Draw model errors with encoded shots, and with shots one by one."""
    encoded = {
        "epochs": "160",
        "batch": "1",
        "encoding": '"signs"',
        "optimizer": '{name="adam", lr=[60.0, 10.0], eps=1e-22}',
    }
    plain = {"optimizer": '{name="adam", lr=[60.0, 10.0], eps=1e-22}'}
    runs = {
        "8 shots an epoch": invert("plain", plain),
        "one encoded shot an epoch": invert("encoded", encoded),
    }
    return _compare_errors(runs)


def batches() -> Figure:
    """Draw model errors with batches that grow, and with batches that do not."""
    asked = {"1": 360, "4": 90, "24": 15, "[1, 8]": 80}
    runs = {
        f"batch = {batch}": invert(
            f"batch_{'_'.join(re.findall('[0-9]+', batch))}",
            {"batch": batch, "epochs": str(epochs)},
        )
        for batch, epochs in asked.items()
    }
    return _compare_errors(runs)


def _compare_errors(runs: Mapping[str, Path]) -> Figure:
    """Return a figure of model errors alone."""
    figure = style.new_figure(6.0, 3.0)
    draw_errors(figure.subplots(), runs)
    return figure


def priors() -> Figure:
    """Draw models of encoded shots, without a denoiser between updates and with each."""
    asked = {"no prior": None, "nlm, 0.005": ("nlm", 0.005), "tv, 0.002": ("tv", 0.002)}
    keys = {
        "epochs": "160",
        "batch": "1",
        "encoding": '"signs"',
        "optimizer": '{name="adam", lr=[60.0, 10.0], eps=1e-22}',
    }
    runs = {}
    for text, prior in asked.items():
        if prior is None:
            runs[text] = invert("encoded", keys)
            continue
        name, strength = prior
        table = f'{{denoiser="{name}", strength={strength}, every=5}}'
        runs[text] = invert(f"prior_{name}", {**keys, "prior": table})
    figure = style.new_figure(8.0, 3.6)
    left, right = figure.subfigures(1, 2, width_ratios=(1.0, 1.2))
    draw_errors(left.subplots(), runs)
    models = {text: read_array(run / "model.h5", "vp") for text, run in runs.items()}
    models["true model"] = read_array(runs["no prior"] / "true.h5", "vp")
    top = float(models["true model"].max())
    panels = right.subplots(len(models), 1, sharex=True, sharey=True)
    for panel, (text, array) in zip(panels, models.items(), strict=True):
        panel.imshow(array, extent=(0.0, 12.0, 3.0, 0.0), aspect="auto", vmin=1500.0, vmax=top)
        style.title(panel, text)
        style.label(panel, "", "")
    style.label(panels[-1], "x (km)", "depth (km)")
    return figure


def wavelet() -> Figure:
    """Draw wavelets that were estimated from a wrong one, and the errors of their models."""
    guess = record("guess", put_guess)
    ways = {
        "known": None,
        "the guess, as if known": '"known"',
        "estimated once": '"estimate"',
        "estimated, every = 10": '{name="estimate", every=10}',
        "optimized": '"optimize"',
    }
    runs = {}
    for place, (text, way) in enumerate(ways.items()):
        keys = {"epochs": "40"} if way is None else {"epochs": "40", "wavelet": way}
        runs[text] = invert(f"wavelet_{place}", keys, INPUT if way is None else guess)
    with h5py.File(clean_data()) as file, h5py.File(guess.with_suffix(".h5")) as wrong:
        dt = float(file.attrs["dt"])
        emitted = {"true": file["wavelet"][...], "the guess": wrong["wavelet"][...]}
    emitted |= {text: read_array(runs[text] / "wavelet.h5", "wavelet") for text in list(ways)[2:]}
    figure = style.new_figure(9.0, 3.4)
    in_time, in_frequency, errors = figure.subplots(1, 3)
    for place, (text, wave) in enumerate(emitted.items()):
        look = WAVELET_LOOKS[place]
        in_time.plot(dt * np.arange(wave.size), wave, label=text, **look)
        shown = wave if text == "true" else wave - emitted["true"]
        amplitudes = find_amplitudes(np.atleast_2d(shown))
        frequencies = find_frequencies(shown.shape[-1], dt)
        in_frequency.semilogy(frequencies, amplitudes[0] * dt, **look)
    in_time.set_xlim(0.0, 1.0)
    in_frequency.set(xlim=(0.0, 10.0), ylim=(2e-5, 0.5))
    in_frequency.grid(color="0.9")
    style.title(in_time, "Wavelet")
    style.label(in_time, "time (s)", "")
    style.title(in_frequency, "Spectrum, and those of errors")
    style.label(in_frequency, "frequency (Hz)", "")
    for place, (text, run) in enumerate(runs.items()):
        history = read_metrics(run / "metrics.jsonl")
        errors.plot(
            [entry["simulations"] for entry in history],
            [entry["model_error"] for entry in history],
            label=text,
            **WAVELET_LOOKS[place],
        )
    errors.set_ylim(50.0, 200.0)  # the errors with the guess as known wavelet are larger
    errors.grid(color="0.9")
    style.title(errors, "Model error (m/s)")
    style.label(errors, "simulations", "")
    figure.legend(
        *errors.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=len(runs),
        fontsize=style.SMALL,
        frameon=False,
    )
    return figure


def put_guess(file: h5py.File) -> None:
    """Replace the wavelet by a Ricker of another frequency, delay, size and sign."""
    n, dt = file["wavelet"].size, float(file.attrs["dt"])
    file["wavelet"][...] = -0.3 * ricker(3.6, n, dt, 0.49)


def regularizers() -> Figure:
    """Draw models of noisy data, without a regularizer and with each, and the true one."""
    noisy = record("noisy", add_noise)
    asked = {
        "without": {},
        "tikhonov": {"regularize": '{name="tikhonov", weight=3e-9}'},
        "tv": {"regularize": '{name="tv", weight=6e-7}'},
    }
    runs = {
        name: invert(f"asked_{name}", {"epochs": "30"} | table, noisy)
        for name, table in asked.items()
    }
    true = read_array(runs["without"] / "true.h5", "vp")
    models = {name: read_array(run / "model.h5", "vp") for name, run in runs.items()}
    below = slice(round(300.0 / 75.0) + 1, None)  # the sea floor
    figure = style.new_figure(9.0, 3.4)
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    shown = {
        f"{name}: {np.sqrt(np.square((array - true)[below]).mean()):.0f} m/s off": array
        for name, array in models.items()
    } | {"true model": true}
    for axes, (text, array) in zip(panels.flat, shown.items(), strict=True):
        image = axes.imshow(
            array, extent=(0.0, 12.0, 3.0, 0.0), aspect="auto", vmin=1500.0, vmax=float(true.max())
        )
        style.title(axes, text)
        style.label(axes, "", "")
    label_ends(panels, "x (km)", "depth (km)")
    bar = figure.colorbar(image, ax=panels, shrink=0.8, aspect=25)
    bar.set_label("vp (m/s)", fontsize=style.TEXT)
    bar.ax.tick_params(labelsize=style.SMALL)
    return figure


def add_noise(file: h5py.File) -> None:
    """Add white noise of the same size to all traces."""
    data = file["data"][...]
    noise = np.random.default_rng(0).standard_normal(data.shape)
    file["data"][...] = data + NOISE * data.std() * noise


def networks() -> Figure:
    """Draw models of Marmousi2 from a linear start, by a network and by values on the grid."""
    runs = {
        "a network of sines": ROOT / "runs" / "marmousi_network",
        "values on the grid": ROOT / "runs" / "marmousi_network_grid",
    }
    for run in runs.values():
        if not (run / "model.h5").exists():
            sys.exit(f"No {run}: see docs/networks.md for the commands, which take half an hour.")
    (first, *_) = runs.values()
    models = {"start": read_array(first / "initial.h5", "vp")}
    models |= {text: read_array(run / "model.h5", "vp") for text, run in runs.items()}
    return _draw_marmousi(models, read_array(first / "true.h5", "vp"))


def field() -> Figure:
    """Draw models of the field case: the start, after some stages, the end, and the true one."""
    run = ROOT / "runs" / "marmousi_field" / "run"
    if not (run / "model.h5").exists():
        sys.exit(f"No {run}: see docs/field.md for the commands, which take half an hour.")
    true = read_array(run / "true.h5", "vp")
    models = {
        "start": read_array(run / "initial.h5", "vp"),
        "after first arrivals up to 6 km": read_array(run / "epochs" / "epoch_0048.h5", "inverted"),
        "after all arrivals up to 6 km": read_array(run / "epochs" / "epoch_0080.h5", "inverted"),
        "at the end": read_array(run / "model.h5", "vp"),
    }
    return _draw_marmousi(models, true)


def elastic() -> Figure:
    """Draw P and S velocities of an elastic and of an acoustic inversion, and the true ones."""
    run, acoustic = (ROOT / "runs" / f"marmousi_{name}" for name in ("elastic", "elastic_acoustic"))
    if not all((each / "model.h5").exists() for each in (run, acoustic)):
        sys.exit(f"No {run} or {acoustic}: see docs/elastic.md for the commands (twenty minutes).")
    start, end = run / "initial.h5", run / "model.h5"
    files = {
        "vp": {"start": start, "end": end, "acoustic waves": acoustic / "model.h5"},
        "vs": {"start": start, "end": end},
    }
    figure = style.new_figure(10.0, 6.1)
    panels = figure.subplots(4, 2, sharex=True, sharey=True)
    panels[2, 1].set_axis_off()
    for column, (name, limits) in enumerate({"vp": (1500.0, 4500.0), "vs": (0.0, 2600.0)}.items()):
        true = read_array(run / "true.h5", name)
        for axes, (text, file) in zip(panels[:, column], files[name].items(), strict=False):
            array = read_array(file, name)
            off = np.sqrt(np.square((array - true)[BELOW]).mean())
            _draw_velocity(axes, f"{name}, {text}: {off:.0f} m/s off", array, limits)
        image = _draw_velocity(panels[-1, column], f"true {name}", true, limits)
        bar = figure.colorbar(image, ax=panels[:, column], extend="both", shrink=0.6, aspect=30)
        bar.set_label(f"{name} (m/s)", fontsize=style.TEXT)
    label_ends(panels, "x (km)", "depth (km)")
    return figure


def _draw_velocity(
    axes: Axes, title: str, array: NDArray[np.float32], limits: tuple[float, float]
) -> AxesImage:
    """Draw a section of Marmousi2."""
    style.title(axes, title)
    extent = (0.0, 17.0, 3.5, 0.0)
    return axes.imshow(array, vmin=limits[0], vmax=limits[1], extent=extent, aspect="auto")


BELOW = slice(round(450.0 / 25.0) + 1, None)  # the sea floor


def _draw_marmousi(models: Mapping[str, NDArray[np.float32]], true: NDArray[np.float32]) -> Figure:
    """Draw models of Marmousi2 with their errors, and the true one."""
    shown = {
        f"{text}: {np.sqrt(np.square((array - true)[BELOW]).mean()):.0f} m/s off": array
        for text, array in models.items()
    } | {"true model": true}
    figure = style.new_figure(7.0, 0.1 + 1.5 * len(shown))
    panels = figure.subplots(len(shown), 1, sharex=True, sharey=True)
    for axes, (text, array) in zip(panels, shown.items(), strict=True):
        image = axes.imshow(
            array, vmin=1500.0, vmax=4500.0, extent=(0.0, 17.0, 3.5, 0.0), aspect="auto"
        )
        style.title(axes, text)
        style.label(axes, "", "depth (km)")
    style.label(panels[-1], "x (km)", "depth (km)")
    bar = figure.colorbar(image, ax=panels, extend="both", shrink=0.5, aspect=30)
    bar.set_label("vp (m/s)", fontsize=style.TEXT)
    return figure
