"""Tests of shards: arrays that are cut and gathered again are unchanged."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.parallel.exact import ExactSum
from hpcfwi.parallel.shards import LINE, WHOLE, Shards, gather_to_root, has_shards
from tests.parallel.together import on_ranks

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
