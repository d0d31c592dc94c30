"""Tests of inversions whose stages change different parameters."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcfwi.config import load_config
from hpcfwi.inversion.objective import Objective
from hpcfwi.run import drawing
from hpcfwi.storage.models import read_model
from tests.inversion.examples import read_history
from tests.run.test_equations import IN_TURN, write_elastic
from tests.run.test_synthetic import NO_KEYS
from tests.undrawn import run_undrawn

pytestmark = pytest.mark.usefixtures("no_figures")


def write_staged(folder: Path, **changes: Any) -> Path:
    return write_elastic(folder, "elastic", **{**IN_TURN, "output.every": 1, **changes})


def assert_same_model(path: Path, other: Path) -> None:
    found, expected = read_model(path), read_model(other)
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(found[name], array, name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an uninterrupted inversion whose stages change different parameters."""
    return run_undrawn(write_staged(tmp_path_factory.mktemp("staged")))


def test_metrics_have_the_errors_of_all_parameters_in_every_stage(whole: Path) -> None:
    entries = read_history(whole)
    keys = ("model_error", "model_error_rho", "model_error_vs")
    errors = {key: [entry[key] for entry in entries] for key in keys}
    vp, rho, vs = errors.values()
    assert vp[1] == vp[2] == vp[3], "vp is kept in the second stage"
    assert rho[1] == rho[2] == rho[3], "and the density that is tied to it"
    assert vs[0] == vs[1], "vs is kept in the first stage"
    assert len({vp[0], vp[1], vp[4]}) == len({vs[1], vs[2], vs[3], vs[4]}) - 1 == 3
    assert entries[-1]["loss"] < entries[0]["loss"]


def test_stages_are_equal_to_runs_that_start_from_each_other(hpcfwi: Any, tmp_path: Path) -> None:
    # The absorbing boundary is tuned to the fastest cell of the start, which bounds keep
    bounds = {"vp": [1400.0, 2080.0], "vs": [300.0, 1400.0]}
    starts = {
        "vp": {"linear": [1500.0, 1.0]},
        "vs": {"run": str(tmp_path / "vp" / "run")},
    }
    common = {"inversion.epochs": 2, "inversion.batch": 10}
    stages = [{"inversion": {"parameters": [name]}} for name in starts]
    keys = {"model.initial": starts["vp"], "inversion.bounds": bounds, "stage": stages}
    path = write_elastic(tmp_path / "together", "elastic", **common, **keys)
    assert hpcfwi("run", path, "--quiet") == 0
    for name, start in starts.items():
        keys = {
            "model.initial": start,
            **NO_KEYS,
            "survey.file": str(tmp_path / "together" / "run" / "observed.h5"),
            "inversion.parameters": [name],
            "inversion.bounds": {name: bounds[name]},
        }
        path = write_elastic(tmp_path / name, "elastic", **common, **keys)
        assert hpcfwi("run", path, "--quiet") == 0
    assert_same_model(tmp_path / "together/run/model.h5", tmp_path / "vs/run/model.h5")


@pytest.mark.parametrize("epoch", range(1, 5))
def test_stopped_stages_of_parameters_continue_to_the_same_bits(
    hpcfwi: Any, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    path, run, calls = write_staged(tmp_path), tmp_path / "run", []
    evaluate = Objective.evaluate

    def evaluate_and_stop(*args: Any, **options: Any) -> Any:
        found = evaluate(*args, **options)
        calls.append(epoch)
        if len(calls) == epoch:
            os.kill(os.getpid(), signal.SIGTERM)
        return found

    monkeypatch.setattr(Objective, "evaluate", evaluate_and_stop)
    assert hpcfwi("run", path, "--quiet") == 3
    assert len(read_history(run)) == epoch
    assert hpcfwi("run", path, "--quiet") == 0
    assert_same_model(run / "model.h5", whole / "model.h5")
    assert_same_model(run / "model_best.h5", whole / "model_best.h5")


def test_stage_with_another_parameter_can_be_added_to_a_run(
    hpcfwi: Any, tmp_path: Path, whole: Path
) -> None:
    for count in (1, 2, 3):
        path = write_staged(tmp_path, stage=IN_TURN["stage"][:count])
        assert hpcfwi("run", path, "--quiet") == 0
    assert_same_model(tmp_path / "run" / "model.h5", whole / "model.h5")


def test_best_model_is_judged_by_the_first_parameter_of_the_stage(
    hpcfwi: Any, tmp_path: Path
) -> None:
    stages = [{"inversion": {"parameters": [name], "epochs": 2}} for name in ("vs", "vp")]
    path = write_staged(tmp_path, stage=stages, **{"inversion.batch": 10})
    assert hpcfwi("run", path, "--quiet") == 0
    run = tmp_path / "run"
    entries = read_history(run)
    assert entries[3]["model_error_vp"] < entries[2]["model_error_vp"]
    assert_same_model(run / "model_best.h5", run / "model.h5")


def test_figures_of_an_epoch_have_the_parameters_of_its_stage(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[list[str]] = []

    def note(_draw: Any, pictures: Any, *_: Any) -> None:
        drawn.append([picture.parameter.name for picture in pictures])

    monkeypatch.setattr(drawing, "draw_epoch_figures", note)
    drawing.show(shutil.copytree(whole, tmp_path / "run"))
    assert drawn == [["vp", "rho"]] * 2 + [["vs"]] * 2 + [["vs", "vp", "rho"]]


def test_stage_inherits_the_tables_of_its_parameters_only(tmp_path: Path) -> None:
    path = write_staged(
        tmp_path,
        **{
            "inversion.parameters": ["vs", "vp"],
            "inversion.scale": {"vs": 50.0, "vp": 100.0},
            "inversion.bounds": [300.0, 1600.0],
        },
    )
    config = load_config(path)
    first, second, third = (part.inversion for _, part in config.stages())
    assert (first.ties, first.scale, first.bounds) == ({"rho": "gardner"}, {"vp": 100.0}, None)
    assert second.ties == {}
    assert second.bounds == {"vs": (300.0, 1600.0)}
    assert second.scale == {"vs": 50.0}
    assert third.bounds == {"vs": (300.0, 1600.0)}
    assert config.changing == ("vp", "rho", "vs")
