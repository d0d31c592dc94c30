"""Fields and their perimeters in fewer bits; compiled.

A frame is the part of an outer box of cells that is not in an inner box, row by row; with nothing
inside it is the whole box. Its numbers are kept in a flat array, whose type is that of the format:
floating point for itself, uint16 for bfloat16, int16 for the bits of a float16, int8 for whole
multiples of a scale, which is the largest magnitude of a piece of a row over 127.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from hpcfwi.wave.engines.layout import Grid
from hpcfwi.wave.engines.rows import MARGIN, U
from hpcfwi.wave.engines.windows import Window

packing_function = njit(nogil=True, cache=True)

KEPT_AS: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(np.uint16),
    "float16": np.dtype(np.int16),
    "int8": np.dtype(np.int8),
}


class Frame(NamedTuple):
    """The cells of `outer` that are not in `inner`, which lies within it.

    starts: (row of the array,), where the numbers of each row begin, -1 for rows without any.
    """

    outer: Window
    inner: Window
    starts: NDArray[np.int64]


def make_frame(grid: Grid, rows: int, outer: Window, inner: Window) -> tuple[Frame, int]:
    """A frame, and how many numbers it has; rows: of the array."""
    starts = np.full(rows, -1, np.int64)
    length = 0
    for plane in range(outer.front, outer.back):
        for row in range(outer.top, outer.bottom):
            starts[grid.base + plane * grid.stride + row] = length
            hidden = inner.front <= plane < inner.back and inner.top <= row < inner.bottom
            length += outer.right - outer.left - hidden * (inner.right - inner.left)
    return Frame(outer, inner, starts), length


class Store(NamedTuple):
    """Frames of some steps.

    numbers: (step, number); scales: (step, 2 rows of the array) for int8, else without columns.
    """

    numbers: NDArray
    scales: NDArray[np.float32]


@packing_function
def pieces(frame, plane, row):
    """The two pieces of a row of the frame, as first column and length."""
    inner, left, right = frame.inner, frame.outer.left, frame.outer.right
    if inner.front <= plane < inner.back and inner.top <= row < inner.bottom:
        return ((left, inner.left - left), (inner.right, right - inner.right))
    return ((left, right - left), (right, 0))


@packing_function
def pack_frame(store, k, frame, grid, part, f):
    """Entry k of the store = the frame of the field f, as far as its rows are in `part`."""
    for plane in range(max(part.front, frame.outer.front), min(part.back, frame.outer.back)):
        for row in range(max(part.top, frame.outer.top), min(part.bottom, frame.outer.bottom)):
            r = grid.base + plane * grid.stride + row
            at = frame.starts[r]
            for side, (first, n) in enumerate(pieces(frame, plane, row)):
                pack(store.numbers, k, at, store.scales, 2 * r + side, f, r, first + MARGIN, n)
                at += n


@packing_function
def unpack_frame(store, k, frame, grid, part, f):
    """The frame of the field f = entry k of the store, as far as its rows are in `part`."""
    for plane in range(max(part.front, frame.outer.front), min(part.back, frame.outer.back)):
        for row in range(max(part.top, frame.outer.top), min(part.bottom, frame.outer.bottom)):
            r = grid.base + plane * grid.stride + row
            at = frame.starts[r]
            for side, (first, n) in enumerate(pieces(frame, plane, row)):
                unpack(store.numbers, k, at, store.scales, 2 * r + side, f, r, first + MARGIN, n)
                at += n


def pack(numbers, k, at, scales, segment, f, r, first, n):
    """Entries `at`... of numbers[k] = the n cells of row r of f from `first` on."""


def unpack(numbers, k, at, scales, segment, f, r, first, n):
    """The inverse of `pack`, as far as the format goes."""


@overload(pack)
def _pack(numbers, k, at, scales, segment, f, r, first, n):
    def as_float(numbers, k, at, scales, segment, f, r, first, n):
        for j in range(U(n)):
            numbers[k, U(at) + j] = f[r, U(first) + j]

    def as_bfloat16(numbers, k, at, scales, segment, f, r, first, n):
        for j in range(U(n)):
            bits = _bits(np.float32(f[r, U(first) + j]))
            even = (bits >> np.uint32(16)) & np.uint32(1)
            numbers[k, U(at) + j] = (bits + np.uint32(0x7FFF) + even) >> np.uint32(16)

    def as_float16(numbers, k, at, scales, segment, f, r, first, n):
        for j in range(U(n)):
            numbers[k, U(at) + j] = _half_bits(np.float32(f[r, U(first) + j]))

    def as_int8(numbers, k, at, scales, segment, f, r, first, n):
        largest = np.float32(0)
        for j in range(U(n)):
            largest = max(largest, abs(np.float32(f[r, U(first) + j])))
        scales[k, segment] = largest / np.float32(127)
        per = np.float32(127) / largest if largest > np.float32(1e-30) else np.float32(0)
        for j in range(U(n)):
            numbers[k, U(at) + j] = np.int8(np.rint(np.float32(f[r, U(first) + j]) * per))

    return _of_type(numbers, as_float, as_bfloat16, as_float16, as_int8)


@overload(unpack)
def _unpack(numbers, k, at, scales, segment, f, r, first, n):
    def from_float(numbers, k, at, scales, segment, f, r, first, n):
        for j in range(U(n)):
            f[r, U(first) + j] = numbers[k, U(at) + j]

    def from_bfloat16(numbers, k, at, scales, segment, f, r, first, n):
        for j in range(U(n)):
            f[r, U(first) + j] = _from_bits(np.uint32(numbers[k, U(at) + j]) << np.uint32(16))

    def from_float16(numbers, k, at, scales, segment, f, r, first, n):
        for j in range(U(n)):
            f[r, U(first) + j] = _from_half_bits(numbers[k, U(at) + j])

    def from_int8(numbers, k, at, scales, segment, f, r, first, n):
        scale = scales[k, segment]
        for j in range(U(n)):
            f[r, U(first) + j] = scale * np.float32(numbers[k, U(at) + j])

    return _of_type(numbers, from_float, from_bfloat16, from_float16, from_int8)


def _of_type(numbers: Any, floating: Any, bfloat16: Any, float16: Any, int8: Any) -> Any:
    special = {types.uint16: bfloat16, types.int16: float16, types.int8: int8}
    return special.get(numbers.dtype, floating)


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
