"""What a config leaves the ranks of memory: how their shots are simulated in it.

Asked by a run and by its plan alike. What a shot takes is in `operators.capacity`, what a rank
takes beside its waves in `upkeep`.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from hpcfwi.config.inversion import InversionSection
from hpcfwi.config.values import count_bytes
from hpcfwi.errors import InputError, say_bytes
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.upkeep import weigh_engine, weigh_upkeep
from hpcfwi.model import Model
from hpcfwi.operators.capacity import Fit, Share, fit_shots, largest_task, share_of_rank
from hpcfwi.operators.chunks import Chunks
from hpcfwi.operators.simulator import Simulator
from hpcfwi.parallel.context import Context
from hpcfwi.survey import Survey
from hpcfwi.wave.history import describe

log = logging.getLogger("hpcfwi")

# Launches of a GPU for its share of a batch, where shots are handed out as ranks get through.
QUARTERS = 4
# Of a rank's memory, at most, for observed data that it would else read anew for each epoch
HELD_SHARE = 0.5


def find_shares(
    experiment: Experiment, survey: Survey, context: Context, has_state: bool
) -> tuple[list[Share], int]:
    """What each rank has for the shots of a survey, and holds of encoded ones' data; collective.

    `wave.memory` where it is given, else what is free now and not needed otherwise. has_state:
    whether the state that is between epochs is there by now, or still to come; once it is, a limit
    that was given is not refused any more.
    """
    config = experiment.config
    slots = most_at_a_time(config.inversion, survey.n_shots, context)
    upkeep = weigh_upkeep(experiment, context.size, context.rank)
    limit = None if config.wave.memory is None else count_bytes(config.wave.memory)
    beside = upkeep.ahead(context.device, has_state)
    share = share_of_rank(context, slots, beside, upkeep.each_shot, limit)
    if has_state:
        share = replace(share, room=sys.maxsize)
    shares = context.all_gather(share)
    if config.inversion.encoding == "none":
        return shares, 0
    held = _bytes_to_hold(survey, min(share.memory for share in shares), context.size)
    return [replace(share, memory=share.memory - held) for share in shares], held


def most_at_a_time(section: InversionSection, n_shots: int, context: Context) -> int:
    """Shots of the largest batch that this rank simulates at a time where memory does not matter.

    A CPU simulates one a thread; a GPU all of the rank's in one launch, or a quarter of them where
    ranks that are faster than others are to take more.
    """
    if context.device.type == "cuda":
        launches = context.size * (QUARTERS if section.schedule == "dynamic" else 1)
        return -(-section.largest_batch(n_shots) // launches)
    return min(section.largest_batch(n_shots), context.threads)


def fit_ranks(
    simulator: Simulator,
    model: Model,
    survey: Survey,
    experiment: Experiment,
    context: Context,
    has_state: bool,
) -> Fit:
    """How the survey's shots are simulated on these ranks, `fit_shots` with what they have now.

    has_state: as in `find_shares`. Collective; raises `InputError` on all ranks as `fit_shots` and
    `largest_task` do.
    """
    shares, _ = find_shares(experiment, survey, context, has_state)
    task = largest_task(simulator, model, survey, experiment.costs_of(survey, simulator))
    return fit_shots(task, shares, experiment.config.inversion.reproducible)


def fit_forward(experiment: Experiment, context: Context, is_loaded: bool) -> int:
    """Return how many shots of the observed data this rank simulates at a time; collective.

    Parameters
    ----------
    experiment
        The true model and the survey.
    context
        The ranks.
    is_loaded
        Whether the wave engine is loaded by now, so that its memory is taken already.

    Raises
    ------
    InputError
        On all ranks, where a single shot does not fit on one of them.
    """
    survey, true = experiment.survey, experiment.true
    assert true is not None
    ahead = 0 if is_loaded or context.device.type != "cpu" else weigh_engine(context.rank)
    share = share_of_rank(context, context.threads, ahead)
    model, shot = true.as_tensors(context.device), survey.select(np.array([0]))
    task = experiment.simulator(true).set_up(model, shot, None, illuminate=False)
    needed = task.footprint_forward()
    least = min(context.all_gather(share), key=lambda share: share.memory)
    if needed > least.memory:
        context.raise_alike(
            InputError(
                "memory",
                f"the simulation of one shot takes {say_bytes(needed)}, and a rank may take "
                f"{say_bytes(least.memory)} beside the program{least.told}",
                "Give more memory, start fewer ranks a node, or choose a larger model.spacing.",
            )
        )
    return min(context.threads, share.memory // needed)


def _bytes_to_hold(survey: Survey, memory: int, ranks: int) -> int:
    """Of the observed data of encoded shots, on each of so many ranks with this memory.

    0 where it is too much to be held, and is read anew for each batch.
    """
    part = 4 * -(-survey.sources.shape[-2] // ranks) * survey.n_receivers * survey.n_samples
    return part if part <= HELD_SHARE * memory else 0


def choose_history_and_chunk(
    simulator: Simulator, model: Model, experiment: Experiment, context: Context, has_state: bool
) -> tuple[Simulator, Chunks]:
    """A simulator with the history that fits, and the chunks to begin with; collective.

    has_state: as in `find_shares`. Raises `InputError` on all ranks as `fit_ranks` does.
    """
    survey = experiment.simulated()
    if simulator.aperture.margin is not None and context.is_root:
        _report_windows(simulator, experiment.costs_of(survey, simulator))
    fit = fit_ranks(simulator, model, survey, experiment, context, has_state)
    most = most_at_a_time(experiment.config.inversion, survey.n_shots, context)
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


def _report_windows(simulator: Simulator, costs: NDArray[np.float64]) -> None:
    cells = prod(simulator.grid.shape)
    share = float(np.mean(costs)) / cells
    log.info("Windows: a shot has %.0f %% of the model's cells on average", 100.0 * share)
    if share > 0.99:
        log.warning(
            "wave.aperture gains nothing, as sources and receivers of a shot span the model: "
            "inversion.max_offset leaves receivers out"
        )
