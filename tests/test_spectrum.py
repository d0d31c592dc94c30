"""Tests of the combined spectrum of many wavelets."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import hpcfwi.survey
from hpcfwi.survey import Spectrum, Survey, find_amplitudes, find_frequencies

DT = 0.004
WAVELETS = np.random.default_rng(0).normal(size=(30, 50)).astype(np.float32)


@pytest.mark.parametrize("at_a_time", [1, 1000, 2**20])
def test_spectrum_of_many_wavelets_combines_those_of_each(at_a_time, monkeypatch):
    monkeypatch.setattr(hpcfwi.survey, "AT_A_TIME", at_a_time)
    found, amplitudes = Spectrum.of(WAVELETS, DT), find_amplitudes(WAVELETS)
    np.testing.assert_array_equal(found.largest, amplitudes.max(axis=0))
    np.testing.assert_allclose(found.energy, (amplitudes**2).sum(axis=0), rtol=1e-12)
    frequencies = find_frequencies(50, DT)
    assert found.peak == frequencies[amplitudes.max(axis=0).argmax()]


def test_combined_spectra_can_include_one_of_no_wavelets():
    whole = Spectrum.of(WAVELETS, DT)
    parts = [Spectrum.of(WAVELETS[places], DT) for places in (slice(0), slice(7), slice(7, 30))]
    found = Spectrum.together(parts)
    np.testing.assert_array_equal(found.largest, whole.largest)
    np.testing.assert_allclose(found.energy, whole.energy, rtol=1e-12)


def test_spectrum_of_many_wavelets_needs_little_memory():
    many = np.ones((4000, 200), np.float32)
    tracemalloc.start()
    Spectrum.of(many, DT)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10e6, "all amplitudes have 13 MB, all complex spectra 26 MB"


def test_survey_computes_its_spectrum_once_or_uses_a_given_one(monkeypatch):
    survey, told = (Survey(np.zeros((30, 2)), np.zeros((1, 2)), WAVELETS, DT) for _ in range(2))
    found = survey.spectrum
    told = told.knowing(found)

    def look_again(*_):
        pytest.fail("the spectrum was computed again")

    monkeypatch.setattr(Spectrum, "of", look_again)
    assert survey.spectrum is told.spectrum is found
