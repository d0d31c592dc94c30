"""Tests of replicas: a single changed bit of one rank is found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.parallel.replicas import BLOCK, find_differing, hash_bits, measure_blocks
from tests.parallel.together import on_ranks

SIZE = 3 * BLOCK + 17
MODEL = torch.linspace(1500.0, 4500.0, SIZE)


@given(st.integers(0, SIZE - 1), st.integers(0, 31))
def test_hash_changes_with_every_flipped_bit(cell, bit):
    flipped = MODEL.clone()
    flipped.view(torch.int32)[cell] ^= torch.tensor(1 << bit).to(torch.int32)
    assert hash_bits(flipped) != hash_bits(MODEL)


@pytest.mark.parametrize("other", [MODEL.flip(0), MODEL.roll(BLOCK), MODEL[:-1], -MODEL])
def test_hash_depends_on_the_order_and_number_of_cells(other):
    assert hash_bits(other) != hash_bits(MODEL)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_bits_have_equal_hashes_including_nan_and_zero(dtype):
    odd = torch.tensor([[0.0, -0.0], [float("nan"), float("inf")]], dtype=dtype)
    assert hash_bits(odd) == hash_bits(odd.clone())
    assert hash_bits(odd) != hash_bits(torch.abs(odd))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_ranks_find_the_ranks_that_differ_from_rank_0(size):
    def compare(context):
        model, weight = MODEL.clone(), torch.ones(3)
        if context.rank >= 2:
            weight[context.rank - 2] += 1e-6
        return find_differing([model, weight], context)

    assert on_ranks(size, compare) == [list(range(2, size))] * size


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_each_block_is_measured_once_on_any_number_of_ranks(size):
    one, two = np.arange(SIZE), np.arange(SIZE) % 7
    measured = []

    def measure(context):
        def of(a, b):
            measured.append(context.rank)
            return int(a[0]), a.size, int((a * b).sum())

        return measure_blocks(of, [one.reshape(-1, 1), two.reshape(-1, 1)], context)

    parts = [slice(first, first + BLOCK) for first in range(0, SIZE, BLOCK)]
    expected = [(p.start, one[p].size, int((one[p] * two[p]).sum())) for p in parts]
    assert on_ranks(size, measure) == [expected] * size
    assert sorted(measured) == sorted(n % size for n in range(len(parts)))
