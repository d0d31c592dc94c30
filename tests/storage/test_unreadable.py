"""Tests of checkpoints that the system cannot read, which are neither skipped nor removed."""

from __future__ import annotations

import errno
import os
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from hpcfwi.errors import InputError, WriteFailure
from hpcfwi.storage import checkpoint
from hpcfwi.storage.checkpoint import (
    latest_epoch,
    load_latest_checkpoint,
    naming_checkpoint,
    save_checkpoint,
)
from tests.storage.examples import epochs


@contextmanager
def failing(name, number, times=10**9):
    """Let reads of files and folders with this name fail so many times."""
    scandir, opening, left = os.scandir, checkpoint.open_regular, times

    def refuse(path):
        nonlocal left
        if Path(path).name == name and left > 0:
            left -= 1
            raise OSError(
                number, os.strerror(number)
            )  # without a file name, like errors of read(2)

    def scan(path):
        refuse(path)
        return scandir(path)

    def open_file(path, flags):
        refuse(path)
        return opening(path, flags)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", scan)
        patch.setattr(checkpoint, "open_regular", open_file)
        yield


@pytest.fixture
def pauses(monkeypatch):
    """The list of pauses, which take no time here."""
    made = []
    monkeypatch.setattr(time, "sleep", made.append)
    return made


TROUBLES = [errno.EACCES, errno.EIO, errno.ESTALE]
FILE, FOLDER = "epoch_000002.ckpt", "checkpoints"


@pytest.fixture
def folder(tmp_path):
    """A folder with the checkpoints of the epochs 1 and 2."""
    for epoch in (1, 2):
        save_checkpoint(tmp_path / FOLDER, epoch, {"epoch": epoch})
    return tmp_path / FOLDER


@pytest.mark.parametrize("name", [FILE, FOLDER])
@pytest.mark.parametrize("number", TROUBLES, ids=os.strerror)
def test_unreadable_checkpoint_or_folder_is_an_input_error(number, name, folder, pauses, caplog):
    with failing(name, number), pytest.raises(InputError) as caught:
        load_latest_checkpoint(folder)
    assert Path(caught.value.where).name == name
    assert os.strerror(number) in caught.value.problem
    assert "run the same command again" in caught.value.remedy
    assert sum(pauses) == pytest.approx(30.0, abs=5.0)
    assert len(caplog.records) == 1, "one warning about the wait"
    assert load_latest_checkpoint(folder) == (2, {"epoch": 2})


@pytest.mark.parametrize("name", [FILE, FOLDER])
def test_checkpoint_that_is_unreadable_for_a_while_is_loaded(name, folder, pauses, caplog):
    with failing(name, errno.ESTALE, times=3):
        assert load_latest_checkpoint(folder) == (2, {"epoch": 2})
    assert len(pauses) == 3
    assert f"{name} cannot be read (Stale file handle): trying again" in caplog.text


@pytest.mark.parametrize("target", ["nowhere", FILE], ids=["to nowhere", "to itself"])
def test_checkpoint_behind_a_broken_link_is_an_input_error(target, folder, pauses):
    (folder / FILE).unlink()
    (folder / FILE).symlink_to(target)
    with pytest.raises(InputError, match=FILE):
        load_latest_checkpoint(folder)
    assert pauses


def test_checkpoint_removed_after_the_listing_is_skipped(folder, pauses):
    scandir = os.scandir

    @contextmanager
    def scan_late(path):
        with scandir(path) as entries:
            listed = list(entries)
        (folder / FILE).unlink(missing_ok=True)
        yield listed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", scan_late)
        assert load_latest_checkpoint(folder) == (1, {"epoch": 1})
    assert len(pauses) == 1


def test_damage_is_reported_once_while_another_file_is_retried(folder, pauses, caplog):
    path = save_checkpoint(folder, 3, {})
    path.write_bytes(b"")
    with failing(FILE, errno.EIO, times=4):
        assert load_latest_checkpoint(folder) == (2, {"epoch": 2})
    assert len(pauses) == 4
    assert caplog.text.count("epoch_000003.ckpt is damaged") == 1


def test_no_checkpoint_is_removed_from_a_folder_that_cannot_be_listed(folder, caplog):
    with failing(FOLDER, errno.EACCES):
        save_checkpoint(folder, 3, {}, keep=1)
    assert epochs(folder) == [1, 2, 3]
    assert "no checkpoint is removed" in caplog.text


def test_latest_epoch_of_an_unreadable_folder_is_an_input_error(folder, pauses):
    assert latest_epoch(folder) == 2
    with failing(FOLDER, errno.EIO, times=2):
        assert latest_epoch(folder) == 2
    with failing(FOLDER, errno.EIO), pytest.raises(InputError, match=FOLDER):
        latest_epoch(folder)
    assert pauses
    assert latest_epoch(folder / "missing") == 0


@pytest.mark.parametrize("name", [FILE, FOLDER])
def test_write_failure_reports_a_checkpoint_that_cannot_be_read(name, folder):
    with (
        failing(name, errno.EIO),
        pytest.raises(WriteFailure, match=rf"Now .*{name} cannot be read \(Input.* same command"),
        naming_checkpoint(folder),
    ):
        raise WriteFailure.of(folder.parent / "model.h5", OSError(errno.EIO, ""))


def test_read_error_while_loading_is_retried_and_not_damage(folder, pauses, monkeypatch):
    load = torch.load

    def fail_once(body, **options):
        monkeypatch.setattr(torch, "load", load)
        monkeypatch.setattr(body._file, "readinto", refuse, raising=False)
        return load(body, **options)

    def refuse(_buffer):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(torch, "load", fail_once)
    assert load_latest_checkpoint(folder) == (2, {"epoch": 2})
    assert len(pauses) == 1
