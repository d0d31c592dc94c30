"""From a config to what it describes: models, survey and physics, checked against each other.

Collective: every rank calls `prepare` and gets the same, or the same `InputError`. Numbers of
the updates stay in the config.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.config import Config
from hpcfwi.config.survey import Points
from hpcfwi.config.wave import Kept
from hpcfwi.datasets.library import load_dataset
from hpcfwi.errors import InputError
from hpcfwi.host import check_room
from hpcfwi.inversion.parameters import Limits
from hpcfwi.inversion.window import Reach, Window
from hpcfwi.model import (
    PARAMETERS,
    Grid,
    Model,
    fixed_cells,
    resample,
    resampled_shape,
    smooth,
)
from hpcfwi.parallel.context import Context
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.storage.models import load_model
from hpcfwi.survey import Survey
from hpcfwi.wave import Acquisition, Auto, Method, Simulation
from hpcfwi.wave.acoustic import wave_speed
from hpcfwi.wave.engines import choose
from hpcfwi.wave.history import History, from_table, parse
from hpcfwi.wave.stencil import FEWEST_POINTS, longest_step
from hpcfwi.wave.task import Task, set_up
from hpcfwi.wave.wavelet import highest_frequency, peak_frequency, ricker

log = logging.getLogger("hpcfwi")

# Sources, or receivers, that a config places.
MOST_POINTS = 10**6
# Longest stable steps in a sample of the data. Where a sample is longer, the record's shortest
# wave is hundreds of cells long; where it is shorter, what the wave gains in a step is lost in
# rounding.
STEPS_A_SAMPLE = (1e-4, 1e3)


@dataclass(frozen=True)
class Physics:
    """How shots are simulated: everything but the model's values and the shots themselves.

    method: the same for every shot of the survey, so that a shot's result does not depend on its
    batch; reach: which part of the model and of its receivers a shot has.
    """

    grid: Grid
    method: Method
    reach: Reach

    def simulate(
        self,
        model: Model,
        survey: Survey,
        keep: bool,
        illuminate: bool = False,
        window: Window | None = None,
    ) -> Simulation:
        """Simulate the shots of a (part of a) survey in a model, whose arrays are tensors.

        window: where, and with which of their receivers; everything where None.
        """
        return Simulation(self.set_up(model, survey, window, illuminate), keep)

    def set_up(
        self, model: Model, survey: Survey, window: Window | None, illuminate: bool = True
    ) -> Task:
        """What `simulate` asks of the wave engines."""
        origin, receivers = np.asarray(self.grid.origin), survey.receivers
        if window is not None:
            receivers = receivers[..., window.listening, :]
        wavelet = torch.as_tensor(np.ascontiguousarray(survey.wavelet), device=model.any.device)
        return set_up(
            model.arrays,
            self.grid.spacing,
            Acquisition(survey.dt, wavelet, survey.sources - origin, receivers - origin),
            self.method,
            window=None if window is None else window.slices,
            illuminate=illuminate,
        )

    def choose_history(
        self, model: Model, survey: Survey, window: Window, memory: int
    ) -> tuple[History, int]:
        """What `simulate` keeps of a survey's shots with so many bytes, and what that takes.

        `memory` is a limit only where the history is to be chosen. Raises `NothingFits` then, and
        ValueError where the engine has no such history.
        """
        physics, wanted = self, self.method.history
        if isinstance(wanted, Auto):
            physics = self.with_history(replace(wanted, memory=memory))
        task = physics.set_up(model, survey, window)
        chosen = task.choose_history()
        return chosen, task.footprint(chosen)

    def with_history(self, history: Auto | History) -> Physics:
        """The same with another history."""
        return replace(self, method=replace(self.method, history=history))

    def costs(self, survey: Survey) -> NDArray[np.float64]:
        """What the shots of a survey take, beside each other: the cells that they have."""
        windows = self.reach.find_windows(self.grid, survey)
        return np.array([float(window.size) for window in windows])


@dataclass(frozen=True)
class Experiment:
    """What a config describes.

    true: the model that was, or will be, observed, where it is known; initial: where the
    inversion starts; fixed: cells that it keeps; observed: the gathers file; is_synthetic: whether
    hpcfwi simulates that file itself.
    """

    config: Config
    true: Model | None
    initial: Model
    fixed: NDArray[np.bool_]
    survey: Survey
    observed: Path
    is_synthetic: bool

    def physics(self, model: Model) -> Physics:
        """Physics with the boundary tuned to the velocities of `model`."""
        wave = self.config.wave
        frequency = highest_frequency(self.survey.wavelet, self.survey.dt)
        return Physics(
            model.grid,
            Method(
                order=wave.order,
                boundary=wave.boundary,
                free_surface=wave.free_surface,
                boundary_frequency=peak_frequency(self.survey.wavelet, self.survey.dt),
                max_velocity=self._fastest_within_bounds(model),
                engine=wave.engine,
                history=_history(wave.history, frequency),
            ),
            Reach(wave.aperture, self.config.inversion.max_offset),
        )

    def fastest(self) -> float:
        """The speed of the fastest waves in any model of the experiment, m/s."""
        models = [model for model in (self.initial, self.true) if model is not None]
        speeds = [float(wave_speed(model.arrays).max()) for model in models]
        return max(*speeds, *(self._fastest_within_bounds(model) for model in models))

    def _fastest_within_bounds(self, model: Model) -> float:
        """Of the waves that the bounds allow; what has none is as in the model."""
        bounds = {name: np.array(b) for name, b in self.config.inversion.bounds_by_name.items()}
        return float(wave_speed({**model.arrays, **bounds}).max())

    def limits(self, model: Model) -> Limits:
        """What of the initial model, here as tensors, is kept, and within which bounds it stays."""
        fixed = torch.tensor(self.fixed, device=model.any.device)
        return Limits(
            model, dict.fromkeys(model.arrays, fixed), self.config.inversion.bounds_by_name
        )

    def fingerprint(self) -> str:
        """A hash of all that synthetic observed data depend on."""
        assert self.true is not None
        method = vars(self.physics(self.true).method)
        scheme = {k: v for k, v in method.items() if k not in ("engine", "history")}
        digest = hashlib.sha256(repr(sorted(scheme.items())).encode())
        grid, survey = self.true.grid, self.survey
        digest.update(repr((grid.spacing, grid.origin, survey.dt)).encode())
        for array in (
            *self.true.arrays.values(),
            survey.sources,
            survey.receivers,
            survey.wavelet,
        ):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def _history(wanted: str | Kept, frequency: float) -> Auto | History:
    if not isinstance(wanted, Kept):
        return replace(cast(Auto, parse(wanted)), frequency=frequency)
    return from_table({"frequency": frequency, **wanted.model_dump(exclude_none=True)})


def prepare(config: Config, context: Context) -> Experiment:
    """Read the models and the survey, and check that they belong together; collective.

    Raises `InputError` on all ranks.
    """
    section = config.model
    given = _load_given(config, context)
    if section.spacing is not None:
        spacing = (section.spacing,) * given.grid.ndim
        _check_shape(resampled_shape(given.grid, spacing), spacing, context)
        given = resample(given, spacing)
    else:
        _check_shape(given.grid.shape, given.grid.spacing, context)
    fixed = fixed_cells(given.grid, config.inversion.fixed_above)
    if fixed.all():
        raise InputError(
            "inversion.fixed_above",
            f"found {config.inversion.fixed_above}, which fixes the whole model",
            f"Give a depth above {given.grid.last[0]} m.",
        )
    initial = _make_initial(config, given, fixed, context)
    survey, observed = _make_survey(config, given.grid, context)
    is_synthetic = config.survey.file is None
    known = is_synthetic or section.dataset is not None
    experiment = Experiment(
        config, given if known else None, initial, fixed, survey, observed, is_synthetic
    )
    _check(experiment, context)
    return experiment


def _load_given(config: Config, context: Context) -> Model:
    name, file = config.model.dataset, config.model.file
    if file is not None:
        return load_model(Path(file), context)
    assert name is not None
    return context.from_root(lambda: load_dataset(name, announce=log.info))


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


def _make_initial(
    config: Config, given: Model, fixed: NDArray[np.bool_], context: Context
) -> Model:
    start = config.model.initial
    if start.smooth is not None:
        extent = max(n * h for n, h in zip(given.grid.shape, given.grid.spacing, strict=True))
        if start.smooth > extent:
            raise InputError(
                "model.initial.smooth",
                f"found {start.smooth:g}, but the model is {extent:g} m at its longest",
                "Give the length over which to smooth, in m, or a starting model as a file.",
            )
        return smooth(given, start.smooth, fixed)
    assert start.file is not None
    initial = load_model(Path(start.file), context)
    if config.model.spacing is not None:
        initial = resample(initial, given.grid.spacing)
    same = initial.grid.shape == given.grid.shape and np.allclose(
        [*initial.grid.spacing, *initial.grid.origin], [*given.grid.spacing, *given.grid.origin]
    )
    if not same:
        raise InputError(
            f"model.initial.file: {start.file}",
            f"its grid is {_describe(initial.grid)}, expected {_describe(given.grid)}",
            "Give both models on the same grid, or set model.spacing.",
        )
    return initial


def _describe(grid: Grid) -> str:
    points = " x ".join(map(str, grid.shape))
    return f"{points} points, {grid.spacing} m apart, from {grid.origin} m"


def _make_survey(config: Config, grid: Grid, context: Context) -> tuple[Survey, Path]:
    section = config.survey
    if section.file is not None:
        with GatherReader(Path(section.file), context) as reader:
            return reader.survey, Path(section.file)
    assert section.sources is not None
    assert section.receivers is not None
    assert section.wavelet is not None
    assert section.dt is not None
    assert section.duration is not None
    samples = round(section.duration / section.dt)
    wavelet = ricker(section.wavelet.frequency, samples, section.dt, section.wavelet.delay)
    survey = Survey(
        _place(section.sources, grid, "survey.sources.count"),
        _place(section.receivers, grid, "survey.receivers.count"),
        wavelet.astype(np.float32),
        section.dt,
    )
    return survey, Path(config.output.directory) / "observed.h5"


def _place(points: Points, grid: Grid, key: str) -> NDArray[np.float64]:
    """Positions (point, ndim) in m, x running fastest; raises `InputError` naming the key."""
    is_pair = isinstance(points.count, tuple)
    if is_pair != (grid.ndim == 3):
        axes = "one number, along x" if grid.ndim == 2 else "a pair, along y and x"
        found = list(points.count) if isinstance(points.count, tuple) else points.count
        raise InputError(
            key,
            f"found {found}, but the model has {grid.ndim} axes ({', '.join(grid.axes)}); "
            f"expected {axes}",
            f"Write {'count = 24' if grid.ndim == 2 else 'count = [4, 6]'}, with the numbers of "
            "points, and first and last likewise.",
        )
    if prod(np.atleast_1d(points.count).tolist()) > MOST_POINTS:
        raise InputError(
            key,
            f"found {points.count}, expected at most {MOST_POINTS} points in all",
            "Give fewer.",
        )
    places = [np.array([points.depth])]
    for axis, n in enumerate(np.atleast_1d(points.count), start=1):
        first, last = (
            end[axis] if given is None else np.atleast_1d(given)[axis - 1]
            for given, end in ((points.first, grid.origin), (points.last, grid.last))
        )
        places.append(np.linspace(first, last, n) if n > 1 else np.array([(first + last) / 2]))
    return np.stack(np.meshgrid(*places, indexing="ij"), axis=-1).reshape(-1, grid.ndim)


def _check(experiment: Experiment, context: Context) -> None:
    config, survey, grid = experiment.config, experiment.survey, experiment.initial.grid
    if survey.sources.shape[1] != grid.ndim:
        raise InputError(
            "survey",
            f"its positions have {survey.sources.shape[1]} coordinates, the model {grid.ndim} axes",
            "Give a model and a survey of the same dimension.",
        )
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
    if config.inversion.batch > survey.n_shots:
        raise InputError(
            "inversion.batch",
            f"found {config.inversion.batch}, but the survey has {survey.n_shots} shots",
            "Give at most that many.",
        )
    _check_offsets(config.inversion.max_offset, survey)
    _check_step(experiment)
    _check_traces(experiment, context)
    if not survey.wavelet.any():
        raise InputError(where, "the wavelet is zero", "Check its delay against the duration.")
    for name, bounds in config.inversion.bounds_by_name.items():
        free = experiment.initial[name][~experiment.fixed]
        if free.min() < bounds[0] or free.max() > bounds[1]:
            raise InputError(
                "inversion.bounds",
                f"found {list(bounds)}, but the initial model has {free.min():.0f} to "
                f"{free.max():.0f} {PARAMETERS[name].unit}",
                "Widen the bounds or change the initial model.",
            )
    try:
        choose(config.wave.engine, context.device)
    except ValueError as error:
        raise InputError("wave.engine", str(error), "Choose another engine.") from error


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


def _check_offsets(furthest: float | None, survey: Survey) -> None:
    if furthest is None:
        return
    reach, receivers = Reach(max_offset=furthest), survey.receivers
    shared = receivers.ndim == 2
    heard = (
        reach.hears(source, receivers if shared else receivers[shot])
        for shot, source in enumerate(survey.sources)
    )
    deaf = [shot for shot, traces in enumerate(heard) if not traces.any()]
    if deaf:
        raise InputError(
            "inversion.max_offset",
            f"found {furthest}, but {len(deaf)} of {survey.n_shots} shots have no receiver so "
            f"near, the first is shot {deaf[0]}",
            "Give a larger one.",
        )
