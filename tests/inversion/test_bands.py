"""Frequency bands of wavelet and traces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import butter, sosfiltfilt

from hpcfwi.inversion.conditioning import EARLY, SILENT, Band
from hpcfwi.survey import Survey

N, DT = 1500, 0.002
TIME = DT * np.arange(N)


def packet(frequency, time, width=0.3, centre=1.5):
    return np.sin(2 * np.pi * frequency * time) * np.exp(-(((time - centre) / width) ** 2))


@pytest.mark.parametrize("corners", [(0.0, 6.0), (3.0, 12.0)])
@pytest.mark.parametrize(("frequency", "left"), [(5.0, None), (40.0, 0.0), (0.4, None)])
def test_band_matches_zero_phase_butterworth_filter(corners, frequency, left):
    band = Band(*corners, N, DT)
    trace = packet(frequency, TIME).astype(np.float32)
    low, high = corners
    kind = {"btype": "lowpass", "Wn": high} if low == 0.0 else {"btype": "bandpass", "Wn": corners}
    passed = sosfiltfilt(butter(4, **kind, fs=1 / DT, output="sos"), trace)
    times = band.interval * np.arange(band.filter(trace).size) - band.lead
    expected = np.interp(times, TIME, passed, left=0.0)
    if left is not None:
        np.testing.assert_allclose(expected, left, atol=1e-4)
    within = (times > 0.1) & (times < 2.9)
    # The digital filter bends frequencies, and a band-pass is made of both edges at once
    np.testing.assert_allclose(band.filter(trace)[within], expected[within], atol=0.03)


@pytest.mark.parametrize("corners", [(0.0, 3.0), (0.0, 9.0), (2.0, 9.0)])
def test_band_loses_little_energy_before_record_and_to_aliasing(corners):
    band = Band(*corners, N, DT)
    pulse = np.zeros(N, np.float32)
    pulse[0] = 1.0
    whole = Band(*corners, 8 * N, DT)
    middle = np.zeros(8 * N, np.float32)
    middle[4 * N] = 1.0
    energy = whole.filter(middle).astype(np.float64) ** 2
    kept = band.filter(pulse).astype(np.float64) ** 2
    assert 1.0 - kept.sum() / energy.sum() < 2 * EARLY
    folded = band.response(np.array([0.5 / band.interval]))
    assert band.factor == 1 or folded <= 1.01 * SILENT


def test_wavelet_and_traces_are_filtered_alike():
    band = Band(0.0, 8.0, N, DT)
    wavelet = packet(5.0, TIME, 0.1, 0.5).astype(np.float32)
    survey = band.survey(
        Survey(np.zeros((2, 2)), np.zeros((3, 2)), wavelet, DT), band.filter(wavelet)
    )
    assert survey.dt == band.interval == DT * band.factor
    assert survey.start == -band.lead
    np.testing.assert_array_equal(survey.wavelet, band.filter(wavelet))
    delayed = np.roll(wavelet, 40 * band.factor)
    later = np.roll(survey.wavelet, 40)
    np.testing.assert_allclose(
        band.filter(delayed)[40:], later[40:], atol=1e-3 * np.abs(later).max()
    )


@given(st.integers(1, 40), st.integers(0, 2**32))
def test_filtered_trace_does_not_depend_on_other_traces(count, seed):
    band = Band(1.0, 8.0, 200, DT)
    traces = np.random.default_rng(seed).standard_normal((count, 200)).astype(np.float32)
    together = band.filter(traces)
    np.testing.assert_array_equal(together[-1], band.filter(traces[-1]))
