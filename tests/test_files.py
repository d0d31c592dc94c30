"""Tests of writing files safely: atomically, and never through planted links."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hpcfwi import system
from hpcfwi.errors import InputError, WriteFailure
from hpcfwi.system import check_link, check_own, is_there, open_own, unfinished, written_whole
from tests.ranks import make_env
from tests.strangers import as_root, give_away


@pytest.fixture
def precious(tmp_path):
    """A file elsewhere that must not change."""
    path = tmp_path / "precious"
    path.write_bytes(b"precious")
    yield path
    assert path.read_bytes() == b"precious"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    return path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write(path, content=b"new"):
    with written_whole(path) as file:
        file.write(content)


def fail(path, error):
    with written_whole(path) as file:
        file.write(b"half")
        raise error


def append(path):
    with open(path, "ab", opener=open_own) as file:
        file.write(b"more")


def test_written_file_is_whole_and_the_only_one(folder):
    for content in (b"one", b"another"):
        write(folder / "sub" / "x", content)
        assert (folder / "sub" / "x").read_bytes() == content
    assert names(folder / "sub") == ["x"]


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_mode_of_written_files_follows_the_umask(folder, umask):
    old = os.umask(umask)
    try:
        write(folder / "whole")
        append(folder / "appended")
    finally:
        os.umask(old)
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_exception_while_writing_leaves_only_the_old_file(folder):
    write(folder / "x", b"old")
    for error in (ArithmeticError, KeyboardInterrupt):
        with pytest.raises(error):
            fail(folder / "x", error)
    assert (folder / "x").read_bytes() == b"old"
    assert names(folder) == ["x"]


def test_failed_flush_or_rename_is_a_write_failure_and_leaves_no_file(folder, monkeypatch):
    (folder / "directory").mkdir()
    with pytest.raises(WriteFailure, match=r"directory: cannot be written \(Is a directory"):
        write(folder / "directory")

    def no_space(_descriptor):
        raise OSError(28, "")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(WriteFailure, match=r"x: cannot be written \(No space left"):
        write(folder / "x")
    assert names(folder) == ["directory"]


def test_content_is_synced_before_the_rename_and_the_folder_after_it(folder, monkeypatch):
    done = []
    replace = Path.replace

    def fsync(descriptor):
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    def rename(part, path):
        done.append("renamed")
        return replace(part, path)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", rename)
    write(folder / "x")
    assert done[0].parent == folder
    assert done[0].name.startswith(".x.")
    assert done[1:] == ["renamed", folder]


def test_simultaneous_writers_of_a_file_do_not_interfere(folder):
    contents = [bytes([number]) * 100_000 for number in range(8)]
    start = threading.Barrier(len(contents))

    def work(content):
        start.wait()
        for _ in range(10):
            write(folder / "x", content)

    threads = [threading.Thread(target=work, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (folder / "x").read_bytes() in contents
    assert names(folder) == ["x"]


KILLED = """
import os, signal, sys
from pathlib import Path
from hpcfwi.system import written_whole

with written_whole(Path(sys.argv[1])) as file:
    file.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_unfinished_file_of_a_killed_writer_is_recognised_by_its_name(folder):
    arguments = [sys.executable, "-c", KILLED, str(folder / "epoch_1.h5")]
    subprocess.run(arguments, env=make_env(), check=False)
    for name in (".epoch_1.h5.part", "epoch_1.h5", ".epoch_1.h5.notes.part", ".other.h5.12.part"):
        (folder / name).touch()
    (left,) = [path for path in folder.iterdir() if len(path.name) == len(".epoch_1.h5..part") + 16]
    assert list(unfinished(folder, "epoch_1.h5")) == [left]
    assert list(unfinished(folder, "epoch_*.h5")) == [left]
    assert list(unfinished(folder, "poch_1.h5")) == []


def test_planted_link_is_replaced_by_the_written_file(folder, precious):
    (folder / "x").symlink_to(precious)
    write(folder / "x")
    assert (folder / "x").read_bytes() == b"new"
    assert not (folder / "x").is_symlink()


def test_existing_temporary_file_is_not_written(folder, precious, monkeypatch):
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    (folder / ".x.guessed.part").symlink_to(precious)
    with pytest.raises(WriteFailure, match=r"x: cannot be written \(File exists\)"):
        write(folder / "x")
    assert (folder / ".x.guessed.part").is_symlink()


PLANTED = {
    "a symbolic link": lambda path, precious: path.symlink_to(precious),
    "a file with 2 names": lambda path, precious: path.hardlink_to(precious),
    "a directory": lambda path, _: path.mkdir(),
    "a pipe or device": lambda path, _: os.mkfifo(path),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", PLANTED)
def test_link_directory_or_pipe_in_place_of_an_appended_file_is_refused(kind, folder, precious):
    PLANTED[kind](folder / "log.txt", precious)
    for use in (append, check_own):
        with pytest.raises(InputError, match=rf"log\.txt: this is {kind} owned by .*\. Remove it"):
            use(folder / "log.txt")


@as_root
def test_error_for_a_planted_link_names_its_owner(folder, precious):
    (folder / "lock").symlink_to(precious)
    give_away(folder / "lock")
    with pytest.raises(InputError, match=r"a symbolic link owned by .*uid 65534"):
        append(folder / "lock")


def test_dangling_link_does_not_create_its_target(folder, tmp_path):
    (folder / "log.txt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="symbolic link"):
        append(folder / "log.txt")
    assert not (tmp_path / "elsewhere").exists()


def test_pipe_with_a_reader_is_refused(folder):
    os.mkfifo(folder / "log.txt")
    reader = os.open(folder / "log.txt", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(InputError, match="pipe"):
        append(folder / "log.txt")
    assert os.read(reader, 100) == b""
    os.close(reader)


def test_appended_file_is_created_and_kept(folder):
    check_own(folder / "log.txt")
    for _ in range(2):
        append(folder / "log.txt")
    check_own(folder / "log.txt")
    assert (folder / "log.txt").read_bytes() == b"moremore"


def test_link_of_the_same_user_to_a_directory_is_accepted(folder, tmp_path):
    (folder / "checkpoints").symlink_to(tmp_path)
    for path in (folder, folder / "checkpoints", folder / "missing", folder / "x" / "y"):
        check_link(path)
    assert (folder / "checkpoints").readlink() == tmp_path


@as_root
def test_link_of_another_user_to_a_directory_is_refused(folder, tmp_path):
    (folder / "checkpoints").symlink_to(tmp_path)
    give_away(folder / "checkpoints")
    with pytest.raises(InputError, match=r"checkpoints: this is a symbolic link of .*uid 65534"):
        check_link(folder / "checkpoints")


@pytest.mark.parametrize("times", [1, 3])
def test_stale_handle_of_a_file_server_is_tried_again(times, folder, monkeypatch):
    lstat, errors = Path.lstat, [OSError(errno.ESTALE, "Stale file handle")] * times

    def look(path):
        if errors:
            raise errors.pop()
        return lstat(path)

    monkeypatch.setattr(system, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(Path, "lstat", look)
    if times == 1:
        assert is_there(folder)
    else:
        with pytest.raises(InputError, match="Stale file handle"):
            is_there(folder)
