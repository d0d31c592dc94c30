"""Views of shots, which compare traces as the misfit does."""

from __future__ import annotations

import numpy as np
import pytest

from hpcfwi.inversion import shot_qc
from hpcfwi.inversion.objective import AlikeShots, evaluate_shots
from hpcfwi.inversion.shot_qc import see_shots
from hpcfwi.operators.simulator import Chunks, find_offsets
from hpcfwi.parallel.context import Context
from tests.inversion.examples import prepared

SHOTS = np.array([1, 4, 8])


def see(experiment, observed, wavelet=None):
    context = Context.alone()
    model = experiment.initial.as_tensors(context.device)
    chunks = Chunks(2, context)
    return list(
        see_shots(experiment, model, SHOTS, lambda: observed, chunks, context, wavelet=wavelet)
    )


@pytest.fixture
def make(tmp_path):
    """Return a function that makes an experiment and random observed data of its shots."""

    def make_with(changes):
        experiment = prepared(tmp_path, changes)
        shape = (SHOTS.size, *experiment.survey.shape[1:])
        return experiment, np.random.default_rng(0).normal(size=shape).astype(np.float32)

    return make_with


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"inversion.max_offset": 300.0, "wave.aperture": 200.0},
        {"inversion.max_offset": 300.0, "inversion.misfit": "correlation", "data.edit": {}},
        {"data.weight": {"offset": 0.5}, "data.mute": {"velocity": 1500.0, "delay": 0.1}},
    ],
)
def test_misfit_of_views_is_that_of_the_inversion(make, changes):
    experiment, observed = make(changes)
    simulator = experiment.simulator(experiment.initial)
    seen = see(experiment, observed)
    assert [view.number for view, _ in seen] == SHOTS.tolist()
    for place, (view, misfit) in enumerate(seen):
        survey = experiment.survey.select(SHOTS[place : place + 1])
        (window,) = simulator.aperture.find_windows(simulator.grid, survey)
        shots = AlikeShots(
            SHOTS[place : place + 1],
            survey,
            window,
            lambda place=place: observed[place : place + 1],
            simulator,
            experiment.conditioning(),
        )
        model = experiment.initial.as_tensors(Context.alone().device)
        compare = experiment.config.inversion.misfit.bind()
        (result,) = evaluate_shots(shots, model, compare, illuminate=False)
        assert misfit == result.misfit
        if not changes:
            residual = view.observed.astype(np.float64) - view.simulated
            assert misfit == pytest.approx(0.5 * survey.dt * np.sum(residual**2), rel=1e-5)


def test_views_have_traces_within_max_offset_and_signed_offsets(make):
    experiment, observed = make({"inversion.max_offset": 300.0})
    survey = experiment.survey.select(SHOTS)
    offsets = find_offsets(survey.sources, survey.receivers)
    for place, (view, _) in enumerate(see(experiment, observed)):
        near = offsets[place] <= 300.0
        apart = survey.receivers[place, near, 1] - survey.sources[place, 1]
        np.testing.assert_allclose(view.offsets, apart)
        np.testing.assert_array_equal(view.observed, observed[place, near])


def test_views_show_some_of_many_traces_but_misfit_counts_all(make, monkeypatch):
    experiment, observed = make({})
    whole = see(experiment, observed)
    monkeypatch.setattr(shot_qc, "MOST_TRACES", 7)
    for (view, misfit), (all_traces, expected) in zip(
        see(experiment, observed), whole, strict=True
    ):
        assert view.offsets.size == 7
        assert (view.offsets[0], view.offsets[-1]) == (
            all_traces.offsets[0],
            all_traces.offsets[-1],
        )
        assert misfit == expected


def test_views_are_simulated_with_a_given_wavelet(make):
    experiment, observed = make({})
    loud = see(experiment, observed, wavelet=2.0 * experiment.survey.wavelet)
    for (view, _), (other, _) in zip(see(experiment, observed), loud, strict=True):
        rounding = 1e-5 * np.abs(view.simulated).max()
        np.testing.assert_allclose(other.simulated, 2.0 * view.simulated, rtol=0.0, atol=rounding)
