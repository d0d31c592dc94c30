"""Tests of the lock, which admits one job at a time to a directory."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import time

import pytest

from hpcfwi.errors import InputError
from hpcfwi.run import directory
from hpcfwi.run.directory import LOCK, locked
from tests.ranks import make_env, warm_python

HOLDER = """
import os, sys, time
from pathlib import Path
from hpcfwi.errors import InputError
from hpcfwi.run import directory

def no_locks(*_):
    raise OSError(38, "Function not implemented")

place, mode = sys.argv[1:]
if mode == "lease":
    directory.fcntl.lockf = no_locks
    directory.COUNT_PAUSE, directory.HOLDER_WAIT, directory.RIVAL_WAIT = 0.1, 1.5, 0.5
try:
    with directory.locked(Path(place)):
        child = os.fork()  # a child must not keep the lock
        if child:
            print("held by", os.getpid(), child, flush=True)
        time.sleep(60)
except InputError as error:
    print(error, flush=True)
"""


def no_locks(*_):
    raise OSError(errno.ENOSYS, "")


class Job:
    """A process that takes the lock of a directory and keeps it."""

    def __init__(self, directory, mode):
        self.process = subprocess.Popen(
            [*warm_python(), "-c", HOLDER, str(directory), mode],
            env=make_env(),
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.child = None

    def says(self):
        words = self.process.stdout.readline()
        if words.startswith("held"):
            self.pid, self.child = map(int, words.split()[-2:])
        return words

    def kill(self, *, orphan_too=True):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.pid = None
        else:
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
    assert words.startswith(f"{directory}: another job is using this directory")
    assert f"pid {holder.pid} on {socket.gethostname()} since 20" in words
    assert "--output" in words


def test_second_job_is_refused_with_the_holder_until_the_holder_dies(tmp_path, start):
    first = start("lock")
    assert first.says().startswith("held")
    assert_refused(start("lock").says(), tmp_path, first)
    with pytest.raises(InputError, match=rf"pid {first.pid} on"), locked(tmp_path):
        pass
    first.kill(orphan_too=False)
    started = time.monotonic()
    with locked(tmp_path):
        assert time.monotonic() - started < 0.5
        refused = start("lock").says()
    assert f"pid {os.getpid()} on" in refused


def test_released_lock_can_be_taken_again_and_names_no_holder(tmp_path):
    for _ in range(2):
        with locked(tmp_path):
            pass
        assert (tmp_path / LOCK).read_bytes() == b""


@pytest.mark.parametrize("has_locks", [True, False])
@pytest.mark.parametrize("plant", ["symlink_to", "hardlink_to"])
def test_lock_does_not_write_through_a_planted_link(tmp_path, monkeypatch, plant, has_locks):
    if not has_locks:
        monkeypatch.setattr(directory.fcntl, "lockf", no_locks)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    getattr(tmp_path / LOCK, plant)(precious)
    with pytest.raises(InputError, match=r"lock: this is a .*, expected a file"), locked(tmp_path):
        pass
    assert precious.read_text() == "precious"


def test_waiting_job_does_not_read_a_link_planted_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(directory.fcntl, "lockf", no_locks)
    path, secret = tmp_path / LOCK, tmp_path / "secret"
    path.write_text("0000000001 another job")
    secret.write_text("0000000002 secret")

    def sleep(_seconds):
        path.unlink()
        path.symlink_to(secret)

    monkeypatch.setattr(directory.time, "sleep", sleep)
    with pytest.raises(InputError, match="symbolic link") as refusal, locked(tmp_path):
        pass
    assert "secret" not in str(refusal.value)


def test_exception_releases_the_lock(tmp_path, start):
    with pytest.raises(ArithmeticError), locked(tmp_path):
        raise ArithmeticError
    assert start("lock").says().startswith("held")


def test_holder_without_file_locks_is_recognised_by_its_counter(tmp_path, start):
    first = start("lease")
    assert first.says().startswith("held")
    assert_refused(start("lease").says(), tmp_path, first)
    first.kill()
    assert start("lease").says().startswith("held")


def test_job_that_is_slow_to_write_the_lock_sees_the_holder_without_file_locks(
    tmp_path, monkeypatch
):
    """The second job has read the file before the first one wrote it."""
    monkeypatch.setattr(directory.fcntl, "lockf", no_locks)
    for name in ("COUNT_PAUSE", "RIVAL_WAIT"):
        monkeypatch.setattr(directory, name, getattr(directory, name) / 20)
    read, found = directory._read, [b""]
    with locked(tmp_path):
        monkeypatch.setattr(directory, "_read", lambda path: found.pop() if found else read(path))
        with pytest.raises(InputError, match=f"pid {os.getpid()} on"), locked(tmp_path):
            pass


def test_one_of_several_simultaneous_jobs_holds_without_file_locks(start):
    said = [job.says() for job in [start("lease") for _ in range(3)]]
    assert sum(words.startswith("held") for words in said) == 1
    assert sum("another job" in words for words in said) == 2
