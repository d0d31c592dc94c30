"""Tests of failed writes, which end a run with one message."""

from __future__ import annotations

import subprocess

import pytest

from hpcfwi.errors import WriteFailure
from hpcfwi.run import recorder
from tests.inversion.examples import read_history, write_input
from tests.ranks import make_env, messages, run_ranks, warm_python

# From the second shot on, every write fails, including those of HDF5's internal tables
PROGRAM = """
import resource, sys
from hpcfwi import cli
from hpcfwi.storage.gathers import GatherWriter
put = GatherWriter._put
def fail(self, shots, data):
    put(self, shots, data)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
GatherWriter._put = fail
sys.argv = ["hpcfwi", "forward", {path!r}, "--quiet"]
cli.main()
"""


def check(done):
    assert done.returncode == 1, done.stderr
    told = messages(done.stderr)
    assert len(told) == 1, done.stderr
    assert "cannot be written" in told[0]
    assert "Segmentation" not in done.stderr


@pytest.fixture
def program(tmp_path):
    return PROGRAM.format(path=str(write_input(tmp_path, {"wave.engine": "eager"})))


def test_failed_write_of_observed_data_ends_one_process_with_exit_code_1(program):
    command = [*warm_python(), "-c", program]
    check(
        subprocess.run(
            command, env=make_env(), capture_output=True, text=True, timeout=200, check=False
        )
    )


@pytest.mark.timeout(300)
def test_failed_write_of_observed_data_ends_two_ranks_with_exit_code_1(program):
    check(run_ranks(2, program, timeout=200, code=1, warm=True))


@pytest.mark.usefixtures("no_figures")
def test_failed_checkpoint_ends_the_run_before_the_next_one_is_due(hpcfwi, tmp_path, monkeypatch):
    def fail(*_):
        raise WriteFailure("epoch 4", "No space left on device", "Free space.")

    monkeypatch.setattr(recorder, "save_checkpoint", fail)
    keys = {"inversion.epochs": 8, "output.checkpoint": 4, "output.every": 8}
    assert hpcfwi("run", write_input(tmp_path, keys), "--quiet") == 1
    assert len(read_history(tmp_path / "run")) < 8
