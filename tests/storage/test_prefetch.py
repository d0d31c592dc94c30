"""Reading ahead."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

from hpcfwi.parallel.context import Context
from hpcfwi.storage import prefetch
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.storage.prefetch import Prefetcher
from tests.storage.examples import example_traces
from tests.storage.test_gathers import write_example


class Reader:
    """Counts and remembers; reads through MPI where told."""

    def __init__(self, through_mpi=False):
        self.through_mpi, self.threads, self.started = through_mpi, [], threading.Event()

    def read(self, shots):
        self.threads.append(threading.current_thread())
        self.started.set()
        if -1 in shots:
            raise OSError("no such shot")
        return np.zeros((len(shots), 1, 1), np.float32)


def test_the_shots_requested_are_taken_in_turn(tmp_path):
    path = write_example(tmp_path / "observed.h5")
    with GatherReader(path, Context.alone()) as reader, Prefetcher(reader) as prefetcher:
        prefetcher.request(np.array([4, 1]))
        for shots, following in (([4, 1], [0]), ([0], []), ([], [2])):
            traces = prefetcher.take()
            prefetcher.request(np.array(following, dtype=int))
            np.testing.assert_array_equal(traces, example_traces()[shots])


def test_reading_goes_on_in_another_thread_before_the_traces_are_taken():
    reader = Reader()
    with Prefetcher(reader) as prefetcher:
        prefetcher.request(np.array([0]))
        assert reader.started.wait(5)
        assert reader.threads != [threading.main_thread()]


def test_an_error_in_the_thread_is_raised_where_the_traces_are_taken_and_then_forgotten():
    with Prefetcher(Reader()) as prefetcher:
        prefetcher.request(np.array([-1]))
        with pytest.raises(OSError, match="no such shot"):
            prefetcher.take()
        prefetcher.request(np.array([0]))
        assert len(prefetcher.take()) == 1


def test_a_second_request_and_a_second_take_are_refused():
    with Prefetcher(Reader()) as prefetcher:
        with pytest.raises(RuntimeError, match="nothing was requested"):
            prefetcher.take()
        prefetcher.request(np.array([0]))
        with pytest.raises(RuntimeError, match="one request at a time"):
            prefetcher.request(np.array([1]))


def test_traces_that_were_taken_are_not_held_any_longer():
    with Prefetcher(Reader()) as prefetcher:
        prefetcher.request(np.array([0]))
        traces = prefetcher.take()
        prefetcher.request(np.array([0]))
        prefetcher._thread.submit(int).result()
        taken = weakref.ref(traces)
        del traces
        assert taken() is None


def test_where_mpi_allows_no_threads_the_traces_are_read_when_taken(monkeypatch):
    monkeypatch.setattr(prefetch, "_mpi_allows_threads", lambda: False)
    reader = Reader(through_mpi=True)
    with Prefetcher(reader) as prefetcher:
        prefetcher.request(np.array([0]))
        assert reader.threads == []
        assert len(prefetcher.take()) == 1
        assert reader.threads == [threading.main_thread()]
