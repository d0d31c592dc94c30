"""Who does the work of an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from hpcfwi.inversion.experiment import Experiment
from hpcfwi.plan.machine import Machine


@dataclass(frozen=True)
class Sharing:
    """Who does the work of an epoch.

    threads: of each rank; part: shots of an epoch on the rank that has most; at_once: how many of
    them it simulates at a time, rounds: how often; advice: a better batch or number of ranks;
    encoded: whether a shot has all sources.
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
    """How the shots of an epoch are shared where every rank takes as many as another."""
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
