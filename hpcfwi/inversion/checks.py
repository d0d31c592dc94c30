"""Checks of an experiment before anything runs: units, and the settings of stages.

A possible but unlikely number, such as a length in km, is an error whose message has the unit that
was probably meant. If the settings of a stage do not suit the model or the survey, the error names
the stage. `config` has checks that need only the keys, and `plan.comparison` those of the values of
the data. Each check yields its findings: `prepare` raises the first, and `hpcfwi plan` reports all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.config import Config
from hpcfwi.config.inversion import InversionSection
from hpcfwi.errors import Finding, InputError, quote
from hpcfwi.inversion.conditioning import NOTHING, Band
from hpcfwi.inversion.experiment import Experiment, equation_of
from hpcfwi.inversion.parameters import SMALLEST_SPREAD, Parametrization
from hpcfwi.model import PARAMETERS, Grid
from hpcfwi.operators.simulator import Aperture
from hpcfwi.parallel.context import Context
from hpcfwi.registry import PARAMETRIZATIONS, find
from hpcfwi.survey import (
    EXPLOSIVE,
    PRESSURE,
    Survey,
    divide,
    find_amplitudes,
    find_frequencies,
)
from hpcfwi.wave.engines import choose
from hpcfwi.wave.equation import ACOUSTIC
from hpcfwi.wave.numerics import longest_step
from hpcfwi.wave.simulation import check_kinds

_error = partial(Finding, "error")

# Smallest number of wavelengths in the longest side of a model. Waves do not see smaller models.
FEWEST_WAVELENGTHS = 1.0 / 3.0
# Smallest share of a cell that is a depth in m; smaller ones are in km.
LEAST_OF_CELL = 0.1
# Smallest and largest sampling interval of the data, in longest stable steps. With a longer one,
# the record's shortest wave is hundreds of cells long; with a shorter one, the change of the wave
# in a step is lost in rounding.
STEPS_A_SAMPLE = (1e-4, 1e3)
# Largest number of times that the slowest wave crosses a model's longest side in a record. Surveys
# have 0.1 to 10; with times in ms instead of s, they have a thousand times that.
MOST_PASSAGES = 50.0


def check_parameters(config: Config) -> Iterator[Finding]:
    """Yield the errors of keys that need no file: parameters, equations and time axes."""
    equation, names = config.wave.equation, equation_of(config).parameters
    for name in config.model.initial.own:
        if name not in names:
            yield _error(
                f"model.initial.{name}",
                f'wave.equation = "{equation}" has no {name}, only {", ".join(names)}',
                "Leave it out, or choose another equation.",
            )
    for where, part in config.prefixed_stages():
        yield from _check_unknowns(part, where, names)
        if part.wave.attenuation is not None and "qp" not in names:
            yield _error(
                f"{where}wave.attenuation",
                f'waves of wave.equation = "{equation}" are not attenuated',
                'Leave it out, or choose "viscoacoustic" or "viscoelastic".',
            )
        alike: list[tuple[str, Any, Any]] = [
            ("wave.equation", part.wave.equation, equation),
            ("wave.ranks_per_shot", part.wave.ranks_per_shot, config.wave.ranks_per_shot),
        ]
        if config.model.network is not None:  # which makes these parameters
            names_given = part.inversion.parameters, config.inversion.parameters
            alike.append(("inversion.parameters", *names_given))
        for key, found, expected in alike:
            if found != expected:
                yield _error(
                    f"{where}{key}",
                    f"found {quote(found)}, expected {quote(expected)}, as in the other stages",
                    "Leave it out, or run the stages one after the other with model.initial.run.",
                )
    section = config.survey
    for key in ("dt", "duration"):
        if section.file is not None and getattr(section, key) is not None:
            yield _error(
                f"survey.{key}",
                f"found {getattr(section, key):g} s, but the data of {section.file} already have a "
                "time axis",
                "Leave it out; it is only for `hpcfwi forward --to`, which simulates other data.",
            )


def _check_unknowns(config: Config, where: str, names: Sequence[str]) -> Iterator[Finding]:
    """Yield errors if an inversion cannot have the unknowns that a stage asks for.

    names: the parameters of the equation.
    """
    section = config.inversion
    for key, wanted in (("parameters", section.parameters), ("tied", section.ties)):
        for name in wanted:
            if name not in names:
                yield _error(
                    f"{where}{config.place_of(key)}",
                    f'found {name}, but wave.equation = "{config.wave.equation}" has '
                    f"{', '.join(names)}",
                    "Leave it out, or choose another equation.",
                )
    chosen, inverted = section.parametrization, section.parameters
    parametrization: Parametrization = find(PARAMETRIZATIONS[chosen])
    lacking = [name for name in parametrization.needs if name not in names]
    left = [n for n in parametrization.together if n in names and n not in inverted]
    key = f"{where}inversion.parametrization"
    if lacking:
        yield _error(
            key,
            f'"{chosen}" depends on {lacking[0]}, which wave.equation = "{config.wave.equation}" '
            "does not have",
            'Leave it out, or choose another equation, such as "acoustic-density".',
        )
    if left:
        yield _error(
            key,
            f'"{chosen}" changes {" and ".join(parametrization.together)} together, but '
            f"inversion.parameters are {', '.join(inverted)}",
            f"Add {' and '.join(left)} to inversion.parameters, or choose another parametrization.",
        )
    if config.model.network is not None and (chosen != "velocity" or section.ties):
        yield _error(
            key if chosen != "velocity" else f"{where}inversion.tied",
            "found with model.network, whose weights are the unknowns",
            "Leave one of them out.",
        )


def check_units(experiment: Experiment, device: torch.device) -> Iterator[Finding]:
    """Yield the errors of the survey and the model, such as numbers in another unit.

    device: that of the simulations.
    """
    yield from _check_kinds(experiment)
    yield from _check_positions(experiment)
    yield from _check_step(experiment)
    yield from _check_wavelength(experiment)
    yield from _check_duration(experiment)
    yield from _check_spread(experiment)
    yield from _check_free_surface(experiment, device)
    yield from _check_silence(experiment.config, experiment.survey)


def _check_kinds(experiment: Experiment) -> Iterator[Finding]:
    """Yield an error if the equation lacks a component, or a kind of sources."""
    survey, equation, ndim = experiment.survey, experiment.equation, experiment.initial.grid.ndim
    file, given = experiment.config.survey.file, experiment.config.survey.sources
    components, kinds = survey.components.names, survey.source_kinds
    of_sources = "kind" if given is None or given.moment is None else "moment"
    for asked, key, attribute, what in (
        ((components, EXPLOSIVE), "receivers.components", "kind_names", "components"),
        ((PRESSURE.names, kinds), f"sources.{of_sources}", "source_kind_names", "sources"),
    ):
        try:
            check_kinds(*asked, equation, ndim)
        except ValueError as error:
            where = f"{file}, attribute {attribute}" if file else f"survey.{key}"
            remedy = f"Give other {what}, or another wave.equation that has them."
            yield _error(where, str(error), remedy)


def _check_positions(experiment: Experiment) -> Iterator[Finding]:
    config, survey, grid = experiment.config, experiment.survey, experiment.initial.grid
    where, components = config.survey.file or "survey", survey.components
    places = {"sources": survey.sources, "receivers": survey.receivers}
    if components.directions is not None and components.gauge is not None:
        half = 0.5 * components.gauge * components.directions
        places["first ends of gauges"] = survey.receivers - half
        places["last ends of gauges"] = survey.receivers + half
    turned = Grid(grid.shape[::-1], grid.spacing[::-1], grid.origin[::-1])
    remedy = "Move them, or give a larger model."
    if all(turned.contains(points).all() for points in places.values()):
        remedy += f" If its arrays are ({', '.join(grid.axes[::-1])}), transpose them."
    for name, points in places.items():
        outside = ~grid.contains(points)
        if outside.any():
            mask = survey.mask if name != "sources" else None
            if mask is not None:
                points = np.broadcast_to(points, (*mask.shape, grid.ndim))
                outside = np.broadcast_to(outside, mask.shape)
                if (outside & mask).any():  # padding has the positions of receivers
                    points, outside = points[mask], outside[mask]
            yield _error(
                f"{where}: {name}",
                f"{outside.sum()} of {outside.size} lie outside the model, the first at "
                f"{points[outside][0].round(3).tolist()} m; expected {list(grid.origin)} to "
                f"{list(grid.last)} m, in the order {', '.join(grid.axes)}",
                remedy,
            )


def _check_silence(config: Config, survey: Survey) -> Iterator[Finding]:
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
        yield _error("survey.wavelet", found, remedy)
        return
    yield _error(
        f"{config.survey.file}, /wavelet",
        found,
        "Give a wavelet as survey.wavelet or to `hpcfwi convert` (--wavelet), or, if no shot has "
        'one, set inversion.wavelet = "estimate" in all stages.',
    )


def _check_step(experiment: Experiment) -> Iterator[Finding]:
    config, survey, grid = experiment.config, experiment.survey, experiment.initial.grid
    fastest = experiment.fastest()
    longest = longest_step(config.wave.order, grid.spacing, fastest)
    low, high = (steps * longest for steps in STEPS_A_SAMPLE)
    if not low <= survey.dt <= high:
        yield _error(
            config.survey.dt_place,
            f"found {survey.dt:g} s, expected {low:.3g} to {high:.3g} s "
            f"where waves of {fastest:g} m/s cross cells of {min(grid.spacing):g} m",
            "Check its unit, and those of the model's spacing and velocities.",
        )


def _check_wavelength(experiment: Experiment) -> Iterator[Finding]:
    """Yield an error if waves are longer than the model, or shorter than its cells."""
    survey, grid = experiment.survey, experiment.initial.grid
    frequency, equation = survey.spectrum.peak, experiment.equation
    if frequency == 0.0:
        return
    cell, arrays = min(grid.spacing), experiment.initial.arrays
    shortest = float(equation.slowest(arrays).min()) / frequency
    longest = float(equation.fastest(arrays).max()) / frequency
    if shortest * FEWEST_WAVELENGTHS > grid.extent:
        misfits = f"longer than the model, which has {grid.extent:g} m"
        factor, likely = 1e-3, "in milliseconds"
    elif longest < cell:
        misfits = f"shorter than a cell of {cell:g} m"
        factor, likely = 1e3, "in kiloseconds, or the wavelet's frequency in mHz"
    else:
        return
    guess = ""
    if shortest * factor * FEWEST_WAVELENGTHS <= grid.extent and longest * factor >= cell:
        guess = f"It seems to be {likely}: give {factor * survey.dt:g}. "
    yield _error(
        experiment.config.survey.dt_place,
        f"found {survey.dt:g} s, with which the wavelet's peak is at {frequency:.3g} Hz, and its "
        f"waves are {shortest:.3g} to {longest:.3g} m long, {misfits}; expected s",
        f"{guess}Check its unit, and those of the model's spacing and velocities.",
    )


def _check_duration(experiment: Experiment) -> Iterator[Finding]:
    """Yield an error if waves have left the model long before the end of the record."""
    section, extent = experiment.config.survey, experiment.initial.grid.extent
    if section.duration is None or section.wavelet is None:
        return
    slowest = float(experiment.equation.slowest(experiment.initial.arrays).min())
    passages = section.duration * slowest / extent
    if passages <= MOST_PASSAGES:
        return
    seconds = 1e-3 * section.duration
    likely = seconds * section.wavelet.frequency >= 1.0 and 1e-3 * passages <= MOST_PASSAGES
    yield _error(
        "survey.duration",
        f"found {section.duration:g} s, in which waves of {slowest:g} m/s go {passages:.3g} times "
        f"through the model of {extent:g} m; expected s, {MOST_PASSAGES:g} times at most",
        f"It seems to be in milliseconds: give {seconds:g}."
        if likely
        else "Give a shorter one, or check the units of the model's spacing and velocities.",
    )


def _check_spread(experiment: Experiment) -> Iterator[Finding]:
    """Yield an error if all sources, or all receivers, lie next to each other."""
    grid, survey = experiment.initial.grid, experiment.survey
    limit = max(*grid.spacing, SMALLEST_SPREAD * grid.extent)
    for name, points in (("sources", survey.sources), ("receivers", survey.receivers)):
        spread = float(np.ptp(points.reshape(-1, grid.ndim), axis=0).max())
        # Repeated shots and a single receiver are not an error.
        if 0.0 < spread < limit:
            yield _error(
                f"{experiment.config.survey.file or 'survey'}: {name}",
                f"all of them lie within {spread:.3g} m, in a model of {grid.extent:g} m with "
                f"cells of {min(grid.spacing):g} m; expected positions in m",
                "They seem to be in km: multiply them by 1000.",
            )


def _check_free_surface(
    experiment: Experiment, device: torch.device, where: str = ""
) -> Iterator[Finding]:
    """Yield an error for sources and receivers on a free surface that emit or record nothing."""
    if not experiment.config.wave.free_surface:
        return
    grid, survey, file = experiment.initial.grid, experiment.survey, experiment.config.survey.file
    top, spacing = grid.origin[0], grid.spacing[0]
    equation, components, initial = experiment.equation, survey.components, experiment.initial
    is_pressure = np.array([name == "pressure" for name in components.names])
    deaf = _on_surface(survey.receivers, top, spacing)
    deaf = deaf & is_pressure[0 if components.kinds is None else components.kinds]
    if "vs" in initial.arrays and deaf.any():
        # Horizontal stresses of rock are not zero at its surface.
        deaf = deaf & (initial["vs"][grid.cells_of(survey.receivers)] == 0.0)
    places = {"receivers": deaf}
    if equation is ACOUSTIC:
        places["sources"] = _on_surface(survey.sources, top, spacing)
    for name, on_surface in places.items():
        if on_surface.any():
            yield _error(
                f"{file}: {name}" if file else f"survey.{name}.depth",
                f"{on_surface.sum()} of {on_surface.size} lie on the free surface at "
                f"{top:g} m, where the pressure, and so their traces, are zero",
                f"Give a depth below it, such as {top + spacing:g} m, or "
                f"{where}wave.free_surface = false.",
            )
    shots = np.flatnonzero(_on_surface(survey.sources, top, spacing))
    if shots.size and equation is not ACOUSTIC:
        simulator = experiment.simulator(experiment.initial)
        model = experiment.initial.as_tensors(device)
        try:
            simulator.set_up(simulator.restrict(model), survey.select(shots), None)
        except ValueError as error:
            key = f"{file}: sources" if file else "survey.sources.depth"
            yield _error(key, str(error), "Move them, or change their kind.")


def _on_surface(points: NDArray[np.float64], top: float, spacing: float) -> NDArray[np.bool_]:
    return np.asarray(np.abs(points[..., 0] - top) < 1e-6 * spacing)


def refuse_engine(config: Config, where: str, context: Context) -> None:
    """Raise `InputError` for an engine that lacks the equation, or cannot work on this device."""
    try:
        choose(config.wave.engine, context.device, equation_of(config))
    except ValueError as error:
        raise InputError(f"{where}wave.engine", str(error), "Choose another engine.") from error


def check_stage(experiment: Experiment, where: str) -> Iterator[Finding]:
    """Yield the errors of a stage whose settings do not suit the model or the survey.

    where: prefix of the keys, which names the stage.
    """
    section, survey = experiment.config.inversion, experiment.survey
    largest = section.largest_batch(survey.n_shots)
    if largest > survey.n_shots:
        yield _error(
            f"{where}{experiment.config.place_of('batch')}",
            f"found {largest}, but the survey has {survey.n_shots} shots",
            "Give at most this number.",
        )
    if where:
        yield from _check_free_surface(experiment, torch.device("cpu"), where)
    yield from _check_band(experiment.config, survey, where)
    yield from _check_correction(experiment, where)
    yield from _check_offsets(experiment.config, survey, where)
    yield from _check_weights(experiment.config, survey, where)
    yield from _check_wavelet(section, survey, where)
    reason = None if section.encoding == "none" else _find_difference(experiment)
    if reason is not None:
        yield _error(
            f"{where}inversion.encoding",
            f'found "{section.encoding}", but {reason}, and an encoded shot is a sum of all shots, '
            "recorded by all receivers",
            "Invert without an encoding, or treat all shots alike.",
        )
    yield from _check_fixed(experiment, where)
    for name, bounds in section.bounds_by_name.items():
        array, free, parameter = experiment.initial[name], ~experiment.fixed, PARAMETERS[name]
        lowest = array.min(where=free, initial=np.inf)
        highest = array.max(where=free, initial=-np.inf)
        if lowest < bounds[0] or highest > bounds[1]:
            yield _error(
                f"{where}inversion.bounds",
                f"found {list(bounds)}, but the initial model has {lowest:.0f} to "
                f"{highest:.0f} {parameter.unit}",
                f"They seem to be in {parameter.figure_unit}: multiply them by "
                f"{parameter.figure_scale:g}."
                if bounds[1] < parameter.mistaken
                else "Widen the bounds or change the initial model.",
            )


def _check_weights(config: Config, survey: Survey, where: str) -> Iterator[Finding]:
    weights, components, key = config.data.components, survey.components.names, "data.components"
    if not any(weights.get(name, 1.0) for name in components):
        yield _error(
            f"{where}{key}",
            f"found 0 for {', '.join(components)}, which are all components of the survey",
            "Give one of them a weight above 0.",
        )
    for name in weights:
        if name not in components:
            yield _error(
                f"{where}{key}",
                f"found {name}, but the survey has {', '.join(components)}",
                "Give weights of components of the survey.",
            )


def _check_fixed(experiment: Experiment, where: str) -> Iterator[Finding]:
    config, grid = experiment.config, experiment.initial.grid
    section = config.inversion
    if section.fixed is None:
        key = f"{where}{config.place_of('fixed_above')}"
        if experiment.fixed.all():
            yield _error(
                key,
                f"found {section.fixed_above}, which fixes the whole model",
                f"Give a depth above {grid.last[0]} m.",
            )
        above, cell, top = section.fixed_above or 0.0, grid.spacing[0], grid.origin[0]
        if top < above < top + LEAST_OF_CELL * cell and 1e3 * above <= grid.last[0]:
            yield _error(
                key,
                f"found {above:g} m, which is no depth in a model with cells of {cell:g} m",
                f"Give {1e3 * above:g} if it is in km, or {top + cell:g} to fix the first rows.",
            )
        return
    if experiment.fixed.any() and not experiment.fixed.all():
        return
    what = "the whole model" if experiment.fixed.any() else "no cell of it"
    place = f"{where}{config.place_of('fixed')}"
    key = f"{place}.file: {section.fixed.file}"
    if section.fixed.file in experiment.known.masks:
        found = f"its /fixed is 1 for {what}"
        yield _error(key, found, "Give 1 for fixed cells, and 0 for those that may change.")
    elif section.fixed.file is not None:
        floor = experiment.known.floor(section, grid)
        yield _error(
            key,
            f"its depths of {floor.min():g} to {floor.max():g} m fix {what}, which has depths of "
            f"{grid.origin[0]:g} to {grid.last[0]:g} m",
            "Give depths in m, downwards, in the model's coordinates.",
        )
    else:
        speeds = experiment.known.start.p_velocity
        yield _error(
            f"{place}.above_velocity",
            f"found {section.fixed.above_velocity:g}, which fixes {what}: the top cells of the "
            f"starting model have {speeds[0].min():g} to {speeds[0].max():g} m/s, all its cells "
            f"have {speeds.min():g} to {speeds.max():g} m/s",
            "Give a velocity between those of the water and the sea floor, in m/s.",
        )


def _find_difference(experiment: Experiment) -> str | None:
    """Return why the shots differ so that their traces cannot be summed, or None.

    Only a factor that is the same function of time for all traces can be applied to sums of traces.
    """
    survey, data = experiment.survey, experiment.config.data
    kinds = survey.components.kinds
    if survey.receivers.ndim == 3 or (kinds is not None and kinds.ndim == 2):
        return "each shot of the survey has different receivers"
    if survey.mask is not None:
        return "the survey has masked traces"
    if experiment.config.inversion.max_offset is not None:
        return "inversion.max_offset leaves out different receivers for each shot"
    if data.offsets is not None:
        return "data.offsets leaves out different receivers for each shot"
    if any(mute.after is None for mute in data.mute):
        return "data.mute (except `after`) depends on the offset, which differs between shots"
    if data.weight is not None:
        return "data.weight depends on offset or amplitude, which differ between shots"
    if data.edit is not None:
        return "data.edit leaves out different traces for each shot"
    return None


def _check_band(config: Config, survey: Survey, where: str) -> Iterator[Finding]:
    """Yield an error if a wavelet has only rounding errors in the band."""
    if config.data.band is None:
        return
    wavelets = np.atleast_2d(survey.wavelet)
    frequencies = find_frequencies(survey.n_samples, survey.dt)
    low, high = config.data.band
    response = Band(low, high, survey.n_samples, survey.dt).response(frequencies)
    # A strong wave outside the band leaves more there than a faint one within it.
    inside = (frequencies >= low) & (frequencies <= high)
    if inside[1:].any():
        response = np.where(inside, response, 0.0)
    for part in divide(wavelets):
        amplitudes = find_amplitudes(wavelets[part])
        # The constant is left out, because it is not a wave.
        left = (amplitudes * response)[:, 1:].max(axis=1)
        silent = left < NOTHING * amplitudes.max(axis=1)
        if not silent.any():
            continue
        place = int(silent.argmax())
        whose = "the wavelet" if len(wavelets) == 1 else f"the wavelet of shot {part.start + place}"
        peak = frequencies[amplitudes[place].argmax()]
        yield _error(
            f"{where}data.band",
            f"found {list(config.data.band)}, in which {whose} is zero: its peak is at "
            f"{peak:.3g} Hz, and there is less than {NOTHING:g} of that amplitude in the band",
            "Give a band of the wavelet, in Hz, or a wavelet with energy in this band.",
        )
        return


def _check_correction(experiment: Experiment, where: str) -> Iterator[Finding]:
    """Yield an error if point sources are corrected although the waves are those of the data."""
    data, key = experiment.config.data, f"{where}data.correct"
    found = f'found "{data.correct}", but '
    if data.correct is None:
        return
    if experiment.initial.grid.ndim == 3:
        found += "the model has three dimensions, in which sources are points"
        yield _error(key, found, "Leave out the key.")
    elif experiment.is_synthetic:
        found += "the observed data are simulated in two dimensions, in which sources are lines"
        yield _error(key, found, "Leave out the key, which is for field data.")


def _check_wavelet(section: InversionSection, survey: Survey, where: str) -> Iterator[Finding]:
    """Yield errors for estimates that need single shots or near traces that do not exist."""
    wavelets, key = section.wavelet.bind()(), f"{where}inversion.wavelet.furthest"
    each, furthest = wavelets.per == "shot", wavelets.furthest
    if each and section.encoding != "none":
        yield _error(
            f"{where}inversion.wavelet.per",
            f'found "shot" with inversion.encoding = "{section.encoding}", but the wavelets of '
            "single shots cannot be estimated from encoded traces",
            'Give per = "survey", for one wavelet of all shots, or invert without an encoding.',
        )
    if furthest is None:
        return
    if section.encoding != "none":
        yield _error(
            key,
            f'found {furthest:g} with inversion.encoding = "{section.encoding}", but an encoded '
            "shot has sources near and far from each receiver",
            "Leave it out, or estimate the wavelet in a stage without an encoding.",
        )
        return
    dead = Aperture(max_offset=furthest).find_dead_shots(survey)
    if dead.size == survey.n_shots:
        yield _error(
            key,
            f"found {furthest:g} m, but no receiver is this close to its source",
            "Give a larger offset.",
        )
    elif each and dead.size:
        yield _error(
            key,
            f"found {furthest:g} m, but {dead.size} of {survey.n_shots} shots, whose wavelets are "
            f"estimated separately, have no receiver this close, the first is shot {dead[0]}",
            'Give a larger offset, or per = "survey".',
        )


def _check_offsets(config: Config, survey: Survey, prefix: str) -> Iterator[Finding]:
    furthest, nearest = config.offset_limits
    if furthest is None and not nearest:
        return
    dead = Aperture(None, furthest, nearest).find_dead_shots(survey)
    if dead.size:
        where, found, remedy = "inversion.max_offset", str(furthest), "Give a larger offset."
        if config.data.offsets is not None:
            where, found = "data.offsets", str(list(config.data.offsets))
            remedy = "Give a wider range, in m."
        yield _error(
            f"{prefix}{where}",
            f"found {found}, but {dead.size} of {survey.n_shots} shots have no receiver at such "
            f"offsets, the first is shot {dead[0]}",
            remedy,
        )
