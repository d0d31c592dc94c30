"""Tests of converting several SEG-Y files to one gathers file."""

from __future__ import annotations

import re

import h5py
import numpy as np
import pytest

from tests.convert.examples import (
    COUNTS,
    N_TRACES,
    interrupt_fourth_read,
    line_fields,
    line_traces,
    write_parts,
    write_segy,
)

SHOTS = np.repeat(np.arange(len(COUNTS)), COUNTS)


@pytest.fixture
def join(hpcfwi, tmp_path):
    """A function that converts files to one file and returns its path."""

    def call(paths, target, *options):
        assert hpcfwi("convert", *paths, tmp_path / target, *options) == 0
        return tmp_path / target

    return call


def check_equal(path, other):
    with h5py.File(path) as one, h5py.File(other) as two:
        assert one.keys() == two.keys()
        assert one.attrs["line"] == two.attrs["line"]
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])


@pytest.mark.parametrize(
    "parts",
    [SHOTS // 2, 5 - SHOTS, np.arange(N_TRACES) % 3],
    ids=["two shots in each file", "in reverse order", "each shot is spread over three files"],
)
def test_several_files_give_the_gathers_of_one_file_with_all_traces(parts, join, tmp_path):
    places = {
        "source_y": 300 * SHOTS,
        "receiver_y": 300 * SHOTS,
    }  # coordinates to which a line is fitted
    write_segy(tmp_path / "all.sgy", {**line_fields(), **places})
    whole = join([tmp_path / "all.sgy"], "all.h5")
    check_equal(join(write_parts(tmp_path, parts, **places), "parts.h5"), whole)


def test_files_can_differ_in_byte_order_and_format(join, tmp_path):
    write_segy(tmp_path / "all.sgy")
    one, two = write_parts(tmp_path, SHOTS // 3)
    fields = {name: np.broadcast_to(v, N_TRACES)[SHOTS > 2] for name, v in line_fields().items()}
    write_segy(two, fields, line_traces()[SHOTS > 2], endian="<", code=1)
    check_equal(join([one, two], "parts.h5"), join([tmp_path / "all.sgy"], "all.h5"))


def test_interrupted_conversion_of_several_files_continues(hpcfwi, join, tmp_path, monkeypatch):
    paths = write_parts(tmp_path, SHOTS // 2)
    whole = join(paths, "whole.h5")
    calls = interrupt_fourth_read(monkeypatch)
    assert hpcfwi("convert", *paths, tmp_path / "a.h5") == 1
    check_equal(join(paths, "a.h5"), whole)
    assert len(calls) == 4 + 3, "three shots were written before the interruption"


def write_middle(path, header, **changes):
    """Write the two shots in the middle of the line, with another file header."""
    these = SHOTS // 2 == 1
    fields = {name: np.broadcast_to(v, N_TRACES)[these] for name, v in line_fields().items()}
    write_segy(path, {**fields, **changes}, line_traces()[these], header=header)


def write_every_second_sample(path):
    """Write every second sample of the line, with the number of samples in the headers."""
    write_segy(path, {"samples": 25}, line_traces()[:, ::2])


FAULTS = {
    "dt": (
        lambda path: write_middle(path, header={3217: ("u2", 2000)}, interval=2000),
        (),
        "found 0.002 for the sampling interval in s, expected 0.004 as in .*part0.sgy",
        ("--dt", "0.004"),
    ),
    "samples": (
        write_every_second_sample,
        (),
        "found 25 for the number of samples, expected 50",
        None,
    ),
    "unit": (
        lambda path: write_middle(path, header={3255: ("i2", 2)}),
        (),
        "found feet for the unit of lengths .*, expected metres",
        ("--value", "measurement=1"),
    ),
    "zero coordinates": (
        lambda path: write_segy(path, {**line_fields(), "receiver_x": 0, "receiver_y": 0}),
        ("--value", "source_y=3000000"),
        r"bytes 81-84 \(receiver_x\).*0 in 34 of",
        None,
    ),
    "cut short": (
        lambda path: path.write_bytes(path.read_bytes()[:-7]),
        (),
        "it ends within trace",
        None,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_message_names_the_file_at_fault_and_its_remedy_works(
    fault, hpcfwi, join, tmp_path, capsys
):
    spoil, options, told, remedy = FAULTS[fault]
    far = {"receiver_y": 3000000} if fault == "zero coordinates" else {}
    paths = write_parts(tmp_path, SHOTS // 2, **far)
    spoil(paths[1])
    assert hpcfwi("convert", *paths, tmp_path / "a.h5", *options) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"hpcfwi: {paths[1]}")
    assert message.count("\n") == 1
    assert re.search(told, message), message
    if remedy:
        assert " ".join(remedy) in message or remedy[0] in message
        join(paths, "a.h5", *remedy)


def test_record_that_is_in_two_files_is_refused_with_the_traces_of_both(refuse, tmp_path):
    one, two = write_parts(tmp_path, SHOTS // 3)
    (tmp_path / "again.sgy").write_bytes(one.read_bytes())
    message = refuse(one, two, tmp_path / "again.sgy", tmp_path / "out.h5")
    assert re.search(rf"such as traces 1 of {one}, 1 of \S+again.sgy in record 101, ", message)


def test_files_without_traces_in_the_offset_range_are_accepted(join, tmp_path):
    paths = write_parts(tmp_path, np.arange(N_TRACES) // 5)
    write_segy(tmp_path / "all.sgy")
    near = ("--keep", "offset=0:60")
    check_equal(join(paths, "parts.h5", *near), join([tmp_path / "all.sgy"], "all.h5", *near))


def test_file_without_traces_of_the_code_that_is_kept_is_left_out(join, refuse, tmp_path, capsys):
    fields = line_fields()
    pressure = write_segy(tmp_path / "p.sgy", {**fields, "code": 11})
    motion = write_segy(tmp_path / "vz.sgy", {**fields, "code": 12})
    some = join([motion, pressure], "some.h5", "--keep", "code=11")
    assert f"{motion}, bytes 29-30 (code): no trace is left" in capsys.readouterr().out
    check_equal(some, join([pressure], "alone.h5", "--keep", "code=11"))
    assert "found 34 traces of code 12" in refuse(motion, motion, "none.h5", "--keep", "code=11")


@pytest.mark.parametrize("others", [("model.h5",), ("b.sgy", "--model")])
def test_only_segy_data_can_be_read_from_several_files(others, tmp_path, refuse):
    write_segy(tmp_path / "a.sgy")
    name, *options = others
    told = refuse("a.sgy", name, tmp_path / "out.h5", *options)
    assert "only if all are SEG-Y data" in told
