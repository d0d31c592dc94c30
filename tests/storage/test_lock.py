"""One job at a time in a directory, whatever has become of the one before."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from hpcfwi.errors import InputError
from hpcfwi.storage import lock
from hpcfwi.storage.lock import NAME, locked
from tests.ranks import make_env

HOLDER = """
import os, sys, time
from pathlib import Path
from hpcfwi.errors import InputError
from hpcfwi.storage import lock

def no_locks(*_):
    raise OSError(38, "Function not implemented")

directory, mode = sys.argv[1:]
if mode == "lease":
    lock.fcntl.lockf = no_locks
    lock.COUNT_PAUSE, lock.HOLDER_WAIT, lock.RIVAL_WAIT = 0.1, 1.5, 0.5
try:
    with lock.locked(Path(directory)):
        child = os.fork()  # an orphan holds nothing
        if child:
            print("held by", os.getpid(), child, flush=True)
        time.sleep(60)
except InputError as error:
    print(error, flush=True)
"""


def no_locks(*_):
    raise OSError(errno.ENOSYS, "")


class Job:
    """A process that takes the directory and keeps it; what it says is in `words`."""

    def __init__(self, directory, mode):
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(directory), mode],
            env=make_env(),
            stdout=subprocess.PIPE,
            text=True,
        )
        self.child = None

    def says(self):
        words = self.process.stdout.readline()
        if words.startswith("held"):
            self.child = int(words.split()[-1])
        return words

    def kill(self, *, orphan_too=True):
        self.process.kill()
        self.process.wait()
        if self.child and orphan_too:
            os.kill(self.child, signal.SIGKILL)
            self.child = None


@pytest.fixture
def start(tmp_path):
    jobs = []

    def start(mode):
        jobs.append(Job(tmp_path, mode))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


def assert_refused(words, directory, holder):
    assert words.startswith(f"{directory}: another job is at work")
    assert f"pid {holder.process.pid} on {socket.gethostname()} since 20" in words
    assert "--output" in words


def test_the_second_is_told_who_holds_it_and_a_killed_one_holds_it_no_more(tmp_path, start):
    first = start("lock")
    assert first.says().startswith("held")
    assert_refused(start("lock").says(), tmp_path, first)
    with pytest.raises(InputError, match=rf"pid {first.process.pid} on"), locked(tmp_path):
        pass
    first.kill(orphan_too=False)
    started = time.monotonic()
    with locked(tmp_path):
        assert time.monotonic() - started < 0.5
        refused = start("lock").says()
    assert f"pid {os.getpid()} on" in refused


def test_what_was_given_back_can_be_taken_again_and_names_nobody(tmp_path):
    for _ in range(2):
        with locked(tmp_path):
            pass
        assert (tmp_path / NAME).read_bytes() == b""


@pytest.mark.parametrize("has_locks", [True, False])
@pytest.mark.parametrize("plant", ["symlink_to", "hardlink_to"])
def test_nothing_is_written_through_a_planted_link(tmp_path, monkeypatch, plant, has_locks):
    if not has_locks:
        monkeypatch.setattr(lock.fcntl, "lockf", no_locks)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    getattr(tmp_path / NAME, plant)(precious)
    with pytest.raises(InputError, match=r"lock: this is a .*, expected a file"), locked(tmp_path):
        pass
    assert precious.read_text() == "precious"


def test_nothing_is_read_through_a_link_that_is_planted_while_it_is_watched(tmp_path, monkeypatch):
    monkeypatch.setattr(lock.fcntl, "lockf", no_locks)
    path, secret = tmp_path / NAME, tmp_path / "secret"
    path.write_text("0000000001 another job")
    secret.write_text("0000000002 secret")

    def sleep(_seconds):
        path.unlink()
        path.symlink_to(secret)

    monkeypatch.setattr(lock.time, "sleep", sleep)
    with pytest.raises(InputError, match="symbolic link") as refusal, locked(tmp_path):
        pass
    assert "secret" not in str(refusal.value)


def test_an_exception_gives_it_back(tmp_path, start):
    with pytest.raises(ArithmeticError), locked(tmp_path):
        raise ArithmeticError
    assert start("lock").says().startswith("held")


def test_where_there_are_no_locks_a_living_holder_is_known_by_its_counting(tmp_path, start):
    first = start("lease")
    assert first.says().startswith("held")
    assert_refused(start("lease").says(), tmp_path, first)
    first.kill()
    assert start("lease").says().startswith("held")


def test_where_there_are_no_locks_only_one_of_several_that_come_at_once_has_it(start):
    said = [job.says() for job in [start("lease") for _ in range(3)]]
    assert sum(words.startswith("held") for words in said) == 1
    assert sum("another job" in words for words in said) == 2
