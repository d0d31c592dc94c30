"""A gathers file that a job has left unfinished: what is whole in it is kept, and nothing else."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import pickle
import subprocess
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
from hpcfwi.storage import gathers, unfinished
from hpcfwi.storage.gathers import GatherReader, create_gathers
from hpcfwi.storage.unfinished import find_whole
from tests.parallel.together import Thread, on_ranks
from tests.storage.examples import N_SHOTS, example_survey, example_traces

ALONE = Context.alone()
GIVEN = {"fingerprint": "of the model"}
SHOTS = st.sets(st.integers(0, N_SHOTS - 1))


def begin(path, shots, survey=None):
    """Leave a file with these shots."""
    writer = create_gathers(path, survey or example_survey(), ALONE, GIVEN)
    shots = np.array(sorted(shots), dtype=np.int64)
    writer.write(shots, example_traces()[shots])
    writer.close()
    return writer.part


def go_on(path):
    """Finish it; the shots that were left."""
    with create_gathers(path, example_survey(), ALONE, GIVEN) as writer:
        writer.write(writer.left, example_traces()[writer.left])
    with GatherReader(path, ALONE) as reader:
        np.testing.assert_array_equal(reader.read(np.arange(N_SHOTS)), example_traces())
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    return writer.left.tolist()


@settings(max_examples=50)
@given(written=SHOTS, torn=SHOTS, zeroed=SHOTS, data=st.data())
def test_shots_that_are_whole_are_kept_and_the_others_left(
    written, torn, zeroed, data, tmp_path_factory
):
    """Torn: some bytes are others; zeroed: never came to the disk, but their digests did."""
    path = tmp_path_factory.mktemp("unfinished") / "observed.h5"
    part = begin(path, written)
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
    assert go_on(path) == sorted(set(range(N_SHOTS)) - (written - torn - zeroed))


def test_a_shot_whose_digest_did_not_come_to_the_disk_is_left(tmp_path):
    part = begin(tmp_path / "observed.h5", {0, 1, 2})
    with h5py.File(part, "r+") as file:
        file["digests"][1] = 0
    assert go_on(tmp_path / "observed.h5") == [1, 3, 4]


def test_the_shares_of_ranks_are_put_together_without_a_table_of_all_shots_from_each(
    tmp_path, monkeypatch
):
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


def test_unfinished_file_may_be_left_any_number_of_times(tmp_path):
    path = tmp_path / "observed.h5"
    for shot in (3, 0, 4):
        begin(path, {shot})
    assert go_on(path) == [1, 2]


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
def test_a_file_of_other_traces_is_begun_anew(change, tmp_path, caplog):
    part = begin(tmp_path / "observed.h5", {0, 1})
    with h5py.File(part, "r+") as file:
        change(file)
    assert go_on(tmp_path / "observed.h5") == list(range(N_SHOTS))
    assert caplog.text.count("begun anew") == 1


def test_unfinished_file_of_another_survey_is_made_anew(tmp_path):
    for other in (example_survey(per_shot=True), replace(example_survey(), dt=0.004)):
        begin(tmp_path / "observed.h5", {0, 1}, other)
        assert go_on(tmp_path / "observed.h5") == list(range(N_SHOTS))
        (tmp_path / "observed.h5").unlink()


def test_another_file_that_comes_while_it_is_opened_is_not_written_into(tmp_path, monkeypatch):
    part = begin(tmp_path / "observed.h5", {0, 1})
    other = begin(tmp_path / "other.h5", {2}, replace(example_survey(), dt=0.004))
    monkeypatch.setattr(gathers, "reserve_room", lambda _: other.replace(part))
    with pytest.raises(InputError, match="somebody has put another file in its place"):
        go_on(tmp_path / "observed.h5")
    with h5py.File(part) as file:
        assert file["digests"][...].nonzero()[0].tolist() == [2]


def test_file_created_while_writing_is_not_taken_for_the_unfinished_one(tmp_path):
    path = tmp_path / "observed.h5"
    other = begin(tmp_path / "other.h5", {2})

    def write_and_exchange():
        with create_gathers(path, example_survey(), ALONE, GIVEN) as writer:
            writer.write(writer.left, example_traces()[writer.left])
            other.replace(writer.part)

    with pytest.raises(InputError, match="somebody has put another file in its place"):
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
def test_unfinished_file_that_hdf5_cannot_read_is_made_anew(damage, tmp_path, caplog):
    part = begin(tmp_path / "observed.h5", {0, 1})
    part.write_bytes(damage(part.read_bytes()))
    assert go_on(tmp_path / "observed.h5") == list(range(N_SHOTS))
    assert caplog.text.count("begun anew") == 1


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
def test_what_was_planted_in_its_place_is_removed_and_what_it_leads_to_is_not_touched(
    plant, tmp_path
):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir()
    elsewhere.mkdir()
    other = begin(elsewhere / "observed.h5", {0, 1})
    before = other.read_bytes()
    plant(run / "observed.h5.part", other)
    assert go_on(run / "observed.h5") == list(range(N_SHOTS))
    assert [path.name for path in elsewhere.iterdir()] == [other.name]
    assert other.read_bytes() == before


def test_a_directory_in_its_place_is_left_to_the_user(tmp_path):
    (tmp_path / "observed.h5.part").mkdir()
    with pytest.raises(InputError, match=r"observed\.h5\.part: this is a directory"):
        begin(tmp_path / "observed.h5", {0})


TROUBLES = [errno.EACCES, errno.EIO, errno.ESTALE]


@pytest.mark.parametrize("number", TROUBLES, ids=os.strerror)
@pytest.mark.parametrize("moment", ["looked at", "opened", "read"])
def test_what_the_system_does_not_let_be_read_is_not_begun_anew(
    moment, number, tmp_path, monkeypatch
):
    path = tmp_path / "observed.h5"
    part = begin(path, {0, 1})
    before = part.read_bytes()

    def refuse(*_, **__):
        raise OSError(number, f"Can't read data (errno = {number})")

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
    assert go_on(path) == [2, 3, 4]


def test_nothing_is_left_where_nothing_was_written_and_all_that_was_is_kept(tmp_path):
    path = tmp_path / "observed.h5"

    def write_and_fail(shots):
        with create_gathers(path, example_survey(), ALONE, GIVEN) as writer:
            writer.write(np.array(shots, dtype=int), example_traces()[shots])
            raise KeyboardInterrupt

    for shots, left in (([], []), ([3], ["observed.h5.part"])):
        with pytest.raises(KeyboardInterrupt):
            write_and_fail(shots)
        assert [entry.name for entry in tmp_path.iterdir()] == left
    assert go_on(path) == [0, 1, 2, 4]


class Library:
    """A C library whose fallocate ends in these ways, one after the other; 0 is success."""

    def __init__(self, *ends):
        self.ends = list(ends)

    def fallocate(self, *_):
        number = self.ends.pop(0)
        ctypes.set_errno(number)
        return -1 if number else 0


def reserve_with(library, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: library)
    return system.reserve(3, 2**40)


def test_the_room_is_asked_for_with_one_call_and_again_after_a_signal(monkeypatch):
    library = Library(errno.EINTR, errno.EINTR, 0)
    assert reserve_with(library, monkeypatch)
    assert not library.ends


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS], ids=os.strerror)
def test_a_file_system_without_reservations_is_no_failure(number, monkeypatch, tmp_path):
    assert not reserve_with(Library(number), monkeypatch)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Library(number))
    part = begin(tmp_path / "observed.h5", {1, 2})
    with h5py.File(part) as file:
        assert file["data"][1].tobytes() == example_traces()[1].tobytes()
    assert go_on(tmp_path / "observed.h5") == [0, 3, 4]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=os.strerror)
def test_no_room_is_told_and_leaves_no_file(number, monkeypatch, tmp_path):
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Library(number))
    with pytest.raises(WriteFailure, match=rf"{os.strerror(number)}\)\. Free space"):
        begin(tmp_path / "observed.h5", {1, 2})
    assert list(tmp_path.iterdir()) == []


def test_what_there_is_of_an_earlier_job_stays_where_there_is_no_more_room(monkeypatch, tmp_path):
    part = begin(tmp_path / "observed.h5", {1, 2})
    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", lambda *_, **__: Library(errno.ENOSPC))
        with pytest.raises(WriteFailure):
            begin(tmp_path / "observed.h5", {3})
    assert part.exists()
    assert go_on(tmp_path / "observed.h5") == [0, 3, 4]


def test_the_room_for_all_is_there_from_the_beginning(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    large = replace(example_survey(), receivers=np.zeros((10_000, 2)))
    writer = create_gathers(tmp_path / "observed.h5", large, ALONE)
    status = writer.part.stat()
    assert status.st_size > 4 * N_SHOTS * 10_000 * 11
    assert 512 * status.st_blocks >= status.st_size
    writer.close()


@pytest.fixture
def plain_disk(tmp_path):
    """A file system that neither reserves room nor says how much there is."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "ramfs", "none", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        done = False
    if not done:
        pytest.skip("file systems cannot be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_real_file_system_of_that_kind_does(plain_disk):
    with (plain_disk / "file").open("wb") as file:
        assert not system.reserve(file.fileno(), 100)
    (plain_disk / "file").unlink()
    begin(plain_disk / "observed.h5", {1, 2})
    assert go_on(plain_disk / "observed.h5") == [0, 3, 4]


def test_the_warning_names_the_file(tmp_path, caplog):
    part = begin(tmp_path / "observed.h5", {0})
    part.write_bytes(b"")
    with caplog.at_level(logging.WARNING, logger="hpcfwi"):
        go_on(tmp_path / "observed.h5")
    assert f"{part} cannot be gone on with (this is not an HDF5 file): begun anew" in caplog.text
