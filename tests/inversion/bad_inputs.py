"""Invalid inputs, and the words that their error messages must contain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcfwi.model import Grid, Model
from hpcfwi.parallel.context import Context
from hpcfwi.storage.gathers import create_gathers
from hpcfwi.storage.models import write_model
from hpcfwi.survey import Survey
from hpcfwi.wave.numerics import ricker
from tests.inversion.examples import (
    N_RECEIVERS,
    N_SAMPLES,
    N_SHOTS,
    true_model,
    true_volume,
    write_input,
)

FILE_INSTEAD = {
    "survey.file": "given.h5",
    "survey.sources": None,
    "survey.receivers": None,
    "survey.wavelet": None,
    "survey.dt": None,
    "survey.duration": None,
}


def transpose_model(folder: Path) -> None:
    """Store the model as (x, z)."""
    model = true_model()
    grid = Grid(model.grid.shape[::-1], model.grid.spacing, model.grid.origin)
    write_model(folder / "true.h5", Model(grid, {"vp": model["vp"].T}))


RICKER = ricker(8.0, N_SAMPLES, 0.004, 0.12)


@dataclass(frozen=True)
class BadInput:
    """An invalid input, as changes of a valid config, settings, and files.

    words: the place, the problem and the remedy, in the error message; arrange: a function of the
    folder of the config that changes or adds files.
    """

    name: str
    words: tuple[str, ...]
    changes: dict[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    arrange: Callable[[Path], None] | None = None

    def write(self, folder: Path) -> Path:
        """Write the input, and return the path of its config."""
        path = write_input(folder, self.changes)
        if self.arrange is not None:
            self.arrange(folder)
        return path


def write_given(folder: Path, data: np.ndarray | None = None, receivers: int = N_RECEIVERS) -> None:
    """Write a gathers file given.h5 for the survey of the example, by default with noise."""
    x = np.linspace(0.0, 1180.0, N_SHOTS)
    survey = Survey(
        np.stack([np.full_like(x, 20.0), x], axis=1),
        np.stack([np.full(N_RECEIVERS, 40.0), np.linspace(0.0, 1180.0, N_RECEIVERS)], axis=1),
        np.hanning(N_SAMPLES).astype(np.float32),
        0.004,
    )
    if data is None:
        noise = np.random.default_rng(0).normal(size=(N_SHOTS, N_RECEIVERS, N_SAMPLES))
        data = 0.01 * noise.astype(np.float32)
    with create_gathers(folder / "given.h5", survey, Context.alone()) as writer:
        writer.write(np.arange(N_SHOTS), data)
    if receivers != N_RECEIVERS:
        with h5py.File(folder / "given.h5", "a") as file:
            del file["receivers"]
            file["receivers"] = np.zeros((receivers, 2))


def write_given_with(folder: Path, **changes: Any) -> None:
    """Write given data with a Ricker wavelet of 8 Hz, and another dt or scaled positions."""
    write_given(folder)
    with h5py.File(folder / "given.h5", "a") as file:
        file["wavelet"][:] = RICKER
        file.attrs["dt"] = changes.pop("dt", 0.004)
        for name, factor in changes.items():
            file[name][:] *= factor


def write_given_wavelet(folder: Path, wavelet: np.ndarray) -> None:
    """Write given data with one wavelet for all shots, or one for each."""
    write_given_with(folder)
    with h5py.File(folder / "given.h5", "a") as file:
        del file["wavelet"]
        file["wavelet"] = wavelet.astype(np.float32)


def write_nan(folder: Path, name: str) -> None:
    vp = true_model()["vp"].copy()
    vp[3, 4] = np.nan
    write_model(folder / name, Model(true_model().grid, {"vp": vp}))


def write_cube(folder: Path) -> None:
    with h5py.File(folder / "true.h5", "a") as file:
        del file["vp"]
        file["vp"] = np.full((2, 2, 2, 2), 1500.0, np.float32)


def write_half(folder: Path) -> None:
    """The left half of the true model, at half its resolution."""
    grid = Grid((15, 15), (40.0, 40.0), (0.0, 0.0))
    write_model(folder / "half.h5", Model(grid, {"vp": true_model()["vp"][::2, :30:2]}))


def write_km_per_s(folder: Path) -> None:
    write_model(folder / "true.h5", Model(true_model().grid, {"vp": true_model()["vp"] / 1000.0}))


def write_other_config(folder: Path) -> None:
    """Write a run directory of a run with other values that has observed data."""
    other = write_input(folder, {"survey.dt": 0.005}, name="other")
    write_other_data(folder)
    (folder / "run" / "config.toml").write_bytes(other.read_bytes())


def write_other_data(folder: Path) -> None:
    """Write observed data of another model to a run directory that is otherwise empty."""
    (folder / "run").mkdir()
    write_given(folder)
    (folder / "given.h5").rename(folder / "run" / "observed.h5")


BAD_INPUTS = [
    BadInput(
        "unknown key",
        ("input.toml: model.spaceing", "unknown key", "spacing"),
        {"model.spaceing": 25.0},
    ),
    BadInput(
        "unknown key, deep",
        ("survey.sources.number", "unknown key", "count, depth"),
        {"survey.sources.number": 3},
    ),
    BadInput(
        "sharded state of an optimizer without shards",
        ("inversion.optimizer", "sharded = true", "'ncg'", "docs/optimizers.md"),
        {"inversion.optimizer": {"name": "ncg", "step": 40.0, "sharded": True}},
    ),
    BadInput("unknown section", ("solver", "unknown key", "model, output"), {"solver.x": 1}),
    BadInput("missing key", ("inversion.epochs", "missing", "Add"), {"inversion.epochs": None}),
    BadInput("text for a number", ("model.spacing", "'25'", "number"), {"model.spacing": "25"}),
    BadInput(
        "spacing 0", ("input.toml: model.spacing", "0.0", "greater than 0"), {"model.spacing": 0.0}
    ),
    BadInput("spacing nan", ("model.spacing", "nan", "finite"), {"model.spacing": float("nan")}),
    BadInput(
        "spacing of kilometres",
        ("model.spacing", "2 x 3 points", "smaller"),
        {"model.spacing": 400.0, "inversion.fixed_above": None},
    ),
    BadInput("negative dt", ("survey.dt", "-0.004", "greater than 0"), {"survey.dt": -0.004}),
    BadInput(
        "duration below dt", ("survey", "duration", "two samples"), {"survey.duration": 0.005}
    ),
    BadInput(
        "silent wavelet",
        ("survey.wavelet", "the wavelet is zero", "delay"),
        {"survey.wavelet.delay": 1000.0},
    ),
    BadInput(
        "silent wavelet in gathers",
        ("given.h5, /wavelet", "the wavelet is zero", "convert", "--wavelet"),
        FILE_INSTEAD,
        arrange=lambda folder: write_given_wavelet(folder, np.zeros(N_SAMPLES)),
    ),
    BadInput(
        "silent wavelets of some shots",
        ("given.h5, /wavelet", "wavelets of 2 of 10 shots are zero", "first is shot 3", "convert"),
        FILE_INSTEAD,
        arrange=lambda folder: write_given_wavelet(
            folder, np.isin(np.arange(N_SHOTS), (3, 7), invert=True)[:, None] * RICKER
        ),
    ),
    BadInput(
        "wavelet with NaN",
        ("given.h5, /wavelet", "1 of 150 values are not finite", "index (7,)"),
        FILE_INSTEAD,
        arrange=lambda folder: write_given_wavelet(
            folder, np.where(np.arange(N_SAMPLES) == 7, np.nan, RICKER)
        ),
    ),
    BadInput(
        "wavelet without energy in the band",
        (
            "data.band",
            "found [90.0, 110.0]",
            "wavelet is zero",
            "peak is at 7.92",
            "energy in this band",
        ),
        {"data.band": [90.0, 110.0], "survey.wavelet.delay": 0.25},
    ),
    BadInput(
        "band with less of the wavelet than leaks into it from outside",
        ("data.band", "found [40.0, 50.0]", "wavelet is zero", "energy in this band"),
        {"data.band": [40.0, 50.0], "survey.wavelet.delay": 0.25},
    ),
    BadInput(
        "wavelet without energy in the band of a stage",
        ("stage.2.data.band", "found [0.0, 1e-05]", "wavelet is zero"),
        {"stage": [{"data": {"band": [0.0, 9.0]}}, {"data": {"band": [0.0, 1e-5]}}]},
    ),
    BadInput(
        "weight of a component in a stage that the survey does not have",
        ("stage.2.data.components", "found vz", "the survey has pressure"),
        {"stage": [{}, {"data": {"components": {"vz": 0.5}}}]},
    ),
    BadInput("batch 0", ("inversion.batch", "0", "greater than 0"), {"inversion.batch": 0}),
    BadInput(
        "batch beyond the survey",
        ("inversion.batch", "11", "10 shots", "at most"),
        {"inversion.batch": 11},
    ),
    BadInput(
        "sources outside",
        ("survey: sources", "10 of 10", "[5000.0, 0.0]", "Move them"),
        {"survey.sources.depth": 5000.0},
    ),
    BadInput(
        "receivers outside",
        ("survey: receivers", "[40.0, -100.0]", "z, x", "Move them"),
        {"survey.receivers.first": -100.0},
    ),
    BadInput(
        "model missing", ("nowhere.h5", "no such file", "Check"), {"model.file": "nowhere.h5"}
    ),
    BadInput(
        "initial model missing",
        ("nowhere.h5", "no such file", "Check"),
        {"model.initial": {"file": "nowhere.h5"}},
    ),
    BadInput(
        "gathers missing",
        ("given.h5", "no such file", "Check"),
        FILE_INSTEAD,
    ),
    BadInput(
        "two models",
        ("input.toml: model", "exactly one of dataset and file"),
        {"model.dataset": "marmousi2"},
    ),
    BadInput(
        "unknown dataset", ("model.dataset", "'pluto'", "'marmousi2'"), {"model.dataset": "pluto"}
    ),
    BadInput(
        "model of four axes", ("true.h5, /vp", "(2, 2, 2, 2)", "two dimensions"), arrange=write_cube
    ),
    BadInput(
        "initial model of half the extent",
        ("model.initial.file", "15 x 15 points", "not cover", "30 x 60 points", "same extent"),
        {"model.initial": {"file": "half.h5"}},
        arrange=write_half,
    ),
    BadInput(
        "prior of half the extent",
        ("inversion.regularize.prior", "15 x 15 points", "not cover", "same extent"),
        {"inversion.regularize": {"name": "tv", "weight": 1.0, "prior": "half.h5"}},
        arrange=write_half,
    ),
    BadInput(
        "negative initial velocities",
        ("model.initial.linear", "[1500.0, -4.0]", "-820 m/s", "per metre"),
        {"model.initial": {"linear": [1500.0, -4.0]}},
    ),
    BadInput(
        "initial velocities in km/s",
        ("model.initial.linear", "[1.5, 0.6]", "seems to be in km/s", "give 1500"),
        {"model.initial": {"linear": [1.5, 0.6]}},
    ),
    BadInput(
        "wavelet from offsets without receivers",
        ("inversion.wavelet.furthest", "1 m", "no receiver is this close", "larger"),
        {
            "inversion.wavelet": {"name": "estimate", "furthest": 1.0},
            "survey.receivers.first": 300.0,
            "survey.receivers.last": 340.0,
        },
    ),
    BadInput(
        "wavelet from near traces of encoded shots",
        ("inversion.wavelet.furthest", "300", "signs", "without an encoding"),
        {
            "inversion.wavelet": {"name": "estimate", "furthest": 300.0},
            "inversion.encoding": "signs",
        },
    ),
    BadInput(
        "wavelets per shot of encoded shots",
        ("inversion.wavelet.per", '"shot"', "signs", 'Give per = "survey"'),
        {
            "inversion.wavelet": {"name": "estimate", "per": "shot"},
            "inversion.encoding": "signs",
        },
    ),
    BadInput(
        "wavelets per shot from offsets that some shots lack",
        ("inversion.wavelet.furthest", "300 m", "of 10 shots", "first is shot 5", 'per = "survey"'),
        {
            "inversion.wavelet": {"name": "estimate", "per": "shot", "furthest": 300.0},
            "survey.receivers.first": 300.0,
            "survey.receivers.last": 340.0,
        },
    ),
    BadInput(
        "points of a volume in a section",
        ("survey.sources.count", "found [2, 5]", "2 axes (z, x)", "count = 24"),
        {"survey.sources.count": [2, 5]},
    ),
    BadInput(
        "points of a section in a volume",
        ("survey.receivers.count", "found 30", "3 axes (z, y, x)", "count = [4, 6]"),
        {"survey.sources.count": [2, 5]},
        arrange=lambda folder: write_model(folder / "true.h5", true_volume()),
    ),
    BadInput(
        "count of a section with first of a volume",
        ("survey.sources", "count is a number and first a pair", "[y, x]"),
        {"survey.sources.first": [0.0, 0.0]},
    ),
    BadInput(
        "sources outside a volume",
        ("survey: sources", "10 of 10", "[20.0, 900.0, 0.0]", "z, y, x", "Move them"),
        {
            "survey.sources": {"count": [2, 5], "depth": 20.0, "first": [900, 0], "last": [999, 9]},
            "survey.receivers.count": [3, 10],
        },
        arrange=lambda folder: write_model(folder / "true.h5", true_volume()),
    ),
    BadInput(
        "gathers of a section for a volume",
        ("survey", "2 coordinates", "3 axes", "same dimension"),
        FILE_INSTEAD,
        arrange=lambda folder: void(
            (write_given(folder), write_model(folder / "true.h5", true_volume()))
        ),
    ),
    BadInput(
        "gathers of another shape",
        ("given.h5, /receivers", "(7, 2)", "(30, 2)", "agree"),
        FILE_INSTEAD,
        arrange=lambda folder: write_given(folder, receivers=7),
    ),
    BadInput(
        "NaN in the model",
        ("true.h5, /vp", "1 of 1800", "(3, 4)", "Fill"),
        arrange=lambda folder: write_nan(folder, "true.h5"),
    ),
    BadInput(
        "NaN in the initial model",
        ("start.h5, /vp", "1 of 1800", "(3, 4)", "Fill"),
        {"model.initial": {"file": "start.h5"}},
        arrange=lambda folder: write_nan(folder, "start.h5"),
    ),
    BadInput("model in km/s", ("true.h5, /vp", "km/s", "Multiply"), arrange=write_km_per_s),
    BadInput("unknown engine", ("wave.engine", "'fpga'", "'cpu'"), {"wave.engine": "fpga"}),
    BadInput("odd order", ("wave.order", "3", "2, 4, 6 or 8"), {"wave.order": 3}),
    BadInput(
        "unknown optimizer",
        ("inversion.optimizer.name", "'newton'", "'adam'"),
        {"inversion.optimizer.name": "newton"},
    ),
    BadInput(
        "key of another optimizer",
        ("inversion.optimizer", "inversion.optimizer has the keys betas, eps, lr"),
        {"inversion.optimizer.momentum": 0.9},
    ),
    BadInput(
        "bounds that exclude the initial model",
        ("inversion.bounds", "[1000.0, 1800.0]", "Widen"),
        {"inversion.bounds": [1000.0, 1800.0]},
    ),
    BadInput(
        "bounds in km/s",
        ("inversion.bounds", "[1.5, 4.5]", "in km/s: multiply them by 1000"),
        {"inversion.bounds": [1.5, 4.5]},
    ),
    BadInput(
        "bounds in the wrong order",
        ("inversion", "[4000.0, 1000.0]", "smaller one first"),
        {"inversion.bounds": [4000.0, 1000.0]},
    ),
    BadInput(
        "everything fixed",
        ("inversion.fixed_above", "900.0", "above 580.0 m"),
        {"inversion.fixed_above": 900.0},
    ),
    BadInput(
        "fixed above a depth in km",
        ("inversion.fixed_above", "0.06 m", "cells of 20 m", "Give 60 if it is in km"),
        {"inversion.fixed_above": 0.06},
    ),
    BadInput(
        "transposed model",
        (
            "survey: receivers",
            "of 30 lie outside the model",
            "If its arrays are (x, z), transpose them",
        ),
        {"survey.receivers.last": 1180.0},
        arrange=transpose_model,
    ),
    BadInput(
        "model without S velocity",
        ("true.h5, /vs", "has no S velocity; it holds /vp", "--parameter vs", "model.initial.vs"),
        {"wave.equation": "elastic"},
    ),
    BadInput(
        "everything fixed by a surface",
        ("inversion.fixed.file", "floor.txt", "900 to 900 m", "fix the whole model", "0 to 580 m"),
        {"inversion.fixed_above": None, "inversion.fixed": {"file": "floor.txt"}},
        arrange=lambda folder: (folder / "floor.txt").write_text("0 900\n"),
    ),
    BadInput(
        "surface of heights instead of depths",
        ("inversion.fixed.file", "-60 to -60 m", "fix no cell", "downwards"),
        {"inversion.fixed_above": None, "inversion.fixed": {"file": "floor.txt"}},
        arrange=lambda folder: (folder / "floor.txt").write_text("0 -60\n"),
    ),
    BadInput(
        "no cell below the velocity limit",
        ("inversion.fixed.above_velocity", "found 1.6", "fixes no cell", "1500 to 1500 m/s"),
        {"inversion.fixed_above": None, "inversion.fixed": {"above_velocity": 1.6}},
    ),
    BadInput(
        "invalid row in a surface of a stage",
        ("floor.txt, line 2", "found '600'", "expected 2 numbers, x depth, in m"),
        {
            "inversion.fixed_above": None,
            "stage": [{"inversion": {"fixed": {"file": "floor.txt"}}}],
        },
        arrange=lambda folder: (folder / "floor.txt").write_text("0 60\n600\n"),
    ),
    BadInput(
        "no receiver within max_offset",
        ("inversion.max_offset", "10.0", "4 of 10 shots", "first is shot 2", "larger"),
        {"inversion.max_offset": 10.0},
    ),
    BadInput(
        "sources on a free surface",
        ("survey.sources.depth", "10 of 10 lie on the free surface", "such as 20 m"),
        {"wave.free_surface": True, "survey.sources.depth": 0.0},
    ),
    BadInput(
        "sources on the free surface of a stage",
        ("survey.sources.depth", "10 of 10 lie on the free surface", "stage.2.wave.free_surface"),
        {"stage": [{}, {"wave": {"free_surface": True}}], "survey.sources.depth": 0.0},
    ),
    BadInput(
        "receivers on a free surface",
        ("given.h5: receivers", "30 of 30 lie on the free surface", "false"),
        {**FILE_INSTEAD, "wave.free_surface": True},
        arrange=lambda folder: write_given_with(folder, receivers=[0.0, 1.0]),
    ),
    BadInput(
        "milliseconds for dt",
        ("survey", "dt is 4 s", "8 Hz", "milliseconds: 0.004 s"),
        {"survey.dt": 4.0, "survey.duration": 600.0},
    ),
    BadInput(
        "milliseconds for dt in gathers",
        ("given.h5, attribute dt", "found 4 s", "milliseconds: give 0.004"),
        FILE_INSTEAD,
        arrange=lambda folder: write_given_with(folder, dt=4.0),
    ),
    BadInput(
        "dt in gathers divided by 1000 instead of multiplied",
        ("given.h5, attribute dt", "found 4e-06 s", "shorter than a cell"),
        FILE_INSTEAD,
        arrange=lambda folder: write_given_with(folder, dt=4e-6),
    ),
    BadInput(
        "milliseconds for the duration",
        ("survey.duration", "found 600 s", "750 times", "1200 m", "milliseconds: give 0.6"),
        {"survey.duration": 600.0},
    ),
    BadInput(
        "duration too long in seconds or milliseconds",
        ("survey.duration", "found 60 s", "75 times", "Give a shorter one"),
        {"survey.duration": 60.0},
    ),
    BadInput(
        "milliseconds for a duration of too many samples",
        ("survey", "duration holds 1.5e+06 samples", "at most 1000000", "milliseconds: 6 s"),
        {"survey.duration": 6000.0},
    ),
    BadInput(
        "milliseconds for the wavelet's delay",
        ("survey.wavelet", "the wavelet is zero", "delay", "milliseconds: give 0.12"),
        {"survey.wavelet.delay": 120.0},
    ),
    BadInput(
        "kilometres for positions",
        ("survey: sources", "within 1.16 m", "in km: multiply them by 1000"),
        {"survey.sources.first": 0.02, "survey.sources.last": 1.18},
    ),
    BadInput(
        "kilometres for positions in gathers",
        ("given.h5: receivers", "within 1.18 m", "in km: multiply them by 1000"),
        FILE_INSTEAD,
        arrange=lambda folder: write_given_with(folder, receivers=1e-3),
    ),
    BadInput(
        "spread beyond the model",
        ("survey.receivers.offset", "1 of 10 shots", "shot 9 at x = 1180 m", "Leave these shots"),
        {"survey.receivers": {"count": 3, "depth": 40.0, "offset": 20.0, "spacing": 20.0}},
    ),
    BadInput(
        "spread of too many receivers",
        ("survey.receivers.count", "1000000000 receivers for each of 10 shots", "Give fewer"),
        {"survey.receivers": {"count": 10**9, "depth": 40.0, "offset": 20.0, "spacing": 20.0}},
    ),
    BadInput(
        "size without a unit",
        ("wave.memory", "12", "a size with its unit"),
        {"wave.memory": "12"},
    ),
    BadInput(
        "setting out of range",
        ("model.spacing", "-3", "greater than 0"),
        settings=("model.spacing=-3",),
    ),
    BadInput(
        "setting with an unknown key",
        ("inversion.bath", "unknown key", "batch"),
        settings=("inversion.bath=3",),
    ),
    BadInput("malformed setting", ("--set epochs", "section.key=value"), settings=("epochs",)),
    BadInput(
        "unknown denoiser",
        ("inversion.prior.denoiser", '"tv", "nlm" or "module:function"'),
        {"inversion.prior": {"denoiser": "median", "strength": 0.1}},
    ),
    BadInput(
        "denoiser that cannot be imported",
        ("inversion.prior.denoiser", "no_such_module:f", "PYTHONPATH"),
        {"inversion.prior": {"denoiser": "no_such_module:f", "strength": 0.1}},
    ),
    BadInput(
        "setting of a key below a value",
        ("--set inversion.epochs.x=1", "a value, not a table"),
        settings=("inversion.epochs.x=1",),
    ),
    BadInput(
        "not TOML",
        ("input.toml", "not valid TOML", "line 1", "Correct"),
        arrange=lambda folder: void((folder / "input.toml").write_text("[model\n")),
    ),
    BadInput(
        "one table of stages",
        ("stage", "found one table", "expected a list", "[[stage]]"),
        {"stage": {"name": "low", "data": {"band": [0.0, 9.0]}}},
    ),
    BadInput(
        "two tables of stages without a list",
        ("input.toml", "not valid TOML", "[[stage]]"),
        arrange=lambda folder: void(
            (folder / "input.toml").write_text("[stage]\nname = 'low'\n[stage]\nname = 'high'\n")
        ),
    ),
    BadInput(
        "not UTF-8",
        ("input.toml", "not UTF-8"),
        arrange=lambda folder: void((folder / "input.toml").write_bytes(b"\xff\xfe[")),
    ),
    BadInput(
        "missing config",
        ("input.toml", "No such file", "Check"),
        arrange=lambda folder: (folder / "input.toml").unlink(),
    ),
    BadInput(
        "run directory of another config",
        ("run: ", "survey.dt = 0.005", "--output"),
        arrange=write_other_config,
    ),
    BadInput(
        "observed data of another model",
        ("observed.h5", "another model or survey", "remove"),
        arrange=write_other_data,
    ),
    BadInput(
        "output that cannot be a directory",
        ("output.directory", "cannot be", "--output"),
        arrange=lambda folder: void((folder / "run").write_text("a file")),
    ),
]


def void(_: object) -> None:
    """Discard the result of a call, for a lambda whose effect is wanted."""
