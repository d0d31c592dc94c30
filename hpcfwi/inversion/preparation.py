"""The preparation of the experiment that a config describes: reading, placing and checking.

Every rank calls `prepare` and gets the same experiment, or the same `InputError`. The ranks of a
host share the models and the positions of receivers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from os.path import realpath
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.config import Config, load_config
from hpcfwi.config.survey import Initial, Receivers, SurveySection, check_times
from hpcfwi.convert.request import HDF5, KINDS, SEGY
from hpcfwi.datasets import load_dataset
from hpcfwi.errors import InputError, refuse
from hpcfwi.inversion.checks import (
    check_parameters,
    check_stage,
    check_units,
    refuse_engine,
)
from hpcfwi.inversion.conditioning import read_picks
from hpcfwi.inversion.experiment import (
    Experiment,
    equation_of,
    find_source_kinds,
    know_spectrum,
    place_points,
    place_spread,
    record_components,
)
from hpcfwi.inversion.layers import refuse_layers
from hpcfwi.inversion.parameters import PriorKnowledge, lay_surface
from hpcfwi.inversion.wavelets import Estimate
from hpcfwi.model import (
    PARAMETERS,
    Grid,
    Model,
    find_nearest,
    resample,
    resample_onto,
    resampled_shape,
    smooth,
)
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.replicas import once_per_host
from hpcfwi.storage.checkpoint import latest_epoch
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.storage.models import load_model, read_cells, read_epoch, read_surface
from hpcfwi.survey import Spectrum, Survey, spread_shots
from hpcfwi.system import check_room, exists
from hpcfwi.wave.numerics import FEWEST_POINTS, ricker

log = logging.getLogger("hpcfwi")


def prepare(config: Config, context: Context, target: Path | None = None) -> Experiment:
    """Read the models and the survey, and check that they match; collective.

    Raises `InputError` on all ranks.

    Parameters
    ----------
    config
        The whole input.
    context
        The ranks.
    target
        The gathers file for which the survey is simulated, at the positions of `survey.file` if
        that is given. The given model is then the true one. Nothing is inverted, so that there is
        no other initial model, and keys of the inversion are not checked.
    """
    section, names = config.model, equation_of(config).parameters
    if target is None:
        refuse(check_parameters(config))
    needed = names if config.survey.file is None or target is not None else _find_base(config)
    given = _load_given(config, needed, context)
    if given.arrays.keys() == set(names):
        _check_medium(config, given, "model.file" if section.file is not None else "model.dataset")
    spacing = given.grid.spacing
    if section.spacing is not None:
        spacing = (section.spacing,) * given.grid.ndim
    _check_shape(given.grid, spacing, context)
    if section.spacing is not None:
        # One rank of each host resamples and smooths, because both take several times the memory
        # of the result.
        given = once_per_host(partial(resample, given, spacing), context)
    survey, observed = _make_survey(config, given.grid, context)
    if target is not None:
        known = PriorKnowledge(given)
        experiment = Experiment(
            config, given, given, known, survey, target, is_synthetic=True, leader=context.leader
        )
        stages = [("", experiment)]
    else:
        experiment = _prepare_inversion(config, given, survey, observed, context)
        parts = config.prefixed_stages()
        stages = [(where, replace(experiment, config=part)) for where, part in parts]
    _check(experiment, context)
    if target is None:
        # Only one rank checks the model and all shots.
        context.from_root(
            lambda: refuse(found for where, part in stages for found in check_stage(part, where))
        )
    for where, part in stages:
        refuse_engine(part.config, where, context)
    refuse_layers(experiment, "", context)
    return experiment


def _prepare_inversion(
    config: Config, given: Model, survey: Survey, observed: Path, context: Context
) -> Experiment:
    """Return the experiment of an inversion, which is not yet checked; collective."""
    section, is_synthetic = config.model, config.survey.file is None
    start = _find_start(config, given, context)
    known = _load_known(config, start, context)
    initial = _make_initial(config, start, known.cells(config.inversion, start.grid), context)
    _check_medium(config, initial, "model.initial")
    true = given if is_synthetic or section.dataset is not None else None
    if section.true is not None:
        names = equation_of(config).parameters
        true = load_onto(given.grid, section.true, names, "model.true", context)
        _check_medium(config, true, "model.true")
    picks = {
        file: once_per_host(partial(read_picks, Path(file), survey), context)
        for file in _name_once(f for part in _sections(config) for f in part.data.picks)
    }
    return Experiment(
        config=config,
        true=true,
        initial=initial,
        known=known,
        survey=survey,
        observed=observed,
        is_synthetic=is_synthetic,
        picks=picks,
        leader=context.leader,
    )


def _sections(config: Config) -> list[Config]:
    """Return the whole input, whose stages may all replace its keys, and those of the stages."""
    return [config, *(part for _, part in config.stages())]


def _name_once(files: Iterable[str | None]) -> list[str]:
    """Return the files that are given, each once."""
    return [file for file in dict.fromkeys(files) if file is not None]


def _load_given(config: Config, names: Sequence[str], context: Context) -> Model:
    name, file = config.model.dataset, config.model.file
    if file is not None:
        return load_model(Path(file), names, context)
    assert name is not None
    found = context.from_root(lambda: load_dataset(name, log.info, names))
    if not found.arrays.keys() >= set(names):
        raise InputError(
            f"model.dataset: {name}",
            f"it has {', '.join(found.arrays)}, expected {', '.join(names)} for wave.equation = "
            f'"{config.wave.equation}"',
            "Give a model.file with these arrays, or choose another equation.",
        )
    chosen = Model(found.grid, {name: found[name] for name in names})
    return once_per_host(lambda: chosen, context)


def _check_medium(config: Config, model: Model, key: str) -> None:
    """Raise `InputError` if waves cannot be simulated in a model."""
    fault = equation_of(config).find_fault(model.arrays)
    if fault is not None:
        raise InputError(
            key,
            fault,
            f'Change the model, or choose another wave.equation than "{config.wave.equation}".',
        )


def _check_shape(grid: Grid, spacing: tuple[float, ...], context: Context) -> None:
    """Raise `InputError` if a spacing gives too few points, or too many for the memory."""
    shape = resampled_shape(grid, spacing)
    points = " x ".join(f"{n:.9g}" for n in shape) + f" points, {spacing} m apart"
    if min(shape) < FEWEST_POINTS:
        raise InputError(
            "model.spacing",
            f"the model has {points}; expected at least {FEWEST_POINTS} points along each axis",
            "Give a smaller spacing, or a larger model.",
        )
    # The model in double precision while it is resampled and smoothed, and in single precision.
    what, needed = f"a model of {points}", 20.0 * prod(shape)
    context.from_root(lambda: check_room("model.spacing", what, needed, "Give a larger spacing."))


def _find_start(config: Config, given: Model, context: Context) -> Model:
    """Return the initial model, or the model from which it is made."""
    start, names = config.model.initial, _find_base(config)
    if start.smoothing is not None:
        key, length, _ = start.smoothing
        if length > given.grid.extent:
            raise InputError(
                f"model.initial.{key}",
                f"found {length:g}, but the model is {given.grid.extent:g} m at its longest",
                "Give the length over which to smooth, in m, or a starting model as a file. Check "
                "that the spacing of the model is in m, too.",
            )
    if start.file is None and start.run is None:
        return given
    begun = context.from_root(partial(_find_begun, config))
    if begun is not None:
        return load_onto(given.grid, begun, names, "output.directory", context)
    if start.run is None:
        assert start.file is not None
        return load_onto(given.grid, start.file, names, "model.initial.file", context)
    result = context.from_root(partial(_find_result, start.run, config))
    return load_onto(given.grid, result, names, "model.initial.run", context)


# The parameters with starting values of their own, by their values in water.
WATER = {"vs": 0.0, "rho": 1000.0, "qp": 1e4, "qs": 1e4}
FASTEST_WATER = 1600.0  # P velocity, m/s
# kg/m3 of a rock in which P waves have 1 m/s, and power of their velocity: Gardner, Gardner and
# Gregory (1974), figure 1.
GARDNER = 310.0, 0.25


def _find_derived(config: Config) -> list[str]:
    """Return the names of the parameters with starting values of their own."""
    names = equation_of(config).parameters
    return [name for name in config.model.initial.own if name in names]


def _find_base(config: Config) -> list[str]:
    """Return the names of the parameters that come from the starting model."""
    derived = _find_derived(config)
    return [n for n in equation_of(config).parameters if n not in derived]


def _make_initial(config: Config, start: Model, kept: NDArray[np.bool_], context: Context) -> Model:
    """Return the initial model that is made of a starting model; collective.

    kept: fixed cells.
    """
    initial, asked = start, config.model.initial
    if asked.smoothing is not None:
        _, length, power = asked.smoothing
        initial = once_per_host(partial(smooth, start, length, kept, power), context)
    elif asked.linear is not None:
        initial = once_per_host(partial(_make_linear, asked.linear, start, kept), context)
    derived = _find_derived(config)
    if derived:
        own = {}
        for name, given in asked.own.items():
            if name in derived and given.file is not None:
                key = f"model.initial.{name}.file"
                own[name] = load_onto(start.grid, given.file, [name], key, context)[name]
        initial = once_per_host(partial(_derive, asked, initial, start, kept, own), context)
    if initial is start:
        return start
    # Parameters are smoothed separately, and need not be possible together.
    arrays = initial.as_tensors(torch.device("cpu")).arrays
    changed = equation_of(config).limit(arrays, arrays.keys())
    return Model(initial.grid, {**initial.arrays, **{n: a.numpy() for n, a in changed.items()}})


def _derive(
    asked: Initial,
    initial: Model,
    given: Model,
    kept: NDArray[np.bool_],
    own: Mapping[str, NDArray[np.float32]],
) -> Model:
    """Return a starting model with starting values of parameters that have their own.

    given: the model from which it is made; kept: fixed cells; own: values from files.
    """
    speed = initial.p_velocity.astype(np.float64)
    fluid = (
        given["vs"] == 0.0 if "vs" in given.arrays else kept & (given.p_velocity < FASTEST_WATER)
    )
    values: dict[str, NDArray[Any] | float] = dict(own)
    if asked.vs is not None and asked.vs.ratio is not None:
        values["vs"] = speed / asked.vs.ratio
    if asked.rho is not None and asked.rho.gardner:
        values["rho"] = GARDNER[0] * speed ** GARDNER[1]
    elif asked.rho is not None and asked.rho.constant is not None:
        values["rho"] = asked.rho.constant
    for name, quality in (("qp", asked.qp), ("qs", asked.qs)):
        if quality is not None and quality.constant is not None:
            values[name] = quality.constant
    arrays = dict(initial.arrays)
    for name, water in WATER.items():
        if name in values:
            known = name in given.arrays
            still, before = (fluid | kept, given[name]) if known else (fluid, water)
            arrays[name] = np.where(still, before, values[name]).astype(np.float32)
    return Model(initial.grid, arrays)


def _find_begun(config: Config) -> str | None:
    """Return the initial model file of the run in the output directory, if it is continued.

    It is None if there is no checkpoint yet, or if the run has another model.
    """
    run = Path(config.output.directory)
    begun = run / "initial.h5"
    if not exists(begun) or not exists(run / "config.toml"):
        return None
    if not latest_epoch(run / "checkpoints") or load_config(run).model != config.model:
        return None
    return str(begun)


def _find_result(run: str, config: Config) -> str:
    """Return the file of another run's newest model; raise `InputError` if there is none."""
    key, result = f"model.initial.run: {run}", Path(run) / "model.h5"
    if realpath(run) == realpath(config.output.directory):
        raise InputError(
            key,
            "this is the directory of this run itself",
            "Choose another directory with --output or output.directory.",
        )
    if not exists(result):
        is_run = exists(Path(run) / "config.toml")
        raise InputError(
            key,
            "the run has no result yet" if is_run else "not a run directory",
            "Continue it with `hpcfwi run` until its first checkpoint."
            if is_run
            else "Name the output.directory of a run; use model.initial.file for a model file.",
        )
    log.info("Starting from epoch %d of %s", read_epoch(result), run)
    return str(result)


def load_onto(grid: Grid, file: str, names: Sequence[str], key: str, context: Context) -> Model:
    """Read arrays of a model on the grid of the inversion.

    Raises `InputError` with the key if they do not cover it.
    """
    return _lay_onto(grid, load_model(Path(file), names, context), f"{key}: {file}", context)


def _lay_onto(grid: Grid, model: Model, where: str, context: Context) -> Model:
    """Return a model, or values of cells in the form of one, on the grid of the inversion."""
    _check_cover(grid, model.grid, where)
    if model.grid.agrees(grid):
        return model
    return once_per_host(partial(resample_onto, model, grid), context)


def _check_cover(grid: Grid, own: Grid, where: str) -> None:
    """Raise `InputError` if the grid of a file does not cover that of the inversion."""
    if not own.covers(grid):
        raise InputError(
            where,
            f"its grid is {own}, which does not cover that of the model, {grid}",
            "Give a model of the same extent or a larger one; its spacing may differ.",
        )


def _load_known(config: Config, start: Model, context: Context) -> PriorKnowledge:
    """Read the files of prior knowledge that the input and its stages name; collective."""
    grid, key = start.grid, "inversion.regularize"

    def load_surface(file: str) -> NDArray[np.float64]:
        read = partial(read_surface, Path(file), grid.ndim)
        return context.from_root(lambda: lay_surface(read(), grid, file))

    def load_weights(file: str) -> NDArray[np.float32]:
        read = once_per_host(partial(read_cells, Path(file), "weights"), context)
        return _lay_onto(grid, read, f"{key}.weights: {file}", context)["weights"]

    sections = [part.inversion for part in _sections(config)]
    fixed = _name_once(section.fixed.file for section in sections if section.fixed is not None)
    masks = [file for file in fixed if KINDS.get(Path(file).suffix.lower()) == HDF5]
    asked = [section.regularize for section in sections if section.regularize is not None]
    return PriorKnowledge(
        start,
        {file: load_surface(file) for file in fixed if file not in masks},
        {
            file: load_onto(grid, file, config.changing, f"{key}.prior", context)
            for file in _name_once(choice.prior for choice in asked)
        },
        {file: once_per_host(partial(_read_mask, file, grid), context) for file in masks},
        {file: load_weights(file) for file in _name_once(choice.weights for choice in asked)},
    )


def _read_mask(file: str, grid: Grid) -> NDArray[np.bool_]:
    """Read a mask of fixed cells on the grid of the inversion."""
    where = f"{file}, /fixed"
    mask = read_cells(Path(file), "fixed")
    others = ~np.isin(mask["fixed"], (0.0, 1.0))
    if others.any():
        first = tuple(int(i[0]) for i in others.nonzero())
        raise InputError(
            where,
            f"{others.sum()} of {others.size} values are neither 0 nor 1, the first at index "
            f"{first}",
            "Give 1 for each fixed cell, and 0 for the others.",
        )
    _check_cover(grid, mask.grid, where)
    return find_nearest(mask["fixed"] == 1.0, mask.grid, grid)


def _make_linear(linear: tuple[float, float], given: Model, fixed: NDArray[np.bool_]) -> Model:
    """Return a model whose P velocity grows linearly with depth, except in fixed cells."""
    grid, (first, growth) = given.grid, linear
    speeds = first + growth * grid.coordinates(0)
    if speeds.min() <= 0.0:
        raise InputError(
            "model.initial.linear",
            f"found {list(linear)}, which at {grid.last[0]:g} m is {speeds[-1]:g} m/s",
            "Give a velocity at depth 0 in m/s, and its increase in m/s per metre.",
        )
    parameter = next(iter(PARAMETERS.values()))
    if first < parameter.mistaken:
        raise InputError(
            "model.initial.linear",
            f"found {list(linear)}, which is {first:g} {parameter.unit} at depth 0",
            f"The velocity seems to be in {parameter.figure_unit}: give "
            f"{parameter.figure_scale * first:g}. The increase is in m/s per metre.",
        )
    level = speeds.reshape(-1, *[1] * (grid.ndim - 1))
    return given.with_p_velocity(np.where(fixed, given.p_velocity, level).astype(np.float32))


def _make_survey(config: Config, grid: Grid, context: Context) -> tuple[Survey, Path]:
    section = config.survey
    if section.file is not None:
        path = Path(section.file)
        _refuse_segy(path)
        with GatherReader(path, context) as reader:
            survey = replace_wavelet(reader.survey, section)
            methods = (part.inversion.wavelet.bind()() for _, part in config.stages())
            if not survey.wavelet.any() and all(isinstance(m, Estimate) for m in methods):
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
        receivers, mask = once_per_host(spread, context)
    else:
        receivers, mask = place_points(section.receivers, grid, "survey.receivers.count"), None
    survey = Survey(
        sources,
        receivers,
        wavelet.astype(np.float32),
        section.dt,
        mask,
        source_kinds=find_source_kinds(section.sources, grid),
    )
    survey = record_components(survey, section.receivers)
    return survey, Path(config.output.directory) / "observed.h5"


def replace_wavelet(survey: Survey, section: SurveySection) -> Survey:
    """Return the survey of a gathers file, with the wavelet of the input if it has one.

    The sampling interval and the duration of the input, if given, replace those of the file, too.
    Raises `InputError` if the wavelet does not fit the record.
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
    """Raise `InputError` for a SEG-Y file, with the command that converts it.

    Headers of SEG-Y are often wrong. They are not read here, because the command reports them and
    has options to correct them.
    """
    if KINDS.get(path.suffix.lower()) == SEGY:
        gathers = path.with_suffix(".h5")
        raise InputError(
            f"survey.file: {path}",
            "this is SEG-Y, expected a gathers file",
            f"Convert it with `hpcfwi convert {path} {gathers}`, check the positions that this "
            f"prints, and give {gathers} as survey.file.",
        )


def _guess_wavelet(reader: GatherReader) -> NDArray[np.float32]:
    """Return a first wavelet for an estimate, in the band of the traces of three shots."""
    survey = reader.survey
    traces = np.nan_to_num(
        reader.read(spread_shots(survey.n_shots, 3)), nan=0.0, posinf=0.0, neginf=0.0
    )
    peak = Spectrum.of(traces, survey.dt).peak
    if peak == 0.0:
        return np.zeros(survey.n_samples, np.float32)
    log.info("The survey has no wavelet: estimates start from a Ricker wavelet of %.3g Hz", peak)
    return ricker(peak, survey.n_samples, survey.dt, 1.5 / peak).astype(np.float32)


def _check_spread(receivers: Receivers, sources: NDArray[np.float64], context: Context) -> None:
    """Raise `InputError` if there is no memory for the positions of each shot's receivers."""
    count, (n_shots, ndim) = receivers.count, sources.shape
    assert isinstance(count, int)
    # Memory of the positions, their x, a mask of the existing ones, and the indices of these.
    needed = 8.0 * (ndim + 4) * count * n_shots
    key, what = "survey.receivers.count", f"{count} receivers for each of {n_shots} shots"
    context.from_root(lambda: check_room(key, what, needed, "Give fewer points."))


def _check(experiment: Experiment, context: Context) -> None:
    """Raise `InputError` on all ranks if model and survey do not match; collective."""
    survey, grid = experiment.survey, experiment.initial.grid
    if survey.sources.shape[1] != grid.ndim:
        raise InputError(
            "survey",
            f"positions have {survey.sources.shape[1]} coordinates, the model has {grid.ndim} axes",
            "Give a model and a survey of the same dimension.",
        )
    # Only one rank checks the positions, because there are many.
    context.from_root(lambda: refuse(check_units(experiment, context.device)))
    # Observed and simulated traces and their difference.
    needed = 3 * 4.0 * survey.n_receivers * survey.n_samples
    what = f"one shot of {survey.n_receivers} receivers and {survey.n_samples} samples"
    where = experiment.config.survey.file or "survey"
    remedy = "Use fewer receivers, a shorter record or a longer sampling interval."
    context.from_root(lambda: check_room(where, what, needed, remedy))
