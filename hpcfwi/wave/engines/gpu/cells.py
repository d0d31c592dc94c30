"""Where things lie in the memory of the `gpu` engine: fields, memory variables, points.

A field is (n_z + 2 r planes, n_y + r rows, columns), r being the reach of a stencil; planes have
one row in 2-D. The grid's cells begin in plane r, at the first row and column. Behind them each row
has at least r zeros, up to a multiple of ALIGNMENT, and each plane r rows of zeros: they are also
what lies before the next row and plane. So a stencil needs no checks at the edges, and rows begin
at multiples of 128 bytes.

Memory variables of an axis have the grid's shape, with the axis replaced by that of its slabs:
r zeros, the cells before the model, 2 r zeros, those after it, r zeros.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave import stencil
from hpcfwi.wave.points import Taps
from hpcfwi.wave.problem import Problem

ALIGNMENT = 32
# Offsets in one shot's arrays are 32-bit integers, also those of what is masked in the last block.
MOST_CELLS = 2**31 - 2**16

# Matrices of points: sources and receivers of two batches
REMEMBERED = 4

Axes = tuple[int, int, int]
# From a first cell to before a last one, along each axis.
Box = list[tuple[int, int]]


@dataclass(frozen=True)
class Layout:
    """The padded grid of one shot in memory, in the axes z, y, x; a 2-D grid is one cell wide in y.

    shape: of the grid; before, after: cells of its slabs; radius: half the order.
    """

    shape: Axes
    before: Axes
    after: Axes
    radius: int
    ndim: int

    @property
    def row(self) -> int:
        """Columns of a field."""
        return _round_up(self.shape[2] + self.radius, ALIGNMENT)

    @property
    def field_shape(self) -> Axes:
        rows = self.shape[1] + (self.radius if self.ndim == 3 else 0)
        return self.shape[0] + 2 * self.radius, rows, self.row

    @property
    def size(self) -> int:
        """Cells of a field."""
        return prod(self.field_shape)

    @property
    def strides(self) -> Axes:
        return self.field_shape[1] * self.row, self.row, 1

    @property
    def origin(self) -> int:
        """Offset of the grid's first cell."""
        return self.radius * self.strides[0]

    @property
    def interior(self) -> tuple[Axes, Axes]:
        """The cells that no absorbing term reaches: from the first to before the second."""
        lo, hi = stencil.interior(self.shape, self.before, self.after, self.radius)
        return _three(lo), _three(hi)

    def interior_tiles(self, tile: Axes) -> Axes:
        """How many tiles there are along each axis, which begin at whole lines along x."""
        (lo, hi) = self.interior
        begin = (*lo[:2], lo[2] // ALIGNMENT * ALIGNMENT)
        counts = (max(0, -(-(e - b) // n)) for b, e, n in zip(begin, hi, tile, strict=True))
        return _three(tuple(counts))

    @property
    def absorbs(self) -> bool:
        return any(self.before) or any(self.after)

    @property
    def memory_shapes(self) -> list[Axes]:
        """Of the memory variables of each axis; without places where nothing absorbs."""
        shapes = []
        for axis in range(3):
            shape = [self.shape[0], self.shape[1], _round_up(self.shape[2], ALIGNMENT)]
            width = self.before[axis] + self.after[axis]
            shape[axis] = width + 4 * self.radius if width else 0
            shapes.append((shape[0], shape[1], shape[2]))
        return shapes

    @property
    def memory_size(self) -> int:
        """Places for one memory variable of all axes."""
        return sum(map(prod, self.memory_shapes))

    @cached_property
    def slabs(self) -> NDArray[np.int32]:
        """A row for each axis, with the columns that `kernels.frame` names."""
        table = []
        first = profile = 0
        for axis, n in enumerate(self.shape):
            shape = self.memory_shapes[axis]
            strides = (shape[1] * shape[2], shape[2], 1)
            before, width = self.before[axis], self.before[axis] + self.after[axis]
            table.append([before, width, n, self.strides[axis], first, *strides, profile])
            first += prod(shape)
            profile += n + 2 * self.radius
        return np.array(table, np.int32)

    @property
    def slab_cells(self) -> int:
        """Cells in the slabs of the axis that has most."""
        return max(
            (self.before[axis] + self.after[axis]) * prod(self.shape) // self.shape[axis]
            for axis in range(3)
        )

    @property
    def frame(self) -> list[Box]:
        """The cells outside the interior, as boxes that do not overlap."""
        (lo, hi), boxes = self.interior, []
        for axis, n in enumerate(self.shape):
            for begin, end in ((0, lo[axis]), (hi[axis], n)):
                sides = [*zip(lo[:axis], hi[:axis], strict=True), (begin, end)]
                boxes.append([*sides, *((0, m) for m in self.shape[axis + 1 :])])
        return boxes

    @property
    def perimeter(self) -> list[Box]:
        """The cells of the frame that a stencil in the interior reads."""
        (lo, hi), boxes = self.interior, []
        for axis, n in enumerate(self.shape):
            for begin, end in (
                (max(0, lo[axis] - self.radius), lo[axis]),
                (hi[axis], min(n, hi[axis] + self.radius)),
            ):
                sides = [*zip(lo, hi, strict=True)]
                sides[axis] = (begin, end)
                boxes.append(sides)
        return boxes

    def offsets(self, boxes: list[Box], device: torch.device) -> Tensor:
        """Of the cells in boxes, int32."""
        parts = []
        for box in boxes:
            z, y, x = (
                stride * torch.arange(*side, device=device, dtype=torch.int32)
                for side, stride in zip(box, self.strides, strict=True)
            )
            cells = self.origin + z[:, None, None] + y[:, None] + x
            parts.append(cells.flatten())
        return torch.cat(parts)

    def frame_tiles(self, tile: Axes) -> NDArray[np.int32]:
        """The frame in tiles of that size at most: (tile, side), as `kernels.frame` names sides."""
        found = [np.empty((0, 6), np.int32)]
        for box in self.frame:
            begin, end = np.transpose(box)
            starts = map(np.arange, begin, end, tile)
            first = np.stack(np.meshgrid(*starts, indexing="ij"), axis=-1).reshape(-1, 3)
            last = np.minimum(first + tile, end)
            found.append(np.hstack([first, last]).astype(np.int32))
        return np.concatenate(found)

    def lay_out(self, model: Tensor) -> Tensor:
        """A model (...) on the padded grid as a field (size,)."""
        field = model.new_zeros(self.size)
        self.take_out(field)[...] = model.reshape(self.shape)
        return field

    def take_out(self, fields: Tensor) -> Tensor:
        """The grid (..., n_z, n_y, n_x) of fields (..., size)."""
        n_z, n_y, n_x = self.shape
        fields = fields.reshape(*fields.shape[:-1], *self.field_shape)
        return fields[..., self.radius : self.radius + n_z, :n_y, :n_x]


def layout_of(problem: Problem) -> Layout:
    """Raises ValueError where the grid is too large for the engine."""
    shape, (before, after) = problem.padded_shape, problem.padding
    if problem.speed.ndim == 2:
        shape, before, after = ((v[0], w, v[1]) for v, w in ((shape, 1), (before, 0), (after, 0)))
    layout = Layout(
        _three(shape), _three(before), _three(after), problem.order // 2, problem.speed.ndim
    )
    if max(layout.size, layout.memory_size) >= MOST_CELLS:
        raise ValueError(
            f"the padded grid is {problem.padded_shape}; the gpu engine takes fewer than "
            f"{MOST_CELLS} cells, and as many in the slabs of all axes: use a coarser or smaller "
            "model"
        )
    return layout


@dataclass(frozen=True)
class Sizes:
    """Of a `Matrix`: points, entries of a point, cells, entries of a cell."""

    points: int
    entries: int
    cells: int
    shared: int


@dataclass(frozen=True)
class Matrix:
    """How points are spread over cells: a sparse matrix, by its rows and by its columns.

    cells, weights: (shot, point, entry), offsets and weights of a point; occupied: (shot, row),
    the cells that belong to any point, or -1; points, spreading: (shot, row, entry), the points of
    these cells, and the weights. Unused entries have weight 0. Tables are as wide as a power of 2,
    so that they are the same for most batches of a survey.
    """

    cells: NDArray[np.int32]
    weights: NDArray[np.float64]
    occupied: NDArray[np.int32]
    points: NDArray[np.int32]
    spreading: NDArray[np.float64]

    @property
    def sizes(self) -> Sizes:
        return Sizes(*self.cells.shape[1:], *self.points.shape[1:])


class _Places:
    """Taps that are equal where their numbers are."""

    def __init__(self, taps: Taps) -> None:
        self.taps = taps
        digest = hashlib.sha256()
        for array in (*taps.indices, *taps.factors):
            digest.update(repr(array.shape).encode() + array.tobytes())
        self._digest = digest.digest()

    def __hash__(self) -> int:
        return hash(self._digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Places) and other._digest == self._digest


def spread_out(taps: Taps, layout: Layout, scale: float) -> Matrix:
    """The matrix of taps, its weights times `scale`; cells that occur twice are merged.

    The last few are remembered: the way back has those of the way forward, and batches of a line
    often have the same receivers.
    """
    return _spread_out(_Places(taps), layout, scale)


@lru_cache(maxsize=REMEMBERED)
def _spread_out(places: _Places, layout: Layout, scale: float) -> Matrix:
    taps = places.taps
    index = taps.cells
    if layout.ndim == 2:
        index = np.stack([index[..., 0], np.zeros_like(index[..., 0]), index[..., 1]], axis=-1)
    offsets = layout.origin + index @ np.asarray(layout.strides)
    shots, points = offsets.shape[:2]
    shot, point, tap = np.nonzero(taps.weights)
    key = (shot * points + point) * layout.size + offsets[shot, point, tap]
    key, inverse = np.unique(key, return_inverse=True)
    weight = np.zeros(key.size)
    np.add.at(weight, inverse, taps.weights[shot, point, tap] * scale)
    row, cell = np.divmod(key, layout.size)
    shot, point = np.divmod(row, points)
    cells, weights = _pack_rows(row, shots * points, cell, weight)
    occupied, holder = np.unique(shot * layout.size + cell, return_inverse=True)
    order = np.argsort(holder, kind="stable")
    owner = occupied // layout.size
    capacity = _power(np.bincount(owner, minlength=shots).max(initial=1))
    place = owner * capacity + np.arange(occupied.size) - np.searchsorted(owner, owner)
    columns, spreading = _pack_rows(
        place[holder[order]], shots * capacity, point[order], weight[order]
    )
    filled = np.full(shots * capacity, -1, np.int32)
    filled[place] = occupied % layout.size
    return Matrix(
        cells.reshape(shots, points, -1),
        weights.reshape(shots, points, -1),
        filled.reshape(shots, capacity),
        columns.reshape(shots, capacity, -1),
        spreading.reshape(shots, capacity, -1),
    )


def _pack_rows(
    row: NDArray[np.int64], rows: int, index: NDArray[np.int64], weight: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Entries in the order of their rows as tables (row, entry), as wide as the longest row."""
    width = _power(np.bincount(row, minlength=rows).max(initial=1))
    entry = np.arange(row.size) - np.searchsorted(row, row)
    indices, weights = np.zeros((rows, width), np.int32), np.zeros((rows, width))
    indices[row, entry], weights[row, entry] = index, weight
    return indices, weights


def _power(n: int) -> int:
    """The next power of 2."""
    return 1 << (int(n) - 1).bit_length()


def _round_up(n: int, step: int) -> int:
    return -(-n // step) * step


def _three(values: tuple[int, ...]) -> Axes:
    z, y, x = values
    return z, y, x
