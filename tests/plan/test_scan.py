"""Silent, broken and spiky traces; tests/run/test_checking.py tests the reports on whole files."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from hpcfwi.parallel.context import Context
from hpcfwi.plan import arrivals
from hpcfwi.plan.arrivals import Tally, find_spikes, scan_traces
from hpcfwi.wave.numerics import ricker
from tests.inversion.examples import prepared
from tests.parallel.together import on_ranks


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("at_a_time", [1, 2**16, 2**24])
def test_scan_does_not_depend_on_ranks_or_parts(size, at_a_time, tmp_path, monkeypatch):
    monkeypatch.setattr(arrivals, "AT_A_TIME", at_a_time)
    experiment = prepared(tmp_path)
    traces = np.random.default_rng(0).normal(size=experiment.survey.shape).astype(np.float32)
    traces[4] = 0.0
    traces[2, 5, 7], traces[[9, 3], 11, 60], traces[8, :, 3] = np.nan, 1e3, np.inf
    traces[6, 12] *= 1e-5
    traces[0, 29] *= 100.0
    reader = SimpleNamespace(survey=experiment.survey, read=lambda shots: traces[shots])
    for found in on_ranks(size, lambda context: scan_traces(experiment, reader, context)):
        assert (found.shots, found.traces, found.silent) == (10, 300, (4,))
        assert found.broken == Tally(31, ((2, 5), (8, 0), (8, 1)))
        assert found.spiky == Tally(2, ((3, 11), (9, 11)))
        assert found.dead == Tally(1, ((6, 12),))
        assert found.loud == Tally(1, ((0, 29),))


def test_shots_too_short_to_record_a_wave_are_not_called_silent(tmp_path):
    changes = {"survey.duration": 0.2, "survey.wavelet.delay": 0.3}
    experiment = prepared(tmp_path, changes)
    reader = SimpleNamespace(survey=experiment.survey, read=lambda shots: traces[shots])
    traces = np.ones(experiment.survey.shape, np.float32)
    assert scan_traces(experiment, reader, Context.alone()).silent == ()
    traces[3] = 0.0
    assert scan_traces(experiment, reader, Context.alone()).silent == ()


def test_shots_with_mostly_zero_traces_are_not_called_silent(tmp_path):
    experiment = prepared(tmp_path)
    traces = np.random.default_rng(0).normal(size=experiment.survey.shape).astype(np.float32)
    is_dead = np.arange(experiment.survey.shape[1]) % 5 != 0
    traces[:, is_dead] = 0.0
    traces[7] = 0.0
    reader = SimpleNamespace(survey=experiment.survey, read=lambda shots: traces[shots])
    found = scan_traces(experiment, reader, Context.alone())
    assert found.silent == (7,)
    assert found.dead.count > 0
    assert found.loud.count == 0


def test_waves_noise_and_zeros_are_no_spikes():
    waves = np.stack([ricker(f, 300, 0.004, 0.5) for f in (2.0, 10.0, 40.0)]).astype(np.float32)
    noise = np.random.default_rng(0).normal(size=(50, 300)).astype(np.float32)
    assert not find_spikes(waves).any()
    assert not find_spikes(noise).any()
    assert not find_spikes(np.zeros((2, 300), np.float32)).any()


@pytest.mark.parametrize(("value", "is_spike"), [(5.0, True), (-1e30, True), (2.0, False)])
def test_spike_is_detected_by_its_amplitude(value, is_spike):
    traces = np.stack([ricker(10.0, 300, 0.004, 0.5)] * 3).astype(np.float32)
    traces[1, 250] = value
    assert find_spikes(traces).tolist() == [False, is_spike, False]


def test_nonfinite_samples_are_no_spikes():
    traces = np.ones((2, 30), np.float32)
    traces[0, 3], traces[1, 4] = np.nan, np.inf
    assert not find_spikes(traces).any()
