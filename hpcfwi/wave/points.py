"""Sources and receivers on and between grid points.

A point is spread over grid cells by a Kaiser-windowed sinc (Hicks 2002); a point on the grid
is that grid point. Positions are in metres; what engines get is cells and weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HALF_WIDTH = 4
# Hicks (2002), table 1: the window's shape for half-width 4 and wavenumbers up to half Nyquist.
KAISER = 6.31
# A point this close to a grid point, in cells, is on it.
ON_GRID = 1e-6


@dataclass(frozen=True)
class Taps:
    """Where points live on the padded grid.

    cells: (shot, point, tap, ndim) int64, indices; weights: (shot, point, tap) float64.
    A tap without effect has weight 0 and the cell 0.
    """

    cells: NDArray[np.int64]
    weights: NDArray[np.float64]

    def flat(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """The cells as indices into the flattened padded grid, (shot, point, tap)."""
        return np.ravel_multi_index(tuple(np.moveaxis(self.cells, -1, 0)), shape)


def spread(
    positions: NDArray[np.float64],
    spacing: tuple[float, ...],
    before: tuple[int, ...],
    shape: tuple[int, ...],
    free_surface: bool,
) -> Taps:
    """Taps of positions (shot, point, ndim), in m from the model's first point.

    before: cells of padding in front of the model along each axis; shape: the padded grid's.
    Under a free surface, what falls above it comes back from below with the opposite sign
    (Hicks 2002, eq. 9). What falls outside the padded grid is dropped.
    """
    ndim = len(spacing)
    cells = np.zeros((*positions.shape[:-1], 1, 0), dtype=np.int64)
    weights = np.ones((*positions.shape[:-1], 1))
    for axis in range(ndim):
        index, weight = _spread_along(positions[..., axis] / spacing[axis])
        if axis == 0 and free_surface:
            weight = np.where(index < 0, -weight, weight)
            index = np.abs(index)
        index = index + before[axis]
        inside = (index >= 0) & (index < shape[axis])
        index, weight = np.where(inside, index, 0), np.where(inside, weight, 0.0)
        old, new = weights.shape[-1], weight.shape[-1]
        weights = (weights[..., :, None] * weight[..., None, :]).reshape(*weight.shape[:-1], -1)
        cells = np.concatenate(
            [np.repeat(cells, new, axis=-2), np.tile(index, (1, 1, old))[..., None]], axis=-1
        )
    return Taps(cells, weights)


def _spread_along(
    position: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Grid indices and weights (shot, point, tap) of positions (shot, point) in cells."""
    nearest = np.rint(position)
    on_grid = np.abs(position - nearest) < ON_GRID
    if on_grid.all():
        return nearest.astype(np.int64)[..., None], np.ones((*position.shape, 1))
    first = np.where(on_grid, nearest, np.floor(position)).astype(np.int64)
    index = first[..., None] + np.arange(1 - HALF_WIDTH, HALF_WIDTH + 1)
    distance = index - position[..., None]
    window = np.i0(KAISER * np.sqrt(np.maximum(0.0, 1.0 - (distance / HALF_WIDTH) ** 2)))
    weight = np.sinc(distance) * window / np.i0(KAISER)
    exact = (index == nearest[..., None]).astype(np.float64)
    return index, np.where(on_grid[..., None], exact, weight)
