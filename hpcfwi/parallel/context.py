"""The context of a rank: its number, device and host, and the collectives of the program.

`launch` makes the context, which is passed to all functions that need it. Only `recovery` changes
it, when ranks die and the others continue. The methods are collectives: all ranks must call them in
the same order, because the others would wait for a rank that leaves one out. The exceptions are
`bring_to_root`, which only rank 0 and the sender must call, `raise_on_all_ranks` and `close`.
`failure` describes what happens when a rank fails.
"""

from __future__ import annotations

import gc
import pickle
import socket
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import torch
import torch.distributed as dist
from numpy.typing import NDArray

from hpcfwi.parallel.store import Store
from hpcfwi.parallel.transport import MpiObjects, SignedObjects, hand_to_root, run_collective

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

BEGINNING = "its start"  # the work of a rank that has not reported any
BLOCK = 2**22  # cells that `reduce_scatter` adds up at a time: 32 MB of 64-bit integers


class Heartbeat:
    """The signs of life of a rank's main thread; other threads may read them at any time.

    work: description of the current work; signs: number of signs of life; pieces: number of
    completed pieces of work; waits: number of nested waits that the thread is in.
    """

    def __init__(self) -> None:
        self.work = BEGINNING
        self.signs, self.pieces, self.waits = 0, 0, 0

    def begin(self, work: str) -> None:
        """Begin some work, such as "epoch 7"."""
        self.work = work
        self.signs += 1

    def beat(self) -> None:
        """Note that a piece of work is done, such as a chunk of shots."""
        self.pieces += 1
        self.signs += 1

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark a wait for other ranks or for a disk, during which this rank is not late."""
        self.waits += 1
        self.signs += 1
        try:
            yield
        finally:
            self.waits -= 1
            self.signs += 1


@dataclass
class Context:
    """The number, device and host of one of `size` ranks, with its collectives.

    local_rank: number of the rank among those of its host; device: device of its tensors; sharers:
    number of ranks with the same GPU; threads: number of threads of torch and Numba; comm: MPI's
    communicator of all ranks, for parallel files and for ending the job, None if MPI does not know
    the ranks (torchrun, `alone`); store: a dictionary for communication outside of collectives,
    None for a single rank; hosts: the host of each rank; heartbeat: this rank's signs of life,
    for ranks that wait for it; leader: the `wave.engines.Leader` of the ranks that simulate shots
    together with this one, None if each rank simulates its own.

    fault_tolerant: True if the job survives the death of a rank, so that the others may continue.
    Then gloo replaces NCCL and carries objects too, each rank opens files by itself and writes them
    in the foreground, and ranks exit without `MPI_Finalize`, which may hang after a death.
    """

    rank: int
    size: int
    local_rank: int
    host: str
    device: torch.device
    threads: int
    comm: MPI.Comm | None = None
    store: Store | None = None
    hosts: tuple[str, ...] = ()
    sharers: int = 1
    fault_tolerant: bool = False
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    leader: Any = None

    @classmethod
    def alone(cls, device: str = "cpu", threads: int = 1) -> Context:
        """Return the context of a single rank without a launcher; its collectives do nothing."""
        return cls(0, 1, 0, socket.gethostname(), torch.device(device), threads)

    @property
    def shots_at_once(self) -> int:
        """Number of shots that this rank simulates at a time on a CPU.

        A thread simulates one shot, and all threads of a crew simulate one shot together.
        """
        return self.threads if self.leader is None else 1

    @property
    def is_root(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' tensors, which replaces each of them.

        The tensors are contiguous and on the CPU or on `device`. All ranks get the same bits, which
        depend on `size` for floating-point numbers.
        """
        if self.size > 1:
            with self.heartbeat.waiting():
                run_collective(dist.all_reduce, tensor, comm=self._comm_reporting_deaths)
                _wait_for_gpu(tensor)
        return tensor

    def reduce_scatter(self, tensor: torch.Tensor, size: int) -> torch.Tensor:
        """Return this rank's cells of the sum of the ranks' tensors, (cell,).

        These are `size` cells from the cell `rank * size` on, or fewer at the end. The tensors are
        contiguous, on the CPU or on `device`, and are not changed.
        """
        # Blocks of the tensors are all-reduced, and each rank takes its part. This is twice the
        # traffic of a reduce-scatter, which gloo lacks. Torch's reduce-scatter for gloo does not
        # report a death, and with one reduce for each rank each of n ranks would send n (n - 1)
        # messages.
        mine = tensor[self.rank * size : (self.rank + 1) * size].clone()
        if self.size == 1:
            return mine
        begin, end = self.rank * size, self.rank * size + mine.numel()
        with self.heartbeat.waiting():
            for first in range(0, tensor.numel(), BLOCK):
                block = tensor[first : first + BLOCK].clone()
                run_collective(dist.all_reduce, block, comm=self._comm_reporting_deaths)
                lowest, highest = max(first, begin), min(first + BLOCK, end)
                if lowest < highest:
                    mine[lowest - begin : highest - begin] = block[lowest - first : highest - first]
            _wait_for_gpu(mine)
        return mine

    def all_gather_pieces(self, piece: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks, (rank, ...).

        They are contiguous and have the same shape. For other objects there is `all_gather`.
        """
        if self.size == 1:
            return piece[None]
        pieces = piece.new_empty((self.size, *piece.shape))
        with self.heartbeat.waiting():
            run_collective(dist.all_gather, list(pieces), piece, comm=self._comm_reporting_deaths)
            _wait_for_gpu(pieces)
        return pieces

    def bring_to_root(self, array: NDArray[Any], source: int) -> None:
        """Fill rank 0's array with that of the rank `source`, of the same size and type.

        Both are contiguous. The other ranks' arrays are not changed, and these ranks do not wait.
        Rank 0 needs memory for one array only, even if one rank after another brings its array.
        """
        if source == 0 or self.rank not in (0, source):
            return
        with self.heartbeat.waiting():
            if self.comm is not None:
                hand_to_root(self.comm, array, source)
            elif self.is_root:
                dist.recv(torch.from_numpy(array), source)
            else:
                dist.send(torch.from_numpy(array), 0)

    def broadcast(self, value: T, source: int = 0) -> T:
        """Return the value of the rank `source` on all ranks; any object that pickles."""
        if self.size == 1:
            return value
        with self.heartbeat.waiting():
            sent: T = self._objects.broadcast(value, source)
        return sent

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank; any objects that pickle."""
        if self.size == 1:
            return [value]
        with self.heartbeat.waiting():
            return self._objects.all_gather(value)

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        # dist.barrier would use NCCL on GPUs, and synchronize the device
        self.sum(torch.zeros(1))

    def from_root(self, call: Callable[[], T]) -> T:
        """Run a function on rank 0 and return its result on every rank; collective.

        The result must pickle. An exception of the function is raised on every rank, so that no
        rank waits for rank 0. An exception that does not pickle becomes a RuntimeError.
        """
        if self.size == 1:
            return call()
        value: T | None = None
        error: BaseException | None = None
        if self.is_root:
            try:
                with self.heartbeat.waiting():
                    value = call()
            except Exception as raised:
                error = portable(raised)
        value, error = self.broadcast((value, error))
        if error is not None:
            try:
                self.raise_on_all_ranks(error)
            finally:
                del error
        return value  # type: ignore[return-value]  # T may itself be an optional type

    @staticmethod
    def raise_on_all_ranks(error: BaseException) -> NoReturn:
        """Raise an error that every rank raises here.

        The error is marked. Otherwise `failure` compares the errors of ranks, which takes up to 2
        s, and a rank whose error comes later counts as missing.
        """
        vars(error)["raised_on_all_ranks"] = True
        try:
            raise error
        finally:
            # A reference of a frame to its own error would keep the frames alive until garbage is
            # collected, and with them open files, which the ranks must close together.
            del error

    @property
    def _objects(self) -> MpiObjects | SignedObjects:
        # torch's group reports a death at once, while MPI may let the other ranks wait.
        if self.comm is not None and not self.fault_tolerant:
            return MpiObjects(cast("MPI.Intracomm", self.comm))
        assert self.store is not None, "several ranks have a store"
        return SignedObjects(self.rank, self.size, self.store, self._comm_reporting_deaths)

    @property
    def _comm_reporting_deaths(self) -> MPI.Comm | None:
        """The communicator if the job survives the death of a rank, otherwise None."""
        return self.comm if self.fault_tolerant else None

    def close(self) -> None:
        """Leave the process group if this has not been done; no collective can follow.

        The store stays open, because `failure` and `watch` use it until the process ends.
        """
        if dist.is_initialized():
            group = weakref.ref(dist.group.WORLD)
            dist.destroy_process_group()
            if group() is not None:
                gc.collect()  # frames of errors still refer to it, and keep its connections open


def _wait_for_gpu(tensor: torch.Tensor) -> None:
    """Wait for a collective of NCCL, which only queues it, so that the heartbeat shows the wait."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()


def portable(error: BaseException) -> BaseException:
    """Return the exception if it can be pickled, otherwise a RuntimeError with its message."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = None
    if type(copy) is type(error) and str(copy) == str(error):
        return error
    telling = RuntimeError(f"{type(error).__name__}: {error}")
    telling.__cause__ = error
    return telling
