"""Crews: ranks of one host that simulate the same shots, each a layer of the grid.

The first rank of each crew leads it. The inversion runs on the leaders only: their `Context` has as
many ranks as there are crews, and the other ranks do what their leader orders. How a grid is
divided is described in `wave.layers`.

The ranks of a crew exchange objects by MPI, and the halos of each step through memory that they
share. A thread of each rank ends the job if the process of another one has stopped, because the
others would wait for it in a step for ever.
"""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from hpcfwi.errors import InputError, InversionFailure, say_bytes
from hpcfwi.parallel.context import Context, portable
from hpcfwi.parallel.failure import tell
from hpcfwi.parallel.launch import connect, find_rank
from hpcfwi.parallel.transport import MpiObjects
from hpcfwi.parallel.watch import HEARTBEAT_WAIT, TICK, end_ranks

if TYPE_CHECKING:
    from mpi4py import MPI

SHARED = "/dev/shm"


class RankCrew:
    """The ranks of a communicator as a `wave.layers.Crew`, which is closed after its last use.

    world: all ranks of the job, which end if the process of one of the crew has stopped or ended;
    wait: time until then, s; tick: time between two checks, s. Construction is collective.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        world: MPI.Comm,
        wait: float = HEARTBEAT_WAIT,
        tick: float = TICK,
    ) -> None:
        self.number, self.size = comm.rank, comm.size
        self._objects = MpiObjects(comm)
        self._world, self._wait, self._tick = world, wait, tick
        self._memory: NDArray[np.uint8] | None = None
        self._known: BaseException | None = None  # the last error that another rank has given
        self.failed = self._map(64)[:8].view(np.int64)
        self._processes = self._objects.all_gather(os.getpid())
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="crew", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread that watches the others."""
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        """Look at the processes of the other ranks once a tick, and end the job if one is lost."""
        lost = [0.0] * self.size
        while not self._closed.wait(self._tick):
            for rank, process in enumerate(self._processes):
                lost[rank] = lost[rank] + self._tick if is_lost(process) else 0.0
            if max(lost) > self._wait:
                tell(
                    InversionFailure(
                        f"rank {lost.index(max(lost))} of a crew of {self.size} on "
                        f"{socket.gethostname()} has stopped or died, {max(lost):.0f} s ago: the "
                        "job is ended"
                    )
                )
                end_ranks(self._world, 1)

    def broadcast(self, value: Any) -> Any:
        return self._objects.broadcast(value, 0)

    def gather(self, value: Any) -> list[Any] | None:
        return self._objects.gather(value, self.check)

    def check(self) -> None:
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
        self._objects.all_gather(portable(error))
        self._forget(error)

    def _forget(self, error: BaseException) -> None:
        """Give up the memory in which a rank has failed; all ranks have left their sweeps."""
        self._memory, self._known = None, error
        self.failed[0] = 0

    def share(self, size: int) -> NDArray[np.uint8]:
        if self._memory is None or self._memory.size < size:
            self.check()
            self._memory = self._map(size)
        return self._memory

    def _map(self, size: int) -> NDArray[np.uint8]:
        """Return new memory of the crew, which is released when all ranks have ended."""
        path, fault = "", None
        if self.number == 0:
            try:
                with tempfile.NamedTemporaryFile(
                    prefix="hpcfwi-", dir=SHARED, delete=False
                ) as file:
                    path = file.name
                    # Without this, a rank would be killed when it touches memory that is not there.
                    os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                fault = InversionFailure(
                    f"{SHARED} has no room for {say_bytes(size)} ({error.strerror}), which a crew "
                    "shares: make it larger, or leave wave.ranks_per_shot out"
                )
        try:
            path, fault = self.broadcast((path, fault))
            if fault is not None:
                raise fault
            with Path(path).open("r+b") as file:
                memory = mmap.mmap(file.fileno(), size)
            self.check()
        finally:
            if self.number == 0 and path:
                Path(path).unlink()
        return np.frombuffer(memory, np.uint8)


def is_lost(process: int) -> bool:
    """Return True if a process of this host is stopped or has ended; False if this is not known."""
    try:
        # The second field is a name in parentheses, which may contain spaces
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return Path("/proc/self/stat").exists()
    except OSError:
        return True
    return state in "TZX"


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
    world = cast("MPI.Intracomm", context.comm)
    ranks = world.Split(context.rank // size, context.rank)
    crew = RankCrew(cast("MPI.Intracomm", ranks), world)
    leaders = world.Split(crew.number, context.rank)
    context.close()
    if crew.number > 0:
        return context, crew
    this = find_rank(leaders, fault_tolerant=False)
    leading = replace(
        context,
        rank=this.rank,
        size=this.size,
        local_rank=this.local_rank,
        comm=this.comm,
        store=connect(this) if this.size > 1 else None,
        hosts=context.hosts[::size],
    )
    return leading, crew


def _check(context: Context, size: int) -> None:
    """Raise `InputError` on all ranks if they cannot be divided into crews of this size."""
    key, remedy = "wave.ranks_per_shot", f"Start a multiple of {size} ranks on each host."
    hosts = {host: context.hosts.count(host) for host in context.hosts}
    fault = None
    if any(count % size for count in hosts.values()):
        found = ", ".join(f"{count} on {host}" for host, count in hosts.items())
        fault = f"the ranks ({found}) cannot be divided into crews of {size} on the same host"
    elif context.comm is None:
        fault, remedy = "torchrun started the ranks", "Start them with mpirun or srun."
    elif context.fault_tolerant:
        fault = "crews do not survive the death of a rank"
        remedy = "Start mpirun without --with-ft, or leave the key out."
    if fault is not None:
        context.raise_on_all_ranks(InputError(key, fault, remedy))
