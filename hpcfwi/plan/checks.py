"""Checks of a plan: what would make a run fail, or gradients zero or poor, with remedies.

Each check is a function of an experiment, or of a part of its plan, that returns its findings.
`config` and `inversion.preparation` refuse what cannot be simulated at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hpcfwi.inversion.experiment import Experiment
from hpcfwi.plan.estimate import Memory, Sharing, slowest_velocity
from hpcfwi.wave.numerics import carried_frequency
from hpcfwi.wave.simulation import wave_speed

# A wave whose speed on the grid is further off than this is not carried.
VELOCITY_ERROR = 0.02
# Of the wavelet's energy, what may lie at frequencies that the grid does not carry.
LOST_ENERGY = 0.02
# Of the wavelet's peak, what it may begin or end with.
CUT = 1e-2


Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """Something that the user should know before a run.

    severity: an "error" makes a run fail or its result worthless, a "warning" may, a "note" costs
    at most time; where: the key; found: what was found and what it does, without a full stop;
    remedy: what to do about it, as a whole sentence.
    """

    severity: Severity
    where: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity.upper()}: {self.where}: {self.found}. {self.remedy}"


def check_experiment(experiment: Experiment, dt: float) -> list[Finding]:
    """All findings that follow from models, survey and scheme; dt: of the simulation's step, s."""
    return [
        *check_frequencies(experiment, dt),
        *check_wavelet(experiment),
        *check_water(experiment),
        *check_duration(experiment),
    ]


def check_frequencies(experiment: Experiment, dt: float) -> list[Finding]:
    """Does the grid carry the frequencies of the wavelet, at the slowest velocity?"""
    grid, survey = experiment.initial.grid, experiment.survey
    slowest = slowest_velocity(experiment)
    order = experiment.config.wave.order
    carried = carried_frequency(order, grid.spacing, dt, slowest, VELOCITY_ERROR)
    lost = survey.spectrum.energy_above(carried)
    if lost <= LOST_ENERGY:
        return []
    peak = survey.spectrum.peak
    h = max(grid.spacing)
    # Frequencies scale with the grid: what is lost at spacing h is carried at a smaller one.
    needed = h * carried / survey.spectrum.frequency_below(1.0 - LOST_ENERGY)
    return [
        Finding(
            "error" if peak > carried else "warning",
            "model.spacing",
            f"{h:g} m carry waves of {slowest:.0f} m/s up to {carried:.3g} Hz, "
            f"{slowest / carried / h:.1f} points a wavelength; {100 * lost:.0f} % of the wavelet's "
            "energy lie above and travel at wrong speeds",
            f"Give a spacing of {_rounded_down(needed):g} m or less, or a wavelet of lower "
            "frequency.",
        )
    ]


def check_wavelet(experiment: Experiment) -> list[Finding]:
    """Is the wavelet cut off at the beginning or the end of the record?"""
    wavelet = np.abs(np.atleast_2d(experiment.survey.wavelet))
    largest = wavelet.max(axis=1)
    findings = []
    for end, sample, remedy in (
        ("begins", wavelet[:, 0], "Give a longer survey.wavelet.delay (1.5 / frequency or more)."),
        ("ends", wavelet[:, -1], "Give a longer record, or a shorter delay."),
    ):
        share = float((sample / largest).max())
        if share > CUT:
            findings.append(
                Finding(
                    "warning",
                    experiment.config.survey.file or "survey.wavelet",
                    f"the wavelet {end} at {100 * share:.0f} % of its peak: it is cut off, and the "
                    "step makes waves of all frequencies",
                    remedy,
                )
            )
    return findings


def check_water(experiment: Experiment) -> list[Finding]:
    """Do all sources, or all receivers, lie in cells that the inversion keeps?"""
    grid, survey = experiment.initial.grid, experiment.survey

    def are_kept(points: NDArray[np.float64]) -> bool:
        return bool(experiment.fixed[grid.cells_of(points)].all())

    kept = []
    if are_kept(survey.sources):
        kept.append("sources")
    # To the first part of which some are not
    if all(map(are_kept, survey.listeners_by_parts())):
        kept.append("receivers")
    if not kept:
        return []
    fixed, known = experiment.config.inversion.fixed, experiment.known
    if fixed is None:
        key, remedy = "fixed_above", "a smaller depth"
    elif fixed.file in known.masks:
        key, remedy = "fixed", "0 for cells that may change"
    else:
        key, remedy = "fixed", "a lower velocity" if fixed.file is None else "a higher surface"
    where = ""
    if fixed is None or fixed.file not in known.masks:
        floor = known.floor(experiment.config.inversion, grid)
        low, high = floor.min(), floor.max()
        where = " down to " + (f"{low:g} m" if low == high else f"{low:.4g} to {high:.4g} m")
    return [
        Finding(
            "note",
            f"inversion.{key}",
            f"all {' and '.join(kept)} lie in the cells that are kept{where}: the gradient is set "
            "to zero there, and the model changes only elsewhere",
            f"Right where these cells are water of known velocity; else give {remedy}.",
        )
    ]


def check_duration(experiment: Experiment) -> list[Finding]:
    """Is there time to go down to the model's floor and back?"""
    survey = experiment.survey
    last = float(survey.axis.times(survey.n_samples)[-1])
    needed = time_to_floor_and_back(experiment)
    if last >= needed:
        return []
    return [
        Finding(
            "warning",
            experiment.config.survey.file or "survey.duration",
            f"the record ends at {last:.3g} s, but a wave takes until {needed:.3g} s down to the "
            "model's floor and back: the deepest cells get no gradient from reflections",
            f"Record {needed:.3g} s or longer, or give a shallower model.",
        )
    ]


def check_room(memory: Memory) -> list[Finding]:
    """Is there enough memory for the waves, beside all that a rank holds?"""
    if memory.chosen is not None:
        return []
    return [
        Finding(
            "error",
            "wave.history",
            memory.why,
            "Start fewer ranks or threads (OMP_NUM_THREADS), give a coarser model.spacing, or "
            "a machine with more memory.",
        )
    ]


def check_steps(experiment: Experiment, substeps: int) -> list[Finding]:
    """Is a sample of the data a step of the simulation?"""
    # Samples of a band are as far apart as it allows
    if substeps == 1 or experiment.band is not None:
        return []
    longest = experiment.survey.dt / substeps
    return [
        Finding(
            "note",
            experiment.config.survey.file or "survey.dt",
            f"{1000 * experiment.survey.dt:g} ms are too long for a stable scheme: each is divided "
            f"into {substeps} substeps, which take {substeps} times as long",
            f"Steps of {1000 * longest:.3g} ms need none but cost the same; a larger "
            "model.spacing, or inversion.bounds with a lower velocity, costs less.",
        )
    ]


def check_sharing(sharing: Sharing) -> list[Finding]:
    """Are there shots for all ranks and threads?"""
    threads = sum(sharing.threads)
    if sharing.batch < sharing.ranks:
        idle = f"{sharing.ranks - sharing.batch} of them are idle"
        if sharing.encoded:
            # More of them cost more: it is ranks that are idle, not shots that are missing
            shots, ranks = (
                f"{sharing.batch} {w}{'s' * (sharing.batch > 1)}" for w in ("encoded shot", "rank")
            )
            return [
                Finding(
                    "note",
                    "inversion.batch",
                    f"{shots} of an epoch cannot be shared by {sharing.ranks} ranks: {idle}",
                    f"Start {ranks} with all cores: threads share a shot.",
                )
            ]
        return [
            Finding(
                "warning",
                "inversion.batch",
                f"a batch of {sharing.batch} cannot be shared by {sharing.ranks} ranks: {idle}",
                f"Give a batch of {sharing.ranks} or more, or start as many ranks as it has shots.",
            )
        ]
    if sharing.batch < threads and not sharing.encoded:
        return [
            Finding(
                "note",
                "inversion.batch",
                f"a batch of {sharing.batch} is less than the {threads} threads of all ranks",
                f"Give a batch of {threads}, with which each thread has a shot, or fewer cores.",
            )
        ]
    return []


def time_to_floor_and_back(experiment: Experiment) -> float:
    """Return the arrival time (s) of the wavelet's peak straight down and back up.

    From the median source down its column to the floor, and up to the depth of the median
    receiver, in the initial model.
    """
    model, survey = experiment.initial, experiment.survey
    grid = model.grid
    sources = survey.sources
    listening = np.concatenate([part[:, 0] for part in survey.listeners_by_parts()])
    columns = grid.cells_of(sources)[1:]
    every_depth = (np.arange(grid.shape[0])[:, None], *columns)
    slowness = np.median(1.0 / wave_speed(model.arrays)[every_depth], axis=1)
    depths = grid.coordinates(0)
    down = np.concatenate([[0.0], np.cumsum(0.5 * (slowness[1:] + slowness[:-1]))])
    down *= grid.spacing[0]
    from_source, to_receiver = (
        down[-1] - float(np.interp(np.median(points), depths, down))
        for points in (sources[:, 0], listening)
    )
    wavelet = np.abs(np.atleast_2d(survey.wavelet)[0])
    return float(survey.axis.times(wavelet.size)[wavelet.argmax()] + from_source + to_receiver)


def _rounded_down(length: float) -> float:
    """Round down to two digits, which read well and still suffice."""
    unit = 10.0 ** (np.floor(np.log10(length)) - 1.0)
    return float(np.floor(length / unit) * unit)
