"""Fields and their perimeters as they are kept, in fewer bits where that is wanted; compiled.

A frame is the part of an outer box of cells that is not in an inner box; with nothing inside it is
the whole box. What of it is in a window is kept, row by row, in a flat array of bytes, whose format
is known at run time only, so that there is one compiled loop for all of them.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu.buffers import POOL
from hpcfwi.wave.engines.cpu.layout import MARGIN, NOWHERE, Box
from hpcfwi.wave.engines.cpu.rows import Cells, U
from hpcfwi.wave.engines.cpu.windows import clamp

packing_function = njit(nogil=True)

# Numbers as they are computed, and the shorter formats. What a float16 or an int8 stands for is a
# multiple of a scale, so that the largest magnitude of a piece of a row is 1 or 127.
FULL, FLOAT32, BFLOAT16, FLOAT16, INT8 = range(5)
CODES = {
    "full": FULL,
    "float32": FLOAT32,
    "bfloat16": BFLOAT16,
    "float16": FLOAT16,
    "int8": INT8,
}


def count_bytes(format: str, dtype: np.dtype) -> int:
    """Of a number in this format, where it is computed in the precision of `dtype`."""
    return {"full": dtype.itemsize, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}[format]


def count_scales(format: str, rows: int) -> int:
    """Of an entry of a store: one for each of the two pieces of a row of the array."""
    return 2 * rows if format in ("float16", "int8") else 0


def _converter(source: Any, target: Any, convert: Callable[[Any, Any], Any]) -> Any:
    """A compiled conversion of one number, as instructions."""

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
    """The cells of `outer` that are not in `inner`, which lies within it."""

    outer: Box
    inner: Box


def count_cells(frame: Frame) -> int:
    """Of the whole frame, as many as there are numbers at most."""
    outer, inner = (math.prod(np.diff(box)[::2]) for box in frame)
    return int(outer - inner)


class FieldStore(NamedTuple):
    """A frame of some steps.

    frame: the cells; format: a code; numbers: (step, byte); scales: (step, 2 rows of the array) for
    FLOAT16 and INT8, else without columns.
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
    """Room for a frame of so many steps, whole lines of a cache each, while a borrower lives.

    like: an array of which it is.
    """
    line = -(-count_cells(frame) * count_bytes(format, like.dtype) // 64) * 64
    numbers = POOL.lend(borrower, (steps, line), np.dtype(np.uint8))
    scales = np.zeros((steps, count_scales(format, len(like))), np.float32)
    return FieldStore(frame, CODES[format], numbers, scales)


@packing_function
def pack(store, k, at, segment, f, cells):
    """Numbers `at`... of entry k of the store = f in these cells, which have scale `segment`."""
    r, first, n = cells
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


@packing_function
def unpack(store, k, at, segment, f, cells):
    """The inverse of `pack`, as far as the format goes."""
    r, first, n = cells
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


@packing_function
def cells_before(box, plane, row):
    """How many cells of a box come before a row of the grid, if its rows are put end to end."""
    rows = (min(max(plane, box.front), box.back) - box.front) * (box.bottom - box.top)
    if box.front <= plane < box.back:
        rows += min(max(row, box.top), box.bottom) - box.top
    return rows * (box.right - box.left)


@packing_function
def pieces(frame, plane, row):
    """The two pieces of a row of the frame: first column, length, and number of the first cell."""
    outer, inner = frame
    at = cells_before(outer, plane, row) - cells_before(inner, plane, row)
    if inner.front <= plane < inner.back and inner.top <= row < inner.bottom:
        before = inner.left - outer.left
        return ((outer.left, before, at), (inner.right, outer.right - inner.right, at + before))
    return ((outer.left, outer.right - outer.left, at), (outer.right, 0, at))


@packing_function
def pack_frame(store, k, window, grid, part, f):
    """Entry k of the store = its frame of the field f within a window, where it is in `part`.

    Only that is written, from the entry's beginning, so that small windows take little memory.
    """
    seen = Frame(clamp(store.frame.outer, window), clamp(store.frame.inner, window))
    mine = clamp(seen.outer, part)
    for plane in range(mine.front, mine.back):
        for row in range(mine.top, mine.bottom):
            r = grid.base + plane * grid.stride + row
            for side, (first, n, at) in enumerate(pieces(seen, plane, row)):
                pack(store, k, at, 2 * r + side, f, Cells(r, first + MARGIN, n))


@packing_function
def unpack_frame(store, k, window, grid, part, f):
    """The inverse of `pack_frame`, as far as the format goes."""
    seen = Frame(clamp(store.frame.outer, window), clamp(store.frame.inner, window))
    mine = clamp(seen.outer, part)
    for plane in range(mine.front, mine.back):
        for row in range(mine.top, mine.bottom):
            r = grid.base + plane * grid.stride + row
            for side, (first, n, at) in enumerate(pieces(seen, plane, row)):
                unpack(store, k, at, 2 * r + side, f, Cells(r, first + MARGIN, n))
