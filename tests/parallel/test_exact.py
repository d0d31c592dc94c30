"""Tests of exact sums, which have the same bits in any order and split over ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hpcfwi.parallel.context import Context
from hpcfwi.parallel.exact import ABOVE, BELOW, SUMMED, ExactSum, PlainSum

CPU = torch.device("cpu")
SHAPE = (6, 7)

terms = st.lists(
    arrays.arrays(np.float32, SHAPE, elements=st.floats(-1.0, 1.0, width=32)),
    min_size=1,
    max_size=9,
)


class Ranks(Context):
    """A rank that adds the sums of other ranks."""

    def sum(self, tensor):
        for other in self.__dict__.get("others", []):
            tensor += other.view(-1)
        return tensor


def sums_of(parts, reference=1.0, count=None):
    """Return a sum for each part of the terms, one for each rank."""
    count = count or sum(len(part) for part in parts)
    found = [ExactSum(SHAPE, reference, count, CPU) for _ in parts]
    for total, part in zip(found, parts, strict=True):
        for term in part:
            total.add(torch.from_numpy(term))
    return found


def total_of(parts, reference=1.0):
    first, *others = sums_of(parts, reference)
    context = Ranks(0, 1, 0, "host", CPU, 1)
    context.__dict__["others"] = [other._units for other in others]
    return first.total(context)


@given(terms, st.randoms(use_true_random=False), st.integers(1, 5))
def test_sum_has_the_same_bits_for_any_order_and_split_over_ranks(values, random, ranks):
    expected = total_of([values])
    shuffled = random.sample(values, len(values))
    assert torch.equal(total_of([shuffled]), expected)
    assert torch.equal(total_of([shuffled[k::ranks] for k in range(ranks)]), expected)


@given(terms, st.integers(-60, 60))
def test_error_is_below_that_of_a_sum_in_single_precision(values, power):
    values = [np.ldexp(value, power) for value in values]
    largest = max(float(np.abs(value).max()) for value in values)
    found = total_of([values], reference=largest).numpy()
    exact = np.sum([value.astype(np.float64) for value in values], axis=0)
    assert np.abs(found - exact).max() <= len(values) * 2.0**-40 * largest
    assert np.abs(found - exact).max() <= 2.0**-24 * largest


def test_term_added_to_a_window_changes_only_that_window():
    total = ExactSum(SHAPE, 1.0, 2, CPU)
    total.add(torch.ones(2, 3), (slice(1, 3), slice(4, 7)))
    found = total.total(Context.alone())
    assert found.sum() == 6.0
    assert (found[1:3, 4:7] == 1.0).all()


def test_large_sum_is_copied_in_parts():
    sizes, shape = [], (5, SUMMED // 2)

    class Listening(Context):
        def sum(self, tensor):
            sizes.append(tensor.numel())
            return tensor

    total = ExactSum(shape, 1.0, 1, CPU)
    total.add(torch.ones(2, shape[1]), (slice(3, 5),))
    found = total.total(Listening(0, 1, 0, "host", CPU, 1))
    assert sizes == [SUMMED, SUMMED, SUMMED // 2]
    assert torch.equal(found.sum(dim=1), torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0]) * shape[1])


def test_adding_terms_does_not_synchronise_with_the_device(monkeypatch):
    """Reading a number from the device would make the host wait for each shot."""
    total, terms = ExactSum(SHAPE, 1.0, 3, CPU), torch.tensor([-2.0, 1e9, 0.5])

    def ask(_):
        pytest.fail("a number was read from the device")

    with monkeypatch.context() as patch:
        for name in ("__float__", "__bool__", "item", "tolist", "cpu", "numpy"):
            patch.setattr(torch.Tensor, name, ask)
        for term in terms:
            total.add(term.expand(SHAPE))
    assert total.largest == 1e9
    assert (total.total(Context.alone()) == -1.5).all(), "the term beyond the limit is left out"


@pytest.mark.parametrize("terms", [1, 3, 1000])
def test_declared_number_of_largest_terms_does_not_overflow(terms):
    """All terms have the largest value and the same sign."""
    largest = float(np.ldexp(np.float32(1.0), ABOVE))
    total = ExactSum((1,), 1.0, terms, CPU)
    for _ in range(terms):
        total.add(torch.tensor([largest]))
    assert total.holds(largest)
    assert float(total.total(Context.alone())) == terms * largest


def test_sum_detects_terms_too_large_or_too_small_for_the_reference():
    total = ExactSum((2,), 1.0, 4, CPU)
    total.add(torch.tensor([0.5, -3.0]))
    assert total.largest == 3.0
    assert total.holds(3.0)
    assert total.holds(0.0), "zero is exact"
    assert total.holds(2.0**-BELOW)
    assert not total.holds(2.0 ** -(BELOW + 1))
    total.add(torch.tensor([0.0, 1e9]))
    assert total.largest == pytest.approx(1e9)
    assert not total.holds(total.largest)
    assert not ExactSum((2,), 0.0, 4, CPU).holds(1e-30), "without reference"
    assert ExactSum((2,), 1e-30, 4, CPU).holds(1e-30)


def test_plain_sum_depends_on_the_order():
    """This shows that the tests of exact sums can fail."""
    values = [torch.tensor([value]) for value in (1e8, 1.0, -1e8)]
    found = []
    for order in (values, values[::-1], [values[0], values[2], values[1]]):
        total = PlainSum((1,), CPU)
        for value in order:
            total.add(value)
        assert total.holds(np.inf)
        found.append(float(total.total(Context.alone())))
    assert len(set(found)) > 1
