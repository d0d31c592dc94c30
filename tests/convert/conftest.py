"""A fixture that calls `hpcfwi convert`."""

from __future__ import annotations

import pytest


@pytest.fixture
def convert(hpcfwi, tmp_path):
    """A function that converts a file in `tmp_path` to another and returns its path."""

    def call(source, target, *options):
        assert hpcfwi("convert", tmp_path / source, tmp_path / target, *options) == 0
        return tmp_path / target

    return call
