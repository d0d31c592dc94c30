"""The memory of an inversion: what it takes beside its waves, and what is left for simulations.

A run asks when it chooses a history, and its plan asks the same. `operators.batching` estimates
what waves take, what is free, and who shares it. Arrays that are gone do not count, although the C
library keeps some of them (decision 048).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.config.inversion import InversionSection
from hpcfwi.config.values import count_bytes
from hpcfwi.errors import InputError, say_bytes
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.loop import find_price, size_unknowns
from hpcfwi.inversion.optimizers import Price
from hpcfwi.model import Grid, Model
from hpcfwi.operators.batching import Chunks, Fit, Share, fit_shots, largest_task, share_of_rank
from hpcfwi.operators.simulator import Simulator
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.replicas import is_common
from hpcfwi.parallel.shards import size_slabs
from hpcfwi.report.panels import MOST_CELLS, MOST_WHOLE
from hpcfwi.survey import Survey
from hpcfwi.wave.history import describe

# Bytes by which the program itself grows: on each rank when the wave engine is loaded; on rank 0
# when that is compiled, and when figures are drawn (decision 062).
ENGINE, COMPILER, FIGURES = 40_000_000, 60_000_000, 100_000_000
# Bytes of a cell. Of a stage: the initial model as tensors, which cells are kept, twice.
LIMITS = 4 + 2
# Of one, where it has them: the background of linear waves, and what a regulariser compares with.
BACKGROUND, PRIOR = 4, 4
# Once a host: the taper around sources and receivers, there when a history is chosen.
TAPER = 8
# From one epoch to the next: the model, the best one, and a gradient that is known already.
STATE = 3 * 4
# Of an update: the gradient, sums of it and of two illuminations in whole numbers, their means.
UPDATE = 4 + 3 * 8 + 3 * 4
# Of one that asks for products with directions: these, in double precision, and the last ones.
PRODUCTS = 3 * 8
# Of a regulariser: slopes, their lengths and what flows from them, in double precision.
REGULARIZED = 7 * 8
# For each shot at once: its gradient and illuminations.
SHOT = 3 * 4
# On rank 0: the arrays of the picture that is drawn, and of one that waits; those that are written,
# a file in memory.
PICTURES, FILES = 2 * 4 * 4, 4 * 4
# There, of a model so large that these are excerpts: a gradient and its magnitudes, of which one is
# made, and what is left of them; a model's file.
EXCERPTED, MODEL_FILE = 4 + 9, 4
# There, of a cell that is drawn: six panels and Matplotlib's copies, in double precision.
DRAWN = 6 * 2 * 8
# There, where the model is an image: what it is made of and compared with; the reflectivities of
# the figure that is drawn, and of one that waits.
IMAGES = 5 * 8 + 2 * 2 * 8
# There, of an older state that is being written: its model, and its gradient where that is known.
WRITTEN, CARRIED = 4, 4
# Of a resolution: the speed, the perturbation and the response in double precision, a model and its
# change as tensors.
RESOLVED = 3 * 8 + 2 * 4
# Bytes of a sample of a trace while it is compared, beyond the traces that an engine counts.
COMPARED = 8


@dataclass(frozen=True)
class Upkeep:
    """Bytes of a rank beside its waves, and of its host.

    host: of the models, the survey and a taper, what the host has once; given: what this rank has
    of models and survey for itself; all are there before a history is chosen. stage: of the one
    that it is in; state: between epochs; remembered: by the optimiser; update: of an epoch; traces:
    observed ones, of an epoch and the next; records: what rank 0 draws, writes and gathers;
    each_shot: for each that is simulated at once; engine, figures: what the program grows by when
    it loads the engine, and what it draws with.
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
        on_host = 0
        if device.type == "cpu":
            on_host = self.traces + self.records + self.figures + (0 if has_state else self.engine)
        return self.stage + begun + self.update + on_host


def weigh_upkeep(experiment: Experiment, ranks: int, rank: int) -> Upkeep:
    """Return the upkeep of one of so many ranks with equal numbers of shots."""
    section, survey = experiment.config.inversion, experiment.survey
    cells, traces = prod(experiment.initial.grid.shape), survey.n_receivers * survey.n_samples
    batch = section.largest_batch(survey.n_shots)
    # The next epoch's are read while this one's are used
    held = min(2, section.epochs) * -(-batch // ranks)
    host, given = weigh_given(experiment)
    tapers = section.precondition is not None and section.precondition.taper is not None
    whole, slabs = weigh_optimizer(experiment, ranks)
    return Upkeep(
        host + TAPER * cells * tapers,
        given,
        _weigh_stage(experiment, -(-batch // ranks)),
        STATE * cells,
        slabs if section.optimizer.sharded else whole,
        _weigh_update(experiment),
        4 * traces * held,
        _weigh_records(experiment, whole) if rank == 0 else 0,
        SHOT * cells + COMPARED * traces + _weigh_sources(experiment),
        weigh_engine(rank),
        FIGURES if rank == 0 and "matplotlib.figure" not in sys.modules else 0,
    )


def weigh_engine(rank: int) -> int:
    """Return the bytes by which a rank grows when it loads the wave engine."""
    return ENGINE + COMPILER * (rank == 0)


def weigh_resolution(experiment: Experiment, context: Context) -> int:
    """Return the bytes that a rank takes for the resolution of a model, beside its waves."""
    grid, survey = experiment.initial.grid, experiment.survey
    cells, traces = prod(grid.shape), survey.n_receivers * survey.n_samples
    shots = min(context.threads, survey.n_shots)
    needed = (RESOLVED + UPDATE) * cells + shots * (SHOT * cells + COMPARED * traces)
    if context.device.type == "cpu":
        needed += weigh_engine(context.rank)
        needed += (FIGURES + DRAWN * _count_drawn(grid)) * context.is_root
    return needed


def weigh_given(experiment: Experiment) -> tuple[int, int]:
    """Bytes of the models and the survey: what a host has once, and what is this rank's own."""
    arrays = {id(array): array for array in _find_given(experiment)}.values()
    host = sum(array.nbytes for array in arrays if is_common(array))
    return host, sum(array.nbytes for array in arrays) - host


def _find_given(experiment: Experiment) -> Iterator[NDArray[Any]]:
    known, survey = experiment.known, experiment.survey
    models: list[Model | None] = [experiment.true, experiment.initial, known.start]
    for model in (*models, *known.priors.values()):
        if model is not None:
            yield from model.arrays.values()
    yield from (*known.surfaces.values(), *known.masks.values(), *known.weights.values())
    yield from (survey.sources, survey.receivers, survey.wavelet)
    if survey.mask is not None:
        yield survey.mask


def weigh_optimizer(experiment: Experiment, ranks: int) -> tuple[int, int]:
    """Bytes that an optimiser remembers: all of it, and in the slabs of one of so many ranks."""
    sizes, each = size_unknowns(experiment), _find_price(experiment).remembered
    parts = (size_slabs(n, ranks) if ranks > 1 else n for n in sizes)
    return each * sum(sizes), each * sum(parts)


def _find_price(experiment: Experiment) -> Price:
    """Return the cost of an epoch of its optimizer."""
    batch = experiment.config.inversion.largest_batch(experiment.survey.n_shots)
    return find_price(experiment)(batch)


def _weigh_update(experiment: Experiment) -> int:
    price, regularizes = _find_price(experiment), experiment.config.inversion.regularize is not None
    products = PRODUCTS * (price.products[1] > 0)
    each = UPDATE + products + price.working + REGULARIZED * regularizes
    return each * prod(experiment.initial.grid.shape)


def _weigh_stage(experiment: Experiment, shots: int) -> int:
    """shots: of an epoch, on this rank."""
    section = experiment.config.inversion
    each = LIMITS + BACKGROUND * section.linear + PRIOR * (section.regularize is not None)
    return each * prod(experiment.initial.grid.shape) + shots * _weigh_sources(experiment)


def _weigh_sources(experiment: Experiment) -> int:
    """Wavelets of all sources, with their signs, which an encoded shot has."""
    if experiment.config.inversion.encoding == "none":
        return 0
    return 4 * experiment.survey.n_shots * experiment.survey.n_samples


def _weigh_records(experiment: Experiment, whole: int) -> int:
    """Return the bytes for figures and files on rank 0; whole: bytes of an optimizer's state."""
    section, grid, survey = experiment.config.inversion, experiment.initial.grid, experiment.survey
    carried = CARRIED * _find_price(experiment).carries
    pictures = PICTURES + FILES
    if prod(grid.shape) > MOST_WHOLE:
        pictures = EXCERPTED + MODEL_FILE
    each = pictures + IMAGES * section.linear + WRITTEN + carried
    # Where a mask tells them from others, each picture has the positions of those that are there
    heard = 0 if survey.mask is None else int(np.count_nonzero(survey.mask))
    return each * prod(grid.shape) + DRAWN * _count_drawn(grid) + whole + 2 * 8 * grid.ndim * heard


def _count_drawn(grid: Grid) -> int:
    """Return the number of cells that a figure has; of a volume it has slices, which are small."""
    return prod(min(n, MOST_CELLS) for n in grid.shape) if grid.ndim == 2 else 0


log = logging.getLogger("hpcfwi")

# Launches of a GPU for its share of a batch, where shots are handed out as ranks get through.
QUARTERS = 4
# Of a rank's memory, at most, for observed data that it would else read anew for each epoch
HELD_SHARE = 0.5


def find_shares(
    experiment: Experiment, survey: Survey, context: Context, has_state: bool
) -> tuple[list[Share], int]:
    """Return each rank's memory for shots, and its bytes of encoded shots' data; collective.

    The memory is `wave.memory` if given, else what is free now and not needed otherwise. has_state:
    the state between epochs has been allocated; after that a given limit is not refused any more.
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
    """Choose how the shots are simulated with the memory that the ranks have now; collective.

    has_state: as in `find_shares`. Raises `InputError` on all ranks as `fit_shots` and
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
        True if the wave engine is loaded, so that its memory is in use already.

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
    """Return the bytes of encoded shots' data to hold on each of so many ranks with this memory.

    0 if they are too many, so that the data are read again for each batch.
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
