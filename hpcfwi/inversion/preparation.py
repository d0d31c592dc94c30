"""From a config to the experiment that it describes: read, placed, and checked as a whole.

Collective: every rank calls `prepare` and gets the same, or the same `InputError`. Models, and what
there is of each shot's receivers, are there once a host.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from math import prod
from os.path import realpath
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcfwi.config import Config, load_config
from hpcfwi.config.inversion import InversionSection
from hpcfwi.config.survey import Receivers
from hpcfwi.datasets.library import load_dataset
from hpcfwi.errors import InputError
from hpcfwi.host import check_room, exists
from hpcfwi.inversion.demands import refuse_stage
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.known import Known, lay_surface
from hpcfwi.inversion.placement import place_points, place_spread
from hpcfwi.inversion.slips import refuse_slips
from hpcfwi.inversion.surveying import know_spectrum
from hpcfwi.model import (
    Grid,
    Model,
    resample,
    resample_onto,
    resampled_shape,
    smooth,
)
from hpcfwi.parallel.commons import once_a_host
from hpcfwi.parallel.context import Context
from hpcfwi.storage.checkpoint import latest_epoch
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.storage.models import load_model, read_epoch
from hpcfwi.storage.surfaces import read_surface
from hpcfwi.survey import Survey
from hpcfwi.wave.stencil import FEWEST_POINTS, longest_step
from hpcfwi.wave.wavelet import ricker

log = logging.getLogger("hpcfwi")

# Longest stable steps in a sample of the data. Where a sample is longer, the record's shortest
# wave is hundreds of cells long; where it is shorter, what the wave gains in a step is lost in
# rounding.
STEPS_A_SAMPLE = (1e-4, 1e3)


def prepare(config: Config, context: Context) -> Experiment:
    """Read the models and the survey, and check that they belong together; collective.

    Raises `InputError` on all ranks.
    """
    section = config.model
    given = _load_given(config, context)
    if section.spacing is not None:
        spacing = (section.spacing,) * given.grid.ndim
        _check_shape(resampled_shape(given.grid, spacing), spacing, context)
        # By one rank of a host, as it takes several times the memory of what comes of it; so is
        # smoothing
        given = once_a_host(partial(resample, given, spacing), context)
    else:
        _check_shape(given.grid.shape, given.grid.spacing, context)
    start = _find_start(config, given, context)
    known = Known(
        start,
        _load_surfaces(config, start.grid, context),
        _load_priors(config, start.grid, context),
    )
    initial, asked = start, config.model.initial
    if asked.smoothing is not None:
        _, length, power = asked.smoothing
        kept = known.cells(config.inversion, start.grid)
        initial = once_a_host(partial(smooth, start, length, kept, power), context)
    elif asked.linear is not None:
        kept = known.cells(config.inversion, start.grid)
        initial = once_a_host(partial(_make_linear, asked.linear, start, kept), context)
    survey, observed = _make_survey(config, given.grid, context)
    is_synthetic = config.survey.file is None
    true = given if is_synthetic or section.dataset is not None else None
    if section.true is not None:
        true = load_onto(given.grid, section.true, "model.true", context)
    experiment = Experiment(config, true, initial, known, survey, observed, is_synthetic)
    _check(experiment, context)
    return experiment


def _load_given(config: Config, context: Context) -> Model:
    name, file = config.model.dataset, config.model.file
    if file is not None:
        return load_model(Path(file), context)
    assert name is not None
    found = context.from_root(lambda: load_dataset(name, announce=log.info))
    return once_a_host(lambda: found, context)


def _check_shape(shape: tuple[float, ...], spacing: tuple[float, ...], context: Context) -> None:
    """Raise `InputError` where a model has too few points to simulate, or too many to hold."""
    points = " x ".join(f"{n:.9g}" for n in shape) + f" points, {spacing} m apart"
    if min(shape) < FEWEST_POINTS:
        raise InputError(
            "model.spacing",
            f"the model has {points}; expected at least {FEWEST_POINTS} points along each axis",
            "Give a smaller spacing, or a larger model.",
        )
    # In double precision while it is resampled and smoothed, and in single precision
    needed = 20.0 * prod(shape)
    context.from_root(
        lambda: check_room(
            "model.spacing", f"a model of {points}", needed, "Give a larger spacing."
        )
    )


def _find_start(config: Config, given: Model, context: Context) -> Model:
    """The initial model, or what it is made of."""
    start = config.model.initial
    if start.smoothing is not None:
        key, length, _ = start.smoothing
        extent = max(n * h for n, h in zip(given.grid.shape, given.grid.spacing, strict=True))
        if length > extent:
            raise InputError(
                f"model.initial.{key}",
                f"found {length:g}, but the model is {extent:g} m at its longest",
                "Give the length over which to smooth, in m, or a starting model as a file.",
            )
    if start.file is None and start.run is None:
        return given
    begun = context.from_root(partial(_find_begun, config))
    if begun is not None:
        return load_onto(given.grid, begun, "output.directory", context)
    if start.run is None:
        assert start.file is not None
        return load_onto(given.grid, start.file, "model.initial.file", context)
    result = context.from_root(partial(_find_result, start.run, config))
    return load_onto(given.grid, result, "model.initial.run", context)


def _find_begun(config: Config) -> str | None:
    """The start that the run in the output directory, which goes on, has begun with.

    None where it has no checkpoint yet, or is the run of another model.
    """
    run = Path(config.output.directory)
    begun = run / "initial.h5"
    if not exists(begun) or not exists(run / "config.toml"):
        return None
    if not latest_epoch(run / "checkpoints") or load_config(run).model != config.model:
        return None
    return str(begun)


def _find_result(run: str, config: Config) -> str:
    """The newest model of another run; raises `InputError` where there is none."""
    key, result = f"model.initial.run: {run}", Path(run) / "model.h5"
    if realpath(run) == realpath(config.output.directory):
        raise InputError(
            key,
            "it is the directory of this run itself",
            "Choose another output.directory, or with --output.",
        )
    if not exists(result):
        is_run = exists(Path(run) / "config.toml")
        raise InputError(
            key,
            "the run has no result yet" if is_run else "not a run directory",
            "Go on with `hpcfwi run` there until its first checkpoint."
            if is_run
            else "Name the output.directory of a run; a model file is model.initial.file.",
        )
    log.info("Starting from epoch %d of %s", read_epoch(result), run)
    return str(result)


def load_onto(grid: Grid, file: str, key: str, context: Context) -> Model:
    """The model of a file on the grid of the inversion; raises `InputError` naming the key."""
    model = load_model(Path(file), context)
    if not model.grid.covers(grid):
        raise InputError(
            f"{key}: {file}",
            f"its grid is {_describe(model.grid)}, which does not cover that of the model, "
            f"{_describe(grid)}",
            "Give a model of the same extent or a larger one; its spacing may be another.",
        )
    if model.grid.agrees(grid):
        return model
    return once_a_host(partial(resample_onto, model, grid), context)


def _load_surfaces(config: Config, grid: Grid, context: Context) -> dict[str, NDArray[np.float64]]:
    """The depths of all files of surfaces that the input and its stages name; collective."""

    def load(file: str) -> NDArray[np.float64]:
        return lay_surface(read_surface(Path(file), grid.ndim), grid, file)

    asked = [section.fixed for section in _updates(config)]
    files = dict.fromkeys(fixed.file for fixed in asked if fixed is not None and fixed.file)
    return {file: context.from_root(partial(load, file)) for file in files}


def _load_priors(config: Config, grid: Grid, context: Context) -> dict[str, Model]:
    """The models that regularisers of the input and its stages name; collective."""
    asked = [section.regularize for section in _updates(config)]
    files = dict.fromkeys(choice.prior for choice in asked if choice is not None and choice.prior)
    return {file: load_onto(grid, file, "inversion.regularize.prior", context) for file in files}


def _updates(config: Config) -> list[InversionSection]:
    """Of the whole input and of its stages."""
    return [config.inversion, *(part.inversion for _, part in config.stages())]


def _make_linear(linear: tuple[float, float], given: Model, fixed: NDArray[np.bool_]) -> Model:
    """Velocities that grow with depth, but for the cells that are known."""
    grid, (first, growth) = given.grid, linear
    speeds = first + growth * grid.coordinates(0)
    if speeds.min() <= 0.0:
        raise InputError(
            "model.initial.linear",
            f"found {list(linear)}, which at {grid.last[0]:g} m is {speeds[-1]:g} m/s",
            "Give a velocity at depth 0 in m/s, and its growth in m/s a metre.",
        )
    level = speeds.reshape(-1, *[1] * (grid.ndim - 1))
    return given.map(lambda array: np.where(fixed, array, level).astype(array.dtype))


def _describe(grid: Grid) -> str:
    points = " x ".join(map(str, grid.shape))
    return f"{points} points, {grid.spacing} m apart, from {grid.origin} to {grid.last} m"


def _make_survey(config: Config, grid: Grid, context: Context) -> tuple[Survey, Path]:
    section = config.survey
    if section.file is not None:
        with GatherReader(Path(section.file), context) as reader:
            return know_spectrum(reader.survey, context), Path(section.file)
    assert section.sources is not None
    assert section.receivers is not None
    assert section.wavelet is not None
    assert section.dt is not None
    assert section.duration is not None
    samples = round(section.duration / section.dt)
    wavelet = ricker(section.wavelet.frequency, samples, section.dt, section.wavelet.delay)
    sources = place_points(section.sources, grid, "survey.sources.count")
    if section.receivers.moves:
        _check_spread(section.receivers, sources, context)
        spread = partial(place_spread, section.receivers, sources, grid)
        receivers, mask = once_a_host(spread, context)
    else:
        receivers, mask = place_points(section.receivers, grid, "survey.receivers.count"), None
    survey = Survey(sources, receivers, wavelet.astype(np.float32), section.dt, mask)
    return survey, Path(config.output.directory) / "observed.h5"


def _check_spread(receivers: Receivers, sources: NDArray[np.float64], context: Context) -> None:
    """Raise `InputError` where there is no room for the positions of each shot's receivers."""
    count, (n_shots, ndim) = receivers.count, sources.shape
    assert isinstance(count, int)
    # Beside the positions their x, which of them are there, and what picks these
    needed = 8.0 * (ndim + 4) * count * n_shots
    what = f"{count} receivers for each of {n_shots} shots"
    key = "survey.receivers.count"
    context.from_root(lambda: check_room(key, what, needed, "Give fewer."))


def _check(experiment: Experiment, context: Context) -> None:
    config, survey, grid = experiment.config, experiment.survey, experiment.initial.grid
    if survey.sources.shape[1] != grid.ndim:
        raise InputError(
            "survey",
            f"its positions have {survey.sources.shape[1]} coordinates, the model {grid.ndim} axes",
            "Give a model and a survey of the same dimension.",
        )
    # By one rank: of all positions, which are many
    context.from_root(partial(_check_positions, experiment))
    _check_step(experiment)
    context.from_root(partial(refuse_slips, experiment))
    _check_traces(experiment, context)
    _check_wavelet(config, survey)
    for number, (_, part) in enumerate(config.stages(), start=1):
        where = f"stage.{number}." if config.stage else ""
        refuse_stage(replace(experiment, config=part), where, context)


def _check_positions(experiment: Experiment) -> None:
    config, survey, grid = experiment.config, experiment.survey, experiment.initial.grid
    where = config.survey.file or "survey"
    for name, points in (("sources", survey.sources), ("receivers", survey.receivers)):
        outside = ~grid.contains(points)
        if outside.any():
            raise InputError(
                f"{where}: {name}",
                f"{outside.sum()} of {outside.size} lie outside the model, the first at "
                f"{points[outside][0].tolist()} m; expected {list(grid.origin)} to "
                f"{list(grid.last)} m, in the order {', '.join(grid.axes)}",
                "Move them, or give a larger model.",
            )


def _check_wavelet(config: Config, survey: Survey) -> None:
    silent = ~np.any(np.atleast_2d(survey.wavelet), axis=1)
    if not silent.any():
        return
    found = "the wavelet is zero"
    if not silent.all():
        found = f"the wavelets of {silent.sum()} of {silent.size} shots are zero, the first is "
        found += f"shot {silent.argmax()}"
    if config.survey.file is None:
        remedy = "Check its delay against the duration."
        given, duration = config.survey.wavelet, config.survey.duration
        if given is not None and duration is not None and 0.0 < 1e-3 * given.delay < duration:
            remedy = f"Its delay seems to be in milliseconds: give {1e-3 * given.delay:g}."
        raise InputError("survey.wavelet", found, remedy)
    raise InputError(
        f"{config.survey.file}, /wavelet",
        found,
        'Give `hpcfwi convert` one (--wavelet): to inversion.wavelet = "estimate" any of about the '
        "right band will do.",
    )


def _check_step(experiment: Experiment) -> None:
    config, survey, grid = experiment.config, experiment.survey, experiment.initial.grid
    fastest = experiment.fastest()
    longest = longest_step(config.wave.order, grid.spacing, fastest)
    fewest, most = STEPS_A_SAMPLE
    if not fewest <= survey.dt / longest <= most:
        raise InputError(
            f"{config.survey.file}, attribute dt" if config.survey.file else "survey.dt",
            f"found {survey.dt:g} s, expected {fewest * longest:.3g} to {most * longest:.3g} s "
            f"where waves of {fastest:g} m/s cross cells of {min(grid.spacing):g} m",
            "Check its unit, and those of the model's spacing and velocities.",
        )


def _check_traces(experiment: Experiment, context: Context) -> None:
    survey = experiment.survey
    # Observed and simulated traces, and their difference
    needed = 3 * 4.0 * survey.n_receivers * survey.n_samples
    what = f"one shot of {survey.n_receivers} receivers and {survey.n_samples} samples"
    where = experiment.config.survey.file or "survey"
    remedy = "Record fewer receivers, a shorter time or longer samples."
    context.from_root(lambda: check_room(where, what, needed, remedy))
