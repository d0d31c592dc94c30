"""How long a run takes on this machine, and how fast it reads."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from hpcfwi.inversion.experiment import Experiment
from hpcfwi.plan.machine import Machine
from hpcfwi.plan.sharing import Sharing
from hpcfwi.plan.speed import Speed
from hpcfwi.wave.task import Task


@dataclass(frozen=True)
class Timing:
    """Seconds, on this machine with these ranks.

    ready: to start the program and read the input; compile: to prepare the engine, the first time;
    observe: to simulate the observed data, 0 where they are there; epoch: an update; total: of the
    whole run, without figures; updates: cell updates of an epoch; measured, samples: how many of
    the record's samples the measurement simulated.
    """

    ready: float
    compile: float
    observe: float
    epoch: float
    total: float
    updates: float
    measured: int
    samples: int


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
    machine: Machine,
    speed: Speed,
    has_data: bool,
) -> Timing:
    """Of a run at the speed that was measured; has_data: the observed data are there."""
    config, survey = experiment.config, experiment.survey
    observe = 0.0
    if experiment.is_synthetic and not has_data:
        part = ceil(survey.n_shots / sharing.ranks)
        observe = ceil(part / min(machine.threads)) * speed.forward
    drawn = ceil(sharing.epochs / config.output.every)
    gradients = (sharing.epochs - drawn) * speed.gradient + drawn * speed.illuminated
    epoch = sharing.rounds * gradients / sharing.epochs
    return Timing(
        machine.ready,
        machine.compiling,
        observe,
        epoch,
        machine.ready + observe + sharing.epochs * epoch,
        2.0 * prod(task.problem.padded_shape) * task.steps * sharing.batch,
        speed.measured,
        survey.n_samples,
    )


def estimate_reading(experiment: Experiment, timing: Timing | None) -> Reading:
    """What the epochs of a run read."""
    survey = experiment.survey
    batch = experiment.config.inversion.largest_batch(survey.n_shots)
    shot = 4 * survey.n_receivers * survey.n_samples
    rate = None if timing is None else batch * shot / timing.epoch
    return Reading(batch * shot, survey.n_shots * shot, rate)
