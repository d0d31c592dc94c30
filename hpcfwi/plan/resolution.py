"""The grid in space and time, and how it carries the wavelet's frequencies."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from hpcfwi.inversion.experiment import Experiment
from hpcfwi.survey import TimeAxis
from hpcfwi.wave import numerics
from hpcfwi.wave.numerics import phase_velocity_error
from hpcfwi.wave.simulation import Task, wave_speed


@dataclass(frozen=True)
class Band:
    """How the grid carries one frequency, at the slowest velocity.

    frequency: Hz; points: a wavelength; error: of the phase velocity, relative; delay: what it
    makes of the longest path, s.
    """

    name: str
    frequency: float
    points: float
    error: float
    delay: float


@dataclass(frozen=True)
class Resolution:
    """The grid in space and time.

    shape, padded, spacing: of each axis, padded with the boundary, m; axis, samples: of
    the traces; lost: what a band leaves out at the end of the record, s; longest: the longest step
    without substeps, s; substeps; courant: fastest velocity times step over the smallest spacing;
    velocities: slowest and fastest, m/s; path: longest path, m.
    """

    shape: tuple[int, ...]
    padded: tuple[int, ...]
    spacing: tuple[float, ...]
    axis: TimeAxis
    samples: int
    lost: float
    longest: float
    substeps: int
    courant: float
    velocities: tuple[float, float]
    path: float
    bands: tuple[Band, ...]


def find_resolution(experiment: Experiment, task: Task) -> Resolution:
    """That of an experiment, of which the task is one shot."""
    model, survey, problem = experiment.initial, experiment.survey, task.problem
    fastest_in_model = float(wave_speed(model.arrays).max())
    fastest = max(fastest_in_model, problem.max_velocity)
    slowest = slowest_velocity(experiment)
    path = longest_path(experiment)
    bands = []
    for name, frequency in (
        ("peak", survey.spectrum.peak),
        ("98 % of the energy up to", survey.spectrum.frequency_below(0.98)),
        ("highest (1e-4 of the peak)", survey.spectrum.highest()),
    ):
        h, dt = problem.spacing, problem.dt
        error = phase_velocity_error(problem.order, h, dt, slowest, frequency)
        points = slowest / (frequency * max(h)) if frequency else inf
        delay = path / slowest * (1.0 / (1.0 + error) - 1.0) if error > -1.0 else inf
        bands.append(Band(name, frequency, points, error, delay))
    return Resolution(
        model.grid.shape,
        problem.padded_shape,
        model.grid.spacing,
        survey.axis,
        survey.n_samples,
        0.0 if experiment.band is None else experiment.band.lead,
        numerics.longest_step(problem.order, problem.spacing, fastest),
        task.substeps,
        fastest * problem.dt / min(problem.spacing),
        (slowest, fastest_in_model),
        path,
        tuple(bands),
    )


def longest_path(experiment: Experiment) -> float:
    """How far the slowest waves of a record get: across the model, or until it ends, m."""
    grid, survey = experiment.initial.grid, experiment.survey
    diagonal = float(np.linalg.norm(np.asarray(grid.last) - np.asarray(grid.origin)))
    return min(diagonal, slowest_velocity(experiment) * survey.n_samples * survey.dt)


def slowest_velocity(experiment: Experiment) -> float:
    """Of the initial model and, where it is known, the true one, m/s."""
    models = [experiment.initial, experiment.true]
    return min(float(wave_speed(model.arrays).min()) for model in models if model is not None)
