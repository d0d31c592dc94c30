"""The way from a started process to a `Context`: MPI rank, device, torch.distributed.

`mpirun`, `srun`, `torchrun` and a plain `python` all lead to the same. `launchers` finds out which
of them started the process. This module checks that a rank may open as many files as its
connections need, and connects the ranks. `rendezvous` is where they meet, and what a rank takes of
its host. `recovery` takes the second half of the way once more, with the ranks that are left.

`launched` is the same for a program of a user's own: `with hpcfwi.launch() as context`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.distributed.distributed_c10d import _set_pg_timeout

from hpcfwi.errors import InputError
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.failure import abort, end_job, end_launch, tell
from hpcfwi.parallel.rendezvous import (
    MpiExchange,
    TorchrunExchange,
    check_shares,
    count_sharers,
    count_threads,
    find_share,
    open_store,
    shut_afterwards,
)
from hpcfwi.parallel.store import Store
from hpcfwi.parallel.transport import SignedObjects

if TYPE_CHECKING:
    from mpi4py import MPI
from hpcfwi.parallel.launchers import (
    OPERATOR,
    check_operator,
    find_launcher,
    is_fault_tolerant,
    join_mpi,
)

# Descriptors of a rank that is alone, MPI's, the log's and those of data included: 28 were counted,
# and the largest run has some more.
FILES = 64
# For each rank: gloo's connection on all; on rank 0 two more to the store, of which one is for the
# watch, which has the other while the rank waits in it.
FILES_OF_ROOT = 3


def allow_many_files() -> None:
    """Raise the limit of descriptors, of which connections and files take one each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def count_files_allowed() -> int:
    """Descriptors that this process may have, once `allow_many_files` has been called."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if allowed == resource.RLIM_INFINITY else allowed


def check_files(allowed: Sequence[int]) -> None:
    """Raises `InputError` where a rank will need more descriptors than it may have.

    allowed: those of each rank, by rank. Told before ranks connect, which would else wait in vain.
    """
    for rank, found in enumerate(allowed):
        needed = FILES + len(allowed) * (FILES_OF_ROOT if rank == 0 else 1)
        if found < needed:
            raise InputError(
                f"rank {rank}",
                f"it may open {found} files, and takes {needed} among {len(allowed)} ranks, one "
                "for each connection",
                "Raise the limit of open files where jobs start (ulimit -n, LimitNOFILE of slurmd, "
                "/etc/security/limits.conf), or start fewer ranks.",
            )


# If it is imported while a process group exists, as classes of torch.optim do, its functions keep
# that group for ever: gloo's threads and connections would outlive `Context.close`.


STORE_TIMEOUT = timedelta(minutes=5)
# Where ranks may die while they connect, which torch does not notice. Longer than connecting takes.
CONNECT_WAIT = timedelta(seconds=15)
# For all ranks to be connected, and to have greeted each other.
GREETING_WAIT = timedelta(minutes=2)
# Has gloo's ranks ask for the addresses of all at once, of which each leaves one. Else n ranks ask
# 2 n^2 times, and are told n^3 numbers of connections: a minute among 512.
_GLOO = {"GLOO_ENABLE_STORE_V2_API": "1", "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER": "1"}
# How long a rank may wait in a collective for one that computes longer. A rank that has died is
# noticed at once by other means.
COLLECTIVE_TIMEOUT = timedelta(hours=2)


@dataclass(frozen=True)
class World:
    """The ranks before they have devices; comm is None where MPI does not know them.

    local_rank: -1 where only the ranks together can tell; fault_tolerant: as in `Context`;
    share_gpus: whether several may have one GPU.
    """

    rank: int
    size: int
    local_rank: int
    comm: MPI.Comm | None
    fault_tolerant: bool = False
    share_gpus: bool = False


def launch(gpus: bool = True, share_gpus: bool = False) -> Context:
    """Find this process's rank and device, and start torch.distributed among several ranks.

    A collective over all processes of the job, to be called once in each. gpus: whether ranks
    compute on GPUs where there are any; share_gpus: whether several may have the same one.

    Raises `InputError` on every process where there is no MPI, the launcher and MPI do not fit
    together, or the ranks' devices do not. `parallel.failure.end_launch` makes one message of it.
    """
    allow_many_files()
    world = replace(_find_world(), share_gpus=share_gpus)
    if world.size == 1:
        return _take_device(replace(Context.alone(), comm=world.comm), gpus, share_gpus)
    try:
        context = Context(
            world.rank,
            world.size,
            world.local_rank,
            socket.gethostname(),
            torch.device("cpu"),
            1,
            world.comm,
            connect(world),
            fault_tolerant=world.fault_tolerant,
        )
        if world.local_rank < 0:
            hosts = context.all_gather(context.host)
            context = replace(context, local_rank=hosts[: world.rank].count(context.host))
            os.environ["LOCAL_RANK"] = str(context.local_rank)
        return _take_device(context, gpus, share_gpus)
    except InputError:
        raise
    except Exception as error:
        tell(error, f"rank {world.rank} on {socket.gethostname()}")
        abort(world.comm, 1)


def launch_if_asked(gpus: bool = True, share_gpus: bool = False) -> Context:
    """`launch` where a launcher has started this process; else alone, and MPI is not started.

    For what is also done on login nodes, where starting MPI may be forbidden. An inversion starts
    it in any case: of an unknown launcher MPI alone tells how many processes there are.
    """
    if find_launcher(os.environ) is not None:
        return launch(gpus, share_gpus)
    _keep_off_mpi()
    return _take_device(Context.alone(), gpus, share_gpus)


def stay_alone(remedy: str) -> Context:
    """The only process, on the CPU: for a program that launches ranks itself, and so keeps off MPI.

    Raises InputError with this remedy where a launcher has started several.
    """
    _keep_off_mpi()
    launcher = find_launcher(os.environ)
    if launcher is not None and launcher.size > 1:
        raise InputError(
            launcher.name,
            f"it has started {launcher.size} processes of a command that launches its own ranks",
            remedy,
        )
    return _take_device(Context.alone(), gpus=False)


def _keep_off_mpi() -> None:
    """Prevent that importing parallel HDF5 starts MPI."""
    with contextlib.suppress(ModuleNotFoundError):
        import mpi4py

        mpi4py.rc(initialize=False)


def _find_world() -> World:
    launcher = find_launcher(os.environ)
    if launcher is not None and launcher.name in ("torchrun", OPERATOR):
        if launcher.name == OPERATOR:
            check_operator(os.environ)
        return World(launcher.rank, launcher.size, int(os.environ.get("LOCAL_RANK") or -1), None)
    comm = join_mpi(launcher, os.environ)
    if comm.size == 1:
        return World(0, 1, 0, comm)
    from mpi4py import MPI

    return find_ranks(comm, is_fault_tolerant(MPI.Get_library_version(), os.environ))


def find_ranks(comm: MPI.Comm, fault_tolerant: bool) -> World:
    """The ranks of a communicator, those of a host one after the other; collective over it."""
    from mpi4py import MPI

    neighbours = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    local_rank, first = neighbours.rank, neighbours.bcast(comm.rank)
    neighbours.Free()
    # gloo's sums go round from rank to rank: past each host once, or they pass networks many times
    hosts = comm.allgather(first)
    if hosts != sorted(hosts):
        comm = comm.Split(key=first)
    return World(comm.rank, comm.size, local_rank, comm, fault_tolerant)


def connect(world: World) -> Store:
    """Start torch.distributed, for tensors on CPUs and, where torch can, on GPUs; collective.

    Raises RuntimeError where ranks do not find each other in time, as when one of them dies, and
    `InputError` on all of them where one may not open enough files.
    """
    exchange = (
        TorchrunExchange(COLLECTIVE_TIMEOUT) if world.comm is None else MpiExchange(world.comm)
    )
    check_files(exchange.all_gather(count_files_allowed()))
    store = open_store(exchange, CONNECT_WAIT if world.fault_tolerant else STORE_TIMEOUT)
    os.environ.update(
        RANK=str(world.rank),
        WORLD_SIZE=str(world.size),
        LOCAL_RANK=str(world.local_rank),
        **_GLOO,
    )
    backend = "gloo"
    # NCCL would wait for a rank that has died, and takes one rank a GPU; gloo tells of a death, and
    # takes GPUs' tensors too.
    by_nccl = not (world.fault_tolerant or world.share_gpus)
    if torch.cuda.device_count() > 0 and dist.is_nccl_available() and by_nccl:
        backend = "cpu:gloo,cuda:nccl"
    try:
        with shut_afterwards():
            dist.init_process_group(
                backend,
                store=store,
                rank=world.rank,
                world_size=world.size,
                timeout=CONNECT_WAIT if world.fault_tolerant else GREETING_WAIT,
            )
        _greet(world, store)
    except BaseException:
        store.close()
        raise
    _set_pg_timeout(COLLECTIVE_TIMEOUT)
    return store


def _greet(world: World, store: Store) -> None:
    """See that it is the ranks who are connected; collective.

    gloo takes whoever comes first for a rank. Raises RuntimeError where somebody else was.
    """
    if SignedObjects(world.rank, world.size, store).all_gather(world.rank) != list(
        range(world.size)
    ):
        raise RuntimeError("the ranks are not connected with one another")


def _take_device(context: Context, gpus: bool, share_gpus: bool = False) -> Context:
    """The context with the rank's device and threads, which it sets for torch as well."""
    share = find_share(context.host, context.local_rank, gpus)
    shares = context.all_gather(share)
    check_shares(shares, share_gpus)
    threads = count_threads(shares, context.rank, os.environ)
    torch.set_num_threads(threads)
    if share.gpu is not None:
        torch.cuda.set_device(share.device)
    return replace(
        context,
        device=torch.device(share.device),
        threads=threads,
        hosts=tuple(share.host for share in shares),
        sharers=count_sharers(shares, context.rank),
    )


@contextmanager
def launched(gpus: bool = True, share_gpus: bool = False) -> Iterator[Context]:
    """This process as one of the job's ranks: alone, under mpirun, srun or torchrun; collective.

    gpus: whether ranks compute on GPUs where there are any; share_gpus: whether several may have
    the same one, which is for trying things out where there are few. An error of one rank among
    several is told once and ends all of them, so that none waits for it for ever; alone it is
    raised on.
    """
    try:
        context = launch(gpus, share_gpus)
    except InputError as error:
        raise SystemExit(end_launch(error)) from error
    try:
        yield context
    except Exception as error:
        if context.size == 1:
            raise
        raise SystemExit(end_job(context, error)) from error
    finally:
        context.close()
