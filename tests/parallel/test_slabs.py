"""Slabs: cut and put together they are what they were, of any size and for any number of ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.parallel.exact import ExactSum
from hpcfwi.parallel.shards import LINE, WHOLE, Slabs, gather_to_root, has_slabs
from tests.parallel.together import on_ranks

shapes = st.lists(st.integers(1, 30), min_size=1, max_size=3).map(tuple)
sizes = st.integers(1, 7)


@given(shapes, sizes)
def test_slabs_put_together_are_the_whole_on_every_rank(shape, size):
    whole = torch.randn(shape)

    def cut_and_gather(context):
        slabs = Slabs(context)
        return slabs.gather(slabs.cut(whole).clone(), shape)

    for found in on_ranks(size, cut_and_gather):
        assert torch.equal(found, whole)


@given(shapes, sizes)
def test_slabs_follow_each_other_and_none_is_larger_than_its_share_by_more_than_a_line(shape, size):
    whole = torch.randn(shape)
    cut = on_ranks(size, lambda context: Slabs(context).cut(whole).reshape(-1))
    assert torch.equal(torch.cat(cut), whole.reshape(-1))
    assert all(slab.numel() < whole.numel() / size + LINE for slab in cut)


@given(shapes, sizes, st.integers(0, 2**31))
def test_an_exact_sum_that_arrives_in_slabs_has_the_bits_of_one_that_arrives_whole(
    shape, size, seed
):
    terms = torch.randn((size, *shape), generator=torch.Generator().manual_seed(seed))

    def add_up(context):
        total = ExactSum(shape, 3.0, size, context.device)
        total.add(terms[context.rank])
        # Twice: after a death the same terms may have to be added up by others
        return [total.total(context, slabs) for slabs in (Slabs(context), WHOLE, Slabs(context))]

    for found in on_ranks(size, add_up):
        for other in found[1:]:
            assert torch.equal(other, found[0])


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_state_in_slabs_is_whole_again_on_rank_0_alone(size):
    large, small, step = torch.randn(20, 30), torch.randn(7), torch.tensor(3.0)
    state = {"pairs": [(large, {"vp": small})], "step": step, "norm": 2.5}

    def divide_and_gather(context):
        divided = Slabs(context).divide(state)
        return divided, gather_to_root(divided, context)

    (_, whole), *others = on_ranks(size, divide_and_gather)
    ((found, parts),) = whole["pairs"]
    assert torch.equal(found, large)
    assert torch.equal(parts["vp"], small)
    assert not has_slabs(whole)
    for divided, whole in others:
        assert has_slabs(divided)
        assert whole["pairs"][0][0].values.numel() <= large.numel() / size + LINE
    for divided, whole in on_ranks(size, divide_and_gather):
        assert divided["step"] == whole["step"] == step
        assert divided["norm"] == whole["norm"] == 2.5
