"""Tests of `hpcfwi.open_input`, with which programs open input files."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hpcfwi as package
from hpcfwi.errors import InputError
from hpcfwi.parallel.context import Context
from tests.inversion.examples import N_RECEIVERS, N_SHOTS, write_input
from tests.wave.examples import relative

BAND = [0.0, 5.0]
# The boundary layer is tuned to the starting model here, to the true model for the observed data
TUNED = 0.01


def open_input(path, **keywords):
    return package.open_input(path, Context.alone(), **keywords)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """A run directory with the observed data of the example."""
    from hpcfwi.run.job import run_job

    path = write_input(tmp_path_factory.mktemp("simulated"))
    run_job(path, (), Context.alone(), inverts=False, quiet=True)
    return path


def test_opened_shots_simulate_the_observed_data_in_the_true_model(simulated):
    job = open_input(simulated)
    assert relative(job.shots(job.true), job.observed()) < TUNED
    assert relative(job.shots(job.model), job.observed()) > 0.1


def test_run_directory_opens_like_its_input(simulated):
    job = open_input(simulated.parent / "run")
    assert torch.equal(job.model["vp"], open_input(simulated).model["vp"])


def test_settings_change_keys_of_the_opened_input(simulated):
    job = open_input(simulated, settings=["data.offsets=[100.0, 500.0]"])
    counts = job.observed().abs().amax(dim=2) > 0.0
    offsets = np.linalg.norm(
        job.shots.survey.receivers[None, :, 1:] - job.shots.survey.sources[:, None, 1:], axis=-1
    )
    assert not counts[torch.from_numpy((offsets < 99.0) | (offsets > 501.0))].any()
    assert counts.any()
    assert relative(job.shots(job.true), job.observed()) < TUNED


def test_last_stage_opens_by_default_and_each_has_its_own_band_and_grid(simulated):
    stages = [{"spacing": 40.0, "data": {"band": BAND}}, {"data": {"band": [0.0, 9.0]}}]
    path = write_input(simulated.parent, {"stage": stages}, name="stages")
    first, last = open_input(path, stage=1), open_input(path)
    assert (first.stage, last.stage) == (1, 2)
    assert first.shots.grid.spacing == (
        pytest.approx(38.667, abs=1e-3),
        pytest.approx(39.333, 1e-3),
    )
    assert first.model["vp"].shape == first.shots.grid.shape
    assert last.shots.grid == last.experiment.initial.grid
    for job in (first, last):
        data = job.observed()
        assert data.shape == job.shots.survey.shape == (N_SHOTS, N_RECEIVERS, data.shape[2])
    assert relative(last.shots(last.true), last.observed()) < TUNED


def test_missing_stage_is_refused(simulated):
    with pytest.raises(InputError, match="stage 2: there is no such stage; the input has 1"):
        open_input(simulated, stage=2)


def test_observed_data_that_are_not_simulated_yet_are_an_input_error(tmp_path):
    job = open_input(write_input(tmp_path))
    with pytest.raises(InputError, match=r"not been simulated yet.*hpcfwi forward"):
        job.observed()


def test_data_made_from_another_model_are_refused(simulated):
    job = open_input(simulated, settings=["wave.order=8"])
    with pytest.raises(InputError, match="of another model or survey"):
        job.observed()
