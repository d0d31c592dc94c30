"""The memory of an inversion in addition to its waves, and the memory left for simulations.

A run uses these estimates to choose a history, and its plan uses the same. `operators.simulator`
estimates the memory of the waves, and the free memory of each rank. Released arrays are not
counted, although the C library keeps some of their memory (docs/decisions/048).
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, replace
from itertools import chain
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.config.inversion import InversionSection
from hpcfwi.config.values import count_bytes
from hpcfwi.errors import InputError, say_bytes, say_count
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.loop import find_optimizer_cost, size_unknowns
from hpcfwi.inversion.optimizers import OptimizerCost
from hpcfwi.model import Grid, Model
from hpcfwi.operators.simulator import (
    Chunks,
    MemoryPlan,
    MemoryShare,
    Simulator,
    largest_task,
    plan_memory,
    share_of_rank,
)
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.replicas import is_host_shared
from hpcfwi.parallel.shards import size_shards
from hpcfwi.report.panels import MOST_CELLS, MOST_WHOLE
from hpcfwi.survey import Survey
from hpcfwi.wave.history import describe

log = logging.getLogger("hpcfwi")

# Bytes by which the program itself grows (docs/decisions/062): on each rank when the wave engine is
# loaded, and on rank 0 when it is compiled and when figures are drawn.
ENGINE, COMPILER, FIGURES = 40_000_000, 60_000_000, 100_000_000
# Bytes per cell and inverted parameter, up to `CARRIED`. A stage: the initial model as tensors, and
# the fixed cells twice.
LIMITS = 4 + 2
# A stage's background of linear waves, and the prior model of its regularizer, if it has them.
BACKGROUND, PRIOR = 4, 4
# The initial model of a change of variables, in double precision; others may be constant.
CHANGED_START = 2 * 8
# Between epochs: the model and the best one.
STATE = 2 * 4
# An update: the integer sum of the gradient.
UPDATE = 8
# An update with several evaluations: the gradient of the first one.
EVALUATED = 4
# An update with products: the directions in double precision, and the last ones.
PRODUCTS = 3 * 8
# A regularizer: slopes, their lengths and the fluxes, in double precision.
REGULARIZED = 7 * 8
# A change of variables, in double precision: both sides of it, their gradients and intermediates.
CHANGED = 10 * 8
# Rank 0: the arrays of the figure that is drawn, and of one in the queue; the arrays that are
# written, and a file in memory.
PICTURES, FILES = 2 * 4 * 4, 4 * 4
# Rank 0, for a large model that is drawn as an excerpt: a gradient and its magnitudes, from which
# the excerpt is made, and the excerpt; the file of a model.
EXCERPTED, MODEL_FILE = 4 + 9, 4
# A gradient that is known from the epoch before, between epochs. Rank 0, for an older state that is
# being written: its model, in addition to such a gradient.
CARRIED, WRITTEN = 4, 4
# Bytes per cell. The integer sums of two illuminations; those of the first of several evaluations.
LIT, EVALUATED_LIT = 2 * 8, 2 * 4
# The taper around sources and receivers, once per host. It exists when a history is chosen.
TAPER = 8
# Rank 0, per drawn cell: six panels and Matplotlib's copies, in double precision.
DRAWN = 6 * 2 * 8
# Rank 0, per cell: the operands of an image. Per cell and parameter: the image; it and the true one
# in the figure that is drawn, and in one in the queue.
IMAGED, IMAGES = 4 * 8, 8 + 2 * 2 * 8
# A resolution: the speed, the perturbation and the response in double precision, and a model and
# its change as tensors.
RESOLVED = 3 * 8 + 2 * 4
# Bytes per sample of a trace while it is compared, in addition to the traces that an engine counts.
COMPARED = 8


@dataclass(frozen=True)
class MemoryOverhead:
    """The bytes of a rank in addition to its waves, and those of its host.

    host: models, survey and taper that the ranks of the host share; given: models and survey of
    this rank alone; both are allocated before a history is chosen. stage: the current stage; state:
    the state between epochs; remembered: the state of the optimizer; update: the arrays of an
    epoch; traces: observed traces of an epoch and the next one; records: figures and files of rank
    0; each_shot: for each shot that is simulated at a time; engine, figures: growth of the program
    by the engine and by Matplotlib.
    """

    host: int
    given: int
    stage: int
    state: int
    remembered: int
    update: int
    traces: int
    records: int
    each_shot: int
    engine: int
    figures: int

    def ahead(self, device: torch.device, has_state: bool) -> int:
        """Return the bytes still to be allocated on a device; has_state: without the state."""
        begun = 0 if has_state else self.state + self.remembered
        ahead = self.stage + begun + self.update
        if device.type == "cpu":
            ahead += self.traces + self.records + self.figures + (0 if has_state else self.engine)
        return ahead


def estimate_overhead(experiment: Experiment, ranks: int, rank: int) -> MemoryOverhead:
    """Return the overhead of one of so many ranks with equal numbers of shots."""
    section, survey = experiment.config.inversion, experiment.survey
    cells, traces = prod(experiment.initial.grid.shape), survey.n_receivers * survey.n_samples
    values = _count_values(experiment)
    shots = -(-section.largest_batch(survey.n_shots) // ranks)
    # The next epoch's data are read while this one's are used.
    held = min(2, section.epochs) * shots
    host, given = estimate_given(experiment)
    tapers = section.precondition is not None and section.precondition.taper is not None
    whole, shards = estimate_optimizer(experiment, ranks)
    # Whole arrays are gathered from shards for each state that is written
    written = whole
    if not section.optimizer.sharded:
        written -= find_cost(experiment).shared * sum(size_unknowns(experiment))
    return MemoryOverhead(
        host=host + TAPER * cells * tapers,
        given=given,
        stage=_estimate_stage(experiment, shots),
        state=(STATE + CARRIED * find_cost(experiment).carries) * values,
        remembered=shards if section.optimizer.sharded else whole,
        update=_estimate_update(experiment),
        traces=4 * traces * held,
        records=_estimate_records(experiment, written) if rank == 0 else 0,
        each_shot=COMPARED * traces + _estimate_sources(experiment),
        engine=estimate_engine(rank),
        figures=FIGURES if rank == 0 and "matplotlib.figure" not in sys.modules else 0,
    )


def _count_values(experiment: Experiment) -> int:
    return sum(array.size for array in experiment.inverted.arrays.values())


def estimate_engine(rank: int) -> int:
    """Return the bytes by which a rank grows when it loads the wave engine."""
    return ENGINE + COMPILER * (rank == 0)


def estimate_resolution(experiment: Experiment, context: Context) -> int:
    """Return the bytes of a rank for the resolution of a model, in addition to its waves."""
    grid, survey = experiment.initial.grid, experiment.survey
    cells, traces = prod(grid.shape), survey.n_receivers * survey.n_samples
    shots = min(context.shots_at_once, survey.n_shots)
    needed = (RESOLVED + UPDATE + LIT) * cells
    needed += shots * COMPARED * traces
    if context.device.type == "cpu":
        needed += estimate_engine(context.rank)
        needed += (FIGURES + DRAWN * _count_drawn(grid)) * context.is_root
    return needed


def estimate_given(experiment: Experiment) -> tuple[int, int]:
    """Return the bytes of models and survey: shared by a host, and of this rank alone."""
    known, survey = experiment.known, experiment.survey
    models = experiment.true, experiment.initial, known.start, *known.priors.values()
    given = [
        *chain(*(model.arrays.values() for model in models if model is not None)),
        *chain(known.surfaces.values(), known.masks.values(), known.weights.values()),
        *(survey.sources, survey.receivers, survey.wavelet, survey.mask),
        *(survey.components.kinds, survey.components.directions),
    ]
    arrays = {id(array): array for array in given if array is not None}.values()
    host = sum(array.nbytes for array in arrays if is_host_shared(array))
    return host, sum(array.nbytes for array in arrays) - host


def estimate_optimizer(experiment: Experiment, ranks: int) -> tuple[int, int]:
    """Return the bytes of an optimizer's state: the whole, and a shard for so many ranks."""
    sizes, each = size_unknowns(experiment), find_cost(experiment).remembered
    parts = (size_shards(n, ranks) if ranks > 1 else n for n in sizes)
    return each * sum(sizes), each * sum(parts)


def find_cost(experiment: Experiment) -> OptimizerCost:
    """Return the cost of the largest epoch of the optimizer."""
    batch = experiment.config.inversion.largest_batch(experiment.survey.n_shots)
    return find_optimizer_cost(experiment)(batch)


def _estimate_update(experiment: Experiment) -> int:
    cost, regularizes = find_cost(experiment), experiment.config.inversion.regularize is not None
    products, again = cost.products[1] > 0, cost.tries[1] + cost.products[1] > 0
    each = UPDATE + EVALUATED * again + PRODUCTS * products + cost.working
    each += REGULARIZED * regularizes + CHANGED * experiment.config.inversion.changes_variables
    lit = LIT + EVALUATED_LIT * again
    return each * _count_values(experiment) + lit * prod(experiment.initial.grid.shape)


def _estimate_stage(experiment: Experiment, shots: int) -> int:
    """Return the bytes of a stage; shots: number of this rank's shots in an epoch."""
    section = experiment.config.inversion
    each = LIMITS + BACKGROUND * section.linear + PRIOR * (section.regularize is not None)
    each += CHANGED_START * section.changes_variables
    return each * _count_values(experiment) + shots * _estimate_sources(experiment)


def _estimate_sources(experiment: Experiment) -> int:
    """Return the bytes of the wavelets of an encoded shot, which has all sources."""
    if experiment.config.inversion.encoding == "none":
        return 0
    return 4 * experiment.survey.n_shots * experiment.survey.n_samples


def _estimate_records(experiment: Experiment, written: int) -> int:
    """Return the bytes for figures and files on rank 0.

    written: bytes of an optimizer's older state that is being written.
    """
    section, grid, survey = experiment.config.inversion, experiment.initial.grid, experiment.survey
    is_large = prod(grid.shape) > MOST_WHOLE
    each = EXCERPTED + MODEL_FILE if is_large else PICTURES + FILES
    each += IMAGES * section.linear + WRITTEN + CARRIED * find_cost(experiment).carries
    # With a mask, each figure has the positions of the receivers that exist.
    heard = 0 if survey.mask is None else int(np.count_nonzero(survey.mask))
    others = DRAWN * _count_drawn(grid) * len(experiment.inverted.arrays)
    others += IMAGED * section.linear * prod(grid.shape) + written + 2 * 8 * grid.ndim * heard
    return each * _count_values(experiment) + others


def _count_drawn(grid: Grid) -> int:
    """Return the number of cells of a figure, 0 for a volume, whose slices are small."""
    return prod(min(n, MOST_CELLS) for n in grid.shape) if grid.ndim == 2 else 0


# Number of launches of a GPU for its share of a batch, with a dynamic schedule.
QUARTERS = 4
# Largest share of a rank's memory for observed data, which are otherwise read again in each epoch.
HELD_SHARE = 0.5


def find_shares(
    experiment: Experiment, survey: Survey, context: Context, has_state: bool
) -> tuple[list[MemoryShare], int]:
    """Return each rank's memory for shots, and the bytes of data for encoded shots; collective.

    The memory is `wave.memory` if given, otherwise the memory that is free now and not needed for
    other things. The bytes are 0 if they are too many; data are then read again for each batch.
    has_state: True if the state between epochs is allocated; a given limit is then not refused any
    more.
    """
    config = experiment.config
    most_at_once = most_at_a_time(config.inversion, survey.n_shots, context)
    overhead = estimate_overhead(experiment, context.size, context.rank)
    limit = None if config.wave.memory is None else count_bytes(config.wave.memory)
    reserved = overhead.ahead(context.device, has_state)
    share = share_of_rank(context, most_at_once, reserved, overhead.each_shot, limit)
    if has_state:
        share = replace(share, room=sys.maxsize)
    shares = context.all_gather(share)
    if config.inversion.encoding == "none":
        return shares, 0
    part = 4 * -(-survey.sources.shape[-2] // context.size) * survey.n_receivers * survey.n_samples
    held = part if part <= HELD_SHARE * min(share.memory for share in shares) else 0
    return [replace(share, memory=share.memory - held) for share in shares], held


def most_at_a_time(section: InversionSection, n_shots: int, context: Context) -> int:
    """Return the number of shots that this rank simulates at a time if memory does not matter.

    A CPU simulates one shot on each thread. A GPU simulates all shots of the rank in one launch, or
    a quarter of them with a dynamic schedule, so that faster ranks can take more.
    """
    if context.device.type == "cuda":
        launches = context.size * (QUARTERS if section.schedule == "dynamic" else 1)
        return -(-section.largest_batch(n_shots) // launches)
    return min(section.largest_batch(n_shots), context.shots_at_once)


def plan_memory_of_ranks(
    simulator: Simulator,
    model: Model,
    survey: Survey,
    experiment: Experiment,
    context: Context,
    has_state: bool,
) -> MemoryPlan:
    """Choose how the shots are simulated with the memory that the ranks have now; collective.

    has_state: as in `find_shares`. Raises `InputError` on all ranks.
    """
    shares, _ = find_shares(experiment, survey, context, has_state)
    task = largest_task(simulator, model, survey, experiment.costs_of(survey, simulator))
    try:
        return plan_memory(task, shares, experiment.config.inversion.reproducible)
    except InputError as error:
        context.raise_on_all_ranks(error)


def count_forward_shots(experiment: Experiment, context: Context, is_loaded: bool) -> int:
    """Return the number of shots of observed data that this rank simulates at a time; collective.

    Parameters
    ----------
    experiment
        The true model and the survey.
    context
        The ranks.
    is_loaded
        True if the wave engine is loaded, so that its memory is already in use.

    Raises
    ------
    InputError
        On all ranks, if a single shot does not fit on one of them.
    """
    survey, true = experiment.survey, experiment.true
    assert true is not None
    ahead = 0 if is_loaded or context.device.type != "cpu" else estimate_engine(context.rank)
    share = share_of_rank(context, context.shots_at_once, ahead)
    model, shot = true.as_tensors(context.device), survey.select(np.array([0]))
    task = experiment.simulator(true).set_up(model, shot, None, illuminate=False)
    needed = task.footprint_forward()
    least = min(context.all_gather(share), key=lambda share: share.memory)
    if needed > least.memory:
        context.raise_on_all_ranks(
            InputError(
                "memory",
                f"the simulation of one shot takes {say_bytes(needed)}, but a rank may take only "
                f"{say_bytes(least.memory)} besides the program{least.free_text}",
                "Give more memory, start fewer ranks per node, or choose a larger model.spacing.",
            )
        )
    more = task.repeat(2).footprint_forward() - needed
    return min(context.shots_at_once, 1 + (share.memory - needed) // more)


def choose_history_and_chunk(
    simulator: Simulator, model: Model, experiment: Experiment, context: Context, has_state: bool
) -> tuple[Simulator, Chunks]:
    """Return a simulator with the history that fits, and the first size of chunks; collective.

    has_state: as in `find_shares`. Raises `InputError` on all ranks.
    """
    survey = experiment.simulated_survey()
    if simulator.aperture.margin is not None and context.is_root:
        _report_windows(simulator, experiment.costs_of(survey, simulator))
    plan = plan_memory_of_ranks(simulator, model, survey, experiment, context, has_state)
    most = most_at_a_time(experiment.config.inversion, survey.n_shots, context)
    size = min(most, plan.at_once)
    log.info(
        "History: %s, %s per shot; %s at a time",
        describe(plan.history),
        say_bytes(plan.shot),
        say_count(size, "shot"),
    )
    # The sampling interval stays, even if a fast model divides steps into more substeps.
    wanted = simulator.method.history
    assert not isinstance(wanted, str), "parsed by the experiment"
    kept = replace(plan.history, interval=wanted.interval)
    return simulator.with_history(kept), Chunks(size, context)


def _report_windows(simulator: Simulator, costs: NDArray[np.float64]) -> None:
    cells = prod(simulator.grid.shape)
    share = float(np.mean(costs)) / cells
    log.info("Windows: a shot uses %.0f %% of the model's cells on average", 100.0 * share)
    if share > 0.99:
        log.warning(
            "wave.aperture has no effect, because sources and receivers of a shot span the model; "
            "inversion.max_offset leaves out far receivers"
        )
