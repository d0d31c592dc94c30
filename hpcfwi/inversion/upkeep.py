"""What an inversion takes of a rank's memory beside its waves.

Asked by a run, which leaves as much when it chooses a history, and by its plan. What waves take is
in `operators.capacity`; what is free, and who shares it, too. Arrays that are gone do not count, of
which the C library keeps some (decision 048).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.updates import find_price, size_unknowns
from hpcfwi.parallel.slabs import size_slabs
from hpcfwi.report.excerpts import MOST_CELLS

# Bytes of a cell. Of the experiment: the initial and the true model, and masks.
MODELS = 2 * 4 + 2
# From one epoch to the next: the model, the best one, and a gradient that is known already.
STATE = 3 * 4
# Of an update: the gradient, sums of it and of two illuminations in whole numbers, their means.
UPDATE = 4 + 3 * 8 + 3 * 4
# For each shot at once: its gradient and illuminations.
SHOT = 3 * 4
# On rank 0: the arrays of the picture that is drawn, and of one that waits.
PICTURES = 2 * 4 * 4
# There, of a cell that is drawn: five panels and Matplotlib's copies, in double precision.
DRAWN = 5 * 2 * 8
# There, where the model is an image: reflectivities, theirs and of the truth.
IMAGES = 4 * 8
# Bytes of a sample of a trace while it is compared, beyond the traces that an engine counts.
COMPARED = 8


@dataclass(frozen=True)
class Upkeep:
    """Bytes of a rank beside its waves.

    models: of the experiment, there from the beginning; state: between epochs; remembered: by the
    optimiser; update: of an epoch; traces: observed ones, of an epoch and the next; records: what
    rank 0 draws and gathers; each_shot: for each that is simulated at once.
    """

    models: int
    state: int
    remembered: int
    update: int
    traces: int
    records: int
    each_shot: int

    def ahead(self, device: torch.device, has_state: bool) -> int:
        """What is still to come on a device, with the models there; has_state: and the state."""
        begun = 0 if has_state else self.state + self.remembered
        on_host = self.traces + self.records if device.type == "cpu" else 0
        return begun + self.update + on_host


def weigh_upkeep(experiment: Experiment, ranks: int, rank: int) -> Upkeep:
    """Of one of so many ranks, where each takes as many shots as another."""
    section, survey = experiment.config.inversion, experiment.survey
    cells, traces = prod(experiment.initial.grid.shape), survey.n_receivers * survey.n_samples
    batch = section.largest_batch(survey.n_shots)
    # The next epoch's are read while this one's are used
    held = min(2, section.epochs) * -(-batch // ranks)
    whole, slabs = weigh_optimizer(experiment, ranks)
    sharded = section.optimizer.sharded
    records = 0
    if rank == 0:
        shape = experiment.initial.grid.shape
        # Of a volume three slices are drawn
        drawn = prod(min(n, MOST_CELLS) for n in shape) if len(shape) == 2 else 0
        gathered = whole if sharded and ranks > 1 else 0
        records = (PICTURES + IMAGES * section.linear) * cells + DRAWN * drawn + gathered
    return Upkeep(
        MODELS * cells,
        STATE * cells,
        slabs if sharded else whole,
        UPDATE * cells,
        4 * traces * held,
        records,
        SHOT * cells + COMPARED * traces,
    )


def weigh_optimizer(experiment: Experiment, ranks: int) -> tuple[int, int]:
    """Bytes that an optimiser remembers: all of it, and in the slabs of one of so many ranks."""
    sizes = size_unknowns(experiment)
    batch = experiment.config.inversion.largest_batch(experiment.survey.n_shots)
    each = find_price(experiment)(batch).remembered
    parts = (size_slabs(n, ranks) if ranks > 1 else n for n in sizes)
    return each * sum(sizes), each * sum(parts)
