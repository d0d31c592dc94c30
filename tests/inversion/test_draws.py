"""The choice and the number of the shots of an epoch."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.config.inversion import InversionSection
from hpcfwi.inversion.stages import Draws, draw_anew, sweep, take_all

SEEDS, SURVEYS = st.integers(0, 2**63 - 1), st.integers(1, 60)
BOTH = pytest.mark.parametrize("choose", [sweep, draw_anew])


@st.composite
def draws(draw, most=60):
    """Generate draws of a survey, with batches of any sizes."""
    n_shots = draw(SURVEYS)
    sizes = draw(st.lists(st.integers(1, n_shots), min_size=1, max_size=most))
    return Draws(draw(SEEDS), draw(st.integers(0, 3)), n_shots, tuple(sizes))


@BOTH
@given(draws(), st.data())
def test_batch_has_different_shots_and_is_reproducible(choose, draws, data):
    number = data.draw(st.integers(0, len(draws.sizes) - 1))
    shots = choose(draws, number)
    assert len(set(shots.tolist())) == shots.size == draws.sizes[number]
    assert set(shots.tolist()) <= set(range(draws.n_shots))
    np.testing.assert_array_equal(shots, choose(draws, number))


@given(draws())
def test_sweep_takes_every_shot_once_before_any_is_repeated(draws):
    sequence = np.concatenate([sweep(draws, number) for number in range(len(draws.sizes))])
    for k in range(sequence.size // draws.n_shots):
        lap = sequence[k * draws.n_shots : (k + 1) * draws.n_shots]
        assert set(lap.tolist()) == set(range(draws.n_shots))


@given(draws(), st.data())
def test_draw_does_not_depend_on_later_batches(draws, data):
    number = data.draw(st.integers(0, len(draws.sizes) - 1))
    shorter = Draws(draws.seed, draws.stage, draws.n_shots, draws.sizes[: number + 1])
    np.testing.assert_array_equal(sweep(draws, number), sweep(shorter, number))


def draw_from_definition(draws, number):
    """Return the draw of a sweep by its definition: each order from the one before it."""
    n_shots, starts = draws.n_shots, np.cumsum([0, *draws.sizes])
    sequence = draws.shuffled(0)
    for lap in range(1, -(-starts[number + 1] // n_shots)):
        draw = bisect_right(starts.tolist(), lap * n_shots) - 1
        begun, shuffled = lap * n_shots - starts[draw], draws.shuffled(lap)
        there = sequence[-begun:] if begun else []
        first = shuffled[~np.isin(shuffled, there)][: draws.sizes[draw] - begun] if begun else []
        order = [*first, *shuffled[~np.isin(shuffled, first)]]
        sequence = np.concatenate([sequence, order]).astype(np.int64)
    return sequence[starts[number] : starts[number + 1]]


@given(draws(), st.data())
def test_draw_does_not_depend_on_earlier_calls(draws, data):
    numbers = st.integers(0, len(draws.sizes) - 1)
    for number in data.draw(st.lists(numbers, min_size=1, max_size=8)):
        expected = draw_from_definition(draws, number)
        np.testing.assert_array_equal(sweep(draws, number), expected)


@given(SEEDS, st.integers(20, 60))
def test_sweeps_stages_and_seeds_have_different_orders(seed, n_shots):
    def orders(seed, stage):
        draws = Draws(seed, stage, n_shots, (n_shots, n_shots))
        return [tuple(sweep(draws, number)) for number in (0, 1)]

    found = [*orders(seed, 0), *orders(seed, 1), *orders(seed ^ 1, 0)]
    assert len(set(found)) == len(found)


def test_random_draws_differ_by_epoch_and_seed_and_use_every_shot():
    def drawn(seed):
        draws = Draws(seed, 0, 100, (8,) * 100)
        return [tuple(draw_anew(draws, number)) for number in range(100)]

    assert len(set(drawn(0))) == 100
    assert {shot for draw in drawn(0) for shot in draw} == set(range(100))
    assert drawn(0) != drawn(1)


def test_random_draws_are_those_of_earlier_versions():
    draws = Draws(0, 0, 341, (8,) * 101)
    assert draw_anew(draws, 0).tolist() == [219, 213, 297, 185, 170, 269, 143, 18]
    assert draw_anew(draws, 100).tolist() == [226, 205, 298, 159, 15, 246, 190, 39]


def test_take_all_returns_all_shots_in_random_order():
    draws = Draws(0, 0, 40, (40, 40))
    first, second = (take_all(draws, number).tolist() for number in (0, 1))
    assert sorted(first) == sorted(second) == [*range(40)]
    assert first != second
    assert sorted(first[:8]) != [*range(8)]


def section(**keys):
    return InversionSection(**{"epochs": 5, "optimizer": "adam", "batch": 3, **keys})


def test_batch_grows_evenly_and_is_held_for_given_epochs():
    assert Draws.of(section(), 10).sizes == (3,) * 5
    assert Draws.of(section(batch=[2, 10]), 10).sizes == (2, 4, 6, 8, 10)
    held = Draws.of(section(batch=[2, 10], hold=2), 10)
    assert held.sizes == (2, 6, 10)
    assert [held.number(epoch) for epoch in range(5)] == [0, 0, 1, 1, 2]
    assert Draws.of(section(sampling="all"), 10).sizes == (10,) * 5
