"""A sparse matrix along one axis of an array."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.operators.axis_matrix import AxisMatrix


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2), st.integers(0, 2**32 - 1))
def test_it_is_the_matrix_of_scipy(rows, columns, axis, seed):
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < 0.5)
    dense[:, 0] = 1.0
    shape = [3, 4, 5]
    shape[axis] = columns
    values = rng.normal(size=shape)
    found = AxisMatrix.of(scipy.sparse.csr_array(dense)).apply(torch.from_numpy(values), axis)
    expected = np.moveaxis(np.tensordot(dense, values, (1, axis)), 0, axis)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


def test_an_array_of_many_blocks_is_one_of_them_after_the_other():
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(3, 20))
    for shape, axis in (((20, 5000), 0), ((5000, 20), 1), ((20, 90, 90), 0), ((90, 20, 90), 1)):
        values = rng.normal(size=shape)
        found = AxisMatrix.of(scipy.sparse.csr_array(matrix)).apply(torch.from_numpy(values), axis)
        expected = np.moveaxis(np.tensordot(matrix, values, (1, axis)), 0, axis)
        np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


def test_the_threads_do_not_change_its_bits():
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
def test_a_cell_that_is_not_finite_is_only_in_the_rows_that_have_it(axis):
    matrix = AxisMatrix.of(scipy.sparse.csr_array(np.array([[0, 0, 1.0], [1.0, 1.0, 0]])))
    values = torch.ones(3, 3)
    values.select(axis, 0)[:] = torch.nan
    found = matrix.apply(values, axis)
    assert found.select(axis, 0).tolist() == [1.0] * 3
    assert found.select(axis, 1).isnan().all()
