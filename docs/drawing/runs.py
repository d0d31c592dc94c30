"""The runs of figures: inputs/small.toml with other keys or other data.

They are in build/figures, where later calls find them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import h5py
import numpy as np
import tomli_w
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
INPUT, RUNS = ROOT / "inputs/small.toml", ROOT / "build/figures"


def invert(name: str, changes: Mapping[str, str], source: Path = INPUT) -> Path:
    """Return the run directory of an input with other keys of [inversion], after the run."""
    run = RUNS / name
    settings = [f"inversion.{key}={value}" for key, value in changes.items()]
    settings += ["output.every=1000", "wave.engine=cpu"]
    command = [sys.executable, "-m", "hpcfwi", "run", str(source), "--output", str(run), "--quiet"]
    for setting in settings:
        command += ["--set", setting]
    subprocess.run(command, check=True, cwd=ROOT)
    return run


def clean_data() -> Path:
    """Return the gathers of the input, which are simulated if they are missing."""
    run = RUNS / "clean"
    if not (run / "observed.h5").exists():
        command = [sys.executable, "-m", "hpcfwi", "forward", str(INPUT), "--output", str(run)]
        subprocess.run([*command, "--engine", "cpu", "--quiet"], check=True, cwd=ROOT)
    return run / "observed.h5"


def record(name: str, change: Callable[[h5py.File], None]) -> Path:
    """Return an input whose gathers are the simulated ones after a change."""
    gathers, source = RUNS / f"{name}.h5", RUNS / f"{name}.toml"
    if not source.exists():
        shutil.copyfile(clean_data(), gathers)
        with h5py.File(gathers, "a") as file:
            change(file)
            # hpcfwi would take the file for data that it has simulated itself
            del file.attrs["fingerprint"], file["digests"]
        tables = tomllib.loads(INPUT.read_text(encoding="utf-8"))
        tables["survey"] = {"file": gathers.name}
        source.write_text(tomli_w.dumps(tables), encoding="utf-8")
    return source


def read_array(path: Path, name: str) -> NDArray[np.float32]:
    """Return an array of a file of a run."""
    with h5py.File(path) as file:
        return np.asarray(file[name][...])
