"""Recovery from the death of a rank within the same job, if MPI supports it.

MPI supports it by user-level failure mitigation (ULFM), in Open MPI 5 with `mpirun --with-ft ulfm`;
`Context.fault_tolerant` is then True. Otherwise these functions have no effect: the launcher ends
the job after a death, as described in `failure`.

A death appears as an exception in a collective, but not on every rank: some ranks only wait for
others that have given up, and some already have the data that they need and continue. Each part of
the work therefore ends with an agreement on whether it succeeded on all ranks. If it did not, the
remaining ranks give up their work, find each other, connect again and repeat this part. Other
errors of a rank end the job as usual.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from torch import Tensor

from hpcfwi.parallel.context import Context
from hpcfwi.parallel.failure import follows_death, surviving
from hpcfwi.parallel.launch import connect, find_rank
from hpcfwi.parallel.replicas import hash_bits

if TYPE_CHECKING:
    from mpi4py import MPI


T = TypeVar("T")

log = logging.getLogger("hpcfwi")


def retry_after_death(
    context: Context, work: Callable[[], T], rejoin: Callable[[], None] | None = None
) -> T:
    """Run `work` until it has succeeded on all remaining ranks, and return its result; collective.

    After a death, `context` is changed to that of the remaining ranks (rank, size, local_rank,
    comm, store and hosts), and all of them run `rejoin`, if given, and `work` again. `work` must
    therefore be repeatable and be prepared for the files of an interrupted attempt. In a
    repetition the results of the remaining ranks may be used again (see `Salvage`), but those of
    the dead rank are lost. Calls must not be nested, so that all ranks are in the same one.

    Raises the exceptions of `work` that are not consequences of a death.
    """
    if not context.fault_tolerant:
        return work()
    result: T | None = None
    has_regrouped = False
    while True:
        done = True
        try:
            if has_regrouped and rejoin is not None:
                rejoin()
            result = work()
        except RuntimeError as error:
            if not follows_death(error, context):
                raise
            done = False
        if not done:  # not in the except clause, where the error's frames still refer to the group
            _turn_away(context)
        if _agree(surviving(context), done):
            return result  # type: ignore[return-value]  # T may itself be an optional type
        _regroup(context)
        has_regrouped = True


def raise_if_rank_failed(context: Context) -> None:
    """Raise RuntimeError if MPI has reported a death to this rank; takes almost no time.

    This is for `work` that computes for long between two collectives, so that the others need not
    wait for its end.
    """
    if context.fault_tolerant:
        surviving(context).Iprobe()


class Salvage(Generic[T]):
    """Storage of this rank's results of shared work, for a repetition after a death.

    If jobs do not survive a death, it stores nothing and does not communicate.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kept: dict[Hashable, T] = {}

    def take_up(self, fresh: T, *what: object) -> T:
        """Return the stored results of this work, otherwise store and return `fresh`.

        what: arrays, and objects with a unique repr, that identify the work.
        """
        if not self._context.fault_tolerant:
            return fresh
        # Arrays are compared by a checksum; they differ if they belong to another step of the run.
        same = tuple(
            (hash_bits(part), part.shape) if isinstance(part, Tensor) else repr(part)
            for part in what
        )
        self._kept = {same: self._kept.get(same, fresh)}
        return self._kept[same]

    def gather(self, done: Iterable[int]) -> list[int]:
        """Return the numbers of the items that a remaining rank has already done; collective."""
        if not self._context.fault_tolerant:
            return []
        return [number for numbers in self._context.all_gather([*done]) for number in numbers]


def _regroup(context: Context) -> None:
    """Connect the remaining ranks, and repeat this if another one dies; collective over them."""
    began = time.monotonic()
    size, hosts, comm = context.size, context.hosts, surviving(context)
    _turn_away(context)  # has no effect on those that had an error and did it before
    while True:
        fewer = comm.Shrink()
        error: Exception | None = None
        try:
            this = find_rank(context, fewer)
            this.store = connect(this) if this.size > 1 else None
            left = fewer.allgather(context.rank)
        except Exception as raised:
            error = raised
            fewer.Revoke()  # others may have connected, and wait for this rank
        if _agree(fewer, error is None):
            break
        if error is not None and fewer.size == comm.size:
            raise error
        context.close()
        comm = fewer
    if context.store is not None:
        context.store.close()
    context.rank, context.size, context.local_rank = this.rank, this.size, this.local_rank
    context.comm, context.store = fewer, this.store
    context.hosts = tuple(hosts[rank] for rank in left)
    if context.is_root:
        dead = [f"{rank} on {hosts[rank]}" for rank in range(size) if rank not in left]
        log.warning(
            "Died: rank %s. Continuing with %d of %d ranks, reconnected in %.0f ms",
            ", rank ".join(dead),
            context.size,
            size,
            1e3 * (time.monotonic() - began),
        )


def _turn_away(context: Context) -> None:
    """Give up the collectives, so that ranks that wait for this rank in one get an error."""
    context.close()
    surviving(context).Revoke()


def _agree(comm: MPI.Comm, done: bool) -> bool:
    """Return True if all ranks are done and none has died; the same result on all ranks."""
    from mpi4py import MPI

    try:
        return bool(comm.Agree(int(done)))
    except MPI.Exception:
        return False
