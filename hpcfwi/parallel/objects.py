"""Python objects on their way between ranks, as pickles: nothing is unpickled that others may send.

Over MPI where it knows the ranks. Elsewhere through torch.distributed, whose sockets ask nobody who
he is: there each pickle is signed with the job's secret, and read after that was checked. Arrays
are added up in `context`, and do not come here.
"""

from __future__ import annotations

import hmac
import pickle
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from hpcfwi.parallel.store.connection import Store
from hpcfwi.parallel.waiting import complete

if TYPE_CHECKING:
    from mpi4py import MPI

LARGEST = 2**30  # bytes that MPI carries at a time
LOOKS = 200  # at a message that may come at once, before the core is left to others
LONGEST_PAUSE = 1e-3  # s between two looks
_DIGEST = 32  # bytes

# What MPI may still write to after an exception has ended the wait for it.
_abandoned: list[Any] = []


class MpiObjects:
    """Between the ranks of a communicator; both calls are collective."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm

    def broadcast(self, value: Any, source: int) -> Any:
        """The value of the rank `source`."""
        is_source = self._comm.rank == source
        pickled = np.frombuffer(pickle.dumps(value), np.uint8) if is_source else np.empty(0, "u1")
        size = np.array([pickled.size])
        _wait(self._comm.Ibcast(size, source), size)
        if not is_source:
            pickled = np.empty(size[0], np.uint8)
        for part in np.split(pickled, range(LARGEST, pickled.size, LARGEST)):
            _wait(self._comm.Ibcast(part, source), part)
        return value if is_source else pickle.loads(pickled.data)

    def all_gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank."""
        pickled = np.frombuffer(pickle.dumps(value), np.uint8)
        sizes = np.empty(self._comm.size, np.int64)
        _wait(self._comm.Iallgather(np.array([pickled.size]), sizes), sizes)
        if sizes.sum() > LARGEST:
            return [self.broadcast(value, rank) for rank in range(self._comm.size)]
        everything = np.empty(sizes.sum(), np.uint8)
        _wait(self._comm.Iallgatherv(pickled, (everything, sizes)), (pickled, everything))
        return [pickle.loads(part.data) for part in np.split(everything, sizes.cumsum()[:-1])]


class SignedObjects:
    """The same between the ranks of torch's process group, who have a store, and so a secret.

    comm: the ranks, where some may die and the others are to be told.
    """

    def __init__(self, rank: int, size: int, store: Store, comm: MPI.Comm | None = None) -> None:
        self._rank, self._size, self._store, self._comm = rank, size, store, comm

    def broadcast(self, value: Any, source: int) -> Any:
        is_source = self._rank == source
        message = self._pack(value) if is_source else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([message.numel()])
        complete(dist.broadcast, size, source, comm=self._comm)
        if not is_source:
            message = torch.empty(int(size), dtype=torch.uint8)
        complete(dist.broadcast, message, source, comm=self._comm)
        return value if is_source else self._unpack(message, source)

    def all_gather(self, value: Any) -> list[Any]:
        message = self._pack(value)
        sizes = torch.zeros(self._size, dtype=torch.int64)
        sizes[self._rank] = message.numel()
        complete(dist.all_reduce, sizes, comm=self._comm)
        padded = torch.zeros(int(sizes.max()), dtype=torch.uint8)
        padded[: message.numel()] = message
        messages = [torch.empty_like(padded) for _ in range(self._size)]
        complete(dist.all_gather, messages, padded, comm=self._comm)
        return [self._unpack(messages[rank][: sizes[rank]], rank) for rank in range(self._size)]

    def _pack(self, value: Any) -> torch.Tensor:
        pickled = pickle.dumps(value)
        signature = self._sign(pickled, self._rank)
        return torch.frombuffer(bytearray(signature + pickled), dtype=torch.uint8)

    def _unpack(self, message: torch.Tensor, source: int) -> Any:
        content = message.numpy().tobytes()
        signature, pickled = content[:_DIGEST], content[_DIGEST:]
        if not hmac.compare_digest(signature, self._sign(pickled, source)):
            raise RuntimeError(f"what came from rank {source} is not signed with this job's secret")
        return pickle.loads(pickled)

    def _sign(self, pickled: bytes, source: int) -> bytes:
        return self._store.sign(b"object", source.to_bytes(8, "big"), pickled)


def _wait(request: MPI.Request, buffers: Any) -> None:
    """Wait for a message, and leave the core to others, as MPI's own way of waiting does not."""
    try:
        looks, pause = 0, 1e-5
        while not request.Test():
            looks += 1
            if looks > LOOKS:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
    except BaseException:
        _abandoned.append((request, buffers))
        raise
