"""Filtering of residuals above the wavelet's band, which a sampled history cannot resolve."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hpcfwi.operators.simulator import TOLERATED, limit_to_history, low_pass, share_above
from hpcfwi.wave import Snapshots
from hpcfwi.wave.numerics import ricker
from tests.inversion.examples import N_RECEIVERS, prepared
from tests.wave.examples import relative

DT = 0.004  # s


def noise(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def simulation(interval, frequency=25.0):
    return SimpleNamespace(history=Snapshots(interval, frequency))


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    # The grid resolves four times the wavelet's highest frequency.
    changes = {"survey.wavelet.frequency": 4.0, "survey.wavelet.delay": 0.25}
    return prepared(tmp_path_factory.mktemp("band"), {**changes, "survey.duration": 1.2})


def gradient(experiment, history, residual, limited):
    simulator = experiment.simulator(experiment.initial)
    history = Snapshots(history, simulator.method.history.frequency)
    model = experiment.initial.as_tensors(torch.device("cpu"))
    survey = experiment.survey.select(np.array([4]))
    waves = simulator.with_history(history).simulate(model, survey, keep=True)
    if limited:
        residual = limit_to_history(residual, waves, survey.dt, TOLERATED)
    return waves.backpropagate(residual).model["vp"][0, ~torch.from_numpy(experiment.fixed)]


def test_gradient_of_white_residual_matches_history_of_every_step(experiment):
    """Without the filter, noise above the band is aliased into it."""
    residual = noise(1, N_RECEIVERS, experiment.survey.n_samples).float()
    exact = gradient(experiment, 1, residual, limited=False)
    assert relative(gradient(experiment, None, residual, limited=True), exact) < 0.02
    assert relative(gradient(experiment, None, residual, limited=False), exact) > 0.5


def test_residual_within_band_is_returned_unchanged():
    clean = torch.from_numpy(ricker(8.0, 150, DT, 0.3)).expand(2, 5, 150).float()
    assert limit_to_history(clean, simulation(4), DT, TOLERATED) is clean
    cut_off = clean[..., :95]  # at 0.13 of its peak
    assert limit_to_history(cut_off, simulation(4), DT, TOLERATED) is cut_off


def test_residual_is_not_filtered_for_history_of_every_step():
    white = noise(2, 5, 150)
    assert limit_to_history(white, simulation(1), DT, TOLERATED) is white
    assert limit_to_history(white, simulation(4, None), DT, TOLERATED) is white


def test_filtered_shot_does_not_depend_on_other_shots_or_threads():
    clean = torch.from_numpy(ricker(8.0, 150, DT, 0.3)).expand(1, 5, 150)
    both = torch.cat([clean, noise(1, 5, 150)])
    limited = limit_to_history(both, simulation(4), DT, TOLERATED)
    assert torch.equal(limited[0], both[0])
    assert torch.equal(limited[1:], limit_to_history(both[1:], simulation(4), DT, TOLERATED))
    torch.set_num_threads(2)
    try:
        assert torch.equal(limited, limit_to_history(both, simulation(4), DT, TOLERATED))
    finally:
        torch.set_num_threads(1)


def test_filter_passes_band_without_delay_and_removes_the_rest():
    t = DT * np.arange(2000)
    window = np.hanning(2000)
    for frequency, expected in ((5.0, 1.0), (20.0, 1.0), (26.0, 0.0), (100.0, 0.0)):
        tone = torch.from_numpy(window * np.sin(2.0 * np.pi * frequency * t))
        found = low_pass(tone, 25.0, DT)
        torch.testing.assert_close(found, expected * tone, rtol=0.0, atol=2e-3)


def test_filter_is_symmetric():
    x, y = noise(3, 97), noise(3, 97, seed=1)
    one, other = (low_pass(x, 25.0, DT) * y).sum(), (x * low_pass(y, 25.0, DT)).sum()
    assert float(one) == pytest.approx(float(other), rel=1e-12)


def test_share_above_for_white_noise_is_its_fraction_of_frequencies():
    assert share_above(noise(50, 1000), 25.0, DT) == pytest.approx(0.8, abs=0.01)
    assert share_above(torch.zeros(3, 100), 25.0, DT) == 0.0
