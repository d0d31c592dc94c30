"""The memory layout of the `gpu` engine: the arrays and tables of a chunk.

A field has n_z + 2 r planes of n_y + r rows (one row in 2-D), where r is the radius of the
stencils. The cells of the grid begin in plane r, at the first row and column. They are followed by
at least r zeros in each row, which fill it up to a multiple of ALIGNMENT cells, and by r rows of
zeros in each plane. These zeros are also the margin before the next row and plane. Stencils
therefore need no checks at the edges, and rows begin at multiples of 128 bytes.

The grid of a layer (`wave.layers`) begins in plane HALO. The HALO planes before and after it are
those of its neighbours, which are contiguous in a field, and zeros at the ends of the whole grid.

The memory variables of an axis have the shape of the grid, except along this axis, where they have
r zeros, the absorbing cells before the model, 2 r zeros, the absorbing cells after it, and r zeros.

Chunks with the same `Blueprint` use the same arrays, one after the other. This module does not
need Triton.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import lcm, prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave import numerics
from hpcfwi.wave.engines.gpu.device import STRETCH
from hpcfwi.wave.history import (
    Boundary,
    History,
    Recomputation,
    Recompute,
    Snapshots,
    sampled_steps,
    sampling_offset,
)
from hpcfwi.wave.layers import HALO, Halo, Layer, find_layers
from hpcfwi.wave.numerics import Taps
from hpcfwi.wave.problem import Problem

FORMATS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}
# Upper limits: number of captured loops of a sweep, each with stretches of two lengths; number of
# launches of a step; bytes of the card's memory that a captured launch takes.
LOOPS, LAUNCHES, ARGUMENTS = 6, 9, 4096
# Largest number of stored cells that a program handles, and that share one scale.
KEPT = 256
# Formats with scales, and the value to which the largest magnitude of the cells of a scale is
# scaled.
UNITS = {torch.float16: 1, torch.int8: 127}


@dataclass(frozen=True)
class Blueprint:
    """The properties of a chunk of shots that determine the arrays and the launches of a sweep.

    steps: samples of a trace; sources, receivers: sizes of their matrices; keeps: True if a
    history is stored for a backward pass; illuminates: True if illuminations are wanted.
    """

    layout: Layout
    device: torch.device
    dtype: torch.dtype
    free_surface: bool
    shots: int
    steps: int
    sources: Sizes
    receivers: Sizes
    history: History
    keeps: bool
    illuminates: bool

    @property
    def interval(self) -> int:
        assert self.history.interval is not None, "resolved by simulation.set_up"
        return self.history.interval

    @property
    def rebuilds(self) -> bool:
        """True if the backward pass rebuilds the field from its perimeter."""
        return self.keeps and isinstance(self.history, Boundary)

    @property
    def recomputes(self) -> bool:
        """True if the backward pass simulates again, segment by segment."""
        return self.keeps and isinstance(self.history, Recompute)

    @property
    def period(self) -> int:
        """Number of steps after which launches repeat.

        Two fields alternate, and every `interval`-th step is sampled.
        """
        return lcm(2, self.interval)

    @property
    def recomputation(self) -> Recomputation:
        """The order in which states are stored and segments simulated again, before a pass."""
        history = self.history if self.keeps else Snapshots()
        return Recomputation(history, self.steps - 1, self.interval)

    @property
    def kept_as(self) -> torch.dtype:
        """The type of stored fields."""
        return FORMATS.get(self.history.format, self.dtype)

    @property
    def keeps_straight(self) -> bool:
        """True if kernels write whole samples unchanged to their slot."""
        return self.keeps and not self.rebuilds and self.kept_as == self.dtype

    def is_sampled(self, n: int) -> bool:
        """Return True if the image is made from step n."""
        return self.keeps and n % self.interval == sampling_offset(self.interval)

    def list_arrays(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return the shape and the type of each array by name."""
        layout, shots, steps = self.layout, self.shots, self.steps
        keeps, rebuilds, again = map(int, (self.keeps, self.rebuilds, self.recomputes))
        lit = int(self.keeps and self.illuminates)
        shapes: dict[str, tuple[int, ...]] = {
            "v2dt2": (layout.size,),
            "fields": (2, shots, layout.size),
            "memory": (2 + keeps, shots, layout.memory_size),
            "u": (keeps - self.keeps_straight, shots, layout.size),
            "image": (keeps, shots, layout.size),
            "energies": (2 * lit, shots, layout.size),
            "last": (2 * rebuilds, shots, layout.size),
            "rebuilt": (2 * rebuilds, shots, layout.size),
            "past": (2 * again, shots, layout.size),
            "past_memory": (2 * again, shots, layout.memory_size),
            "wavelet": (shots, steps, self.sources.points),
            "wavelet_gradient": (shots, steps, self.sources.points),
            "traces": (shots, steps, self.receivers.points),
        }
        arrays = {name: (shape, self.dtype) for name, shape in shapes.items()}
        kept_as = self.kept_as
        samples = len(sampled_steps(steps - 1, self.interval)) if keeps else 0
        samples = min(samples, self.recomputation.length)
        frame = _volume(layout.frame) if rebuilds else layout.size
        edge = _volume(layout.perimeter) if rebuilds else 0
        for name, slots, cells in (("samples", samples, frame), ("edges", steps - 1, edge)):
            starts = len(self.find_starts(name))
            arrays[name] = (slots, shots, cells), kept_as
            arrays[f"{name}_scales"] = (slots, shots, max(0, starts - 1)), torch.float32
            arrays[f"{name}_starts"] = (starts,), torch.int32
        for name, sizes in (("sources", self.sources), ("receivers", self.receivers)):
            rows, columns = (shots, sizes.points, sizes.entries), (shots, sizes.cells, sizes.shared)
            arrays[f"{name}_cells"] = rows, torch.int32
            arrays[f"{name}_weights"] = rows, self.dtype
            arrays[f"{name}_occupied"] = columns[:2], torch.int32
            arrays[f"{name}_points"] = columns, torch.int32
            arrays[f"{name}_spreading"] = columns, self.dtype
        return arrays

    def find_starts(self, name: str) -> NDArray[np.int32]:
        """Return the first of the stored cells of each scale, and their number, (scale + 1,).

        name: of the stored values, "samples" or "edges". The array is empty if they have no scales.
        Each plane of a field begins with a new scale, so that a cut between planes changes none.
        """
        if self.kept_as not in UNITS:
            return np.zeros(0, np.int32)
        layout = self.layout
        planes, *plane = layout.field_shape
        parts = [(planes, prod(plane))]
        if self.rebuilds:
            boxes = layout.frame if name == "samples" else layout.perimeter
            parts = [(len(each), _volume(flat)) for each, flat in by_planes(boxes)]
        elif name == "edges":
            parts = []
        starts, first = [np.zeros(0, np.int64)], 0
        for count, cells in parts:
            begins = first + cells * np.arange(count)
            starts.append((begins[:, None] + np.arange(0, cells, KEPT)).ravel())
            first += count * cells
        return np.append(np.concatenate(starts), first).astype(np.int32)

    def count_touched(self) -> tuple[int, int]:
        """Return the bytes that a step accesses: of each shot, and those common to all shots.

        The backward direction is counted, which accesses more.
        """
        arrays, passed = self.list_arrays(), 0
        for name in ("fields", "memory", "u", "image", "energies", "rebuilt"):
            shape, dtype = arrays[name]
            # The forward and the adjoint wave have separate energies.
            passed += prod(shape) * dtype.itemsize // (2 if name == "energies" else 1)
        (*_, kept), dtype = arrays["samples"]
        common, of_model = arrays["v2dt2"]
        sample = kept * dtype.itemsize if self.keeps else 0
        return passed // self.shots + sample, prod(common) * of_model.itemsize

    @property
    def captured(self) -> int:
        """Largest number of bytes of the card's memory that captured launches take."""
        captures = self.device.type == "cuda" and not self.layout.halo
        steps = max(STRETCH, self.period) if captures else 0
        return 2 * LOOPS * steps * LAUNCHES * ARGUMENTS

    def count_bytes(self) -> int:
        """Return the bytes of the arrays, the lists of stored cells, and the captured launches."""
        arrays = sum(prod(shape) * dtype.itemsize for shape, dtype in self.list_arrays().values())
        listed = [*self.layout.frame, *self.layout.perimeter] if self.rebuilds else []
        return arrays + 4 * _volume(listed) + self.captured

    def count_states(self) -> int:
        """Return the bytes of the states that the forward pass stores."""
        values = 2 * self.shots * (self.layout.size + self.layout.memory_size)
        return self.recomputation.states * values * self.dtype.itemsize


def _volume(boxes: Sequence[Sequence[tuple[int, int]]]) -> int:
    return sum(prod(end - begin for begin, end in box) for box in boxes)


def by_planes(boxes: list[Box]) -> list[tuple[range, list[Box]]]:
    """Return ranges of planes, and what the boxes are in each of these planes, along y and x."""
    edges = sorted({edge for along_z, *_ in boxes for edge in along_z})
    return [
        (range(*pair), [flat for (begin, end), *flat in boxes if begin <= pair[0] < end])
        for pair in pairwise(edges)
    ]


def weigh_differences(problem: Problem) -> NDArray[np.float64]:
    """Return the weights of the differences, with a row for each of the axes z, y, x.

    A row has those of the second difference from offset 0 on, and those of the first difference
    from offset 1 on.
    """
    radius = problem.order // 2
    rows = np.zeros((3, 2 * radius + 1))
    axes = (0, 2) if problem.like.ndim == 2 else (0, 1, 2)
    for axis, h in zip(axes, problem.spacing, strict=True):
        rows[axis, : radius + 1] = numerics.second_difference(problem.order, h)
        rows[axis, radius + 1 :] = numerics.first_difference(problem.order, h)[1:]
    return rows


def lay_out_profiles(problem: Problem, layout: Layout) -> list[NDArray[np.float64]]:
    """Return the profiles a and b of the axes z, y, x, concatenated.

    Each axis has `radius` zeros before and after its values.
    """
    (z, *others) = [(p.a, p.b) for p in problem.profiles]
    here = slice(layout.first, layout.first + layout.shape[0])
    given = [(z[0][here], z[1][here]), *others]
    if layout.ndim == 2:
        given.insert(1, (np.zeros(1), np.zeros(1)))
    return [
        np.concatenate([np.pad(values, layout.radius) for values in profile])
        for profile in zip(*given, strict=True)
    ]


def upload(target: Tensor, table: NDArray[Any]) -> None:
    """Copy a table to a tensor, from pinned memory to a card, so that the CPU does not wait.

    The table is first converted to the precision of the tensor; torch would otherwise convert it
    during the copy, in memory that is not pinned.
    """
    given = torch.from_numpy(table).to(target.dtype)
    target.copy_(given.pin_memory() if target.is_cuda else given, non_blocking=True)


ALIGNMENT = 32
# Offsets in the arrays of one shot are 32-bit integers, also the masked ones in the last block.
MOST_CELLS = 2**31 - 2**16

# Number of cached matrices of points: the sources and receivers of two chunks.
REMEMBERED = 4

# Numbers of cells, or places, along the axes z, y, x.
Axes = tuple[int, ...]
# For each axis, the first cell of a box, and the one after the last.
Box = list[tuple[int, int]]


@dataclass(frozen=True)
class Layout:
    """The memory layout of the padded grid of one shot, or of a layer of it.

    A 2-D grid is one cell wide in y. shape: cells of the grid; before, after: cells of its slabs;
    radius: half the order; first: first plane of a layer in the whole grid; halo: number of planes
    before and after a layer that its neighbours compute.
    """

    shape: Axes
    before: Axes
    after: Axes
    radius: int
    ndim: int
    first: int = 0
    halo: int = 0

    @property
    def margin(self) -> int:
        """Number of planes before and after the grid."""
        return max(self.radius, self.halo)

    @property
    def row(self) -> int:
        """Number of columns of a field."""
        return _round_up(self.shape[2] + self.radius, ALIGNMENT)

    @property
    def field_shape(self) -> Axes:
        rows = self.shape[1] + (self.radius if self.ndim == 3 else 0)
        return self.shape[0] + 2 * self.margin, rows, self.row

    @property
    def size(self) -> int:
        """Number of cells of a field, including its zeros."""
        return prod(self.field_shape)

    @property
    def strides(self) -> Axes:
        return self.field_shape[1] * self.row, self.row, 1

    @property
    def origin(self) -> int:
        """Offset of the grid's first cell in a field."""
        return self.margin * self.strides[0]

    @property
    def interior(self) -> tuple[Axes, Axes]:
        """The cells that no absorbing term reaches: the first one, and the one after the last."""
        return numerics.interior(self.shape, self.before, self.after, self.radius)

    def interior_tiles(self, tile: Axes) -> Axes:
        """Return the number of tiles along each axis; they begin at cache lines along x."""
        (lo, hi) = self.interior
        begin = (*lo[:2], lo[2] // ALIGNMENT * ALIGNMENT)
        return tuple(max(0, -(-(e - b) // n)) for b, e, n in zip(begin, hi, tile, strict=True))

    @property
    def absorbs(self) -> bool:
        return any(self.before) or any(self.after)

    @property
    def memory_shapes(self) -> list[Axes]:
        """The shape of a memory variable of each axis, of size 0 if nothing absorbs along it."""
        shapes = []
        for axis in range(3):
            shape = [self.shape[0], self.shape[1], _round_up(self.shape[2], ALIGNMENT)]
            width = self.before[axis] + self.after[axis]
            shape[axis] = width + 4 * self.radius if width else 0
            shapes.append(tuple(shape))
        return shapes

    @property
    def memory_size(self) -> int:
        """Number of places of one memory variable of all axes."""
        return sum(map(prod, self.memory_shapes))

    @cached_property
    def slabs(self) -> NDArray[np.int32]:
        """The table of slabs: a row for each axis, with the columns defined in `kernels`."""
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
        """Number of cells in the slabs of the axis that has the most."""
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
        """Return the offsets of the cells in boxes, plane by plane, int32."""

        def along(axis: int, begin: int, end: int) -> Tensor:
            cells = torch.arange(begin, end, device=device, dtype=torch.int32)
            return self.strides[axis] * cells

        parts = [along(2, 0, 0)]
        for planes, flat in by_planes(boxes):
            plane = [(along(1, *y)[:, None] + along(2, *x)).flatten() for y, x in flat]
            cells = torch.cat([parts[0], *plane])
            z = along(0, planes.start, planes.stop)
            parts.append((self.origin + z[:, None] + cells).flatten())
        return torch.cat(parts)

    def frame_tiles(self, tile: Axes) -> NDArray[np.int32]:
        """Return the frame divided into tiles of at most this size, (tile, side).

        The sides are the columns of the table of tiles in `kernels`.
        """
        found = [np.empty((0, 6), np.int32)]
        for box in self.frame:
            begin, end = np.transpose(box)
            starts = map(np.arange, begin, end, tile)
            first = np.stack(np.meshgrid(*starts, indexing="ij"), axis=-1).reshape(-1, 3)
            last = np.minimum(first + tile, end)
            found.append(np.hstack([first, last]).astype(np.int32))
        return np.concatenate(found)

    def lay_out(self, model: Tensor) -> Tensor:
        """Return a model on the whole padded grid as a field (size,)."""
        field = model.new_zeros(self.size)
        here = model[self.first : self.first + self.shape[0]]
        self.take_out(field)[...] = here.reshape(self.shape)
        return field

    def take_out(self, fields: Tensor) -> Tensor:
        """Return the grid (..., n_z, n_y, n_x) of fields (..., size), as a view."""
        n_z, n_y, n_x = self.shape
        fields = fields.reshape(*fields.shape[:-1], *self.field_shape)
        return fields[..., self.margin : self.margin + n_z, :n_y, :n_x]

    def halves(self, fields: Tensor) -> tuple[Halo, Halo]:
        """Return the planes of fields (shot, size) that a layer sends and those that it receives.

        They are contiguous views, one for each shot.
        """
        n, h = self.shape[0], self.halo
        before, first, last, after = (
            list(fields.view(len(fields), n + 2 * h, -1)[:, begin : begin + h].unbind())
            for begin in (0, h, n, n + h)
        )
        return (first, last), (before, after)


def layout_of(problem: Problem, layers: Sequence[Layer] = (), number: int = 0) -> Layout:
    """Return the layout of a problem, or of a layer of its grid.

    Raises ValueError if the grid is too large for the engine.
    """
    shape, (before, after) = problem.padded_shape, problem.padding
    first, halo = 0, 0
    if len(layers) > 1:
        layer, first, halo = layers[number], layers[number].first, HALO
        before = (before[0] if number == 0 else 0, *before[1:])
        after = (after[0] if number == len(layers) - 1 else 0, *after[1:])
        shape = (layer.planes, *shape[1:])
    if problem.like.ndim == 2:
        shape, before, after = ((v[0], w, v[1]) for v, w in ((shape, 1), (before, 0), (after, 0)))
    layout = Layout(
        shape, before, after, problem.order // 2, problem.like.ndim, first=first, halo=halo
    )
    if max(layout.size, layout.memory_size) >= MOST_CELLS:
        raise ValueError(
            f"the padded grid is {problem.padded_shape}; the gpu engine supports fewer than "
            f"{MOST_CELLS} cells, in the grid and in the slabs of all axes: use a coarser or "
            "smaller model"
        )
    return layout


@dataclass(frozen=True)
class Sizes:
    """The sizes of a `TapMatrix`.

    points: points of a shot; entries: entries of a point; cells: cells of a shot; shared: entries
    of a cell.
    """

    points: int
    entries: int
    cells: int
    shared: int


@dataclass(frozen=True)
class TapMatrix:
    """A sparse matrix between points and cells, stored by points and by cells.

    Of a layer, it has the cells of the points that the layer records, also those in its halo, and
    the points of the cells that it computes.

    cells, weights: (shot, point, entry), the offsets and weights of the cells of a point; occupied:
    (shot, row), the offsets of the cells of all points, or -1; points, spreading: (shot, row,
    entry), the points of these cells, and their weights. Unused entries have weight 0. The widths
    of the tables are powers of 2, so that most chunks of a survey have tables of the same shape.
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
    """Taps with a hash of their numbers, by which they are compared."""

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


def spread_out(
    taps: Taps, layout: Layout, scale: float, layers: Sequence[Layer] = (), number: int = 0
) -> TapMatrix:
    """Return the matrix of taps with weights times `scale`; repeated cells of a point are merged.

    layers, number: of a layer, all layers and its number. The last few matrices are cached, as
    chunks of a line often have the same receivers.
    """
    return _spread_out(_Places(taps), layout, scale, tuple(layers), number)


@lru_cache(maxsize=REMEMBERED)
def _spread_out(
    places: _Places, layout: Layout, scale: float, layers: tuple[Layer, ...], number: int
) -> TapMatrix:
    taps = places.taps
    index = taps.cells
    if layout.ndim == 2:
        index = np.stack([index[..., 0], np.zeros_like(index[..., 0]), index[..., 1]], axis=-1)
    index = index - np.array((layout.first, 0, 0), np.int64)
    offsets = layout.origin + index @ np.asarray(layout.strides)
    shots, points = offsets.shape[:2]
    recorded = (find_layers(taps, list(layers)) == number).ravel()
    computed = (index[..., 0] >= 0) & (index[..., 0] < layout.shape[0])
    used = recorded.reshape(shots, points, 1) | computed
    shot, point, tap = np.nonzero((taps.weights != 0.0) & used)
    key = (shot * points + point) * layout.size + offsets[shot, point, tap]
    key, inverse = np.unique(key, return_inverse=True)
    weight = np.zeros(key.size)
    np.add.at(weight, inverse, taps.weights[shot, point, tap] * scale)
    row, cell = np.divmod(key, layout.size)
    shot, point = np.divmod(row, points)
    here = recorded[row]
    cells, weights = _pack_rows(row[here], shots * points, cell[here], weight[here])
    plane = cell // layout.strides[0] - layout.margin
    here = (plane >= 0) & (plane < layout.shape[0])
    shot, point, cell, weight = shot[here], point[here], cell[here], weight[here]
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
    return TapMatrix(
        cells.reshape(shots, points, -1),
        weights.reshape(shots, points, -1),
        filled.reshape(shots, capacity),
        columns.reshape(shots, capacity, -1),
        spreading.reshape(shots, capacity, -1),
    )


def _pack_rows(
    row: NDArray[np.int64], rows: int, index: NDArray[np.int64], weight: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return entries, given in the order of their rows, as tables (row, entry).

    The width of the tables is that of the longest row, rounded up to a power of 2.
    """
    width = _power(np.bincount(row, minlength=rows).max(initial=1))
    entry = np.arange(row.size) - np.searchsorted(row, row)
    indices, weights = np.zeros((rows, width), np.int32), np.zeros((rows, width))
    indices[row, entry], weights[row, entry] = index, weight
    return indices, weights


def _power(n: int) -> int:
    """Return the smallest power of 2 that is at least n."""
    return 1 << (int(n) - 1).bit_length()


def _round_up(n: int, step: int) -> int:
    return -(-n // step) * step
