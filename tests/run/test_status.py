"""Tests of `hpcfwi status`, which finds from its directory alone if a run is complete."""

from __future__ import annotations

import pytest

from hpcfwi.config import load_config
from hpcfwi.run import recorder
from hpcfwi.storage.models import read_epoch, read_model, write_model
from tests.inversion.examples import read_vp, write_input
from tests.ranks import run_command, warm_python

pytestmark = pytest.mark.usefixtures("no_figures")

WITHOUT_MPI = """
import atexit, sys
from hpcfwi.cli import main

def look():
    from mpi4py import MPI
    print("MPI", MPI.Is_initialized())

atexit.register(look)
main()
"""


@pytest.fixture
def path(hpcfwi, tmp_path, capsys):
    """The input of a completed run of five epochs."""
    path = write_input(tmp_path)
    assert hpcfwi("run", path, "--quiet") == 0
    capsys.readouterr()
    return path


@pytest.fixture
def run(path):
    return path.parent / "run"


def test_run_is_complete_when_all_its_epochs_and_the_model_are_on_disk(path, run, hpcfwi, capsys):
    assert hpcfwi("status", path) == 0
    assert capsys.readouterr().out == (
        f"All 5 epochs are done in {run}: the result is {run / 'model.h5'}\n"
    )
    assert hpcfwi("status", run, "--quiet") == 0
    assert capsys.readouterr().out == ""


def test_run_is_incomplete_if_more_epochs_are_asked_for(path, run, hpcfwi, capsys):
    assert hpcfwi("status", path, "--set", "inversion.epochs=9") == 1
    assert capsys.readouterr().out == f"5 of 9 epochs are done in {run}\n"
    assert hpcfwi("status", path, "--set", "inversion.epochs=3") == 0


def test_status_of_a_run_not_begun_is_incomplete_and_writes_nothing(hpcfwi, tmp_path, capsys):
    path = write_input(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert hpcfwi("status", path) == 1
    assert capsys.readouterr().out.startswith("0 of 5 epochs are done in ")
    assert sorted(tmp_path.iterdir()) == before


def test_damaged_checkpoint_does_not_count_as_an_epoch(path, run, hpcfwi, capsys):
    with (run / "checkpoints" / "epoch_000005.ckpt").open("ab") as file:
        file.write(b"?")
    assert hpcfwi("status", path) == 1
    assert "\n4 of 5 epochs are done in " in capsys.readouterr().out


def test_run_without_its_model_is_incomplete_until_run_writes_it(path, run, hpcfwi, capsys):
    result = read_vp(run)
    (run / "model.h5").unlink()
    assert hpcfwi("status", path) == 1
    assert "but model.h5 is missing or damaged: `hpcfwi run` writes it" in capsys.readouterr().out
    assert hpcfwi("run", path, "--quiet") == 0
    assert hpcfwi("status", path) == 0
    assert (read_vp(run) == result).all()


def test_run_with_a_model_older_than_its_checkpoint_is_incomplete(
    hpcfwi, tmp_path, monkeypatch, capsys
):
    path, run = write_input(tmp_path, {"inversion.epochs": 2}), tmp_path / "run"
    assert hpcfwi("run", path, "--quiet") == 0
    longer = ("--set", "inversion.epochs=4", "--quiet")
    with monkeypatch.context() as patch:
        patch.setattr(recorder.Recorder, "_write", lambda self, finished, *_: self._save(finished))
        assert hpcfwi("run", path, *longer) == 0
    assert read_epoch(run / "model.h5") == 2
    assert hpcfwi("status", run) == 1
    assert "but model.h5 is that of epoch 2: " in capsys.readouterr().out
    assert hpcfwi("run", path, *longer) == 0
    assert read_epoch(run / "model.h5") == 4
    assert hpcfwi("status", run) == 0


def test_status_in_the_directory_of_another_run_is_an_input_error(path, hpcfwi, capsys):
    assert hpcfwi("status", path, "--set", "inversion.seed=7") == 2
    assert "has other values: inversion.seed = 0" in capsys.readouterr().err


def test_status_takes_the_options_of_run_and_does_not_start_mpi(path):
    options = ["--restarts", "2", "--launch", "mpirun -n 2", "--engine", "cpu", "--device", "cpu"]
    done = run_command([*warm_python(), "-c", WITHOUT_MPI, "status", path, *options])
    assert done.stdout.endswith("MPI False\n")


def test_epoch_of_a_model_that_no_run_has_written_is_0(tmp_path, run):
    model = read_model(run / "model.h5")
    write_model(tmp_path / "other.h5", model)
    (tmp_path / "torn.h5").write_bytes((run / "model.h5").read_bytes()[:1000])
    assert read_epoch(run / "model.h5") == 5
    assert [read_epoch(tmp_path / name) for name in ("other.h5", "torn.h5", "none.h5")] == [0] * 3


PLUGIN = """
from pathlib import Path
Path({mark!r}).write_text("imported")
def keep(images, strength):
    return images
class Net:
    pass
"""


@pytest.mark.parametrize(
    "keys",
    [
        {"inversion.prior": {"denoiser": "planted:keep", "strength": 0.1}},
        {"model.network": {"kind": "planted:Net", "depth": 3}, "inversion.optimizer.lr": 1e-3},
    ],
)
@pytest.mark.parametrize("command", ["status", "show", "plan", "check"])
def test_read_only_commands_do_not_import_modules_named_by_the_input(
    command, keys, hpcfwi, run, tmp_path, monkeypatch, capsys
):
    mark = tmp_path / "mark"
    for folder in (run, tmp_path):
        (folder / "planted.py").write_text(PLUGIN.format(mark=str(mark)))
    monkeypatch.chdir(run)
    other = load_config(write_input(tmp_path, keys))
    (run / "config.toml").write_text(other.to_toml())
    assert hpcfwi(command, run) == 0, capsys.readouterr().err
    assert not mark.exists()
