"""Chunks of a rank's shots, which become smaller when memory runs out."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from hpcfwi.errors import InversionFailure
from hpcfwi.model import Grid
from hpcfwi.operators.simulator import Aperture, Chunks, Simulator
from hpcfwi.parallel.context import Context
from hpcfwi.survey import Survey
from hpcfwi.wave import Method
from hpcfwi.wave.engines import release_buffers
from hpcfwi.wave.engines.cpu import engine as cpu

ERRORS = [
    MemoryError("no"),
    torch.OutOfMemoryError("CUDA out of memory. Tried"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory"),
]


@pytest.fixture(autouse=True)
def release_all_buffers():
    """Free the buffers of earlier tests, first those that garbage would return to the engines."""
    gc.collect()
    release_buffers()


class Machine:
    """A simulation that fails for more than `most` shots at a time, and records its calls."""

    def __init__(self, most, error=None):
        self.most, self.error, self.tried = most, error or MemoryError("too many"), []

    def __call__(self, places, survey, _window):
        assert survey.n_shots == places.size
        self.tried.append((places[0], places[-1] + 1))
        if places.size > self.most:
            raise self.error
        return places.tolist()


GRID = Grid((9, 9), (10.0, 10.0), (0.0, 0.0))


def run_chunks(chunks, n_shots, work):
    """Return the results of `work`, in order, for shots that all have the same window."""
    points = np.full((n_shots, 2), 40.0)
    survey = Survey(points, points[:, None], np.ones(5, np.float32), 0.001)
    simulator = Simulator(GRID, Method(), Aperture())
    found = list(chunks.for_each_shot(survey, simulator, work))
    assert all(place == number for place, number in found)
    return [number for _, number in found]


def test_chunks_have_requested_size_if_memory_suffices():
    machine = Machine(most=9)
    assert run_chunks(Chunks(3, Context.alone()), 8, machine) == list(range(8))
    assert machine.tried == [(0, 3), (3, 6), (6, 8)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_out_of_memory_halves_chunk_size_permanently_and_warns(error, caplog):
    machine, chunks = Machine(2, error), Chunks(8, Context.alone())
    assert run_chunks(chunks, 7, machine) == list(range(7))
    assert machine.tried == [(0, 7), (0, 3), (0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7)]
    assert run_chunks(chunks, 2, machine) == [0, 1]
    chunks.check()
    said = [record.message for record in caplog.records]
    assert [message.split(" ran ")[1] for message in said] == [
        "out of memory with 7 shots at a time: continuing with 3",
        "out of memory with 3 shots at a time: continuing with 1",
    ]
    assert said[0].startswith("Rank 0 on ")


def test_memory_of_failed_chunk_is_freed_before_retry():
    held = []

    def work(places, *_):
        assert all(array() is None for array in held)
        array = np.zeros(5)
        held.append(weakref.ref(array))
        if places.size > 1:
            raise MemoryError
        return places.tolist()

    run_chunks(Chunks(4, Context.alone()), 4, work)
    assert len(held) == 6, "chunks of 4, 2, and four times 1"


def test_engine_buffers_are_freed_before_chunks_become_smaller(monkeypatch):
    held, tried = [7], []
    monkeypatch.setattr(cpu, "idle", lambda: sum(held))
    monkeypatch.setattr(cpu, "clear", held.clear)

    def work(places, *_):
        tried.append((places[0], places[-1] + 1))
        if held or places.size > 2:
            held.append(3)  # buffers of the failed attempt are returned, too
            raise MemoryError
        return places.tolist()

    run_chunks(Chunks(4, Context.alone()), 4, work)
    assert tried == [(0, 4), (0, 4), (0, 2), (2, 4)]


def test_out_of_memory_with_one_shot_ends_inversion_with_remedy():
    chunks = Chunks(4, Context.alone())
    assert run_chunks(chunks, 4, Machine(0)) == []
    with pytest.raises(InversionFailure, match=r"rank 0 .* one shot .*too many.*wave\.memory"):
        chunks.check()


def test_errors_other_than_out_of_memory_are_raised():
    with pytest.raises(RuntimeError, match="shapes"):
        run_chunks(Chunks(4, Context.alone()), 4, Machine(0, RuntimeError("shapes")))
