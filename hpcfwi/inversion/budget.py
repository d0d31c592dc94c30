"""What a rank's simulations may take, which history fits, and how many shots at a time.

The choice is made once a run, for the largest window of the survey. What happens where it was too
optimistic is in `portions`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np
from pydantic import ByteSize

from hpcfwi.config import Config
from hpcfwi.config.inversion import InversionSection
from hpcfwi.config.values import count_bytes
from hpcfwi.config.wave import WaveSection
from hpcfwi.errors import InputError
from hpcfwi.inversion.experiment import Experiment, Physics
from hpcfwi.inversion.portions import Portions
from hpcfwi.inversion.window import Window
from hpcfwi.model import Model
from hpcfwi.parallel.context import Context
from hpcfwi.survey import Survey
from hpcfwi.wave.history import History, NothingFits, computes_alike, describe
from hpcfwi.wave.memory import memory_at_hand

log = logging.getLogger("hpcfwi")

# Launches of a GPU for its share of a batch, where shots are handed out as ranks get through.
QUARTERS = 4


def most_at_a_time(section: InversionSection, context: Context) -> int:
    """Shots of a batch that this rank simulates at a time where memory does not matter.

    A CPU simulates one a thread; a GPU all of the rank's in one launch, or a quarter of them where
    ranks that are faster than others are to take more.
    """
    if context.device.type == "cuda":
        launches = context.size * (QUARTERS if section.schedule == "dynamic" else 1)
        return -(-section.batch // launches)
    return min(section.batch, context.threads)


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


def settle(
    physics: Physics,
    model: Model,
    survey: Survey,
    config: Config,
    context: Context,
) -> tuple[Physics, Portions]:
    """The physics with its history chosen, and the portions to begin with; collective.

    The history is the same on all ranks: the fastest with which each of them can simulate
    `most_at_a_time` within its memory. A reproducible inversion takes the fastest with which each
    can simulate a single shot, and as many at a time as then fit, as results with another history
    have other bits.

    Raises `InputError` on all ranks where the engine has no such history, or not one shot fits.
    """
    windows = list(physics.reach.find_windows(physics.grid, survey))
    if physics.reach.aperture is not None and context.is_root:
        _report(windows, physics)
    history, footprint, most = _choose_for(windows, physics, model, survey, config, context)
    size = min(most_at_a_time(config.inversion, context), most)
    log.info(
        "History: %s, %s a shot; %d shot%s at a time",
        describe(history),
        _say(footprint),
        size,
        "s" * (size > 1),
    )
    # Should the model become so fast that steps are divided further, samples stay as far apart.
    wanted = physics.method.history
    assert not isinstance(wanted, str), "parsed by the experiment"
    kept = replace(history, interval=wanted.interval)
    return physics.with_history(kept), Portions(size, context)


def check_memory(experiment: Experiment, context: Context) -> None:
    """Raise `InputError` on all ranks where `settle` would, before anything is simulated."""
    physics, survey = experiment.physics(experiment.initial), experiment.survey
    windows = list(physics.reach.find_windows(physics.grid, survey))
    model = experiment.initial.as_tensors(context.device)
    _choose_for(windows, physics, model, survey, experiment.config, context)


def _choose_for(
    windows: list[Window],
    physics: Physics,
    model: Model,
    survey: Survey,
    config: Config,
    context: Context,
) -> tuple[History, int, int]:
    """What `choose` finds for the survey's largest window."""
    largest = int(np.argmax([window.size for window in windows]))
    weigh = partial(
        physics.choose_history, model, survey.select(np.array([largest])), windows[largest]
    )
    slots = most_at_a_time(config.inversion, context)
    ranks = context.all_gather((memory_of_rank(config.wave, context), slots))
    return choose(weigh, ranks, config.inversion.reproducible)


def choose(
    weigh: Callable[[int], tuple[History, int]],
    ranks: list[tuple[int, int]],
    reproducible: bool,
) -> tuple[History, int, int]:
    """A shot's history, the bytes that it takes, and how many shots at a time at most.

    weigh: history and bytes of a shot for a limit in bytes, as `Physics.choose_history` has them;
    ranks: memory and `most_at_a_time` of each. Raises `InputError` as `settle` does.
    """
    fastest: History | None = None
    if reproducible:
        with suppress(NothingFits, ValueError):
            fastest, _ = weigh(min(memory for memory, _ in ranks))
    for most in range(max(slots for _, slots in ranks), 0, -1):
        share = max(1, min(memory // min(slots, most) for memory, slots in ranks))
        try:
            history, needed = weigh(share)
        except NothingFits as error:
            needed = error.needed
        except ValueError as error:
            raise InputError("wave.history", str(error), "Change the value.") from error
        else:
            if fastest is not None and not computes_alike(history, fastest):
                continue
        if needed <= share:
            return history, needed, most
    raise InputError(
        "wave.memory",
        f"the simulation of one shot takes {_say(needed)}, and a rank may take {_say(share)}",
        "Give more memory or start fewer ranks a node, choose a more frugal wave.history, a "
        "wave.aperture or a larger model.spacing.",
    )


def _report(windows: list[Window], physics: Physics) -> None:
    share = np.mean([window.size for window in windows]) / prod(physics.grid.shape)
    log.info("Windows: a shot has %.0f %% of the model's cells on average", 100.0 * share)
    if share > 0.99:
        log.warning(
            "wave.aperture gains nothing, as sources and receivers of a shot span the model: "
            "inversion.max_offset leaves receivers out"
        )


def _say(size: int) -> str:
    return ByteSize(size).human_readable(decimal=True, separator=" ")
