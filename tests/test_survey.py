"""Tests of surveys and selections of shots."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpcfwi.survey
from hpcfwi.survey import Components, Survey, spread_shots

N_SHOTS, N_RECEIVERS, N_SAMPLES = 6, 3, 8


def make_survey(per_shot: bool) -> Survey:
    """Return a survey with receivers and wavelets of each shot, or the same for all."""
    random = np.random.default_rng(1)
    shots = (N_SHOTS,) if per_shot else ()
    return Survey(
        random.uniform(size=(N_SHOTS, 2)),
        random.uniform(size=(*shots, N_RECEIVERS, 2)),
        random.normal(size=(*shots, N_SAMPLES)).astype(np.float32),
        dt=0.002,
    )


@pytest.mark.parametrize("per_shot", [True, False])
def test_survey_counts_its_shots_receivers_and_samples(per_shot):
    survey = make_survey(per_shot)
    assert (survey.n_shots, survey.n_receivers, survey.n_samples) == (6, 3, 8)


@given(st.lists(st.integers(0, N_SHOTS - 1), max_size=8), st.booleans())
def test_selected_shots_are_in_the_given_order_with_their_arrays(shots, per_shot):
    survey = make_survey(per_shot)
    part = survey.select(np.array(shots, dtype=np.int64))
    assert part.dt == survey.dt
    assert part.sources.shape == (len(shots), 2)
    assert part.receivers.shape == (len(shots), N_RECEIVERS, 2)
    assert part.wavelet.shape == (len(shots), N_SAMPLES)
    for k, shot in enumerate(shots):
        own = shot if per_shot else ...
        np.testing.assert_array_equal(part.sources[k], survey.sources[shot])
        np.testing.assert_array_equal(part.receivers[k], survey.receivers[own])
        np.testing.assert_array_equal(part.wavelet[k], survey.wavelet[own])


@pytest.mark.parametrize("per_shot", [True, False])
def test_mask_is_selected_with_the_shots_and_selects_receivers(per_shot):
    mask = np.zeros((N_SHOTS, N_RECEIVERS), dtype=bool)
    mask[:, 0], mask[5, 2] = True, True
    survey = replace(make_survey(per_shot), mask=mask)
    part = survey.select(np.array([5, 1]))
    np.testing.assert_array_equal(part.mask, [[True, False, True], [True, False, False]])
    np.testing.assert_array_equal(
        part.receiver_positions(),
        [part.receivers[0, 0], part.receivers[0, 2], part.receivers[1, 0]],
    )
    assert make_survey(per_shot).receiver_positions().shape == (
        N_SHOTS * N_RECEIVERS if per_shot else N_RECEIVERS,
        2,
    )


@pytest.mark.parametrize("per_shot", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_receiver_positions_are_given_in_parts(per_shot, masked, monkeypatch):
    monkeypatch.setattr(hpcfwi.survey, "AT_A_TIME", 2 * N_RECEIVERS)
    survey = make_survey(per_shot)
    if masked:
        survey = replace(survey, mask=np.arange(N_SHOTS * N_RECEIVERS).reshape(N_SHOTS, -1) % 3 > 0)
    parts = [*survey.receiver_positions_by_part()]
    np.testing.assert_array_equal(np.concatenate(parts), survey.receiver_positions())
    assert len(parts) == (-(-N_SHOTS // 2) if per_shot or masked else 1)


@pytest.mark.parametrize("masked", [True, False])
def test_receivers_with_several_components_are_counted_once(masked):
    survey = make_survey(False)
    twice = replace(
        survey,
        receivers=np.concatenate([survey.receivers] * 2),
        mask=np.ones((N_SHOTS, 2 * N_RECEIVERS), bool) if masked else None,
        components=Components(("pressure", "vz"), np.repeat(np.arange(2), N_RECEIVERS)),
    )
    expected = np.unique(survey.receivers, axis=0)
    np.testing.assert_array_equal(twice.receiver_positions(), expected)


def test_selection_from_a_selection_equals_a_direct_one():
    survey = make_survey(per_shot=False)
    once = survey.select(np.array([5]))
    twice = survey.select(np.array([2, 5])).select(np.array([1]))
    for name in ("sources", "receivers", "wavelet"):
        np.testing.assert_array_equal(getattr(once, name), getattr(twice, name))


@given(st.integers(1, 400), st.data())
def test_spread_shots_are_distinct_and_evenly_spaced(n_shots, data):
    count = data.draw(st.integers(1, n_shots))
    gaps = np.diff([-1, *spread_shots(n_shots, count), n_shots])
    assert gaps.min() >= 1
    assert gaps.max() <= n_shots / (count + 1) + 2.0
