"""Two computed models, a dome in 3-D and a 2-D section of another dome.

Both have layers, a fault and gas, which are defined by formulas. The models need no file, and can
be computed on any grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hpcfwi.datasets.library import Dataset
from hpcfwi.model import Grid

LICENCE = "Made by hpcfwi, and under its licence, the MIT licence"

WATER = 1500.0  # m/s
GRADIENT = 0.25  # 1/s, increase of the velocity with depth within a layer

SEA_FLOOR = 200.0  # m
# The layers below the sea floor: depth of the top before folding and faulting (m), and velocity
# (m/s), to which GRADIENT times the depth below the sea floor is added
LAYERS = ((-np.inf, 1750.0), (450.0, 2150.0), (800.0, 1950.0), (1150.0, 2500.0), (1600.0, 2850.0))
CREST = (2150.0, 1850.0)  # m, (y, x)
UPLIFT, RADIUS = 420.0, 700.0  # m
THROW = 180.0  # m
GAS = (700.0, 120.0, 550.0, -450.0)  # depth of the centre, half height, radius, m; change, m/s


def make_dome(grid: Grid) -> NDArray[np.float32]:
    """Return the P velocity (z, y, x), m/s, of the dome with gas under its crest and a fault.

    The fault cuts off the corner of small y and large x, where the layers are lower.
    """
    z, y, x = np.meshgrid(*map(grid.coordinates, range(3)), indexing="ij", sparse=True)
    squared = (y - CREST[0]) ** 2 + (x - CREST[1]) ** 2
    # The fold vanishes towards the sea floor, because the youngest layers were deposited after it.
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
    """Return the velocity of the layer of each cell, without its increase with depth, m/s.

    unfolded: depths of the cells before folding and faulting, m.
    """
    return np.select(
        [unfolded >= top for top, _ in reversed(layers)],
        [velocity for _, velocity in reversed(layers)],
    )


DOME = Dataset(
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


SECTION_SEA_FLOOR = 300.0  # m
# Depth of the top of each layer (m) and its velocity (m/s), like LAYERS
SECTION_LAYERS = (
    (-np.inf, 1750.0),
    (700.0, 2150.0),
    (950.0, 2050.0),
    (1300.0, 2600.0),
    (1750.0, 2300.0),
    (2050.0, 2850.0),
    (2450.0, 3200.0),
    (2900.0, 3700.0),
)
SECTION_CREST = 3900.0  # m
SECTION_UPLIFT, SECTION_RADIUS = 650.0, 1100.0  # m
WAVES = (80.0, 4000.0)  # m, amplitude and wavelength of gentle folds of the whole section
# x (m) of the fault at the depth of the sea floor, and its change in x per metre of depth
FAULT = (6900.0, 0.6)
SECTION_THROW = 400.0  # m
SECTION_GAS = (3, 1250.0, -900.0)  # index of the layer; depth of the base, m; change, m/s


def make_section(grid: Grid) -> NDArray[np.float32]:
    """Return the P velocity (z, x), m/s, of the section, with gas under its crest and a fault.

    The fault dips towards large x. Beyond it the layers are lower, older ones by more. The gas
    fills the highest part of one layer, down to a constant depth.
    """
    z, x = np.meshgrid(*map(grid.coordinates, range(2)), indexing="ij", sparse=True)
    growth = np.clip((z - SECTION_SEA_FLOOR) / 1200.0, 0.0, 1.0)
    dome = SECTION_UPLIFT * np.exp(-((x - SECTION_CREST) ** 2) / (2.0 * SECTION_RADIUS**2))
    height, length = WAVES
    start, slope = FAULT
    beyond = x - slope * (z - SECTION_SEA_FLOOR) > start
    lift = dome + height * np.sin(2.0 * np.pi * x / length) - np.where(beyond, SECTION_THROW, 0.0)
    unfolded = z + growth * lift
    vp = velocity_of(SECTION_LAYERS, unfolded) + GRADIENT * (unfolded - SECTION_SEA_FLOOR)
    layer, contact, slower = SECTION_GAS
    in_layer = (unfolded >= SECTION_LAYERS[layer][0]) & (unfolded < SECTION_LAYERS[layer + 1][0])
    gas = in_layer & (z < contact) & ~beyond
    vp = np.where(z <= SECTION_SEA_FLOOR, WATER, vp + np.where(gas, slower, 0.0))
    return vp.astype(np.float32)


DOME_SECTION = Dataset(
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
