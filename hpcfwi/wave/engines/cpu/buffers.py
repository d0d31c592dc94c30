"""Large arrays that are used again: touching fresh memory costs as much as a simulation.

Memory is taken in small pages as it is touched, so that an array takes what of it is ever filled.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from math import prod
from threading import RLock

import numpy as np
from numpy.typing import NDArray


class BufferPool:
    """Arrays that are lent, and come back."""

    def __init__(self) -> None:
        self._arrays: list[NDArray] = []
        # Arrays come back when the garbage collector finds them, which may be in the midst of this.
        self._lock = RLock()

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
        """An array of the pool, whatever its contents; or a new one, and all others go."""
        with self._lock:
            for k, array in enumerate(self._arrays):
                if array.shape == shape and array.dtype == dtype:
                    return self._arrays.pop(k)
            self._arrays.clear()
        return reserve(shape, dtype)

    def put(self, array: NDArray) -> None:
        with self._lock:
            self._arrays.append(array)

    def clear(self) -> None:
        with self._lock:
            self._arrays.clear()

    def count_bytes(self) -> int:
        """What the arrays in the pool have touched."""
        with self._lock:
            return sum(map(count_touched, self._arrays))

    def lend(self, borrower: object, shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
        """An array that comes back to the pool when the borrower is gone."""
        array = self.take(shape, dtype)
        weakref.finalize(borrower, self.put, array).atexit = False
        return array


POOL = BufferPool()


def reserve(shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
    """An array of zeros in pages of its own. Raises MemoryError where it is refused."""
    size = max(1, prod(shape) * dtype.itemsize)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size} bytes are refused: {error.strerror}") from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype, prod(shape)).reshape(shape)


def count_touched(array: NDArray) -> int:
    """Bytes of the pages of a reserved array that have memory; all of it where nobody tells."""
    pages = -(-array.nbytes // mmap.PAGESIZE)
    held = np.zeros(pages, np.uint8)
    where, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
    tell = getattr(ctypes.CDLL(None), "mincore", None)
    if tell is None or tell(where, size, ctypes.c_void_p(held.ctypes.data)) != 0:
        return array.nbytes
    return int((held & 1).sum()) * mmap.PAGESIZE
