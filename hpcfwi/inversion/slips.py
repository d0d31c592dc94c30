"""What can be computed but cannot be meant: slips of units, and points that emit and hear nothing.

Each is refused before anything runs, with the unit that was probably meant. What the data hold is
looked at in `plan.data`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import InputError
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.wave.simulation import wave_speed

# Wavelengths that fit into the longest side of a model, below which a wave sees nothing of it.
FEWEST_WAVELENGTHS = 1.0 / 3.0
# Of the model's longest side, what sources or receivers spread over at least: in km for m, a line
# from end to end has a thousandth.
SMALLEST_SPREAD = 1.0 / 500.0

# Times that the slowest wave goes along a model's longest side in a record, at most: that of a
# survey is 0.1 to 10 times, and in ms for s a thousand times that
MOST_PASSAGES = 50.0


def refuse_slips(experiment: Experiment) -> None:
    """Raise `InputError` for the first that is found."""
    _refuse_wrong_times(experiment)
    _refuse_long_records(experiment)
    _refuse_wrong_positions(experiment)
    _refuse_points_on_free_surface(experiment)


def _refuse_wrong_times(experiment: Experiment) -> None:
    """Does the wavelet make waves that fit both the model and its cells?"""
    survey, grid = experiment.survey, experiment.initial.grid
    frequency, speeds = survey.spectrum.peak, wave_speed(experiment.initial.arrays)
    if frequency == 0.0:
        return
    extent, cell = (
        max(n * h for n, h in zip(grid.shape, grid.spacing, strict=True)),
        min(grid.spacing),
    )
    shortest, longest = float(speeds.min()) / frequency, float(speeds.max()) / frequency
    if shortest * FEWEST_WAVELENGTHS > extent:
        misfits = f"longer than the model, which has {extent:g} m"
        factor, likely = 1e-3, "in milliseconds"
    elif longest < cell:
        misfits = f"shorter than a cell of {cell:g} m"
        factor, likely = 1e3, "in kiloseconds, or the wavelet's frequency in mHz"
    else:
        return
    guess = ""
    if shortest * factor * FEWEST_WAVELENGTHS <= extent and longest * factor >= cell:
        guess = f"It seems to be {likely}: give {factor * survey.dt:g}. "
    raise InputError(
        experiment.config.survey.dt_place,
        f"found {survey.dt:g} s, with which the wavelet's peak is at {frequency:.3g} Hz, and its "
        f"waves are {shortest:.3g} to {longest:.3g} m long, {misfits}; expected s",
        f"{guess}Check its unit, and those of the model's spacing and velocities.",
    )


def _refuse_long_records(experiment: Experiment) -> None:
    """Is anything left of the waves at the end of the record that is asked for?"""
    section, grid = experiment.config.survey, experiment.initial.grid
    if section.duration is None or section.wavelet is None:
        return
    extent = max(n * h for n, h in zip(grid.shape, grid.spacing, strict=True))
    slowest = float(wave_speed(experiment.initial.arrays).min())
    passages = section.duration * slowest / extent
    if passages <= MOST_PASSAGES:
        return
    seconds = 1e-3 * section.duration
    likely = seconds * section.wavelet.frequency >= 1.0 and 1e-3 * passages <= MOST_PASSAGES
    raise InputError(
        "survey.duration",
        f"found {section.duration:g} s, in which waves of {slowest:g} m/s go {passages:.3g} times "
        f"along the model of {extent:g} m; expected s, {MOST_PASSAGES:g} times at most",
        f"It seems to be in milliseconds: give {seconds:g}."
        if likely
        else "Give a shorter one, or check the units of the model's spacing and velocities.",
    )


def _refuse_wrong_positions(experiment: Experiment) -> None:
    """Do all sources, or all receivers, lie next to each other?"""
    grid, survey = experiment.initial.grid, experiment.survey
    extent = max(n * h for n, h in zip(grid.shape, grid.spacing, strict=True))
    limit = max(*grid.spacing, SMALLEST_SPREAD * extent)
    for name, points in (("sources", survey.sources), ("receivers", survey.receivers)):
        spread = float(np.ptp(points.reshape(-1, grid.ndim), axis=0).max())
        # Shots that repeat each other, or a single receiver, are none of it
        if 0.0 < spread < limit:
            raise InputError(
                f"{experiment.config.survey.file or 'survey'}: {name}",
                f"all of them lie within {spread:.3g} m, in a model of {extent:g} m with cells of "
                f"{min(grid.spacing):g} m; expected positions in m",
                "They seem to be in km: multiply them by 1000.",
            )


def _refuse_points_on_free_surface(experiment: Experiment) -> None:
    """p = 0 there: nothing is emitted, and nothing heard."""
    if not experiment.config.wave.free_surface:
        return
    grid, survey, file = experiment.initial.grid, experiment.survey, experiment.config.survey.file
    for name, points in (("sources", survey.sources), ("receivers", survey.receivers)):
        on_surface = _on_surface(points, grid.origin[0], grid.spacing[0])
        if on_surface.any():
            raise InputError(
                f"{file}: {name}" if file else f"survey.{name}.depth",
                f"{on_surface.sum()} of {on_surface.size} lie on the free surface at "
                f"{grid.origin[0]:g} m, where the pressure is zero: their traces would be, too",
                f"Give a depth below it, such as {grid.origin[0] + grid.spacing[0]:g} m, or "
                "wave.free_surface = false.",
            )


def _on_surface(points: NDArray[np.float64], top: float, spacing: float) -> NDArray[np.bool_]:
    return np.asarray(np.abs(points[..., 0] - top) < 1e-6 * spacing)
