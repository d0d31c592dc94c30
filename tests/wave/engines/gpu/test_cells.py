"""Tests of the memory layout of cells and points in the gpu engine."""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hpcfwi.wave.engines.gpu.device import CANDIDATES
from hpcfwi.wave.engines.gpu.layout import (
    ALIGNMENT,
    KEPT,
    MOST_CELLS,
    Box,
    Layout,
    layout_of,
    spread_out,
)
from hpcfwi.wave.engines.gpu.sweep import RELAXED
from hpcfwi.wave.numerics import Taps

LAYOUTS = (
    Layout((30, 1, 40), (5, 0, 5), (5, 0, 5), 4, 2),
    Layout((25, 1, 40), (0, 0, 5), (5, 0, 5), 2, 2),
    Layout((14, 15, 16), (3, 3, 3), (3, 3, 3), 4, 3),
    Layout((14, 15, 16), (0, 0, 0), (0, 0, 0), 1, 3),
)


def cells_of(layout: Layout, boxes: list[Box]) -> torch.Tensor:
    """Return how often each cell of the grid is in the boxes."""
    count = torch.zeros(layout.size)
    offsets = layout.offsets(boxes, torch.device("cpu")).long()
    count.index_add_(0, offsets, torch.ones(len(offsets)))
    assert layout.take_out(count).sum() == len(offsets), "some cells are outside the grid"
    return layout.take_out(count)


@pytest.mark.parametrize(("points", "boundary"), [(1300, 20), (900, 440)])
def test_grid_with_offsets_of_more_than_32_bits_is_refused(points: int, boundary: int) -> None:
    """The offsets are those of the cells, or of the cells of all slabs."""
    shape, widths = (points, points, points), (boundary,) * 3
    problem: Any = SimpleNamespace(
        padded_shape=shape, padding=(widths, widths), order=2, like=SimpleNamespace(ndim=3)
    )
    with pytest.raises(ValueError, match="use a coarser or smaller model"):
        layout_of(problem)
    problem.padded_shape = (900, 900, 900)
    problem.padding = ((20,) * 3,) * 2
    assert layout_of(problem).size > 7e8


@pytest.mark.parametrize("layout", LAYOUTS)
def test_interior_and_frame_cover_the_grid_once(layout: Layout) -> None:
    both = cells_of(layout, layout.frame)
    lo, hi = layout.interior
    both[tuple(map(slice, lo, hi))] += 1
    assert torch.all(both == 1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_perimeter_is_the_part_of_the_frame_read_by_interior_stencils(layout: Layout) -> None:
    lo, hi = layout.interior
    read = torch.zeros(layout.shape, dtype=torch.bool)
    for axis, n in enumerate(layout.shape):
        begin, end = max(0, lo[axis] - layout.radius), min(n, hi[axis] + layout.radius)
        box = list(map(slice, lo, hi))
        box[axis] = slice(begin, end)
        if axis != 1 or layout.ndim == 3:
            read[tuple(box)] = True
    read[tuple(map(slice, lo, hi))] = False
    assert torch.equal(cells_of(layout, layout.perimeter), read.float())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_stencils_read_zeros_beyond_the_edges(layout: Layout) -> None:
    field = layout.lay_out(torch.ones(layout.shape))
    axes = (0, 2) if layout.ndim == 2 else (0, 1, 2)
    index = np.indices(layout.shape).reshape(3, -1)
    for axis in axes:
        for shift in (-layout.radius, -1, 1, layout.radius):
            moved = index.copy()
            moved[axis] += shift
            offsets = layout.origin + np.asarray(layout.strides) @ moved
            inside = (moved[axis] >= 0) & (moved[axis] < layout.shape[axis])
            assert np.array_equal(field.numpy()[offsets], inside.astype(np.float32))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_begin_at_aligned_addresses(layout: Layout) -> None:
    assert layout.origin % ALIGNMENT == layout.strides[0] % ALIGNMENT == 0
    assert layout.strides[1] % ALIGNMENT == 0


def test_offsets_of_the_largest_masked_block_do_not_overflow() -> None:
    blocks = [prod(tile.shape) for tiles in CANDIDATES.values() for tile in tiles]
    assert MOST_CELLS + max(*blocks, KEPT, RELAXED) <= 2**31


def test_tiles_of_the_interior_begin_at_whole_lines() -> None:
    layout = Layout((40, 1, 200), (35, 0, 35), (0, 0, 35), 4, 2)
    (_, _, lo), (_, _, hi) = layout.interior
    assert lo == 39, "a line and a part of the next"
    assert layout.interior_tiles((8, 1, 32))[2] == -(-(hi - 32) // 32)


def test_table_of_repeated_points_is_cached() -> None:
    taps = Taps((np.array([[[3]]]), np.array([[[4]]])), (np.ones((1, 1, 1)), np.ones((1, 1, 1))))
    same = Taps(*(tuple(map(np.copy, arrays)) for arrays in (taps.indices, taps.factors)))
    first = spread_out(taps, LAYOUTS[0], 2.0)
    assert spread_out(same, LAYOUTS[0], 2.0) is first
    assert spread_out(same, LAYOUTS[1], 2.0) is not first
    assert spread_out(same, LAYOUTS[0], 3.0) is not first


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tiles_of_the_frame_cover_each_of_its_cells_once(layout: Layout) -> None:
    tile = (4, 1, 8) if layout.ndim == 2 else (4, 8, 8)
    covered = torch.zeros(layout.shape, dtype=torch.int64)
    for sides in layout.frame_tiles(tile):
        first, last = sides[:3], sides[3:]
        assert np.all(first < last)
        assert np.all(last - first <= tile)
        covered[tuple(map(slice, first, last))] += 1
    assert torch.equal(covered, cells_of(layout, layout.frame).reshape(layout.shape))


def test_points_are_recorded_and_emitted_with_the_same_matrix() -> None:
    layout = LAYOUTS[0]
    rng = np.random.default_rng(0)
    indices = tuple(rng.integers(0, n, (2, 5, count)) for n, count in ((30, 2), (4, 3)))
    assert (indices[1][..., 0] == indices[1][..., 1]).any(), "some cells occur twice"
    taps = Taps(indices, tuple(rng.normal(size=index.shape) for index in indices))
    matrix = spread_out(taps, layout, 3.0)
    dense = np.zeros((2, 5, layout.size))
    for shot, point, tap in np.ndindex(2, 5, 6):
        z, x = taps.cells[shot, point, tap]
        offset = layout.origin + z * layout.strides[0] + x
        dense[shot, point, offset] += 3.0 * taps.weights[shot, point, tap]
    field, values = rng.normal(size=layout.size), rng.normal(size=5)
    recorded = (matrix.weights * field[matrix.cells]).sum(-1)
    assert np.allclose(recorded, dense @ field)
    for shot in (0, 1):
        spread = np.zeros(layout.size)
        used = matrix.occupied[shot] >= 0
        assert len(set(matrix.occupied[shot][used])) == used.sum()
        added = (matrix.spreading[shot] * values[matrix.points[shot]]).sum(-1)
        spread[matrix.occupied[shot][used]] = added[used]
        assert np.allclose(spread, values @ dense[shot])
