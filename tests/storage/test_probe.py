"""Tests of the probe, which refuses HDF5 files that crash, block or exhaust their reader."""

from __future__ import annotations

import os
import resource
import signal
import struct
import sys
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcfwi.errors import InputError
from hpcfwi.storage import probe as probing
from hpcfwi.storage.models import read_model, write_model
from hpcfwi.storage.probe import _read_in_child, probe
from tests.ranks import run_command
from tests.storage.examples import example_model


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGTRAP), "SIGTRAP"),
        (lambda: np.ones(10**9), "GB of memory"),
        (lambda: os._exit(1), "GB of memory"),
    ],
    ids=["a crash", "memory", "no memory for a message"],
)
def test_probe_reports_how_a_file_harmed_its_reader(harm, words, model_file, monkeypatch):
    monkeypatch.setattr(probing, "_read_all", lambda *_: harm())
    assert words in _read_in_child(model_file)


@pytest.mark.parametrize("number", [300, 1000, 4097, 2**14 + 1, 2**22 + 1])
def test_string_with_a_bad_index_is_found_by_the_probe(number, model_file):
    content = model_file.read_bytes()
    # HDF5 stores strings in a heap and refers to each by length, address of the heap and index
    heap = content.index(b"GCOL")
    good, bad = (struct.pack("<IQI", len("hpcfwi-model"), heap, n) for n in (1, number))
    assert content.count(good) == 1
    model_file.write_bytes(content.replace(good, bad))
    with pytest.raises(InputError, match="SIGSEGV"):
        probe(model_file)


def test_probe_works_under_an_existing_memory_limit(model_file):
    child = os.fork()
    if child == 0:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + probing.MEMORY // 2
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        os._exit(_read_in_child(model_file) != "")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_array_without_a_location_is_refused(model_file, monkeypatch):

    def fail(_):
        raise RuntimeError("attempting I/O in temporary file space")

    monkeypatch.setattr(h5py.h5o, "get_info", fail)
    assert _read_in_child(model_file) == (
        "HDF5 cannot locate /vp (attempting I/O in temporary file space)"
    )


def read_in_new_process(path: Path) -> str:
    """Return the problem found with a file in a process that has no memory of other tests to free.

    The limit of time is so high that on a busy machine, too, the limit of memory is reached first.
    """
    program = (
        "from pathlib import Path; from hpcfwi.storage import probe; "
        "probe.MEMORY, probe.SECONDS = 3 * 10**8, 60; "
        f"print(probe._read_in_child(Path({str(path)!r})))"
    )
    return run_command([sys.executable, "-c", program]).stdout.strip()


def test_decompression_bomb_is_found_between_sampled_chunks(tmp_path):
    path, packer = tmp_path / "a.h5", zlib.compressobj(1)
    swelling = b"".join(packer.compress(bytes(2**24)) for _ in range(64)) + packer.flush()
    with h5py.File(path, "w") as file:
        shape, chunk = (160, 2**17), (1, 2**17)
        found = file.create_dataset("vp", shape, "f4", chunks=chunk, compression="gzip")
        for number in range(160):
            found.id.write_direct_chunk((number, 0), zlib.compress(bytes(2**19)))
    assert read_in_new_process(path) == ""
    with h5py.File(path, "r+") as file:
        file["vp"].id.write_direct_chunk((82, 0), swelling)
    assert "300 MB of memory" in read_in_new_process(path)


def test_good_file_is_probed_once(model_file, monkeypatch):
    probe(model_file)
    monkeypatch.setattr(probing, "_ask", lambda _: "read twice")
    read_model(model_file)
    write_model(model_file, example_model())
    with pytest.raises(InputError, match="read twice"):
        read_model(model_file)


OTHERS = {
    "version as a double": ("version", np.array([1.0])),
    "format in an array": ("format", np.array([b"hpcfwi-model"])),
    "format padded with blanks": ("format", np.bytes_(b"hpcfwi-model   ")),
    "format as bytes": ("format", np.frombuffer(b"hpcfwi-model\0\0", "u1")),
    "spacing as a column": ("spacing", np.array([[20.0], [20.0]])),
    "axes in a matrix": ("axes", np.array([[b"zx"]])),
}


@pytest.mark.parametrize("how", OTHERS)
def test_attributes_of_other_languages_are_read(how, model_file):
    name, value = OTHERS[how]
    with h5py.File(model_file, "r+") as file:
        file.attrs[name] = value
    assert len(read_model(model_file).grid.spacing) == 2
