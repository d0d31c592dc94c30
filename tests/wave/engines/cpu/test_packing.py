"""Tests of packing the frame of a field within a window in a number format."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu import windows
from hpcfwi.wave.engines.cpu.jit import loop
from hpcfwi.wave.engines.cpu.layout import MARGIN, Box, field_shape, make_grid
from hpcfwi.wave.engines.cpu.windows import FieldStore, Frame, share

SHAPES = ((37, 45), (9, 18, 21))
# Rounding error relative to the largest value of a row; see docs/decisions/007
ROUNDING = {"full": 0.0, "float32": 0.0, "bfloat16": 2**-8, "float16": 2**-11, "int8": 1 / 127}
UNTOUCHED = 7.0


@loop
def pack_frame(store, k, window, grid, part, f):
    windows.pack_frame(store, k, window, grid, part, f)


@loop
def unpack_frame(store, k, window, grid, part, f):
    windows.unpack_frame(store, k, window, grid, part, f)


def fill(shape: tuple[int, ...], box: Box) -> NDArray[np.bool_]:
    """Return a mask of the cells of a grid's array that are in a box."""
    grid, found = make_grid(shape), np.zeros(field_shape(shape), bool)
    for plane in range(box.front, box.back):
        first = grid.base + plane * grid.stride
        columns = slice(MARGIN + box.left, MARGIN + box.right)
        found[first + box.top : first + box.bottom, columns] = True
    return found


class Borrower:
    pass


LASTING = Borrower()


def make_store(frame: Frame, format: str, rows: int) -> FieldStore:
    return windows.make_store(LASTING, frame, format, np.empty((rows, 0), np.float32), 2)


@st.composite
def boxes(draw: st.DrawFn, within: Box) -> Box:
    ends = [
        sorted((draw(st.integers(first, last)), draw(st.integers(first, last))))
        for first, last in zip(within[::2], within[1::2], strict=True)
    ]
    return Box(*(end for pair in ends for end in pair))


@given(data=st.data(), shape=st.sampled_from(SHAPES), format=st.sampled_from(list(ROUNDING)))
def test_packing_restores_the_cells_in_the_frame_and_the_window(
    data: st.DataObject, shape: tuple[int, ...], format: str
) -> None:
    grid = make_grid(shape)
    whole = Box(0, grid.planes, 0, grid.rows, 0, grid.n)
    outer, window = data.draw(boxes(whole)), data.draw(boxes(whole))
    frame = Frame(outer, data.draw(boxes(outer)))
    threads = data.draw(st.integers(1, 3))
    field = np.random.default_rng(0).normal(size=field_shape(shape)).astype(np.float32)
    store = make_store(frame, format, len(field))
    found = np.full_like(field, UNTOUCHED)
    parts = [share.py_func(window, threads, rank) for rank in range(threads)]
    for part in parts:
        pack_frame(store, 1, window, grid, part, field)
    for part in parts:
        unpack_frame(store, 1, window, grid, part, found)
    kept = fill(shape, outer) & ~fill(shape, frame.inner) & fill(shape, window)
    error = np.abs(np.where(kept, found - field, 0.0)).max(axis=1)
    assert (error <= ROUNDING[format] * np.abs(field).max(axis=1)).all()
    assert (found[~kept] == UNTOUCHED).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_small_window_uses_only_the_beginning_of_an_entry(shape: tuple[int, ...]) -> None:
    grid = make_grid(shape)
    whole = Box(0, grid.planes, 0, grid.rows, 0, grid.n)
    window = Box(0, 1, 8, 16, 8, 16)
    frame = Frame(whole, Box(0, 0, 0, 0, 0, 0))
    field = np.ones(field_shape(shape), np.float32)
    store = make_store(frame, "float32", len(field))
    store.numbers[...] = 0
    pack_frame(store, 0, window, grid, window, field)
    numbers = store.numbers[0].view(np.float32)
    assert (numbers[:64] == 1.0).all()
    assert not numbers[64:].any()
