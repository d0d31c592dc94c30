"""Receivers that move with the source: their positions and their mask."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hpcfwi.config.survey import Receivers
from hpcfwi.errors import InputError
from hpcfwi.inversion.experiment import place_spread
from hpcfwi.model import Grid

LINE = Grid((5, 11), (10.0, 10.0), (0.0, 0.0))  # x from 0 to 100 m


def spread(**keys):
    return Receivers(**{"count": 3, "depth": 8.0, "offset": 20.0, "spacing": 30.0, **keys})


def sources(*x):
    return np.array([[5.0, at] for at in x])


def test_spread_moves_with_the_source_and_is_masked_outside_the_model():
    positions, mask = place_spread(spread(), sources(0.0, 10.0, 45.0), LINE)
    assert positions[..., 0].tolist() == [[8.0] * 3] * 3
    assert positions[..., 1].tolist() == [[20, 50, 80], [30, 60, 90], [65, 95, 95]]
    assert mask.tolist() == [[True] * 3, [True] * 3, [True, True, False]]


def test_streamer_with_negative_offset_lies_behind_its_source():
    towed = spread(offset=-20.0, spacing=-30.0)
    positions, mask = place_spread(towed, sources(100.0, 60.0), LINE)
    assert positions[..., 1].tolist() == [[80, 50, 20], [40, 10, 10]]
    assert mask.tolist() == [[True] * 3, [True, True, False]]


def test_receivers_outside_the_model_are_moved_to_the_nearest_receiver():
    positions, mask = place_spread(spread(offset=-30.0, count=5), sources(0.0), LINE)
    assert positions[0, :, 1].tolist() == [0, 0, 30, 60, 90]
    assert mask.tolist() == [[False, True, True, True, True]]


def test_no_mask_if_all_receivers_are_in_the_model():
    positions, mask = place_spread(spread(), sources(0.0, 20.0), LINE)
    assert positions.shape == (2, 3, 2)
    assert mask is None


def test_spread_in_3d_lies_along_x_at_y_of_the_source():
    volume = Grid((5, 4, 11), (10.0,) * 3, (0.0,) * 3)
    at = np.array([[5.0, 0.0, 0.0], [5.0, 25.0, 30.0]])
    positions, mask = place_spread(spread(), at, volume)
    assert positions[1].tolist() == [[8, 25, 50], [8, 25, 80], [8, 25, 80]]
    assert mask.tolist() == [[True] * 3, [True, True, False]]


def test_error_names_shot_without_receivers_its_position_and_remedy():
    with pytest.raises(InputError) as refused:
        place_spread(spread(), sources(0.0, 85.0, 90.0), LINE)
    for words in (
        "survey.receivers.offset",
        "2 of 3 shots have no receiver",
        "shot 1 at x = 85 m, with receivers from 105 to 165 m",
        "x = 0 to 100 m",
        "first and last of survey.sources",
    ):
        assert words in str(refused.value)


@given(
    st.lists(st.tuples(st.floats(1.0, 99.0), st.integers(0, 7)), min_size=1, max_size=5),
    st.floats(-200.0, 200.0),
    st.floats(-90.0, 90.0).filter(bool),
    st.integers(1, 8),
)
def test_any_spread_has_unmasked_receivers_in_place_and_all_in_the_model(
    inner, offset, spacing, count
):
    """inner: for each shot, the x of a receiver in the model and the number of this receiver."""
    x = [place - offset - spacing * (number % count) for place, number in inner]
    expected = np.array(x)[:, None] + offset + spacing * np.arange(count)
    inside = (expected >= 0.0) & (expected <= 100.0)
    beyond = np.maximum(-expected, expected - 100.0)
    assume(not np.any((beyond > 0.0) & (beyond < 1e-4)))
    keys = {"offset": offset, "spacing": spacing, "count": count}
    positions, mask = place_spread(spread(**keys), sources(*x), LINE)
    np.testing.assert_array_equal(np.ones_like(inside) if mask is None else mask, inside)
    np.testing.assert_array_equal(positions[..., 1][inside], expected[inside])
    assert LINE.contains(positions).all()
    for own, there in zip(positions[..., 1], inside, strict=True):
        assert set(own[~there]) <= set(own[there]), "masked receivers have positions of others"
