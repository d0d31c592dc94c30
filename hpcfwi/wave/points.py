"""Sources and receivers on and between grid points.

A point is spread over grid cells by a Kaiser-windowed sinc (Hicks 2002); a point on the grid
is that grid point. Positions are in metres; what engines get is cells and weights.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from math import prod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", np.int64, np.float64)

HALF_WIDTH = 4
# Hicks (2002), table 1: the window's shape for half-width 4 and wavenumbers up to half Nyquist.
KAISER = 6.31
# A point this close to a grid point, in cells, is on it.
ON_GRID = 1e-6


@dataclass(frozen=True)
class Taps:
    """Where points live on the padded grid.

    indices, factors: of each axis, (shot, point, tap), int64 and float64. Every combination of
    taps along the axes is one on the grid, and its weight the product of their factors: 0 where
    a tap has no effect, as outside the grid.
    """

    indices: tuple[NDArray[np.int64], ...]
    factors: tuple[NDArray[np.float64], ...]

    @property
    def across(self) -> Taps:
        """The same but for the last axis."""
        return Taps(self.indices[:-1], self.factors[:-1])

    @cached_property
    def cells(self) -> NDArray[np.int64]:
        """(shot, point, tap, ndim)."""
        return np.stack(self._combine(self.indices), axis=-1)

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """(shot, point, tap)."""
        return reduce(operator.mul, self._combine(self.factors))

    def flat(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """The cells as indices into the flattened padded grid, (shot, point, tap).

        That of a tap without effect is 0.
        """
        cells = np.where(self.weights == 0.0, 0, np.moveaxis(self.cells, -1, 0))
        return np.ravel_multi_index(tuple(cells), shape)

    def _combine(self, values: Sequence[NDArray[Number]]) -> list[NDArray[Number]]:
        """Those of each axis, (shot, point, tap), for every combination of taps."""
        counts = [index.shape[-1] for index in self.indices]
        found = []
        for axis, along in enumerate(values):
            before, after = prod(counts[:axis]), prod(counts[axis + 1 :])
            found.append(np.tile(np.repeat(along, after, axis=-1), before))
        return found


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
    indices, factors = [], []
    for axis in range(len(spacing)):
        index, weight = _spread_along(positions[..., axis] / spacing[axis])
        if axis == 0 and free_surface:
            weight = np.where(index < 0, -weight, weight)
            index = np.abs(index)
        index = index + before[axis]
        indices.append(index)
        factors.append(np.where((index >= 0) & (index < shape[axis]), weight, 0.0))
    return Taps(tuple(indices), tuple(factors))


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
