"""What is saved in a hurry, by one rank that can ask no other."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from hpcfwi.inversion.numerics import Numerics
from hpcfwi.inversion.state import State
from hpcfwi.inversion.timings import Times, Timings
from hpcfwi.model import Grid, Model
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.slabs import Slabs
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.recorder import Recorder
from hpcfwi.storage.checkpoint import load_latest_checkpoint
from hpcfwi.wave import Snapshots
from tests.parallel.together import on_ranks

SHAPE = (8, 9)
ENTRY = {"loss": 1.0, "model_error": None}


def test_a_state_of_which_others_have_parts_is_saved_when_it_is_whole_and_not_before(tmp_path):
    model = Model(Grid(SHAPE, (10.0, 10.0), (0.0, 0.0)), {"vp": torch.randn(SHAPE)})
    directory, large = RunDirectory(tmp_path), torch.randn(30, 40)
    directory.checkpoints.mkdir()

    def save(context: Context) -> str:
        state = State(
            0, model, Slabs(context).divide({"pairs": [large]}), Numerics("cpu", Snapshots(1))
        )
        recorder = Recorder(*cast(Any, (None, (), directory, context, state)))
        recorder.state = replace(state, epoch=3, history=(ENTRY,))
        before = recorder.save() if context.is_root else ""
        recorder.state = recorder.state.gather(context)
        return f"{before}, {recorder.save()}" if context.is_root else before

    assert on_ranks(1, save) == ["epoch 3, epoch 3"], "one rank has all of it"
    for path in directory.checkpoints.iterdir():
        path.unlink()
    assert on_ranks(3, save)[0] == "epoch 0, epoch 3"
    found = load_latest_checkpoint(directory.checkpoints)
    assert found is not None
    assert torch.equal(found[1]["optimizer"]["pairs"][0], large)


def test_a_model_stays_on_its_device_where_there_is_no_truth_to_compare_it_with(tmp_path):
    class Kept(Model):
        def as_arrays(self):
            pytest.fail("it was copied to the host")

    model = Kept(Grid(SHAPE, (10.0, 10.0), (0.0, 0.0)), {"vp": torch.zeros(SHAPE)})
    stage = SimpleNamespace(name="one", draws=lambda: SimpleNamespace(grow=False))
    experiment = SimpleNamespace(true=None)
    state = State(0, model, {}, Numerics("cpu", Snapshots(1)))
    parts: Any = (experiment, (stage,), RunDirectory(tmp_path), Context.alone(), state)
    recorder, evaluation = Recorder(*parts), SimpleNamespace(loss=2.0, failed=())
    timings = Timings(seconds=1.0, times=Times(), memory=1.0, simulations=3)
    score, entry = recorder.describe(1, cast(Any, None), model, cast(Any, evaluation), timings)
    assert score == 2.0
    assert entry["model_error"] is None
