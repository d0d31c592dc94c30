"""Models, survey and simulator of a config."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates

from hpcfwi.config import load_config
from hpcfwi.errors import InputError
from hpcfwi.inversion import preparation
from hpcfwi.inversion.checks import check_units
from hpcfwi.inversion.loop import find_optimizer_cost
from hpcfwi.inversion.preparation import prepare
from hpcfwi.model import Grid, Model, resample, smooth
from hpcfwi.operators.simulator import Aperture
from hpcfwi.parallel.context import Context
from hpcfwi.storage.models import write_model
from hpcfwi.wave import Auto, Boundary, Recompute, Snapshots
from hpcfwi.wave.engines.gpu import engine as gpu
from tests.inversion.bad_inputs import FILE_INSTEAD, write_given
from tests.inversion.examples import (
    N_RECEIVERS,
    N_SAMPLES,
    N_SHOTS,
    prepare_alone,
    prepared,
    true_model,
    write_input,
)
from tests.parallel.together import on_ranks


def test_initial_model_is_smoothed_true_model_with_fixed_water(tmp_path):
    experiment = prepared(tmp_path)
    true, initial = experiment.true["vp"], experiment.initial["vp"]
    np.testing.assert_array_equal(true, true_model()["vp"])
    assert experiment.fixed[:4].all()
    assert not experiment.fixed[4:].any()
    np.testing.assert_array_equal(initial[:4], 1500.0)
    np.testing.assert_array_equal(initial, smooth(true_model(), 80.0, experiment.fixed)["vp"])
    roughness = [np.abs(np.diff(vp[4:], axis=0)).max() for vp in (true, initial)]
    assert roughness[1] < 0.3 * roughness[0]


def test_gpus_of_several_hosts_cannot_divide_a_shot(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "available", lambda: None)
    changes = {"wave.engine": "gpu", "wave.ranks_per_shot": 2}
    config = load_config(write_input(tmp_path, changes))

    def prepare_on(hosts):
        leader = Mock(size=2, hosts=hosts, NAME="gpu")
        return prepare(config, replace(Context.alone(), leader=leader))

    assert prepare_on(1).config.wave.ranks_per_shot == 2
    with pytest.raises(InputError, match=r"2 ranks on several hosts.*on each host"):
        prepare_on(2)


def test_one_rank_resamples_and_smooths_for_all_ranks(tmp_path, monkeypatch):
    path = write_input(tmp_path, {"model.spacing": 40.0})
    calls = []

    def counted(name, work):
        def count(*arguments):
            calls.append(name)
            return work(*arguments)

        return count

    for name, work in (("resample", resample), ("smooth", smooth)):
        monkeypatch.setattr(preparation, name, counted(name, work))
    found = on_ranks(3, lambda context: prepare(load_config(path), context))
    assert calls == ["resample", "smooth"]
    alone = prepare_alone(path)
    for experiment in found:
        np.testing.assert_array_equal(experiment.initial["vp"], alone.initial["vp"])
        np.testing.assert_array_equal(experiment.true["vp"], alone.true["vp"])


def test_initial_model_may_have_smooth_slowness(tmp_path):
    experiment = prepared(tmp_path, {"model.initial": {"smooth_slowness": 80.0}})
    expected = smooth(true_model(), 80.0, experiment.fixed, -1.0)
    np.testing.assert_array_equal(experiment.initial["vp"], expected["vp"])
    other = prepared(tmp_path, {"model.initial": {"smooth": 80.0}})
    assert (experiment.initial["vp"] < other.initial["vp"] + 0.01).all()


def test_initial_model_may_increase_linearly_below_the_water(tmp_path):
    experiment = prepared(tmp_path, {"model.initial": {"linear": [1400.0, 1.5]}})
    found, depths = experiment.initial["vp"], experiment.initial.grid.coordinates(0)
    np.testing.assert_array_equal(found[experiment.fixed], 1500.0)
    np.testing.assert_allclose(found[4:], np.tile(1400.0 + 1.5 * depths[4:, None], 60))


def test_initial_model_of_a_file_is_unchanged_or_resampled_to_the_spacing(tmp_path):
    start = Model(true_model().grid, {"vp": np.full((30, 60), 2200.0, np.float32)})
    write_model(tmp_path / "start.h5", start)
    changes = {"model.initial": {"file": "start.h5"}}
    np.testing.assert_array_equal(prepared(tmp_path, changes).initial["vp"], 2200.0)
    coarse = prepared(tmp_path, {**changes, "model.spacing": 40.0})
    assert coarse.initial.grid == coarse.true.grid
    assert coarse.initial.grid.shape == (15, 30)


def test_initial_model_on_another_grid_is_resampled_to_the_true_grid(tmp_path):
    coarse = resample(true_model(), (35.0, 35.0))
    write_model(tmp_path / "start.h5", coarse)
    changes = {"model.initial": {"file": "start.h5"}}
    initial = prepared(tmp_path, changes).initial
    assert initial.grid == true_model().grid
    z, x = 6.0 * 20.0 / 35.0, 33.0 * 20.0 / 35.0
    expected = map_coordinates(coarse["vp"].astype(float), [[z], [x]], order=1)
    assert initial["vp"][6, 33] == pytest.approx(expected[0], rel=1e-6)
    np.testing.assert_array_equal(
        initial["vp"][-1], initial["vp"][-2], "extrapolated 20 m below its last row"
    )

    shifted = Grid((50, 80), (20.0, 20.0), (-100.0, -200.0))
    vp = np.full(shifted.shape, 4000.0, np.float32)
    vp[5:35, 10:70] = true_model()["vp"]
    write_model(tmp_path / "start.h5", Model(shifted, {"vp": vp}))
    initial = prepared(tmp_path, changes).initial
    np.testing.assert_allclose(initial["vp"], true_model()["vp"], rtol=1e-6)


def test_sources_and_receivers_are_spread_evenly_over_the_model(tmp_path):
    survey = prepared(tmp_path).survey
    np.testing.assert_array_equal(survey.sources[:, 0], 20.0)
    np.testing.assert_allclose(survey.sources[:, 1], np.linspace(0.0, 1180.0, N_SHOTS))
    np.testing.assert_allclose(survey.receivers[:, 1], np.linspace(0.0, 1180.0, N_RECEIVERS))
    assert survey.wavelet.shape == (N_SAMPLES,)
    assert survey.wavelet.argmax() == 30, "0.12 s of 4 ms"
    ends = {"survey.sources.first": 100.0, "survey.sources.last": 900.0}
    survey = prepared(tmp_path, ends).survey
    assert (survey.sources[0, 1], survey.sources[-1, 1]) == (100.0, 900.0)


def test_single_source_is_in_the_middle_of_its_line(tmp_path):
    survey = prepared(tmp_path, {"survey.sources.count": 1, "inversion.batch": 1}).survey
    assert survey.sources.tolist() == [[20.0, 590.0]]


def test_true_model_exists_for_simulated_data_but_not_for_given_data(tmp_path):
    write_given(tmp_path)
    synthetic, given = prepared(tmp_path), prepared(tmp_path, FILE_INSTEAD)
    assert synthetic.is_synthetic
    assert synthetic.true is not None
    assert synthetic.observed == tmp_path / "run" / "observed.h5"
    assert not given.is_synthetic
    assert given.true is None
    assert given.observed == tmp_path / "given.h5"


def test_boundary_uses_upper_bound_or_else_maximum_of_the_model(tmp_path):
    experiment = prepared(tmp_path)
    options = vars(experiment.simulator(experiment.initial).method)
    assert options["max_velocity"] == float(experiment.initial["vp"].max())
    bounded = prepared(tmp_path, {"inversion.bounds": [1000.0, 4000.0]})
    assert bounded.simulator(bounded.initial).method.max_velocity == 4000.0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("auto", Auto()),
        ("boundary", Auto(kind="boundary")),
        ({"interval": 5}, Snapshots(5)),
        ({"format": "int8"}, Snapshots(format="int8")),
        ({"kind": "boundary", "format": "bfloat16"}, Boundary(format="bfloat16")),
        ({"kind": "recompute", "interval": 2, "states": 3}, Recompute(2, states=3)),
        ({"kind": "recompute"}, Recompute()),
    ],
    ids=str,
)
def test_history_is_given_by_a_name_or_a_table(given, expected, tmp_path):
    experiment = prepared(tmp_path, {"wave.history": given})
    found = experiment.simulator(experiment.initial).method.history
    assert replace(found, frequency=None) == expected
    assert found.frequency > 8.0, "frequency of the survey, not of a batch"


@pytest.mark.parametrize(
    "changes",
    [
        {"model.spacing": 25.0},
        {"survey.sources.count": 9},
        {"survey.receivers.depth": 60.0},
        {"survey.wavelet.frequency": 9.0},
        {"survey.dt": 0.002},
        {"survey.duration": 0.8},
        {"wave.order": 8},
        {"wave.boundary": 12},
        {"wave.free_surface": True},
        {"inversion.bounds": [1000.0, 4000.0]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_fingerprint_changes_with_every_key_that_affects_data(changes, tmp_path):
    assert prepared(tmp_path).fingerprint != prepared(tmp_path, changes).fingerprint


LBFGS = {"name": "lbfgs", "step": 20.0, "memory": 7}


def test_optimizer_cost_is_found_without_arrays_of_model_size(tmp_path, monkeypatch):
    experiment = prepared(tmp_path, {"inversion.optimizer": LBFGS})
    sizes, zeros_like = [], torch.zeros_like
    monkeypatch.setattr(torch, "zeros_like", lambda t: sizes.append(t.numel()) or zeros_like(t))
    monkeypatch.setattr(Model, "as_tensors", lambda *_: pytest.fail("copied the model"))
    assert find_optimizer_cost(experiment)(3).remembered == 2 * 4 * 7
    adam = replace(experiment, config=load_config(write_input(tmp_path)))
    assert find_optimizer_cost(adam)(3).remembered == 2 * 4
    assert set(sizes) == {1}


def test_one_rank_checks_shots_of_a_stage_for_missing_receivers(tmp_path, monkeypatch):
    changes = {"inversion.max_offset": 300.0, "data": {"band": [2.0, 12.0]}}
    path, calls, find_dead_shots = write_input(tmp_path, changes), [], Aperture.find_dead_shots

    def count(self, survey):
        calls.append(self)
        return find_dead_shots(self, survey)

    monkeypatch.setattr(Aperture, "find_dead_shots", count)
    on_ranks(3, lambda context: prepare(load_config(path), context))
    assert calls == [Aperture(None, 300.0)]


@pytest.mark.usefixtures("no_figures")
def test_windows_of_all_shots_are_found_once_per_stage(hpcfwi, tmp_path, monkeypatch):
    changes = {"wave.aperture": 200.0, "inversion.max_offset": 300.0, "inversion.epochs": 1}
    stages = [{"name": name, "inversion": {"epochs": 1}} for name in ("first", "second")]
    calls, find_cells = [], Aperture.find_cells

    def count(self, grid, survey):
        calls.append(survey.n_shots)
        return find_cells(self, grid, survey)

    monkeypatch.setattr(Aperture, "find_cells", count)
    assert hpcfwi("run", write_input(tmp_path, {**changes, "stage": stages})) == 0
    assert calls.count(N_SHOTS) == 2


def test_padding_is_not_counted_among_receivers_outside_the_model(tmp_path):
    experiment = prepared(tmp_path)
    receivers = np.tile(experiment.survey.receivers, (N_SHOTS, 1, 1))
    mask = np.ones(receivers.shape[:2], bool)
    receivers[2, 4:], mask[2, 5:] = (40.0, -1.0), False
    survey = replace(experiment.survey, receivers=receivers, mask=mask)
    finding = next(check_units(replace(experiment, survey=survey), torch.device("cpu")))
    assert f"1 of {mask.sum()} lie outside the model, the first at [40.0, -1.0]" in str(finding)


def test_fingerprint_changes_with_the_trace_mask(tmp_path):
    experiment = prepared(tmp_path)
    mask = np.ones((N_SHOTS, N_RECEIVERS), dtype=bool)
    mask[3, 4] = False
    masked = replace(experiment, survey=replace(experiment.survey, mask=mask))
    assert masked.fingerprint != experiment.fingerprint


@pytest.mark.parametrize(
    "changes",
    [
        {"wave.engine": "eager"},
        {"wave.history": {"interval": 1}},
        {"wave.memory": "2 GB"},
        {"wave.aperture": 100.0},
        {"inversion.max_offset": 500.0},
        {"inversion.seed": 3},
        {"model.initial": {"smooth": 40.0}},
        {"output.every": 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_fingerprint_does_not_change_with_other_keys(changes, tmp_path):
    assert prepared(tmp_path).fingerprint == prepared(tmp_path, changes).fingerprint
