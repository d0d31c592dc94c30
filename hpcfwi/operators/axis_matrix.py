"""A matrix along one axis of an array, by the few entries of its rows, where the array is.

Which means or interpolations it stands for is known to who makes it. There is no sum over threads:
each result is added up by itself, so that its bits are the same on every rank and card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 2**15  # cells


@dataclass(frozen=True)
class AxisMatrix:
    """columns, weights: of the entries of each row, (row, entry); weights beyond its own are 0."""

    columns: NDArray[np.int64]
    weights: NDArray[np.float64]

    @classmethod
    def of(cls, matrix: scipy.sparse.csr_array) -> Self:
        """That of a sparse matrix."""
        counts = np.diff(matrix.indptr)
        rows = np.repeat(np.arange(counts.size), counts)
        entries = np.arange(matrix.nnz) - matrix.indptr[rows]
        columns = np.zeros((counts.size, counts.max()), dtype=np.int64)
        weights = np.zeros(columns.shape)
        # What a row has not is 0 times its first, not times another cell, which may not be finite
        columns[:] = matrix.indices[matrix.indptr[:-1], None]
        columns[rows, entries], weights[rows, entries] = matrix.indices, matrix.data
        return cls(columns, weights)

    def apply(self, values: Tensor, axis: int) -> Tensor:
        """The matrix times the vectors along one of two or three axes, in the array's precision."""
        tables = (np.ascontiguousarray(table.T) for table in (self.columns, self.weights))
        columns, weights = (torch.from_numpy(table).to(values.device) for table in tables)
        like = [-1 if other == axis else 1 for other in range(values.ndim)]
        factors = weights.to(values.dtype).reshape(len(weights), *like)
        shape = [*values.shape[:axis], columns.shape[1], *values.shape[axis + 1 :]]
        total, across = values.new_zeros(shape), 0 if axis else 1
        for block in find_blocks(values, across):
            where = (slice(None),) * across + (block,)
            given, sums = values[where], total[where]
            for column, factor in zip(columns, factors, strict=True):
                # A product and then a sum: `addcmul` may round once or twice, as a cell lies
                sums += given.index_select(axis, column).mul_(factor)
        return total


def find_blocks(values: Tensor, axis: int) -> list[slice]:
    """Parts of an axis: what is computed with so many cells stays in a processor's cache.

    All of it on another device, where each part would be a launch.
    """
    length = values.shape[axis]
    size = max(1, BLOCK * length // max(1, values.numel()))
    if not values.is_cpu:
        size = max(1, length)
    return [slice(first, first + size) for first in range(0, length, size)]
