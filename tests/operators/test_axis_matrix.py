"""A sparse matrix along one axis of an array."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.operators import vectors
from hpcfwi.operators.vectors import AxisMatrix


@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.lists(st.integers(1, 6), min_size=2, max_size=3),
    st.integers(0, 2),
    st.integers(1, 40),
    st.integers(0, 2**32 - 1),
)
def test_axis_matrix_matches_numpy_for_any_block_size(rows, columns, shape, axis, block, seed):
    rng, axis = np.random.default_rng(seed), min(axis, len(shape) - 1)
    dense = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.5)
    dense[:, 0] = 1.0
    shape[axis] = columns
    values = rng.normal(size=shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "BLOCK", block)
        found = AxisMatrix.of(scipy.sparse.csr_array(dense)).apply(torch.from_numpy(values), axis)
    expected = np.moveaxis(np.tensordot(dense, values, (1, axis)), 0, axis)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


def test_bits_of_axis_matrix_product_do_not_depend_on_threads():
    rng = np.random.default_rng(0)
    matrix = AxisMatrix.of(scipy.sparse.csr_array(rng.normal(size=(200, 300))))
    values, threads = torch.from_numpy(rng.normal(size=(300, 501))), torch.get_num_threads()
    found = []
    for number in (1, 3):
        torch.set_num_threads(number)
        found.append(matrix.apply(values, 0))
    torch.set_num_threads(threads)
    assert torch.equal(*found)


@pytest.mark.parametrize("axis", [0, 1])
def test_nonfinite_value_reaches_only_rows_with_a_weight_for_it(axis):
    matrix = AxisMatrix.of(scipy.sparse.csr_array(np.array([[0, 0, 1.0], [1.0, 1.0, 0]])))
    values = torch.ones(3, 3)
    values.select(axis, 0)[:] = torch.nan
    found = matrix.apply(values, axis)
    assert found.select(axis, 0).tolist() == [1.0] * 3
    assert found.select(axis, 1).isnan().all()
