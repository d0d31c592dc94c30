"""Reading ahead: traces are read while something else is computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from hpcfwi.storage.gathers import GatherReader

Traces = Callable[[], NDArray[np.float32]]
Prepare = Callable[[NDArray[np.float32]], NDArray[np.float32]]


class Prefetcher(AbstractContextManager["Prefetcher"]):
    """Reads from a `GatherReader` in one background thread, in the order of the requests.

    Where reading goes through an MPI that allows no calls from a second thread, traces are read
    when they are asked for.

    prepare: what is done with the traces of a shot as soon as they are read, of so many shots at a
    time as there are threads.
    """

    def __init__(
        self, reader: GatherReader, prepare: Prepare | None = None, threads: int = 1
    ) -> None:
        self._reader, self._prepare = reader, prepare
        self._workers = ThreadPoolExecutor(threads, "prepare")
        threaded = not reader.through_mpi or _mpi_allows_threads()
        self._thread = ThreadPoolExecutor(1, "prefetch") if threaded else None

    def request(self, shots: NDArray[np.int64]) -> Traces:
        """Start to read these shots, possibly none.

        What is returned gives their traces (shot, receiver, time) as soon as they are read, as
        often as it is called, or raises what the reading raised; it holds them as long as it lives.
        """
        if self._thread is None:
            return cache(partial(self._read, shots))
        return self._thread.submit(self._read, shots).result

    def _read(self, shots: NDArray[np.int64]) -> NDArray[np.float32]:
        traces = self._reader.read(shots)
        if self._prepare is None or not shots.size:
            return traces
        return np.stack(list(self._workers.map(self._prepare, traces)))

    def close(self) -> None:
        """Wait for the thread; the reader stays open."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        self._workers.shutdown(wait=True)

    def __exit__(self, *_: object) -> None:
        self.close()


def _mpi_allows_threads() -> bool:
    # Importing mpi4py.MPI starts MPI: only where the reader uses it already
    from mpi4py import MPI

    return MPI.Query_thread() == MPI.THREAD_MULTIPLE
