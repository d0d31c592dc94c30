"""Checks of a plan and of the data for problems that lead to failures or to poor gradients.

Each check is a function of an experiment, of a part of its plan or of a comparison of its data, and
returns its findings. `config` and `inversion.checks` find errors that prevent any simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import Finding, say_count
from hpcfwi.inversion.conditioning import NOTHING
from hpcfwi.inversion.experiment import Experiment, find_attenuation
from hpcfwi.inversion.shot_qc import knows_amplitudes
from hpcfwi.plan.arrivals import Scan, Tally, say_delay
from hpcfwi.plan.comparison import Comparison, Convention, DataComparison
from hpcfwi.plan.estimate import Memory, Sharing, discretize, find_slowest
from hpcfwi.wave.equation import Attenuation
from hpcfwi.wave.numerics import carried_frequency

# Functions of the key, what was found, and the remedy
_fail, _warn = partial(Finding, "error"), partial(Finding, "warning")
_note = partial(Finding, "note")

# The grid resolves waves whose relative error of phase velocity is at most this.
VELOCITY_ERROR = 0.02
# Largest share of the wavelet's energy at frequencies that the grid does not resolve.
LOST_ENERGY = 0.02
# Largest share of cells that may be too slow for the peak frequency of the wavelet.
SLOW_CELLS = 0.5
# Largest share of the wavelet's energy at frequencies at which quality factors are not constant.
OUT_OF_BAND = 0.1
# Fewest cells of an absorbing boundary that reflects at most some per cent (docs/decisions/004).
FEWEST_ABSORBING = 5
# Largest first or last sample of a wavelet, relative to its peak.
CUT = 1e-2


def check_experiment(experiment: Experiment, dt: float) -> list[Finding]:
    """Return all findings about models, survey and scheme; dt: time step of the simulation, s."""
    return [
        *_check_frequencies(experiment, dt),
        *_check_wavelet(experiment),
        *_check_attenuation(experiment),
        *_check_boundary(experiment),
        *check_water(experiment),
        *_check_duration(experiment),
    ]


def _check_frequencies(experiment: Experiment, dt: float) -> Iterator[Finding]:
    grid, spectrum = experiment.initial.grid, experiment.survey.spectrum
    scheme = discretize(experiment, grid.spacing, dt)
    slowest, carried = scheme.velocity, carried_frequency(scheme, VELOCITY_ERROR)
    lost = spectrum.energy_above(carried)
    if lost <= LOST_ENERGY:
        return
    h = max(grid.spacing)
    # The frequency that the grid resolves is inversely proportional to the spacing.
    needed = h * carried / spectrum.frequency_below(1.0 - LOST_ENERGY)
    digit = 10.0 ** (np.floor(np.log10(needed)) - 1.0)  # the second one, to which it is rounded
    # A few slow cells, such as those of soft sediments, spoil only a part of the waves.
    speeds = find_slowest(experiment)
    share = max(float((speed * carried < spectrum.peak * slowest).mean()) for speed in speeds)
    yield Finding(
        "error" if share > SLOW_CELLS else "warning",
        "model.spacing",
        f"a spacing of {h:g} m is fine enough for waves of {slowest:.0f} m/s up to "
        f"{carried:.3g} Hz, {slowest / carried / h:.1f} points per wavelength; "
        f"{100 * lost:.0f} % of the wavelet's energy are above this and travel at wrong speeds",
        f"Give a spacing of {np.floor(needed / digit) * digit:g} m or less, or a wavelet of lower "
        "frequency.",
    )


def _check_wavelet(experiment: Experiment) -> Iterator[Finding]:
    wavelet = np.abs(np.atleast_2d(experiment.survey.wavelet))
    largest = wavelet.max(axis=1)
    for end, sample, remedy in (
        ("begins", wavelet[:, 0], "Give a longer survey.wavelet.delay (1.5 / frequency or more)."),
        ("ends", wavelet[:, -1], "Give a longer record, or a shorter delay."),
    ):
        share = float((sample / largest).max())
        if share > CUT:
            yield _warn(
                experiment.config.survey.file or "survey.wavelet",
                f"the wavelet {end} at {100 * share:.0f} % of its peak: it is cut off, and the "
                "jump emits waves of all frequencies",
                remedy,
            )


def _check_attenuation(experiment: Experiment) -> Iterator[Finding]:
    """Check that quality factors are constant at the frequencies of the wavelet."""
    if "qp" not in experiment.equation.parameters:
        return
    spectrum, wave = experiment.survey.spectrum, experiment.config.wave
    low, high = (find_attenuation(wave) or Attenuation()).band
    outside = 1.0 - spectrum.energy_above(low) + spectrum.energy_above(high)
    if outside > OUT_OF_BAND:
        first, last = (spectrum.frequency_below(share) for share in (0.01, 0.99))
        yield _warn(
            "wave.attenuation.band",
            f"{100 * outside:.0f} % of the wavelet's energy is outside {low:g} to {high:g} Hz, "
            "where the waves lose less energy than the quality factors say",
            f"Give a band that includes {first:.2g} to {last:.2g} Hz.",
        )


def _check_boundary(experiment: Experiment) -> Iterator[Finding]:
    cells = experiment.config.wave.boundary
    if cells < FEWEST_ABSORBING:
        yield _warn(
            "wave.boundary",
            f"an absorbing boundary of {say_count(cells, 'cell')} reflects several per cent "
            "of the waves or more back into the model"
            if cells
            else "without an absorbing boundary all waves are reflected back into the model",
            "Give 10 cells or more.",
        )


def check_water(experiment: Experiment) -> Iterator[Finding]:
    """Find sources or receivers that all lie in cells that the inversion does not change."""
    grid, survey = experiment.initial.grid, experiment.survey

    def are_kept(points: NDArray[np.float64]) -> bool:
        return bool(experiment.fixed[grid.cells_of(points)].all())

    kept = []
    if are_kept(survey.sources):
        kept.append("sources")
    # This stops at the first part with receivers outside of these cells
    if all(map(are_kept, survey.receiver_positions_by_part())):
        kept.append("receivers")
    if not kept:
        return
    config, known = experiment.config, experiment.known
    fixed = config.inversion.fixed
    if fixed is None:
        key, remedy = "fixed_above", "a smaller depth"
    elif fixed.file in known.masks:
        key, remedy = "fixed", "0 for cells that may change"
    else:
        key, remedy = "fixed", "a lower velocity" if fixed.file is None else "a higher surface"
    where = ""
    if fixed is None or fixed.file not in known.masks:
        floor = known.floor(config.inversion, grid)
        low, high = floor.min(), floor.max()
        where = " down to " + (f"{low:g} m" if low == high else f"{low:.4g} to {high:.4g} m")
    yield _note(
        config.place_of(key),
        f"all {' and '.join(kept)} lie in fixed cells{where}: the gradient is set to zero "
        "there, and the model changes only elsewhere",
        f"This is right if these cells are water of known velocity; otherwise give {remedy}.",
    )


def _check_duration(experiment: Experiment) -> Iterator[Finding]:
    survey = experiment.survey
    last = float(survey.axis.times(survey.n_samples)[-1])
    needed = time_to_floor_and_back(experiment)
    if last < needed:
        yield _warn(
            experiment.config.survey.file or "survey.duration",
            f"the record ends at {last:.3g} s, but a wave to the bottom of the model is back only "
            f"at {needed:.3g} s: the deepest cells get no gradient from reflections",
            f"Record {needed:.3g} s or longer, or give a shallower model.",
        )


def check_room(memory: Memory) -> Iterator[Finding]:
    """Check that the memory left by other arrays suffices for the simulations."""
    if memory.chosen is None:
        yield _fail(
            "wave.history",
            memory.why,
            "Start fewer ranks or threads (OMP_NUM_THREADS), or use a coarser model.spacing or "
            "a machine with more memory.",
        )


def check_steps(experiment: Experiment, substeps: int) -> Iterator[Finding]:
    """Check that the time step of the simulation is the sampling interval of the data."""
    # The sampling of a frequency band is always as coarse as possible
    if substeps == 1 or experiment.band is not None:
        return
    longest = experiment.survey.dt / substeps
    cheaper = "a larger model.spacing"
    if not experiment.config.inversion.linear:
        cheaper += ", or inversion.bounds with a lower velocity,"
    yield _note(
        experiment.config.survey.file or "survey.dt",
        f"steps of {1000 * experiment.survey.dt:g} ms are too long for a stable scheme: each "
        f"is divided into {substeps} substeps, which takes {substeps} times as long",
        f"Steps of {1000 * longest:.3g} ms need no substeps but cost the same; {cheaper} costs "
        "less.",
    )


def check_sharing(sharing: Sharing) -> Iterator[Finding]:
    """Check that there are shots for all ranks or crews, and for all threads."""
    batch, kind, counts = sharing.batch, sharing.kind, sharing.machine.threads
    threads, ranks, idle = sum(counts), len(counts), len(counts) - batch
    left = f"{idle} of them {'is' if idle == 1 else 'are'} idle"
    without = f"cannot be shared by {ranks} {kind}s: {left}"
    if batch < ranks and sharing.encoded:
        # More encoded shots would cost more, so that the advice is to start fewer ranks.
        shots, fewer = (say_count(batch, noun) for noun in ("encoded shot", "rank"))
        yield _note(
            "inversion.batch",
            f"{shots} of an epoch {without}",
            f"Start {fewer} with all cores; the threads of a rank share a shot."
            if kind == "rank"
            else "Start fewer ranks with more cores each, or give a larger wave.ranks_per_shot.",
        )
    elif batch < ranks:
        yield _warn(
            "inversion.batch",
            f"a batch of {batch} {without}",
            f"Give a batch of {ranks} or more, or start as many {kind}s as it has shots.",
        )
    elif batch < threads and not sharing.encoded and kind == "rank":
        yield _note(
            "inversion.batch",
            f"a batch of {batch} is smaller than the {threads} threads of all ranks",
            f"Give a batch of {threads}, so that each thread has a shot, or use fewer cores.",
        )


def time_to_floor_and_back(experiment: Experiment) -> float:
    """Return the arrival time (s) of the wavelet's peak at the bottom of the model and back.

    The path is vertical, from the median depth of the sources to the bottom, and up to the median
    depth of the receivers, in the median slowness of the initial model below the sources.
    """
    model, survey = experiment.initial, experiment.survey
    grid = model.grid
    sources = survey.sources
    listening = np.concatenate([part[:, 0] for part in survey.receiver_positions_by_part()])
    columns = grid.cells_of(sources)[1:]
    every_depth = (np.arange(grid.shape[0])[:, None], *columns)
    slowness = np.median(1.0 / model.p_velocity[every_depth], axis=1)
    depths = grid.coordinates(0)
    down = np.concatenate([[0.0], np.cumsum(0.5 * (slowness[1:] + slowness[:-1]))])
    down *= grid.spacing[0]
    from_source, to_receiver = (
        down[-1] - float(np.interp(np.median(points), depths, down))
        for points in (sources[:, 0], listening)
    )
    wavelet = np.abs(np.atleast_2d(survey.wavelet)[0])
    return float(survey.axis.times(wavelet.size)[wavelet.argmax()] + from_source + to_receiver)


# Shares of traces whose arrivals are not alike, or whose cycles are skipped, above which this is
# reported; and the share of skipped traces in a band of offsets, if the band has at least the share
# LEAST_BAND of all traces.
UNLIKE, SKIPPED = 0.5, 0.2
SKIPPED_IN_BAND, LEAST_BAND = 0.4, 0.05
# Limits of the ratio of amplitudes, the noise before first arrivals, and their delay in periods.
LOUDEST, NOISE, LATE = 5.0, 0.3, 0.25
# Share of traces that are muted at their first arrival above which this is reported.
MUTED = 0.2
# Least number of first arrivals for conclusions about wavelet, times or signs.
FEW = 10
# Largest factor between observed amplitudes and those of the convention that explains them.
CONVENTION = 1.3

Warn = Callable[[str, str], Finding]
"""Returns a warning about the data: what was found, and the remedy."""

# The consequences and remedies, for inversions and for images, of arrivals that differ by more than
# half a period, and of different amplitudes.
SKIPPED_CYCLES = {
    False: (
        "least squares would fit the wrong cycle",
        "Start with lower frequencies, a better starting model, shorter data.offsets, "
        'or inversion.misfit = "transport", "adaptive" or "envelope".',
    ),
    True: (
        "reflectors would not be in the same place in the images of different shots",
        "Migrate in a model that explains the arrival times, such as the result of an inversion, "
        "or give shorter data.offsets.",
    ),
}
OTHER_AMPLITUDES = {
    False: (
        "the misfit would depend on amplitudes rather than times",
        'Scale the data or the wavelet, or give inversion.misfit = "normalized" or "correlation", '
        "which do not depend on amplitudes.",
    ),
    True: (
        "the reflectivities would be wrong by this factor",
        "Scale the data or the wavelet, or use only the positions of reflectors in the image.",
    ),
}


def check_data(compared: Sequence[DataComparison], where: str) -> list[DataComparison]:
    """Return comparisons of data with their findings; where: the file or the key of the data.

    Findings of an earlier comparison are not repeated.
    """
    reported: set[str] = set()
    checked = []
    for number, one in enumerate(compared):
        linear = one.stages[0].section.linear
        mutes = bool(one.stages[0].experiment.config.data.mute)
        knows = any(knows_amplitudes(stage.section.misfit.bind()) for stage in one.stages)
        found = [
            *check_comparison(one.comparison, where, number == 0, linear, knows, mutes),
            *_check_picks(one),
        ]
        new = [finding for finding in found if finding.remedy not in reported]
        reported.update(finding.remedy for finding in new)
        name = f", {one.label}" if one.label else ""
        findings = tuple(replace(finding, where=finding.where + name) for finding in new)
        checked.append(replace(one, findings=findings))
    return checked


def check_comparison(
    c: Comparison,
    where: str,
    begins: bool = True,
    linear: bool = False,
    knows_amplitudes: bool = True,
    mutes: bool = False,
) -> Iterator[Finding]:
    """Yield the problems with the data.

    where: the file or the key of the data; begins: True if the inversion of these data begins with
    the starting model; otherwise findings that may not apply to a better model, such as skipped
    cycles, are left out; linear: True for an image in the starting model, False for an inversion;
    knows_amplitudes: True if the misfit depends on amplitudes; mutes: True if the data are muted.
    """
    if c.is_silent:
        yield _fail(
            where,
            "no wave arrives at a receiver within the record: all simulated traces are zero",
            "Record longer, place receivers closer to the sources, or check data.mute.",
        )
    elif c.scan is not None and len(c.scan.silent) == c.scan.shots:
        yield _fail(
            where,
            "all observed traces in use are zero",
            "Write the file again from its source, or check data.offsets and data.mute.",
        )
    elif c.left < NOTHING:
        yield _fail(
            "data.band",
            f"only a share of {c.left:.0e} of the observed amplitude is in the band: nothing "
            "was recorded there",
            "Give a band in which the data have energy.",
        )
    elif c.is_same:
        yield _fail(
            "model.initial",
            "the starting model reproduces the observed data exactly: the misfit is zero, and "
            "there is nothing to invert",
            "Give another starting model, or other data.",
        )
    else:
        warn = partial(_warn, where)
        yield from _check_scan(c.scan, warn)
        yield from _check_mutes(c, warn)
        if begins or c.alike >= UNLIKE:
            yield from _check_amplitudes(c, warn, linear, knows_amplitudes)
        if begins:
            yield from _check_times(c, warn, linear, mutes)


def _check_mutes(c: Comparison, warn: Warn) -> Iterator[Finding]:
    if c.muted > MUTED * c.traces:
        yield warn(
            f"observed data are muted (zero) at {c.muted} of {c.traces} first arrivals of the "
            "starting model: these arrivals are unknown, and the misfit would fit the model to the "
            "zeros",
            "Give a data.mute that also mutes this part of the simulated traces, or use the data "
            "before they were muted.",
        )
    if c.compared < FEW:
        yield warn(
            f"only {c.compared} first arrivals can be compared: these are too few to judge times, "
            "signs and amplitudes, and an estimated wavelet would overfit them",
            "Give wider data.offsets and data.edit, or data with more traces that are neither dead "
            "nor muted.",
        )


def find_convention(c: Comparison) -> Convention | None:
    """Return the convention that explains the observed amplitudes, None if none does."""
    if c.alike < UNLIKE:
        return None
    for convention in c.conventions:
        off = c.factor / convention.factor
        if 1.0 / CONVENTION < off < CONVENTION and not 0.5 < abs(convention.factor) < 2.0:
            return convention
    return None


def _check_amplitudes(
    c: Comparison, warn: Warn, linear: bool, knows_amplitudes: bool
) -> Iterator[Finding]:
    convention = find_convention(c)
    if convention is not None:
        yield warn(
            f"observed amplitudes are {c.factor:.3g} times the simulated ones, close to the factor "
            f"{convention.factor:.4g} of {convention.names}, whose sources {convention.reason}",
            f"If that program simulated them, multiply the data by {1.0 / convention.factor:.6g} "
            f"(/data in the file), or the wavelet by {convention.factor:.6g} (/wavelet).",
        )
    elif knows_amplitudes and (c.ratio > LOUDEST or c.ratio < 1.0 / LOUDEST):
        consequence, remedy = OTHER_AMPLITUDES[linear]
        found = f"observed amplitudes are {c.ratio:.2g} times the simulated ones: {consequence}"
        yield warn(found, remedy)
    same, opposite = (", ".join(n for n, sign in c.signs.items() if sign == s) for s in (1, -1))
    if opposite and same:
        yield warn(
            f"observed arrivals of {opposite} have the opposite sign of the simulated ones, but "
            f"those of {same} have the same",
            f"Multiply the traces of {opposite} by -1 (/data in the file).",
        )
    elif opposite and convention is None:
        yield warn(
            "observed arrivals have the opposite sign of the simulated ones",
            "Multiply the data or the wavelet by -1.",
        )
    if c.noise > NOISE:
        yield warn(
            f"the noise before the first arrivals is {100 * c.noise:.0f} % of their amplitude",
            "Give a data.mute before them, filter the data, or use a misfit that is robust to "
            'outliers (inversion.misfit = "student").',
        )


def _check_times(c: Comparison, warn: Warn, linear: bool, mutes: bool) -> Iterator[Finding]:
    if c.compared and c.alike < UNLIKE:
        arrivals, causes = "first arrivals", "the traces are noise, are other data, or have"
        remedy = (
            "Look at the figure of hpcfwi check: compare geometry, time axis and wavelet, or give "
            "data.offsets."
        )
        if mutes:
            arrivals = "first arrivals after data.mute"
            causes = "the model does not explain these waves, or the data are noise or have"
            remedy = (
                "Repeat hpcfwi check without data.mute: direct waves show whether geometry, time "
                "axis and wavelet are right."
            )
        yield warn(
            f"the {arrivals} of the starting model are found in only {100 * c.alike:.0f} % of "
            f"the {'other ' * bool(c.muted)}traces: {causes} another wavelet",
            remedy,
        )
    if abs(c.lag) > LATE * c.period and c.alike >= UNLIKE:
        yield warn(
            f"at near offsets, observed arrivals are {say_delay(c.lag)} than simulated ones, whose "
            f"period is {1000 * c.period:.0f} ms",
            "Check the wavelet's delay against the time zero of the data, and the velocities near "
            "the surface.",
        )
    least = LEAST_BAND * sum(band.traces for band in c.bands)
    bands = [band for band in c.bands if band.traces >= least]
    worst = max(bands, key=lambda band: band.skipped, default=None)
    # The data of an image are muted up to the reflections, which the starting model does not have.
    if worst is None or (linear and mutes):
        return
    if c.skipped > SKIPPED or worst.skipped > SKIPPED_IN_BAND:
        consequence, remedy = SKIPPED_CYCLES[linear]
        yield _warn(
            "model.initial",
            f"arrivals are off by more than half a period in {100 * c.skipped:.0f} % of the "
            f"traces, {100 * worst.skipped:.0f} % at offsets of {worst.near:.0f} to "
            f"{worst.far:.0f} m: {consequence}",
            remedy,
        )


def _check_scan(scan: Scan | None, warn: Warn) -> Iterator[Finding]:
    if scan is None:
        return
    if scan.silent:
        yield warn(
            f"{len(scan.silent)} shots are silent, the first is shot {scan.silent[0]}",
            "Remove them, or give data.edit = {}, which leaves out dead traces.",
        )
    for faulty, what, effect in (
        (scan.broken, "not finite", "their shots are left out of the inversion"),
        (scan.spiky, "dominated by a spike of one sample", "spikes dominate the misfit"),
        (scan.loud, "more than 10 times as loud as their neighbours", "they dominate the misfit"),
        (scan.dead, "dead, but their neighbours are not", "the inversion would fit the zeros"),
    ):
        if faulty.count:
            yield warn(
                f"{faulty.count} of {scan.traces} traces are {what} ({_list(faulty)}): {effect}",
                "Give data.edit = {}, which leaves them out, or correct the data.",
            )


def _list(faulty: Tally) -> str:
    first = [f"shot {shot}, receiver {receiver}" for shot, receiver in faulty.first]
    return "; ".join([*first, *(["..."] if faulty.count > len(first) else [])])


def _check_picks(compared: DataComparison) -> Iterator[Finding]:
    picked, period = compared.picked, compared.comparison.period
    if picked is not None and abs(picked.lag) > period:
        yield _warn(
            f"data.mute.picks: {compared.stages[0].experiment.config.data.picks[0]}",
            f"picks are {say_delay(picked.lag)} than the first simulated arrivals (median), whose "
            f"period is {1000 * period:.0f} ms",
            "Check that they are in s after the shot and that their shots and receivers are those "
            "of the gathers file; check the wavelet's delay.",
        )
