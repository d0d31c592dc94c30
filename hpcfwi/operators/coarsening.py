"""A coarser grid for waves: what they see of a model, and the transpose for what they say of it.

The model that is inverted for stays on its own grid. As waves see a linear function of it, the
gradient is exactly that of the misfit with respect to the finer model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np
import scipy
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.model import Grid, Model
from hpcfwi.operators.axis_matrix import AxisMatrix
from hpcfwi.wave.numerics import FEWEST_POINTS


@dataclass(frozen=True)
class Coarsening:
    """From a grid to a coarser one of the same extent."""

    fine: Grid
    coarse: Grid

    @classmethod
    def to(cls, fine: Grid, spacing: float) -> Coarsening | None:
        """To points at most `spacing` (m) apart; None where that is no coarser."""
        shape = tuple(
            min(n, max(FEWEST_POINTS, ceil((n - 1) * h / spacing - 1e-6) + 1))
            for n, h in zip(fine.shape, fine.spacing, strict=True)
        )
        if shape == fine.shape:
            return None
        apart = tuple(
            (n - 1) * h / (m - 1) for n, m, h in zip(fine.shape, shape, fine.spacing, strict=True)
        )
        return cls(fine, Grid(shape, apart, fine.origin))

    def restrict(self, model: Model[Tensor]) -> Model[Tensor]:
        """A model on the coarser grid: each cell a weighted mean of those around it.

        So that its transpose interpolates, and leaves no pattern of the finer grid in a gradient.
        """
        return Model(self.coarse, model.map(lambda a: _apply(self._means, a)).arrays)

    def transpose(self, gradient: Model[Tensor]) -> Model[Tensor]:
        """A gradient with respect to the finer model, from that on the coarser grid."""
        return Model(self.fine, gradient.map(lambda a: _apply(self._transposes, a)).arrays)

    def refine(self, field: Tensor) -> Tensor:
        """A field on the coarser grid, interpolated linearly on the finer one."""
        return _apply(self._spreads, field)

    @cached_property
    def _means(self) -> list[AxisMatrix]:
        return [AxisMatrix.of(matrix) for matrix in self._matrices]

    @cached_property
    def _transposes(self) -> list[AxisMatrix]:
        return [AxisMatrix.of(matrix.T.tocsr()) for matrix in self._matrices]

    @cached_property
    def _spreads(self) -> list[AxisMatrix]:
        return [AxisMatrix.of(matrix) for matrix in self._interpolations]

    @cached_property
    def _matrices(self) -> list[scipy.sparse.csr_array]:
        """Of each axis: means, weighted as the interpolation back would spread a coarse value."""
        found = []
        for spread in self._interpolations:
            weights = scipy.sparse.csr_array(spread.T)
            found.append(scipy.sparse.csr_array(weights / weights.sum(axis=1)[:, None]))
        return found

    @cached_property
    def _interpolations(self) -> list[scipy.sparse.csr_array]:
        return [
            _interpolate(np.linspace(0.0, m - 1.0, n), m)
            for n, m in zip(self.fine.shape, self.coarse.shape, strict=True)
        ]


def _interpolate(places: NDArray[np.float64], n: int) -> scipy.sparse.csr_array:
    """Linear interpolation of n values at places counted in them: (place, n)."""
    left = np.minimum(places.astype(int), n - 2)
    share = places - left
    weights, columns = np.stack([1.0 - share, share]), np.stack([left, left + 1])
    rows = np.broadcast_to(np.arange(places.size), columns.shape)
    entries = (weights.ravel(), (rows.ravel(), columns.ravel()))
    return scipy.sparse.csr_array(entries, shape=(places.size, n))


def _apply(matrices: list[AxisMatrix], field: Tensor) -> Tensor:
    """A matrix along each axis, in double precision."""
    values = field.double()
    for axis, matrix in enumerate(matrices):
        values = matrix.apply(values, axis)
    return values.to(field.dtype)
