"""Tests of inversions in stages, each with a frequency band and a grid of its own."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest

from hpcfwi.inversion.objective import Objective
from hpcfwi.parallel.context import Context
from hpcfwi.run import drawing
from hpcfwi.run.job import run_job
from hpcfwi.storage.models import read_model
from tests.inversion.examples import N_SHOTS, read_history, read_metric, read_vp, write_input
from tests.ranks import run_ranks
from tests.undrawn import draw_nothing

pytestmark = pytest.mark.usefixtures("no_figures")

STAGES = (
    {
        "name": "low",
        "spacing": 40.0,
        "data": {"band": [0.0, 6.0]},
        "inversion": {"epochs": 2, "batch": 2, "encoding": "signs", "wavelet": "optimize"},
    },
    {
        "data": {"band": [0.0, 12.0]},
        "inversion": {
            "epochs": 3,
            "batch": [2, 6],
            "optimizer": {"lr": [30.0, 5.0]},
            "wavelet": {"name": "estimate", "every": 2, "per": "shot"},
        },
    },
    {"inversion": {"epochs": 1, "optimizer": {"name": "lbfgs", "step": 20.0}, "sampling": "all"}},
)


def write_staged(folder, stages=STAGES, changes=None):
    return write_input(folder, {"stage": list(stages), "output.checkpoint": 1, **(changes or {})})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The directory of an uninterrupted inversion in stages."""
    path = write_staged(tmp_path_factory.mktemp("staged"))

    def note(*_):
        with (path.parent / "drawn").open("a") as file:
            file.write("survey\n")

    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch.setattr)
        patch.setattr(drawing, "draw_survey", note)
        run_job(path, (), Context.alone(), inverts=True, quiet=True)
    return path.parent / "run"


def test_stages_run_in_order_and_the_metrics_name_them(whole):
    told = read_history(whole)
    assert [entry["epoch"] for entry in told] == [1, 2, 3, 4, 5, 6]
    assert [entry["stage"] for entry in told] == ["low", "low", "2", "2", "2", "3"]
    assert [len(entry["shots"]) for entry in told] == [2, 2, 2, 4, 6, N_SHOTS]
    errors = [entry["model_error"] for entry in told]
    assert errors[-1] < errors[1] < errors[0]


def test_survey_is_drawn_once_for_all_stages(whole):
    assert (whole.parent / "drawn").read_text() == "survey\n"


def test_model_keeps_its_grid_when_a_stage_uses_a_coarser_one(whole):
    initial = read_model(whole / "initial.h5")
    result = read_model(whole / "model.h5")
    assert result.grid == initial.grid
    assert np.abs(result["vp"] - initial["vp"]).max() > 30.0


@pytest.mark.parametrize("epoch", range(1, 7))
def test_stopped_stages_continue_to_the_same_bits_from_any_epoch(
    hpcfwi, tmp_path, whole, monkeypatch, epoch
):
    evaluate, keep = Objective.evaluate, {"epoch": 0}

    def evaluate_and_stop(objective, *args, **options):
        found = evaluate(objective, *args, **options)
        done = len(read_history(run)) if (run / "metrics.jsonl").exists() else 0
        if done == epoch - 1 and keep["epoch"] == 0:
            keep["epoch"] = epoch
            os.kill(os.getpid(), signal.SIGTERM)
        return found

    path, run = write_staged(tmp_path), tmp_path / "run"
    monkeypatch.setattr(Objective, "evaluate", evaluate_and_stop)
    code = hpcfwi("run", path)
    assert (code, len(read_history(run))) == (0 if epoch == 6 else 3, epoch)
    assert hpcfwi("run", path) == 0
    np.testing.assert_array_equal(read_vp(run), read_vp(whole))
    losses = [read_metric(r, "loss") for r in (run, whole)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("place", "call", "done"),
    [
        pytest.param("find_each", 1, 0, id="before the first wavelet is estimated"),
        pytest.param("find_each", 4, 4, id="before the wavelet of each shot is estimated again"),
        pytest.param("evaluate", 7, 5, id="within a line search"),
    ],
)
def test_run_killed_during_an_epoch_continues_to_the_same_bits(
    hpcfwi, tmp_path, whole, run_and_die, place, call, done
):
    path, run = write_staged(tmp_path), tmp_path / "run"
    run_and_die("run", path, place, call)
    assert (len(read_history(run)) if done else 0) == done
    assert hpcfwi("run", path) == 0
    np.testing.assert_array_equal(read_vp(run), read_vp(whole))
    assert read_metric(run, "loss") == read_metric(whole, "loss")


def test_rank_that_is_stopped_between_stages_ends_the_job(tmp_path):
    stages = [{"inversion": {"epochs": 1}}, {"name": "second", "inversion": {"epochs": 1}}]
    program = ["-m", "tests.run.stopping", str(write_staged(tmp_path, stages)), "8"]
    done = run_ranks(2, program, code=1, warm=True)
    assert "rank 1 on " in done.stderr
    assert "has not answered for " in done.stderr
    assert len(read_history(tmp_path / "run")) == 1


def test_stages_can_only_be_added_at_the_end(hpcfwi, tmp_path, whole, capfd):
    for count in (1, 2, 3):
        assert hpcfwi("run", write_staged(tmp_path, STAGES[:count])) == 0
    np.testing.assert_array_equal(read_vp(tmp_path / "run"), read_vp(whole))
    assert hpcfwi("run", write_staged(tmp_path, STAGES[:2])) == 2
    assert "the run in this directory has other values: 3 stages" in capfd.readouterr().err
    first = {**STAGES[0], "inversion": {**STAGES[0]["inversion"], "epochs": 4}}
    assert hpcfwi("run", write_staged(tmp_path, (first, *STAGES[1:]))) == 2
    assert "in stage 1 inversion.epochs = 2" in capfd.readouterr().err


def test_stage_cannot_become_shorter_than_it_is_before_another_stage(hpcfwi, tmp_path, capfd):
    long, short, more = ({"inversion": {"epochs": n}} for n in (4, 2, 3))
    assert hpcfwi("run", write_staged(tmp_path, (short, long))) == 0
    assert hpcfwi("run", write_staged(tmp_path, (short, short, more))) == 2
    told = capfd.readouterr().err
    assert "stage.2.inversion.epochs: found 2, but 4 epochs of this stage are done" in told
    assert "Give 4 or more" in told
    assert hpcfwi("run", write_staged(tmp_path, (short, long, more))) == 0
    assert read_metric(tmp_path / "run", "epoch") == [*range(1, 10)]


def test_run_without_stages_continues_as_the_first_stage(hpcfwi, tmp_path):
    assert hpcfwi("run", write_input(tmp_path, {"inversion.epochs": 2})) == 0
    stages = ({"inversion": {"epochs": 2}}, {"inversion": {"epochs": 1}})
    assert hpcfwi("run", write_staged(tmp_path, stages)) == 0
    assert read_metric(tmp_path / "run", "epoch") == [1, 2, 3]


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        ({"inversion": {"epoch": 3}}, "stage.1.inversion.epoch: unknown key"),
        ({"data": {"band": [5.0, 3.0]}}, "stage.1.data: band is [5.0, 3.0]"),
        ({"inversion": {"batch": N_SHOTS + 1}}, "stage.1.inversion.batch: found 11"),
        ({"inversion": {"optimizer": {"lr": -1.0}}}, "stage.1.inversion.optimizer.lr"),
        ({"spacing": "coarse"}, "stage.1.spacing: found 'coarse'"),
        (
            {"inversion": {"encoding": "signs", "max_offset": 200.0}},
            'stage.1.inversion.encoding: found "signs", but inversion.max_offset leaves',
        ),
    ],
)
def test_error_in_a_stage_names_its_number(hpcfwi, tmp_path, capfd, stage, told):
    assert hpcfwi("run", write_staged(tmp_path, (stage,))) == 2
    assert told in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_saved_config_contains_its_stages(whole):
    text = (whole / "config.toml").read_text()
    assert text.count("[[stage]]") == 3
    assert json.dumps("low") in text
