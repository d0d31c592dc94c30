"""Checkpoints: what is saved is loaded, the newest whole one, whatever happened to the others."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import resource
import signal
import struct
import time
import tracemalloc
from contextlib import contextmanager
from math import inf, isfinite, nan
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcfwi.errors import InputError, WriteFailure
from hpcfwi.storage import checkpoint
from hpcfwi.storage.checkpoint import (
    latest_epoch,
    latest_whole_epoch,
    load_latest_checkpoint,
    naming_checkpoint,
    save_checkpoint,
)
from tests.storage.examples import write_older


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def run_state():
    """What an inversion saves: model, optimiser, generators, history, hash of the config."""
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


def save_scores(directory, scores):
    """Checkpoints of epochs 1, 2, ... with these scores, of which the last two are kept."""
    for epoch, score in enumerate(scores, start=1):
        save_checkpoint(directory, epoch, {"epoch": epoch}, keep=2, score=score)


def epochs(directory):
    return [int(path.stem.removeprefix("epoch_")) for path in sorted(directory.iterdir())]


@example([nan, 2.0, nan, -1.0, inf])
@given(st.lists(st.floats(), min_size=1, max_size=7))
def test_the_best_one_is_kept_besides_the_last(tmp_path_factory, scores):
    directory = tmp_path_factory.mktemp("checkpoints")
    save_scores(directory, scores)
    n = len(scores)
    finite = [(score, epoch) for epoch, score in enumerate(scores, start=1) if isfinite(score)]
    best = {min(finite)[1]} if finite else set()
    assert epochs(directory) == sorted(best | set(range(max(1, n - 1), n + 1)))


def test_a_damaged_header_does_not_make_a_file_the_best(tmp_path):
    save_scores(tmp_path, [1.0, 3.0, 2.0])
    path = tmp_path / "epoch_000003.ckpt"
    content = bytearray(path.read_bytes())
    content[22:30] = struct.pack("<d", -7.0)
    path.write_bytes(content)
    for epoch in (4, 5):
        save_checkpoint(tmp_path, epoch, {}, keep=2, score=4.0)
    assert epochs(tmp_path) == [1, 4, 5]


def test_what_cannot_be_removed_is_told_and_does_not_stop_the_run(tmp_path, caplog):
    (tmp_path / "epoch_000001.ckpt").mkdir()
    for epoch in (2, 3):
        save_checkpoint(tmp_path, epoch, {}, keep=1)
    assert "epoch_000001.ckpt is not needed and cannot be removed" in caplog.text
    assert epochs(tmp_path) == [1, 3]


def test_after_going_back_the_later_ones_are_removed_and_the_new_one_is_the_latest(tmp_path):
    for epoch in (5, 10):
        save_checkpoint(tmp_path, epoch, {"epoch": epoch}, keep=1)
    save_checkpoint(tmp_path, 7, {"epoch": 7}, keep=1)
    assert names(tmp_path) == ["epoch_000007.ckpt"]


def test_epochs_are_compared_as_numbers(tmp_path):
    for epoch in (999_999, 1_000_000):
        save_checkpoint(tmp_path, epoch, {})
    assert load_latest_checkpoint(tmp_path)[0] == 1_000_000


HEADER = 18 + 4 + 8 + 32 + 8 + 32
REGIONS = {
    "magic": (0, 18),
    "version": (18, 22),
    "score": (22, 30),
    "digest of the body": (30, 62),
    "epoch": (62, 70),
    "digest of the header": (70, HEADER),
    "beginning of the body": (HEADER, HEADER + 300),
    "end of the body": (-300, None),
}


@pytest.mark.parametrize("region", REGIONS)
@settings(max_examples=15)
@given(data=st.data())
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(region, data, tmp_path_factory):
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
def test_so_is_what_is_no_checkpoint_at_all(make, tmp_path, caplog):
    save_checkpoint(tmp_path, 1, {"epoch": 1})
    make(tmp_path / "epoch_000002.ckpt")
    assert load_latest_checkpoint(tmp_path) == (1, {"epoch": 1})
    assert "epoch_000002.ckpt is damaged" in caplog.text


@contextmanager
def failing(name, number, times=10**9):
    """So often, the system does not let a file or folder of this name be read."""
    scandir, opening, left = os.scandir, checkpoint.open_regular, times

    def refuse(path):
        nonlocal left
        if Path(path).name == name and left > 0:
            left -= 1
            raise OSError(number, os.strerror(number))  # without a name, as read(2) has it

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
    """Those that were made, of which none takes any time."""
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
def test_what_cannot_be_read_is_not_passed_over(number, name, folder, pauses, caplog):
    with failing(name, number), pytest.raises(InputError) as caught:
        load_latest_checkpoint(folder)
    assert Path(caught.value.where).name == name
    assert os.strerror(number) in caught.value.problem
    assert "give the same command again" in caught.value.remedy
    assert sum(pauses) == pytest.approx(30.0, abs=5.0)
    assert len(caplog.records) == 1, "it says once what it waits for"
    assert load_latest_checkpoint(folder) == (2, {"epoch": 2})


@pytest.mark.parametrize("name", [FILE, FOLDER])
def test_what_can_be_read_again_after_a_while_is_what_the_run_goes_on_from(
    name, folder, pauses, caplog
):
    with failing(name, errno.ESTALE, times=3):
        assert load_latest_checkpoint(folder) == (2, {"epoch": 2})
    assert len(pauses) == 3
    assert f"{name} cannot be read (Stale file handle): trying again" in caplog.text


@pytest.mark.parametrize("target", ["nowhere", FILE], ids=["to nowhere", "to itself"])
def test_a_link_is_followed_or_the_run_stops(target, folder, pauses):
    (folder / FILE).unlink()
    (folder / FILE).symlink_to(target)
    with pytest.raises(InputError, match=FILE):
        load_latest_checkpoint(folder)
    assert pauses


def test_a_file_that_has_gone_since_the_listing_is_not_waited_for_long(folder, pauses):
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


def test_damage_is_told_once_however_often_another_file_is_tried(folder, pauses, caplog):
    path = save_checkpoint(folder, 3, {})
    path.write_bytes(b"")
    with failing(FILE, errno.EIO, times=4):
        assert load_latest_checkpoint(folder) == (2, {"epoch": 2})
    assert len(pauses) == 4
    assert caplog.text.count("epoch_000003.ckpt is damaged") == 1


def test_what_cannot_be_read_is_not_removed_however_old_it_is(folder, caplog):
    with failing(FILE, errno.EIO):
        for epoch in (3, 4, 5):
            save_checkpoint(folder, epoch, {}, keep=1)
    assert names(folder) == [FILE, "epoch_000005.ckpt"]
    assert f"{FILE} cannot be read (Input/output error) and is kept" in caplog.text
    save_checkpoint(folder, 6, {}, keep=1)
    assert names(folder) == ["epoch_000006.ckpt"]


def test_nor_is_anything_from_a_folder_that_cannot_be_listed(folder, caplog):
    with failing(FOLDER, errno.EACCES):
        save_checkpoint(folder, 3, {}, keep=1)
    assert epochs(folder) == [1, 2, 3]
    assert "no checkpoint is removed" in caplog.text


def test_nor_one_of_a_later_epoch(folder):
    with failing(FILE, errno.EACCES):
        save_checkpoint(folder, 1, {}, keep=1)
    assert epochs(folder) == [1, 2]


def test_a_folder_that_cannot_be_listed_has_no_latest_epoch(folder, pauses):
    assert latest_epoch(folder) == 2
    with failing(FOLDER, errno.EIO, times=2):
        assert latest_epoch(folder) == 2
    with failing(FOLDER, errno.EIO), pytest.raises(InputError, match=FOLDER):
        latest_epoch(folder)
    assert pauses
    assert latest_epoch(folder / "missing") == 0


@pytest.mark.parametrize("name", [FILE, FOLDER])
def test_a_failure_to_write_does_not_say_that_there_is_none_where_it_cannot_be_read(name, folder):
    with (
        failing(name, errno.EIO),
        pytest.raises(WriteFailure, match=rf"Now .*{name} cannot be read \(Input.* same command"),
        naming_checkpoint(folder),
    ):
        raise WriteFailure.of(folder.parent / "model.h5", OSError(errno.EIO, ""))


def test_a_skipped_checkpoint_is_named_in_a_warning(tmp_path, caplog):
    path = save_checkpoint(tmp_path, 3, {})
    path.write_bytes(path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING, logger="hpcfwi"):
        assert load_latest_checkpoint(tmp_path) is None
    assert str(path) in caplog.text
    assert "checksum" in caplog.text


def test_an_interrupted_save_leaves_the_earlier_checkpoints(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, {"epoch": 1})

    def no_space(_descriptor):
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(WriteFailure, match=r"epoch_000002\.ckpt.*No space.*Free space"):
        save_checkpoint(tmp_path, 2, {"epoch": 2}, keep=1)
    assert names(tmp_path) == ["epoch_000001.ckpt"]


def test_a_disk_that_is_full_in_the_middle_leaves_them_too(tmp_path):
    save_checkpoint(tmp_path, 1, {"epoch": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(WriteFailure, match=r"epoch_000002\.ckpt.*File too large"):
            save_checkpoint(tmp_path, 2, {"vp": torch.zeros(100_000), "after": torch.zeros(9)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert names(tmp_path) == ["epoch_000001.ckpt"]


def test_a_failure_to_write_says_which_checkpoint_is_whole(tmp_path):
    for epoch in (1, 2):
        last = save_checkpoint(tmp_path, epoch, {})
    last.write_bytes(last.read_bytes()[:-1])
    with (
        pytest.raises(
            WriteFailure, match=r"model\.h5.*checkpoint of epoch 1 is whole.*same command"
        ),
        naming_checkpoint(tmp_path),
    ):
        raise WriteFailure.of(tmp_path / "model.h5", OSError(errno.EDQUOT, ""))


def test_a_failure_before_the_first_checkpoint_says_so(tmp_path):
    with pytest.raises(WriteFailure, match="No checkpoint yet"), naming_checkpoint(tmp_path):
        raise WriteFailure.of(tmp_path / "model.h5", OSError(errno.EROFS, ""))


def test_what_a_killed_save_left_behind_is_not_taken_for_a_checkpoint(tmp_path):
    (tmp_path / "epoch_000009.ckpt.part").write_bytes(b"half")
    assert load_latest_checkpoint(tmp_path) is None


def test_a_checkpoint_of_a_newer_program_is_not_passed_over(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, {})
    monkeypatch.setattr(checkpoint, "VERSION", 6)
    save_checkpoint(tmp_path, 2, {})
    with pytest.raises(InputError, match="version 6, this program reads 3 to 5"):
        load_latest_checkpoint(tmp_path)


class Foreign:
    pass


def test_a_payload_of_foreign_objects_is_refused_when_saving(tmp_path):
    with pytest.raises(TypeError, match="Foreign"):
        save_checkpoint(tmp_path, 1, {"a": [Foreign()]})
    with pytest.raises(TypeError, match="numpy"):
        save_checkpoint(tmp_path, 1, {"a": np.zeros(1)})
    assert list(tmp_path.iterdir()) == []


def test_a_file_under_the_name_of_another_epoch_is_damaged(tmp_path, caplog):
    save_checkpoint(tmp_path, 3, {"vp": 1})
    (tmp_path / "epoch_000003.ckpt").rename(tmp_path / "epoch_000400.ckpt")
    save_checkpoint(tmp_path, 2, {"vp": 2}, keep=1)
    (tmp_path / "epoch_000400.ckpt").write_bytes((tmp_path / "epoch_000002.ckpt").read_bytes())
    assert load_latest_checkpoint(tmp_path) == (2, {"vp": 2})
    assert "epoch_000400.ckpt is damaged (it is that of epoch 2)" in caplog.text


def test_so_is_one_that_holds_no_state_whatever_its_checksums(tmp_path, caplog, monkeypatch):
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
    assert caplog.text.count("it holds no state") == 2


def test_a_pipe_in_the_place_of_a_checkpoint_is_not_waited_for(tmp_path):
    save_checkpoint(tmp_path, 1, {"vp": 1})
    os.mkfifo(tmp_path / "epoch_000002.ckpt")
    assert load_latest_checkpoint(tmp_path) == (1, {"vp": 1})


@pytest.mark.parametrize("version", [3, 4])
def test_older_versions_are_read_and_their_epochs_known(version, tmp_path, caplog):
    write_older(tmp_path, version, 7, run_state())
    epoch, payload = load_latest_checkpoint(tmp_path)
    assert epoch == latest_whole_epoch(tmp_path) == 7
    assert_same(payload, run_state())
    path = write_older(tmp_path, version, 8, {})
    path.rename(tmp_path / "epoch_000009.ckpt")
    assert latest_whole_epoch(tmp_path) == 7
    assert "epoch_000009.ckpt is damaged (it is that of epoch 8)" in caplog.text
    save_checkpoint(tmp_path, 10, {}, keep=1, score=3.0)
    assert names(tmp_path) == ["epoch_000007.ckpt", "epoch_000010.ckpt"], "the best one is kept"


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


def test_what_cannot_be_read_while_it_is_loaded_is_not_damaged(folder, pauses, monkeypatch):
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
