"""The inputs of the project: what a newcomer types works where there is nothing else."""

from __future__ import annotations

import json
from pathlib import Path

SMALL = Path(__file__).parent.parent / "inputs" / "small.toml"


def test_the_first_try_needs_no_file_and_finds_a_better_model(hpcfwi, tmp_path, monkeypatch):
    monkeypatch.setenv("HPCFWI_DATA", str(tmp_path / "nowhere"))
    run = tmp_path / "run"
    assert hpcfwi("run", SMALL, "--set", "inversion.epochs=3", "--output", run, "--quiet") == 0
    lines = (run / "metrics.jsonl").read_text().splitlines()
    errors = [json.loads(line)["model_error"] for line in lines]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.9 * errors[0]
