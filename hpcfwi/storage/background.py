"""Reading and writing in the background: traces are read ahead, files are written by a thread.

The caller decides what is written, and in which order.
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

        Return a function that waits for the traces (shot, receiver, time), as often as it is
        called, or raises the error of reading. It holds the traces as long as it exists.
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


P = ParamSpec("P")

# So many jobs may wait for the one that is being done: what each holds takes memory.
WAITING = 1

log = logging.getLogger("hpcfwi")


class BackgroundWriter(AbstractContextManager["BackgroundWriter"]):
    """A thread that runs jobs in order; a job writes files.

    An error of a job is raised at the next call and at all that follow, and later jobs are not run:
    a checkpoint must not say that the files before it exist. Close the writer, or use it in a
    `with` statement. One thread uses it, on rank 0 alone. Jobs may use HDF5, which admits one
    thread at a time, and must not call MPI. behind: if False, `submit` returns when the job is
    done.
    """

    def __init__(self, behind: bool = True) -> None:
        self._thread = ThreadPoolExecutor(1, "writer")
        self._behind = behind
        self._under_way: deque[Future[None]] = deque()
        self._error: BaseException | None = None

    def submit(self, job: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have `job(*args, **kwargs)` done soon; waits while `WAITING` others wait.

        The arguments must be copies: nobody may change them any more.
        Raises what an earlier job raised.
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

    def flush(self) -> None:
        """Wait until all that was handed over is on disk; raises what a job raised."""
        self._wait(0)

    def close(self) -> None:
        """`flush`, and end the thread."""
        self._thread.shutdown(wait=True)
        self.flush()

    def _wait(self, most: int) -> None:
        """Wait until at most so many jobs are under way."""
        while self._under_way and (len(self._under_way) > most or self._under_way[0].done()):
            self._under_way.popleft().result()
        if self._error is not None:
            raise self._error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            # What ends the program is told at its end; this only here, unless it is the same
            if str(failure) != str(error):
                log.warning("%s", failure)
