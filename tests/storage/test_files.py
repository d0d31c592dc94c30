"""Tests of failed writes, which leave the old file and a clear message."""

from __future__ import annotations

import contextlib
import os
import re

import numpy as np
import pytest
import torch

from hpcfwi.errors import WriteFailure
from hpcfwi.model import Model
from hpcfwi.parallel.context import Context
from hpcfwi.report.text import append_metrics, mend_metrics, read_metrics
from hpcfwi.storage import unfinished
from hpcfwi.storage.checkpoint import load_latest_checkpoint, save_checkpoint
from hpcfwi.storage.gathers import create_gathers
from hpcfwi.storage.models import read_model, write_model
from hpcfwi.survey import Survey
from tests.ranks import run_ranks
from tests.storage.examples import example_model, mounted

MB = 2**20
NO_SPACE = r"cannot be written \(No space left on device\)\. Free space"


@pytest.fixture
def small_disk(tmp_path):
    """The folder of a file system of 8 MB."""
    with mounted(tmp_path / "disk", "tmpfs", "-o", "size=8m") as place:
        yield place


def fill(disk, leave=0):
    with (disk / "filling").open("wb") as file, contextlib.suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, os.statvfs(disk).f_bavail * 4096 - leave)


def names(directory):
    return sorted(path.name for path in directory.iterdir() if path.name != "filling")


def large_survey():
    """Return a survey whose traces have 2 MB."""
    positions = np.zeros((8, 2)), np.zeros((64, 2))
    return Survey(*positions, np.zeros(1024, np.float32), 0.001)


def other_model():
    return Model(example_model().grid, {"vp": np.full((6, 8), 1500.0, np.float32)})


def test_checkpoint_on_a_full_disk_fails_and_keeps_the_previous_one(small_disk):
    payload = {"vp": torch.zeros(3 * MB, dtype=torch.uint8)}
    for epoch in (1, 2):
        save_checkpoint(small_disk, epoch, payload)
    with pytest.raises(WriteFailure, match=NO_SPACE):
        save_checkpoint(small_disk, 3, payload)
    assert names(small_disk) == ["epoch_000001.ckpt", "epoch_000002.ckpt"]
    assert load_latest_checkpoint(small_disk)[0] == 2


def test_model_on_a_full_disk_fails_and_can_be_written_later(small_disk):
    path = small_disk / "model.h5"
    write_model(path, example_model())
    fill(small_disk)
    with pytest.raises(WriteFailure, match=NO_SPACE):
        write_model(path, other_model())
    assert not list(small_disk.glob("*.part"))
    np.testing.assert_array_equal(read_model(path)["vp"], example_model()["vp"])
    (small_disk / "filling").unlink()
    write_model(path, other_model())
    assert (read_model(path)["vp"] == 1500.0).all()


def test_metrics_on_a_full_disk_fail_and_keep_the_old_ones(small_disk):
    path = small_disk / "metrics.jsonl"
    mend_metrics(path, [{"epoch": 1}])
    fill(small_disk)
    with pytest.raises(WriteFailure, match=NO_SPACE):
        mend_metrics(path, [{"epoch": 2}])
    with pytest.raises(WriteFailure, match=NO_SPACE):
        append_metrics(path, {"epoch": 2, "shots": list(range(5000))})
    assert names(small_disk) == ["metrics.jsonl"]
    assert read_metrics(path) == [{"epoch": 1}]


GATHERS = """
import sys
from pathlib import Path
from hpcfwi.parallel.failure import run_guarded
from hpcfwi.parallel.launch import launch
from hpcfwi.storage.gathers import create_gathers
from tests.storage.test_files import large_survey

context = launch()
path = Path(sys.argv[-1])
raise SystemExit(run_guarded(context, lambda: create_gathers(path, large_survey(), context)))
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_disk_space_for_all_traces_is_reserved_before_simulating(small_disk, ranks):
    fill(small_disk, leave=2 * MB)
    done = run_ranks(ranks, ["-c", GATHERS, str(small_disk / "data.h5")], warm=True, code=1)
    assert done.stderr.count("data.h5: cannot be written (No space left on device)") == 1
    assert re.search(
        r"The file needs [\d.]+ MB, but only [\d.]+ MB are free\. Free space", done.stderr
    )
    assert "Traceback" not in done.stderr
    assert names(small_disk) == []


def test_failed_write_of_traces_leaves_no_file(small_disk, monkeypatch):
    """If the file system cannot reserve space, the disk can fill up later."""
    monkeypatch.setattr(unfinished, "reserve", lambda *_: False)
    survey = large_survey()
    shots = np.arange(survey.n_shots)
    traces = np.zeros((survey.n_shots, survey.n_receivers, survey.n_samples), np.float32)

    def write():
        with create_gathers(small_disk / "data.h5", survey, Context.alone()) as writer:
            monkeypatch.undo()
            fill(small_disk)
            writer.write(shots, traces)

    with pytest.raises(WriteFailure, match=NO_SPACE):
        write()
    assert names(small_disk) == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "x"), r"No space left on device\). Free space on"),
        (OSError(122, "x"), r"quota exceeded\). Free space within your quota"),
        (OSError(30, "x"), r"Read-only file system\). Mount that file system for writing"),
        (OSError(13, "x"), r"Permission denied\). Get permission"),
        (OSError("Can't write data (file write failed: errno = 28, buf = 0x1)"), "No space left"),
        (RuntimeError("Can't decrement (unable to flush: errno = 122, x)"), "quota"),
        (RuntimeError("MPI_ERR_NO_SPACE: no space left on device"), "No space left"),
        (OSError(116, "x"), "Stale file handle.* Check that file system"),
        (OSError("Can't write data"), r"\(Can't write data\). Check that file system"),
    ],
)
def test_errors_of_the_system_and_hdf5_give_the_same_message(tmp_path, error, words):
    failure = WriteFailure.of(tmp_path / "model.h5", error)
    with pytest.raises(WriteFailure, match=words):
        raise failure
    assert str(failure).startswith(f"{tmp_path}/model.h5: cannot be written (")
    assert str(failure).endswith("run the same command again.")
