"""What a shot takes of memory: which history fits into that of the ranks, how many at a time.

Answered for the largest window of a survey. What ranks have is known to who asks; what becomes of a
choice that was too optimistic is in `chunks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from hpcfwi.errors import InputError, say_bytes
from hpcfwi.model import Model
from hpcfwi.operators.simulator import Simulator
from hpcfwi.parallel.context import Context
from hpcfwi.survey import Survey
from hpcfwi.wave.history import Auto, History, NothingFits, computes_alike
from hpcfwi.wave.memory import memory_at_hand
from hpcfwi.wave.task import Task


@dataclass(frozen=True)
class Share:
    """What a rank has.

    memory: bytes that its simulations may take; slots: shots of a batch that it simulates at a time
    where memory does not matter.
    """

    memory: int
    slots: int


@dataclass(frozen=True)
class Fit:
    """How shots are simulated in the memory of all ranks.

    history: the same on all; shot: bytes that one takes with it; at_once: shots at a time that fit
    on every rank.
    """

    history: History
    shot: int
    at_once: int


def free_for_rank(context: Context) -> int:
    """Bytes that are free for the simulations of this rank now, less a margin; collective.

    On a GPU for this rank, on a CPU in equal parts for the ranks of its host.
    """
    hosts = context.all_gather(context.host)
    sharing = 1 if context.device.type == "cuda" else hosts.count(context.host)
    return memory_at_hand(context.device) // sharing


def largest_task(simulator: Simulator, model: Model, survey: Survey) -> Task:
    """What is asked of the engine for the shot of a survey that has the largest window.

    Raises `InputError` where the engine has no such history.
    """
    windows = list(simulator.aperture.find_windows(simulator.grid, survey))
    largest = int(np.argmax([window.size for window in windows]))
    shot, seen = survey.select(np.array([largest])), simulator.restrict(model)
    try:
        return simulator.set_up(seen, shot, windows[largest])
    except ValueError as error:
        raise InputError("wave.history", str(error), "Change the value.") from error


def fit_shots(task: Task, shares: Sequence[Share], reproducible: bool) -> Fit:
    """The fastest history with which each rank can simulate its slots within its memory.

    Fewer at a time than that where no history lets it. Where results are to be reproducible, the
    fastest with which each can simulate a single shot, and as many at a time as then fit, as
    results with another history have other bits.

    task: of the shot that takes most. Raises `InputError` where not even that one fits.
    """
    fastest: History | None = None
    if reproducible:
        with suppress(NothingFits):
            fastest = _choose_history(task, min(share.memory for share in shares))
    for at_once in range(max(share.slots for share in shares), 0, -1):
        memory = max(1, min(share.memory // min(share.slots, at_once) for share in shares))
        try:
            history = _choose_history(task, memory)
        except NothingFits as error:
            needed = error.needed
            continue
        needed = task.footprint(history)
        if fastest is not None and not computes_alike(history, fastest):
            continue
        if needed <= memory:
            return Fit(history, needed, at_once)
    raise InputError(
        "wave.memory",
        f"the simulation of one shot takes {say_bytes(needed)}, and a rank may take "
        f"{say_bytes(memory)}",
        "Give more memory or start fewer ranks a node, choose a more frugal wave.history, a "
        "wave.aperture or a larger model.spacing.",
    )


def _choose_history(task: Task, memory: int) -> History:
    """What is kept of a shot with so many bytes, a limit only where it is to be chosen."""
    if isinstance(task.asked, Auto):
        task = replace(task, asked=replace(task.asked, memory=memory))
    return task.choose_history()
