"""Tests of the pool of reused buffers."""

import mmap

import numpy as np
import pytest

from hpcfwi.wave.engines.cpu.layout import BufferPool, count_touched, reserve

FLOATS = np.dtype(np.float32)


class Borrower:
    pass


def test_reserved_array_uses_only_touched_pages() -> None:
    array = reserve((100, mmap.PAGESIZE), np.dtype(np.uint8))
    assert count_touched(array) == 0
    array[:7, :10] = 1
    assert count_touched(array) == 7 * mmap.PAGESIZE
    assert not array[7:].any()


def test_refused_reservation_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="cannot allocate"):
        reserve((2**60,), np.dtype(np.uint8))


def test_released_buffer_is_reused_and_counted_as_idle() -> None:
    pool, borrower = BufferPool(), Borrower()
    array = pool.lend(borrower, (3, 5000), FLOATS)
    array[0] = 1.0
    where = array.ctypes.data
    assert pool.count_bytes() == 0
    del borrower
    assert 5000 * FLOATS.itemsize <= pool.count_bytes() < 2 * 5000 * FLOATS.itemsize
    assert pool.lend(Borrower, (3, 5000), FLOATS).ctypes.data == where
    assert pool.count_bytes() == 0


def test_buffer_of_another_shape_frees_the_idle_ones() -> None:
    pool, borrower = BufferPool(), Borrower()
    pool.lend(borrower, (3, 5000), FLOATS)[...] = 1.0
    del borrower
    assert pool.lend(Borrower, (4, 5000), FLOATS).shape == (4, 5000)
    assert pool.count_bytes() == 0


def test_array_without_elements_can_be_reserved() -> None:
    assert reserve((0, 7), FLOATS).shape == (0, 7)
