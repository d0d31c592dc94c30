"""How the shots of a step are dealt out to ranks."""

import numpy as np
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.parallel.context import Context
from hpcfwi.parallel.shards import DynamicSchedule, StaticSchedule, make_schedule
from tests.ranks import run_ranks


def static_parts(slots, size):
    """What each of so many ranks has of a batch."""
    ranks = (Context(rank, size, rank, "host", torch.device("cpu"), 1) for rank in range(size))
    return [StaticSchedule(rank).first(slots) for rank in ranks]


@given(st.integers(0, 40), st.integers(1, 12))
def test_every_slot_goes_to_one_rank_as_torch_tensor_split_has_it(slots, size):
    expected = torch.tensor_split(torch.arange(slots), size)
    for part, tensor in zip(static_parts(slots, size), expected, strict=True):
        np.testing.assert_array_equal(part, tensor.numpy())


def test_ranks_beyond_the_last_shot_get_an_empty_part():
    assert [part.tolist() for part in static_parts(2, 4)] == [[0], [1], [], []]


class Rank(Context):
    """One of several, as far as a schedule can tell; portions: of all ranks."""

    portions = (1,)

    def all_gather(self, _):
        return list(self.portions)

    def broadcast(self, value):
        return "the same on all" if value else value


def dynamic_ranks(portions):
    """The schedules of ranks that take such portions first."""
    found, store = [], dist.HashStore()
    for rank, portion in enumerate(portions):
        context = Rank(rank, len(portions), rank, "host", torch.device("cpu"), 1, store=store)
        context.__dict__["portions"] = portions
        found.append(DynamicSchedule(portion, context))
    return found


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 40), st.data())
def test_every_slot_is_dealt_once_whichever_rank_asks_next(portions, slots, data):
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


def test_the_dearest_come_first_where_the_last_to_finish_decides():
    costs = np.array([2.0, 5.0, 1.0, 5.0])
    (dynamic,) = dynamic_ranks([1])
    assert dynamic.order(costs).tolist() == [1, 3, 0, 2]
    assert StaticSchedule(Context.alone()).order(costs).tolist() == [0, 1, 2, 3]


def test_a_single_rank_needs_no_counter():
    alone = make_schedule("dynamic", 2, Context.alone())
    assert alone.first(5).tolist() == [0, 1, 2, 3, 4]
    alone.begin()
    assert alone.more(5, 2).size == 0


def test_ranks_are_dealt_slots_while_rank_0_computes():
    """Each slot once, and long before rank 0 would come to answer."""
    done = run_ranks(3, ["-m", "tests.parallel.programs", "deal_while_root_computes"], warm=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "each once and in time\n"
