"""Tests of the input files in `inputs`."""

from __future__ import annotations

import json
import runpy

import h5py
import numpy as np
import pytest

from hpcfwi.config import load_config
from tests.ranks import ROOT

INPUTS = ROOT / "inputs"
SMALL = INPUTS / "small.toml"


@pytest.mark.parametrize("path", sorted(INPUTS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_input_of_the_project_is_valid(path):
    assert load_config(path).inversion.epochs > 0


def test_small_input_needs_no_file_and_improves_the_model(hpcfwi, tmp_path, monkeypatch):
    monkeypatch.setenv("HPCFWI_DATA", str(tmp_path / "nowhere"))
    run = tmp_path / "run"
    assert hpcfwi("run", SMALL, "--set", "inversion.epochs=3", "--output", run, "--quiet") == 0
    lines = (run / "metrics.jsonl").read_text().splitlines()
    errors = [json.loads(line)["model_error"] for line in lines]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.9 * errors[0]


def test_field_data_are_filtered_below_3_hz_with_noise_at_minus_10_db(tmp_path):
    script = runpy.run_path(str(INPUTS / "marmousi_field.py"))
    impulses = np.zeros((3, 4, 1500), np.float32)
    impulses[:, :, 100] = [[1.0], [2.0], [-3.0]]
    recorded = []
    with h5py.File(tmp_path / "recorded.h5", "w") as file:
        for seed in (1, 2):
            file[str(seed)] = impulses
            script["record"](file[str(seed)], seed)
            recorded.append(file[str(seed)][...].astype(np.float64))
    one, other = recorded
    spectra = np.abs(np.fft.rfft(one, axis=-1)) ** 2
    low = np.fft.rfftfreq(1500, script["DT"]) < 3.0
    assert spectra[..., low].sum() < 0.02 * spectra.sum()
    # The power of independent noises is half that of their difference
    noise = 0.5 * np.square(one - other).sum()
    signal = np.square(0.5 * (one + other)).sum() - 0.5 * noise
    assert noise / signal == pytest.approx(0.1, rel=0.1)
