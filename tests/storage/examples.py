"""Small surveys, traces and models that are equal on every rank."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hpcfwi.model import Grid, Model
from hpcfwi.survey import Survey

N_SHOTS, N_RECEIVERS, N_SAMPLES = 5, 4, 11


def example_survey(per_shot: bool = False, ndim: int = 2) -> Survey:
    rng = np.random.default_rng(1)
    receivers = (N_SHOTS, N_RECEIVERS, ndim) if per_shot else (N_RECEIVERS, ndim)
    wavelet = (N_SHOTS, N_SAMPLES) if per_shot else (N_SAMPLES,)
    return Survey(
        rng.uniform(0, 1000, (N_SHOTS, ndim)),
        rng.uniform(0, 1000, receivers),
        rng.normal(size=wavelet).astype(np.float32),
        dt=0.002,
    )


def large_survey(n_shots: int) -> Survey:
    """Return a survey whose gathers have a megabyte each."""
    return Survey(
        np.zeros((n_shots, 2)), np.zeros((256, 2)), np.zeros(1024, dtype=np.float32), dt=0.002
    )


def example_traces() -> np.ndarray:
    shape = (N_SHOTS, N_RECEIVERS, N_SAMPLES)
    return np.random.default_rng(2).normal(size=shape).astype(np.float32)


def example_model() -> Model:
    vp = np.random.default_rng(3).uniform(1500, 4500, (6, 8)).astype(np.float32)
    return Model(Grid((6, 8), (20.0, 25.0), (100.0, -50.0)), {"vp": vp})


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def epochs(directory):
    return [int(path.stem.removeprefix("epoch_")) for path in sorted(directory.iterdir())]


@contextmanager
def mounted(place: Path, kind: str, *options: str) -> Iterator[Path]:
    """Mount a new file system of a kind at a new directory; skip the test where it cannot be."""
    place.mkdir()
    try:
        mount = ["mount", "-t", kind, *options, "none", str(place)]
        done = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        done = False
    if not done:
        pytest.skip("file systems cannot be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)
