"""Memory that is used again, and how much of it there is."""

import mmap

import numpy as np
import pytest

from hpcfwi.wave.engines.cpu.layout import BufferPool, count_touched, reserve

FLOATS = np.dtype(np.float32)


class Borrower:
    pass


def test_an_array_takes_the_pages_that_were_touched() -> None:
    array = reserve((100, mmap.PAGESIZE), np.dtype(np.uint8))
    assert count_touched(array) == 0
    array[:7, :10] = 1
    assert count_touched(array) == 7 * mmap.PAGESIZE
    assert not array[7:].any()


def test_an_array_that_is_refused_is_a_lack_of_memory() -> None:
    with pytest.raises(MemoryError, match="refused"):
        reserve((2**60,), np.dtype(np.uint8))


def test_what_a_borrower_leaves_is_lent_again_and_counts_as_idle() -> None:
    pool, borrower = BufferPool(), Borrower()
    array = pool.lend(borrower, (3, 5000), FLOATS)
    array[0] = 1.0
    where = array.ctypes.data
    assert pool.count_bytes() == 0
    del borrower
    assert 5000 * FLOATS.itemsize <= pool.count_bytes() < 2 * 5000 * FLOATS.itemsize
    assert pool.lend(Borrower, (3, 5000), FLOATS).ctypes.data == where
    assert pool.count_bytes() == 0


def test_an_array_of_another_shape_lets_the_others_go() -> None:
    pool, borrower = BufferPool(), Borrower()
    pool.lend(borrower, (3, 5000), FLOATS)[...] = 1.0
    del borrower
    assert pool.lend(Borrower, (4, 5000), FLOATS).shape == (4, 5000)
    assert pool.count_bytes() == 0


def test_an_array_without_numbers_is_one_too() -> None:
    assert reserve((0, 7), FLOATS).shape == (0, 7)
