"""A small survey and model in double precision."""

from __future__ import annotations

import numpy as np
import torch

from hpcfwi.model import Grid, Model
from hpcfwi.survey import Survey
from hpcfwi.wave import Snapshots
from hpcfwi.wave.numerics import ricker

GRID = Grid((12, 20), (10.0, 10.0), (0.0, 0.0))
DT, SAMPLES = 0.002, 60


def make_survey(shots=5, receivers=4, mask=None):
    """Return a survey of shots along x with receivers between grid points."""
    x = np.linspace(20.0, 170.0, shots)
    sources = np.stack([np.full(shots, 20.0), x], axis=1)
    places = np.stack([np.full(receivers, 30.0), np.linspace(15.0, 172.0, receivers)], axis=1)
    wavelet = ricker(25.0, SAMPLES, DT, 0.04).astype(np.float32)
    return Survey(sources, places, wavelet, DT, mask)


def make_model(seed=0, size=100.0, mean=2000.0):
    """Return random velocities about a mean, in m/s."""
    values = np.random.default_rng(seed).normal(mean, size, GRID.shape)
    return Model(GRID, {"vp": torch.from_numpy(values)})


METHOD = {
    "order": 4,
    "boundary": 4,
    "engine": "cpu",
    "max_velocity": 2600.0,
    "history": Snapshots(1),
}
