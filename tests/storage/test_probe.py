"""HDF5 files that kill, hang or swell their reader are refused; good ones cost one look."""

from __future__ import annotations

import os
import signal

import h5py
import numpy as np
import pytest

from hpcfwi.errors import InputError
from hpcfwi.storage import probe as probing
from hpcfwi.storage.models import read_model, write_model
from hpcfwi.storage.probe import _read_in_child, probe
from tests.storage.examples import example_model


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGTRAP), "SIGTRAP"),
        (lambda: np.ones(10**9), "GB of memory"),
    ],
    ids=["a crash", "memory"],
)
def test_a_file_that_harms_its_reader_is_named_with_what_it_did(harm, words, tmp_path, monkeypatch):
    path = tmp_path / "a.h5"
    write_model(path, example_model())
    monkeypatch.setattr(probing, "_read_all", lambda *_: iter([str(harm())]))
    assert words in _read_in_child(path)


def test_a_good_file_is_asked_about_once(tmp_path, monkeypatch):
    path = tmp_path / "a.h5"
    write_model(path, example_model())
    probe(path)
    monkeypatch.setattr(probing, "_ask", lambda _: "read twice")
    read_model(path)
    write_model(path, example_model())
    with pytest.raises(InputError, match="read twice"):
        read_model(path)


OTHERS = {
    "version as a double": ("version", np.array([1.0])),
    "format in an array": ("format", np.array([b"hpcfwi-model"])),
    "format padded with blanks": ("format", np.bytes_(b"hpcfwi-model   ")),
    "format as bytes": ("format", np.frombuffer(b"hpcfwi-model\0\0", "u1")),
    "spacing as a column": ("spacing", np.array([[20.0], [20.0]])),
    "axes in a matrix": ("axes", np.array([[b"zx"]])),
}


@pytest.mark.parametrize("how", OTHERS)
def test_attributes_of_other_languages_are_read(how, tmp_path):
    path = tmp_path / "a.h5"
    write_model(path, example_model())
    name, value = OTHERS[how]
    with h5py.File(path, "r+") as file:
        file.attrs[name] = value
    assert len(read_model(path).grid.spacing) == 2
