"""Correction of point to line sources, against both waves in a homogeneous medium."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate

from hpcfwi.inversion.conditioning import correct_point_source, half_integral
from hpcfwi.wave.numerics import ricker

SPEED, DT, N, DELAY = 2000.0, 0.002, 1200, 0.2


def point_source(offset):
    """Return p(r, t) = s(t - r / c) / (4 pi r)."""
    return ricker(10.0, N, DT, DELAY + offset / SPEED) / (4.0 * np.pi * offset)


def line_source(offset):
    """Return p(r, t), the integral of s(t - r / c cosh theta) / (2 pi) over theta >= 0."""
    theta = np.linspace(0.0, 4.0, 8001)
    late = offset / SPEED * np.cosh(theta)
    t = DT * np.arange(N)[:, None]
    a = (np.pi * 10.0 * (t - late - DELAY)) ** 2
    return integrate.simpson((1.0 - 2.0 * a) * np.exp(-a), x=theta, axis=1) / (2.0 * np.pi)


@pytest.mark.parametrize(("offset", "error"), [(400.0, 0.15), (1200.0, 0.06), (2400.0, 0.04)])
def test_corrected_point_source_approximates_a_line_source(offset, error):
    wavelet = ricker(10.0, N, DT, DELAY)
    found = correct_point_source(point_source(offset)[None], wavelet, DT, SPEED)[0]
    expected = line_source(offset)
    assert np.linalg.norm(found - expected) < error * np.linalg.norm(expected)
    uncorrected = point_source(offset)
    uncorrected *= np.linalg.norm(expected) / np.linalg.norm(uncorrected)
    assert np.linalg.norm(uncorrected - expected) > 0.5 * np.linalg.norm(expected)


def test_half_integral_applied_twice_is_an_integral():
    x, spectrum = np.hanning(400), half_integral(400, 0.01)

    def integrate_half(values):
        return np.fft.irfft(spectrum * np.fft.rfft(values, 800))[:400]

    expected = integrate.cumulative_trapezoid(x, dx=0.01, initial=0.0)
    # The jump at the end of the record is not in the band of its samples
    found = integrate_half(integrate_half(x))
    np.testing.assert_allclose(found[:300], expected[:300], atol=3e-4)


@pytest.mark.parametrize("factor", [5, 20])
def test_correction_does_not_depend_on_the_sampling_interval(factor):
    a = (np.pi * 3.0 * (DT * np.arange(N) - np.array([[0.6], [1.4]]))) ** 2
    wavelet, traces = (1.0 - 2.0 * a) * np.exp(-a)
    fine = correct_point_source(traces[None], wavelet, DT, SPEED)[0, ::factor]
    coarse = correct_point_source(traces[None, ::factor], wavelet[::factor], factor * DT, SPEED)[0]
    np.testing.assert_allclose(coarse, fine, atol=0.01 * np.abs(fine).max())


def test_correction_is_causal():
    trace = np.zeros((1, 300))
    trace[0, 120] = 1.0
    wavelet = ricker(10.0, 300, DT, 0.05)
    found = correct_point_source(trace, wavelet, DT, SPEED)[0]
    assert np.abs(found[:120]).max() < 1e-6 * np.abs(found).max()
