"""How long a run takes on this machine, and how fast it reads."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from hpcfwi.inversion.experiment import Experiment
from hpcfwi.plan.machine import Machine
from hpcfwi.plan.sharing import Sharing
from hpcfwi.plan.speed import Speed
from hpcfwi.plan.work import Simulations, Work
from hpcfwi.wave.simulation import Task

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
    """Of a run at the speed that was measured; has_data: the observed data are there."""
    survey = experiment.survey

    def simulate(shots: int) -> float:
        """Forwards, all that a rank has threads for at a time."""
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
    """What the epochs of a run read."""
    survey = experiment.survey
    batch = experiment.config.inversion.largest_batch(survey.n_shots)
    shot = 4 * survey.n_receivers * survey.n_samples
    rate = None if timing is None else batch * shot / timing.epoch
    return Reading(batch * shot, survey.n_shots * shot, rate)
