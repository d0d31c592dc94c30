"""Tests of the metrics file, which has a JSON record per epoch."""

import errno
import json
import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcfwi.errors import InputError, WriteFailure
from hpcfwi.report.text import append_metrics, mend_metrics, read_metrics

values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())
records = st.dictionaries(st.text(), values | st.lists(values, max_size=3), max_size=5)


def as_json(value):
    if isinstance(value, list):
        return [as_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("läufe mit Leerzeichen")


@settings(max_examples=40)
@given(written=st.lists(records, max_size=5))
def test_appended_records_are_read_with_none_for_values_not_finite(folder, written):
    path = folder / "metrics.jsonl"
    path.unlink(missing_ok=True)
    for record in written:
        append_metrics(path, record)
    expected = [{key: as_json(value) for key, value in r.items()} for r in written]
    assert read_metrics(path) == expected


def test_metrics_lines_are_strict_json(tmp_path):
    append_metrics(tmp_path / "m", {"loss": float("nan"), "best": np.float32(np.inf)})

    def refuse(word):
        raise AssertionError(word)

    assert json.loads((tmp_path / "m").read_text(), parse_constant=refuse) == {
        "loss": None,
        "best": None,
    }


def test_numpy_numbers_and_arrays_are_written_as_plain_json(tmp_path):
    append_metrics(tmp_path / "m", {"loss": np.float32(0.5), "shots": np.array([1, 2])})
    assert read_metrics(tmp_path / "m") == [{"loss": 0.5, "shots": [1, 2]}]


def test_missing_metrics_file_has_no_records(tmp_path):
    assert read_metrics(tmp_path / "m") == []


def write_epochs(path, n):
    for epoch in range(1, n + 1):
        append_metrics(path, {"epoch": epoch, "loss": 1.0 / epoch})


@settings(max_examples=25)
@given(lost=st.integers(min_value=1, max_value=20))
def test_truncated_last_line_is_ignored_and_mended(folder, lost):
    path = folder / "torn.jsonl"
    path.unlink(missing_ok=True)
    write_epochs(path, 3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    epochs = [record["epoch"] for record in read_metrics(path)]
    # If only its line end is lost, the last record is whole.
    assert epochs == ([1, 2, 3] if lost == 1 else [1, 2])

    mend_metrics(path, read_metrics(path)[:2])
    append_metrics(path, {"epoch": 3})
    assert [record["epoch"] for record in read_metrics(path)] == [1, 2, 3]


def test_mending_keeps_the_given_records_and_leaves_no_other_file(tmp_path):
    path = tmp_path / "m"
    write_epochs(path, 5)
    kept = path.read_text().splitlines()[:3]
    mend_metrics(path, read_metrics(path)[:3])
    assert path.read_text().splitlines() == kept
    assert list(tmp_path.iterdir()) == [path]


def test_failed_write_of_metrics_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "m"
    write_epochs(path, 2)

    def no_space(_descriptor):
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(WriteFailure, match=r"m: cannot be written .No space left"):
        mend_metrics(path, [])
    assert len(read_metrics(path)) == 2
    assert list(tmp_path.iterdir()) == [path]
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match="this is a directory"):
        append_metrics(path, {})


def test_metrics_are_not_written_through_a_planted_link(tmp_path):
    path, precious = tmp_path / "m", tmp_path / "precious"
    precious.write_text("precious")
    path.symlink_to(precious)
    with pytest.raises(InputError, match="m: this is a symbolic link"):
        append_metrics(path, {"epoch": 1})
    mend_metrics(path, [{"epoch": 1}])
    assert read_metrics(path) == [{"epoch": 1}]
    assert precious.read_text() == "precious"


SHOTS = [17, 3, 170]


def history(epochs, loss=1.0):
    """Return records like those of a checkpoint, which has only the shots of the last epoch."""
    found = [{"epoch": epoch, "loss": loss / epoch, "shots": None} for epoch in epochs]
    return [*found[:-1], {**found[-1], "shots": SHOTS}]


def write_history(path, epochs):
    for epoch in epochs:
        append_metrics(path, history([epoch])[0])
    return path.read_bytes()


DAMAGES = {
    "whole": (lambda content: content, [SHOTS] * 4),
    "a torn last line": (lambda content: content[: content.rindex(b"[")], [SHOTS] * 4),
    "missing": (lambda _: b"", [None, None, None, SHOTS]),
    "another history": (lambda c: c.replace(b"0.5", b"0.7"), [SHOTS, None, None, SHOTS]),
    "beyond": (lambda c: c + c.splitlines(keepends=True)[-1], [SHOTS] * 4),
    "a list in a line": (lambda c: b"[1]\n" + c, [None, None, None, SHOTS]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_mending_rewrites_lines_that_differ_from_the_history(tmp_path, damage):
    path, (harm, shots) = tmp_path / "m", DAMAGES[damage]
    path.write_bytes(harm(write_history(path, [1, 2, 3, 4])))
    mend_metrics(path, history([1, 2, 3, 4]))
    found = read_metrics(path)
    assert [record["loss"] for record in found] == [1.0, 0.5, 1.0 / 3, 0.25]
    assert [record["shots"] for record in found] == shots
    assert list(tmp_path.iterdir()) == [path]


def test_mending_removes_lines_after_the_history(tmp_path):
    path = tmp_path / "m"
    whole = write_history(path, [1, 2, 3])
    mend_metrics(path, history([1, 2]))
    assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:2])
    mend_metrics(path, [])
    assert path.read_bytes() == b""


def test_metrics_that_agree_with_the_history_are_not_rewritten(tmp_path):
    path = tmp_path / "m"
    write_history(path, [1, 2, 3])
    before = path.stat()
    mend_metrics(path, history([1, 2, 3]))
    assert path.stat().st_ino == before.st_ino
    assert path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("broken", ["{oops", "[1]", "3"])
def test_error_for_a_damaged_line_names_its_number(tmp_path, broken):
    path = tmp_path / "m"
    path.write_text(f'{{"epoch": 1}}\n{broken}\n{{"epoch": 3}}\n')
    with pytest.raises(InputError, match="line 2"):
        read_metrics(path)


def test_pipe_in_place_of_the_metrics_is_refused(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(InputError, match="a pipe or a device"):
        read_metrics(tmp_path / "metrics.jsonl")
