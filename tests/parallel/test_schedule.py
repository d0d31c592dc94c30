"""Tests of schedules, which deal the shots of a batch to ranks."""

import numpy as np
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.parallel.context import Context
from hpcfwi.parallel.shards import DynamicSchedule, StaticSchedule, make_schedule
from tests.ranks import run_ranks


def static_parts(slots, size):
    """Return the part of a batch that each rank gets."""
    ranks = (Context(rank, size, rank, "host", torch.device("cpu"), 1) for rank in range(size))
    return [StaticSchedule(rank).first(slots) for rank in ranks]


@given(st.integers(0, 40), st.integers(1, 12))
def test_static_schedule_divides_slots_like_torch_tensor_split(slots, size):
    expected = torch.tensor_split(torch.arange(slots), size)
    for part, tensor in zip(static_parts(slots, size), expected, strict=True):
        np.testing.assert_array_equal(part, tensor.numpy())


def test_ranks_beyond_the_last_slot_get_an_empty_part():
    assert [part.tolist() for part in static_parts(2, 4)] == [[0], [1], [], []]


class Rank(Context):
    """A context with what a schedule needs; `portions` are those of all ranks."""

    portions = (1,)

    def all_gather(self, _):
        return list(self.portions)

    def broadcast(self, value):
        return "the same on all" if value else value


def dynamic_ranks(portions):
    """Return the schedules of ranks whose first portions are given."""
    found, store = [], dist.HashStore()
    for rank, portion in enumerate(portions):
        context = Rank(rank, len(portions), rank, "host", torch.device("cpu"), 1, store=store)
        context.__dict__["portions"] = portions
        found.append(DynamicSchedule(portion, context))
    return found


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 40), st.data())
def test_dynamic_schedule_deals_each_slot_once_in_any_order_of_ranks(portions, slots, data):
    ranks = dynamic_ranks(portions)
    for _ in range(2):
        dealt = [slot for rank in ranks for slot in rank.first(slots)]
        for rank in ranks:
            rank.begin()
        asking = ranks
        while asking:
            rank = data.draw(st.sampled_from(asking))
            at_most = data.draw(st.integers(1, 3))
            more = rank.more(slots, at_most)
            assert more.size <= at_most
            dealt += more.tolist()
            asking = [other for other in asking if more.size or other is not rank]
        assert sorted(dealt) == list(range(slots))


def test_dynamic_schedule_orders_shots_by_decreasing_cost():
    costs = np.array([2.0, 5.0, 1.0, 5.0])
    (dynamic,) = dynamic_ranks([1])
    assert dynamic.order(costs).tolist() == [1, 3, 0, 2]
    assert StaticSchedule(Context.alone()).order(costs).tolist() == [0, 1, 2, 3]


def test_dynamic_schedule_of_a_single_rank_needs_no_counter():
    alone = make_schedule("dynamic", 2, Context.alone())
    assert alone.first(5).tolist() == [0, 1, 2, 3, 4]
    alone.begin()
    assert alone.more(5, 2).size == 0


def test_ranks_are_dealt_slots_while_rank_0_computes():
    """Each slot is dealt once, before rank 0 completes its shots."""
    done = run_ranks(3, ["-m", "tests.parallel.programs", "deal_while_root_computes"], warm=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "each once and in time\n"
