"""Which shots an epoch uses, and whose data are in memory."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.inversion.sampler import Sampler, choose_shots
from hpcfwi.parallel.context import Context
from hpcfwi.survey import Survey

N_SHOTS, BATCH, LAST = 10, 3, 6
SURVEY = Survey(np.arange(20.0).reshape(10, 2), np.zeros((4, 2)), np.ones(5, np.float32), 0.002)


class Ledger:
    """In place of a prefetcher: notes what was asked for and handed out."""

    def __init__(self):
        self.requested, self.pending = [], None

    def request(self, shots):
        assert self.pending is None, "one request at a time"
        self.pending = shots
        self.requested.append(shots.tolist())

    def take(self):
        shots, self.pending = self.pending, None
        return shots[:, None, None] * np.ones((1, 4, 5), np.float32)


def make_sampler(ledger, context=None, seed=5):
    return Sampler(SURVEY, seed, BATCH, ledger, context or Context.alone())


@given(st.integers(0, 2**32), st.integers(1, 10**6), st.integers(1, 400), st.data())
def test_a_batch_is_of_different_shots_of_the_survey(seed, epoch, n_shots, data):
    batch = data.draw(st.integers(1, n_shots))
    shots = choose_shots(seed, epoch, n_shots, batch)
    assert len(set(shots.tolist())) == batch
    assert set(shots.tolist()) <= set(range(n_shots))
    np.testing.assert_array_equal(shots, choose_shots(seed, epoch, n_shots, batch))


def test_epochs_and_seeds_draw_differently_and_use_every_shot_in_time():
    draws = [tuple(choose_shots(0, epoch, 100, 8)) for epoch in range(1, 101)]
    assert len(set(draws)) == 100
    assert {shot for draw in draws for shot in draw} == set(range(100))
    assert draws != [tuple(choose_shots(1, epoch, 100, 8)) for epoch in range(1, 101)]


def test_a_continued_run_draws_what_it_would_have_drawn():
    whole = make_sampler(Ledger())
    drawn = [whole.take(epoch, LAST).shots.tolist() for epoch in range(1, LAST + 1)]
    continued = make_sampler(Ledger())
    assert [continued.take(epoch, LAST).shots.tolist() for epoch in range(4, LAST + 1)] == drawn[3:]


def test_while_one_batch_is_used_the_next_is_read_and_nothing_else():
    ledger = Ledger()
    sampler = make_sampler(ledger)
    for epoch in range(1, LAST + 1):
        batch = sampler.take(epoch, LAST)
        ahead = [] if epoch == LAST else [choose_shots(5, epoch + 1, N_SHOTS, BATCH).tolist()]
        assert ledger.requested[epoch - 1 :] == [batch.mine.tolist(), *ahead]
        np.testing.assert_array_equal(batch.observed[:, 0, 0], batch.mine)
        np.testing.assert_array_equal(batch.survey.sources, SURVEY.sources[batch.mine])
    assert ledger.pending is None, "after the last epoch nothing more is read"


class OneOf(Context):
    """One rank of several, as far as the sampler can tell."""

    def broadcast(self, value):
        return value


def test_ranks_share_a_batch_and_each_reads_its_own_part_only():
    alone = Context.alone()
    for size in (2, 3, 5):
        parts = []
        for rank in range(size):
            ledger = Ledger()
            context = OneOf(rank, size, rank, "host", alone.device, 1)
            batch = make_sampler(ledger, context).take(1, LAST)
            assert ledger.requested[0] == batch.mine.tolist()
            assert batch.observed.shape == (batch.mine.size, 4, 5)
            parts.append(batch.mine)
        np.testing.assert_array_equal(np.concatenate(parts), batch.shots)
        assert sum(part.size == 0 for part in parts) == max(0, size - BATCH)
