"""What a stage asks of the model and the survey and cannot have: refused with its number.

What cannot be meant, whatever the keys, is in `slips`; what keys alone say is checked in `config`.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from hpcfwi.config import Config
from hpcfwi.config.data import DataSection
from hpcfwi.config.inversion import InversionSection
from hpcfwi.errors import InputError
from hpcfwi.inversion.bands import NOTHING, Band
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.line_source import find_peak
from hpcfwi.model import PARAMETERS
from hpcfwi.operators.window import Aperture
from hpcfwi.parallel.context import Context
from hpcfwi.survey import Survey, divide, find_amplitudes, find_frequencies
from hpcfwi.wave.engines import choose
from hpcfwi.wave.simulation import wave_speed


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
    """What of [data] is another for each shot, so that it is not done to their sum; None: nothing.

    What multiplies all traces by one function of time can be done after traces are added up, the
    observed ones and the simulated ones.
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
    """What is estimated of each shot, or from near traces, needs these, and no encoded shots."""
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
