"""Bodies of checkpoints: without a second copy in memory, and of nothing that is not loaded."""

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


def test_a_payload_of_foreign_objects_is_refused_when_saving(tmp_path):
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
    """What it returns, and the most bytes of Python's that it took at a time."""
    tracemalloc.start()
    try:
        return act(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_state_is_written_without_a_copy_of_it(tmp_path):
    state = {"vp": torch.rand(LARGE // 4), "history": [1.0]}
    _, most = measure_python_memory(lambda: save_checkpoint(tmp_path, 1, state))
    assert most < LARGE / 8


def test_which_epoch_is_whole_is_told_without_the_state_and_in_little_memory(large, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("the state was loaded"))
    epoch, most = measure_python_memory(lambda: latest_whole_epoch(large))
    assert epoch == 3
    assert most < LARGE / 4
    failure = WriteFailure.of(large / "model.h5", OSError(errno.ENOSPC, ""))

    def fail():
        with pytest.raises(WriteFailure, match="epoch 3 is whole"), naming_checkpoint(large):
            raise failure

    assert measure_python_memory(fail)[1] < LARGE / 4


def test_a_state_is_loaded_without_another_copy_of_its_file(large):
    (_, state), most = measure_python_memory(lambda: load_latest_checkpoint(large))
    assert torch.equal(state["vp"], torch.arange(LARGE // 8))
    assert most < LARGE / 4


def test_a_body_that_is_cut_short_is_no_failure_of_the_system(tmp_path):
    with (tmp_path / "body").open("w+b") as file:
        write_body({"vp": torch.zeros(10_000)}, file)
        file.truncate(10_000)
        # Where torch finds no end of its archive it looks before the beginning, which is an OSError
        with pytest.raises(ValueError, match="byte -"):
            load_body(file, 0)
