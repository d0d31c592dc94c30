"""Threads that read traces before they are needed, and that write files in the background.

The caller decides what is written and in which order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import ParamSpec

import numpy as np
from numpy.typing import NDArray

from hpcfwi.parallel.transport import threads_may_call_mpi
from hpcfwi.storage.gathers import GatherReader

Traces = Callable[[], NDArray[np.float32]]
Prepare = Callable[[NDArray[np.float32], int], NDArray[np.float32]]


class Prefetcher(AbstractContextManager["Prefetcher"]):
    """A thread that reads from a `GatherReader` in the order of the requests.

    If reading calls an MPI library that does not allow calls from a second thread, traces are read
    only when they are needed.

    prepare: a function that is applied to the traces and the number of each shot when they are
    read, in `threads` threads.
    """

    def __init__(
        self, reader: GatherReader, prepare: Prepare | None = None, threads: int = 1
    ) -> None:
        self._reader, self._prepare = reader, prepare
        self._workers = ThreadPoolExecutor(threads, "prepare")
        threaded = not reader.through_mpi or threads_may_call_mpi()
        self._thread = ThreadPoolExecutor(1, "prefetch") if threaded else None

    def request(self, shots: NDArray[np.int64]) -> Traces:
        """Start to read these shots, possibly none, and return a function that returns the traces.

        The function waits for the traces (shot, receiver, time), or raises the error of reading. It
        may be called several times, and keeps the traces in memory as long as it exists.
        """
        if self._thread is None:
            return cache(partial(self._read, shots))
        return self._thread.submit(self._read, shots).result

    def _read(self, shots: NDArray[np.int64]) -> NDArray[np.float32]:
        traces = self._reader.read(shots)
        if self._prepare is None or not shots.size:
            return traces
        return np.stack(list(self._workers.map(self._prepare, traces, shots)))

    def close(self) -> None:
        """Wait for the thread to end; the reader stays open."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        self._workers.shutdown(wait=True)

    def __exit__(self, *_: object) -> None:
        self.close()


P = ParamSpec("P")

# Number of jobs that may wait for the current one, because each of them takes memory.
WAITING = 1

log = logging.getLogger("hpcfwi")


class BackgroundWriter(AbstractContextManager["BackgroundWriter"]):
    """A thread that runs jobs in order; a job writes files.

    An error of a job is raised at the next call and at all later calls, and later jobs are not run,
    because a checkpoint implies that the files before it exist. Close the writer, or use it in a
    `with` statement. It is used by one thread on rank 0. Jobs may use HDF5, which allows one thread
    at a time, and must not call MPI. behind: if False, `submit` returns only when the job is done.
    """

    def __init__(self, behind: bool = True) -> None:
        self._thread = ThreadPoolExecutor(1, "writer")
        self._behind = behind
        self._under_way: deque[Future[None]] = deque()
        self._error: BaseException | None = None

    def submit(self, job: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Queue `job(*args, **kwargs)`; wait while `WAITING` other jobs are queued.

        The arguments must not be changed afterwards. Raises the exception of an earlier job.
        """
        self._wait(WAITING)

        def work() -> None:
            if self._error is None:
                try:
                    job(*args, **kwargs)
                except BaseException as error:
                    self._error = error

        self._under_way.append(self._thread.submit(work))
        if not self._behind:
            self.flush()

    def check(self) -> None:
        """Raise the exception of a job, without waiting for others."""
        if self._error is not None:
            raise self._error

    def flush(self) -> None:
        """Wait until all jobs are done; raises the exception of a job."""
        self._wait(0)

    def close(self) -> None:
        """End the thread after all jobs; raises the exception of a job."""
        self._thread.shutdown(wait=True)
        self.flush()

    def _wait(self, most: int) -> None:
        """Wait until at most `most` jobs are queued or running."""
        while self._under_way and (len(self._under_way) > most or self._under_way[0].done()):
            self._under_way.popleft().result()
        self.check()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            # The program reports the error that ends it; another error is only reported here.
            if str(failure) != str(error):
                log.warning("%s", failure)
