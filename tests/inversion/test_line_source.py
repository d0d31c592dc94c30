"""Correction of point to line sources, against both waves in a homogeneous medium."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate

from hpcfwi.errors import InputError
from hpcfwi.inversion.conditioning import Band, correct_point_source, half_integral
from hpcfwi.wave.numerics import ricker
from tests.inversion.examples import prepare_alone, prepared, write_input, write_volume

SPEED, DT, N, DELAY = 2000.0, 0.002, 1200, 0.2


def point_source(offset, frequency=10.0):
    """Return p(r, t) = s(t - r / c) / (4 pi r)."""
    return ricker(frequency, N, DT, DELAY + offset / SPEED) / (4.0 * np.pi * offset)


def line_source(offset, frequency=10.0):
    """Return p(r, t), the integral of s(t - r / c cosh theta) / (2 pi) over theta >= 0."""
    theta = np.linspace(0.0, 4.0, 8001)
    late = offset / SPEED * np.cosh(theta)
    t = DT * np.arange(N)[:, None]
    a = (np.pi * frequency * (t - late - DELAY)) ** 2
    return integrate.simpson((1.0 - 2.0 * a) * np.exp(-a), x=theta, axis=1) / (2.0 * np.pi)


@pytest.mark.parametrize(("offset", "error"), [(400.0, 0.15), (1200.0, 0.06), (2400.0, 0.04)])
def test_corrected_point_source_approximates_a_line_source(offset, error):
    found = correct_point_source(point_source(offset)[None], DELAY, DT, SPEED)[0]
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
    traces = ricker(3.0, N, DT, 1.4)[None]
    fine = correct_point_source(traces, 0.6, DT, SPEED)[0, ::factor]
    coarse = correct_point_source(traces[:, ::factor], 0.6, factor * DT, SPEED)[0]
    np.testing.assert_allclose(coarse, fine, atol=0.01 * np.abs(fine).max())


def test_correction_is_causal():
    trace = np.zeros((1, 300))
    trace[0, 120] = 1.0
    found = correct_point_source(trace, 0.05, DT, SPEED)[0]
    assert np.abs(found[:120]).max() < 1e-6 * np.abs(found).max()


def corrected_experiment(folder, band=None):
    """Return an experiment with one shot at each of three times and a correction, in a band."""
    wavelet = {"kind": "ricker", "frequency": 5.0, "delay": DELAY}
    survey = {"survey.wavelet": wavelet, "survey.dt": DT, "survey.duration": N * DT}
    made = prepared(folder, {**survey, "survey.sources": {"count": 3, "depth": 20.0}})
    wavelets = np.stack([ricker(5.0, N, DT, DELAY + later) for later in (0.0, 0.1, 0.3)])
    survey = replace(made.survey, wavelet=wavelets.astype(np.float32))
    if band is not None:
        survey = band.survey(survey, band.filter_each(survey.wavelet))
    data = made.config.data.model_copy(update={"correct": "line-source"})
    config = made.config.model_copy(update={"data": data})
    initial = made.initial.map(lambda array: np.full_like(array, SPEED))
    return replace(made, config=config, survey=survey, initial=initial, band=band)


@pytest.mark.parametrize(("offset", "error"), [(400.0, 0.09), (1200.0, 0.03), (2400.0, 0.02)])
def test_traces_are_corrected_before_they_are_limited_to_a_band(tmp_path, offset, error):
    band = Band(2.0, 5.0, N, DT)
    preprocess = corrected_experiment(tmp_path, band).preprocessing()
    found = preprocess(point_source(offset, 5.0)[None], 0)[0]
    expected = band.filter(line_source(offset, 5.0)[None])[0]
    assert np.linalg.norm(found - expected) < error * np.linalg.norm(expected)


def test_travel_times_count_from_the_peak_of_the_wavelet_of_each_shot(tmp_path):
    preprocess = corrected_experiment(tmp_path).preprocessing()
    trace = np.zeros((1, N), np.float32)
    trace[0, 400] = 1.0
    for shot, later in enumerate((0.0, 0.1, 0.3)):
        expected = correct_point_source(trace, DELAY + later, DT, SPEED)
        np.testing.assert_allclose(preprocess(trace, shot), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("write", "reason"), [(write_input, "simulated in two dimensions"), (write_volume, "three")]
)
def test_correction_of_waves_with_the_dimensions_of_the_model_is_refused(tmp_path, write, reason):
    with pytest.raises(InputError, match=rf"data.correct: .*{reason}.* Leave out the key"):
        prepare_alone(write(tmp_path, {"data.correct": "line-source"}))
