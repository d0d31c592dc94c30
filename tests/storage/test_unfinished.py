"""Tests of unfinished gathers files, whose whole shots the next job keeps."""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcfwi import system
from hpcfwi.errors import InputError, WriteFailure
from hpcfwi.parallel.context import Context
from hpcfwi.storage import unfinished
from hpcfwi.storage.gathers import GatherReader, create_gathers
from hpcfwi.storage.unfinished import find_whole
from tests.parallel.together import Thread, on_ranks
from tests.storage.examples import N_SHOTS, example_survey, example_traces, mounted

ALONE = Context.alone()
GIVEN = {"fingerprint": "of the model"}
SHOTS = st.sets(st.integers(0, N_SHOTS - 1))


def write_unfinished(path, shots, survey=None):
    """Leave an unfinished file with these shots."""
    writer = create_gathers(path, survey or example_survey(), ALONE, GIVEN)
    shots = np.array(sorted(shots), dtype=np.int64)
    writer.write(shots, example_traces()[shots])
    writer.close()
    return writer.part


def finish(path):
    """Finish the file and return the shots that were missing."""
    with create_gathers(path, example_survey(), ALONE, GIVEN) as writer:
        writer.write(writer.left, example_traces()[writer.left])
    with GatherReader(path, ALONE) as reader:
        np.testing.assert_array_equal(reader.read(np.arange(N_SHOTS)), example_traces())
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    return writer.left.tolist()


@settings(max_examples=50)
@given(written=SHOTS, torn=SHOTS, zeroed=SHOTS, data=st.data())
def test_whole_shots_are_kept_and_damaged_ones_written_again(
    written, torn, zeroed, data, tmp_path_factory
):
    """Torn shots have a wrong byte; zeroed shots were lost, but not their digests."""
    path = tmp_path_factory.mktemp("unfinished") / "observed.h5"
    part = write_unfinished(path, written)
    with h5py.File(part) as file:
        places = [file["data"].id.get_chunk_info(shot) for shot in range(N_SHOTS)]
    content = bytearray(part.read_bytes())
    for shot in torn:
        at = data.draw(st.integers(0, places[shot].size - 1), label="byte")
        content[places[shot].byte_offset + at] ^= data.draw(st.integers(1, 255), label="flip")
    for shot in zeroed:
        first, size = places[shot].byte_offset, places[shot].size
        content[first : first + size] = bytes(size)
    part.write_bytes(content)
    assert finish(path) == sorted(set(range(N_SHOTS)) - (written - torn - zeroed))


def test_shot_without_a_digest_is_written_again(tmp_path):
    part = write_unfinished(tmp_path / "observed.h5", {0, 1, 2})
    with h5py.File(part, "r+") as file:
        file["digests"][1] = 0
    assert finish(tmp_path / "observed.h5") == [1, 3, 4]


def test_ranks_exchange_few_bytes_to_find_the_whole_shots(tmp_path, monkeypatch):
    n_shots, traces = 2000, np.ones((2000, 1, 4), dtype=np.float32)
    survey = replace(example_survey(), sources=np.zeros((n_shots, 2)), receivers=np.zeros((1, 2)))
    survey = replace(survey, wavelet=np.zeros(4, dtype=np.float32))
    written = np.arange(0, n_shots, 3)
    begin_with = create_gathers(tmp_path / "observed.h5", survey, ALONE, GIVEN)
    begin_with.write(written, traces[written])
    begin_with.close()
    gathered, gather = [], Thread.all_gather

    def counted(self, value):
        gathered.append(len(pickle.dumps(value)))
        return gather(self, value)

    monkeypatch.setattr(Thread, "all_gather", counted)
    found = on_ranks(3, partial(find_whole, tmp_path / "observed.h5", survey, GIVEN))
    for whole in found:
        assert whole.nonzero()[0].tolist() == written.tolist()
    assert max(gathered) < 100


def test_unfinished_file_can_be_interrupted_repeatedly(tmp_path):
    path = tmp_path / "observed.h5"
    for shot in (3, 0, 4):
        write_unfinished(path, {shot})
    assert finish(path) == [1, 2]


def with_attribute(file):
    file.attrs["fingerprint"] = "of another model"


def with_source(file):
    file["sources"][2, 0] += 1.0


def with_samples(file):
    del file["data"]
    file["data"] = example_traces()[:, :, 1:]


def with_compression(file):
    del file["data"]
    file.create_dataset("data", data=example_traces(), chunks=(1, 4, 11), compression="gzip")


def with_data_elsewhere(file):
    del file["data"]
    file["data"] = h5py.ExternalLink("elsewhere.h5", "data")


def without_digests(file):
    del file["digests"]


def with_a_group(file):
    del file["digests"]
    file.create_group("digests")


CHANGES = [
    with_attribute,
    with_source,
    with_samples,
    with_compression,
    with_data_elsewhere,
    without_digests,
    with_a_group,
]


@pytest.mark.parametrize("change", CHANGES)
def test_unfinished_file_of_other_traces_is_replaced(change, tmp_path, caplog):
    part = write_unfinished(tmp_path / "observed.h5", {0, 1})
    with h5py.File(part, "r+") as file:
        change(file)
    assert finish(tmp_path / "observed.h5") == list(range(N_SHOTS))
    assert caplog.text.count("starting again") == 1


def test_unfinished_file_of_another_survey_is_replaced(tmp_path):
    for other in (example_survey(per_shot=True), replace(example_survey(), dt=0.004)):
        write_unfinished(tmp_path / "observed.h5", {0, 1}, other)
        assert finish(tmp_path / "observed.h5") == list(range(N_SHOTS))
        (tmp_path / "observed.h5").unlink()


def test_file_exchanged_while_opening_is_not_written(tmp_path, monkeypatch):
    part = write_unfinished(tmp_path / "observed.h5", {0, 1})
    other = write_unfinished(tmp_path / "other.h5", {2}, replace(example_survey(), dt=0.004))
    monkeypatch.setattr(unfinished, "reserve_room", lambda _: other.replace(part))
    with pytest.raises(InputError, match="it was replaced by another file"):
        finish(tmp_path / "observed.h5")
    with h5py.File(part) as file:
        assert file["digests"][...].nonzero()[0].tolist() == [2]


def test_file_exchanged_while_writing_is_not_finished(tmp_path):
    path = tmp_path / "observed.h5"
    other = write_unfinished(tmp_path / "other.h5", {2})

    def write_and_exchange():
        with create_gathers(path, example_survey(), ALONE, GIVEN) as writer:
            writer.write(writer.left, example_traces()[writer.left])
            other.replace(writer.part)

    with pytest.raises(InputError, match="it was replaced by another file"):
        write_and_exchange()
    assert not path.exists()


DAMAGES = {
    "empty": lambda content: content[:0],
    "cut short": lambda content: content[:-100],
    "another file": lambda content: b"vp = 1500\n" * len(content),
    "its beginning lost": lambda content: bytes(512) + content[512:],
    "its tables lost": lambda content: content[:96] + bytes(4000) + content[4096:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_unfinished_file_that_hdf5_cannot_read_is_replaced(damage, tmp_path, caplog):
    part = write_unfinished(tmp_path / "observed.h5", {0, 1})
    part.write_bytes(damage(part.read_bytes()))
    assert finish(tmp_path / "observed.h5") == list(range(N_SHOTS))
    assert caplog.text.count("starting again") == 1
    assert f"{part} cannot be continued (" in caplog.text


def linked(part, other):
    part.symlink_to(other)


def hard_linked(part, other):
    part.hardlink_to(other)


def dangling(part, other):
    part.symlink_to(other.with_name("nowhere"))


def circular(part, _):
    part.symlink_to(part)


def pipe(part, _):
    os.mkfifo(part)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("plant", [linked, hard_linked, dangling, circular, pipe])
def test_planted_link_or_pipe_is_removed_without_changing_its_target(plant, tmp_path):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir()
    elsewhere.mkdir()
    other = write_unfinished(elsewhere / "observed.h5", {0, 1})
    before = other.read_bytes()
    plant(run / "observed.h5.part", other)
    assert finish(run / "observed.h5") == list(range(N_SHOTS))
    assert [path.name for path in elsewhere.iterdir()] == [other.name]
    assert other.read_bytes() == before


def test_directory_in_place_of_the_unfinished_file_is_an_input_error(tmp_path):
    (tmp_path / "observed.h5.part").mkdir()
    with pytest.raises(InputError, match=r"observed\.h5\.part: this is a directory"):
        write_unfinished(tmp_path / "observed.h5", {0})


TROUBLES = [errno.EACCES, errno.EIO, errno.ESTALE]


@pytest.mark.parametrize("number", TROUBLES, ids=os.strerror)
@pytest.mark.parametrize("moment", ["looked at", "opened", "read"])
def test_inaccessible_unfinished_file_is_not_replaced(moment, number, tmp_path, monkeypatch):
    path = tmp_path / "observed.h5"
    part = write_unfinished(path, {0, 1})
    before = part.read_bytes()

    def refuse(*_, **__):
        raise OSError(number, f"Can't read data (errno = {number})")

    monkeypatch.setattr(system, "PAUSES", ())
    with monkeypatch.context() as patch:
        if moment == "looked at":
            patch.setattr(Path, "lstat", refuse)
        elif moment == "opened":
            patch.setattr(h5py, "File", refuse)
        else:
            patch.setattr(unfinished, "digest_of", refuse)
        with pytest.raises(InputError, match=r"observed\.h5\.part"):
            create_gathers(path, example_survey(), ALONE, GIVEN)
    assert part.read_bytes() == before
    assert finish(path) == [2, 3, 4]


def test_exception_keeps_the_unfinished_file_only_if_a_shot_was_written(tmp_path):
    path = tmp_path / "observed.h5"

    def write_and_fail(shots):
        with create_gathers(path, example_survey(), ALONE, GIVEN) as writer:
            writer.write(np.array(shots, dtype=int), example_traces()[shots])
            raise KeyboardInterrupt

    for shots, left in (([], []), ([3], ["observed.h5.part"])):
        with pytest.raises(KeyboardInterrupt):
            write_and_fail(shots)
        assert [entry.name for entry in tmp_path.iterdir()] == left
    assert finish(path) == [0, 1, 2, 4]


class Library:
    """A C library whose `fallocate` fails with these error numbers in turn; 0 is success."""

    def __init__(self, *ends):
        self.ends = list(ends)

    def fallocate(self, *_):
        number = self.ends.pop(0)
        ctypes.set_errno(number)
        return -1 if number else 0


def reserve_with(library, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: library)
    return system.reserve(3, 2**40)


def test_reservation_of_disk_space_is_repeated_after_a_signal(monkeypatch):
    library = Library(errno.EINTR, errno.EINTR, 0)
    assert reserve_with(library, monkeypatch)
    assert not library.ends


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS], ids=os.strerror)
def test_file_system_without_reservations_is_accepted(number, monkeypatch, tmp_path):
    assert not reserve_with(Library(number), monkeypatch)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Library(number))
    part = write_unfinished(tmp_path / "observed.h5", {1, 2})
    with h5py.File(part) as file:
        assert file["data"][1].tobytes() == example_traces()[1].tobytes()
    assert finish(tmp_path / "observed.h5") == [0, 3, 4]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=os.strerror)
def test_failed_reservation_of_disk_space_leaves_no_file(number, monkeypatch, tmp_path):
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Library(number))
    with pytest.raises(WriteFailure, match=rf"{os.strerror(number)}\)\. Free space"):
        write_unfinished(tmp_path / "observed.h5", {1, 2})
    assert list(tmp_path.iterdir()) == []


def test_failed_reservation_keeps_the_file_of_an_earlier_job(monkeypatch, tmp_path):
    part = write_unfinished(tmp_path / "observed.h5", {1, 2})
    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", lambda *_, **__: Library(errno.ENOSPC))
        with pytest.raises(WriteFailure):
            write_unfinished(tmp_path / "observed.h5", {3})
    assert part.exists()
    assert finish(tmp_path / "observed.h5") == [0, 3, 4]


def test_disk_space_for_all_traces_is_allocated_at_creation(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    large = replace(example_survey(), receivers=np.zeros((10_000, 2)))
    writer = create_gathers(tmp_path / "observed.h5", large, ALONE)
    status = writer.part.stat()
    assert status.st_size > 4 * N_SHOTS * 10_000 * 11
    assert 512 * status.st_blocks >= status.st_size
    writer.close()


@pytest.fixture
def plain_disk(tmp_path):
    """The folder of a file system that cannot reserve space and does not know its free space."""
    with mounted(tmp_path / "disk", "ramfs") as place:
        yield place


def test_ramfs_without_reservations_is_accepted(plain_disk):
    with (plain_disk / "file").open("wb") as file:
        assert not system.reserve(file.fileno(), 100)
    (plain_disk / "file").unlink()
    write_unfinished(plain_disk / "observed.h5", {1, 2})
    assert finish(plain_disk / "observed.h5") == [0, 3, 4]
