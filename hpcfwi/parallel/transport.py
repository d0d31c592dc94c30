"""The transport of Python objects between ranks, and collectives that end when a rank has died.

An object is sent as an outline, which is a pickle, followed by its arrays directly from memory,
because copying arrays into and out of a pickle takes many times as long as sending them. Data from
unknown senders are never unpickled. Objects are sent by MPI if it knows the ranks. Otherwise they
are sent by torch.distributed, whose sockets do not authenticate. Each part is then signed with the
secret of the job, and its signature is checked before it is unpickled.

gloo reports a death to ranks that wait for a message of the dead rank, but not to a rank that has
sent half of a message, which would wait until the timeout of the collective. Therefore MPI is
queried as well.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from hpcfwi.parallel.store import DIGEST, Store

if TYPE_CHECKING:
    from mpi4py import MPI


Bytes = NDArray[np.uint8]

# Arrays with fewer bytes are sent in the outline, because another message would take longer.
SMALL = 2**16


def take_apart(value: Any) -> tuple[bytes, list[Bytes]]:
    """Return the outline of an object, and views of its arrays, which are sent separately."""
    arrays: list[Bytes] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        array = np.frombuffer(buffer.raw(), np.uint8)
        if array.size > SMALL:
            arrays.append(array)
        return array.size <= SMALL

    outline = io.BytesIO()
    _Pickler(outline, protocol=5, buffer_callback=keep).dump(value)
    return pickle.dumps((outline.getvalue(), [array.size for array in arrays])), arrays


def find_sizes(outline: bytes) -> list[int]:
    """Return the sizes of an outline's arrays; the outline must be trusted, as it is unpickled."""
    _, sizes = pickle.loads(outline)
    return list(sizes)


def make_room(outline: bytes) -> list[Bytes]:
    """Return empty arrays for the arrays of an outline."""
    return [np.empty(size, np.uint8) for size in find_sizes(outline)]


def put_together(outline: bytes, arrays: list[Bytes]) -> Any:
    """Return the object of an outline with these arrays."""
    inner, _ = pickle.loads(outline)
    return pickle.loads(inner, buffers=arrays)


class _Pickler(pickle.Pickler):
    """A pickler that replaces tensors by NumPy arrays."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or value.requires_grad or not _is_plain(value):
            return NotImplemented
        flat = value.contiguous().reshape(-1).view(torch.uint8).numpy()
        return _make_tensor, (flat, value.dtype, value.shape)


def _is_plain(tensor: torch.Tensor) -> bool:
    on_cpu = tensor.device.type == "cpu" and tensor.layout == torch.strided
    return on_cpu and not tensor.is_conj() and not tensor.is_neg()


def _make_tensor(flat: Bytes, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    return torch.from_numpy(flat).view(dtype).reshape(shape)


LARGEST = 2**30  # bytes that are sent in one message of MPI
SPINS = 200  # tests without a pause, for a message that arrives soon
LONGEST_PAUSE = 1e-3  # s between two tests
FRAGMENT = 2**13  # least bytes that MPI transfers in a test; it transfers none between tests

# Buffers that MPI may still write to after an exception has ended the wait.
_abandoned: list[Any] = []


class _Objects(ABC):
    """Collectives of objects between ranks."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def broadcast(self, value: Any, source: int) -> Any:
        """Return the value of the rank `source`."""
        if self._rank != source:
            return self._receive_arrays(self._spread(b"", source), source)
        outline, arrays = take_apart(value)
        self._spread(outline, source)
        for array in arrays:
            self._carry(array, source)
        return value

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank; that of this rank is not a copy."""
        outline, arrays = take_apart(value)
        found = []
        for rank, other in enumerate(self._exchange(outline)):
            if rank != self._rank:
                found.append(self._receive_arrays(other, rank))
                continue
            for array in arrays:
                self._carry(array, rank)
            found.append(value)
        return found

    def gather(self, value: Any, agree: Callable[[], None]) -> list[Any] | None:
        """Return the values of all ranks on rank 0, None on the others.

        agree: called on all ranks before each transfer, after memory has been allocated for it.
        """
        outline, arrays = take_apart(value)
        agree()
        outlines = self._exchange(outline)
        rooms = [make_room(each) for each in outlines] if self._rank == 0 else []
        agree()
        found = [value]
        for rank in range(1, self._size):
            if self._rank in (0, rank):
                for array in rooms[rank] if self._rank == 0 else arrays:
                    self._hand_to_root(array, rank)
            if self._rank == 0:
                found.append(put_together(outlines[rank], rooms[rank]))
        return found if self._rank == 0 else None

    def _receive_arrays(self, outline: bytes, source: int) -> Any:
        arrays = make_room(outline)
        for array in arrays:
            self._carry(array, source)
        return put_together(outline, arrays)

    @abstractmethod
    def _spread(self, outline: bytes, source: int) -> bytes:
        """Return the outline of the source on all ranks."""

    @abstractmethod
    def _exchange(self, outline: bytes) -> list[bytes]:
        """Return the outlines of all ranks on all ranks."""

    @abstractmethod
    def _carry(self, array: Bytes, source: int) -> None:
        """Send an array from the source to the others, whose arrays are filled."""

    @abstractmethod
    def _hand_to_root(self, array: Bytes, source: int) -> None:
        """Send an array from the source to rank 0; called on these two ranks."""


class MpiObjects(_Objects):
    """Collectives of objects between the ranks of a communicator."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm

    def _spread(self, outline: bytes, source: int) -> bytes:
        size = np.array([len(outline)])
        _wait(self._comm.Ibcast(size, source), size)
        sent = np.frombuffer(outline, np.uint8) if outline else np.empty(size[0], np.uint8)
        self._carry(sent, source)
        return sent.tobytes()

    def _exchange(self, outline: bytes) -> list[bytes]:
        sent = np.frombuffer(outline, np.uint8)
        sizes = np.empty(self._size, np.int64)
        _wait(self._comm.Iallgather(np.array([sent.size]), sizes), sizes)
        if sizes.sum() > LARGEST:
            mine = [outline if rank == self._rank else b"" for rank in range(self._size)]
            return [self._spread(own, rank) for rank, own in enumerate(mine)]
        everything = np.empty(sizes.sum(), np.uint8)
        _wait(self._comm.Iallgatherv(sent, (everything, sizes)), (sent, everything))
        return [part.tobytes() for part in np.split(everything, sizes.cumsum()[:-1])]

    def _carry(self, array: Bytes, source: int) -> None:
        for part in np.split(array, range(LARGEST, array.size, LARGEST)):
            _wait(self._comm.Ibcast(part, source), part, part.size)

    def _hand_to_root(self, array: Bytes, source: int) -> None:
        hand_to_root(self._comm, array, source)


class SignedObjects(_Objects):
    """Collectives of objects between the ranks of a process group of torch, which are signed.

    store: a store of the ranks, which has the secret; comm: MPI's communicator if ranks may die and
    the others must notice it; group: None for torch's default group.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        store: Store,
        comm: MPI.Comm | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(rank, size)
        self._store, self._comm, self._group = store, comm, group

    def _spread(self, outline: bytes, source: int) -> bytes:
        message = self._pack(outline) if self._rank == source else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([message.numel()])
        self._run(dist.broadcast, size, source)
        if self._rank != source:
            message = torch.empty(int(size), dtype=torch.uint8)
        self._run(dist.broadcast, message, source)
        return self._unpack(message, source)

    def _exchange(self, outline: bytes) -> list[bytes]:
        message = self._pack(outline)
        sizes = torch.zeros(self._size, dtype=torch.int64)
        sizes[self._rank] = message.numel()
        self._run(dist.all_reduce, sizes)
        padded = torch.zeros(int(sizes.max()), dtype=torch.uint8)
        padded[: message.numel()] = message
        messages = [torch.empty_like(padded) for _ in range(self._size)]
        self._run(dist.all_gather, messages, padded)
        return [self._unpack(messages[rank][: sizes[rank]], rank) for rank in range(self._size)]

    def _carry(self, array: Bytes, source: int) -> None:
        self._run(dist.broadcast, _as_tensor(array), source)
        digest = hashlib.sha256(array.data).digest()
        if self._spread(digest if self._rank == source else b"", source) != digest:
            raise RuntimeError(f"an array from rank {source} was changed in transit")

    def _hand_to_root(self, array: Bytes, source: int) -> None:
        if self._rank == 0:
            dist.recv(_as_tensor(array), source, group=self._group)
        else:
            dist.send(_as_tensor(array), 0, group=self._group)

    def _run(self, collective: Callable[..., Any], *args: Any) -> None:
        run_collective(partial(collective, group=self._group), *args, comm=self._comm)

    def _pack(self, outline: bytes) -> torch.Tensor:
        signed = self._sign(outline, self._rank) + outline
        return torch.frombuffer(bytearray(signed), dtype=torch.uint8)

    def _unpack(self, message: torch.Tensor, source: int) -> bytes:
        content = message.numpy().tobytes()
        signature, outline = content[:DIGEST], content[DIGEST:]
        if not hmac.compare_digest(signature, self._sign(outline, source)):
            raise RuntimeError(f"a message from rank {source} is not signed with this job's secret")
        return outline

    def _sign(self, outline: bytes, source: int) -> bytes:
        return self._store.sign(b"object", source.to_bytes(8, "big"), outline)


def _as_tensor(array: Bytes) -> torch.Tensor:
    # Torch warns about read-only arrays, even if they are not written.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def hand_to_root(comm: MPI.Comm, array: NDArray[Any], source: int) -> None:
    """Copy an array of the rank `source` into that of rank 0; called on these two ranks."""
    flat = array.reshape(-1).view(np.uint8)
    for part in np.split(flat, range(LARGEST, flat.size, LARGEST)):
        request = comm.Irecv(part, source) if comm.rank == 0 else comm.Isend(part, 0)
        _wait(request, part, part.size)


def _wait(request: MPI.Request, buffers: Any, n_bytes: int = 0) -> None:
    """Wait for a message and leave the core to other threads, which MPI's wait does not.

    n_bytes: size of a message whose other side is ready; it would take long with few tests.
    """
    try:
        looks, pause = 0, 1e-5
        while not request.Test():
            looks += 1
            if looks > SPINS + n_bytes // FRAGMENT:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            elif looks > SPINS:
                os.sched_yield()
    except BaseException:
        _abandoned.append((request, buffers))
        raise


PROBE_PAUSE = timedelta(seconds=0.5)  # time between two queries for deaths

# Collectives that were given up, with their groups. A thread of the group waits for ever in each of
# them, and destroying the group would wait for this thread.
_abandoned_collectives: list[Any] = []


def run_collective(collective: Callable[..., Any], *args: Any, comm: MPI.Comm | None) -> None:
    """Take part in one of torch's collectives until it is done.

    comm: MPI's communicator if ranks may die. Raises RuntimeError if it cannot end after a death.
    """
    if comm is None:
        collective(*args)
        return
    work, has_heard = collective(*args, async_op=True), False
    while not _is_done(work):
        if has_heard:  # gloo has had time to report the death, but has not
            _abandoned_collectives.append((work, dist.group.WORLD))
            raise RuntimeError("a rank has died during a collective operation")
        has_heard = hears_of_death(comm)


def hears_of_death(comm: MPI.Comm) -> bool:
    """Return True if MPI has reported a death, or that ranks have given up because of one."""
    from mpi4py import MPI

    try:
        comm.Iprobe()  # MPI receives its notifications within this call
    except MPI.Exception:
        return True
    return False


def threads_may_call_mpi() -> bool:
    """Return True if MPI, which has been started, allows calls from several threads at a time."""
    from mpi4py import MPI

    return MPI.Query_thread() == MPI.THREAD_MULTIPLE


def _is_done(work: dist.Work) -> bool:
    """Return True if a collective is done within `PROBE_PAUSE`; raises its error, if any."""
    try:
        work.wait(PROBE_PAUSE)
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # it may have succeeded after the timeout, otherwise this raises its error
    return True
