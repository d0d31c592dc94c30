"""How the shots of a step are split among ranks."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.parallel.schedule import split_shots

shot_lists = st.lists(st.integers(0, 1000), max_size=40).map(lambda s: np.array(s, dtype=np.int64))
sizes = st.integers(1, 12)


@given(shot_lists, sizes)
def test_every_shot_goes_to_one_rank_in_the_order_given(shots, size):
    parts = split_shots(shots, size)
    assert len(parts) == size
    np.testing.assert_array_equal(np.concatenate(parts), shots)
    assert all(part.dtype == np.int64 for part in parts)


@given(shot_lists, sizes)
def test_the_parts_are_those_of_torch_tensor_split(shots, size):
    expected = torch.tensor_split(torch.from_numpy(shots), size)
    for part, tensor in zip(split_shots(shots, size), expected, strict=True):
        np.testing.assert_array_equal(part, tensor.numpy())


def test_ranks_beyond_the_last_shot_get_an_empty_part():
    parts = split_shots(np.array([7, 3], dtype=np.int64), 4)
    assert [part.tolist() for part in parts] == [[7], [3], [], []]
