"""What an inversion takes of a host's memory, and of a rank's, beside its waves.

Asked by a run, which leaves as much when it chooses a history, and by its plan. What waves take is
in `operators.capacity`; what is free, and who shares it, too. Arrays that are gone do not count, of
which the C library keeps some (decision 048).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.optimizers import Price
from hpcfwi.inversion.updates import find_price, size_unknowns
from hpcfwi.model import Grid, Model
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.replicas import is_common
from hpcfwi.parallel.shards import size_slabs
from hpcfwi.report.excerpts import MOST_CELLS, MOST_WHOLE

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
        """What is still to come on a device, with what is given there; has_state: and the state."""
        begun = 0 if has_state else self.state + self.remembered
        on_host = 0
        if device.type == "cpu":
            on_host = self.traces + self.records + self.figures + (0 if has_state else self.engine)
        return self.stage + begun + self.update + on_host


def weigh_upkeep(experiment: Experiment, ranks: int, rank: int) -> Upkeep:
    """Of one of so many ranks, where each takes as many shots as another."""
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
    """What its optimiser asks for in an epoch."""
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
    """What rank 0 draws and writes; whole: what an optimiser remembers, gathered if need be."""
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
