"""A volume made up of formulas: layers bent over a dome, a fault, gas. No file, and any grid.

`section` has one like it in two dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hpcfwi.datasets.library import ComputedDataset
from hpcfwi.model import Grid

LICENCE = "Made by hpcfwi, and under its licence, the MIT licence"

WATER = 1500.0  # m/s
GRADIENT = 0.25  # 1/s: how the velocity of a layer grows with depth

SEA_FLOOR = 200.0  # m
# Below the sea floor: where each layer begins, before it was folded and faulted (m), and its
# velocity there (m/s)
LAYERS = ((-np.inf, 1750.0), (450.0, 2150.0), (800.0, 1950.0), (1150.0, 2500.0), (1600.0, 2850.0))
CREST = (2150.0, 1850.0)  # m, (y, x)
UPLIFT, RADIUS = 420.0, 700.0  # m
THROW = 180.0  # m
GAS = (700.0, 120.0, 550.0, -450.0)  # m: depth of the middle, half height, radius; m/s


def make_dome(grid: Grid) -> NDArray[np.float32]:
    """P velocity (z, y, x), m/s: water, and layers with a dome, gas under its crest, a fault.

    The fault runs across the corner of small y and large x, and what lies beyond it is lower.
    """
    z, y, x = np.meshgrid(*map(grid.coordinates, range(3)), indexing="ij", sparse=True)
    squared = (y - CREST[0]) ** 2 + (x - CREST[1]) ** 2
    # The fold dies out towards the sea floor, as the youngest layers were laid down over it
    growth = np.clip((z - SEA_FLOOR) / 700.0, 0.0, 1.0)
    fold = UPLIFT * np.exp(-squared / (2.0 * RADIUS**2)) * growth
    beyond = x - 0.5 * y - 0.4 * z > 1450.0
    unfolded = z + fold - np.where(beyond & (z > SEA_FLOOR + 100.0), THROW, 0.0)
    vp = velocity_of(LAYERS, unfolded) + GRADIENT * (unfolded - SEA_FLOOR)
    middle, half, radius, slower = GAS
    gas = squared / radius**2 + ((z - middle) / half) ** 2 < 1.0
    vp = np.where(z <= SEA_FLOOR, WATER, vp + np.where(gas, slower, 0.0))
    return vp.astype(np.float32)


def velocity_of(
    layers: Sequence[tuple[float, float]], unfolded: NDArray[np.float64]
) -> NDArray[np.float64]:
    """At the tops of the layers that cells are in, m/s."""
    return np.select(
        [unfolded >= top for top, _ in reversed(layers)],
        [velocity for _, velocity in reversed(layers)],
    )


DOME = ComputedDataset(
    name="dome",
    title=(
        "A dome in 3-D, P velocity, 2 km deep, 4 km by 4 km, at 25 m: layers folded to a "
        "dome, with gas under its crest, and a fault, under 200 m of water"
    ),
    licence=LICENCE,
    citation="the dome model of hpcfwi",
    grid=Grid((81, 161, 161), (25.0, 25.0, 25.0), (0.0, 0.0, 0.0)),
    formula=make_dome,
)
