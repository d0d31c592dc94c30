"""Tests of runs that start from other runs, and of runs with a true model for comparison."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from hpcfwi.model import Grid, Model, resample_onto
from hpcfwi.storage.models import read_model, write_model
from tests.inversion.bad_inputs import FILE_INSTEAD
from tests.inversion.examples import read_history, true_model, write_input
from tests.undrawn import run_undrawn

pytestmark = pytest.mark.usefixtures("no_figures")

SHORT = {"inversion.epochs": 2, "output.checkpoint": 1}


def vp(path):
    return read_model(path)["vp"]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The directory of a run of two epochs, with its observed data."""
    return run_undrawn(write_input(tmp_path_factory.mktemp("first"), SHORT))


def write_after(folder, first, changes=None):
    """Write an input that starts from a copy of the first run."""
    shutil.copytree(first, folder / "first")
    start = {"model.initial": {"run": "first"}}
    return write_input(folder, {**SHORT, **start, **(changes or {})})


def test_run_starts_from_the_result_of_another(hpcfwi, tmp_path, first):
    path = write_after(tmp_path, first)
    assert hpcfwi("run", path, "--quiet") == 0
    np.testing.assert_array_equal(vp(tmp_path / "run" / "initial.h5"), vp(first / "model.h5"))


def test_start_from_a_run_on_another_grid_is_resampled(hpcfwi, tmp_path, first):
    path = write_after(tmp_path, first, {"model.spacing": 40.0})
    assert hpcfwi("run", path, "--quiet") == 0
    start = read_model(tmp_path / "run" / "initial.h5")
    expected = resample_onto(read_model(first / "model.h5"), start.grid)
    assert start.grid.shape == (15, 30)
    np.testing.assert_array_equal(start["vp"], expected["vp"])


@pytest.mark.parametrize("becomes", ["another", "gone"])
@pytest.mark.parametrize("key", ["run", "file"])
def test_continued_run_keeps_its_original_starting_model(hpcfwi, tmp_path, first, becomes, key):
    start = {"run": {"run": "first"}, "file": {"file": "first/model.h5"}}[key]
    changes = {
        "model.initial": start,
        "inversion.regularize": {"name": "tikhonov", "weight": 1e-9},
        "inversion.epochs": 4,
    }
    path = write_after(tmp_path, first, changes)
    assert hpcfwi("run", path, "--quiet", "--output", tmp_path / "whole") == 0
    assert hpcfwi("run", path, "--quiet", "--set", "inversion.epochs=2") == 0
    if becomes == "gone":
        shutil.rmtree(tmp_path / "first")
    else:
        write_model(tmp_path / "first" / "model.h5", true_model())
    assert hpcfwi("run", path, "--quiet") == 0
    np.testing.assert_array_equal(
        vp(tmp_path / "run" / "model.h5"), vp(tmp_path / "whole/model.h5")
    )
    np.testing.assert_array_equal(vp(tmp_path / "run" / "initial.h5"), vp(first / "model.h5"))


def test_changed_starting_model_is_used_before_the_first_checkpoint(hpcfwi, tmp_path, first):
    path = write_after(tmp_path, first)
    (tmp_path / "run").mkdir()
    shutil.copy(tmp_path / "true.h5", tmp_path / "run" / "initial.h5")
    assert hpcfwi("run", path, "--quiet") == 0
    np.testing.assert_array_equal(vp(tmp_path / "run" / "initial.h5"), vp(first / "model.h5"))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda run: shutil.rmtree(run), "not a run directory. Name the output.directory"),
        (lambda run: (run / "model.h5").unlink(), "no result yet. Continue it with `hpcfwi run`"),
        (lambda run: (run / "model.h5").write_bytes(b"no"), "model.h5"),
    ],
)
def test_run_without_a_result_cannot_be_a_start(hpcfwi, tmp_path, first, capsys, spoil, words):
    path = write_after(tmp_path, first)
    spoil(tmp_path / "first")
    assert hpcfwi("run", path) == 2
    assert words in capsys.readouterr().err


def test_run_cannot_start_from_itself(hpcfwi, tmp_path, first, capsys):
    path = write_after(tmp_path, first)
    assert hpcfwi("run", path, "--output", tmp_path / "first") == 2
    assert "Choose another directory with --output" in capsys.readouterr().err


def write_given(folder, first, changes=None):
    """Write an input with given data, whose model file is not the true model."""
    path = write_input(folder, {**SHORT, **FILE_INSTEAD, **(changes or {})})
    shutil.copy(first / "observed.h5", folder / "given.h5")
    grid = true_model().grid
    flat = np.full(grid.shape, 2000.0, np.float32)
    write_model(folder / "grid.h5", Model(grid, {"vp": flat}))
    return path


GIVEN = {"model.file": "grid.h5", "model.initial": {"linear": [1600.0, 1.5]}}


def test_true_model_adds_the_model_error_and_changes_nothing_else(hpcfwi, tmp_path, first):
    known = write_given(tmp_path, first, {**GIVEN, "model.true": "true.h5"})
    assert hpcfwi("run", known, "--quiet") == 0
    unknown = write_given(tmp_path, first, GIVEN)
    assert hpcfwi("run", unknown, "--quiet", "--output", tmp_path / "unknown") == 0
    np.testing.assert_array_equal(vp(tmp_path / "run/model.h5"), vp(tmp_path / "unknown/model.h5"))
    np.testing.assert_array_equal(vp(tmp_path / "run" / "true.h5"), true_model()["vp"])
    told, untold = (read_history(tmp_path / run) for run in ("run", "unknown"))
    free = true_model().grid.coordinates(0) > 60.0
    difference = (vp(tmp_path / "run" / "model.h5") - true_model()["vp"])[free]
    error = np.sqrt(np.mean(difference.astype(np.float64) ** 2))
    assert told[-1]["model_error"] == pytest.approx(error, rel=1e-5)
    assert [entry["model_error"] for entry in untold] == [None, None]
    assert [entry["loss"] for entry in told] == [entry["loss"] for entry in untold]


def test_true_model_is_resampled_and_must_cover_the_grid(hpcfwi, tmp_path, first, capsys):
    path = write_given(tmp_path, first, {**GIVEN, "model.true": "other.h5"})
    grid = Grid((60, 120), (10.0, 10.0), (0.0, 0.0))
    fine = resample_onto(true_model(), grid)
    write_model(tmp_path / "other.h5", fine)
    assert hpcfwi("run", path, "--quiet") == 0
    expected = resample_onto(fine, true_model().grid)["vp"]
    np.testing.assert_array_equal(vp(tmp_path / "run" / "true.h5"), expected)
    small = Grid((15, 15), (20.0, 20.0), (0.0, 0.0))
    write_model(tmp_path / "other.h5", resample_onto(fine, small))
    assert hpcfwi("run", path, "--output", tmp_path / "small") == 2
    assert "model.true" in (told := capsys.readouterr().err)
    assert "does not cover" in told


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.true": "true.h5"}, "model.file is the true model"),
        ({"model.dataset": "dome-section", "model.file": None}, "model.dataset and model.true"),
    ],
)
def test_second_true_model_is_refused(hpcfwi, tmp_path, capsys, changes, words):
    path = write_input(tmp_path, {"model.true": "true.h5", **changes})
    assert hpcfwi("run", path) == 2
    assert words in capsys.readouterr().err
