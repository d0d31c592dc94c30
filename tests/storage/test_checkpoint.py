"""Tests of checkpoints: the newest undamaged one is loaded."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcfwi.errors import InputError, WriteFailure
from hpcfwi.storage import checkpoint
from hpcfwi.storage.checkpoint import (
    latest_whole_epoch,
    load_latest_checkpoint,
    naming_checkpoint,
    save_checkpoint,
)
from tests.storage.examples import epochs, names


def run_state():
    """Return a state like that of an inversion, with every type of value."""
    vp = torch.nn.Parameter(torch.linspace(1500, 4500, 12).reshape(3, 4))
    optimizer = torch.optim.Adam([vp], lr=25.0)
    vp.sum().backward()
    optimizer.step()
    return {
        "vp": vp.detach(),
        "optimizer": optimizer.state_dict(),
        "generator": np.random.default_rng(7).bit_generator.state,
        "torch_generator": torch.Generator().manual_seed(7).get_state(),
        "history": [{"epoch": 0, "loss": 1.25, "rms": 3.5, "shots": (1, 2)}],
        "config": "b5bb9d80",
        "best": None,
        "mask": torch.tensor([True, False]),
        "half": torch.ones(2, dtype=torch.bfloat16),
    }


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
        assert a.dtype == b.dtype
    else:
        assert a == b


def test_saved_state_is_loaded_bit_for_bit(tmp_path):
    save_checkpoint(tmp_path / "new" / "checkpoints", 12, run_state())
    epoch, payload = load_latest_checkpoint(tmp_path / "new" / "checkpoints")
    assert epoch == 12
    assert_same(payload, run_state())


def test_empty_or_missing_directory_has_no_checkpoint(tmp_path):
    assert load_latest_checkpoint(tmp_path) is None
    assert load_latest_checkpoint(tmp_path / "missing") is None


def test_last_checkpoints_are_kept(tmp_path):
    for epoch in (5, 10, 15, 20):
        save_checkpoint(tmp_path, epoch, {"epoch": epoch}, keep=3)
    assert names(tmp_path) == ["epoch_000010.ckpt", "epoch_000015.ckpt", "epoch_000020.ckpt"]


def test_checkpoint_that_cannot_be_removed_gives_a_warning(tmp_path, caplog):
    (tmp_path / "epoch_000001.ckpt").mkdir()
    for epoch in (2, 3):
        save_checkpoint(tmp_path, epoch, {}, keep=1)
    assert "epoch_000001.ckpt is not needed and cannot be removed" in caplog.text
    assert epochs(tmp_path) == [1, 3]


def test_saving_an_earlier_epoch_removes_later_checkpoints(tmp_path):
    for epoch in (5, 10):
        save_checkpoint(tmp_path, epoch, {"epoch": epoch}, keep=1)
    save_checkpoint(tmp_path, 7, {"epoch": 7}, keep=1)
    assert names(tmp_path) == ["epoch_000007.ckpt"]


def test_epochs_are_compared_as_numbers(tmp_path):
    for epoch in (999_999, 1_000_000):
        save_checkpoint(tmp_path, epoch, {})
    assert load_latest_checkpoint(tmp_path)[0] == 1_000_000


HEADER = 18 + 4 + 32 + 8 + 32
REGIONS = {
    "magic": (0, 18),
    "version": (18, 22),
    "digest of the body": (22, 54),
    "epoch": (54, 62),
    "digest of the header": (62, HEADER),
    "beginning of the body": (HEADER, HEADER + 300),
    "end of the body": (-300, None),
}


@pytest.mark.parametrize("region", REGIONS)
@settings(max_examples=15)
@given(data=st.data())
def test_damaged_checkpoint_is_skipped_for_the_previous_one(region, data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoints")
    save_checkpoint(directory, 1, {"epoch": 1})
    path = save_checkpoint(directory, 2, {"epoch": 2})
    content = bytearray(path.read_bytes())
    at = data.draw(st.sampled_from(range(len(content))[slice(*REGIONS[region])]))
    if data.draw(st.booleans(), label="cut there"):
        content = content[:at]
    else:
        content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    assert load_latest_checkpoint(directory) == (1, {"epoch": 1})
    assert latest_whole_epoch(directory) == 1


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "make", [Path.touch, Path.mkdir, os.mkfifo], ids=["empty", "folder", "pipe"]
)
def test_file_that_is_no_checkpoint_is_damaged(make, tmp_path, caplog):
    save_checkpoint(tmp_path, 1, {"epoch": 1})
    make(tmp_path / "epoch_000002.ckpt")
    assert load_latest_checkpoint(tmp_path) == (1, {"epoch": 1})
    assert "epoch_000002.ckpt is damaged" in caplog.text


def test_skipped_checkpoint_is_named_in_a_warning(tmp_path, caplog):
    path = save_checkpoint(tmp_path, 3, {})
    path.write_bytes(path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING, logger="hpcfwi"):
        assert load_latest_checkpoint(tmp_path) is None
    assert str(path) in caplog.text
    assert "checksum" in caplog.text


def test_failed_save_leaves_the_earlier_checkpoints(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, {"epoch": 1})

    def no_space(_descriptor):
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(WriteFailure, match=r"epoch_000002\.ckpt.*No space.*Free space"):
        save_checkpoint(tmp_path, 2, {"epoch": 2}, keep=1)
    assert names(tmp_path) == ["epoch_000001.ckpt"]


def test_save_beyond_the_file_size_limit_leaves_earlier_checkpoints(tmp_path):
    save_checkpoint(tmp_path, 1, {"epoch": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(WriteFailure, match=r"epoch_000002\.ckpt.*File too large.*ulimit"):
            save_checkpoint(tmp_path, 2, {"vp": torch.zeros(100_000), "after": torch.zeros(9)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert names(tmp_path) == ["epoch_000001.ckpt"]


def test_write_failure_names_the_latest_whole_checkpoint(tmp_path):
    for epoch in (1, 2):
        last = save_checkpoint(tmp_path, epoch, {})
    last.write_bytes(last.read_bytes()[:-1])
    with (
        pytest.raises(
            WriteFailure, match=r"model\.h5.*checkpoint of epoch 1 is complete.*same command"
        ),
        naming_checkpoint(tmp_path),
    ):
        raise WriteFailure.of(tmp_path / "model.h5", OSError(errno.EDQUOT, ""))


def test_write_failure_without_a_checkpoint_says_so(tmp_path):
    with (
        pytest.raises(WriteFailure, match="There is no checkpoint yet"),
        naming_checkpoint(tmp_path),
    ):
        raise WriteFailure.of(tmp_path / "model.h5", OSError(errno.EROFS, ""))


def test_unfinished_file_of_a_killed_save_is_not_a_checkpoint(tmp_path):
    (tmp_path / "epoch_000009.ckpt.part").write_bytes(b"half")
    assert load_latest_checkpoint(tmp_path) is None


def test_checkpoint_of_a_newer_version_is_an_input_error(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, {})
    monkeypatch.setattr(checkpoint, "VERSION", 7)
    save_checkpoint(tmp_path, 2, {})
    monkeypatch.undo()
    with pytest.raises(InputError, match="version 7, but this program reads version 6"):
        load_latest_checkpoint(tmp_path)


def test_checkpoint_with_the_name_of_another_epoch_is_damaged(tmp_path, caplog):
    save_checkpoint(tmp_path, 3, {"vp": 1})
    (tmp_path / "epoch_000003.ckpt").rename(tmp_path / "epoch_000400.ckpt")
    save_checkpoint(tmp_path, 2, {"vp": 2}, keep=1)
    (tmp_path / "epoch_000400.ckpt").write_bytes((tmp_path / "epoch_000002.ckpt").read_bytes())
    assert load_latest_checkpoint(tmp_path) == (2, {"vp": 2})
    assert "epoch_000400.ckpt is damaged (it is that of epoch 2)" in caplog.text


def test_checkpoint_that_does_not_fit_into_memory_is_not_skipped(tmp_path, caplog, monkeypatch):
    for epoch in (1, 2):
        save_checkpoint(tmp_path, epoch, {"vp": torch.zeros(3)})

    def refuse(*_, **__):
        torch.empty(2**60, dtype=torch.uint8)

    monkeypatch.setattr(checkpoint.torch, "load", refuse)
    with pytest.raises(MemoryError, match="a checkpoint does not fit"):
        load_latest_checkpoint(tmp_path)
    assert not caplog.records
    assert latest_whole_epoch(tmp_path) == 2


def test_checkpoint_without_a_state_is_damaged_despite_its_checksums(tmp_path, caplog, monkeypatch):
    save_checkpoint(tmp_path, 1, {"vp": 1})
    write = checkpoint.write_body
    monkeypatch.setattr(checkpoint, "write_body", lambda _, file: write({"a": 1}, file))
    save_checkpoint(tmp_path, 2, {})

    def write_none(_, file):
        file.write(b"no archive")
        return hashlib.sha256(b"no archive").digest()

    monkeypatch.setattr(checkpoint, "write_body", write_none)
    save_checkpoint(tmp_path, 3, {})
    monkeypatch.undo()
    assert load_latest_checkpoint(tmp_path) == (1, {"vp": 1})
    assert caplog.text.count("it does not hold a state") == 2
