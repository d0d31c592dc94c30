"""Properties of all shots of a survey, computed once for all ranks or per host."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from hpcfwi.inversion import preconditioning
from hpcfwi.inversion.conditioning import Band
from hpcfwi.inversion.experiment import find_costs, find_taper, know_spectrum, limit_survey
from hpcfwi.model import Grid
from hpcfwi.operators.simulator import Aperture
from hpcfwi.parallel.context import Context
from hpcfwi.survey import Spectrum, Survey
from tests.parallel.together import on_ranks

N_SHOTS, N_RECEIVERS, N_SAMPLES = 7, 5, 300
GRID = Grid((20, 300), (10.0, 10.0), (0.0, 0.0))
ALONE = Context.alone()
HOSTS = ("one", "one", "other")


def make_survey() -> Survey:
    """Return a marine survey whose shots have separate receivers and wavelets."""
    draw = np.random.default_rng(0)
    sources = np.column_stack([np.full(N_SHOTS, 20.0), draw.uniform(500.0, 2500.0, N_SHOTS)])
    away = draw.uniform(0.0, 600.0, (N_SHOTS, N_RECEIVERS))
    x = np.minimum(sources[:, 1:] + away, GRID.last[1])
    receivers = np.stack([np.full(x.shape, 30.0), x], axis=-1)
    wavelets = draw.normal(size=(N_SHOTS, N_SAMPLES)).astype(np.float32)
    return Survey(sources, receivers, wavelets, 0.004)


SURVEY = make_survey()


@pytest.mark.parametrize("size", [1, 3, 9])
def test_spectra_of_wavelets_are_computed_once_over_all_ranks(size, monkeypatch):
    whole, counts = Spectrum.of(SURVEY.wavelet, SURVEY.dt), []
    find = Spectrum.of

    def count(wavelets, dt):
        counts.append(len(wavelets))
        return find(wavelets, dt)

    monkeypatch.setattr(Spectrum, "of", count)
    for known in on_ranks(size, lambda context: know_spectrum(SURVEY, context).spectrum):
        np.testing.assert_array_equal(known.largest, whole.largest)
    assert sum(counts) == N_SHOTS
    assert max(counts) <= -(-N_SHOTS // size)


def test_wavelets_of_a_band_are_filtered_once_per_host(monkeypatch):
    band, calls = Band(1.0, 20.0, N_SAMPLES, 0.004), Counter()
    alone, filter_all = limit_survey(SURVEY, band, ALONE), Band.filter_each
    np.testing.assert_array_equal(alone.wavelet, band.filter(SURVEY.wavelet))

    def count(self, wavelets):
        calls["filter"] += 1
        return filter_all(self, wavelets)

    monkeypatch.setattr(Band, "filter_each", count)
    for found in on_ranks(3, lambda context: limit_survey(SURVEY, band, context), HOSTS):
        np.testing.assert_array_equal(found.wavelet, alone.wavelet)
        np.testing.assert_array_equal(found.spectrum.largest, alone.spectrum.largest)
        assert (found.dt, found.start) == (alone.dt, alone.start)
    assert calls["filter"] == 2


@pytest.mark.parametrize("aperture", [Aperture(), Aperture(100.0), Aperture(100.0, 300.0)])
def test_costs_of_shots_are_computed_once_over_all_ranks(aperture, monkeypatch):
    alone, counts = aperture.costs(GRID, SURVEY), []
    within_offsets = Aperture.within_offsets

    def count(self, sources, receivers):
        counts.append(len(sources))
        return within_offsets(self, sources, receivers)

    monkeypatch.setattr(Aperture, "within_offsets", count)
    for found in on_ranks(3, lambda context: find_costs(aperture, GRID, SURVEY, context)):
        np.testing.assert_array_equal(found, alone)
    assert sum(counts) == (0 if aperture.margin is None else N_SHOTS)


def test_taper_is_computed_once_per_host(monkeypatch):
    calls, rise_from = [], preconditioning.rise_from

    def count(*arguments):
        calls.append(arguments)
        return rise_from(*arguments)

    monkeypatch.setattr("hpcfwi.inversion.experiment.rise_from", count)
    found = on_ranks(3, lambda context: find_taper(SURVEY, 60.0, GRID, context), HOSTS)
    expected = rise_from(np.vstack([SURVEY.sources, SURVEY.receiver_positions()]), 60.0, GRID)
    for taper in found:
        np.testing.assert_array_equal(taper, expected)
    assert len(calls) == 2


def test_taper_ignores_masked_receivers():
    mask = np.zeros((N_SHOTS, N_RECEIVERS), dtype=bool)
    mask[2, 3] = True
    survey = replace(SURVEY, mask=mask)
    found = find_taper(survey, 60.0, GRID, ALONE)
    points = np.vstack([survey.sources, survey.receivers[2, 3][None]])
    np.testing.assert_array_equal(found, preconditioning.rise_from(points, 60.0, GRID))
