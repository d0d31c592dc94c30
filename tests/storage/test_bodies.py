"""Tests of the bodies of checkpoints, which are written and loaded without a copy in memory."""

from __future__ import annotations

import errno
import tracemalloc

import numpy as np
import pytest
import torch

from hpcfwi.errors import WriteFailure
from hpcfwi.storage.checkpoint import (
    latest_whole_epoch,
    load_body,
    load_latest_checkpoint,
    naming_checkpoint,
    save_checkpoint,
    write_body,
)


class Foreign:
    pass


def test_state_with_foreign_objects_is_refused_when_saving(tmp_path):
    with pytest.raises(TypeError, match="Foreign"):
        save_checkpoint(tmp_path, 1, {"a": [Foreign()]})
    with pytest.raises(TypeError, match="numpy"):
        save_checkpoint(tmp_path, 1, {"a": np.zeros(1)})
    assert list(tmp_path.iterdir()) == []


LARGE = 2**26  # bytes


@pytest.fixture
def large(tmp_path):
    save_checkpoint(tmp_path, 3, {"vp": torch.arange(LARGE // 8)})
    return tmp_path


def measure_python_memory(act):
    """Return the result of a call and the peak of the memory that Python allocated in it."""
    tracemalloc.start()
    try:
        return act(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_state_is_written_without_a_copy(tmp_path):
    state = {"vp": torch.rand(LARGE // 4), "history": [1.0]}
    _, most = measure_python_memory(lambda: save_checkpoint(tmp_path, 1, state))
    assert most < LARGE / 8


def test_latest_whole_epoch_is_found_without_loading_the_state(large, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("the state was loaded"))
    epoch, most = measure_python_memory(lambda: latest_whole_epoch(large))
    assert epoch == 3
    assert most < LARGE / 4
    failure = WriteFailure.of(large / "model.h5", OSError(errno.ENOSPC, ""))

    def fail():
        with pytest.raises(WriteFailure, match="epoch 3 is complete"), naming_checkpoint(large):
            raise failure

    assert measure_python_memory(fail)[1] < LARGE / 4


def test_state_is_loaded_without_a_copy_of_its_file(large):
    (_, state), most = measure_python_memory(lambda: load_latest_checkpoint(large))
    assert torch.equal(state["vp"], torch.arange(LARGE // 8))
    assert most < LARGE / 4


def test_truncated_body_raises_a_value_error(tmp_path):
    with (tmp_path / "body").open("w+b") as file:
        write_body({"vp": torch.zeros(10_000)}, file)
        file.truncate(10_000)
        # If torch finds no end of its archive, it seeks before the beginning, which is an OSError
        with pytest.raises(ValueError, match="byte -"):
            load_body(file, 0)
