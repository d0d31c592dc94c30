"""Search for the first arrivals of simulated traces in observed ones."""

from __future__ import annotations

import numpy as np
import pytest

from hpcfwi.plan.arrivals import correlation, find_arrivals, fit_wavelet
from hpcfwi.wave.numerics import ricker

DT, N, PERIOD = 0.004, 500, 0.1
ONSETS = np.linspace(0.4, 1.2, 9)  # s


def gather(late=0.0, factor=1.0):
    """Return a gather with a first arrival and a reflection twice as strong."""
    return factor * np.stack(
        [ricker(10.0, N, DT, t + late) + 2.0 * ricker(10.0, N, DT, t + late + 0.6) for t in ONSETS]
    )


@pytest.mark.parametrize("late", [-0.12, -0.02, 0.0, 0.04, 0.2])
def test_delay_is_found_to_the_sample(late):
    found = find_arrivals(gather(late), gather(), DT, PERIOD)
    np.testing.assert_allclose(found.lag, late, atol=0.5 * DT)
    np.testing.assert_allclose(found.likeness, 1.0, atol=0.02)
    assert found.sign == 1


@pytest.mark.parametrize("factor", [1e-30, 1e4, -3.0, -1e30])
def test_amplitude_ratio_and_sign_of_arrival_are_found(factor):
    found = find_arrivals(gather(0.02, factor), gather(), DT, PERIOD)
    np.testing.assert_allclose(found.ratio, abs(factor), rtol=0.02)
    assert found.sign == np.sign(factor)
    np.testing.assert_allclose(found.lag, 0.02, atol=0.5 * DT)


def test_sign_of_wave_of_a_single_frequency_is_undetermined():
    t = DT * np.arange(N)
    simulated = np.stack(
        [np.sin(2.0 * np.pi * (t - onset) / PERIOD) * (t > onset) for onset in ONSETS]
    )
    for late in (0, round(0.5 * PERIOD / DT)):
        assert find_arrivals(np.roll(simulated, late, axis=1), simulated, DT, PERIOD).sign == 0


def test_noise_is_measured_before_the_arrival():
    noise = np.random.default_rng(0).normal(size=(9, N))
    clean = find_arrivals(gather(), gather(), DT, PERIOD)
    noisy = find_arrivals(gather() + 0.05 * noise, gather(), DT, PERIOD)
    strength = np.sqrt(np.mean(ricker(10.0, 50, DT, 0.1) ** 2))
    assert np.median(clean.noise) < 1e-3
    assert np.median(noisy.noise) == pytest.approx(0.05 / strength, rel=0.3)


def test_white_noise_has_low_likeness():
    noise = np.random.default_rng(0).normal(size=(9, N))
    assert np.median(find_arrivals(noise, gather(), DT, PERIOD).likeness) < 0.5


def test_traces_without_an_arrival_or_with_broken_samples_are_left_out():
    observed, simulated = gather(), gather()
    observed[2, 7], observed[3], simulated[5] = np.nan, 0.0, 0.0
    found = find_arrivals(observed, simulated, DT, PERIOD)
    assert found.places.tolist() == [0, 1, 4, 6, 7, 8]
    nothing = find_arrivals(np.zeros((9, N)), gather(), DT, PERIOD)
    assert nothing.places.size == 0
    assert nothing.sign == 0


def test_fitted_wavelet_corrects_effect_of_a_filter_but_not_noise():
    simulated, live = gather(), np.ones(ONSETS.size, bool)
    observed = -5.0 * np.roll(np.gradient(simulated, axis=1), 12, axis=1)
    assert abs(correlation(observed, simulated)) < 0.5
    assert correlation(observed, fit_wavelet(observed, simulated, live)) > 0.98
    noise = np.random.default_rng(0).normal(size=simulated.shape)
    assert correlation(noise, fit_wavelet(noise, simulated, live)) < 0.5
