"""Tests of `hpcfwi resolve`, which applies J^T J to a perturbation."""

from __future__ import annotations

import os
import sys

import h5py
import numpy as np
import pytest
import torch

import hpcfwi as package
from hpcfwi.model import Grid, Model
from hpcfwi.parallel.context import Context
from hpcfwi.storage.models import read_model, write_model
from hpcfwi.wave import acoustic
from tests.inversion.examples import WATER, read_vp, true_model, write_input
from tests.ranks import run_command, run_ranks

EVERY_STEP = {"kind": "snapshots", "interval": 1, "format": "full"}
# 12 x 16 points, two shots
TINY = {
    "model.file": "tiny.h5",
    "model.initial": {"linear": [1800.0, 1.0]},
    "survey.sources": {"count": 2, "depth": 20.0},
    "survey.receivers": {"count": 5, "depth": 20.0},
    "survey.duration": 0.4,
    "wave.history": EVERY_STEP,
    "inversion.fixed_above": 20.0,
    "inversion.batch": 2,
}


def write_tiny(folder, changes=None):
    grid = Grid((12, 16), (20.0, 20.0), (0.0, 0.0))
    write_model(folder / "tiny.h5", Model(grid, {"vp": np.full(grid.shape, 2000.0, np.float32)}))
    return write_input(folder, {**TINY, **(changes or {})})


def read(run):
    with h5py.File(run / "resolution.h5") as file:
        return {name: file[name][...] for name in file}, dict(file.attrs)


def make_jacobian(job):
    """Return the Jacobian of all traces with respect to all cells, by differences in float64."""
    survey, method = job.shots.survey, vars(job.experiment.simulator(job.experiment.initial).method)
    names = "order", "boundary", "free_surface", "boundary_frequency", "max_velocity"
    options = {name: method[name] for name in names}
    wavelet = torch.from_numpy(survey.wavelet).double()

    def simulate(vp):
        return acoustic(
            vp,
            job.shots.grid.spacing,
            survey.dt,
            wavelet,
            survey.sources,
            survey.receivers,
            engine="cpu",
            history="auto",
            **options,
        )

    vp = job.model["vp"].double()
    columns = []
    for cell in range(vp.numel()):
        step = torch.zeros_like(vp)
        step.view(-1)[cell] = 0.5
        columns.append((simulate(vp + step) - simulate(vp - step)).flatten())
    return torch.stack(columns, dim=1).numpy()


@pytest.fixture(scope="module")
def jacobian(tmp_path_factory):
    """The Jacobian of the tiny example in its starting model."""
    path = write_tiny(tmp_path_factory.mktemp("jacobian"))
    return make_jacobian(package.open_input(path, Context.alone()))


@pytest.mark.parametrize("options", [("--points", 80), ("--checkerboard", 100)])
def test_response_equals_that_of_the_dense_jacobian(hpcfwi, tmp_path, jacobian, options):
    assert hpcfwi("resolve", write_tiny(tmp_path), *options) == 0
    arrays, attributes = read(tmp_path / "run")
    expected = jacobian.T @ (jacobian @ arrays["perturbation"].ravel().astype(np.float64))
    expected = expected.reshape(12, 16)
    expected[:2] = 0.0
    assert np.abs(arrays["response"] - expected).max() < 2e-3 * np.abs(expected).max()
    assert attributes["size"] == options[1]
    assert (tmp_path / "run" / "resolution.png").exists()


def test_points_are_a_wavelength_apart_by_default(hpcfwi, tmp_path, capsys):
    path = write_input(tmp_path, {"model.initial": {"linear": [2000.0, 0.0]}})
    assert hpcfwi("resolve", path) == 0
    arrays, attributes = read(tmp_path / "run")
    assert attributes["size"] == pytest.approx(2000.0 / 8.0, rel=0.05)
    assert arrays["points"][..., 0].min() > WATER
    assert "points" in capsys.readouterr().out


def test_resolution_has_the_same_bits_on_any_number_of_ranks(tmp_path):
    path, found = write_input(tmp_path), []
    for size in (1, 2, 3):
        run = tmp_path / f"run{size}"
        program = ["-m", "hpcfwi", "resolve", str(path), "--output", str(run), "--quiet"]
        run_ranks(size, program, warm=True)
        found.append(read(run)[0])
    for arrays in found[1:]:
        for name, array in found[0].items():
            np.testing.assert_array_equal(arrays[name], array)


@pytest.mark.usefixtures("no_figures")
def test_resolve_uses_the_result_of_a_run_or_the_given_model_file(hpcfwi, tmp_path):
    path, run = write_input(tmp_path, {"inversion.epochs": 1}), tmp_path / "run"
    assert hpcfwi("run", path, "--quiet") == 0
    speeds = {}
    for name, words in {
        "start": [path],
        "result": [run],
        "file": [path, "--model", tmp_path / "true.h5"],
    }.items():
        assert hpcfwi("resolve", *words, "--checkerboard", 200, "--quiet") == 0
        speeds[name] = read(run)[0]["values"]
    np.testing.assert_array_equal(speeds["start"], read_model(run / "initial.h5")["vp"])
    np.testing.assert_array_equal(speeds["result"], read_vp(run))
    np.testing.assert_array_equal(speeds["file"], true_model()["vp"])


def test_resolve_of_a_run_without_a_result_is_refused(hpcfwi, tmp_path, capsys):
    path, run = write_input(tmp_path), tmp_path / "run"
    assert hpcfwi("forward", path, "--quiet") == 0
    assert hpcfwi("resolve", run) == 2
    assert "the run has no result yet" in capsys.readouterr().err


def test_resolve_uses_the_band_and_grid_of_the_stage(hpcfwi, tmp_path):
    stages = [{"spacing": 40.0, "data": {"band": [0.0, 5.0]}}, {}]
    path, run = write_input(tmp_path, {"stage": stages}), tmp_path / "run"
    widths = []
    for stage in (1, 2):
        assert hpcfwi("resolve", path, "--stage", stage, "--points", 300, "--quiet") == 0
        arrays, attributes = read(run)
        assert attributes["stage"] == stage
        assert arrays["response"].shape == true_model().grid.shape
        widths.append(np.nanmedian(arrays["width"]))
    assert widths[0] > 1.2 * widths[1]


def test_show_redraws_a_resolution_without_a_run(hpcfwi, tmp_path):
    path, run = write_tiny(tmp_path), tmp_path / "run"
    assert hpcfwi("resolve", path, "--points", 80, "--quiet") == 0
    before = (run / "resolution.png").read_bytes()
    (run / "resolution.png").unlink()
    assert hpcfwi("show", run, "--quiet") == 0
    assert (run / "resolution.png").read_bytes() == before


def test_report_of_a_resolution_without_a_run_is_refused(hpcfwi, tmp_path, capsys):
    assert hpcfwi("resolve", write_tiny(tmp_path), "--points", 80, "--quiet") == 0
    assert hpcfwi("show", tmp_path / "run", "--report") == 2
    assert "a report is about a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("width", "run `hpcfwi resolve` again"),
        ("perturbation", "/perturbation: there is no such dataset"),
    ],
)
def test_show_refuses_a_resolution_file_with_a_missing_array(hpcfwi, tmp_path, capsys, name, words):
    path, run = write_tiny(tmp_path), tmp_path / "run"
    assert hpcfwi("resolve", path, "--points", 80, "--quiet") == 0
    with h5py.File(run / "resolution.h5", "a") as file:
        del file[name]
    assert hpcfwi("show", run) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--points", "80", "--checkerboard", "80"], "exclude each other"),
        (["--points", "30"], "--points: found 30 m"),
        (["--checkerboard", "nan"], "--checkerboard: found nan m"),
        (["--stage", "2"], "stage 2: there is no such stage"),
        (["--model", "nothing.h5"], "nothing.h5"),
    ],
)
def test_wrong_options_of_resolve_end_with_exit_code_2(hpcfwi, tmp_path, capsys, options, words):
    assert hpcfwi("resolve", write_tiny(tmp_path), *options) == 2
    assert words in capsys.readouterr().err


def test_resolve_into_a_directory_without_permission_is_refused_before_the_simulations(
    hpcfwi, tmp_path, capsys, monkeypatch
):
    access = os.access  # the run directory does not exist, so that its parent is asked for
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path and access(path, mode))
    assert hpcfwi("resolve", write_tiny(tmp_path)) == 2
    told = capsys.readouterr()
    assert "cannot be written (Permission denied)" in told.err
    assert "Resolution of" not in told.out


def test_resolution_of_a_volume_is_computed_and_drawn(hpcfwi, tmp_path):
    from tests.inversion.examples import write_volume

    few = {"survey.sources": {"count": [1, 2], "depth": 40.0}}
    path, run = write_volume(tmp_path, few), tmp_path / "run"
    for options in (("--points", 160), ("--checkerboard", 160)):
        assert hpcfwi("resolve", path, *options, "--quiet") == 0
        arrays, _ = read(run)
        assert arrays["response"].shape == (12, 13, 14)
        assert arrays["amplitude"].ndim == 3
        assert (run / "resolution.png").exists()


def test_resolve_with_too_little_memory_ends_with_exit_code_2(
    hpcfwi, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("hpcfwi.operators.simulator.memory_at_hand", lambda _: 150_000_000)
    assert hpcfwi("resolve", write_tiny(tmp_path), "--points", 80) == 2
    told = capsys.readouterr().err
    assert "a rank may take only 0 B besides 200 MB for engine, models" in told
    assert " are free of the " in told
    assert not (tmp_path / "run").exists()


def test_memory_error_during_resolve_is_reported_in_one_line(hpcfwi, tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise MemoryError("Unable to allocate 7 TiB")

    monkeypatch.setattr("hpcfwi.inversion.resolution.perturb_points", fail)
    assert hpcfwi("resolve", write_tiny(tmp_path), "--points", 80) == 1
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "hpcfwi: Unable to allocate 7 TiB. Give more memory, or start fewer ranks per node."
    ]


def test_signal_ends_resolve_with_exit_code_3(tmp_path):
    program = (
        "import os, signal, sys, time\n"
        "from hpcfwi.cli import main\n"
        "from hpcfwi.inversion import resolution\n"
        "def wait(*_):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(120)\n"
        "resolution.perturb_points = wait\n"
        "main()\n"
    )
    command = [sys.executable, "-c", program, "resolve", str(write_tiny(tmp_path))]
    command += ["--points", "80"]
    done = run_command(command, timeout=300, code=3)
    assert done.stderr.splitlines()[-1] == (
        "hpcfwi: stopped by SIGTERM during the resolution; "
        "the same command continues from the beginning"
    )
