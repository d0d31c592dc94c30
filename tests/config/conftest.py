"""Fixtures of the tests of the input file."""

from __future__ import annotations

import pytest

from tests.config.examples import MINIMAL


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "input.toml"
    path.write_text(MINIMAL)
    return path
