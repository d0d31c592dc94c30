import errno
import json
import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcfwi.errors import InputError, WriteFailure
from hpcfwi.report.page import append_metrics, mend_metrics, read_metrics

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
def test_a_last_line_cut_anywhere_is_left_out_and_mended(folder, lost):
    path = folder / "torn.jsonl"
    path.unlink(missing_ok=True)
    write_epochs(path, 3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    epochs = [record["epoch"] for record in read_metrics(path)]
    # Without only its line end the last record is still whole.
    assert epochs == ([1, 2, 3] if lost == 1 else [1, 2])

    mend_metrics(path, read_metrics(path)[:2])
    append_metrics(path, {"epoch": 3})
    assert [record["epoch"] for record in read_metrics(path)] == [1, 2, 3]


def test_mending_keeps_the_records_given_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "m"
    write_epochs(path, 5)
    kept = path.read_text().splitlines()[:3]
    mend_metrics(path, read_metrics(path)[:3])
    assert path.read_text().splitlines() == kept
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_told_and_stays_as_it_was(tmp_path, monkeypatch):
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


def test_lines_do_not_go_through_a_planted_link(tmp_path):
    path, precious = tmp_path / "m", tmp_path / "precious"
    precious.write_text("precious")
    path.symlink_to(precious)
    with pytest.raises(InputError, match="m: this is a symbolic link"):
        append_metrics(path, {"epoch": 1})
    mend_metrics(path, [{"epoch": 1}])
    assert read_metrics(path) == [{"epoch": 1}]
    assert precious.read_text() == "precious"


def find_nothing():
    pytest.fail("what is in the file already was found again")


def with_shots(find, epochs, loss=1.0):
    """Records whose shots are found by a function."""
    return [{"epoch": epoch, "loss": loss / epoch, "shots": find, "failed": []} for epoch in epochs]


SHOTS = [17, 3, 170]


def keep(content):
    return content


def lose(content):
    return content[: content.rindex(b"[")]


def lose_all(_content):
    return b""


def alter_second(content):
    return content.replace(b"0.5", b"0.7")


def go_beyond(content):
    return content + content.splitlines(keepends=True)[-1]


@pytest.mark.parametrize(
    ("damage", "found"),
    [(keep, 0), (lose, 1), (lose_all, 4), (alter_second, 3), (go_beyond, 0)],
    ids=["whole", "a torn last line", "missing", "of another history", "beyond"],
)
def test_mending_finds_what_is_missing_and_nothing_else(tmp_path, damage, found):
    path, calls = tmp_path / "m", []

    def find():
        calls.append(1)
        return np.array(SHOTS)

    mend_metrics(path, with_shots(find, [1, 2, 3, 4]))
    whole = path.read_bytes()
    assert [record["shots"] for record in read_metrics(path)] == [SHOTS] * 4
    calls.clear()
    path.write_bytes(damage(whole))
    mend_metrics(path, with_shots(find, [1, 2, 3, 4]))
    assert path.read_bytes() == whole
    assert len(calls) == found
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_another_history_is_made_anew_and_one_that_goes_on_is_cut(tmp_path):
    path = tmp_path / "m"
    mend_metrics(path, with_shots(lambda: SHOTS, [1, 2, 3]))
    whole = path.read_bytes()
    mend_metrics(path, with_shots(find_nothing, [1, 2]))
    assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:2])
    mend_metrics(path, with_shots(lambda: SHOTS[:1], [1, 2, 3], loss=2.0))
    assert [record["loss"] for record in read_metrics(path)] == [2.0, 1.0, 2.0 / 3]
    mend_metrics(path, [])
    assert path.read_bytes() == b""


@pytest.mark.parametrize("written", [b"null", b'["a"]', b"[1, {}]", b"[1"], ids=bytes.decode)
def test_what_is_in_the_place_of_shots_must_be_a_list_of_numbers(tmp_path, written):
    path = tmp_path / "m"
    mend_metrics(path, with_shots(lambda: SHOTS, [1]))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"[17, 3, 170]", written))
    mend_metrics(path, with_shots(lambda: SHOTS, [1]))
    assert path.read_bytes() == whole


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
