"""Windows of the `cpu` engine: the cells that a wave may have reached, and the storage of fields.

Only the cells of a window are computed, and the result is exact (docs/decisions/012-windows.md). A
window is a box. Its rows are whole blocks, clipped to the grid, and its columns are whole SIMD
loops; its planes may begin and end anywhere.

The stored part of a field is a frame: the cells of an outer box that are not in an inner box, which
may be empty. Those of its cells that are in the window are stored row by row in a flat array of
bytes, in full precision or in a shorter format. The format is a value at run time, so that one
compiled loop serves all formats.
"""

import math
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu.jit import U, within_loops
from hpcfwi.wave.engines.cpu.kernels import Cells, cells_of, count_nonzero
from hpcfwi.wave.engines.cpu.layout import (
    BLOCK,
    LANES,
    MARGIN,
    NOWHERE,
    POOL,
    Box,
    Cut,
    GridLayout,
)

# Number of steps for which a window is valid, and number of cells by which it grows: at least the
# cells that a wave can cross in these steps at order 8.
STEPS_PER_WINDOW = 4
GROWTH = 32


@within_loops
def whole_of(grid: GridLayout) -> Box:
    """Return the box of the whole grid."""
    return Box(0, grid.planes, 0, grid.rows, 0, grid.n)


@within_loops
def clamp(box: Box, window: Box) -> Box:
    """Return the part of a box that is in a window, which may be an empty box within it."""
    return Box(
        min(max(box.front, window.front), window.back),
        min(max(box.back, window.front), window.back),
        min(max(box.top, window.top), window.bottom),
        min(max(box.bottom, window.top), window.bottom),
        min(max(box.left, window.left), window.right),
        min(max(box.right, window.left), window.right),
    )


@within_loops
def holds_wave(grid, p, box):
    """Return True if p differs from zero in at least one cell of this box."""
    found = 0
    for plane in range(box.front, box.back):
        found += count_nonzero(p, cells_of(grid, box, plane))
    return found > 0


@within_loops
def fit(grid, sides, box):
    """Return the smallest window that contains a box, clipped to the grid.

    It contains each side of the rows entirely or not at all. sides: number of cells of a side.
    """
    left = max(0, box.left) // LANES * LANES
    right = min(grid.n, -(-box.right // LANES) * LANES)
    return Box(
        max(0, box.front),
        min(grid.planes, box.back),
        max(0, box.top) // BLOCK * BLOCK,
        min(grid.rows, -(-box.bottom // BLOCK) * BLOCK),
        left if left >= sides else 0,
        right if right <= grid.nx - sides else grid.n,
    )


def make_windows(
    cut: Cut, rows: NDArray, columns: NDArray, radius: int, steps: int, sides: int = 0
) -> NDArray[np.int64]:
    """Return an array for the windows of so many steps, (time // STEPS_PER_WINDOW, 6).

    They are windows of the whole grid. Only the first one is set. It surrounds the cells of the
    sources, which lie in these rows and columns of the arrays of a layer; without any, it is the
    whole grid. radius: of the stencils; sides: see `fit`.
    """
    windows = np.zeros((steps // STEPS_PER_WINDOW + 1, 6), np.int64)
    if rows.size == 0:
        windows[0] = whole_of.py_func(cut.whole)
        return windows
    reach, before = 2 * radius * STEPS_PER_WINDOW, cut.front * cut.stride + cut.top
    places = (*np.divmod(rows + before - cut.whole.base, cut.whole.stride), columns - MARGIN)
    edges = [(int(each.min()) - reach, int(each.max()) + 1 + reach) for each in places]
    windows[0] = fit.py_func(cut.whole, sides, Box(*chain.from_iterable(edges)))
    return windows


@within_loops
def in_layer(cut, grid, box):
    """Return the part of a box of the whole grid that is in a layer, with places in the layer."""
    return Box(
        min(max(box.front - cut.front, 0), grid.planes),
        min(max(box.back - cut.front, 0), grid.planes),
        min(max(box.top - cut.top, 0), grid.rows),
        min(max(box.bottom - cut.top, 0), grid.rows),
        box.left,
        box.right,
    )


@within_loops
def find_wave(cut, grid, radius, window, p):
    """Return the faces of a window that a wave is about to reach, as a sum of powers of two.

    They are the front, back, top, bottom, left and right face, in this order. Only the cells of the
    layer are searched. A wave spreads by at most two stencil radii per step, and by more than one
    only in absorbing cells.
    """
    reach = 2 * radius * STEPS_PER_WINDOW
    front, back, top, bottom, left, right = window
    faces = 0
    near = Box(front, min(front + reach, back), top, bottom, left, right)
    if front > 0 and holds_wave(grid, p, in_layer(cut, grid, near)):
        faces += 1
    far = Box(max(back - reach, front), back, top, bottom, left, right)
    if back < cut.whole.planes and holds_wave(grid, p, in_layer(cut, grid, far)):
        faces += 2
    upper = Box(front, back, top, min(top + reach, bottom), left, right)
    if top > 0 and holds_wave(grid, p, in_layer(cut, grid, upper)):
        faces += 4
    lower = Box(front, back, max(bottom - reach, top), bottom, left, right)
    if bottom < cut.whole.rows and holds_wave(grid, p, in_layer(cut, grid, lower)):
        faces += 8
    before = Box(front, back, top, bottom, left, min(left + reach, right))
    if left > 0 and holds_wave(grid, p, in_layer(cut, grid, before)):
        faces += 16
    behind = Box(front, back, top, bottom, max(right - reach, left), right)
    if right < cut.whole.n and holds_wave(grid, p, in_layer(cut, grid, behind)):
        faces += 32
    return faces


@within_loops
def widen(grid, sides, window, faces):
    """Return a window that a wave cannot leave within STEPS_PER_WINDOW steps.

    faces: those that it is about to reach, see `find_wave`; sides: see `fit`.
    """
    front, back, top, bottom, left, right = window
    box = Box(
        front - GROWTH * (faces & 1),
        back + GROWTH * (faces >> 1 & 1),
        top - GROWTH * (faces >> 2 & 1),
        bottom + GROWTH * (faces >> 3 & 1),
        left - GROWTH * (faces >> 4 & 1),
        right + GROWTH * (faces >> 5 & 1),
    )
    return fit(grid, sides, box)


@within_loops
def share(window, size, rank):
    """Return the rows of a window that thread `rank` of `size` computes in each plane."""
    n = window.bottom - window.top
    begin, end = window.top + n * rank // size, window.top + n * (rank + 1) // size
    return Box(window.front, window.back, begin, end, window.left, window.right)


# Formats of stored numbers: FULL has the precision of the computation, the others are shorter. A
# float16 or an int8 is in units of a scale, which is chosen for each piece of a row such that the
# largest magnitude is 1 or 127.
FULL, FLOAT32, BFLOAT16, FLOAT16, INT8 = range(5)
CODES = {
    "full": FULL,
    "float32": FLOAT32,
    "bfloat16": BFLOAT16,
    "float16": FLOAT16,
    "int8": INT8,
}


def count_bytes(format: str, dtype: np.dtype) -> int:
    """Return the bytes of a number in this format; `dtype` is the type of the computation."""
    return {"full": dtype.itemsize, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}[format]


def count_scales(format: str, rows: int) -> int:
    """Return the number of scales of an entry of a store: two for each row, if it has scales."""
    return 2 * rows if format in ("float16", "int8") else 0


def _converter(source: Any, target: Any, convert: Callable[[Any, Any], Any]) -> Any:
    """Return a compiled conversion of one number, given a function that emits its instructions."""

    @intrinsic
    def converter(typing_context, x):
        def generate(context, builder, signature, args):
            return convert(builder, args[0])

        return target(source), generate

    return converter


_HALF, _SINGLE = ir.HalfType(), ir.FloatType()
_SHORT, _WORD = ir.IntType(16), ir.IntType(32)
_bits = _converter(types.float32, types.uint32, lambda b, x: b.bitcast(x, _WORD))
_from_bits = _converter(types.uint32, types.float32, lambda b, x: b.bitcast(x, _SINGLE))
_half_bits = _converter(
    types.float32, types.int16, lambda b, x: b.bitcast(b.fptrunc(x, _HALF), _SHORT)
)
_from_half_bits = _converter(
    types.int16, types.float32, lambda b, x: b.fpext(b.bitcast(x, _HALF), _SINGLE)
)


class Frame(NamedTuple):
    """The cells of the box `outer` that are not in the box `inner`, which lies within it."""

    outer: Box
    inner: Box


def rim_of(box: Box, radius: int, grid: GridLayout) -> Frame:
    """Return the cells around a box that stencils in the box reach."""
    edges = (edge + sign * radius for edge, sign in zip(box, (-1, 1) * 3, strict=True))
    return Frame(clamp.py_func(Box(*edges), whole_of.py_func(grid)), box)


def count_cells(frame: Frame) -> int:
    """Return the number of cells of the whole frame."""
    outer, inner = (math.prod(np.diff(box)[::2]) for box in frame)
    return int(outer - inner)


class FieldStore(NamedTuple):
    """The values of the cells of a frame at some steps.

    format: one of the codes above; numbers: (step, byte); scales: (step, scale), two for each row
    of the array with FLOAT16 and INT8, and none with other formats.
    """

    frame: Frame
    format: int
    numbers: NDArray[np.uint8]
    scales: NDArray[np.float32]


NO_STORE = FieldStore(
    Frame(NOWHERE, NOWHERE), FULL, np.zeros((0, 0), np.uint8), np.zeros((0, 0), np.float32)
)


def make_store(
    borrower: object, frame: Frame, format: str, like: NDArray, steps: int
) -> FieldStore:
    """Return an empty store for a frame of so many steps, with memory lent by `POOL`.

    The size of an entry is a whole number of cache lines. borrower: the memory returns to the pool
    when this object is deleted; like: an array with the precision and the rows of the fields.
    """
    line = -(-count_cells(frame) * count_bytes(format, like.dtype) // 64) * 64
    numbers = POOL.lend(borrower, (steps, line), np.dtype(np.uint8))
    scales = np.zeros((steps, count_scales(format, len(like))), np.float32)
    return FieldStore(frame, CODES[format], numbers, scales)


@within_loops
def pack(store, k, at, segment, f, cells):
    """Store f in these cells as the numbers from `at` on of entry k, with its scale `segment`."""
    r, _, first, n = cells
    entry = store.numbers[k]
    if store.format == FULL:
        full = entry.view(f.dtype)
        for j in range(U(n)):
            full[U(at) + j] = f[r, U(first) + j]
    elif store.format == FLOAT32:
        single = entry.view(np.float32)
        for j in range(U(n)):
            single[U(at) + j] = f[r, U(first) + j]
    elif store.format == BFLOAT16:
        short = entry.view(np.uint16)
        for j in range(U(n)):
            bits = _bits(np.float32(f[r, U(first) + j]))
            even = (bits >> np.uint32(16)) & np.uint32(1)
            short[U(at) + j] = (bits + np.uint32(0x7FFF) + even) >> np.uint32(16)
    else:
        largest = np.float32(0)
        for j in range(U(n)):
            largest = max(largest, abs(np.float32(f[r, U(first) + j])))
        one = np.float32(1 if store.format == FLOAT16 else 127)
        store.scales[k, segment] = largest / one
        per = one / largest if largest > np.float32(1e-30) else np.float32(0)
        if store.format == FLOAT16:
            half = entry.view(np.int16)
            for j in range(U(n)):
                half[U(at) + j] = _half_bits(np.float32(f[r, U(first) + j]) * per)
        else:
            byte = entry.view(np.int8)
            for j in range(U(n)):
                byte[U(at) + j] = np.int8(np.rint(np.float32(f[r, U(first) + j]) * per))


@within_loops
def unpack(store, k, at, segment, f, cells):
    """Load f in these cells from the numbers that `pack` has stored."""
    r, _, first, n = cells
    entry = store.numbers[k]
    if store.format == FULL:
        full = entry.view(f.dtype)
        for j in range(U(n)):
            f[r, U(first) + j] = full[U(at) + j]
    elif store.format == FLOAT32:
        single = entry.view(np.float32)
        for j in range(U(n)):
            f[r, U(first) + j] = single[U(at) + j]
    elif store.format == BFLOAT16:
        short = entry.view(np.uint16)
        for j in range(U(n)):
            f[r, U(first) + j] = _from_bits(np.uint32(short[U(at) + j]) << np.uint32(16))
    elif store.format == FLOAT16:
        half = entry.view(np.int16)
        scale = store.scales[k, segment]
        for j in range(U(n)):
            f[r, U(first) + j] = scale * _from_half_bits(half[U(at) + j])
    else:
        byte = entry.view(np.int8)
        scale = store.scales[k, segment]
        for j in range(U(n)):
            f[r, U(first) + j] = scale * np.float32(byte[U(at) + j])


@within_loops
def cells_before(box, plane, row):
    """Return the number of cells of a box that precede a row of the grid in the order of rows."""
    rows = (min(max(plane, box.front), box.back) - box.front) * (box.bottom - box.top)
    if box.front <= plane < box.back:
        rows += min(max(row, box.top), box.bottom) - box.top
    return rows * (box.right - box.left)


@within_loops
def pieces(frame, plane, row):
    """Return the first column, the length and the first cell's number of both pieces of a row.

    The numbers count the cells of the frame, row by row. One of the pieces may be empty.
    """
    outer, inner = frame
    at = cells_before(outer, plane, row) - cells_before(inner, plane, row)
    if inner.front <= plane < inner.back and inner.top <= row < inner.bottom:
        before = inner.left - outer.left
        return ((outer.left, before, at), (inner.right, outer.right - inner.right, at + before))
    return ((outer.left, outer.right - outer.left, at), (outer.right, 0, at))


@within_loops
def pack_frame(store, k, window, grid, part, f):
    """Store those cells of the frame of a field f that are in a window and in `part`, in entry k.

    The cells in the window are stored without gaps from the beginning of the entry, so that small
    windows touch little memory.
    """
    seen = Frame(clamp(store.frame.outer, window), clamp(store.frame.inner, window))
    mine = clamp(seen.outer, part)
    for plane in range(mine.front, mine.back):
        for row in range(mine.top, mine.bottom):
            r = grid.base + plane * grid.stride + row
            for side, (first, n, at) in enumerate(pieces(seen, plane, row)):
                pack(store, k, at, 2 * r + side, f, Cells(r, 1, first + MARGIN, n))


@within_loops
def unpack_frame(store, k, window, grid, part, f):
    """Load those cells of the frame of a field f that `pack_frame` has stored."""
    seen = Frame(clamp(store.frame.outer, window), clamp(store.frame.inner, window))
    mine = clamp(seen.outer, part)
    for plane in range(mine.front, mine.back):
        for row in range(mine.top, mine.bottom):
            r = grid.base + plane * grid.stride + row
            for side, (first, n, at) in enumerate(pieces(seen, plane, row)):
                unpack(store, k, at, 2 * r + side, f, Cells(r, 1, first + MARGIN, n))
