"""Checkpoints: what is saved is loaded, the newest whole one, whatever happened to the others."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from hpcfwi.errors import InputError
from hpcfwi.storage import checkpoint
from hpcfwi.storage.checkpoint import load_latest_checkpoint, save_checkpoint


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def run_state():
    """What an inversion saves: model, optimiser, generators, history, hash of the config."""
    vp = torch.nn.Parameter(torch.linspace(1500, 4500, 12).reshape(3, 4))
    optimizer = torch.optim.Adam([vp], lr=25.0)
    vp.sum().backward()
    optimizer.step()
    return {
        "vp": vp.detach().numpy(),
        "optimizer": optimizer.state_dict(),
        "generator": np.random.default_rng(7).bit_generator.state,
        "torch_generator": torch.Generator().manual_seed(7).get_state(),
        "history": [{"epoch": 0, "loss": 1.25, "rms": np.float32(3.5), "shots": (1, 2)}],
        "config": "b5bb9d80",
        "best": None,
        "mask": np.array([True, False]),
        "names": np.array(["vp", "rho"]),
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
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    else:
        assert a == b


def test_the_state_of_a_run_comes_back_bit_for_bit(tmp_path):
    save_checkpoint(tmp_path / "new" / "checkpoints", 12, run_state())
    epoch, payload = load_latest_checkpoint(tmp_path / "new" / "checkpoints")
    assert epoch == 12
    assert_same(payload, run_state())


def test_an_empty_or_missing_directory_has_no_checkpoint(tmp_path):
    assert load_latest_checkpoint(tmp_path) is None
    assert load_latest_checkpoint(tmp_path / "missing") is None


def test_the_last_few_are_kept(tmp_path):
    for epoch in (5, 10, 15, 20):
        save_checkpoint(tmp_path, epoch, {"epoch": epoch}, keep=3)
    assert names(tmp_path) == ["epoch_000010.ckpt", "epoch_000015.ckpt", "epoch_000020.ckpt"]


def test_after_going_back_the_later_ones_are_removed_and_the_new_one_is_the_latest(tmp_path):
    for epoch in (5, 10):
        save_checkpoint(tmp_path, epoch, {"epoch": epoch}, keep=1)
    save_checkpoint(tmp_path, 7, {"epoch": 7}, keep=1)
    assert names(tmp_path) == ["epoch_000007.ckpt"]


def test_epochs_are_compared_as_numbers(tmp_path):
    for epoch in (999_999, 1_000_000):
        save_checkpoint(tmp_path, epoch, {})
    assert load_latest_checkpoint(tmp_path)[0] == 1_000_000


@example(cut=0, flip=18, tear=False)
@given(cut=st.integers(0, 10**9), flip=st.integers(0, 10**9), tear=st.booleans())
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(cut, flip, tear, tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoints")
    save_checkpoint(directory, 1, {"epoch": 1})
    path = save_checkpoint(directory, 2, {"epoch": 2})
    content = bytearray(path.read_bytes())
    if tear:
        content = content[: cut % len(content)]
    else:
        content[flip % len(content)] ^= 1 + flip % 255
    path.write_bytes(content)
    assert load_latest_checkpoint(directory) == (1, {"epoch": 1})


def test_a_skipped_checkpoint_is_named_in_a_warning(tmp_path, caplog):
    path = save_checkpoint(tmp_path, 3, {})
    path.write_bytes(path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING, logger="hpcfwi"):
        assert load_latest_checkpoint(tmp_path) is None
    assert str(path) in caplog.text
    assert "checksum" in caplog.text


def test_an_interrupted_save_leaves_the_earlier_checkpoints(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, {"epoch": 1})

    def no_power(_part, _path):
        raise OSError("No space left on device")

    monkeypatch.setattr("hpcfwi.storage.files.put_in_place", no_power)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, 2, {"epoch": 2}, keep=1)
    assert names(tmp_path) == ["epoch_000001.ckpt"]


def test_what_a_killed_save_left_behind_is_not_taken_for_a_checkpoint(tmp_path):
    (tmp_path / "epoch_000009.ckpt.part").write_bytes(b"half")
    assert load_latest_checkpoint(tmp_path) is None


def test_a_checkpoint_of_a_newer_program_is_not_passed_over(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, {})
    monkeypatch.setattr(checkpoint, "VERSION", 2)
    save_checkpoint(tmp_path, 2, {})
    monkeypatch.setattr(checkpoint, "VERSION", 1)
    with pytest.raises(InputError, match="version 2, this program reads up to 1"):
        load_latest_checkpoint(tmp_path)


class Foreign:
    pass


def test_a_payload_of_foreign_objects_is_refused_when_saving(tmp_path):
    with pytest.raises(TypeError, match="Foreign"):
        save_checkpoint(tmp_path, 1, {"a": [Foreign()]})
    assert list(tmp_path.iterdir()) == []
