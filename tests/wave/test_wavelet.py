"""Tests of wavelets and of measures of their spectra."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.survey import Spectrum
from hpcfwi.wave.numerics import ricker

N, DT = 1000, 1e-3
BIN = 1.0 / (4 * N * DT)  # Hz, of a spectrum padded to four times the length
frequencies = st.floats(3.0, 60.0)


@given(frequencies)
def test_spectrum_of_a_ricker_wavelet_peaks_at_its_frequency(frequency: float) -> None:
    wavelet = ricker(frequency, N, DT, delay=0.5)
    assert Spectrum.of(wavelet, DT).peak == pytest.approx(frequency, abs=BIN)


def test_ricker_wavelet_is_one_at_its_delay_and_has_zero_mean() -> None:
    wavelet = ricker(10.0, N, DT, delay=0.4)
    assert wavelet.argmax() == 400
    assert wavelet[400] == pytest.approx(1.0)
    assert wavelet.sum() == pytest.approx(0.0, abs=1e-9)


@given(st.floats(5.0, 60.0), st.sampled_from((1e-1, 1e-2, 1e-4)))
def test_highest_frequency_is_where_the_spectrum_falls_to_the_share(
    frequency: float, share: float
) -> None:
    def spectrum(at: float) -> float:
        return float(at**2 * np.exp(1.0 - at**2))

    highest = Spectrum.of(ricker(frequency, N, DT, delay=0.5), DT).highest(share)
    assert spectrum(highest / frequency) > 0.99 * share
    assert spectrum((highest + BIN) / frequency) < 1.01 * share


def test_highest_frequency_of_several_wavelets_covers_them_all() -> None:
    low, high = ricker(5.0, N, DT, 0.5), ricker(20.0, N, DT, 0.5)
    alone = Spectrum.of(low, DT).highest()
    assert alone < Spectrum.of(np.stack([low, 0.01 * high]), DT).highest()
    both = Spectrum.of(np.stack([0.01 * low, high]), DT)
    assert Spectrum.of(high, DT).highest() == both.highest()


def test_highest_frequency_of_a_zero_wavelet_is_zero() -> None:
    assert Spectrum.of(np.zeros(50), DT).highest() == 0.0


def test_highest_frequency_of_a_white_wavelet_is_the_nyquist_frequency() -> None:
    white = np.random.default_rng(0).normal(size=N)
    assert Spectrum.of(white, DT).highest() == pytest.approx(0.5 / DT)
