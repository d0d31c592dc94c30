"""Tests of the benchmark that runs a job three times and compares the bits."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import job


@pytest.mark.parametrize(("bits", "code"), [(("a", "a", "a"), 0), (("a", "a", "b"), 1)])
def test_job_benchmark_says_whether_bits_are_the_same(bits, code, tmp_path, monkeypatch, capsys):
    left = iter(bits)

    def run(name, ranks, config, settings, folder):
        assert config == Path("small.toml")
        assert settings == ["--set", "inversion.epochs=1"]
        assert folder.name.startswith("job-")
        return job.Job(name, ranks, 3.0, 0.5, next(left))

    monkeypatch.setattr(job, "run_job", run)
    words = ["job.py", "small.toml", "--output", str(tmp_path), "--set", "inversion.epochs=1"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        job.main()
    assert int(ended.value.code) == code
    (file,) = tmp_path.glob("job_*.json")
    numbers = json.loads(file.read_text())
    assert numbers["alike"] == (code == 0)
    assert [each["ranks"] for each in numbers["jobs"]] == [1, 1, 2]
    assert ("NOT the same" in capsys.readouterr().out) == (code == 1)
