"""A whole number that all ranks share, from which each takes without asking the others to wait.

What is counted is the schedule's business.
"""

from __future__ import annotations

import secrets
import sys
import threading
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from hpcfwi.parallel.context import Context
from hpcfwi.parallel.store import Store

if TYPE_CHECKING:
    from mpi4py import MPI

PROGRESS = 1e-3  # s between two looks of the helper thread


class Counter(Protocol):
    """Counts up from where it was set."""

    def reset(self, value: int) -> None:
        """Set it; called on all ranks, which must meet before any of them takes."""

    def take(self, amount: int) -> int:
        """Its value before `amount` was added; each is handed out to one rank only."""

    def close(self) -> None:
        """Give up what it needs; collective."""


def make_counter(context: Context) -> Counter:
    """A counter of several ranks: in memory of rank 0 where MPI can, else in its store; collective.

    Where ranks are on several hosts, MPI needs threads for it: see `_WindowCounter`. Where ranks
    may die, it is in the store, as MPI's windows do not outlive them.
    """
    if context.comm is not None and not context.survives:
        from mpi4py import MPI

        local = len(set(context.all_gather(context.host))) == 1
        if local or MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            return _WindowCounter(cast(MPI.Intracomm, context.comm), is_local=local)
    assert context.store is not None, "several ranks have a store"
    return _StoreCounter(context.store, context.broadcast(secrets.token_hex(8)))


class _WindowCounter:
    """One number in a window of rank 0's memory: fetch and add, which the others do by themselves.

    On one host they reach the memory. Over a network without remote atomics MPI answers them
    only while rank 0 is inside a call of MPI, which it is not for as long as it computes: a thread
    looks in now and then.
    """

    def __init__(self, comm: MPI.Intracomm, is_local: bool) -> None:
        from mpi4py import MPI

        self._comm, self._sum = comm, MPI.SUM
        self._window = MPI.Win.Allocate(8 if comm.rank == 0 else 0, 8, comm=comm)
        self._closed = threading.Event()
        self._helper: threading.Thread | None = None
        if comm.rank == 0 and not is_local:
            self._helper = threading.Thread(target=self._answer, name="counter", daemon=True)
            self._helper.start()
        # Not Lock_all, to which every rank would have to answer.
        self._window.Lock(0, MPI.LOCK_SHARED)

    def reset(self, value: int) -> None:
        if self._comm.rank == 0:
            self._window.tomemory()[:] = value.to_bytes(8, sys.byteorder)
            self._window.Sync()

    def take(self, amount: int) -> int:
        taken = np.zeros(1, dtype=np.int64)
        added = np.array([amount], dtype=np.int64)
        self._window.Fetch_and_op(added, taken, 0, 0, self._sum)
        self._window.Flush(0)
        return int(taken[0])

    def close(self) -> None:
        self._window.Unlock(0)
        self._comm.Barrier()
        self._closed.set()
        if self._helper is not None:
            self._helper.join()
        self._window.Free()

    def _answer(self) -> None:
        while not self._closed.wait(PROGRESS):
            self._comm.Iprobe()


class _StoreCounter:
    """A number in the store that rank 0 serves from a thread."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self._round, self._start = 0, 0

    def reset(self, value: int) -> None:
        self._round, self._start = self._round + 1, value

    def take(self, amount: int) -> int:
        return self._start + self._store.add(f"{self._name}/{self._round}", amount) - amount

    def close(self) -> None:
        """There is nothing to give up."""
