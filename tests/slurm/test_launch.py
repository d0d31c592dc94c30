"""Tests of starting ranks with `srun`, and of the error with a wrong MPI plugin."""

from __future__ import annotations

import sys

import pytest

from tests.slurm.conftest import Cluster

# Prints the rank that hpcfwi finds for this process
JOIN = """\
import torch
from hpcfwi.parallel.launch import launch
context = launch()
print(f"rank {context.rank} of {context.size}, sum {context.sum(torch.ones(1)).item()}")
context.close()
"""


@pytest.fixture(scope="session")
def plugin() -> str:
    """The value of `srun --mpi` for the MPI of this machine."""
    vendor, _ = pytest.importorskip("mpi4py.MPI").get_vendor()
    return "pmix" if vendor == "Open MPI" else "pmi2"


def test_srun_with_the_right_plugin_starts_one_job(cluster: Cluster, plugin: str) -> None:
    done = cluster.call("srun", f"--mpi={plugin}", "-n3", sys.executable, "-c", JOIN)
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 3, sum 3.0" for rank in range(3)]


def test_stopped_ranks_under_srun_exit_together(cluster: Cluster, plugin: str) -> None:
    program = (sys.executable, "-m", "tests.parallel.faults.watched", "stop_in_a_long_step", "1")
    leave = ("--kill-on-bad-exit=0", "--wait=20")
    done = cluster.call("srun", f"--mpi={plugin}", *leave, "-n2", *program, check=False)
    assert done.returncode == 3, done.stderr
    assert "hpcfwi: stopped by SIGUSR1 during epoch 7" in done.stderr
    assert "MPI_ABORT" not in done.stderr


@pytest.mark.parametrize("wrong", ["none", "pmi2"])
def test_srun_with_a_wrong_plugin_ends_with_a_remedy(
    wrong: str, cluster: Cluster, plugin: str
) -> None:
    if wrong == plugin:
        pytest.skip(f"{plugin} is the right plugin for this MPI")
    run = (sys.executable, "-m", "hpcfwi", "run", "inputs/small.toml")
    output = cluster.folder / "lonely"
    done = cluster.call("srun", f"--mpi={wrong}", "-n2", *run, "--output", output, check=False)
    assert done.returncode == 2, done.stderr
    assert f"srun --mpi={plugin}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not output.exists()
