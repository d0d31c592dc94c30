"""The number of ranks that simulate a shot of an experiment together, and the layers of its grid.

`wave.layers` describes the division of a shot, and `parallel.crew` that of the ranks into crews.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import prod

import numpy as np
import torch

from hpcfwi.errors import InputError, say_bytes
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.model import AXES
from hpcfwi.parallel.context import Context
from hpcfwi.wave.engines import choose
from hpcfwi.wave.equation import ACOUSTIC, FirstOrderEquation
from hpcfwi.wave.layers import HALO, cut
from hpcfwi.wave.problem import Problem

# Cells per second of a core of an AMD EPYC, between the values in 2-D and in 3-D. For the halos
# between ranks of a host: bytes copied per second, and the time to wait for another process, s. For
# halos between hosts: the rate of a common network, and a time measured between virtual hosts.
# docs/splitting.md has measurements.
CELLS, (BYTES, WAIT), (NETWORK_BYTES, NETWORK_WAIT) = 4e8, (5e9, 4e-6), (2.5e9, 6e-5)
# `"auto"` chooses no division with a lower efficiency.
LEAST_EFFICIENCY = 0.6


def refuse_layers(experiment: Experiment, where: str, context: Context) -> None:
    """Raise `InputError` if the shots of an experiment cannot be divided between ranks.

    where: prefix of the keys, which names a stage.
    """
    key, ranks = f"{where}wave.ranks_per_shot", experiment.config.wave.ranks_per_shot
    if ranks == 1 or (ranks == "auto" and context.leader is None):
        return
    engine = _choose_engine(experiment, context.device)
    if engine != "cpu" and not (engine == "gpu" and experiment.equation is ACOUSTIC):
        raise InputError(
            key,
            f"found {ranks}, but only the engine cpu divides shots between ranks, or with the "
            "equation acoustic also the engine gpu",
            'Leave it out, or give wave.engine = "cpu".',
        )
    hosts = 1 if context.leader is None else context.leader.hosts
    if engine == "gpu" and max(context.all_gather(hosts)) > 1:
        raise InputError(
            key,
            f"found {ranks} ranks on several hosts, but the engine gpu divides shots between ranks "
            "of the same host",
            "Start a multiple of this number of ranks on each host.",
        )
    count = ranks if ranks != "auto" else context.leader.size
    try:
        cut(_first_problem(experiment, context.device), count)
    except ValueError as error:
        raise InputError(key, str(error), "Give a smaller number.") from error


def choose_crew_size(stages: Sequence[Experiment], context: Context) -> int:
    """Return the number of ranks for each shot that `"auto"` stands for.

    This is the largest number that leaves no crew without a shot in any stage, if the efficiency is
    sufficient. It is 1 for the engine gpu, whose efficiency is not known.
    """
    batches = [part.config.inversion.largest_batch(part.survey.n_shots) for part in stages]
    most, hosts = context.size // max(batches), context.hosts or (context.host,)
    divisible = all(_choose_engine(part, context.device) == "cpu" for part in stages)
    if not divisible or context.fault_tolerant:
        return 1
    problems = [_first_problem(part, context.device) for part in stages]
    for size in range(most, 1, -1):
        if any(hosts.count(host) % size for host in set(hosts)):
            continue
        with suppress(ValueError):
            shares = [predict_efficiency(problem, size, context.threads) for problem in problems]
            if min(shares) >= LEAST_EFFICIENCY:
                return size
    return 1


def predict_efficiency(problem: Problem, count: int, threads: int, hosts: int = 1) -> float:
    """Return the expected speed of a crew, divided by its ranks and the speed of one rank.

    hosts: number of hosts with ranks of the crew. Raises ValueError if the grid has too few planes
    for so many layers.
    """
    planes = max(layer.planes for layer in cut(problem, count))
    fields, exchanged, messages = _count_work(problem)
    plane = prod(problem.padded_shape[1:])
    computing = fields * planes * plane / (CELLS * threads)
    # Each halo is copied twice, at both cuts of a layer.
    halo = HALO * exchanged * plane * problem.like.element_size()
    exchanging = 4 * halo / BYTES + messages * WAIT
    if hosts > 1:
        exchanging += halo / NETWORK_BYTES + messages * NETWORK_WAIT
    even = problem.padded_shape[0] / (count * planes)
    return even * computing / (computing + exchanging)


def _count_work(problem: Problem) -> tuple[int, int, int]:
    """Return the numbers of fields updated and exchanged in a step, and of messages each way."""
    equation = problem.equation
    if not isinstance(equation, FirstOrderEquation):
        return 1, 1, 1
    system = equation.system(AXES[problem.like.ndim])
    read = system.read_along("z")
    return len(system.fields), sum(map(len, read)), len(read)


def describe_layers(
    experiment: Experiment, size: int, threads: int, hosts: int, device: torch.device
) -> str:
    """Return the division of shots between so many ranks on so many hosts in a sentence."""
    problem = _first_problem(experiment, device)
    *planes, last = (str(layer.planes) for layer in cut(problem, size))
    plane = prod(problem.padded_shape[1:]) * problem.like.element_size()
    _, exchanged, _ = _count_work(problem)
    halo = HALO * exchanged * plane
    expected = ""
    if _choose_engine(experiment, device) == "cpu":
        efficiency = predict_efficiency(problem, size, threads, hosts)
        expected = f"; expected efficiency {100.0 * efficiency:.0f} %"
    ranks = f"{size} ranks" if hosts == 1 else f"{size} ranks on {hosts} hosts"
    return (
        f"{ranks} simulate each shot, in layers of {', '.join(planes)} and {last} "
        f"{'planes' if problem.like.ndim == 3 else 'rows'}; at each cut they exchange "
        f"{say_bytes(halo)} in each step{expected}"
    )


def _choose_engine(experiment: Experiment, device: torch.device) -> str:
    """Return the name of an experiment's engine."""
    return choose(experiment.config.wave.engine, device, experiment.equation).NAME


def _first_problem(experiment: Experiment, device: torch.device) -> Problem:
    """Return the problem of the first shot on the grid of the waves."""
    simulator = experiment.make_simulator()
    model = simulator.restrict(experiment.inverted.as_tensors(device))
    return simulator.set_up(model, experiment.survey.select(np.arange(1)), None).problem
