"""Small inversions that run in a short time.

The 2-D example has two layers and a lens, ten shots, and 30 x 60 points. The 3-D example has two
layers and a ball, six shots, and 12 x 13 x 14 points.
"""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from hpcfwi.config import load_config
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.inversion.preparation import prepare
from hpcfwi.model import Grid, Model
from hpcfwi.parallel.context import Context
from hpcfwi.report.text import read_metrics
from hpcfwi.storage.models import read_model, write_model
from hpcfwi.wave import acoustic

N_SHOTS, N_RECEIVERS, N_SAMPLES = 10, 30, 150
WATER = 60.0  # m


def true_model() -> Model:
    """Return water above two layers, with a fast lens in the lower one."""
    grid = Grid((30, 60), (20.0, 20.0), (0.0, 0.0))
    z, x = np.meshgrid(grid.coordinates(0), grid.coordinates(1), indexing="ij")
    vp = np.where(z <= WATER, 1500.0, np.where(z < 300.0, 2000.0, 2500.0))
    vp[((z - 400.0) / 80.0) ** 2 + ((x - 600.0) / 200.0) ** 2 < 1.0] = 3000.0
    return Model(grid, {"vp": vp.astype(np.float32)})


def write_input(folder: Path, changes: dict[str, Any] | None = None, name: str = "input") -> Path:
    """Write a config and the model that it names, and return the path of the config.

    `changes` maps section.key to a value, or to None to remove the key. The run directory is the
    folder "run".
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "true.h5").exists():
        write_model(folder / "true.h5", true_model())
    tables: dict[str, Any] = {
        "model": {"file": "true.h5", "initial": {"smooth": 80.0}},
        "survey": {
            "sources": {"count": N_SHOTS, "depth": 20.0},
            "receivers": {"count": N_RECEIVERS, "depth": 40.0},
            "wavelet": {"kind": "ricker", "frequency": 8.0, "delay": 0.12},
            "dt": 0.004,
            "duration": 0.6,
        },
        "wave": {"engine": "cpu", "boundary": 10, "order": 4},
        "inversion": {
            "epochs": 5,
            "batch": 3,
            "optimizer": {"name": "adam", "lr": 20.0},
            "fixed_above": WATER,
        },
        "output": {"directory": str(folder / "run"), "every": 5, "checkpoint": 2},
    }
    for key, value in (changes or {}).items():
        *sections, last = key.split(".")
        table = tables
        for section in sections:
            table = table.setdefault(section, {})
        if value is None:
            table.pop(last, None)
        else:
            table[last] = value
    path = folder / f"{name}.toml"
    path.write_text(tomli_w.dumps(tables), encoding="utf-8")
    return path


def prepare_alone(path: Path, migrates: bool = False) -> Experiment:
    """Return the experiment of a config, prepared by a single rank."""
    return prepare(load_config(path, (), migrates), Context.alone())


def prepared(
    folder: Path, changes: dict[str, Any] | None = None, name: str = "input"
) -> Experiment:
    """Return the experiment of an input that `write_input` writes, prepared by a single rank."""
    return prepare_alone(write_input(folder, changes, name))


def read_vp(run: Path) -> np.ndarray:
    """Return the P velocity of the result in a run directory."""
    return read_model(run / "model.h5")["vp"]


def read_history(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of the epochs of a run, in their order."""
    return read_metrics(run / "metrics.jsonl")


def read_metric(run: Path, key: str) -> list[Any]:
    """Return the values of one of the metrics in the epochs of a run."""
    return [entry[key] for entry in read_history(run)]


def true_volume() -> Model:
    """Return water above two layers, with a fast ball in the lower one, off the middle of y."""
    grid = Grid((12, 13, 14), (40.0, 40.0, 40.0), (0.0, 0.0, 0.0))
    z, y, x = np.meshgrid(*map(grid.coordinates, range(3)), indexing="ij")
    vp = np.where(z <= WATER, 1500.0, np.where(z < 240.0, 1800.0, 2200.0))
    vp[(z - 300.0) ** 2 + (y - 320.0) ** 2 + (x - 260.0) ** 2 < 100.0**2] = 2700.0
    return Model(grid, {"vp": vp.astype(np.float32)})


def write_volume(folder: Path, changes: dict[str, Any] | None = None) -> Path:
    """Write a config of the 3-D example, as `write_input` does of the 2-D one."""
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder / "true.h5", true_volume())
    volume = {
        "survey.sources": {"count": [2, 3], "depth": 40.0},
        "survey.receivers": {"count": [5, 7], "depth": 40.0},
        "survey.dt": 0.006,
        "survey.duration": 0.36,
        "wave": {"engine": "eager", "boundary": 4, "order": 4},
        "inversion.epochs": 2,
        "inversion.batch": 2,
        "inversion.optimizer.eps": 1e-22,
        "output.every": 2,
    }
    return write_input(folder, {**volume, **(changes or {})})


def simulate_as(simulator, vp, dt, *shots):
    """Return the traces of `acoustic` with the grid and the method of a simulator.

    shots: wavelet, sources and receivers.
    """
    method = vars(simulator.method)
    options = {name: method[name] for name in signature(acoustic).parameters if name in method}
    return acoustic(vp, simulator.grid.spacing, dt, *shots, **options)
