"""Reading ahead: the next step's traces are read while this step's are computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hpcfwi.storage.gathers import GatherReader


class Prefetcher:
    """Reads one request ahead from a `GatherReader`, in one background thread.

    Besides what `take` has handed out it holds one request's traces, never more. Where reading
    goes through an MPI that allows no calls from a second thread, `take` reads by itself.
    """

    def __init__(self, reader: GatherReader) -> None:
        self._reader = reader
        threaded = not reader.through_mpi or _mpi_allows_threads()
        self._thread = ThreadPoolExecutor(1, "prefetch") if threaded else None
        self._pending: Callable[[], NDArray[np.float32]] | None = None

    def request(self, shots: NDArray[np.int64]) -> None:
        """Start to read these shots, possibly none; `take` what was asked before first."""
        if self._pending is not None:
            raise RuntimeError("one request at a time: take() the last one first")
        if self._thread is None:
            self._pending = partial(self._reader.read, shots)
        else:
            self._pending = self._thread.submit(self._reader.read, shots).result

    def take(self) -> NDArray[np.float32]:
        """The traces (shot, receiver, time) of the request, as soon as they are read.

        Raises what the reading raised.
        """
        if self._pending is None:
            raise RuntimeError("nothing was requested")
        pending, self._pending = self._pending, None
        return pending()

    def close(self) -> None:
        """Wait for the thread; the reader stays open."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _mpi_allows_threads() -> bool:
    # Importing mpi4py.MPI starts MPI: only where the reader uses it already
    from mpi4py import MPI

    return MPI.Query_thread() == MPI.THREAD_MULTIPLE
