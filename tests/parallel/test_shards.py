"""Tests of shards, which are gathered unchanged, and of schedules, which deal shots to ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.parallel.context import Context
from hpcfwi.parallel.exact import ExactSum
from hpcfwi.parallel.shards import (
    LINE,
    WHOLE,
    DynamicSchedule,
    Shards,
    StaticSchedule,
    gather_to_root,
    has_shards,
    make_schedule,
)
from tests.parallel.together import on_ranks
from tests.ranks import run_ranks

shapes = st.lists(st.integers(1, 30), min_size=1, max_size=3).map(tuple)
sizes = st.integers(1, 7)


@given(shapes, sizes)
def test_gathered_shards_equal_the_whole_on_every_rank(shape, size):
    whole = torch.randn(shape)

    def cut_and_gather(context):
        shards = Shards(context)
        return shards.all_gather(shards.cut(whole).clone(), shape)

    for found in on_ranks(size, cut_and_gather):
        assert torch.equal(found, whole)


@given(shapes, sizes)
def test_shards_are_contiguous_and_of_nearly_equal_size(shape, size):
    whole = torch.randn(shape)
    cut = on_ranks(size, lambda context: Shards(context).cut(whole).reshape(-1))
    assert torch.equal(torch.cat(cut), whole.reshape(-1))
    assert all(shard.numel() < whole.numel() / size + LINE for shard in cut)


@given(shapes, sizes, st.integers(0, 2**31))
def test_exact_sum_in_shards_has_the_bits_of_the_whole_sum(shape, size, seed):
    terms = torch.randn((size, *shape), generator=torch.Generator().manual_seed(seed))

    def add_up(context):
        total = ExactSum(shape, 3.0, size, context.device)
        total.add(terms[context.rank])
        # The total can be computed again, which the death of a rank may require
        return [
            total.total(context, shards) for shards in (Shards(context), WHOLE, Shards(context))
        ]

    for found in on_ranks(size, add_up):
        for other in found[1:]:
            assert torch.equal(other, found[0])


@pytest.mark.parametrize("size", [1, 2, 5])
def test_gathered_state_is_whole_on_rank_0_only(size):
    large, small, step = torch.randn(20, 30), torch.randn(7), torch.tensor(3.0)
    state = {"pairs": [(large, {"vp": small})], "step": step, "norm": 2.5}

    def divide_and_gather(context):
        divided = Shards(context).divide(state)
        return divided, gather_to_root(divided, context)

    (_, whole), *others = on_ranks(size, divide_and_gather)
    ((found, parts),) = whole["pairs"]
    assert torch.equal(found, large)
    assert torch.equal(parts["vp"], small)
    assert not has_shards(whole)
    for divided, whole in others:
        assert has_shards(divided)
        assert whole["pairs"][0][0].values.numel() <= large.numel() / size + LINE
    for divided, whole in on_ranks(size, divide_and_gather):
        assert divided["step"] == whole["step"] == step
        assert divided["norm"] == whole["norm"] == 2.5


def static_parts(slots, size):
    """Return the part of a batch that each rank gets."""
    ranks = (Context(rank, size, rank, "host", torch.device("cpu"), 1) for rank in range(size))
    return [StaticSchedule(rank).first(slots) for rank in ranks]


@given(st.integers(0, 40), st.integers(1, 12))
def test_static_schedule_divides_slots_like_torch_tensor_split(slots, size):
    expected = torch.tensor_split(torch.arange(slots), size)
    for part, tensor in zip(static_parts(slots, size), expected, strict=True):
        np.testing.assert_array_equal(part, tensor.numpy())


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
    assert done.stdout == "each once and in time\n"
