"""Context: what a rank knows of itself, and the collectives that the program uses.

It is made once, by `launch`, and handed down; only `recovery` changes it, where ranks die and the
others go on. A collective (every method but `close`) is called on all ranks in the same order, or
on none: a rank that leaves one out makes the others wait. `failure` says what happens when a rank
fails.
"""

from __future__ import annotations

import gc
import pickle
import socket
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import torch
import torch.distributed as dist
from numpy.typing import NDArray

from hpcfwi.parallel.liveness import Heartbeat
from hpcfwi.parallel.store import Store
from hpcfwi.parallel.transport import MpiObjects, SignedObjects, complete, hand_to_root

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

BLOCK = 2**22  # cells that are added up at a time where ranks have pieces: 32 MB of whole numbers


@dataclass
class Context:
    """The knowledge of one of `size` ranks, with its collectives.

    local_rank: its number among the ranks of its host; device: that of its tensors; sharers: number
    of ranks with the same GPU; threads: those of torch and Numba; comm: the communicator of all
    ranks, for parallel files and for ending the job, None if MPI does not know the ranks
    (torchrun, `alone`); store: a dictionary for ranks that cannot trust collectives any more, None
    for a single rank; hosts: of all ranks, by rank; heartbeat: this rank's signs of life, for ranks
    that wait for it.

    fault_tolerant: True if the job outlives its ranks, so that the others may continue; a file must
    then not be opened by all ranks together, as it could not be closed without a dead one.
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

    @classmethod
    def alone(cls, device: str = "cpu", threads: int = 1) -> Context:
        """A single rank that no launcher started; its collectives have nothing to do."""
        return cls(0, 1, 0, socket.gethostname(), torch.device(device), threads)

    @property
    def is_root(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of the ranks' tensors: in place, contiguous, on the CPU or on `device`.

        Every rank ends with the same bits, but in floating point they depend on `size`.
        """
        if self.size > 1:
            with self.heartbeat.waiting():
                complete(dist.all_reduce, tensor, comm=self._mortals)
                _wait_for_gpu(tensor)
        return tensor

    def sum_pieces(self, pieces: list[torch.Tensor]) -> torch.Tensor:
        """This rank's piece of the sum of the ranks' tensors, which come in one piece a rank.

        Each of the same shape on all of them, contiguous, on the CPU or on `device`; they stay as
        they are.
        """
        # All-reduces of a block of all pieces at a time, of which each rank takes what is its own:
        # twice a reduce-scatter's traffic. gloo has none, torch's for gloo does not tell of a
        # death, and one reduce for each piece takes n (n - 1) messages of each of n ranks.
        if self.size == 1:
            return pieces[0].clone()
        flat = [piece.reshape(-1) for piece in pieces]
        begins = [0, *accumulate(map(torch.Tensor.numel, flat))]
        mine, begin = torch.empty_like(flat[self.rank]), begins[self.rank]
        with self.heartbeat.waiting():
            for first in range(0, begins[-1], BLOCK):
                block = _take_block(flat, begins, first)
                complete(dist.all_reduce, block, comm=self._mortals)
                lowest, end = max(first, begin), min(first + BLOCK, begin + mine.numel())
                if lowest < end:
                    mine[lowest - begin : end - begin] = block[lowest - first : end - first]
            _wait_for_gpu(mine)
        return mine.view(pieces[self.rank].shape)

    def gather_pieces(self, piece: torch.Tensor) -> torch.Tensor:
        """The ranks' tensors, (rank, ...), all of one shape; contiguous, where those of `sum` are.

        For objects there is `all_gather`.
        """
        if self.size == 1:
            return piece[None]
        pieces = piece.new_empty((self.size, *piece.shape))
        with self.heartbeat.waiting():
            complete(dist.all_gather, list(pieces), piece, comm=self._mortals)
            _wait_for_gpu(pieces)
        return pieces

    def bring_to_root(self, array: NDArray[Any], source: int) -> None:
        """Fill rank 0's array with that of the rank `source`, of the same size and type.

        Both are contiguous; those of other ranks stay as they are, and these do not wait. Rank 0
        has room for one array, whatever the number of those that ranks bring one after the other.
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
        """A rank's value, which can be anything that pickles; the other ranks' is ignored."""
        if self.size == 1:
            return value
        with self.heartbeat.waiting():
            sent: T = self._objects.broadcast(value, source)
        return sent

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, by rank; anything that pickles."""
        if self.size == 1:
            return [value]
        with self.heartbeat.waiting():
            return self._objects.all_gather(value)

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        # Not dist.barrier, which on GPUs would go through NCCL and synchronise the device.
        self.sum(torch.zeros(1))

    def from_root(self, call: Callable[[], T]) -> T:
        """Run a function on rank 0 and return its result on every rank; collective.

        The result must pickle. An exception of the function is raised on every rank, so that none
        waits for a rank that has failed. One that does not pickle becomes a RuntimeError.
        """
        if self.size == 1:
            return call()
        value: T | None = None
        error: Exception | None = None
        if self.is_root:
            try:
                with self.heartbeat.waiting():
                    value = call()
            except Exception as raised:
                error = portable(raised)
        value, error = self.broadcast((value, error))
        if error is not None:
            try:
                self.raise_alike(error)
            finally:
                del error
        return value  # type: ignore[return-value]  # T may itself be an optional type

    def raise_alike(self, error: BaseException) -> NoReturn:
        """Raise an error that every rank raises here, so that none waits to see who else does."""
        vars(error)["raised_alike"] = True
        try:
            raise error
        finally:
            # An error that its own frames refer to stays until garbage is collected, and with it
            # the files that these frames hold, which ranks must close together.
            del error

    @property
    def _objects(self) -> MpiObjects | SignedObjects:
        # torch's group tells at once of a rank that has died; MPI may let the others wait.
        if self.comm is not None and not self.fault_tolerant:
            return MpiObjects(cast("MPI.Intracomm", self.comm))
        assert self.store is not None, "several ranks have a store"
        return SignedObjects(self.rank, self.size, self.store, self._mortals)

    @property
    def _mortals(self) -> MPI.Comm | None:
        """The ranks, where one that dies must not keep the others waiting."""
        return self.comm if self.fault_tolerant else None

    def close(self) -> None:
        """Leave the process group, if still in it; no collective can follow."""
        if dist.is_initialized():
            group = weakref.ref(dist.group.WORLD)
            dist.destroy_process_group()
            if group() is not None:
                gc.collect()  # the frames of errors referred to it, and kept its connections open


def _take_block(flat: list[torch.Tensor], begins: list[int], first: int) -> torch.Tensor:
    """A copy of the cells from `first` on of arrays that follow each other and begin there."""
    parts = (
        piece[max(0, first - begin) : max(0, first + BLOCK - begin)]
        for piece, begin in zip(flat, begins, strict=False)
    )
    return torch.cat([part for part in parts if part.numel()])


def _wait_for_gpu(tensor: torch.Tensor) -> None:
    """NCCL has only queued a collective: who waits for it should be seen to wait."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()


def portable(error: Exception) -> Exception:
    """The exception itself where it survives a journey between ranks, else one that tells it."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = None
    if type(copy) is type(error) and str(copy) == str(error):
        return error
    telling = RuntimeError(f"{type(error).__name__}: {error}")
    telling.__cause__ = error
    return telling
