"""The inputs of the project: what a newcomer types works where there is nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hpcfwi import cli

ROOT = Path(__file__).parent.parent


def test_the_first_try_needs_no_file_and_finds_a_better_model(tmp_path, monkeypatch):
    monkeypatch.setenv("HPCFWI_DATA", str(tmp_path / "nowhere"))
    settings = ["--set", "inversion.epochs=3", "--output", str(tmp_path / "run"), "--quiet"]
    monkeypatch.setattr(sys, "argv", ["hpcfwi", "run", str(ROOT / "inputs/small.toml"), *settings])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    errors = [json.loads(line)["model_error"] for line in lines]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.9 * errors[0]
