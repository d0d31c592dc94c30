"""Tests that warm ranks behave like ranks that start by themselves."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.ranks import WARM, run_ranks, serve_warm_ranks

run_warm = partial(run_ranks, warm=True)
NUMBER = "from mpi4py.MPI import COMM_WORLD as world; "
both = pytest.mark.parametrize("run", [run_ranks, run_warm], ids=["by itself", "warm"])


@both
def test_ranks_have_their_numbers_variables_folder_and_arguments(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = "print(world.allreduce(world.rank), os.environ['SAID'], os.getcwd(), sys.argv[1:])"
    done = run(3, ["-c", NUMBER + "import os, sys; " + said, "a b", "c"], {"SAID": "x=y z"})
    assert done.stdout.splitlines() == [f"3 x=y z {tmp_path} ['a b', 'c']"] * 3


@both
def test_module_is_run_as_the_main_module(run):
    done = run(1, ["-m", "hpcfwi", "--version"])
    assert done.stderr == ""
    assert done.stdout.startswith("hpcfwi ")


@both
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(3)", 3),
        ("sys.exit('bad')", 1),
        ("os.kill(os.getpid(), 9)", 137),
        ("os.abort()", 134),
    ],
)
def test_ranks_end_with_the_exit_code_of_their_program(run, end, code):
    done = run(1, f"import os, sys; {end}", code=None)
    assert done.returncode == code
    assert "bad" in done.stderr or code != 1


def test_unexpected_exit_code_fails_the_test():
    with pytest.raises(AssertionError, match="7"):
        run_warm(1, "import sys; sys.exit(7)")


def start_alone(program: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-IS", WARM, serve_warm_ranks(), "-c", program]
    return subprocess.Popen(words, stdout=subprocess.PIPE)


def test_signals_are_forwarded_to_warm_ranks():
    handler = "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7)); print(flush=True)"
    rank = start_alone(f"import signal, sys; {handler}; signal.pause()")
    assert rank.stdout.readline()
    rank.send_signal(signal.SIGUSR1)
    assert rank.wait(20) == 7


def test_killing_the_stand_in_of_a_warm_rank_kills_the_rank():
    rank = start_alone("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    process = Path("/proc", rank.stdout.readline().decode().strip())
    assert process.exists()
    rank.kill()
    rank.stdout.read()  # ends when no process has it open any more
    assert rank.wait(20) == -signal.SIGKILL
