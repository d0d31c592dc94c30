"""Tests of opening HDF5 files, and of the message for each reason of failure."""

from __future__ import annotations

import fcntl
from dataclasses import replace

import h5py
import numpy as np
import pytest

from hpcfwi.errors import InputError
from hpcfwi.parallel.context import Context
from hpcfwi.storage import hdf5
from hpcfwi.storage.hdf5 import describe, is_parallel, open_alone, open_file, open_for_writing


def refusal(path):
    with pytest.raises(InputError) as caught:
        open_file(path, Context.alone())
    assert caught.value.where == str(path)
    return caught.value.problem


def test_missing_file_is_reported_as_missing(tmp_path):
    assert refusal(tmp_path / "no.h5") == "there is no such file"


def test_directory_is_reported_as_a_directory(tmp_path):
    assert "directory" in refusal(tmp_path)


@pytest.mark.parametrize("content", [b"", b"vp = 1500\n" * 100], ids=["empty", "text"])
def test_file_of_another_format_is_reported_as_not_hdf5(content, tmp_path):
    path = tmp_path / "model.txt"
    path.write_bytes(content)
    assert refusal(path) == "this is not an HDF5 file"


def test_truncated_file_is_reported_as_cut_short(model_file):
    model_file.write_bytes(model_file.read_bytes()[:-100])
    assert refusal(model_file) == "the HDF5 file is truncated"


def test_locked_file_can_be_read(model_file):
    with model_file.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with open_alone(model_file) as file:
            assert "vp" in file


def test_writing_to_an_open_file_does_not_follow_a_new_link(tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    part = tmp_path / "data.h5"
    with part.open("w+b") as file:
        part.unlink()
        part.symlink_to(precious)
        with h5py.File(file, "w") as made:
            made["vp"] = np.ones(3)
    assert precious.read_bytes() == b"precious"


def fits(_):
    return True


def test_link_is_not_opened_for_writing(model_file, tmp_path):
    before = model_file.read_bytes()
    link = tmp_path / "link.h5"
    link.symlink_to(model_file)
    with pytest.raises(InputError, match=r"link\.h5: this is a symbolic link"):
        open_for_writing(link, Context.alone(), fits)
    assert model_file.read_bytes() == before


def test_link_created_while_opening_is_not_followed(model_file, monkeypatch):
    identities = iter([(1, 1), (1, 2)])
    monkeypatch.setattr(hdf5, "identify", lambda _: next(identities))
    with pytest.raises(InputError, match="it was replaced by another file"):
        open_for_writing(model_file, Context.alone(), fits)


def test_single_process_does_not_use_parallel_hdf5():
    assert not is_parallel(Context.alone())
    assert describe(Context.alone()) == "One process reads and writes the HDF5 files."


UNDER_MPI = replace(Context.alone(), size=2, comm="a communicator")
UNDER_TORCHRUN = replace(Context.alone(), size=2)


@pytest.mark.parametrize(
    ("mpi", "context", "sentence"),
    [
        (True, UNDER_MPI, "HDF5 is parallel"),
        (False, UNDER_MPI, "h5py was built without MPI"),
        (True, UNDER_TORCHRUN, "not started by MPI"),
    ],
)
def test_log_describes_how_hdf5_files_are_accessed(mpi, context, sentence, monkeypatch):
    monkeypatch.setattr(h5py, "get_config", lambda: type("Config", (), {"mpi": mpi}))
    assert sentence in describe(context)


def test_fault_tolerant_ranks_do_not_use_parallel_hdf5(monkeypatch):
    monkeypatch.setattr(h5py, "get_config", lambda: type("Config", (), {"mpi": True}))
    of_two = replace(Context.alone(), size=2, comm=object())
    assert is_parallel(of_two)
    assert not is_parallel(replace(of_two, fault_tolerant=True))
    assert "ranks may die" in describe(replace(of_two, fault_tolerant=True))
