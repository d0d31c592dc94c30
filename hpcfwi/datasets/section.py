"""A section made up of formulas: layers bent over a dome, a fault, gas. No file, and any grid.

The earth is of the kind of that of `dome`, twice as large.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcfwi.datasets.dome import GRADIENT, LICENCE, WATER, velocity_of
from hpcfwi.datasets.library import ComputedDataset
from hpcfwi.model import Grid

SEA_FLOOR = 300.0  # m
# As in `dome`: where each layer begins, m, and its velocity there, m/s
LAYERS = (
    (-np.inf, 1750.0),
    (700.0, 2150.0),
    (950.0, 2050.0),
    (1300.0, 2600.0),
    (1750.0, 2300.0),
    (2050.0, 2850.0),
    (2450.0, 3200.0),
    (2900.0, 3700.0),
)
CREST = 3900.0  # m
UPLIFT, RADIUS = 650.0, 1100.0  # m
WAVES = (80.0, 4000.0)  # m: height and length of the gentle folds beside the dome
# m, where it would meet the sea floor; how far it goes on in x for a metre down
FAULT = (6900.0, 0.6)
THROW = 400.0  # m
GAS = (3, 1250.0, -900.0)  # in which layer; m, down to where; m/s


def make_section(grid: Grid) -> NDArray[np.float32]:
    """P velocity (z, x), m/s: water, and layers with a dome, gas under its crest, a fault.

    The fault dips towards large x, where the layers have gone down: the more, the older they are.
    The gas fills the highest part of one layer, down to a level.
    """
    z, x = np.meshgrid(*map(grid.coordinates, range(2)), indexing="ij", sparse=True)
    growth = np.clip((z - SEA_FLOOR) / 1200.0, 0.0, 1.0)
    dome = UPLIFT * np.exp(-((x - CREST) ** 2) / (2.0 * RADIUS**2))
    height, length = WAVES
    start, slope = FAULT
    beyond = x - slope * (z - SEA_FLOOR) > start
    lift = dome + height * np.sin(2.0 * np.pi * x / length) - np.where(beyond, THROW, 0.0)
    unfolded = z + growth * lift
    vp = velocity_of(LAYERS, unfolded) + GRADIENT * (unfolded - SEA_FLOOR)
    layer, contact, slower = GAS
    in_layer = (unfolded >= LAYERS[layer][0]) & (unfolded < LAYERS[layer + 1][0])
    gas = in_layer & (z < contact) & ~beyond
    vp = np.where(z <= SEA_FLOOR, WATER, vp + np.where(gas, slower, 0.0))
    return vp.astype(np.float32)


SECTION = ComputedDataset(
    name="dome-section",
    title=(
        "A section of a dome, P velocity, 12 km by 3 km, at 25 m: layers folded to a dome, with "
        "gas under its crest, and a fault, under 300 m of water"
    ),
    licence=LICENCE,
    citation="the dome section of hpcfwi",
    grid=Grid((121, 481), (25.0, 25.0), (0.0, 0.0)),
    formula=make_section,
)
