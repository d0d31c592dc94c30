"""Calls of `hpcfwi convert`."""

from __future__ import annotations

import pytest


@pytest.fixture
def convert(hpcfwi, tmp_path):
    """Convert a file of the test's folder into another there; the path of that."""

    def call(source, target, *options):
        assert hpcfwi("convert", tmp_path / source, tmp_path / target, *options) == 0
        return tmp_path / target

    return call
