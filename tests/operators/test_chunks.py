"""A rank's shots in chunks, which become smaller when memory runs out."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from hpcfwi.errors import InversionFailure
from hpcfwi.operators.batching import Chunks
from hpcfwi.parallel.context import Context
from hpcfwi.wave.engines import let_go
from hpcfwi.wave.engines.cpu import engine as cpu

ERRORS = [
    MemoryError("no"),
    torch.OutOfMemoryError("CUDA out of memory. Tried"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory"),
]


@pytest.fixture(autouse=True)
def nothing_held():
    """By engines, from other tests; what is garbage by now would come back to them in a test."""
    gc.collect()
    let_go()


class Machine:
    """Simulates at most `most` shots at a time, and notes which it was given."""

    def __init__(self, most, error=None):
        self.most, self.error, self.tried = most, error or MemoryError("too many"), []

    def __call__(self, part):
        self.tried.append((part.start, part.stop))
        if part.stop - part.start > self.most:
            raise self.error
        return part


def numbers(parts):
    return [number for part in parts for number in range(part.start, part.stop)]


def test_where_memory_suffices_portions_are_as_large_as_asked_for():
    machine = Machine(most=9)
    assert numbers(Chunks(3, Context.alone()).each(8, machine)) == list(range(8))
    assert machine.tried == [(0, 3), (3, 6), (6, 8)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_memory_that_runs_out_halves_the_portions_for_good_and_says_so_once(error, caplog):
    machine, chunks = Machine(2, error), Chunks(8, Context.alone())
    assert numbers(chunks.each(7, machine)) == list(range(7))
    assert machine.tried == [(0, 7), (0, 3), (0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7)]
    assert numbers(chunks.each(2, machine)) == [0, 1]
    chunks.check()
    said = [record.message for record in caplog.records]
    assert [message.split(" ran ")[1] for message in said] == [
        "out of memory with 7 shots at a time: going on with 3",
        "out of memory with 3 shots at a time: going on with 1",
    ]
    assert said[0].startswith("Rank 0 on ")


def test_what_a_failed_portion_held_is_let_go_before_the_next_try():
    held = []

    def work(part):
        assert all(array() is None for array in held)
        array = np.zeros(5)
        held.append(weakref.ref(array))
        if part.stop - part.start > 1:
            raise MemoryError

    list(Chunks(4, Context.alone()).each(4, work))
    assert len(held) == 6, "4, 2, and 1 four times"


def test_what_engines_hold_is_let_go_before_portions_become_smaller(monkeypatch):
    held, tried = [7], []
    monkeypatch.setattr(cpu, "idle", lambda: sum(held))
    monkeypatch.setattr(cpu, "clear", held.clear)

    def work(part):
        tried.append((part.start, part.stop))
        if held or part.stop - part.start > 2:
            held.append(3)  # what a failed one has taken comes back, too
            raise MemoryError

    list(Chunks(4, Context.alone()).each(4, work))
    assert tried == [(0, 4), (0, 4), (0, 2), (2, 4)]


def test_one_shot_too_much_ends_the_inversion_with_a_remedy():
    chunks = Chunks(4, Context.alone())
    assert list(chunks.each(4, Machine(0))) == []
    with pytest.raises(InversionFailure, match=r"rank 0 .* one shot .*too many.*wave\.memory"):
        chunks.check()


def test_other_errors_are_not_swallowed():
    with pytest.raises(RuntimeError, match="shapes"):
        list(Chunks(4, Context.alone()).each(4, Machine(0, RuntimeError("shapes"))))
