"""Tests of surfaces in text files."""

from __future__ import annotations

import numpy as np
import pytest

from hpcfwi.errors import InputError
from hpcfwi.storage.models import read_surface


def write(folder, text):
    path = folder / "floor.txt"
    path.write_text(text)
    return path


def refused(path, ndim=2):
    with pytest.raises(InputError) as error:
        read_surface(path, ndim)
    return str(error.value)


def test_rows_are_read_without_comments_and_empty_lines(tmp_path):
    path = write(tmp_path, "# x depth\n\n100 250.5\n  0.0\t2e2  # the quay\n")
    np.testing.assert_array_equal(read_surface(path, 2), [[100.0, 250.5], [0.0, 200.0]])
    path = write(tmp_path, "0 1 2\n0 2 3\n")
    np.testing.assert_array_equal(read_surface(path, 3), [[0.0, 1.0, 2.0], [0.0, 2.0, 3.0]])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 100\n200\n", ("line 2", "found '200'", "expected 2 numbers, x depth, in m")),
        ("0 100 3\n", ("line 1", "found '0 100 3'", "expected 2 numbers")),
        ("# x\n0,100\n", ("line 2", "found '0,100'", "blanks between the numbers")),
        ("0 deep\n", ("line 1", "found '0 deep'")),
        ("0 nan\n", ("line 1", "found '0 nan'")),
        ("0 1e12\n", ("line 1", "found '0 1e12'")),
        ("\n5 1\n0 1\n5 2\n", ("line 4", "line 2 has the same position", "Remove one")),
        ("# nothing\n", ("it has no row", "expected 2 numbers")),
    ],
)
def test_error_for_a_bad_row_names_its_line(text, words, tmp_path):
    message = refused(write(tmp_path, text))
    for word in ("floor.txt", *words):
        assert word in message


def test_binary_or_missing_surface_file_is_refused(tmp_path):
    (tmp_path / "floor.txt").write_bytes(bytes(range(256)))
    assert "line 1" in refused(tmp_path / "floor.txt")
    assert "cannot be read (No such file" in refused(tmp_path / "none.txt")
    assert "this is a directory" in refused(tmp_path)
