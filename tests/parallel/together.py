"""Ranks that are threads of one process, for tests that need many ranks and send little data.

found = on_ranks(3, lambda context: context.all_gather_pieces(torch.ones(2)))
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from hpcfwi.parallel.context import Context

T = TypeVar("T")


class Thread(Context):
    """A rank in a thread; `sent` has the value that each rank has sent."""

    def meet(self, sent: list, barrier: threading.Barrier) -> None:
        self.__dict__["table"] = sent, barrier

    def _exchange(self, value):
        sent, barrier = self.__dict__["table"]
        barrier.wait()  # all ranks have read the previous values
        sent[self.rank] = value
        barrier.wait()
        return list(sent)

    def sum(self, tensor):
        tensor[...] = sum(self._exchange(tensor.clone()))
        return tensor

    def reduce_scatter(self, tensor, size):
        return sum(self._exchange(tensor))[self.rank * size : (self.rank + 1) * size]

    def all_gather_pieces(self, piece):
        return torch.stack(self._exchange(piece))

    def bring_to_root(self, array, source):
        found = self._exchange(array)[source]
        if self.is_root and source:
            array[...] = found
        self._exchange(None)  # the source may change its array after this

    def broadcast(self, value, source=0):
        return self._exchange(value)[source]

    def all_gather(self, value):
        return self._exchange(value)


def on_ranks(size: int, act: Callable[[Context], T], hosts: Sequence[str] = ()) -> list[T]:
    """Return the results of `act` on each rank; hosts: names of their hosts, by default one."""
    sent, barrier, names = [None] * size, threading.Barrier(size), tuple(hosts) or ("host",) * size
    ranks = [Thread(rank, size, rank, names[rank], torch.device("cpu"), 1) for rank in range(size)]

    def act_as(rank: Thread) -> T:
        rank.meet(sent, barrier)
        try:
            return act(rank)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(act_as, ranks))
