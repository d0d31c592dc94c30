"""Tests of .ci/setup.sh on a login node, with stand-ins for pip and mpirun."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ranks import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose pip does nothing, and whose mpirun writes a file `tried` and fails."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    commands = tmp_path / ".venv" / "bin"
    commands.mkdir(parents=True)
    forbidden = f"touch '{tmp_path / 'tried'}'; echo 'not on this node' >&2; exit 1"
    for name, body in {
        "python": f'exec {sys.executable} "$@"',
        "pip": "exit 0",
        "mpirun": forbidden,
        "mpicc": forbidden,
    }.items():
        (commands / name).write_text(f"#!/bin/bash\n{body}\n")
        (commands / name).chmod(0o755)
    return tmp_path


def set_up(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SYSTEM_PACKAGES": "no", "MPIRUN": "mpirun", **variables}
    environment["PATH"] = f"{folder / '.venv' / 'bin'}:{environment['PATH']}"
    return subprocess.run(
        [folder / ".ci" / "setup.sh"], env=environment, capture_output=True, text=True, timeout=120
    )


def test_setup_tries_two_ranks_and_a_failure_names_the_variable(checkout):
    done = set_up(checkout)
    assert done.returncode == 1
    assert (checkout / "tried").exists()
    assert "TRY_MPIRUN=no make setup" in done.stdout


def test_setup_does_not_try_mpirun_if_disabled(checkout):
    done = set_up(checkout, TRY_MPIRUN="no")
    assert done.returncode == 0, done.stderr
    assert not (checkout / "tried").exists()
    assert "No mpirun was tried. In a job, this should say 2 ranks: mpirun -n 2" in done.stdout
