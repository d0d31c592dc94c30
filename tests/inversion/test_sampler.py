"""Whose data are in memory, and when they are read."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from hpcfwi.config.inversion import InversionSection
from hpcfwi.inversion.draws import Draws, draw_anew, sweep, take_all
from hpcfwi.inversion.stages import Sampler, Stage
from hpcfwi.operators.batching import Chunks
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.shards import StaticSchedule
from hpcfwi.survey import Survey

N_SHOTS, BATCH, LAST = 10, 3, 6
SURVEY = Survey(np.arange(20.0).reshape(10, 2), np.zeros((4, 2)), np.ones(5, np.float32), 0.002)
COSTS = np.linspace(1.0, 2.0, N_SHOTS)


class Ledger:
    """In place of a prefetcher: notes what was asked for."""

    def __init__(self):
        self.requested = []

    def request(self, shots):
        self.requested.append(shots.tolist())
        return lambda: shots[:, None, None] * np.ones((1, 4, 5), np.float32)


class Dealt:
    """In place of a schedule that deals one slot after the other, the dearest first."""

    def __init__(self):
        self.left = []

    def order(self, costs):
        return np.argsort(-costs)

    def first(self, slots):
        return np.arange(min(1, slots))

    def begin(self):
        self.left = [2, 1]

    def more(self, slots, at_most):  # noqa: ARG002
        taken = [self.left.pop() for _ in range(min(at_most, len(self.left)))]
        return np.array(taken, dtype=int)


def make_sampler(ledger, context=None, seed=5, schedule=None, sampling="sweep"):
    context = context or Context.alone()
    keys = {"epochs": LAST, "batch": BATCH, "seed": seed, "sampling": sampling}
    section = InversionSection(optimizer="adam", **keys)
    config = SimpleNamespace(inversion=section)
    stage = Stage(0, "the only one", 0, SimpleNamespace(survey=SURVEY, config=config))
    schedule, chunks = schedule or StaticSchedule(context), Chunks(1, context)
    return Sampler(stage, COSTS, schedule, chunks, ledger)


DRAWS = Draws(5, 0, N_SHOTS, (BATCH,) * LAST)


@pytest.mark.parametrize(
    ("name", "choose"), [("sweep", sweep), ("random", draw_anew), ("all", take_all)]
)
def test_the_input_names_the_way(name, choose):
    sampler = make_sampler(Ledger(), sampling=name)
    for epoch in range(1, LAST + 1):
        chosen = choose(DRAWS, epoch - 1)
        np.testing.assert_array_equal(sampler.take(epoch).shots, chosen)


def test_a_continued_run_draws_what_it_would_have_drawn():
    whole = make_sampler(Ledger())
    drawn = [whole.take(epoch).shots.tolist() for epoch in range(1, LAST + 1)]
    continued = make_sampler(Ledger())
    assert [continued.take(epoch).shots.tolist() for epoch in range(4, LAST + 1)] == drawn[3:]


def test_while_one_batch_is_used_the_next_is_read_and_nothing_else():
    ledger = Ledger()
    sampler = make_sampler(ledger)
    for epoch in range(1, LAST + 1):
        batch = sampler.take(epoch)
        (part,) = batch.deal(batch.shots)
        ahead = [] if epoch == LAST else [sweep(DRAWS, epoch).tolist()]
        read = [shots for shots in ledger.requested if shots]
        assert read[epoch - 1 :] == [part.shots.tolist(), *ahead]
        np.testing.assert_array_equal(part.traces()[:, 0, 0], part.shots)
        np.testing.assert_array_equal(part.survey.sources, SURVEY.sources[part.shots])


def test_a_batch_may_be_dealt_again_and_any_of_its_shots_be_had():
    batch = make_sampler(Ledger()).take(1)
    first, again = ([part.shots.tolist() for part in batch.deal(batch.shots)] for _ in range(2))
    assert first == again == [batch.shots.tolist()]
    one = batch.part(batch.shots[1:2])
    assert one.traces()[0, 0, 0] == one.shots[0] == batch.shots[1]


def test_what_is_dealt_later_comes_in_the_order_of_the_schedule_and_is_read_when_it_is_dealt():
    ledger = Ledger()
    batch = make_sampler(ledger, schedule=Dealt()).take(LAST)
    dearest_first = sorted(batch.shots.tolist(), reverse=True)
    dealing = batch.deal(batch.shots)
    for k, shot in enumerate(dearest_first):
        assert next(dealing).shots.tolist() == [shot]
        assert ledger.requested == [[dealt] for dealt in dearest_first[: k + 1]]
    with pytest.raises(StopIteration):
        next(dealing)


def test_ranks_share_a_batch_and_each_reads_its_own_part_only():
    alone = Context.alone()
    for size in (2, 3, 5):
        parts = []
        for rank in range(size):
            ledger = Ledger()
            context = Context(rank, size, rank, "host", alone.device, 1)
            batch = make_sampler(ledger, context).take(LAST)
            mine = [part.shots for part in batch.deal(batch.shots)]
            assert ledger.requested[0] == (mine[0].tolist() if mine else [])
            parts += mine
        np.testing.assert_array_equal(np.concatenate(parts), batch.shots)
        assert len(parts) == min(size, BATCH)


def test_the_shots_of_an_epoch_are_drawn_once(monkeypatch):
    drawn, shots = [], Stage.shots

    def note(stage, epoch):
        drawn.append(epoch)
        return shots(stage, epoch)

    monkeypatch.setattr(Stage, "shots", note)
    sampler = make_sampler(Ledger())
    for epoch in range(1, LAST + 1):
        sampler.take(epoch)
    assert drawn == [*range(1, LAST + 1)]
