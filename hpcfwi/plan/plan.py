"""A plan: the speed of this machine, and the time and memory of a run on it.

Shots of the survey are simulated as in an epoch, on all ranks at once, so that the measurement
includes the competition between ranks. If whole records would take too long, their beginnings are
measured and extrapolated with the number of cell updates, because an engine that computes only near
the wave is faster at first. A plan is a pure function of estimates and measured times; its text
begins with the findings.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil, log2, prod
from statistics import median
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import SEVERITIES, Finding, InversionFailure, say_bytes, say_count
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.loop import EpochEvaluator
from hpcfwi.inversion.memory import MemoryOverhead, choose_history_and_chunk
from hpcfwi.inversion.objective import Objective
from hpcfwi.inversion.stages import Batch, Part, Stage
from hpcfwi.inversion.state import State
from hpcfwi.operators.simulator import largest_task
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.exact import NO_MAGNITUDES
from hpcfwi.plan.checks import check_experiment, check_room, check_sharing, check_steps
from hpcfwi.plan.comparison import Comparison
from hpcfwi.plan.estimate import (
    WIDTH,
    Machine,
    Memory,
    Sharing,
    Simulations,
    Work,
    count_work,
    describe_grid,
    estimate_memory,
    share_work,
)
from hpcfwi.report.text import say_duration
from hpcfwi.survey import Survey, spread_shots
from hpcfwi.wave.simulation import Task

# Time for measurements of one stage and of all stages, s
BUDGET, LONGEST = 4.0, 16.0
REPETITIONS = 3  # most measurements of the longest record
SHORTEST = 32  # samples of the shortest record that is measured


@dataclass(frozen=True)
class Speed:
    """Times (s) of a round of shots over whole records, in which each thread has one shot.

    forward: simulations alone; gradient: gradients; illuminated: gradients and illuminations;
    measured: number of samples of the records that were simulated; processors: share of the
    threads' time during which they had a processor, 1 on GPUs.
    """

    forward: float
    gradient: float
    illuminated: float
    measured: int
    processors: float


class Stopwatch:
    """Measures the time of the work of an epoch, for records of any length; collective.

    samples: number of samples of a whole record.
    """

    def __init__(self, experiment: Experiment, context: Context) -> None:
        section, survey = experiment.config.inversion, experiment.simulated_survey()
        self._experiment = experiment
        batch = section.largest_batch(survey.n_shots)
        part = np.array_split(np.arange(batch), context.size)[context.rank]
        counts = context.all_gather(min(context.threads, part.size))
        self._shots = spread_shots(survey.n_shots, sum(counts))
        first = sum(counts[: context.rank])
        self._mine = self._shots[first : first + counts[context.rank]]
        self._survey, self._context = survey, context
        self._model = experiment.inverted.as_tensors(context.device)
        self._simulator, chunks = choose_history_and_chunk(
            experiment.make_simulator(), self._model, experiment, context, has_state=False
        )
        # Exact sums cost almost nothing, but would need the magnitudes of the terms beforehand.
        self._objective = Objective(
            self._simulator, section.misfit.bind(), context, chunks, reproducible=False
        )
        self.samples = survey.n_samples
        self._seconds = self._processor_seconds = 0.0

    def warm_up(self) -> float:
        """Run everything once, and return how much longer the first run takes than later ones, s.

        This includes an update, because torch loads modules of its optimizers only then.
        """
        shortest = min(self.samples, SHORTEST)
        experiment, batch = self._experiment, self._batch(shortest)
        make = experiment.config.inversion.optimizer.bind()
        optimizer = make(self._model, experiment.limits(self._model))
        state = State(0, self._model, optimizer.state(), magnitudes=NO_MAGNITUDES)
        stage = Stage(0, "", 0, experiment)
        evaluate = EpochEvaluator(self._objective, stage, batch, state, illuminate=False)
        # In some models, a step for the beginning of a record fails.
        with suppress(InversionFailure):
            optimizer.step(self._model, evaluate)
        first, again = (sum(self.time_round(shortest)) for _ in range(2))
        return max(0.0, first - again)

    def time_round(self, samples: int) -> tuple[float, float, float]:
        """Return the times of a simulation, of a gradient, and of one with illuminations, s."""
        simulation, gradient = self.time_forward(samples), self.time_gradient(samples)
        return simulation, gradient, self.time_gradient(samples, illuminate=True)

    def time_forward(self, samples: int) -> float:
        """Return the time of a forward simulation on the slowest rank, s."""

        def simulate() -> None:
            if self._mine.size:
                survey = self._begin(self._mine, samples)
                self._simulator.simulate(self._model, survey, keep=False).data.sum().item()

        return self._time(simulate)

    def time_gradient(self, samples: int, illuminate: bool = False) -> float:
        """Return the time of a gradient on the slowest rank, s."""
        batch = self._batch(samples)
        return self._time(
            lambda: self._objective.evaluate(self._model, batch, NO_MAGNITUDES, illuminate)
        )

    def lengthen(self, measured: int, timings: list[float]) -> float:
        """Return the ratio of the time of the whole record to that of its first `measured` samples.

        timings: times of gradients for records, each twice as long as the one before, up to
        `measured`. The increase at the last doubling is extrapolated to the remaining work, so that
        costs of a simulation that do not depend on its length are not counted again.
        """
        last = timings[-1]
        before = min(timings[-2], 0.75 * last) if len(timings) > 1 else 0.5 * last
        half, done, whole = (self.count_updates(n) for n in (measured // 2, measured, self.samples))
        factor = 1.0 + (1.0 - before / last) * (whole - done) / (done - half)
        return max(self._context.all_gather(factor))

    def count_updates(self, samples: int) -> float:
        """Return the number of cell updates by the engine for the shots of all ranks."""
        survey = self._begin(self._shots, samples)
        return self._simulator.set_up(self._model, survey, window=None).count_updates()

    def _batch(self, samples: int) -> Batch:
        survey = self._begin(self._mine, samples)
        silence = np.zeros((self._mine.size, survey.n_receivers, samples), np.float32)
        part = Part(self._mine, survey, lambda: silence)
        mine = [part] if part.shots.size else []
        return Batch(1, self._shots, (), lambda _: part, lambda _: iter(mine))

    def _begin(self, shots: NDArray[np.int64], samples: int) -> Survey:
        """Return the survey of some shots with the first samples of their records."""
        survey = self._survey.select(shots)
        return replace(survey, wavelet=survey.wavelet[..., :samples])

    def _time(self, work: Callable[[], object]) -> float:
        self._context.barrier()
        start, processor_start = time.perf_counter(), time.process_time()
        work()
        seconds = time.perf_counter() - start
        self._seconds += seconds
        self._processor_seconds += time.process_time() - processor_start
        return max(self._context.all_gather(seconds))

    def share_of_processors(self) -> float:
        """Return the smallest share of processor time of any rank so far; collective."""
        wanted = self._seconds * self._context.threads
        if not self._mine.size or self._context.device.type != "cpu":
            wanted = 0.0
        return min(self._context.all_gather(self._processor_seconds / wanted if wanted else 1.0))


def measure_speed(watch: Stopwatch, budget: float = BUDGET) -> Speed:
    """Measure the time of rounds of an epoch, in at most two or three times `budget` (s).

    Collective. Raises `InversionFailure` if a shot gives values that are not finite.
    """
    samples = watch.samples
    measured, timings = _longest_affordable(watch, budget)
    rounds = [watch.time_round(measured)]
    while len(rounds) < REPETITIONS and sum(map(sum, rounds)) + sum(rounds[-1]) < budget:
        rounds.append(watch.time_round(measured))
    forward, gradient, illuminated = (median(t) for t in zip(*rounds, strict=True))
    if measured < samples:
        longer = samples / measured
        factor = watch.lengthen(measured, timings)
        # With illuminations the backward pass covers the whole grid, so that its time is
        # proportional to the length; it is an upper bound for a gradient.
        illuminated = factor * forward + longer * (illuminated - forward)
        forward, gradient = factor * forward, min(factor * gradient, illuminated)
    return Speed(forward, gradient, illuminated, measured, watch.share_of_processors())


def _longest_affordable(watch: Stopwatch, budget: float) -> tuple[int, list[float]]:
    """Return the length of record to measure, and the times of gradients up to this length."""
    halvings = int(log2(max(watch.samples / SHORTEST, 1.0)))
    lengths = [watch.samples >> k for k in range(halvings, -1, -1)]
    timings: list[float] = []
    for k, length in enumerate(lengths):
        timings.append(watch.time_gradient(length))
        if k > 0:
            growth = max(2.0, timings[-1] / timings[-2])
            if sum(timings) + growth * timings[-1] > budget:
                break
    return lengths[len(timings) - 1], timings


LOADED = 0.7  # share of the processors below which times are not reliable
# Time of a Gauss-Newton product of a shot, relative to its gradient (docs/decisions/038)
PRODUCT_SECONDS = 1.5


def _duration(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10.0 else say_duration(seconds)


@dataclass(frozen=True)
class Timing:
    """Times in seconds, on this machine with these ranks.

    observe: time to simulate the observed data, 0 if they exist; epoch: likely time of an epoch;
    ending: time for the data fit at the end; total: likely time of the whole run, without figures;
    least: the same with the least work; updates: number of cell updates in an epoch; samples:
    number of samples of a record; speed: the measured times.
    """

    observe: float
    epoch: float
    ending: float
    total: float
    least: float
    updates: float
    samples: int
    speed: Speed

    def describe(self, sharing: Sharing) -> Iterator[str]:
        """Yield the times in lines."""
        machine, epochs = sharing.machine, sharing.epochs
        measured, processors = self.speed.measured, self.speed.processors
        is_whole = measured == self.samples
        extent = "whole records" if is_whole else f"{measured} of {self.samples} samples"
        rate = self.updates / self.epoch / 1e6
        yield f"{self.updates:.3g} cell updates per epoch, forward and backward"
        yield f"{rate:.0f} million cell updates per second, measured on {extent}"
        observed = _duration(self.observe) if self.observe else "exist already"
        yield f"start {_duration(machine.ready)}, observed data {observed}"
        if processors < LOADED:
            yield (
                "times may be too long: beside other programs, ranks had a processor for only "
                f"{100.0 * processors:.0f} % of their time"
            )
        least = f", at least {_duration(self.least)}" if self.least < self.total else ""
        yield (
            f"an epoch {_duration(self.epoch)}, {epochs} epochs {_duration(epochs * self.epoch)}, "
            f"data fit at the end {_duration(self.ending)}"
        )
        yield f"in all {_duration(self.total)}{least}, plus the figures"
        yield (
            f"preparing the engine took {_duration(machine.compiling)}, not counted above: "
            "compiled code is kept for the next start"
        )


def estimate_timing(
    experiment: Experiment, task: Task, sharing: Sharing, work: Work, speed: Speed, has_data: bool
) -> Timing:
    """Estimate the time of a run at the measured speed; has_data: the observed data exist."""
    survey, machine = experiment.survey, sharing.machine

    def simulate(shots: int) -> float:
        """Return the time of forward simulations, one on each thread at a time."""
        return ceil(ceil(shots / len(machine.hosts)) / min(machine.threads)) * speed.forward

    def invert(simulations: Simulations) -> float:
        seconds = (
            (simulations.gradients + PRODUCT_SECONDS * simulations.products) * speed.gradient
            + simulations.illuminated * speed.illuminated
            + simulations.forwards * speed.forward
        )
        return sharing.rounds * seconds / sharing.batch

    there = has_data or not experiment.is_synthetic
    observe = 0.0 if there else simulate(survey.n_shots)
    ending, epochs = simulate(work.ending), invert(work.likely)
    around = machine.ready + observe + ending
    updates = 2.0 * prod(task.problem.padded_shape) * task.steps * work.likely.count
    return Timing(
        observe=observe,
        epoch=epochs / sharing.epochs,
        ending=ending,
        total=around + epochs,
        least=around + invert(work.least),
        updates=updates / sharing.epochs,
        samples=survey.n_samples,
        speed=speed,
    )


def describe_reading(experiment: Experiment, timing: Timing | None) -> str:
    """Return the amount of observed data, and the rate at which a run has to read them."""
    survey = experiment.survey
    shot = 4 * survey.n_receivers * survey.n_samples
    epoch = shot * experiment.config.inversion.largest_batch(survey.n_shots)
    rate = ""
    if timing is not None:
        rate = f": requires {epoch / timing.epoch / 1e6:.3g} MB/s for all ranks together"
    whole = say_bytes(shot * survey.n_shots)
    return f"{whole} in the file, {say_bytes(epoch)} read per epoch{rate}"


@dataclass(frozen=True)
class Plan:
    """The plan of a run.

    name: name of the input file; grid, reading: the grid and the reading of data, in lines; timing:
    None if nothing could be measured; comparison: comparison of the data with those of the starting
    model in this stage, None if nothing could be simulated.
    """

    name: str
    findings: tuple[Finding, ...]
    grid: tuple[str, ...]
    sharing: Sharing
    work: Work
    memory: Memory
    timing: Timing | None
    reading: str
    comparison: Comparison | None = None


def make_plan(
    name: str,
    experiment: Experiment,
    overhead: MemoryOverhead,
    machine: Machine,
    has_data: bool,
    speed: Speed | None = None,
) -> Plan:
    """Return the plan of an experiment, without times if the speed is not known.

    experiment: the experiment with its models on the grid of its waves; overhead: that of rank 0;
    has_data: True if the observed data exist. Raises `InputError` if the engine does not have the
    history of the input.
    """
    model = experiment.inverted.as_tensors(machine.device)
    simulator, survey = experiment.make_simulator(), experiment.survey
    task = largest_task(simulator, model, survey, experiment.costs_of(survey, simulator))
    sharing = share_work(experiment, machine)
    memory = estimate_memory(experiment, task, overhead, sharing)
    work, timing = count_work(experiment), None
    if speed is not None:
        timing = estimate_timing(experiment, task, sharing, work, speed, has_data)
    return Plan(
        name=name,
        findings=(
            *check_room(memory),
            *check_experiment(experiment, task.problem.dt),
            *check_steps(experiment, task.substeps),
            *check_sharing(sharing),
        ),
        grid=tuple(describe_grid(experiment, task)),
        sharing=sharing,
        work=work,
        memory=memory,
        timing=timing,
        reading=describe_reading(experiment, timing),
    )


def write_plans(plans: Sequence[Plan], stream: TextIO, quiet: bool = False) -> None:
    """Write the report of each stage; quiet: only errors and warnings."""
    for number, plan in enumerate(plans):
        if number and not quiet:
            stream.write("\n")
        write_plan(plan, stream, quiet)
    times = [plan.timing for plan in plans if plan.timing is not None]
    if len(plans) > 1 and len(times) == len(plans) and not quiet:
        ready = [plan.sharing.machine.ready for plan in plans]
        whole = ready[0] + sum(time.total for time in times) - sum(ready)
        stream.write(f"\nAll {len(plans)} stages: {_duration(whole)}, plus the figures\n")


def write_plan(plan: Plan, stream: TextIO, quiet: bool = False) -> None:
    """Write the report; quiet: only errors and warnings."""
    write_findings(plan.name, plan.findings, stream, quiet)
    sharing, timing = plan.sharing, plan.timing
    if not quiet:
        for title, part in (
            ("Grid", plan.grid),
            ("Work", [*sharing.describe(), plan.work.describe(sharing.epochs)]),
            ("Memory per rank", plan.memory.describe()),
            ("Time", ["not measured"] if timing is None else timing.describe(sharing)),
            ("Observed data", [plan.reading]),
            ("Starting model", [] if plan.comparison is None else plan.comparison.describe()),
        ):
            if shown := [f"  {line}".rstrip() for line in part]:
                stream.write("\n".join(["", title, *shown, ""]))
    stream.flush()


def write_findings(
    name: str, findings: Sequence[Finding], stream: TextIO, quiet: bool = False
) -> None:
    """Write the number of findings in the input file `name`, and the findings.

    quiet: only errors and warnings.
    """
    shown = [s for s in SEVERITIES if not (quiet and s == "note")]
    found = [f for s in shown for f in findings if f.severity == s]
    if not quiet:
        counts = {s: sum(f.severity == s for f in found) for s in shown}
        totals = ", ".join(say_count(n, s) for s, n in counts.items() if n)
        stream.write(f"{name}: {totals or 'no problems found'}\n")
    for finding in found:
        stream.write(textwrap.fill(str(finding), WIDTH, subsequent_indent="  ") + "\n")
