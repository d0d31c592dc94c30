"""The speed of this machine: how long shots of an experiment take, and a run of it.

Shots of the survey are simulated as an epoch does it, on all ranks at once, so that what they take
from each other is measured too. If whole records would take too long, their beginnings are measured
and continued: an engine that computes only where the wave may be is faster at first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil, log2, prod
from statistics import median

import numpy as np

from hpcfwi.errors import InversionFailure
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.loop import Evaluations
from hpcfwi.inversion.memory import choose_history_and_chunk
from hpcfwi.inversion.objective import Objective
from hpcfwi.inversion.stages import Batch, Part, Stage
from hpcfwi.inversion.state import State
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.exact import NO_REFERENCES
from hpcfwi.plan.estimate import Machine, Sharing, Simulations, Work
from hpcfwi.survey import Survey, spread_shots
from hpcfwi.wave.simulation import Task

# Seconds for records of growing length, of one stage and of all of them; repetitions of the last.
BUDGET, LONGEST = 4.0, 16.0
REPETITIONS = 3
SHORTEST = 32  # samples of a record


@dataclass(frozen=True)
class Speed:
    """Seconds of one round of shots, each rank as many as it has threads, over whole records.

    forward: the simulation alone; gradient; illuminated: gradient and illuminations; measured:
    samples of the records that were simulated; processors: the share of their threads' time for
    which the ranks had a processor, 1 on GPUs.
    """

    forward: float
    gradient: float
    illuminated: float
    measured: int
    processors: float


class Stopwatch:
    """Times what an epoch of this experiment does, on records of any length; collective.

    samples: of a whole record.
    """

    def __init__(self, experiment: Experiment, context: Context) -> None:
        self._section, survey = experiment.config.inversion, experiment.simulated()
        self._stage = Stage(0, "", 0, experiment)
        batch = self._section.largest_batch(survey.n_shots)
        part = np.array_split(np.arange(batch), context.size)[context.rank]
        counts = context.all_gather(min(context.threads, part.size))
        spread = spread_shots(survey.n_shots, sum(counts))
        first = sum(counts[: context.rank])
        self._shots, self._mine = spread, spread[first : first + counts[context.rank]]
        self._survey, self._context = survey, context
        self._model = experiment.initial.as_tensors(context.device)
        self._limits = experiment.limits(self._model)
        self._simulator, chunks = choose_history_and_chunk(
            experiment.compared(), self._model, experiment, context, has_state=False
        )
        # Exact sums cost next to nothing, but would want to know each record's magnitudes before.
        self._objective = Objective(
            self._simulator, self._section.misfit.make(), context, chunks, reproducible=False
        )
        self.samples = survey.n_samples
        self._seconds = self._processor_seconds = 0.0

    def warm_up(self) -> float:
        """Run everything once, and the seconds that this took longer than it does from then on.

        An update as well, because torch loads its optimisers' needs only then.
        """
        shortest = min(self.samples, SHORTEST)
        optimizer = self._section.optimizer.make()(self._model, self._limits)
        state = State(0, self._model, optimizer.state(), references=NO_REFERENCES)
        batch, stage = self._batch(shortest), self._stage
        evaluate = Evaluations(self._objective, stage, batch, state, illuminate=False)
        # Beginnings of records say too little of some models for a step
        with suppress(InversionFailure):
            optimizer.step(self._model, evaluate)
        first, again = (
            self.time_forward(shortest)
            + self.time_gradient(shortest)
            + self.time_gradient(shortest, illuminate=True)
            for _ in range(2)
        )
        return max(0.0, first - again)

    def time_forward(self, samples: int) -> float:
        """Seconds of the slowest rank."""

        def simulate() -> None:
            if self._mine.size:
                survey = self._part(samples).survey
                self._simulator.simulate(self._model, survey, keep=False).data.sum().item()

        return self._time(simulate)

    def time_gradient(self, samples: int, illuminate: bool = False) -> float:
        """Seconds of the slowest rank."""
        evaluate = self._objective.evaluate
        batch = self._batch(samples)
        return self._time(lambda: evaluate(self._model, batch, NO_REFERENCES, illuminate))

    def lengthen(self, measured: int, timings: list[float]) -> float:
        """Return the time of the whole record over that of its first `measured` samples.

        timings: of gradients for records each twice as long as the one before, up to `measured`.
        What the last doubling took is continued with the work that is left, so that what a
        simulation takes apart from its steps does not count again.
        """
        last = timings[-1]
        before = min(timings[-2], 0.75 * last) if len(timings) > 1 else 0.5 * last
        half, done, whole = (self.count_updates(n) for n in (measured // 2, measured, self.samples))
        factor = 1.0 + (1.0 - before / last) * (whole - done) / (done - half)
        return max(self._context.all_gather(factor))

    def count_updates(self, samples: int) -> float:
        """Cells that the engine computes for the shots of all ranks, over their records."""
        survey = _shortened(self._survey.select(self._shots), samples)
        return self._simulator.set_up(self._model, survey, window=None).count_updates()

    def _batch(self, samples: int) -> Batch:
        part = self._part(samples)
        mine = [part] if part.shots.size else []
        return Batch(1, self._shots, (), lambda _: part, lambda _: iter(mine))

    def _part(self, samples: int) -> Part:
        survey = _shortened(self._survey.select(self._mine), samples)
        silence = np.zeros((self._mine.size, survey.n_receivers, samples), np.float32)
        return Part(self._mine, survey, lambda: silence)

    def _time(self, work: Callable[[], object]) -> float:
        self._context.barrier()
        start, processor_start = time.perf_counter(), time.process_time()
        work()
        seconds = time.perf_counter() - start
        self._seconds += seconds
        self._processor_seconds += time.process_time() - processor_start
        return max(self._context.all_gather(seconds))

    def share_of_processors(self) -> float:
        """Return the smallest share of a rank, of all that was timed so far; collective."""
        wanted = self._seconds * self._context.threads
        if not self._mine.size or self._context.device.type != "cpu":
            wanted = 0.0
        return min(self._context.all_gather(self._processor_seconds / wanted if wanted else 1.0))


def _shortened(survey: Survey, samples: int) -> Survey:
    """The beginning of its records."""
    return replace(survey, wavelet=survey.wavelet[..., :samples])


def measure_speed(watch: Stopwatch, budget: float = BUDGET) -> Speed:
    """Time rounds of an epoch; collective. Takes two or three times `budget` (s) at most.

    Raises `InversionFailure` where a shot gives values that are not finite.
    """
    samples = watch.samples
    measured, timings = _longest_affordable(watch, budget)
    rounds = _repeat(watch, measured, budget)
    forward, gradient, illuminated = (median(t) for t in zip(*rounds, strict=True))
    if measured < samples:
        longer = samples / measured
        factor = watch.lengthen(measured, timings)
        # With illuminations the way back is over the whole grid, which bounds the way without.
        illuminated = factor * forward + longer * (illuminated - forward)
        forward, gradient = factor * forward, min(factor * gradient, illuminated)
    return Speed(forward, gradient, illuminated, measured, watch.share_of_processors())


def _longest_affordable(watch: Stopwatch, budget: float) -> tuple[int, list[float]]:
    """The length of record to measure, and the seconds of the gradients on the way to it."""
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


def _repeat(watch: Stopwatch, samples: int, budget: float) -> list[tuple[float, float, float]]:
    """Forward, gradient and illuminated, in turn, as often as the budget allows, once at least."""
    rounds: list[tuple[float, float, float]] = []
    while not rounds or (
        len(rounds) < REPETITIONS and sum(map(sum, rounds)) + sum(rounds[-1]) < budget
    ):
        rounds.append(
            (
                watch.time_forward(samples),
                watch.time_gradient(samples),
                watch.time_gradient(samples, illuminate=True),
            )
        )
    return rounds


# What a shot of a product takes, of what its gradient takes (docs/decisions/038)
PRODUCT_SECONDS = 1.5


@dataclass(frozen=True)
class Timing:
    """Seconds, on this machine with these ranks.

    ready: to start the program and read the input; compile: to prepare the engine, the first time;
    observe: to simulate the observed data, 0 where they are there; epoch: an update, as a rule;
    ending: the look at the end; total: of the whole run, without figures, as a rule; least: the
    same where each epoch takes the least that it may; updates: cell updates of an epoch; measured,
    samples: how many of the record's samples the measurement simulated; processors: as in `Speed`.
    """

    ready: float
    compile: float
    observe: float
    epoch: float
    ending: float
    total: float
    least: float
    updates: float
    measured: int
    samples: int
    processors: float


@dataclass(frozen=True)
class Reading:
    """Observed data: bytes of an epoch, bytes of all, and the rate at which they are needed, B/s.

    rate: None where the time is not known.
    """

    epoch: int
    whole: int
    rate: float | None


def estimate_timing(
    experiment: Experiment,
    task: Task,
    sharing: Sharing,
    work: Work,
    machine: Machine,
    speed: Speed,
    has_data: bool,
) -> Timing:
    """Estimate the time of a run at the measured speed; has_data: the observed data exist."""
    survey = experiment.survey

    def simulate(shots: int) -> float:
        """Return the time of forward simulations, one a thread at a time."""
        return ceil(ceil(shots / sharing.ranks) / min(machine.threads)) * speed.forward

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
        machine.ready,
        machine.compiling,
        observe,
        epochs / sharing.epochs,
        ending,
        around + epochs,
        around + invert(work.least),
        updates / sharing.epochs,
        speed.measured,
        survey.n_samples,
        speed.processors,
    )


def estimate_reading(experiment: Experiment, timing: Timing | None) -> Reading:
    """Estimate what the epochs of a run read."""
    survey = experiment.survey
    batch = experiment.config.inversion.largest_batch(survey.n_shots)
    shot = 4 * survey.n_receivers * survey.n_samples
    rate = None if timing is None else batch * shot / timing.epoch
    return Reading(batch * shot, survey.n_shots * shot, rate)
