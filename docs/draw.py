"""Draws what the pages on methods show, into docs/images: `python docs/draw.py [NAME ...]`.

A figure is a function of this file, and its name that of the image. What needs an inversion runs
`hpcfwi run inputs/small.toml` with other keys, in build/figures, where later calls find it; these
together take some fifteen minutes on a core. `field` draws a run that is there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tomli_w
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image
from scipy import integrate

from hpcfwi.config import load_config
from hpcfwi.config.data import DataSection
from hpcfwi.config.precondition import PreconditionSection
from hpcfwi.inversion.bands import Band
from hpcfwi.inversion.conditioning import Conditioning
from hpcfwi.inversion.line_source import correct_point_source
from hpcfwi.inversion.preconditioning import Preconditioner, rise_from
from hpcfwi.inversion.preparation import prepare
from hpcfwi.model import Model
from hpcfwi.operators.window import Aperture, find_offsets
from hpcfwi.parallel.context import Context
from hpcfwi.registry import MISFITS, find
from hpcfwi.report import scales, style
from hpcfwi.report.metrics import read_metrics
from hpcfwi.report.traces import draw_traces
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.survey import Survey
from hpcfwi.wave.wavelet import peak_frequency, ricker, spectra

ROOT = Path(__file__).resolve().parent.parent
INPUT, IMAGES, RUNS = ROOT / "inputs/small.toml", ROOT / "docs/images", ROOT / "build/figures"

# Of the steepest slope of a misfit over shifts, below which it points nowhere
LEVEL = 0.01
GREY = "0.7"
COLOURS = 48
NOISE = 0.5  # root mean square, over that of all traces
GATHER_NOISE = 0.1
WATER = 1500.0  # m/s
LOUD, DEAD = 14, 33  # traces of a gather that are made bad
# What is true, what is wrong, what is found
WAVELET_LOOKS: tuple[dict[str, Any], ...] = (
    {"color": GREY, "linewidth": 3.0},
    {"color": style.MARK, "linewidth": 1.4, "linestyle": ":"},
    {"color": style.LIGHT, "linewidth": 1.6},
    {"color": style.STRONG, "linewidth": 1.4},
    {"color": "#3a9a3a", "linewidth": 1.4, "linestyle": "--"},
)
CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": style.TEXT}

SEARCHES = {
    name: (f'{{name="{name}", step=60.0}}', epochs)
    for name, epochs in (("lbfgs", 8), ("ncg", 5), ("gauss-newton", 4))
}
STEPS = {
    "adam": ('{name="adam", lr=60.0, eps=1e-22}', 10),
    "sgd": ('{name="sgd", lr=2.5e9}', 10),
}


def misfit_over_shifts(name: str, shifts: NDArray[np.float64]) -> NDArray[np.float64]:
    """A misfit of two Ricker arrivals of the same size, of which one is later by so many periods.

    Over the largest of them.
    """
    frequency, dt, samples = 10.0, 0.002, 1000
    middle = 0.5 * samples * dt
    times = middle + shifts / frequency
    simulated = np.stack([ricker(frequency, samples, dt, time) for time in times])
    observed = np.broadcast_to(ricker(frequency, samples, dt, middle), simulated.shape)
    # Each a shot of its own
    traces = (torch.from_numpy(array[:, None].copy()) for array in (simulated, observed))
    found = find(MISFITS[name])(*traces, dt)[0].numpy()
    return np.asarray(found / found.max())


def misfits() -> Figure:
    """Each misfit over the time by which an arrival is off."""
    columns = 4
    rows = -(-len(MISFITS) // columns)
    figure = style.new_figure(8.0, 1.9 * rows)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True)
    shifts = np.linspace(-2.5, 2.5, 501)
    for axes, name in zip(panels.flat, MISFITS, strict=False):
        values = misfit_over_shifts(name, shifts)
        # Away from no shift it should grow
        growth = np.gradient(values, shifts) * np.sign(shifts)
        least = LEVEL * np.abs(growth).max()
        axes.axvspan(-0.5, 0.5, color=style.LIGHT, alpha=0.3, linewidth=0)
        for which, colour in (
            (np.abs(growth) < least, GREY),
            (growth >= least, style.STRONG),
            (growth <= -least, style.MARK),
        ):
            axes.plot(shifts, np.where(which, values, np.nan), color=colour, linewidth=1.8)
        style.title(axes, name)
        style.label(axes, "", "")
    _label_ends(panels, "periods late", "misfit / largest")
    return figure


def preconditioners() -> Figure:
    """The first gradient of an inversion, as it is and after each preconditioner."""
    run = invert("gradient", {"epochs": "1", "sampling": '"all"'})
    experiment = prepare(load_config(run), Context.alone())
    grid, survey = experiment.initial.grid, experiment.survey
    with h5py.File(run / "epochs" / "epoch_0001.h5") as file:
        gradient, lit, back = (
            torch.from_numpy(file[name][...])
            for name in ("gradient", "source_illumination", "receiver_illumination")
        )
    initial = experiment.initial.as_tensors(torch.device("cpu"))
    (name,) = initial.arrays
    points = np.vstack([survey.sources, survey.listeners()])
    peak = peak_frequency(survey.wavelet, survey.dt)
    figure = style.new_figure(9.0, 4.6)
    asked: dict[str, dict[str, float]] = {
        "as it is": {},
        "illumination = 0.01": {"illumination": 0.01},
        "depth = 1.0": {"depth": 1.0},
        "taper = 600.0": {"taper": 600.0},
        "smooth = 0.2": {"smooth": 0.2},
        "illumination = 0.01, smooth = 0.2": {"illumination": 0.01, "smooth": 0.2},
    }
    panels = figure.subplots(3, 2, sharex=True, sharey=True)
    for axes, (text, keys) in zip(panels.T.flat, asked.items(), strict=True):
        made = Model(grid, {name: gradient})
        if keys:
            section = PreconditionSection(**keys)
            taper = None if section.taper is None else rise_from(points, section.taper, grid)
            preconditioner = Preconditioner(section, peak, taper)
            made = preconditioner.apply(made, {"source": lit, "receiver": back}, initial)
        shown = np.where(experiment.fixed, 0.0, made[name].numpy())
        limit = scales.clip_limit(shown, 99.0)
        extent = (grid.origin[1] / 1e3, grid.last[1] / 1e3, grid.last[0] / 1e3, 0.0)
        axes.imshow(shown, cmap="RdBu_r", vmin=-limit, vmax=limit, extent=extent, aspect="auto")
        style.title(axes, text)
        style.label(axes, "", "")
    _label_ends(panels, "x (km)", "depth (km)")
    return figure


def optimizers() -> Figure:
    """What optimisers find with so many simulations, all shots in each epoch."""
    runs = {
        name: invert(name, {"epochs": str(epochs), "sampling": '"all"', "optimizer": optimizer})
        for name, (optimizer, epochs) in {**STEPS, **SEARCHES}.items()
    }
    figure = style.new_figure(8.0, 3.0)
    left, right = figure.subplots(1, 2)
    _draw_misfits(left, runs)
    _draw_errors(right, runs)
    right.legend(fontsize=style.SMALL, frameon=False)
    return figure


def encoding() -> Figure:
    """What encoded shots find with so many simulations, beside shots one by one."""
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
    figure = style.new_figure(6.0, 3.0)
    axes = figure.subplots()
    _draw_errors(axes, runs)
    axes.legend(fontsize=style.SMALL, frameon=False)
    return figure


def priors() -> Figure:
    """What encoded shots find with a denoiser between updates, and without one."""
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
    axes = left.subplots()
    _draw_errors(axes, runs)
    axes.legend(fontsize=style.SMALL, frameon=False)
    models = {text: _read(run / "model.h5", "vp") for text, run in runs.items()}
    models["true model"] = _read(runs["no prior"] / "true.h5", "vp")
    top = float(models["true model"].max())
    panels = right.subplots(len(models), 1, sharex=True, sharey=True)
    for panel, (text, array) in zip(panels, models.items(), strict=True):
        panel.imshow(array, extent=(0.0, 12.0, 3.0, 0.0), aspect="auto", vmin=1500.0, vmax=top)
        style.title(panel, text)
        style.label(panel, "", "")
    style.label(panels[-1], "x (km)", "depth (km)")
    return figure


def batches() -> Figure:
    """What batches that grow find with so many simulations, beside batches that do not."""
    asked = {"1": 360, "4": 90, "24": 15, "[1, 8]": 80}
    runs = {
        f"batch = {batch}": invert(
            f"batch_{'_'.join(re.findall('[0-9]+', batch))}",
            {"batch": batch, "epochs": str(epochs)},
        )
        for batch, epochs in asked.items()
    }
    figure = style.new_figure(6.0, 3.0)
    axes = figure.subplots()
    _draw_errors(axes, runs)
    axes.legend(fontsize=style.SMALL, frameon=False)
    return figure


def wavelet() -> Figure:
    """Wavelets that were found from a wrong one, and the models that came of them."""
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
    emitted |= {text: _read(runs[text] / "wavelet.h5", "wavelet") for text in list(ways)[2:]}
    figure = style.new_figure(9.0, 3.4)
    in_time, in_frequency, errors = figure.subplots(1, 3)
    for place, (text, wave) in enumerate(emitted.items()):
        look = WAVELET_LOOKS[place]
        in_time.plot(dt * np.arange(wave.size), wave, label=text, **look)
        shown = wave if text == "true" else wave - emitted["true"]
        amplitudes, frequencies = spectra(shown, dt)
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
    errors.set_ylim(50.0, 200.0)  # what believes in the guess leaves it
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


def regularizers() -> Figure:
    """Models of noisy data, without a regulariser and with each, and the true one."""
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
    true = _read(runs["without"] / "true.h5", "vp")
    models = {name: _read(run / "model.h5", "vp") for name, run in runs.items()}
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
    _label_ends(panels, "x (km)", "depth (km)")
    bar = figure.colorbar(image, ax=panels, shrink=0.8, aspect=25)
    bar.set_label("vp (m/s)", fontsize=style.TEXT)
    bar.ax.tick_params(labelsize=style.SMALL)
    return figure


def conditioning() -> Figure:
    """A gather with noise and two bad traces, and what is compared of it for keys of [data]."""
    asked = (
        "",
        "edit = {}",
        "offsets = [600.0, 6000.0]",
        "band = [0.0, 3.0]",
        "mute = { curve = [[0.0, 0.1],\n[1500.0, 1.05], [8000.0, 3.0]] }",
        "mute = { velocity = 1500.0,\ndelay = 0.9 }",
        'mute = { velocity = 1500.0,\ndelay = 0.1, keep = "above" }',
        'mute = { velocity = 1500.0,\ndelay = 0.1, width = 0.7,\nkeep = "outside" }',
        "mute = { after = 3.0 }",
        "weight = { offset = 1.0 }",
        "weight = { amplitude = -1.0 }",
        "gain = 1.0",
    )
    survey, traces = _bad_gather()
    figure = style.new_figure(9.0, 6.2)
    panels = figure.subplots(3, 4, sharex=True, sharey=True)
    for axes, text in zip(panels.flat, asked, strict=True):
        section = DataSection(**tomllib.loads(text.replace("\n", " ")))
        shown, made = _condition(traces, survey, section)
        offsets = find_offsets(made.sources, made.receivers)[0]
        good = np.isfinite(shown).all(axis=1) & ~np.isin(np.arange(len(shown)), (LOUD, DEAD))
        limit = scales.clip_limit(shown[good], 97.0)
        axes.set_facecolor(style.LIGHT)
        image, *_ = draw_traces(axes, shown, offsets, made.dt, limit, made.start)
        image.set_interpolation("nearest")
        axes.set_ylim(survey.n_samples * survey.dt, 0.0)
        axes.set_title(text or "as recorded", fontsize=style.SMALL, loc="left")
        style.label(axes, "", "")
    _label_ends(panels, "offset (km)", "time (s)")
    return figure


def _bad_gather() -> tuple[Survey, NDArray[np.float32]]:
    """The traces (1, receiver, time) of a shot at the end of the line, and its survey."""
    with GatherReader(clean_data(), Context.alone()) as reader:
        shot = np.array([0])
        survey, traces = reader.survey.select(shot), reader.read(shot)
    # Few enough for the image to be small
    near, times = slice(0, 108, 2), slice(None, None, 6)
    survey = replace(
        survey,
        receivers=survey.receivers[:, near],
        wavelet=survey.wavelet[:, times],
        dt=6 * survey.dt,
    )
    traces = traces[:, near, times]
    noise = np.random.default_rng(0).standard_normal(traces.shape)
    traces = traces + (GATHER_NOISE * traces.std() * noise).astype(np.float32)
    traces[:, DEAD] = 0.0
    traces[:, LOUD] *= 30.0
    return survey, traces


def _condition(
    traces: NDArray[np.float32], survey: Survey, section: DataSection
) -> tuple[NDArray[np.float32], Survey]:
    """The traces (receiver, time) of a gather as a misfit meets them, NaN where it does not."""
    if section.band is not None:
        band = Band(*section.band, survey.n_samples, survey.dt)
        traces, survey = band.filter(traces), band.survey(survey)
    given = Conditioning(section, WATER).apply(traces, survey)
    near, far = section.offsets or (0.0, np.inf)
    heard = Aperture(None, far, near).trace_mask(survey.sources, survey.receivers)
    met = given.weigh(torch.from_numpy(given.observed)).numpy()
    return np.where((given.counts & heard)[..., None], met, np.nan)[0], survey


def line_source() -> Figure:
    """Waves of a point, what `correct` makes of them, and those of a line."""
    speed, dt, n, delay, frequency = 2000.0, 0.002, 900, 0.2, 10.0
    t = dt * np.arange(n)
    figure = style.new_figure(8.0, 2.4)
    panels = figure.subplots(1, 3, sharey=True)
    for axes, offset in zip(panels, (400.0, 1200.0, 2400.0), strict=True):
        point = ricker(frequency, n, dt, delay + offset / speed) / (4.0 * np.pi * offset)
        # s(t - r / c cosh theta) / (2 pi), over all theta >= 0
        theta = np.linspace(0.0, 4.0, 4001)
        a = (np.pi * frequency * (t[:, None] - offset / speed * np.cosh(theta) - delay)) ** 2
        line = integrate.simpson((1.0 - 2.0 * a) * np.exp(-a), x=theta, axis=1) / (2.0 * np.pi)
        made = correct_point_source(point[None], ricker(frequency, n, dt, delay), dt, speed)[0]
        off = np.linalg.norm(made - line) / np.linalg.norm(line)
        for wave, text, colour, dashes in (
            (point * np.abs(line).max() / np.abs(point).max(), "point, scaled", GREY, "-"),
            (line, "line", style.STRONG, "-"),
            (made, "corrected", style.MARK, "--"),
        ):
            axes.plot(
                t - offset / speed - delay,
                wave / np.abs(line).max(),
                dashes,
                color=colour,
                label=text,
            )
        axes.set_xlim(-0.1, 0.2)
        style.title(axes, f"{offset / speed * frequency:.0f} wavelengths: {off:.0%} off")
        style.label(axes, "", "")
    _label_ends(panels[None], "time after arrival (s)", "amplitude")
    panels[0].legend(fontsize=style.SMALL, frameon=False)
    return figure


def networks() -> Figure:
    """Models that a network made, and the same recipe with values on the grid, from a line."""
    runs = {
        "a network of sines": ROOT / "runs" / "marmousi_network",
        "values on the grid": ROOT / "runs" / "marmousi_network_grid",
    }
    for run in runs.values():
        if not (run / "model.h5").exists():
            sys.exit(f"No {run}: see docs/networks.md for the commands, which take half an hour.")
    (first, *_) = runs.values()
    models = {"start": _read(first / "initial.h5", "vp")}
    models |= {text: _read(run / "model.h5", "vp") for text, run in runs.items()}
    return _draw_marmousi(models, _read(first / "true.h5", "vp"))


def field() -> Figure:
    """Models of the field case: at the start, after some stages, at the end, and the true one."""
    run = ROOT / "runs" / "marmousi_field" / "run"
    if not (run / "model.h5").exists():
        sys.exit(f"No {run}: see docs/field.md for the commands, which take half an hour.")
    true = _read(run / "true.h5", "vp")
    models = {
        "start": _read(run / "initial.h5", "vp"),
        "after first arrivals up to 6 km": _read(run / "epochs" / "epoch_0048.h5", "inverted"),
        "after all arrivals up to 6 km": _read(run / "epochs" / "epoch_0080.h5", "inverted"),
        "at the end": _read(run / "model.h5", "vp"),
    }
    return _draw_marmousi(models, true)


def _draw_marmousi(models: Mapping[str, NDArray[np.float32]], true: NDArray[np.float32]) -> Figure:
    """Models of Marmousi2, with how far they are from the true one, and that."""
    below = slice(round(450.0 / 25.0) + 1, None)  # the sea floor
    shown = {
        f"{text}: {np.sqrt(np.square((array - true)[below]).mean()):.0f} m/s off": array
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


def splitting() -> Figure:
    """What each of two ranks has, and what goes between them, for four ways to split the work."""
    figure = style.new_figure(9.0, 4.4)
    panels = figure.subplots(2, 2)
    shots, domain, pipeline, server = panels.flat
    for axes in panels.flat:
        axes.set(xlim=(0.0, 10.0), ylim=(4.0, 0.0))
        axes.set_axis_off()
    for left in (0.3, 5.3):
        shots.add_patch(Rectangle((left, 0.6), 4.4, 1.8, color=style.LIGHT))
        shots.plot(left + np.array([0.7, 2.2, 3.7]), [0.6] * 3, "*", color=style.MARK, markersize=9)
        shots.text(left + 2.2, 1.6, "the whole model", ha="center", fontsize=style.TEXT)
    _arrow(shots, "an epoch: the gradients, added", (2.5, 3.0), (7.5, 3.0), "<->")
    style.title(shots, "shots over ranks: what hpcfwi does")

    for left, halo in ((0.3, 4.3), (5.3, 5.3)):
        domain.add_patch(Rectangle((left, 0.6), 4.4, 1.8, color=style.LIGHT))
        domain.add_patch(Rectangle((halo, 0.6), 0.4, 1.8, color=style.STRONG))
        domain.text(left + 2.2, 1.6, "half the model", ha="center", fontsize=style.TEXT)
    domain.plot(3.0, 0.6, "*", color=style.MARK, markersize=9)
    _arrow(domain, "each time step: the halo", (4.3, 3.0), (5.7, 3.0), "<->")
    style.title(domain, "a shot's domain over ranks")

    for shot in range(3):
        for stage in range(2):
            place = (0.8 + 2.2 * (shot + stage), 0.6 + 1.1 * stage)
            pipeline.add_patch(Rectangle(place, 2.1, 0.9, color=style.LIGHT))
            middle = (place[0] + 1.05, place[1] + 0.5)
            pipeline.text(
                *middle, f"shot {shot + 1}", ha="center", va="center", fontsize=style.SMALL
            )
    for idle in ((7.4, 0.6), (0.8, 1.7)):
        pipeline.add_patch(Rectangle(idle, 2.1, 0.9, fill=False, hatch="///", edgecolor=GREY))
    for rank, half in enumerate(("first", "second")):
        row = 1.1 + 1.1 * rank
        pipeline.text(0.7, row, f"{half}\nhalf", ha="right", va="center", fontsize=style.SMALL)
    _arrow(pipeline, "time; each shot: the whole field", (0.8, 3.0), (9.5, 3.0), "->")
    style.title(pipeline, "time steps over ranks, a pipeline")

    server.add_patch(Rectangle((3.6, 0.5), 2.8, 0.8, color=style.MARK, alpha=0.4))
    server.text(5.0, 0.95, "server", ha="center", va="center", fontsize=style.TEXT)
    for left in (0.3, 2.75, 5.2, 7.65):
        server.add_patch(Rectangle((left, 2.4), 2.05, 0.8, color=style.LIGHT))
        _arrow(server, "", (left + 1.0, 2.3), (5.0 + 0.2 * (left - 4.0), 1.4), "<->")
    server.text(5.0, 3.6, "an epoch: gradients up, the model down", **CENTRED)
    style.title(server, "a server of parameters")
    return figure


def _arrow(
    axes: Axes, text: str, start: tuple[float, float], end: tuple[float, float], kind: str
) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": kind, "color": style.STRONG})
    if text:
        axes.text(0.5 * (start[0] + end[0]), start[1] + 0.6, text, **CENTRED)


def _read(path: Path, name: str) -> NDArray[np.float32]:
    with h5py.File(path) as file:
        return np.asarray(file[name][...])


def _label_ends(panels: NDArray[np.object_], x: str, y: str) -> None:
    """Label the axes of panels that share them: below the lowest, and on the left."""
    for axes in panels[-1]:
        axes.set_xlabel(x, fontsize=style.TEXT)
    for axes in panels[:, 0]:
        axes.set_ylabel(y, fontsize=style.TEXT)


def _draw_errors(axes: Axes, runs: Mapping[str, Path]) -> None:
    """Of the model after each epoch."""
    for name, run in runs.items():
        history = read_metrics(run / "metrics.jsonl")
        simulations = [entry["simulations"] for entry in history]
        errors = [entry["model_error"] for entry in history]
        _draw_line(axes, simulations, errors, name)
    style.title(axes, "Model error (m/s)")
    style.label(axes, "simulations", "")


def _draw_misfits(axes: Axes, runs: Mapping[str, Path]) -> None:
    """Of the model that each epoch begins with."""
    for name, run in runs.items():
        history = read_metrics(run / "metrics.jsonl")
        simulations = [0, *(entry["simulations"] for entry in history[:-1])]
        _draw_line(axes, simulations, [entry["loss"] for entry in history], name)
    style.title(axes, "Misfit")
    style.label(axes, "simulations", "")
    axes.set_yscale("log")


def _draw_line(axes: Axes, x: list[int], y: list[float], name: str) -> None:
    # Some marks, where there are many
    every = max(1, len(y) // 20)
    axes.plot(x, y, "o-", label=name, markersize=3, markevery=every)
    axes.grid(color="0.9")


def clean_data() -> Path:
    """The gathers of the input, simulated where they have not been."""
    run = RUNS / "clean"
    if not (run / "observed.h5").exists():
        command = [sys.executable, "-m", "hpcfwi", "forward", str(INPUT), "--output", str(run)]
        subprocess.run([*command, "--engine", "cpu", "--quiet"], check=True, cwd=ROOT)
    return run / "observed.h5"


def record(name: str, change: Callable[[h5py.File], None]) -> Path:
    """The input with gathers of its own, which are the simulated ones after a change."""
    gathers, source = RUNS / f"{name}.h5", RUNS / f"{name}.toml"
    if not source.exists():
        shutil.copyfile(clean_data(), gathers)
        with h5py.File(gathers, "a") as file:
            change(file)
            # By which hpcfwi knows what it has simulated itself
            del file.attrs["fingerprint"], file["digests"]
        tables = tomllib.loads(INPUT.read_text(encoding="utf-8"))
        tables["survey"] = {"file": gathers.name}
        source.write_text(tomli_w.dumps(tables), encoding="utf-8")
    return source


def add_noise(file: h5py.File) -> None:
    """White noise, to all traces alike."""
    data = file["data"][...]
    noise = np.random.default_rng(0).standard_normal(data.shape)
    file["data"][...] = data + NOISE * data.std() * noise


def put_guess(file: h5py.File) -> None:
    """A Ricker of another frequency, delay, size and sign in place of the wavelet."""
    n, dt = file["wavelet"].size, float(file.attrs["dt"])
    file["wavelet"][...] = -0.3 * ricker(3.6, n, dt, 0.49)


def invert(name: str, changes: Mapping[str, str], source: Path = INPUT) -> Path:
    """The run directory of an input with other keys of [inversion], run where it has not been."""
    run = RUNS / name
    settings = [f"inversion.{key}={value}" for key, value in changes.items()]
    settings += ["output.every=1000", "wave.engine=cpu"]
    command = [sys.executable, "-m", "hpcfwi", "run", str(source), "--output", str(run), "--quiet"]
    for setting in settings:
        command += ["--set", setting]
    subprocess.run(command, check=True, cwd=ROOT)
    return run


FIGURES: tuple[Callable[[], Figure], ...] = (
    misfits,
    preconditioners,
    optimizers,
    encoding,
    batches,
    wavelet,
    regularizers,
    conditioning,
    line_source,
    priors,
    networks,
    field,
    splitting,
)


def main(names: list[str]) -> None:
    """Draw the figures of these names, all where there is none."""
    for make in FIGURES:
        if not names or make.__name__ in names:
            path = IMAGES / f"{make.__name__}.png"
            style.save(make(), path)
            # Every clone loads them
            Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
