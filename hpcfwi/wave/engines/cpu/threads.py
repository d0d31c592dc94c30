"""Threads that share one shot, and where they wait for one another, compiled.

A barrier is one counter, to which every thread adds one when it comes; all go on when the count is
a multiple of their number. A thread that waits looks a few hundred times, then gives its core away
at each look, so that a thread that was put off a core gets it back.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

LOOKS = 300

_give_way = types.ExternalFunction("sched_yield", types.intc())


class ThreadTeam(NamedTuple):
    """The threads of one shot, as one of them sees them.

    rank, size: it is number `rank` of `size`; arrivals: (1,) int64, theirs in common, 0 at first.
    """

    rank: int
    size: int
    arrivals: NDArray[np.int64]


def run_team(size: int, work: Callable[[ThreadTeam], None]) -> None:
    """Do the same work on `size` threads, each with its rank in the team."""
    arrivals = np.zeros(1, np.int64)
    teams = [ThreadTeam(rank, size, arrivals) for rank in range(size)]
    if size == 1:
        work(teams[0])
        return
    with make_threads(size) as threads:
        list(threads.map(work, teams))


def make_threads(size: int) -> ThreadPoolExecutor:
    """Threads in which numbers below 1e-38 become 0; ahead of a wave they would slow it tenfold."""
    return ThreadPoolExecutor(size, initializer=torch.set_flush_denormal, initargs=(True,))


@intrinsic
def _arrive(typing_context, array):
    """Add one to the array's first element, and return what it was."""

    def generate(context, builder, signature, args):
        one = ir.Constant(ir.IntType(64), 1)
        place = context.make_array(signature.args[0])(context, builder, value=args[0]).data
        return builder.atomic_rmw("add", place, one, "acq_rel")

    return types.int64(array), generate


@intrinsic
def _look(typing_context, array):
    """The array's first element, as other threads have left it."""

    def generate(context, builder, signature, args):
        place = context.make_array(signature.args[0])(context, builder, value=args[0]).data
        return builder.load_atomic(place, "acquire", 8)

    return types.int64(array), generate


@njit(nogil=True)
def barrier(team):
    """Wait until all threads of the team are here."""
    if team.size > 1:
        arrived: int = _arrive(team.arrivals)  # type: ignore[call-arg]
        target = (arrived // team.size + 1) * team.size
        looks = 0
        while _look(team.arrivals) < target:
            looks += 1
            if looks > LOOKS:
                _give_way()
