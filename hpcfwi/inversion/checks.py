"""Checks of an experiment before anything runs: slips of units, and what a stage cannot have.

A slip can be computed and cannot be meant, such as a length in km; it is refused with the unit that
was probably meant. A stage that asks of the model and the survey what these do not have is refused
with its number. `config` checks what keys alone say, `plan.data` looks at the values of the data.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from hpcfwi.config import Config
from hpcfwi.config.inversion import InversionSection
from hpcfwi.config.sections import DataSection
from hpcfwi.errors import InputError
from hpcfwi.inversion.conditioning import NOTHING, Band, find_peak
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.model import PARAMETERS
from hpcfwi.operators.simulator import Aperture
from hpcfwi.parallel.context import Context
from hpcfwi.survey import Survey, divide, find_amplitudes, find_frequencies
from hpcfwi.wave.engines import choose
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


def refuse_stage(experiment: Experiment, where: str, context: Context) -> None:
    """Raise `InputError` on all ranks for the first that is found; collective.

    where: the stage, before a key's name. One rank looks at the model and at all shots.
    """
    context.from_root(partial(_refuse_demands, experiment, where))
    refuse_engine(experiment.config, where, context)


def refuse_engine(config: Config, where: str, context: Context) -> None:
    """Raise `InputError` for an engine that cannot work on this rank's device."""
    try:
        choose(config.wave.engine, context.device)
    except ValueError as error:
        raise InputError(f"{where}wave.engine", str(error), "Choose another engine.") from error


def _refuse_demands(experiment: Experiment, where: str) -> None:
    section, survey = experiment.config.inversion, experiment.survey
    largest = section.largest_batch(survey.n_shots)
    if largest > survey.n_shots:
        raise InputError(
            f"{where}inversion.batch",
            f"found {largest}, but the survey has {survey.n_shots} shots",
            "Give at most that many.",
        )
    _check_band(experiment.config, survey, where)
    _check_offsets(experiment.config, survey, where)
    _check_wavelet(section, survey, where)
    if section.encoding != "none":
        _check_encoding(experiment, where)
    _check_fixed(experiment, where)
    for name, bounds in section.bounds_by_name.items():
        array, free, parameter = experiment.initial[name], ~experiment.fixed, PARAMETERS[name]
        lowest = array.min(where=free, initial=np.inf)
        highest = array.max(where=free, initial=-np.inf)
        if lowest < bounds[0] or highest > bounds[1]:
            raise InputError(
                f"{where}inversion.bounds",
                f"found {list(bounds)}, but the initial model has {lowest:.0f} to "
                f"{highest:.0f} {parameter.unit}",
                f"They seem to be in {parameter.figure_unit}: multiply them by "
                f"{parameter.figure_scale:g}."
                if bounds[1] < parameter.mistaken
                else "Widen the bounds or change the initial model.",
            )


def _check_fixed(experiment: Experiment, where: str) -> None:
    section, grid = experiment.config.inversion, experiment.initial.grid
    if section.fixed is None:
        if experiment.fixed.all():
            raise InputError(
                f"{where}inversion.fixed_above",
                f"found {section.fixed_above}, which fixes the whole model",
                f"Give a depth above {grid.last[0]} m.",
            )
        return
    if experiment.fixed.any() and not experiment.fixed.all():
        return
    what = "the whole model" if experiment.fixed.any() else "no cell of it"
    if section.fixed.file in experiment.known.masks:
        raise InputError(
            f"{where}inversion.fixed.file: {section.fixed.file}",
            f"its /fixed is 1 for {what}",
            "Give 1 for the cells that are kept, and 0 for those that may change.",
        )
    if section.fixed.file is not None:
        floor = experiment.known.floor(section, grid)
        raise InputError(
            f"{where}inversion.fixed.file: {section.fixed.file}",
            f"its depths of {floor.min():g} to {floor.max():g} m below the model fix "
            f"{what}, which has depths of {grid.origin[0]:g} to {grid.last[0]:g} m",
            "Give depths in m, downwards from the zero of the model's own coordinates.",
        )
    speeds = wave_speed(experiment.known.start.arrays)
    raise InputError(
        f"{where}inversion.fixed.above_velocity",
        f"found {section.fixed.above_velocity:g}, which fixes {what}: the first cells of the "
        f"starting model's columns have {speeds[0].min():g} to {speeds[0].max():g} m/s, all of its "
        f"cells {speeds.min():g} to {speeds.max():g} m/s",
        "Give a velocity between that of the water and that of the sea floor, in m/s.",
    )


def _check_encoding(experiment: Experiment, where: str) -> None:
    """An encoded shot has all sources, so that every receiver must hear each of them."""
    config, reason = experiment.config, None
    if experiment.survey.receivers.ndim == 3:
        reason = "every shot of the survey has receivers of its own"
    elif experiment.survey.mask is not None:
        reason = "the survey has traces that do not count"
    elif config.inversion.max_offset is not None:
        reason = "inversion.max_offset leaves receivers out, for each shot others"
    else:
        reason = _tell_apart(config.data, experiment.survey)
    if reason is not None:
        raise InputError(
            f"{where}inversion.encoding",
            f'found "{config.inversion.encoding}", but {reason}, and an encoded shot is all shots '
            "at once, heard by all receivers",
            "Invert without an encoding, or without what sets shots apart.",
        )


def _tell_apart(data: DataSection, survey: Survey) -> str | None:
    """Return what in [data] differs between shots and so cannot act on their sum, None if nothing.

    A factor that is one function of time for all traces can be applied to sums of traces.
    """
    if data.offsets is not None:
        return "data.offsets leaves receivers out, for each shot others"
    if any(mute.after is None for mute in data.mute):
        return "data.mute goes by offset, which is another for each shot, but for `after`"
    if data.weight is not None:
        return "data.weight goes by offset or amplitude, which are others for each shot"
    if data.edit is not None:
        return "data.edit leaves out traces, of each shot others"
    if data.correct is not None and len({find_peak(w) for w in np.atleast_2d(survey.wavelet)}) > 1:
        return "data.correct counts from the peaks of wavelets, which shots have at other times"
    return None


def _check_band(config: Config, survey: Survey, where: str) -> None:
    """The wavelet is to be more than rounding in the band."""
    if config.data.band is None:
        return
    wavelets = np.atleast_2d(survey.wavelet)
    frequencies = find_frequencies(survey.n_samples, survey.dt)
    response = Band(*config.data.band, survey.n_samples, survey.dt).response(frequencies)
    for part in divide(wavelets):
        amplitudes = find_amplitudes(wavelets[part])
        # A constant is no wave
        left = (amplitudes * response)[:, 1:].max(axis=1)
        silent = left < NOTHING * amplitudes.max(axis=1)
        if not silent.any():
            continue
        place = int(silent.argmax())
        whose = "the wavelet" if len(wavelets) == 1 else f"the wavelet of shot {part.start + place}"
        peak = frequencies[amplitudes[place].argmax()]
        raise InputError(
            f"{where}data.band",
            f"found {list(config.data.band)}, in which {whose} is zero: its peak is at "
            f"{peak:.3g} Hz, and there is less than {NOTHING:g} of that amplitude in the band",
            "Give a band that the wavelet has, in Hz, or a wavelet of this band.",
        )


def _check_wavelet(section: InversionSection, survey: Survey, where: str) -> None:
    """Refuse estimates for each shot, or from near traces, with encoded shots."""
    wavelets = section.wavelet.make()()
    each, furthest = wavelets.per == "shot", wavelets.furthest
    if each and section.encoding != "none":
        raise InputError(
            f"{where}inversion.wavelet.per",
            f'found "shot" with inversion.encoding = "{section.encoding}", and from traces of all '
            "shots at once no shot's own wavelet can be told",
            'Give per = "survey", for one of all shots, or invert without an encoding.',
        )
    if furthest is None:
        return
    if section.encoding != "none":
        raise InputError(
            f"{where}inversion.wavelet.furthest",
            f'found {furthest:g} with inversion.encoding = "{section.encoding}", and an encoded '
            "shot has sources near and far from each receiver",
            "Leave it out, or estimate the wavelet in a stage without an encoding.",
        )
    deaf = Aperture(max_offset=furthest).find_deaf(survey)
    if deaf.size == survey.n_shots:
        raise InputError(
            f"{where}inversion.wavelet.furthest",
            f"found {furthest:g} m, and no receiver is so near to its source",
            "Give a larger one.",
        )
    if each and deaf.size:
        raise InputError(
            f"{where}inversion.wavelet.furthest",
            f"found {furthest:g} m, and {deaf.size} of {survey.n_shots} shots, which are to "
            f"have wavelets of their own, have no receiver so near, the first is shot "
            f"{deaf[0]}",
            'Give a larger one, or per = "survey".',
        )


def _check_offsets(config: Config, survey: Survey, prefix: str) -> None:
    furthest, nearest = config.offset_limits
    if furthest is None and not nearest:
        return
    deaf = Aperture(None, furthest, nearest).find_deaf(survey)
    if deaf.size:
        where, found, remedy = "inversion.max_offset", str(furthest), "Give a larger one."
        if config.data.offsets is not None:
            where, found = "data.offsets", str(list(config.data.offsets))
            remedy = "Give a wider range, in m."
        raise InputError(
            f"{prefix}{where}",
            f"found {found}, but {deaf.size} of {survey.n_shots} shots have no receiver at such "
            f"offsets, the first is shot {deaf[0]}",
            remedy,
        )
