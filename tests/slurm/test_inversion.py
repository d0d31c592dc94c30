"""Tests of inversions as batch jobs with the job scripts, a small input and the CPU engine."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tomllib
from datetime import datetime, timedelta
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.slurm.conftest import ONE_NODE, ROOT, Cluster, Job, make_checkout

SMALL = (str(ROOT / "inputs/small.toml"), "--device", "cpu")

# hpcfwi with two faults: first, rank 1 is killed after its third epoch; then epochs are so slow
# that the time limit comes before the last one.
TROUBLED = f"""\
export PYTHONPATH={ROOT}
exec {sys.executable} - "$@" << 'END'
import os, pathlib, signal, time
from hpcfwi.cli import main
from hpcfwi.parallel.watch import StopRequest

agreed = StopRequest.agree_to_stop
killed, stopped = pathlib.Path("killed"), pathlib.Path("stopped")

def agree_slowly(self):
    work = self._context.heartbeat.work
    if not work.startswith("epoch"):  # the observed data are being simulated
        return agreed(self)
    if not killed.exists():
        if work == "epoch 3" and os.environ["SLURM_PROCID"] == "1":
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    elif not stopped.exists():
        time.sleep(5)
    name = agreed(self)
    if name is not None:
        stopped.touch()
    return name

StopRequest.agree_to_stop = agree_slowly
main()
END
"""


def epochs_done(run: Path) -> list[int]:
    """Return the epochs in the whole lines of a run's metrics."""
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line)["epoch"] for line in text.splitlines(True) if line.endswith("\n")]


def assert_complete(run: Path) -> None:
    """Assert that a run has every epoch once, a valid model, and its figures."""
    epochs = tomllib.loads((run / "config.toml").read_text())["inversion"]["epochs"]
    assert epochs_done(run) == list(range(1, epochs + 1))
    with h5py.File(run / "model.h5") as file:
        assert file.attrs["format"] == "hpcfwi-model"
        vp = file["vp"][...]
    assert np.all((vp > 0) & np.isfinite(vp))
    for figure in ("ricker.png", "observed_data.png", "loss.png"):
        assert (run / figure).read_bytes().startswith(b"\x89PNG")
    assert list(run.glob("epoch_*.png"))


def submit(
    cluster: Cluster,
    script: str,
    run: Path,
    *options: str,
    cwd: Path = ROOT,
    settings: tuple[str, ...] = (),
) -> int:
    given = (*SMALL, "--output", str(run), *settings)
    return cluster.submit(*ONE_NODE[script], *options, f"slurm/{script}", *given, cwd=cwd)


def invert(cluster: Cluster, script: str, run: Path, settings: tuple[str, ...] = ()) -> Job:
    return cluster.wait(submit(cluster, script, run, settings=settings), timeout=400)


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run by the script for CPUs."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    job = invert(cluster, "marmousi_cpu.sh", run)
    assert (job.state, job.exit_code, job.restarts) == ("COMPLETED", 0, 0), job.log
    assert f"All 20 epochs are done in {run}: " in job.log
    return run


def test_cpu_script_runs_an_inversion_with_all_epochs_and_figures(undisturbed: Path) -> None:
    assert_complete(undisturbed)


@pytest.mark.parametrize("script", ["marmousi_4gpu.sh", "marmousi_nodes.sh"])
def test_other_job_scripts_run_to_the_end(script: str, cluster: Cluster, tmp_path: Path) -> None:
    # This tests the script; the inversion is the same
    job = invert(cluster, script, tmp_path / "run", settings=("--set", "inversion.epochs=3"))
    assert (job.state, job.exit_code, job.restarts) == ("COMPLETED", 0, 0), job.log
    assert_complete(tmp_path / "run")


def test_job_with_a_killed_rank_and_too_little_time_finds_the_same_bits(
    undisturbed: Path, cluster: Cluster, tmp_path: Path
) -> None:
    folder, run = make_checkout(tmp_path, TROUBLED), tmp_path / "run"
    number = submit(cluster, "marmousi_cpu.sh", run, "--signal=B:USR1@30", cwd=folder)
    cluster.wait_for_line(number, "starts again from the last checkpoint", timeout=200)
    cluster.wait_for_line(number, "epoch  4/20", timeout=200)
    # Slurm checks limits twice a minute. On any machine, it sends the signal before half of the
    # other epochs are done, and at least half a minute before it kills the job.
    end = datetime.now() + timedelta(seconds=60)
    cluster.call("scontrol", "update", f"JobId={number}", f"EndTime={end:%Y-%m-%dT%H:%M:%S}")
    job = cluster.wait(number, timeout=400)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.log
    assert job.restarts >= 1
    assert "hpcfwi ended with 137" in job.log, "the ranks start again, in this try or the next"
    assert "stopped by SIGUSR1 after epoch " in job.log
    assert_complete(run)
    assert vp_digest(run) == vp_digest(undisturbed)


def test_job_with_an_unreadable_checkpoint_ends_with_2_and_continues_later(
    undisturbed: Path, cluster: Cluster, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    *_, before, last = sorted((run / "checkpoints").iterdir())
    last.unlink()
    good = before.rename(tmp_path / "elsewhere.ckpt")
    before.symlink_to(before)  # a file that root cannot read either
    job = invert(cluster, "marmousi_cpu.sh", run)
    assert (job.state, job.exit_code, job.restarts) == ("FAILED", 2, 0), job.log
    assert f"{before}: it cannot be read" in job.log
    good.replace(before)
    job = invert(cluster, "marmousi_cpu.sh", run)
    assert (job.state, job.exit_code) == ("COMPLETED", 0), job.log
    assert "Continuing from the checkpoint of epoch " in job.log
    assert_complete(run)
    assert vp_digest(run) == vp_digest(undisturbed)


def vp_digest(run: Path) -> str:
    """Return the SHA-256 of the model's bytes."""
    with h5py.File(run / "model.h5") as file:
        return hashlib.sha256(file["vp"][...].tobytes()).hexdigest()
