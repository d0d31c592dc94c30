"""Tests that `make test-gpu` needs only torch, Triton, Numba and pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
# Requirements of hpcfwi and of other tests that the wave package and the GPU tests do not need
MISSING = ("hypothesis", "platformdirs", "pydantic", "segyio", "skimage", "tomli_w", "xdist")

BARE = f"""
import sys
from importlib.machinery import PathFinder

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in {MISSING}:
            return None
        return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Bare
"""


def run(recipe: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a recipe of make without the `MISSING` modules and with default cache directories."""
    (folder / "sitecustomize.py").write_text(BARE)
    settings = [
        f"{name}={value}" for name, value in {"PYTHON": sys.executable, **variables}.items()
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR"):
        environment.pop(name, None)
    command = ["make", "-C", str(ROOT), recipe, *settings]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_gpu_tests_run_on_a_bare_machine(tmp_path: Path) -> None:
    found = run(
        "test-gpu", tmp_path, ARGS="-q -k 'order-2-boundary or single_precision or damaged'"
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "\n3 passed" in found.stdout


def test_engines_have_a_cache_directory_on_a_bare_machine(tmp_path: Path) -> None:
    """A program that prints the directories replaces Python with pytest."""
    program = "".join(
        f"from hpcfwi.wave.engines.{place} import find_disk; print(find_disk().path);"
        for place in ("cpu.engine", "gpu.device")
    )
    found = run("test-gpu", tmp_path, PYTHON=f'{sys.executable} -c "{program}"')
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.splitlines().count(f"/tmp/hpcfwi-{os.getuid()}/hpcfwi") == 2


def test_gpu_benchmark_runs_on_a_bare_machine(tmp_path: Path) -> None:
    found = run("bench-gpu", tmp_path, OUT=str(tmp_path), CASES="256x256x256")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "There is no GPU here" in found.stdout or list(tmp_path.glob("gpu_*.json"))
