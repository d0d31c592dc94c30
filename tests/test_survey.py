"""Surveys, and parts of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpcfwi.survey
from hpcfwi.survey import Survey, spread_shots

N_SHOTS, N_RECEIVERS, N_SAMPLES = 6, 3, 8


def make_survey(each_its_own: bool) -> Survey:
    """With receivers and wavelets of each shot, or the same for all."""
    random = np.random.default_rng(1)
    shots = (N_SHOTS,) if each_its_own else ()
    return Survey(
        random.uniform(size=(N_SHOTS, 2)),
        random.uniform(size=(*shots, N_RECEIVERS, 2)),
        random.normal(size=(*shots, N_SAMPLES)).astype(np.float32),
        dt=0.002,
    )


@pytest.mark.parametrize("each_its_own", [True, False])
def test_a_survey_counts_its_shots_receivers_and_samples(each_its_own):
    survey = make_survey(each_its_own)
    assert (survey.n_shots, survey.n_receivers, survey.n_samples) == (6, 3, 8)


@given(st.lists(st.integers(0, N_SHOTS - 1), max_size=8), st.booleans())
def test_selected_shots_come_in_the_order_asked_with_everything_of_their_own(shots, each_its_own):
    survey = make_survey(each_its_own)
    part = survey.select(np.array(shots, dtype=np.int64))
    assert part.dt == survey.dt
    assert part.sources.shape == (len(shots), 2)
    assert part.receivers.shape == (len(shots), N_RECEIVERS, 2)
    assert part.wavelet.shape == (len(shots), N_SAMPLES)
    for k, shot in enumerate(shots):
        own = shot if each_its_own else ...
        np.testing.assert_array_equal(part.sources[k], survey.sources[shot])
        np.testing.assert_array_equal(part.receivers[k], survey.receivers[own])
        np.testing.assert_array_equal(part.wavelet[k], survey.wavelet[own])


@pytest.mark.parametrize("each_its_own", [True, False])
def test_a_mask_goes_with_its_shots_and_says_who_listens(each_its_own):
    mask = np.zeros((N_SHOTS, N_RECEIVERS), dtype=bool)
    mask[:, 0], mask[5, 2] = True, True
    survey = replace(make_survey(each_its_own), mask=mask)
    part = survey.select(np.array([5, 1]))
    np.testing.assert_array_equal(part.mask, [[True, False, True], [True, False, False]])
    np.testing.assert_array_equal(
        part.listeners(), [part.receivers[0, 0], part.receivers[0, 2], part.receivers[1, 0]]
    )
    assert make_survey(each_its_own).listeners().shape == (
        N_SHOTS * N_RECEIVERS if each_its_own else N_RECEIVERS,
        2,
    )


@pytest.mark.parametrize("each_its_own", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_listeners_come_by_parts_and_those_of_all_shots_once(each_its_own, masked, monkeypatch):
    monkeypatch.setattr(hpcfwi.survey, "AT_A_TIME", 2 * N_RECEIVERS)
    survey = make_survey(each_its_own)
    if masked:
        survey = replace(survey, mask=np.arange(N_SHOTS * N_RECEIVERS).reshape(N_SHOTS, -1) % 3 > 0)
    parts = [*survey.listeners_by_parts()]
    np.testing.assert_array_equal(np.concatenate(parts), survey.listeners())
    assert len(parts) == (-(-N_SHOTS // 2) if each_its_own or masked else 1)


def test_a_part_of_a_part_is_a_part():
    survey = make_survey(each_its_own=False)
    once = survey.select(np.array([5]))
    twice = survey.select(np.array([2, 5])).select(np.array([1]))
    for name in ("sources", "receivers", "wavelet"):
        np.testing.assert_array_equal(getattr(once, name), getattr(twice, name))


@given(st.integers(1, 400), st.data())
def test_shots_are_spread_evenly_and_each_is_there_once(n_shots, data):
    count = data.draw(st.integers(1, n_shots))
    gaps = np.diff([-1, *spread_shots(n_shots, count), n_shots])
    assert gaps.min() >= 1
    assert gaps.max() <= n_shots / (count + 1) + 2.0
