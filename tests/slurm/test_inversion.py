"""Real inversions as batch jobs: the scripts, a small input, the CPU engine, the results."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.slurm.conftest import ONE_NODE, Cluster, seconds

pytestmark = pytest.mark.skipif(
    "HPCFWI_DATA" not in os.environ,
    reason="HPCFWI_DATA is not set: inputs/small.toml needs the Marmousi2 model",
)

SMALL = ("inputs/small.toml", "--engine", "cpu")


def epochs_done(run: Path) -> list[int]:
    """The numbers of the epochs in a run's metrics, whole lines only."""
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line)["epoch"] for line in text.splitlines(True) if line.endswith("\n")]


def assert_complete(run: Path) -> None:
    """Every epoch once, in order; a model that can be; the figures."""
    epochs = tomllib.loads((run / "config.toml").read_text())["inversion"]["epochs"]
    assert epochs_done(run) == list(range(1, epochs + 1))
    with h5py.File(run / "model.h5") as file:
        assert file.attrs["format"] == "hpcfwi-model"
        vp = file["vp"][...]
    assert np.all((vp > 0) & np.isfinite(vp))
    for figure in ("ricker.png", "observed_data.png", "loss.png"):
        assert (run / figure).read_bytes().startswith(b"\x89PNG")
    assert list(run.glob("epoch_*.png"))


@pytest.mark.parametrize("script", ONE_NODE)
def test_a_script_inverts_from_start_to_figures(
    script: str, cluster: Cluster, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = (*ONE_NODE[script], f"slurm/{script}", *SMALL, "--output", str(run))
    job = cluster.wait(cluster.submit(*words), timeout=120)
    assert (job.state, job.exit_code, job.restarts) == ("COMPLETED", 0, 0), job.log
    assert_complete(run)


def test_a_job_that_runs_out_of_time_continues_where_it_stopped(
    cluster: Cluster, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    number = cluster.submit("slurm/marmousi_4gpu.sh", *SMALL, "--output", str(run))
    for _ in seconds(60.0, lambda: f"no epoch was done: {cluster.log(number)}"):
        if epochs_done(run):
            break
    cluster.call("scancel", "--signal=USR1", "--batch", str(number))
    job = cluster.wait(number, timeout=120)
    assert (job.state, job.exit_code, job.restarts) == ("COMPLETED", 0, 1), job.log
    assert_complete(run)
