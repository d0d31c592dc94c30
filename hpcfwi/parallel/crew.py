"""Crews: ranks that simulate the same shots, each a layer of the grid.

The first rank of each crew leads it. The inversion runs on the leaders only: their `Context` has as
many ranks as there are crews, and the other ranks do what their leader orders. `wave.layers`
describes the division of a grid.

The ranks of a crew exchange objects by MPI, or by torch.distributed where MPI does not know them,
and the halos of each step through memory that those of a host share. Halos go to other hosts by
MPI, from the thread that computes a layer. The halos of an engine that has them as tensors go by
torch.distributed, within a host. Another thread of each rank ends the job if a rank has stopped,
because the others would wait for it for ever.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import traceback
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, _world

from hpcfwi.errors import InputError, InversionFailure, say_bytes, say_count
from hpcfwi.parallel.context import Context, portable
from hpcfwi.parallel.failure import tell
from hpcfwi.parallel.launch import COLLECTIVE_TIMEOUT, STORE_TIMEOUT, connect, find_rank
from hpcfwi.parallel.rendezvous import StoreExchange, open_store, shut_afterwards
from hpcfwi.parallel.replicas import MEMORY, open_together
from hpcfwi.parallel.store import Store
from hpcfwi.parallel.transport import MpiObjects, SignedObjects, threads_may_call_mpi
from hpcfwi.parallel.watch import HEARTBEAT_WAIT, TICK, end_ranks

if TYPE_CHECKING:
    from mpi4py import MPI

# Tensors for, or of, the rank before and the rank after one.
Halo = tuple[Sequence[Tensor], Sequence[Tensor]]

# A rank of another host is lost if it has given no sign of life for so many times the wait for a
# rank of the same host, whose process can be looked at. Some calls of HDF5 hold Python's lock.
PATIENCE = 10

# A rank waits for its leader as long as the job lasts.
FOR_EVER = timedelta(days=3650)

# Tags of messages between hosts. The tags of halos begin at HALOS, and change after each failure.
FAILED, ALIVE, HALOS = range(3)
TAGS = 2**15 - 1  # the least number of tags that MPI guarantees

# The function `wave.layers.Crew.courier`, and the fields of a `wave.layers.Letter`.
_CARRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
LETTER = 5


class _Courier:
    """Carries messages between the hosts of a crew, for compiled loops that call it by its address.

    comm: communicator of the crew; failed: as in `Crew`.
    """

    def __init__(self, comm: MPI.Intracomm, failed: NDArray[np.int64]) -> None:
        self._comm, self._failed = comm.Dup(), failed
        self._carry = _CARRY(self._try_to_carry)
        self.address = ctypes.cast(self._carry, ctypes.c_void_p).value or 0
        self.error: Exception | None = None
        self._failures = np.zeros(1, np.int64)
        self._abandoned: list[Any] = []  # what MPI may still read or write

    def tell(self, rank: int, tag: int) -> None:
        """Send a rank the number of failures so far."""
        self._comm.Isend(self._failures, rank, tag).Free()

    def hear(self, tag: int) -> dict[int, int]:
        """Return the numbers that have arrived, by the rank of the sender."""
        from mpi4py import MPI

        found, number, status = {}, np.empty(1, np.int64), MPI.Status()
        while self._comm.Iprobe(tag=tag, status=status):
            self._comm.Recv(number, status.source, tag)
            found[status.source] = int(number[0])
        return found

    def forget(self, memory: NDArray[np.uint8] | None) -> None:
        """Ignore messages of sweeps that a failure has ended; called on all ranks.

        memory: that of these messages.
        """
        self._abandoned += [self._failures, memory]
        self._failures = self._failures + 1
        self.error = None

    def _try_to_carry(self, letters: int, count: int, number: int) -> None:
        try:
            pointer = ctypes.cast(letters, ctypes.POINTER(ctypes.c_int64))
            self._carry_all(np.ctypeslib.as_array(pointer, (count, LETTER)), number)
        except Exception as error:
            # C code has called this, and cannot pass an exception on
            self.error, self._failed[0] = error, 1

    def _carry_all(self, letters: NDArray[np.int64], number: int) -> None:
        from mpi4py import MPI

        tag = HALOS + int(self._failures[0]) % (TAGS - HALOS)
        requests = []
        for rank, sent, address, size, _ in letters.tolist():
            buffer = MPI.buffer.fromaddress(address + number % 2 * size, size)
            start = self._comm.Isend if sent else self._comm.Irecv
            requests.append(start(buffer, rank, tag))
        while not MPI.Request.Testall(requests):
            if int(self._failures[0]) in self.hear(FAILED).values():
                self._failed[0] = 1
            if self._failed[0]:
                self._abandoned += requests
                return
            os.sched_yield()


class RankCrew:
    """The ranks of a communicator as a `wave.layers.Crew`, which is closed after its last use.

    world: all ranks of the job, which end if the process of one of the crew has stopped or ended;
    host: name of this rank's host; wait: time until then, s; tick: time between two checks, s;
    store: of the ranks if MPI does not know them. Then they are on one host, comm is an exchange
    between them, and the launcher ends the other ranks. Construction is collective.
    """

    def __init__(
        self,
        comm: MPI.Intracomm | StoreExchange,
        world: MPI.Comm | None,
        host: str,
        wait: float = HEARTBEAT_WAIT,
        tick: float = TICK,
        store: Store | None = None,
    ) -> None:
        self.number, self.size = comm.rank, comm.size
        self._comm = comm
        self._groups: list[dist.ProcessGroup] = []
        if store is None:
            self._objects: MpiObjects | SignedObjects = MpiObjects(cast("MPI.Intracomm", comm))
        else:
            self._groups.append(_connect_tensors(comm, FOR_EVER))
            self._objects = SignedObjects(comm.rank, comm.size, store, group=self._groups[0])
        self._names = self._objects.all_gather(host)
        self.hosts = tuple(self._names.index(name) for name in self._names)
        self._world, self._wait, self._tick = world, wait, tick
        self._is_whole_job = world is not None and world.size == self.size
        self._memory: NDArray[np.uint8] | None = None
        self._known: BaseException | None = None  # the last error that another rank has given
        self._group: dist.ProcessGroup | None = None
        # The swaps for which each rank has come, those that have begun, and 1 if rank 0 has left
        self._swaps: NDArray[np.int64] | None = None
        self.failed = self._map(64)[:8].view(np.int64)
        self._courier: _Courier | None = None
        if len(set(self.hosts)) > 1:
            self._courier = _Courier(cast("MPI.Intracomm", comm), self.failed)
        self.courier = 0 if self._courier is None else self._courier.address
        self._processes = self._objects.all_gather(os.getpid())
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="crew", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread that watches the others, and the groups of torch.distributed."""
        self._closed.set()
        self._thread.join()
        for group in self._groups:
            _world.pg_group_ranks.pop(group, None)
            group.abort()

    def _watch(self) -> None:
        """Look for the other ranks once a tick, and end the job if one is lost.

        A rank looks at the processes of its host, and the first ranks of the hosts give one another
        signs of life. `watch.Watch` watches the leaders of several crews.
        """
        first, lost = self.hosts[self.number], [0.0] * self.size
        others = set(self.hosts) - {first} if self.number == first else set()
        heeded = others if self._is_whole_job else others - {0}
        while not self._closed.wait(self._tick):
            silent = heeded
            if self._courier is not None:
                for rank in others:
                    self._courier.tell(rank, ALIVE)
                silent = heeded - self._courier.hear(ALIVE).keys()
            for rank, process in enumerate(self._processes):
                is_here = self.hosts[rank] == first
                has_gone = is_lost(process) if is_here else rank in silent
                lost[rank] = lost[rank] + self._tick if has_gone else 0.0
                if lost[rank] > self._wait * (1 if is_here else PATIENCE):
                    tell(
                        InversionFailure(
                            f"rank {rank} of a crew of {self.size} on {self._names[rank]} has "
                            f"stopped or died, {lost[rank]:.0f} s ago: the job is ended"
                        )
                    )
                    end_ranks(self._world, 1)

    def broadcast(self, value: Any) -> Any:
        return self._objects.broadcast(value, 0)

    def gather(self, value: Any) -> list[Any] | None:
        return self._objects.gather(value, self.check)

    def check(self) -> None:
        if self._courier is not None and self._courier.error is not None:
            raise self._courier.error
        for error in self._objects.all_gather(None):
            if error is not None:
                self._forget(error)
                raise error

    def fail(self, error: Exception) -> None:
        if error is self._known:
            return
        if not isinstance(error, MemoryError):
            error.add_note("".join(traceback.format_exception(error)))
        self.failed[0] = 1
        for rank, first in enumerate(self.hosts):
            if self._courier is not None and first != self.hosts[self.number]:
                self._courier.tell(rank, FAILED)
        if self.number == 0 and self._swaps is not None:
            self._swaps[-1] = 1
        self._objects.all_gather(portable(error))
        self._forget(error)

    def _forget(self, error: BaseException) -> None:
        """Give up the memory in which a rank has failed; all ranks have left their sweeps."""
        if self._courier is not None:
            self._courier.forget(self._memory)
        self._memory, self._swaps, self._known = None, None, error
        self.failed[0] = 0

    def swap(self, sent: Halo, received: Halo) -> None:
        group = self._meet()
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(function, tensor, group=group, group_peer=rank)
                for function, halves in ((dist.isend, sent), (dist.irecv, received))
                for rank, tensors in zip((self.number - 1, self.number + 1), halves, strict=True)
                for tensor in tensors
                if 0 <= rank < self.size
            ]
        )
        for work in works:
            work.wait()

    def _meet(self) -> dist.ProcessGroup:
        """Wait until all ranks swap, so that no message remains without a receiver.

        Raises the error of a rank that has failed instead. Rank 0 decides, because ranks that see
        the failure sooner or later could decide differently.
        """
        if self._group is None or self._swaps is None:
            self.check()
            if self._group is None:
                self._group = _connect_tensors(self._comm, COLLECTIVE_TIMEOUT, gpus=True)
                self._groups.append(self._group)
            self._swaps = self._map(8 * self.size + 16)[: 8 * self.size + 16].view(np.int64)
        arrived, begun, stopped = np.split(self._swaps, (self.size, self.size + 1))
        arrived[self.number] += 1
        count = int(arrived[self.number])
        while True:
            # This must be read before `begun`, which rank 0 writes first
            stops = stopped[0]
            if self.number == 0 and arrived.min() >= count:
                begun[0] = count
            if begun[0] >= count:
                return self._group
            if self.number == 0 and self.failed[0]:
                stops = stopped[0] = 1
            if stops:
                self.check()
            os.sched_yield()

    def share(self, size: int) -> NDArray[np.uint8]:
        if self._memory is None or self._memory.size < size:
            self.check()
            self._memory = self._map(size)
        return self._memory

    def _map(self, size: int) -> NDArray[np.uint8]:
        """Return new memory of each host, which is released when its ranks have ended."""
        first, fault = self.hosts[self.number], None
        with open_together(self.number, first, self._objects.all_gather) as file:
            try:
                if file is None:
                    raise OSError(errno.EACCES, "no file can be opened there")
                # Without this, a rank would be killed when it touches memory that is not there.
                if self.number == first:
                    os.posix_fallocate(file, 0, size)
            except OSError as error:
                fault = MemoryError(
                    f"{MEMORY} of {self._names[first]} does not hold {say_bytes(size)}, which the "
                    f"ranks of a shot share ({error.strerror}): make it larger and writable, or "
                    "leave wave.ranks_per_shot out"
                )
            for problem in self._objects.all_gather(fault):
                if problem is not None:
                    raise problem
            assert file is not None, "otherwise this rank has a fault"
            return np.frombuffer(mmap.mmap(file, size), np.uint8)


def is_lost(process: int) -> bool:
    """Return True if a process of this host is stopped or has ended."""
    try:
        # The second field is a name in parentheses, which may contain spaces
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "TZX"


def _connect_tensors(
    comm: MPI.Intracomm | StoreExchange, timeout: timedelta, gpus: bool = False
) -> dist.ProcessGroup:
    """Return a group for messages between tensors on CPUs; collective.

    timeout: of a message; gpus: True if there are tensors on GPUs too, which go by NCCL. The group
    is made directly, because torch has one default group in a process, which is that of the
    leaders, and `new_group` only makes parts of it.
    """
    store, kinds = open_store(comm, STORE_TIMEOUT), dist.ProcessGroup.BackendType
    group = dist.ProcessGroup(store, comm.rank, comm.size)
    with shut_afterwards():
        gloo = dist.ProcessGroupGloo(PrefixStore("cpu/", store), comm.rank, comm.size, timeout)
    group._register_backend(torch.device("cpu"), kinds.GLOO, gloo)
    group._set_default_backend(kinds.GLOO)
    if gpus and torch.cuda.device_count() > 0 and dist.is_nccl_available():
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        nccl = dist.ProcessGroupNCCL(PrefixStore("cuda/", store), comm.rank, comm.size, options)
        group._register_backend(torch.device("cuda"), kinds.NCCL, nccl)
    # Without this, the functions of torch.distributed refuse the group
    _world.pg_group_ranks[group] = {rank: rank for rank in range(comm.size)}
    return group


def form_crews(context: Context, size: int) -> tuple[Context, RankCrew]:
    """Divide the ranks into crews of this size; return the leaders' context, and the crew.

    Collective. The context is that of the leaders, whose number in the crew is 0. On the other
    ranks it cannot be used.

    Raises
    ------
    InputError
        On all ranks, if they cannot be divided.
    """
    _check(context, size)
    context.close()
    place, number = divmod(context.rank, size)
    exchange: StoreExchange | None = None
    if context.comm is None:
        assert context.store is not None, "several ranks have a store"
        ranks = StoreExchange(context.store, number, size, f"crew {place}")
        crew = RankCrew(ranks, None, context.host, store=context.store)
        exchange = StoreExchange(context.store, place, context.size // size, f"leaders {number}")
        leading = replace(context, rank=place, size=exchange.size, store=None)
        leading = replace(leading, local_rank=context.local_rank // size)
    else:
        world = cast("MPI.Intracomm", context.comm)
        crew = RankCrew(cast("MPI.Intracomm", world.Split(place, number)), world, context.host)
        leading = find_rank(context, world.Split(number, place))
    if crew.number > 0:
        return context, crew
    leading = replace(leading, hosts=context.hosts[::size])
    if leading.size == 1:
        return leading, crew
    return replace(leading, store=connect(leading, exchange=exchange)), crew


def _check(context: Context, size: int) -> None:
    """Raise `InputError` on all ranks if they cannot be divided into crews of this size."""
    key, fault, remedy = "wave.ranks_per_shot", None, ""
    sharers = max(context.all_gather(context.sharers))
    if context.size % size:
        fault = f"{say_count(context.size, 'rank')} cannot be divided into crews of {size}"
        remedy = f"Start a multiple of {size} ranks, or give another number; results stay the same."
    elif context.fault_tolerant:
        fault = "crews do not survive the death of a rank"
        remedy = "Start mpirun without --with-ft, or leave the key out."
    elif sharers > 1:
        fault, remedy = f"{sharers} ranks share a GPU", "Start one rank per GPU of a host."
    elif any(len(set(context.hosts[k : k + size])) > 1 for k in range(0, context.size, size)):
        remedy = f"Start a multiple of {size} ranks on each host."
        if context.comm is None:
            fault = "ranks exchange halos between hosts by MPI, and torchrun started them without"
        elif not threads_may_call_mpi():
            fault = "MPI lets only one thread of a rank exchange halos between hosts"
    if fault is not None:
        context.raise_on_all_ranks(InputError(key, fault, remedy))
