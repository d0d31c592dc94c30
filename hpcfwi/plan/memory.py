"""What a rank takes of memory: its waves with each history, its traces and its models.

And what it shares with the others of its host.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpcfwi.errors import InputError, say_bytes
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.memory import Upkeep, weigh_optimizer
from hpcfwi.operators.batching import Fit, fit_shots
from hpcfwi.plan.machine import Machine
from hpcfwi.plan.sharing import Sharing
from hpcfwi.wave import history as histories
from hpcfwi.wave.history import Auto, History, NothingFits, Recompute, describe
from hpcfwi.wave.simulation import Task


@dataclass(frozen=True)
class Choice:
    """A history: its name, and bytes of a rank for each number of shots at once."""

    name: str
    bytes: tuple[int, ...]


@dataclass(frozen=True)
class Memory:
    """Of rank 0, which takes most, and of its host, in bytes.

    engine: its name; counts: shots at once, of the choices; chosen: what a run keeps, None where
    nothing fits; why; waves: what the simulations take; data: observed traces; arrays: models,
    gradients and their sums, and traces that are compared; remembered: by the optimiser from one
    epoch to the next; otherwise: that with the other value of `sharded`, None where there is no
    other; records: what this rank alone draws, writes and gathers; program: itself, with
    the engine and Matplotlib; once: models and survey as the host has them for all its ranks;
    ranks: how many these are.
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
        """What a run adds to the program itself, of this rank alone."""
        return self.waves + self.data + self.arrays + self.remembered + self.records

    @property
    def together(self) -> int:
        """What all ranks of the host take beyond their programs, if each has as many shots."""
        return self.once + self.ranks * (self.beyond - self.records) + self.records


def weigh_memory(
    experiment: Experiment, task: Task, upkeep: Upkeep, sharing: Sharing, machine: Machine
) -> Memory:
    """What a run will take; task: the one shot that takes most; upkeep: of rank 0."""
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
    """What the optimiser would remember on a rank with the other `sharded`."""
    optimizer = experiment.config.inversion.optimizer
    if not optimizer.takes("slabs") or sharing.ranks == 1:
        return None
    whole, slabs = weigh_optimizer(experiment, sharing.ranks)
    return whole if optimizer.sharded else slabs


def _fit(
    experiment: Experiment, task: Task, sharing: Sharing, machine: Machine
) -> tuple[Fit | None, str]:
    """How a run simulates its shots, None where it cannot, and why."""
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
    """All that the engine offers, the fastest first, and what was asked for."""
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
