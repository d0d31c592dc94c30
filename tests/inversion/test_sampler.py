"""The shots of batches, and the reading of their data in advance."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from hpcfwi.config.inversion import InversionSection
from hpcfwi.inversion.stages import Draws, Sampler, Stage, draw_anew, sweep, take_all
from hpcfwi.operators.simulator import Chunks
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.shards import StaticSchedule
from hpcfwi.survey import Survey

N_SHOTS, BATCH, LAST = 10, 3, 6
SURVEY = Survey(np.arange(20.0).reshape(10, 2), np.zeros((4, 2)), np.ones(5, np.float32), 0.002)
COSTS = np.linspace(1.0, 2.0, N_SHOTS)


class FakePrefetcher:
    """A prefetcher that records the requested shots."""

    def __init__(self):
        self.requested = []

    def request(self, shots):
        self.requested.append(shots.tolist())
        return lambda: shots[:, None, None] * np.ones((1, 4, 5), np.float32)


class FakeSchedule:
    """A dynamic schedule that deals one slot at a time, the costliest first."""

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


def make_sampler(prefetcher, context=None, seed=5, schedule=None, sampling="sweep"):
    context = context or Context.alone()
    keys = {"epochs": LAST, "batch": BATCH, "seed": seed, "sampling": sampling}
    section = InversionSection(optimizer="adam", **keys)
    config = SimpleNamespace(inversion=section)
    stage = Stage(0, "the only one", 0, SimpleNamespace(survey=SURVEY, config=config))
    schedule, chunks = schedule or StaticSchedule(context), Chunks(1, context)
    return Sampler(stage, COSTS, schedule, chunks, prefetcher)


DRAWS = Draws(5, 0, N_SHOTS, (BATCH,) * LAST)


@pytest.mark.parametrize(
    ("name", "choose"), [("sweep", sweep), ("random", draw_anew), ("all", take_all)]
)
def test_sampling_key_selects_the_method(name, choose):
    sampler = make_sampler(FakePrefetcher(), sampling=name)
    for epoch in range(1, LAST + 1):
        chosen = choose(DRAWS, epoch - 1)
        np.testing.assert_array_equal(sampler.take(epoch).shots, chosen)


def test_data_of_next_batch_are_requested_while_one_is_used():
    prefetcher = FakePrefetcher()
    sampler = make_sampler(prefetcher)
    for epoch in range(1, LAST + 1):
        batch = sampler.take(epoch)
        (part,) = batch.deal(batch.shots)
        ahead = [] if epoch == LAST else [sweep(DRAWS, epoch).tolist()]
        read = [shots for shots in prefetcher.requested if shots]
        assert read[epoch - 1 :] == [part.shots.tolist(), *ahead]
        np.testing.assert_array_equal(part.traces()[:, 0, 0], part.shots)
        np.testing.assert_array_equal(part.survey.sources, SURVEY.sources[part.shots])


def test_batch_may_be_dealt_again_or_in_any_part():
    batch = make_sampler(FakePrefetcher()).take(1)
    first, again = ([part.shots.tolist() for part in batch.deal(batch.shots)] for _ in range(2))
    assert first == again == [batch.shots.tolist()]
    one = batch.part(batch.shots[1:2])
    assert one.traces()[0, 0, 0] == one.shots[0] == batch.shots[1]


def test_dynamic_schedule_deals_costliest_shots_first_and_reads_late():
    prefetcher = FakePrefetcher()
    batch = make_sampler(prefetcher, schedule=FakeSchedule()).take(LAST)
    costliest_first = sorted(batch.shots.tolist(), reverse=True)
    dealing = batch.deal(batch.shots)
    for k, shot in enumerate(costliest_first):
        assert next(dealing).shots.tolist() == [shot]
        assert prefetcher.requested == [[dealt] for dealt in costliest_first[: k + 1]]
    with pytest.raises(StopIteration):
        next(dealing)


def test_ranks_share_a_batch_and_each_reads_only_its_part():
    alone = Context.alone()
    for size in (2, 3, 5):
        parts = []
        for rank in range(size):
            prefetcher = FakePrefetcher()
            context = Context(rank, size, rank, "host", alone.device, 1)
            batch = make_sampler(prefetcher, context).take(LAST)
            mine = [part.shots for part in batch.deal(batch.shots)]
            assert prefetcher.requested[0] == (mine[0].tolist() if mine else [])
            parts += mine
        np.testing.assert_array_equal(np.concatenate(parts), batch.shots)
        assert len(parts) == min(size, BATCH)
