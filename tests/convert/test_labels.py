"""Tests of record numbers, map coordinates and delays through gathers and back to SEG-Y."""

from __future__ import annotations

import re

import h5py
import numpy as np
import pytest
import segyio

from hpcfwi.convert.layout import read_layout
from hpcfwi.convert.segy import read_headers
from tests.convert.examples import COUNTS, N_TRACES, line_fields, line_traces, rules, write_segy

KEPT = (
    *("record", "shot_point", "channel", "source_x", "source_y", "receiver_x", "receiver_y"),
    *("source_elevation", "source_depth", "receiver_elevation"),
    *("elevation_scalar", "coordinate_scalar", "delay"),
)


def map_fields():
    """Return headers of a crooked land line in UTM coordinates, in cm."""
    rng = np.random.default_rng(5)
    shot = np.repeat(np.arange(len(COUNTS)), COUNTS)
    channel = np.concatenate([np.arange(n) for n in COUNTS])
    along = 5000 * shot + 1250 * (1 + channel)
    return {
        **line_fields(),
        "record": 7001 + 3 * shot,
        "shot_point": 211 + 2 * shot,
        "channel": 49 + channel,
        "source_x": 42135017 + 5000 * shot,
        "source_y": 581120043 + 3000 * shot,
        "receiver_x": 42135017 + along,
        "receiver_y": 581120043 + along * 3 // 5 + rng.integers(-50, 50, N_TRACES),
        "source_elevation": 35011 + 10 * shot,
        "source_depth": 1203,
        "receiver_elevation": 35007 + channel,
        "elevation_scalar": -100,
        "coordinate_scalar": -100,
        "delay": 200,
    }


def headers_of(path):
    return read_headers(read_layout(path, rules()), KEPT)


def check_same_headers(found, expected):
    for name in KEPT:
        np.testing.assert_array_equal(
            found[name], np.broadcast_to(expected[name], N_TRACES), err_msg=name
        )


@pytest.mark.parametrize("axes", ["zx", "zyx"])
def test_map_line_written_back_to_segy_has_its_original_headers(axes, convert, tmp_path):
    write_segy(tmp_path / "a.sgy", map_fields())
    convert("a.sgy", "a.h5", "--datum", "400", "--keep", "time=0.2:", "--axes", axes)
    check_same_headers(headers_of(convert("a.h5", "b.sgy")), map_fields())
    with segyio.open(tmp_path / "b.sgy", ignore_geometry=True) as file:
        np.testing.assert_array_equal(file.trace.raw[:], line_traces())


def test_segy_written_from_gathers_converts_to_the_same_gathers(convert, tmp_path, capsys):
    write_segy(tmp_path / "a.sgy", map_fields())
    convert("a.sgy", "a.h5", "--datum", "400", "--keep", "time=0.2:")
    capsys.readouterr()
    convert("a.h5", "b.sgy")
    options = capsys.readouterr().out.split("same gathers with ")[1].split("\n")[0].split()
    convert("b.sgy", "b.h5", *options)
    with h5py.File(tmp_path / "a.h5") as one, h5py.File(tmp_path / "b.h5") as other:
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_several_files_written_back_as_one_have_their_original_headers(hpcfwi, convert, tmp_path):
    fields, part = map_fields(), np.arange(N_TRACES) % 3
    for number in range(3):
        some = {n: np.broadcast_to(v, N_TRACES)[part == number] for n, v in fields.items()}
        write_segy(tmp_path / f"{number}.sgy", some, line_traces()[part == number])
    sources = [tmp_path / f"{number}.sgy" for number in range(3)]
    assert hpcfwi("convert", *sources, tmp_path / "a.h5", "--keep", "time=0.2:") == 0
    check_same_headers(headers_of(convert("a.h5", "b.sgy")), fields)


def test_selected_traces_keep_their_headers(convert, tmp_path):
    fields = map_fields()
    write_segy(tmp_path / "a.sgy", fields)
    convert("a.sgy", "a.h5", "--keep", "shots=1:5:2", "--keep", "time=0.2:")
    found = headers_of(convert("a.h5", "b.sgy"))
    kept = np.isin(fields["record"], [7004, 7010])
    for name in KEPT:
        expected = np.broadcast_to(fields[name], N_TRACES)[kept]
        np.testing.assert_array_equal(found[name], expected, err_msg=name)


def test_reciprocal_gathers_are_written_with_exchanged_map_positions(convert, tmp_path):
    fields = {**map_fields(), "delay": 0}
    write_segy(tmp_path / "a.sgy", fields)
    convert("a.sgy", "a.h5", "--reciprocity")
    found = headers_of(convert("a.h5", "b.sgy"))

    def points(headers, of):
        names = (f"{of}_x", f"{of}_y")
        return np.stack([np.broadcast_to(headers[name], N_TRACES) for name in names], axis=1)

    expected = np.hstack([points(fields, "receiver"), points(fields, "source")])
    got = np.hstack([points(found, "source"), points(found, "receiver")])
    np.testing.assert_array_equal(np.unique(got, axis=0), np.unique(expected, axis=0))
    np.testing.assert_array_equal(np.sort(found["channel"]), np.sort(fields["record"]))
    assert set(found["source_elevation"]) == set(fields["receiver_elevation"])
    depths = np.broadcast_to(fields["source_elevation"] - fields["source_depth"], N_TRACES)
    assert set(found["receiver_elevation"]) == set(depths)


def damage(path, change):
    with h5py.File(path, "a") as file:
        change(file)


def exchange(name, values):
    def change(file):
        del file[name]
        file[name] = values

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (exchange("records", np.arange(5)), r"/records: its shape is \(5,\), expected \(6,\)"),
        (exchange("records", np.full(6, 0.5)), "/records: found 0.5, expected whole numbers"),
        (exchange("source_map", np.full((6, 4), np.nan)), "/source_map: found nan"),
        (lambda file: file.pop("receiver_map"), "/receiver_map: missing, but /source_map exists"),
        (lambda file: file.attrs.update(datum="high"), "attribute datum: found 'high'"),
        (lambda file: file.attrs.update(start=40.0), "attribute start: found 40 s"),
    ],
)
def test_labels_that_do_not_fit_are_refused(change, told, convert, tmp_path, refuse):
    write_segy(tmp_path / "a.sgy", map_fields())
    convert("a.sgy", "a.h5")
    damage(tmp_path / "a.h5", change)
    message = refuse("a.h5", "b.sgy")
    assert re.search(told, message), message
    assert not (tmp_path / "b.sgy").exists()
