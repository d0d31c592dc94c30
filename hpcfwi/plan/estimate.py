"""Estimates for a plan: the machine, the work of an epoch, memory, and the resolution of the grid.

The machine is the processors and memory of all ranks. The number of simulations of a stage follows
from the cost that its optimizer states. The memory of a rank consists of its waves with each
history, its traces and models, and arrays that the ranks of a host share. Each estimate has a
method `describe` that yields lines for terminals and batch logs.
"""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, inf
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.config.inversion import InversionSection
from hpcfwi.errors import InputError, say_bytes, say_count
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.layers import describe_layers
from hpcfwi.inversion.loop import find_optimizer_cost
from hpcfwi.inversion.memory import MemoryOverhead, estimate_given, estimate_optimizer, find_shares
from hpcfwi.inversion.objective import PRODUCT
from hpcfwi.inversion.shot_qc import choose_shots
from hpcfwi.inversion.stages import Choose, Draws
from hpcfwi.inversion.wavelets import Estimate
from hpcfwi.operators.simulator import MemoryPlan, MemoryShare, plan_memory
from hpcfwi.parallel.context import Context
from hpcfwi.registry import SAMPLINGS, find
from hpcfwi.system import resident_bytes
from hpcfwi.wave import history as histories
from hpcfwi.wave.equation import FirstOrderEquation
from hpcfwi.wave.history import Auto, History, NothingFits, Recompute, describe
from hpcfwi.wave.numerics import Discretization, phase_velocity_error
from hpcfwi.wave.simulation import Task

WIDTH = 100  # characters in a line
# Number of shots that are simulated first to find the scale of exact sums, of gradients in a stage
# and of products in an epoch
SCALING = 1


def _times(values: tuple[float, ...]) -> str:
    return " x ".join(f"{v:g}" for v in values)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


@dataclass(frozen=True)
class Machine:
    """The ranks of a launch; hosts, threads and shares: by rank.

    program: memory of a rank before any data and without the wave engine, bytes; ready: time from
    the start of the program to the experiment, s; compiling: time to prepare the engine, s; crew:
    number of ranks that each of these ranks leads, itself included, and of their hosts, None
    without crews.
    """

    hosts: tuple[str, ...]
    threads: tuple[int, ...]
    shares: tuple[MemoryShare, ...]
    device: torch.device
    program: int
    ready: float
    compiling: float = 0.0
    crew: tuple[int, int] | None = None

    @property
    def memory(self) -> int:
        """Bytes that the simulations of each rank may take, at least 1."""
        return max(1, min(share.memory for share in self.shares))


def describe_machine(experiment: Experiment, context: Context, ready: float) -> Machine:
    """Return the machine of the ranks before they load the wave engine; collective.

    ready: as in `Machine`.
    """
    shares, _ = find_shares(experiment, experiment.simulated_survey(), context, has_state=False)
    return Machine(
        hosts=tuple(context.all_gather(context.host)),
        threads=tuple(context.all_gather(context.threads)),
        shares=tuple(shares),
        device=context.device,
        program=max(context.all_gather(resident_bytes() - sum(estimate_given(experiment)))),
        ready=ready,
        crew=None if context.leader is None else (context.leader.size, context.leader.hosts),
    )


def seconds_since_start() -> float:
    """Return the seconds since this process began (on Linux; elsewhere its CPU time)."""
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return time.process_time()
    # The second field is a name in parentheses, which may contain spaces, so that count after it.
    began = int(stat.read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began


@dataclass(frozen=True)
class Simulations:
    """Numbers of simulated shots in all epochs.

    gradients: shots with a forward and a backward simulation; illuminated: the same with
    illuminations; products: shots in products with the Gauss-Newton matrix; forwards: forward
    simulations for estimates of the wavelet; per_shot: simulations that each shot counts as.
    """

    gradients: float
    illuminated: float
    products: float
    forwards: float
    per_shot: int

    @property
    def count(self) -> float:
        """The number of simulations, as metrics.jsonl counts them."""
        gradients = self.per_shot * (self.gradients + self.illuminated)
        return gradients + (self.per_shot + PRODUCT - 1) * self.products + self.forwards


@dataclass(frozen=True)
class Work:
    """The least and the likely work of a stage; ending: shots that are simulated after it."""

    optimizer: str
    least: Simulations
    likely: Simulations
    ending: int

    def describe(self, epochs: int) -> str:
        """Return the work in a line; epochs: number of epochs of the stage."""
        least, likely = self.least.count, self.likely.count
        each = f"{likely / epochs:.3g} shot{'s' * (likely != epochs)} per epoch"
        whole = f"{likely:.0f} in all"
        if least < likely:
            each = f"at least {least / epochs:.3g}, probably {each}"
            whole = f"at least {least:.0f} in all, probably {likely:.0f}"
        return (
            f"{self.optimizer} simulates {each}, {whole}; {self.ending} more for the data fit at "
            "the end"
        )


def count_work(experiment: Experiment) -> Work:
    """Count the work of all epochs of a stage, and of the fit at its end."""
    section = experiment.config.inversion
    least, likely = (_count(experiment, which) for which in (0, 1))
    ending = choose_shots(experiment.survey.n_shots).size
    return Work(section.optimizer.name, least, likely, ending)


def _count(experiment: Experiment, which: int) -> Simulations:
    """Count the work of all epochs; which: 0 for the least work, 1 for the likely work."""
    section, every = experiment.config.inversion, experiment.config.output.every
    n_shots = experiment.survey.n_shots
    find = cache(find_optimizer_cost(experiment))
    draws, estimates = Draws.of(section, n_shots), _count_estimates(section, n_shots)
    asked = section.precondition
    always = asked is not None and asked.illumination is not None
    # A line search cannot reuse the last result if the wavelet has changed.
    carries = not section.wavelet.bind()().takes_steps
    counts = dict.fromkeys(("gradients", "illuminated", "products", "forwards"), 0.0)
    counts["illuminated"] += SCALING
    before: object = None
    for place, estimated in enumerate(estimates):
        number = draws.number(place)
        shots = draws.sizes[number]
        is_whole = shots == n_shots and section.encoding == "none"
        sample = "all" if is_whole else number
        cost = find(shots)
        drawn = (place + 1) % every == 0 or place + 1 == section.epochs
        known = sample == before and cost.carries and carries and not estimated
        # The last result of a line search has illuminations only if its steps need them.
        if not known or (drawn and not always):
            counts["illuminated" if always or drawn else "gradients"] += shots
        counts["illuminated" if always else "gradients"] += cost.tries[which] * shots
        counts["products"] += cost.products[which] + (SCALING if cost.products[which] else 0)
        counts["forwards"] += estimated
        before = sample
    per_shot = experiment.make_simulator().simulations_per_shot
    return Simulations(**counts, per_shot=per_shot)


def _count_estimates(section: InversionSection, n_shots: int) -> Iterator[int]:
    """Yield the number of shots of each epoch that are simulated for estimates of wavelets."""
    wavelets, draws = section.wavelet.bind()(), Draws.of(section, n_shots)
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
    """The distribution of an epoch's work over the ranks of a machine.

    part: shots of an epoch on the rank that takes longest; at_once: number of shots that it
    simulates at a time; rounds: number of times; advice: a better batch or number of ranks;
    encoded: True if a shot has all sources; layers: the division of a shot between the ranks of a
    crew, each of which counts as one rank, None without crews.
    """

    machine: Machine
    shots: int
    batch: int
    epochs: int
    part: int
    at_once: int
    rounds: int
    advice: str
    encoded: bool
    layers: str | None

    @property
    def kind(self) -> str:
        """The name of what counts as one rank."""
        return "rank" if self.layers is None else "crew"

    def describe(self) -> Iterator[str]:
        if self.layers is not None:
            yield from textwrap.wrap(self.layers, WIDTH - 2)
        counts, hosts = sorted(set(self.machine.threads)), self.machine.hosts
        yield (
            f"{say_count(len(hosts), self.kind)} on {say_count(len(set(hosts)), 'host')}, "
            f"{'/'.join(map(str, counts))} thread{'s' * (counts[-1] > 1)} each"
        )
        shots = f"{self.batch} of {self.shots} shots"
        if self.encoded:
            shots = f"{say_count(self.batch, 'encoded shot')} of all {self.shots} sources"
        yield (
            f"{self.epochs} epochs of {shots}: a {self.kind} has up to {self.part}, "
            f"{self.at_once} at a time in {say_count(self.rounds, 'round')}"
        )
        yield from textwrap.wrap(self.advice, WIDTH - 2)


def share_work(experiment: Experiment, machine: Machine) -> Sharing:
    """Divide the shots of an epoch equally between the ranks."""
    section, shots = experiment.config.inversion, experiment.survey.n_shots
    batch = section.largest_batch(shots)
    parts = [len(part) for part in np.array_split(np.arange(batch), len(machine.hosts))]
    most_at_once = [share.most_at_once for share in machine.shares]
    rounds, rank = max(
        (ceil(part / most), -k)
        for k, (part, most) in enumerate(zip(parts, most_at_once, strict=True))
    )
    encoded, crew, layers = section.encoding != "none", machine.crew, None
    if crew is not None:
        layers = describe_layers(experiment, crew[0], machine.threads[0], crew[1], machine.device)
    if encoded:
        sharers = "threads of a rank" if crew is None else "ranks of a crew"
        advice = f"The {sharers} share an encoded shot."
    elif crew is not None:
        advice = f"More crews shorten an epoch, up to {batch}."
    else:
        advice = _advise(batch, shots, sum(machine.threads))
    return Sharing(
        machine=machine,
        shots=shots,
        batch=batch,
        epochs=section.epochs,
        part=parts[-rank],
        at_once=min(parts[-rank], most_at_once[-rank]),
        rounds=rounds,
        advice=advice,
        encoded=encoded,
        layers=layers,
    )


def _advise(batch: int, shots: int, threads: int) -> str:
    left = batch % threads
    if left == 0:
        return (
            "The batch uses all threads in every round; more ranks or threads shorten an epoch, up "
            f"to {batch}."
        )
    more, less = batch - left + threads, batch - left
    better = [n for n in (less, more) if 0 < n <= shots]
    if not better:
        return f"The survey's {shots} shots cannot use {threads} threads: start fewer ranks."
    return (
        f"The last round leaves {threads - left} of {threads} threads idle: a batch of "
        f"{' or '.join(map(str, better))} would use them."
    )


@dataclass(frozen=True)
class Memory:
    """The memory of rank 0, which needs most, and of its host, in bytes.

    engine: name of the engine; counts: numbers of shots at once for which `choices` have sizes;
    choices: names of histories with the memory for each count; chosen: the history that a run uses,
    None if none fits; why: the reason; at_once: number of shots that the rank simulates at a time;
    waves: waves of these simulations; arrays: models, gradients and their sums, and traces that are
    compared; overhead: that of rank 0; otherwise: the optimizer's state with the other value of
    `sharded`, None if there is no choice; program: the program with the engine and Matplotlib;
    ranks: number of ranks of the host.
    """

    engine: str
    counts: tuple[int, ...]
    choices: tuple[tuple[str, tuple[int, ...]], ...]
    chosen: str | None
    why: str
    at_once: int
    waves: int
    arrays: int
    overhead: MemoryOverhead
    otherwise: int | None
    program: int
    ranks: int

    @property
    def beyond(self) -> int:
        """The bytes of a run on this rank alone, in addition to the program."""
        kept = self.overhead.traces + self.overhead.remembered + self.overhead.records
        return self.waves + self.arrays + kept

    @property
    def together(self) -> int:
        """The bytes of all ranks of the host in addition to their programs, with equal shots."""
        records = self.overhead.records
        return self.overhead.host + self.ranks * (self.beyond - records) + records

    def describe(self) -> Iterator[str]:
        overhead = self.overhead
        heads = [say_count(n, "shot") for n in self.counts]
        width = max(len(name) for name, _ in self.choices) + 2
        yield "engine " + self.engine
        yield "history".ljust(width) + "".join(f"{head:>12}" for head in heads) + "   at once"
        for name, sizes in self.choices:
            cells = "".join(f"{say_bytes(n):>12}" for n in sizes)
            yield name.ljust(width) + cells + ("   <-" if name == self.chosen else "")
        yield from textwrap.wrap(self.why, WIDTH - 2)
        yield from textwrap.wrap(
            f"{say_count(self.at_once, 'shot')} {say_bytes(self.waves)}, observed "
            f"traces {say_bytes(overhead.traces)}, models, gradients and sums "
            f"{say_bytes(self.arrays)}, the optimizer's state {say_bytes(overhead.remembered)}, "
            f"rank 0's figures and files {say_bytes(overhead.records)}: "
            f"{say_bytes(self.beyond)} besides {say_bytes(self.program)} for the program itself",
            WIDTH - 2,
        )
        if self.ranks > 1:
            yield from textwrap.wrap(
                f"the {self.ranks} ranks of a host share one copy of the models and the survey, "
                f"{say_bytes(overhead.host)}, and two while they are prepared; in all a host "
                f"takes {say_bytes(self.together)} besides the programs",
                WIDTH - 2,
            )
        if self.otherwise is not None:
            word = "sharded" if self.otherwise < overhead.remembered else "not sharded"
            yield f"{word}, this state would take {say_bytes(self.otherwise)} on each rank"


def estimate_memory(
    experiment: Experiment, task: Task, overhead: MemoryOverhead, sharing: Sharing
) -> Memory:
    """Estimate the memory of a run; task: the largest shot; overhead: that of rank 0."""
    machine, optimizer = sharing.machine, experiment.config.inversion.optimizer
    otherwise = None
    if optimizer.takes("shards") and len(machine.hosts) > 1:
        whole, shards = estimate_optimizer(experiment, len(machine.hosts))
        otherwise = whole if optimizer.sharded else shards
    fit, why = _fit(experiment, task, sharing)
    at_once = sharing.at_once if fit is None else min(sharing.at_once, fit.at_once)
    counts = tuple(sorted({1, at_once, *(2**k for k in range(1, 4) if 2**k <= sharing.batch)}))
    together = {count: task.repeat(count) for count in counts}
    options = [_fitted(history, together[at_once], machine.memory) for history in _offered(task)]
    shared = overhead.given + overhead.stage + overhead.state + overhead.update
    return Memory(
        engine=task.engine.NAME,
        counts=counts,
        choices=tuple(
            (describe(history), tuple(together[n].footprint(history) for n in counts))
            for history in options
        ),
        chosen=None if fit is None else describe(fit.history),
        why=why,
        at_once=at_once,
        waves=0 if fit is None else together[at_once].footprint(fit.history),
        arrays=shared + overhead.each_shot * at_once,
        overhead=overhead,
        otherwise=otherwise,
        program=machine.program + overhead.engine + overhead.figures,
        ranks=machine.hosts.count(machine.hosts[0]),
    )


def _fit(experiment: Experiment, task: Task, sharing: Sharing) -> tuple[MemoryPlan | None, str]:
    """Return the history and the number of shots at once, None if nothing fits, and the reason."""
    reproducible = experiment.config.inversion.reproducible
    try:
        fit = plan_memory(task, sharing.machine.shares, reproducible)
    except InputError as error:
        return None, error.problem
    reason, chosen, asked = "asked for", fit.history, task.asked
    if isinstance(asked, Auto):
        fastest = next(histories.candidates(asked, task.engine.HISTORIES))
        reason = "the fastest" if chosen == fastest else "the fastest of those that fit"
    shots = min(sharing.at_once, fit.at_once)
    return fit, (
        f"{describe(chosen)}: {reason}; {say_count(shots, 'shot')} at once: "
        f"{say_bytes(task.repeat(shots).footprint(chosen))} of "
        f"{say_bytes(sharing.machine.memory)} available."
    )


def _offered(task: Task) -> list[History]:
    """Return all histories of the engine, the fastest first, including that of the input."""
    asked, kinds = task.asked, task.engine.HISTORIES
    if isinstance(asked, Auto):
        return list(histories.candidates(replace(asked, kind=None), kinds))
    offered = list(histories.candidates(Auto(asked.interval, asked.frequency), kinds))
    return offered if asked in offered else [asked, *offered]


def _fitted(history: History, task: Task, memory: int) -> History:
    """Return a recomputing history with as many states as fit; return others unchanged."""
    if not isinstance(history, Recompute):
        return history
    kind = Auto(history.interval, history.frequency, kind="recompute", memory=memory)
    try:
        return replace(task, asked=kind).choose_history()
    except NothingFits:
        return history


def describe_grid(experiment: Experiment, task: Task) -> Iterator[str]:
    """Yield the grid in space and time, and its dispersion, in lines; task: that of a shot."""
    grid, survey, problem = experiment.initial.grid, experiment.survey, task.problem
    scheme = discretize(experiment, problem.spacing, problem.dt)
    slowest = scheme.velocity
    fastest = float(experiment.equation.fastest(experiment.initial.arrays).max())
    # The longest path of the slowest waves is limited by the model or by the record.
    diagonal = float(np.linalg.norm(np.asarray(grid.last) - np.asarray(grid.origin)))
    path = min(diagonal, slowest * survey.n_samples * survey.dt)
    yield (
        f"{_times(grid.shape)} points, {_times(grid.spacing)} m apart; "
        f"{_times(problem.padded_shape)} with the boundary"
    )
    yield f"velocities {slowest:.0f} to {fastest:.0f} m/s"
    steps = "no substeps" if task.substeps == 1 else f"{task.substeps} substeps"
    courant = max(fastest, problem.max_velocity) * problem.dt / min(problem.spacing)
    yield (
        f"{survey.n_samples} samples of {_ms(survey.dt)}: {steps} (up to {_ms(task.longest)} needs "
        f"none); Courant number {courant:.2f}"
    )
    if experiment.band is not None and experiment.band.lead:
        yield (
            f"in this band, records begin {_ms(-survey.start)} before the shot, and the last "
            f"{_ms(experiment.band.lead)} of the observed data are not compared"
        )
    yield "at the slowest velocity:"
    for name, frequency in (
        ("peak", survey.spectrum.peak),
        ("98 % of the energy up to", survey.spectrum.frequency_below(0.98)),
        ("highest (1e-4 of the peak)", survey.spectrum.highest()),
    ):
        error = phase_velocity_error(scheme, frequency)
        points = slowest / (frequency * max(problem.spacing)) if frequency else inf
        delay = path / slowest * (1.0 / (1.0 + error) - 1.0) if error > -1.0 else inf
        yield (
            f"{name + ' ':.<27} {frequency:4.3g} Hz: {points:4.1f} points per wavelength, "
            + (
                "too high for the grid"
                if error == -inf
                else f"phase velocity {100 * error:+.2g} %, up to {_ms(abs(delay))} "
                f"{'late' if delay >= 0 else 'early'} after {path / 1000:.3g} km"
            )
        )


def find_slowest(experiment: Experiment) -> list[NDArray[np.float64]]:
    """Return the slowest speed in each cell of the initial model and of the true one, m/s."""
    models, slowest = [experiment.initial, experiment.true], experiment.equation.slowest
    return [np.asarray(slowest(model.arrays)) for model in models if model is not None]


def discretize(experiment: Experiment, spacing: tuple[float, ...], dt: float) -> Discretization:
    """Return the scheme for the slowest waves; spacing: of each axis, m; dt: step, s."""
    velocity = min(float(speed.min()) for speed in find_slowest(experiment))
    staggered = isinstance(experiment.equation, FirstOrderEquation)
    order = experiment.config.wave.order
    return Discretization(order, spacing, dt, velocity, staggered)
