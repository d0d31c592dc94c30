"""Recovery from the death of a rank within the same job, where MPI can do that.

This is user-level failure mitigation (ULFM): Open MPI 5 under `mpirun --with-ft ulfm`;
`Context.fault_tolerant` tells. Elsewhere nothing here does anything: the launcher ends the job with
the rank, and `failure` says how.

A death shows as an exception in a collective, but not on every rank: some only wait for others
that have given up, some have all that they need and go on. So every stretch of work ends with an
agreement on whether it went well everywhere. If not, the ranks that are left give up what they
are in, find out who they are, connect again and repeat the stretch. An error of a rank's own ends
the job as ever.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from torch import Tensor

from hpcfwi.parallel.context import Context
from hpcfwi.parallel.failure import follows_death
from hpcfwi.parallel.launch import connect, find_ranks
from hpcfwi.parallel.replicas import hash_bits

if TYPE_CHECKING:
    from mpi4py import MPI


T = TypeVar("T")

log = logging.getLogger("hpcfwi")


def retry_after_death(
    context: Context, work: Callable[[], T], rejoin: Callable[[], None] | None = None
) -> T:
    """Run `work` until it has succeeded on all ranks that are left, and return its result.

    After a death, `context` becomes that of the others (rank, size, local_rank, comm, store and
    hosts change), and all of them run `rejoin`, if given, and `work` again, which must be able to
    resume what a death has interrupted: a rank's own results are still there, those of the dead are
    not. The result is the same; lasting changes are made afterwards. Stretches of work follow one
    another and do not nest, so that all ranks are in the same one. Collective.

    Raises the exceptions of `work` that are no consequence of a death.
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
        if not done:  # not above, where the error's frames still refer to the group
            _turn_away(context)
        if _agree(_comm(context), done):
            return result  # type: ignore[return-value]  # T may itself be an optional type
        _regroup(context)
        has_regrouped = True


def poll_deaths(context: Context) -> None:
    """Raise RuntimeError if a rank has died, as far as MPI has told this one; takes no time.

    For `work` that computes for long between two collectives, so that the others need not wait
    for its end.
    """
    if context.fault_tolerant:
        _comm(context).Iprobe()


class Salvage(Generic[T]):
    """The results of this rank in work that all ranks share, for a repetition after a death.

    If jobs do not survive a death, it stores nothing and does not communicate.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kept: dict[Hashable, T] = {}

    def take_up(self, fresh: T, *what: object) -> T:
        """Return the results from before a death, else `fresh`, which is stored from now on.

        what: arrays, and objects with a telling repr, that identify the work.
        """
        if not self._context.fault_tolerant:
            return fresh
        # An array that differs is another step of the same run, which a sum of its bits tells
        same = tuple(
            (hash_bits(part), part.shape) if isinstance(part, Tensor) else repr(part)
            for part in what
        )
        self._kept = {same: self._kept.get(same, fresh)}
        return self._kept[same]

    def gather(self, done: Iterable[int]) -> list[int]:
        """The numbers of what any rank that is left has done before; collective."""
        if not self._context.fault_tolerant:
            return []
        return [number for numbers in self._context.all_gather([*done]) for number in numbers]


def _regroup(context: Context) -> None:
    """Connect the ranks that are left, until none dies meanwhile; collective over them."""
    began = time.monotonic()
    size, hosts, comm = context.size, context.hosts, _comm(context)
    _turn_away(context)  # once more on those that had an error, which does nothing
    while True:
        fewer = comm.Shrink()
        error: Exception | None = None
        try:
            world = find_ranks(fewer, fault_tolerant=True)
            store = connect(world) if world.size > 1 else None
            left = fewer.allgather(context.rank)
        except Exception as raised:
            error = raised
            fewer.Revoke()  # others may have connected, and wait for this rank to say so
        if _agree(fewer, error is None):
            break
        if error is not None and fewer.size == comm.size:
            raise error
        context.close()
        comm = fewer
    if context.store is not None:
        context.store.close()
    context.rank, context.size, context.local_rank = world.rank, world.size, world.local_rank
    context.comm, context.store = fewer, store
    context.hosts = tuple(hosts[rank] for rank in left)
    if context.is_root:
        dead = [f"{rank} on {hosts[rank]}" for rank in range(size) if rank not in left]
        log.warning(
            "Died: rank %s. Going on with %d of %d ranks, connected again in %.0f ms",
            ", rank ".join(dead),
            context.size,
            size,
            1e3 * (time.monotonic() - began),
        )


def _turn_away(context: Context) -> None:
    """Give the collectives up, so that those that wait for this rank in one learn it as well."""
    context.close()
    _comm(context).Revoke()


def _agree(comm: MPI.Comm, done: bool) -> bool:
    """Return True if all ranks are done and none has died; the same answer on all."""
    from mpi4py import MPI

    try:
        return bool(comm.Agree(int(done)))
    except MPI.Exception:
        return False


def _comm(context: Context) -> MPI.Comm:
    assert context.comm is not None, "ranks that survive are MPI's"
    return context.comm
