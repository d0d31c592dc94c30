"""Tests of the prefetcher, which reads traces in another thread."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

from hpcfwi.parallel.context import Context
from hpcfwi.storage import gathers
from hpcfwi.storage.gathers import GatherReader, Prefetcher
from tests.storage.examples import example_traces
from tests.storage.test_gathers import write_example


class Reader:
    """A reader that records the threads in which it reads."""

    def __init__(self, through_mpi=False):
        self.through_mpi, self.threads, self.started = through_mpi, [], threading.Event()

    def read(self, shots):
        self.threads.append(threading.current_thread())
        self.started.set()
        if -1 in shots:
            raise OSError("no such shot")
        return np.zeros((len(shots), 1, 1), np.float32)


def test_requests_give_their_traces_in_any_order_and_repeatedly(tmp_path):
    path = write_example(tmp_path / "observed.h5")
    wanted = ([4, 1], [0], [])
    with GatherReader(path, Context.alone()) as reader, Prefetcher(reader) as prefetcher:
        requests = [prefetcher.request(np.array(shots, dtype=int)) for shots in wanted]
        for traces, shots in [*zip(requests, wanted, strict=True)][::-1] * 2:
            np.testing.assert_array_equal(traces(), example_traces()[shots])


def test_prefetcher_reads_in_another_thread_before_the_traces_are_needed():
    reader = Reader()
    with Prefetcher(reader) as prefetcher:
        prefetcher.request(np.array([0]))
        assert reader.started.wait(5)
        assert reader.threads != [threading.main_thread()]


def test_read_error_is_raised_only_by_its_request():
    with Prefetcher(Reader()) as prefetcher:
        bad, good = prefetcher.request(np.array([-1])), prefetcher.request(np.array([0]))
        with pytest.raises(OSError, match="no such shot"):
            bad()
        assert len(good()) == 1


def test_traces_are_freed_with_their_request():
    with Prefetcher(Reader()) as prefetcher:
        request = prefetcher.request(np.array([0]))
        taken = weakref.ref(request())
        assert taken() is not None
        del request
        prefetcher._thread.submit(int).result()
        assert taken() is None


def test_traces_are_read_once_on_demand_if_mpi_allows_no_threads(monkeypatch):
    monkeypatch.setattr(gathers, "threads_may_call_mpi", lambda: False)
    reader = Reader(through_mpi=True)
    with Prefetcher(reader) as prefetcher:
        traces = prefetcher.request(np.array([0]))
        assert reader.threads == []
        assert traces() is traces()
        assert reader.threads == [threading.main_thread()]
