"""What a shot takes of memory and what the ranks have: which history fits, how many at a time.

Asked by a run and by its plan alike, for the largest window of the survey. What becomes of a choice
that was too optimistic is in `chunks`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from hpcfwi.config import Config
from hpcfwi.config.inversion import InversionSection
from hpcfwi.config.values import count_bytes
from hpcfwi.config.wave import WaveSection
from hpcfwi.errors import InputError, say_bytes
from hpcfwi.inversion.chunks import Chunks
from hpcfwi.inversion.simulator import Simulator
from hpcfwi.model import Model
from hpcfwi.parallel.context import Context
from hpcfwi.survey import Survey
from hpcfwi.wave.history import Auto, History, NothingFits, computes_alike, describe
from hpcfwi.wave.memory import memory_at_hand
from hpcfwi.wave.task import Task

log = logging.getLogger("hpcfwi")

# Launches of a GPU for its share of a batch, where shots are handed out as ranks get through.
QUARTERS = 4
# Of a rank's memory, at most, for observed data that it would else read anew for each epoch
HELD_SHARE = 0.5


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


def share_of_rank(config: Config, n_shots: int, context: Context) -> Share:
    """What this rank has for a survey of so many shots; collective."""
    slots = most_at_a_time(config.inversion, n_shots, context)
    return Share(memory_of_rank(config.wave, context), slots)


def most_at_a_time(section: InversionSection, n_shots: int, context: Context) -> int:
    """Shots of the largest batch that this rank simulates at a time where memory does not matter.

    A CPU simulates one a thread; a GPU all of the rank's in one launch, or a quarter of them where
    ranks that are faster than others are to take more.
    """
    if context.device.type == "cuda":
        launches = context.size * (QUARTERS if section.schedule == "dynamic" else 1)
        return -(-section.largest_batch(n_shots) // launches)
    return min(section.largest_batch(n_shots), context.threads)


def memory_of_rank(wave: WaveSection, context: Context) -> int:
    """Bytes that the simulations of this rank may take; collective.

    `wave.memory` where it is given. Else what is free now, less a margin: on a GPU for this rank,
    on a CPU in equal parts for the ranks of its host.
    """
    hosts = context.all_gather(context.host)
    if wave.memory is not None:
        return count_bytes(wave.memory)
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


def fit_ranks(
    simulator: Simulator, model: Model, survey: Survey, config: Config, context: Context
) -> Fit:
    """How the survey's shots are simulated on these ranks, `fit_shots` with what they have now.

    Collective; raises `InputError` on all ranks as that and `largest_task` do.
    """
    shares = context.all_gather(share_of_rank(config, survey.n_shots, context))
    task = largest_task(simulator, model, survey)
    held = 0
    if config.inversion.encoding != "none":
        held = bytes_to_hold(survey, min(share.memory for share in shares), context.size)
    shares = [replace(share, memory=share.memory - held) for share in shares]
    return fit_shots(task, shares, config.inversion.reproducible)


def bytes_to_hold(survey: Survey, memory: int, ranks: int) -> int:
    """Of the observed data of encoded shots, on each of so many ranks with this memory.

    0 where it is too much to be held, and is read anew for each batch.
    """
    part = 4 * -(-survey.sources.shape[-2] // ranks) * survey.n_receivers * survey.n_samples
    return part if part <= HELD_SHARE * memory else 0


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


def choose_history_and_chunk(
    simulator: Simulator, model: Model, survey: Survey, config: Config, context: Context
) -> tuple[Simulator, Chunks]:
    """A simulator with the history that fits, and the chunks to begin with; collective.

    Raises `InputError` on all ranks as `fit_ranks` does.
    """
    if simulator.aperture.margin is not None and context.is_root:
        _report_windows(simulator, survey)
    fit = fit_ranks(simulator, model, survey, config, context)
    most = most_at_a_time(config.inversion, survey.n_shots, context)
    size = min(most, fit.at_once)
    log.info(
        "History: %s, %s a shot; %d shot%s at a time",
        describe(fit.history),
        say_bytes(fit.shot),
        size,
        "s" * (size > 1),
    )
    # Should the model become so fast that steps are divided further, samples stay as far apart.
    wanted = simulator.method.history
    assert not isinstance(wanted, str), "parsed by the experiment"
    kept = replace(fit.history, interval=wanted.interval)
    return simulator.with_history(kept), Chunks(size, context)


def _choose_history(task: Task, memory: int) -> History:
    """What is kept of a shot with so many bytes, a limit only where it is to be chosen."""
    if isinstance(task.asked, Auto):
        task = replace(task, asked=replace(task.asked, memory=memory))
    return task.choose_history()


def _report_windows(simulator: Simulator, survey: Survey) -> None:
    cells = prod(simulator.grid.shape)
    share = float(np.mean(simulator.costs(survey))) / cells
    log.info("Windows: a shot has %.0f %% of the model's cells on average", 100.0 * share)
    if share > 0.99:
        log.warning(
            "wave.aperture gains nothing, as sources and receivers of a shot span the model: "
            "inversion.max_offset leaves receivers out"
        )
