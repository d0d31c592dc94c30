"""A fixture for tests that read, damage or replace a model file."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcfwi.storage.models import write_model
from tests.storage.examples import example_model


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """A file of the example's model."""
    path = tmp_path / "model.h5"
    write_model(path, example_model())
    return path
