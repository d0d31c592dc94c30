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
from hpcfwi.config.sections import Receivers, SurveySection, check_times
from hpcfwi.convert.request import HDF5, KINDS, SEGY
from hpcfwi.datasets.library import load_dataset
from hpcfwi.errors import InputError
from hpcfwi.inversion.checks import refuse_engine, refuse_slips, refuse_stage
from hpcfwi.inversion.conditioning import read_picks
from hpcfwi.inversion.experiment import Experiment, know_spectrum, place_points, place_spread
from hpcfwi.inversion.parameters import Known, lay_surface
from hpcfwi.inversion.wavelets import Estimate
from hpcfwi.model import (
    Grid,
    Model,
    find_nearest,
    resample,
    resample_onto,
    resampled_shape,
    smooth,
)
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.replicas import once_a_host
from hpcfwi.storage.checkpoint import latest_epoch
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.storage.models import load_model, read_cells, read_epoch, read_surface
from hpcfwi.survey import Spectrum, Survey, spread_shots
from hpcfwi.system import check_room, exists
from hpcfwi.wave.numerics import FEWEST_POINTS, longest_step, ricker

log = logging.getLogger("hpcfwi")

# Longest stable steps in a sample of the data. Where a sample is longer, the record's shortest
# wave is hundreds of cells long; where it is shorter, what the wave gains in a step is lost in
# rounding.
STEPS_A_SAMPLE = (1e-4, 1e3)


def prepare(config: Config, context: Context, target: Path | None = None) -> Experiment:
    """Read the models and the survey, and check that they belong together; collective.

    Raises `InputError` on all ranks.

    Parameters
    ----------
    config
        The whole input.
    context
        The ranks.
    target
        A gathers file in which the survey is to be simulated, at the positions of `survey.file`
        where there is one. The given model is then the true one, and nothing is inverted: there is
        no other initial model, and what updates ask for is not checked.
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
    survey, observed = _make_survey(config, given.grid, context)
    if target is not None:
        experiment = Experiment(
            config, given, given, Known(given, {}, {}), survey, target, is_synthetic=True
        )
        _check(experiment, context)
        refuse_engine(config, "", context)
        return experiment
    _refuse_other_times(config)
    start = _find_start(config, given, context)
    known = Known(
        start,
        _load_surfaces(config, start.grid, context),
        _load_priors(config, start.grid, context),
        _load_masks(config, start.grid, context),
        _load_weights(config, start.grid, context),
    )
    initial, asked = start, config.model.initial
    if asked.smoothing is not None:
        _, length, power = asked.smoothing
        kept = known.cells(config.inversion, start.grid)
        initial = once_a_host(partial(smooth, start, length, kept, power), context)
    elif asked.linear is not None:
        kept = known.cells(config.inversion, start.grid)
        initial = once_a_host(partial(_make_linear, asked.linear, start, kept), context)
    is_synthetic = config.survey.file is None
    true = given if is_synthetic or section.dataset is not None else None
    if section.true is not None:
        true = load_onto(given.grid, section.true, "model.true", context)
    experiment = Experiment(config, true, initial, known, survey, observed, is_synthetic)
    files = dict.fromkeys(file for _, part in config.stages() for file in part.data.picks)
    picks = {
        file: once_a_host(partial(read_picks, Path(file), survey), context)
        for file in (*config.data.picks, *files)
    }
    experiment = replace(experiment, picks=picks)
    _check(experiment, context)
    for number, (_, part) in enumerate(config.stages(), start=1):
        where = f"stage.{number}." if config.stage else ""
        refuse_stage(replace(experiment, config=part), where, context)
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
    return _lay_onto(grid, load_model(Path(file), context), f"{key}: {file}", context)


def _lay_onto(grid: Grid, model: Model, where: str, context: Context) -> Model:
    """A model that was read, or what is laid out as one, on the grid of the inversion."""
    _check_cover(grid, model.grid, where)
    if model.grid.agrees(grid):
        return model
    return once_a_host(partial(resample_onto, model, grid), context)


def _check_cover(grid: Grid, own: Grid, where: str) -> None:
    """Raise `InputError` where a file's own grid does not cover that of the inversion."""
    if not own.covers(grid):
        raise InputError(
            where,
            f"its grid is {_describe(own)}, which does not cover that of the model, "
            f"{_describe(grid)}",
            "Give a model of the same extent or a larger one; its spacing may be another.",
        )


def _load_surfaces(config: Config, grid: Grid, context: Context) -> dict[str, NDArray[np.float64]]:
    """The depths of all files of surfaces that the input and its stages name; collective."""

    def load(file: str) -> NDArray[np.float64]:
        return lay_surface(read_surface(Path(file), grid.ndim), grid, file)

    files = [file for file in _fixed_files(config) if not _is_hdf5(file)]
    return {file: context.from_root(partial(load, file)) for file in files}


def _load_masks(config: Config, grid: Grid, context: Context) -> dict[str, NDArray[np.bool_]]:
    """The cells that all masks name which the input and its stages name; collective."""

    def load(file: str) -> NDArray[np.bool_]:
        where = f"{file}, /fixed"
        mask = read_cells(Path(file), "fixed")
        others = ~np.isin(mask["fixed"], (0.0, 1.0))
        if others.any():
            first = tuple(int(i[0]) for i in others.nonzero())
            raise InputError(
                where,
                f"{others.sum()} of {others.size} values are neither 0 nor 1, the first at index "
                f"{first}",
                "Give 1 for each cell that is kept, and 0 for the others.",
            )
        _check_cover(grid, mask.grid, where)
        return find_nearest(mask["fixed"] == 1.0, mask.grid, grid)

    files = [file for file in _fixed_files(config) if _is_hdf5(file)]
    return {file: once_a_host(partial(load, file), context) for file in files}


def _fixed_files(config: Config) -> list[str]:
    """The files of `inversion.fixed` of the input and of its stages, each once."""
    asked = [section.fixed for section in _updates(config)]
    return list(dict.fromkeys(f.file for f in asked if f is not None and f.file is not None))


def _is_hdf5(file: str) -> bool:
    return KINDS.get(Path(file).suffix.lower()) == HDF5


def _load_priors(config: Config, grid: Grid, context: Context) -> dict[str, Model]:
    """The models that regularisers of the input and its stages name; collective."""
    asked = [section.regularize for section in _updates(config)]
    files = dict.fromkeys(choice.prior for choice in asked if choice is not None and choice.prior)
    return {file: load_onto(grid, file, "inversion.regularize.prior", context) for file in files}


def _load_weights(config: Config, grid: Grid, context: Context) -> dict[str, NDArray[np.float32]]:
    """The weights of cells that regularisers of the input and its stages name; collective."""

    def load(file: str) -> NDArray[np.float32]:
        read = once_a_host(partial(read_cells, Path(file), "weights"), context)
        return _lay_onto(grid, read, f"inversion.regularize.weights: {file}", context)["weights"]

    asked = [section.regularize for section in _updates(config)]
    files = dict.fromkeys(choice.weights for choice in asked if choice is not None)
    return {file: load(file) for file in files if file is not None}


def _updates(config: Config) -> list[InversionSection]:
    """Return the sections [inversion] of the whole input and of its stages."""
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
        path = Path(section.file)
        _refuse_segy(path)
        with GatherReader(path, context) as reader:
            survey = emit(reader.survey, section)
            if not survey.wavelet.any() and _finds_wavelet(config):
                guess = context.from_root(lambda: _guess_wavelet(reader))
                survey = replace(survey, wavelet=guess)
        return know_spectrum(survey, context), path
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


def emit(survey: Survey, section: SurveySection) -> Survey:
    """The survey of a gathers file with the wavelet of the input, where the input has one.

    Raises `InputError` where that wavelet does not fit the record.
    """
    given = section.wavelet
    if given is None:
        return survey
    dt = section.dt or survey.dt
    duration = section.duration or survey.dt * survey.n_samples
    try:
        check_times(dt, duration, given.frequency)
    except ValueError as error:
        raise InputError(
            "survey.wavelet",
            str(error),
            f"The record of {section.file} has {survey.n_samples} samples of {survey.dt:g} s.",
        ) from error
    wavelet = ricker(given.frequency, round(duration / dt), dt, given.delay)
    return replace(survey, wavelet=wavelet.astype(np.float32), dt=dt)


def _refuse_segy(path: Path) -> None:
    """Raise `InputError` for SEG-Y, with the command that converts it.

    Its headers are not read on the way: they are as often wrong, and the command says what it has
    found and has the options that put it right.
    """
    if KINDS.get(path.suffix.lower()) == SEGY:
        gathers = path.with_suffix(".h5")
        raise InputError(
            f"survey.file: {path}",
            "this is SEG-Y, expected a gathers file",
            f"Convert it with `hpcfwi convert {path} {gathers}`, see whether the positions that it "
            f"tells are right, and give {gathers} as survey.file.",
        )


def _refuse_other_times(config: Config) -> None:
    """Raise `InputError` for another time axis than that of data that are there."""
    section = config.survey
    for key in ("dt", "duration"):
        if section.file is not None and getattr(section, key) is not None:
            raise InputError(
                f"survey.{key}",
                f"found {getattr(section, key):g} s, but the data of {section.file} have a time "
                "axis of their own",
                "Leave it out: it is for `hpcfwi forward --to`, which simulates other data.",
            )


def _finds_wavelet(config: Config) -> bool:
    """True if every stage estimates the wavelet, so that the survey need not have one."""
    return all(isinstance(part.inversion.wavelet.make()(), Estimate) for _, part in config.stages())


def _guess_wavelet(reader: GatherReader) -> NDArray[np.float32]:
    """A wavelet to begin an estimate with: of the band of three shots' traces, zero without any."""
    survey = reader.survey
    traces = np.nan_to_num(
        reader.read(spread_shots(survey.n_shots, 3)), nan=0.0, posinf=0.0, neginf=0.0
    )
    peak = Spectrum.of(traces, survey.dt).peak
    if peak == 0.0:
        return np.zeros(survey.n_samples, np.float32)
    log.info("The survey has no wavelet: estimates begin with a Ricker wavelet of %.3g Hz", peak)
    return ricker(peak, survey.n_samples, survey.dt, 1.5 / peak).astype(np.float32)


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
    given, duration = config.survey.wavelet, survey.dt * survey.n_samples
    if given is not None:
        remedy = "Check its delay against the duration."
        if 0.0 < 1e-3 * given.delay < duration:
            remedy = f"Its delay seems to be in milliseconds: give {1e-3 * given.delay:g}."
        raise InputError("survey.wavelet", found, remedy)
    raise InputError(
        f"{config.survey.file}, /wavelet",
        found,
        "Give one as survey.wavelet, or to `hpcfwi convert` (--wavelet), or, where no shot has "
        'one, set inversion.wavelet = "estimate" in all stages.',
    )


def _check_step(experiment: Experiment) -> None:
    config, survey, grid = experiment.config, experiment.survey, experiment.initial.grid
    fastest = experiment.fastest()
    longest = longest_step(config.wave.order, grid.spacing, fastest)
    fewest, most = STEPS_A_SAMPLE
    if not fewest <= survey.dt / longest <= most:
        raise InputError(
            config.survey.dt_place,
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
