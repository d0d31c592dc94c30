"""Tests of `supervise`: when and how often a failed program is started again."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from hpcfwi.errors import InputError
from hpcfwi.run import restarts
from hpcfwi.run.restarts import supervise

KILLED = "It ended with 137 (killed, probably for memory: 700 MB are free here)"

CHILD = """\
import json, os, pathlib, signal, sys, time
folder, ends = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
tries = folder / "tries"
count = len(tries.read_text()) if tries.exists() else 0
tries.write_text("x" * (count + 1))
end = ends[count]
if end == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if end == "waits":
    def leave(number, _):
        print(signal.Signals(number).name, flush=True)
        sys.exit(3)
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGUSR1, leave)
    (folder / "ready").touch()
    time.sleep(60)
print("try", count, flush=True)
sys.exit(end)
"""


class Run:
    """A fake program that ends its tries with the given codes; each try gets further.

    done_after: the try that completes the work; by default the first that ends with 0.
    """

    def __init__(self, folder: Path, *ends: int | str, done_after: int | None = None) -> None:
        self.said: list[str] = []
        self.done_after = done_after or ([*ends, 0].index(0) + 1)
        self.folder = folder
        self.command = [sys.executable, "-c", CHILD, str(folder), json.dumps(ends)]

    @property
    def tries(self) -> int:
        return len((self.folder / "tries").read_text())

    def supervise(self, restarts: int, is_stuck: bool = False, launches: bool = False) -> int:
        def reached() -> str:
            return "epoch 1" if is_stuck else f"epoch {self.tries}"

        def is_done() -> bool:
            return self.tries >= self.done_after

        return supervise(
            self.command, restarts, reached, is_done, self.said.append, launches=launches
        )


@pytest.fixture(autouse=True)
def small_host(monkeypatch):
    monkeypatch.setattr(restarts, "free_on_host", lambda: 700 * 10**6)


def test_failed_program_is_restarted_until_its_work_is_done(tmp_path, capfd):
    run = Run(tmp_path, 1, "killed", 0)
    assert run.supervise(5) == 0
    assert run.said == [
        "It ended with 1 (epoch 1): restart 1 of 5.",
        f"{KILLED} (epoch 2): restart 2 of 5.",
    ]
    assert capfd.readouterr().out == "try 0\ntry 2\n", "the program inherits the standard output"


def test_program_is_not_restarted_more_often_than_allowed(tmp_path):
    run = Run(tmp_path, 1, 1, "killed", 0)
    assert run.supervise(2) == 137
    assert run.tries == 3
    assert run.said[-1] == f"{KILLED} (epoch 3), and no restart is left."


@pytest.mark.parametrize("code", [0, 2, 3])
def test_success_bad_input_and_requested_stop_cause_no_restart(code, tmp_path):
    run = Run(tmp_path, code)
    assert run.supervise(5) == code
    assert (run.tries, run.said) == (1, [])


@pytest.mark.parametrize(
    ("code", "end"), [(1, "1"), (0, "0, but not all epochs are done")], ids=["1", "0"]
)
def test_second_failure_at_the_same_place_ends_the_restarts(code, end, tmp_path):
    run = Run(tmp_path, code, code, code, 0, done_after=4)
    assert run.supervise(5, is_stuck=True) == 1
    assert run.tries == 2
    assert run.said[-1] == f"It ended with {end}, again at the same place (epoch 1): no restart."


def test_exit_code_0_before_all_is_done_causes_a_restart(tmp_path):
    run = Run(tmp_path, 0, 0, done_after=2)
    assert run.supervise(5) == 0
    assert run.said == ["It ended with 0, but not all epochs are done (epoch 1): restart 1 of 5."]


def test_unfinished_program_with_exit_code_0_returns_1_without_restarts_left(tmp_path):
    run = Run(tmp_path, 0, 0, done_after=3)
    assert run.supervise(1) == 1
    assert run.said[-1] == (
        "It ended with 0, but not all epochs are done (epoch 2), and no restart is left."
    )


def test_failure_after_all_is_done_is_logged_and_returns_0(tmp_path):
    run = Run(tmp_path, "killed", 0, done_after=1)
    assert run.supervise(5) == 0
    assert (run.tries, run.said) == (1, ["It ended with 137, but all epochs are done (epoch 1)."])


@pytest.mark.parametrize(
    ("sent", "launches", "received"),
    [
        (signal.SIGTERM, False, "SIGTERM"),
        (signal.SIGTERM, True, "SIGUSR1"),
        (signal.SIGINT, True, "SIGUSR1"),
        (signal.SIGUSR1, False, "SIGUSR1"),
    ],
)
def test_signal_is_forwarded_and_ends_the_supervision(sent, launches, received, tmp_path, capfd):
    run = Run(tmp_path, "waits", 0)

    def send() -> None:
        while not (tmp_path / "ready").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), sent)

    threading.Thread(target=send, daemon=True).start()
    assert run.supervise(5, launches=launches) == 3
    assert capfd.readouterr().out == received + "\n"
    assert (run.tries, run.said) == (1, [])


def test_program_killed_after_a_signal_is_not_restarted(tmp_path):
    run = Run(tmp_path, "killed", 0)
    before = signal.getsignal(signal.SIGTERM)

    def reached() -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return "epoch 1"

    code = supervise(run.command, 5, reached, lambda: False, run.said.append, launches=False)
    assert code == 137
    assert (run.tries, run.said) == (1, [])
    assert signal.getsignal(signal.SIGTERM) is before


def test_missing_launcher_is_an_input_error():
    with pytest.raises(InputError, match="no-such-mpirun: it cannot be started"):
        supervise(["no-such-mpirun", "x"], 1, lambda: "", lambda: False, print, launches=True)
