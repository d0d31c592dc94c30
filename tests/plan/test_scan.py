"""Samples that stand alone; what is found in whole files is in tests/run/test_checking.py."""

from __future__ import annotations

import numpy as np
import pytest

from hpcfwi.plan.scan import find_spikes
from hpcfwi.wave.wavelet import ricker


def test_one_sample_far_beyond_all_others_is_a_spike_and_a_wave_is_none():
    waves = np.stack([ricker(f, 300, 0.004, 0.5) for f in (2.0, 10.0, 40.0)]).astype(np.float32)
    noise = np.random.default_rng(0).normal(size=(50, 300)).astype(np.float32)
    assert not find_spikes(waves).any()
    assert not find_spikes(noise).any()
    assert not find_spikes(np.zeros((2, 300), np.float32)).any()


@pytest.mark.parametrize(("value", "is_spike"), [(5.0, True), (-1e30, True), (2.0, False)])
def test_a_spike_is_told_by_its_size(value, is_spike):
    traces = np.stack([ricker(10.0, 300, 0.004, 0.5)] * 3).astype(np.float32)
    traces[1, 250] = value
    assert find_spikes(traces).tolist() == [False, is_spike, False]


def test_what_is_not_finite_is_no_spike():
    traces = np.ones((2, 30), np.float32)
    traces[0, 3], traces[1, 4] = np.nan, np.inf
    assert not find_spikes(traces).any()
