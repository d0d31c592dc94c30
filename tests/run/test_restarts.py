"""Tests of `hpcfwi run --restarts`, which starts a killed inversion again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.restarts import tell_headway
from hpcfwi.storage.checkpoint import latest_epoch
from hpcfwi.system import beside
from tests.inversion.examples import write_input
from tests.ranks import ROOT, make_env, messages, run_command, run_ranks, warm_python

RUN = ["-m", "hpcfwi", "run"]
BEGINNING = "after epoch 0, with the checkpoint of epoch 0"
EPOCHS = 40  # several seconds, so that the kill comes before the end


def test_progress_is_newest_checkpoint_and_last_line_of_metrics(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    assert tell_headway(directory) == BEGINNING
    directory.checkpoints.mkdir(parents=True)
    for epoch in (5, 10):
        (directory.checkpoints / f"epoch_{epoch:06d}.ckpt").touch()
    directory.metrics.write_text('{"epoch": 11}\n{"epoch": 12}\n{"epo')
    assert tell_headway(directory) == "after epoch 12, with the checkpoint of epoch 10"


def test_progress_has_the_shots_of_unfinished_observed_data(tmp_path):
    directory = RunDirectory(tmp_path)
    with h5py.File(beside(directory.observed), "w") as file:
        file["digests"] = np.array([7, 0, 9, 0], np.uint64)
    assert tell_headway(directory) == "with 2 shots of the observed data"
    beside(directory.observed).write_bytes(b"no HDF5")
    assert tell_headway(directory) == BEGINNING


@pytest.mark.parametrize(
    "content", ['{"epoch": 1}\nrubbish\n{"epoch": 3}\n', '{"step": 1}\n', None]
)
def test_unreadable_metrics_do_not_prevent_a_restart(tmp_path, content):
    directory = RunDirectory(tmp_path / "run")
    directory.checkpoints.mkdir(parents=True)
    (directory.checkpoints / "epoch_000005.ckpt").touch()
    if content is None:
        directory.metrics.mkdir()
    else:
        directory.metrics.write_text(content)
    expected = "after an unknown epoch, with the checkpoint of epoch 5"
    assert tell_headway(directory) == expected


@pytest.fixture
def started(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A running inversion on one rank with one restart."""
    changes = {"inversion.epochs": EPOCHS, "output.checkpoint": 1, "output.every": EPOCHS}
    process = subprocess.Popen(
        [sys.executable, *RUN, str(write_input(tmp_path, changes)), "--restarts", "1", "--quiet"],
        env=make_env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    yield process
    process.terminate()
    process.wait()


def test_killed_inversion_continues_from_its_last_checkpoint(started, tmp_path):
    run = RunDirectory(tmp_path / "run")
    deadline = time.monotonic() + 200.0
    while latest_epoch(run.checkpoints) == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (child,) = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)
    output, _ = started.communicate(timeout=200)
    assert started.returncode == 0, output
    assert "It ended with 137 (killed, probably for memory: " in output
    assert "restart 1 of 1" in run.log.read_text()
    assert "Continuing from the checkpoint of epoch " in run.log.read_text()
    epochs = [json.loads(line)["epoch"] for line in run.metrics.read_text().splitlines()]
    assert epochs == list(range(1, EPOCHS + 1))


def test_signal_before_the_first_epoch_stops_with_exit_code_3(tmp_path):
    job = subprocess.Popen(
        [*warm_python(), *RUN, str(write_input(tmp_path))],
        env=make_env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    assert job.stdout.readline(), "the run has begun"
    job.send_signal(signal.SIGUSR1)
    _, errors = job.communicate(timeout=200)
    assert job.returncode == 3, errors
    assert "hpcfwi: stopped by SIGUSR1 " in errors


COMPILING = """
import os, signal, sys, time
from hpcfwi.run import job
from hpcfwi.cli import main

def compile_for_ever(*_):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # as compiled code does
    print("compiling", flush=True)
    time.sleep(3600)

job.warm_up = compile_for_ever
main()
"""


def test_signal_ends_ranks_that_are_compiling(tmp_path):
    run = [*warm_python(), "-c", COMPILING, "run", str(write_input(tmp_path))]
    job = subprocess.Popen(
        ["mpirun", "--bind-to", "none", "-n", "2", *run],
        env=make_env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    assert any(line == "compiling\n" for line in job.stdout)
    job.send_signal(signal.SIGUSR1)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == 3, errors
    assert "stopped by SIGUSR1 during the preparation" in errors
    assert "MPI_ABORT" not in errors


STOPPED_WHILE_IT_STARTS = """
import os, signal
from hpcfwi.cli import main
from hpcfwi.parallel import launch

def find_rank(context, comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    return found(context, comm)

found, launch.find_rank = launch.find_rank, find_rank
main()
"""


def test_signal_to_one_rank_during_rendezvous_ends_the_job(tmp_path):
    program = ["-c", STOPPED_WHILE_IT_STARTS, "run", str(write_input(tmp_path))]
    done = run_ranks(2, program, timeout=60, warm=True, code=3)
    assert "rank 1 on " in done.stderr
    assert "stopped by SIGTERM with nothing to save" in done.stderr


def test_command_returns_the_exit_code_of_its_launcher(tmp_path):
    options = ["--restarts", "2", "--output", str(tmp_path / "run"), "--launch", "bash -c 'exit 2'"]
    done = run_command([*warm_python(), *RUN, "inputs/small.toml", *options], cwd=ROOT, code=2)
    assert done.stderr == ""


def test_launcher_that_returns_0_without_running_anything_has_failed(tmp_path):
    options = ["--restarts", "1", "--launch", "true"]
    done = run_command([*warm_python(), *RUN, write_input(tmp_path), *options], code=1)
    assert "It ended with 0, but not all epochs are done (after epoch 0, " in done.stdout


def test_restarts_under_mpirun_are_refused_with_one_message():
    done = run_ranks(2, [*RUN, "inputs/small.toml", "--restarts", "3"], warm=True, code=2)
    (message,) = messages(done.stderr)
    assert "`hpcfwi run inputs/small.toml --restarts 3 --launch 'mpirun -n 4'`" in message
