import errno
import json
import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcfwi.errors import InputError, WriteFailure
from hpcfwi.report.metrics import append_metrics, read_metrics, write_metrics

values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())
records = st.dictionaries(st.text(), values | st.lists(values, max_size=3), max_size=5)


def as_json_says_it(value):
    if isinstance(value, list):
        return [as_json_says_it(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("läufe mit Leerzeichen")


@settings(max_examples=40)
@given(written=st.lists(records, max_size=5))
def test_what_is_appended_is_read_back_with_null_for_what_is_not_finite(folder, written):
    path = folder / "metrics.jsonl"
    path.unlink(missing_ok=True)
    for record in written:
        append_metrics(path, record)
    expected = [{key: as_json_says_it(value) for key, value in r.items()} for r in written]
    assert read_metrics(path) == expected


def test_every_line_is_strict_json(tmp_path):
    append_metrics(tmp_path / "m", {"loss": float("nan"), "best": np.float32(np.inf)})

    def refuse(word):
        raise AssertionError(word)

    assert json.loads((tmp_path / "m").read_text(), parse_constant=refuse) == {
        "loss": None,
        "best": None,
    }


def test_numpy_numbers_and_arrays_are_written_as_plain_ones(tmp_path):
    append_metrics(tmp_path / "m", {"loss": np.float32(0.5), "shots": np.array([1, 2])})
    assert read_metrics(tmp_path / "m") == [{"loss": 0.5, "shots": [1, 2]}]


def test_a_file_that_is_not_there_holds_no_records(tmp_path):
    assert read_metrics(tmp_path / "m") == []


def write_epochs(path, n):
    for epoch in range(1, n + 1):
        append_metrics(path, {"epoch": epoch, "loss": 1.0 / epoch})


@settings(max_examples=25)
@given(lost=st.integers(min_value=1, max_value=20))
def test_a_last_line_cut_anywhere_is_left_out_and_mended_by_writing_anew(folder, lost):
    path = folder / "torn.jsonl"
    path.unlink(missing_ok=True)
    write_epochs(path, 3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    epochs = [record["epoch"] for record in read_metrics(path)]
    # Without only its line end the last record is still whole.
    assert epochs == ([1, 2, 3] if lost == 1 else [1, 2])

    write_metrics(path, read_metrics(path)[:2])
    append_metrics(path, {"epoch": 3})
    assert [record["epoch"] for record in read_metrics(path)] == [1, 2, 3]


def test_writing_anew_keeps_the_records_given_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "m"
    write_epochs(path, 5)
    kept = path.read_text().splitlines()[:3]
    write_metrics(path, read_metrics(path)[:3])
    assert path.read_text().splitlines() == kept
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_told_and_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "m"
    write_epochs(path, 2)

    def no_space(_descriptor):
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(WriteFailure, match=r"m: cannot be written .No space left"):
        write_metrics(path, [])
    assert len(read_metrics(path)) == 2
    assert list(tmp_path.iterdir()) == [path]
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match="this is a directory"):
        append_metrics(path, {})


def test_lines_do_not_go_through_a_planted_link(tmp_path):
    path, precious = tmp_path / "m", tmp_path / "precious"
    precious.write_text("precious")
    path.symlink_to(precious)
    with pytest.raises(InputError, match="m: this is a symbolic link"):
        append_metrics(path, {"epoch": 1})
    write_metrics(path, [{"epoch": 1}])
    assert read_metrics(path) == [{"epoch": 1}]
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("broken", ["{oops", "[1]", "3"])
def test_a_broken_line_in_the_middle_is_named(tmp_path, broken):
    path = tmp_path / "m"
    path.write_text(f'{{"epoch": 1}}\n{broken}\n{{"epoch": 3}}\n')
    with pytest.raises(InputError, match="line 2"):
        read_metrics(path)


def test_a_pipe_in_their_place_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(InputError, match="a pipe or a device"):
        read_metrics(tmp_path / "metrics.jsonl")
