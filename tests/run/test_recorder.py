"""Tests of the recorder: emergency checkpoints of one rank, and the metrics of an epoch."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from hpcfwi.errors import InputError
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.objective import Times, Timings
from hpcfwi.inversion.stages import make_stages
from hpcfwi.inversion.state import EngineChoice, State
from hpcfwi.model import Grid, Model, rms_difference, squared_difference
from hpcfwi.parallel import replicas
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.replicas import BLOCK
from hpcfwi.parallel.shards import Shards
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.recorder import Recorder
from hpcfwi.storage.checkpoint import load_latest_checkpoint
from hpcfwi.wave import Snapshots
from tests.inversion.examples import prepare_alone, write_input
from tests.parallel.together import on_ranks

SHAPE = (8, 9)
ENTRY = {"loss": 1.0, "model_error": None}


def test_sharded_state_is_saved_only_after_it_is_gathered(tmp_path):
    model = Model(Grid(SHAPE, (10.0, 10.0), (0.0, 0.0)), {"vp": torch.randn(SHAPE)})
    directory, large = RunDirectory(tmp_path), torch.randn(30, 40)
    directory.checkpoints.mkdir()

    def save(context: Context) -> str:
        state = State(
            0, model, Shards(context).divide({"pairs": [large]}), EngineChoice("cpu", Snapshots(1))
        )
        recorder = make_recorder(tmp_path, context)
        recorder.state = replace(state, epoch=3, metrics=(ENTRY,))
        before = recorder.save() if context.is_root else ""
        recorder.state = recorder.state.gather(context)
        return f"{before}, {recorder.save()}" if context.is_root else before

    assert on_ranks(1, save) == ["epoch 3, epoch 3"], "one rank has the whole state"
    for path in directory.checkpoints.iterdir():
        path.unlink()
    assert on_ranks(3, save)[0] == "epoch 0, epoch 3"
    found = load_latest_checkpoint(directory.checkpoints)
    assert found is not None
    assert torch.equal(found[1]["optimizer"]["pairs"][0], large)


BATCH: Any = SimpleNamespace(shots=np.array([4, 0, 2]))


class Kept(Model):
    """A model that must not be copied to the host."""

    def as_arrays(self):
        pytest.fail("the model was copied to the host")


def make_recorder(folder, context, true=None, initial=None, shape=SHAPE):
    """Return a recorder of an experiment with one parameter in which every cell may change."""
    inversion = SimpleNamespace(linear=False)
    experiment = SimpleNamespace(
        true=true,
        initial=initial,
        inverted=SimpleNamespace(arrays={"vp": None}),
        fixed=np.zeros(shape, dtype=bool),
        config=SimpleNamespace(inversion=inversion),
    )
    stage = SimpleNamespace(name="one", section=SimpleNamespace(epochs=5, parameters=("vp",)))
    state = State(0, cast(Any, None), {}, EngineChoice("cpu", Snapshots(1)))
    parts: Any = (experiment, (stage,), RunDirectory(folder), context, state, None, None)
    return Recorder(*parts)


def describe(recorder, model):
    timings = Timings(seconds=1.0, times=Times(), memory=1.0, simulations=3)
    evaluation: Any = SimpleNamespace(loss=2.0, failed=())
    return recorder.measure(1, BATCH, model, evaluation, timings)


def test_model_stays_on_its_device_without_a_true_model(tmp_path):
    model = Kept(Grid(SHAPE, (10.0, 10.0), (0.0, 0.0)), {"vp": torch.zeros(SHAPE)})
    score, entry = describe(make_recorder(tmp_path, Context.alone()), model)
    assert score == 2.0
    assert entry["model_error"] is None
    assert entry["shots"] == [4, 0, 2]


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_fetch_each_block_of_the_model_once_to_measure_its_error(size, tmp_path, monkeypatch):
    shape, fetched = (3, BLOCK), []
    grid = Grid(shape, (10.0, 10.0), (0.0, 0.0))
    there = torch.linspace(1500.0, 2500.0, 3 * BLOCK).reshape(shape)
    model = Kept(grid, {"vp": there})
    true = Model(grid, {"vp": np.full(shape, 2000.0, np.float32)})
    fetch = replicas._fetch

    def note(block):
        if isinstance(block, torch.Tensor):
            fetched.append(block.numel())
        return fetch(block)

    monkeypatch.setattr(replicas, "_fetch", note)
    found = on_ranks(size, lambda c: describe(make_recorder(tmp_path, c, true, None, shape), model))
    expected = rms_difference(there.numpy(), true["vp"], np.ones(shape, dtype=bool))
    assert [score for score, _ in found] == [pytest.approx(expected, rel=1e-12)] * size
    assert fetched == [BLOCK] * 3


@pytest.mark.parametrize("size", [1, 3])
def test_errors_of_the_initial_model_are_measured_once_by_all_ranks(size, tmp_path, monkeypatch):
    shape, measured = (3, BLOCK), []
    grid = Grid(shape, (10.0, 10.0), (0.0, 0.0))
    true = Model(grid, {"vp": np.full(shape, 2000.0, np.float32)})
    initial = Model(grid, {"vp": np.linspace(1500.0, 2500.0, 3 * BLOCK, dtype=np.float32)})
    initial = initial.map(lambda array: array.reshape(shape))

    def prepare(context):
        recorder = make_recorder(tmp_path, context, true, initial, shape)

        def note(*blocks):
            measured.append(context.rank)
            return squared_difference(*blocks)

        monkeypatch.setattr("hpcfwi.run.recorder.squared_difference", note)
        recorder.measure_initial_errors()
        recorder.measure_initial_errors()
        return recorder._first_errors

    expected = rms_difference(initial["vp"], true["vp"], np.ones(shape, dtype=bool))
    assert on_ranks(size, prepare) == [{"vp": pytest.approx(expected, rel=1e-12)}] * size
    assert len(measured) == 3


def correlations(folder, size):
    """Return the correlation that each rank finds in a migration's first epoch, or its error."""
    experiment = prepare_alone(write_input(folder, {"migration": {"iterations": 1}}), migrates=True)
    stages, found = (
        make_stages(experiment, Context.alone()),
        experiment.initial.as_tensors(torch.device("cpu")),
    )
    evaluation = SimpleNamespace(loss=2.0, failed=())
    timings = Timings(seconds=1.0, times=Times(), memory=1.0, simulations=3)

    def describe(context: Context) -> float | str:
        state = State(0, found, {}, EngineChoice("cpu", Snapshots(1)))
        parts: Any = (experiment, stages, RunDirectory(folder), context, state, None, None)
        recorder = Recorder(*parts)
        told: tuple[Any, ...] = (BATCH, found, evaluation, timings)
        try:
            return recorder.measure(1, *told)[1]["correlation"]
        except InputError as error:
            return str(error)

    return on_ranks(size, describe)


def test_one_rank_correlates_the_image_and_all_ranks_get_the_value(tmp_path, monkeypatch):
    asked = []

    def make_images(_, model):
        asked.append(model)
        return model.map(lambda array: np.random.default_rng(0).normal(size=array.shape))

    monkeypatch.setattr(Experiment, "images", make_images)
    found = correlations(tmp_path, 3)
    assert len(asked) == 1
    assert found == [found[0]] * 3
    assert found[0] != 0.0


def test_all_ranks_raise_the_error_of_the_rank_that_makes_the_image(tmp_path, monkeypatch):
    def fail(*_):
        raise InputError("image", "there is none", "Look.")

    monkeypatch.setattr(Experiment, "images", fail)
    found = correlations(tmp_path, 3)
    assert found == [found[0]] * 3
    assert "there is none" in found[0]


def test_image_made_for_the_correlation_is_reused_when_it_is_saved(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(Experiment, "images", lambda _, model: made.append(model) or model * 0.0)
    path = write_input(tmp_path, {"migration": {"iterations": 1}})
    experiment = prepare_alone(path, migrates=True)
    state = State(
        0, experiment.initial.as_tensors(torch.device("cpu")), {}, EngineChoice("cpu", Snapshots(1))
    )
    parts: Any = (experiment, (), RunDirectory(tmp_path), Context.alone(), state, None, None)
    recorder = Recorder(*parts)
    images = recorder._make_images(state.model)
    assert recorder._images_of(state) is images
    other = experiment.initial.as_tensors(torch.device("cpu"))
    assert recorder._images_of(replace(state, model=other)) is not images
    assert len(made) == 2
