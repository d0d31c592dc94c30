"""Waits for torch's collectives that end where a rank has died.

gloo tells of a death whoever has a message to come from the dead, or to go there, but not who has
one on its way: half sent or half received, it is waited for until the collective's timeout. Here
MPI is asked beside it. What becomes of a job whose ranks die is in `faults`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from mpi4py import MPI

LOOK = timedelta(seconds=0.5)  # from one question after deaths to the next

# What has been given up. A thread of its group waits in it for ever, and who destroys the group
# would wait for the thread.
_abandoned: list[Any] = []


def complete(collective: Callable[..., Any], *args: Any, comm: MPI.Comm | None) -> None:
    """Take part in one of torch's collectives until it is done.

    comm: the ranks, where some may die. Raises RuntimeError where that has kept it from an end.
    """
    if comm is None:
        collective(*args)
        return
    work, has_heard = collective(*args, async_op=True), False
    while not _is_done(work):
        if has_heard:  # gloo has had the time to tell of it by itself
            _abandoned.append((work, dist.group.WORLD))
            raise RuntimeError("a rank has died, and others wait for what was on its way")
        has_heard = hears_of_death(comm)


def hears_of_death(comm: MPI.Comm) -> bool:
    """Whether MPI has told this rank that another has died, or has given up as one has."""
    from mpi4py import MPI

    try:
        comm.Iprobe()  # in it, MPI takes in what it has been told
    except MPI.Exception:
        return True
    return False


def _is_done(work: dist.Work) -> bool:
    """Whether it is done, or will be within `LOOK`; raises what has made it fail."""
    try:
        work.wait(LOOK)
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # it may have ended meanwhile, and well
    return True
