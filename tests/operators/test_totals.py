"""Sums with the same bits on every rank."""

from __future__ import annotations

from math import fsum

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from torch.utils._python_dispatch import TorchDispatchMode

from hpcfwi.operators.vectors import add_up, add_whole, dot, go_along

BOTH = pytest.mark.parametrize("add", [add_up, add_whole], ids=["numpy", "whole"])
NUMBERS = st.floats(-1e30, 1e30).filter(lambda number: number == 0.0 or abs(number) > 1e-200)


def over_all(add, values):
    return float(add(values, tuple(range(values.ndim))))


@given(arrays(np.float64, array_shapes(max_dims=3, max_side=30), elements=NUMBERS), st.randoms())
def test_add_whole_does_not_depend_on_order_of_values(array, rng):
    shuffled = array.ravel().tolist()
    rng.shuffle(shuffled)
    assert over_all(add_whole, torch.from_numpy(array)) == over_all(
        add_whole, torch.tensor(shuffled, dtype=torch.float64)
    )


@BOTH
@given(arrays(np.float64, array_shapes(max_dims=3, max_side=30), elements=NUMBERS))
def test_sum_is_accurate_relative_to_largest_value(add, array):
    largest = np.abs(array).max()
    found, exact = over_all(add, torch.from_numpy(array)), fsum(array.ravel())
    assert found == pytest.approx(exact, rel=1e-15, abs=1e-14 * largest)


def test_add_whole_keeps_many_small_values_next_to_a_large_one():
    values = torch.full((1000, 1000), 1e-9, dtype=torch.float64)
    values[0, 0] = 1e9
    assert over_all(add_whole, values) == pytest.approx(fsum(values.ravel().tolist()), rel=1e-16)


@BOTH
def test_sum_over_some_axes_keeps_other_axes(add):
    values = torch.arange(24.0).reshape(2, 3, 4)
    found = add(values, (0, 2))
    assert found.dtype == torch.float64
    assert found.tolist() == values.sum(dim=(0, 2)).tolist()


@BOTH
@pytest.mark.parametrize("values", [torch.zeros(0, 3), torch.zeros(4), torch.tensor(0.0)])
def test_sum_of_empty_or_zero_array_is_zero(add, values):
    assert over_all(add, values) == 0.0


@BOTH
@pytest.mark.parametrize("worst", [torch.inf, -torch.inf, torch.nan])
def test_sum_with_nonfinite_value_is_not_finite(add, worst):
    assert not np.isfinite(over_all(add, torch.tensor([1.0, worst, 2.0])))


@BOTH
@pytest.mark.parametrize("size", [5e-324, 1e-290, 1e290])
def test_sum_of_extreme_magnitudes_is_exact_or_zero(add, size):
    assert over_all(add, torch.tensor([size, size], dtype=torch.float64)) in (2.0 * size, 0.0)


class DoubleArrays(TorchDispatchMode):
    """Lists the arrays in double precision that torch makes."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def __torch_dispatch__(self, function, _, args=(), options=None):
        result = function(*args, **(options or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            self.found[result.data_ptr()] = result
        return result


def test_scalar_product_and_line_make_one_array_in_double_precision():
    one, two = torch.randn(2, 30, 40, generator=torch.Generator().manual_seed(0))
    with DoubleArrays() as made:
        found = dot(one, two)
    assert [array.shape for array in made.found.values() if array.ndim] == [one.shape]
    assert found == float((one.double() * two.double()).numpy().sum())
    with DoubleArrays() as made:
        moved = go_along(one, two, 0.3)
    assert [array.shape for array in made.found.values()] == [one.shape]
    assert torch.equal(moved, (one.double() + two.double() * 0.3).float())
