"""Estimates for a plan: the machine, the work of an epoch, memory, and the resolution of the grid.

The ranks of a launch have processors and memory. What a stage simulates is counted from what its
optimizer says that an epoch asks for. Memory is that of a rank's waves with each history, of its
traces and its models, and what it shares with the others of its host.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from math import ceil, inf
from pathlib import Path
from typing import cast

import numpy as np
import torch

from hpcfwi.config.inversion import InversionSection
from hpcfwi.errors import InputError, say_bytes
from hpcfwi.inversion.draws import Choose, Draws
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.loop import find_price
from hpcfwi.inversion.memory import Upkeep, find_shares, weigh_given, weigh_optimizer
from hpcfwi.inversion.objective import PRODUCT
from hpcfwi.inversion.shot_qc import SHOTS, choose_shots
from hpcfwi.inversion.wavelets import Estimate
from hpcfwi.operators.batching import Fit, Share, fit_shots
from hpcfwi.parallel.context import Context
from hpcfwi.registry import SAMPLINGS, find
from hpcfwi.survey import TimeAxis
from hpcfwi.system import resident_bytes
from hpcfwi.wave import history as histories
from hpcfwi.wave import numerics
from hpcfwi.wave.history import Auto, History, NothingFits, Recompute, describe
from hpcfwi.wave.numerics import phase_velocity_error
from hpcfwi.wave.simulation import Task, wave_speed


@dataclass(frozen=True)
class Machine:
    """The ranks of a launch; hosts, threads and shares in their order.

    program: bytes that a rank has before any data; ready: seconds from the start to the experiment;
    compiling: to prepare the engine.
    """

    hosts: tuple[str, ...]
    threads: tuple[int, ...]
    shares: tuple[Share, ...]
    device: torch.device
    program: int
    ready: float
    compiling: float

    @property
    def memory(self) -> int:
        """Bytes that the simulations of each rank may take; at least one, as for a limit."""
        return max(1, min(share.memory for share in self.shares))


def describe_machine(
    experiment: Experiment, context: Context, ready: float, compiling: float = 0.0
) -> Machine:
    """Return what the ranks have now; collective. The times are those of a `Machine`."""
    shares, _ = find_shares(experiment, experiment.simulated(), context, has_state=False)
    return Machine(
        tuple(context.all_gather(context.host)),
        tuple(context.all_gather(context.threads)),
        tuple(shares),
        context.device,
        max(context.all_gather(resident_bytes() - sum(weigh_given(experiment)))),
        ready,
        compiling,
    )


def seconds_since_start() -> float:
    """Since this process began (Linux; elsewhere since its first use of the processor)."""
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return time.process_time()
    # The second field, a name in parentheses, may itself hold spaces: count after it.
    began = int(stat.read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began


@dataclass(frozen=True)
class Simulations:
    """Shots of all epochs together.

    gradients: simulated forwards and backwards; illuminated: these with illuminations; products: of
    those; forwards: for estimates of the wavelet.
    """

    gradients: float
    illuminated: float
    products: float
    forwards: float

    @property
    def count(self) -> float:
        """Return the number of simulations, as metrics.jsonl counts them."""
        return self.gradients + self.illuminated + PRODUCT * self.products + self.forwards


@dataclass(frozen=True)
class Work:
    """The work of a stage, at least and as a rule; ending: shots that are simulated after it."""

    optimizer: str
    least: Simulations
    likely: Simulations
    ending: int


def count_work(experiment: Experiment) -> Work:
    """Count the work of all epochs of a stage, and of the fit at its end."""
    section = experiment.config.inversion
    least, likely = (_count(experiment, which) for which in (0, 1))
    ending = choose_shots(experiment.survey.n_shots, SHOTS).size
    return Work(section.optimizer.name, least, likely, ending)


def _count(experiment: Experiment, which: int) -> Simulations:
    """which: of an optimiser's two numbers."""
    section, every = experiment.config.inversion, experiment.config.output.every
    n_shots = experiment.survey.n_shots
    find = cache(find_price(experiment))
    draws, estimates = Draws.of(section, n_shots), _count_estimates(section, n_shots)
    asked = section.precondition
    always = asked is not None and asked.illumination is not None
    # Of another wavelet nothing is known
    carries = not section.wavelet.make()().takes_steps
    counts = defaultdict[str, float](float)
    before: object = None
    for place, estimated in enumerate(estimates):
        number = draws.number(place)
        shots = draws.sizes[number]
        is_whole = shots == n_shots and section.encoding == "none"
        sample = "all" if is_whole else number
        price = find(shots)
        drawn = (place + 1) % every == 0 or place + 1 == section.epochs
        known = sample == before and price.carries and carries and not estimated
        # What a search ends with has illuminations where steps need them
        if not known or (drawn and not always):
            counts["illuminated" if always or drawn else "gradients"] += shots
        counts["illuminated" if always else "gradients"] += price.tries[which] * shots
        counts["products"] += price.products[which]
        counts["forwards"] += estimated
        before = sample
    return Simulations(**{field.name: float(counts[field.name]) for field in fields(Simulations)})


def _count_estimates(section: InversionSection, n_shots: int) -> Iterator[int]:
    """Shots of each epoch that are simulated for what sources emit."""
    wavelets, draws = section.wavelet.make()(), Draws.of(section, n_shots)
    draw = cast(Choose, find(SAMPLINGS[section.sampling]))
    found = np.zeros(n_shots, dtype=np.int64)
    for place in range(section.epochs):
        number, epoch = draws.number(place), place + 1
        if isinstance(wavelets, Estimate) and wavelets.per == "shot":
            shots = draw(draws, number)
            due = shots[wavelets.find_due(epoch, found[shots])]
            found[due] = epoch
            yield due.size
        else:
            yield draws.sizes[number] if wavelets.is_due(place) else 0


@dataclass(frozen=True)
class Sharing:
    """The distribution of an epoch's work over ranks.

    threads: of each rank; part: shots of an epoch on the rank with most; at_once: number of shots
    at a time, rounds: number of times; advice: a better batch or number of ranks; encoded: True if
    a shot has all sources.
    """

    shots: int
    batch: int
    epochs: int
    ranks: int
    hosts: int
    threads: tuple[int, ...]
    part: int
    at_once: int
    rounds: int
    advice: str
    encoded: bool = False


def share_work(experiment: Experiment, machine: Machine) -> Sharing:
    """Return the sharing of the shots of an epoch in equal parts."""
    section, ranks = experiment.config.inversion, len(machine.threads)
    shots = experiment.survey.n_shots
    batch = section.largest_batch(shots)
    parts = [len(part) for part in np.array_split(np.arange(batch), ranks)]
    slots = [share.slots for share in machine.shares]
    rounds, rank = max(
        (ceil(part / most), -k) for k, (part, most) in enumerate(zip(parts, slots, strict=True))
    )
    return Sharing(
        shots,
        batch,
        section.epochs,
        ranks,
        len(set(machine.hosts)),
        machine.threads,
        parts[-rank],
        min(parts[-rank], slots[-rank]),
        rounds,
        "The threads of a rank share an encoded shot."
        if section.encoding != "none"
        else _advise(batch, shots, sum(machine.threads)),
        section.encoding != "none",
    )


def _advise(batch: int, shots: int, threads: int) -> str:
    left = batch % threads
    if left == 0:
        return (
            f"The batch fills all {threads} threads in every round; more ranks or threads shorten "
            f"an epoch up to {batch}."
        )
    more, less = batch - left + threads, batch - left
    better = [n for n in (less, more) if 0 < n <= shots]
    if not better:
        return f"The survey's {shots} shots cannot fill {threads} threads: give fewer ranks."
    return (
        f"The last round leaves {threads - left} of {threads} threads idle: a batch of "
        f"{' or '.join(map(str, better))} would fill them."
    )


@dataclass(frozen=True)
class Choice:
    """A history: its name, and bytes of a rank for each number of shots at once."""

    name: str
    bytes: tuple[int, ...]


@dataclass(frozen=True)
class Memory:
    """The memory of rank 0, which takes most, and of its host, in bytes.

    engine: its name; counts: shots at once, of the choices; chosen: the history of a run, None if
    nothing fits; why: the reason; waves: of the simulations; data: observed traces; arrays: models,
    gradients and their sums, and traces that are compared; remembered: state of the optimizer;
    otherwise: that with the other value of `sharded`, None if there is no other; records: figures
    and files of this rank alone; program: the program with the engine and Matplotlib; once: models
    and survey, once for all ranks of the host; ranks: number of these.
    """

    engine: str
    counts: tuple[int, ...]
    choices: tuple[Choice, ...]
    chosen: str | None
    why: str
    waves: int
    data: int
    arrays: int
    remembered: int
    otherwise: int | None
    records: int
    program: int
    once: int
    ranks: int

    @property
    def beyond(self) -> int:
        """The bytes that a run adds to the program, on this rank alone."""
        return self.waves + self.data + self.arrays + self.remembered + self.records

    @property
    def together(self) -> int:
        """The bytes of all ranks of the host beyond their programs, with equal shots."""
        return self.once + self.ranks * (self.beyond - self.records) + self.records


def weigh_memory(
    experiment: Experiment, task: Task, upkeep: Upkeep, sharing: Sharing, machine: Machine
) -> Memory:
    """Estimate the memory of a run; task: the largest shot; upkeep: of rank 0."""
    fit, why = _fit(experiment, task, sharing, machine)
    at_once = sharing.at_once if fit is None else min(sharing.at_once, fit.at_once)
    counts = tuple(sorted({1, at_once, *(2**k for k in range(1, 4) if 2**k <= sharing.batch)}))
    together = {count: task.repeat(count) for count in counts}
    options = [_fitted(history, together[at_once], machine.memory) for history in _offered(task)]
    return Memory(
        task.engine.NAME,
        counts,
        tuple(
            Choice(describe(history), tuple(together[n].footprint(history) for n in counts))
            for history in options
        ),
        None if fit is None else describe(fit.history),
        why,
        0 if fit is None else together[at_once].footprint(fit.history),
        upkeep.traces,
        upkeep.given + upkeep.stage + upkeep.state + upkeep.update + upkeep.each_shot * at_once,
        upkeep.remembered,
        _weigh_otherwise(experiment, sharing),
        upkeep.records,
        machine.program + upkeep.engine + upkeep.figures,
        upkeep.host,
        machine.hosts.count(machine.hosts[0]),
    )


def _weigh_otherwise(experiment: Experiment, sharing: Sharing) -> int | None:
    """Return the bytes of the optimizer's state on a rank with the other `sharded`."""
    optimizer = experiment.config.inversion.optimizer
    if not optimizer.takes("slabs") or sharing.ranks == 1:
        return None
    whole, slabs = weigh_optimizer(experiment, sharing.ranks)
    return whole if optimizer.sharded else slabs


def _fit(
    experiment: Experiment, task: Task, sharing: Sharing, machine: Machine
) -> tuple[Fit | None, str]:
    """Return how a run simulates its shots, None if it cannot, and the reason."""
    try:
        fit = fit_shots(task, machine.shares, experiment.config.inversion.reproducible)
    except InputError as error:
        return None, error.problem
    reason, chosen, asked = "asked for", fit.history, task.asked
    if isinstance(asked, Auto):
        fastest = next(histories.candidates(asked, task.engine.HISTORIES))
        reason = "the fastest" if chosen == fastest else "the fastest of those that fit"
    shots = min(sharing.at_once, fit.at_once)
    return fit, (
        f"{describe(chosen)}: {reason}; {shots} shot{'s' * (shots > 1)} at once: "
        f"{say_bytes(task.repeat(shots).footprint(chosen))} of {say_bytes(machine.memory)} at hand."
    )


def _offered(task: Task) -> list[History]:
    """Return all histories of the engine, the fastest first, and the one of the input."""
    asked, kinds = task.asked, task.engine.HISTORIES
    if isinstance(asked, Auto):
        return list(histories.candidates(replace(asked, kind=None), kinds))
    offered = list(histories.candidates(Auto(asked.interval, asked.frequency), kinds))
    return offered if asked in offered else [asked, *offered]


def _fitted(history: History, task: Task, memory: int) -> History:
    """Recomputation with as many states as fit."""
    if not isinstance(history, Recompute):
        return history
    kind = Auto(history.interval, history.frequency, kind="recompute", memory=memory)
    try:
        return replace(task, asked=kind).choose_history()
    except NothingFits:
        return history


@dataclass(frozen=True)
class Band:
    """The numerical dispersion of one frequency at the slowest velocity.

    frequency: Hz; points: per wavelength; error: of the phase velocity, relative; delay: on the
    longest path, s.
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
    """Return the resolution of an experiment, of which the task is one shot."""
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
    """Return the longest path of the slowest waves, m: across the model, or of the record."""
    grid, survey = experiment.initial.grid, experiment.survey
    diagonal = float(np.linalg.norm(np.asarray(grid.last) - np.asarray(grid.origin)))
    return min(diagonal, slowest_velocity(experiment) * survey.n_samples * survey.dt)


def slowest_velocity(experiment: Experiment) -> float:
    """Return the slowest velocity of the initial model and of the true one, if known, m/s."""
    models = [experiment.initial, experiment.true]
    return min(float(wave_speed(model.arrays).min()) for model in models if model is not None)
