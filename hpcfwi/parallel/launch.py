"""The launch of a rank: from a started process to a `Context` with torch.distributed.

A process that was started by `mpirun`, `srun`, `torchrun` or plain `python` gets the same kind of
context. `launchers` detects which of them started the process, and `rendezvous` lets the ranks find
each other and chooses the cores and device of each. This module checks that a rank may open as many
files as its connections need, and connects the ranks. `recovery` connects the remaining ranks again
after a death.

`launched` does this for a user's own program: `with hpcfwi.launch() as context`.
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

# Imported before a process group exists. If torch.optim imported it later, its functions would keep
# a reference to the group, and gloo's threads and connections would outlive `Context.close`.
import torch.distributed.nn
from torch.distributed.distributed_c10d import PrefixStore, _set_pg_timeout, _world

from hpcfwi.errors import InputError
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.failure import abort, end_job, end_launch, tell
from hpcfwi.parallel.launchers import (
    ENVIRONMENT,
    check_operator,
    find_launcher,
    is_fault_tolerant,
    join_mpi,
)
from hpcfwi.parallel.rendezvous import (
    EnvironmentExchange,
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

STORE_TIMEOUT = timedelta(minutes=5)
# Time limit to connect if ranks may die meanwhile, which torch does not notice.
RANKS_CONNECT_WAIT = timedelta(seconds=15)
# Time limit for all ranks to connect and prove their identity.
GREETING_WAIT = timedelta(minutes=2)
# With these variables gloo's ranks exchange all addresses at once, one for each rank. Otherwise n
# ranks make 2 n^2 requests for n^3 numbers of connections, which takes 512 ranks a minute.
_GLOO = {"GLOO_ENABLE_STORE_V2_API": "1", "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER": "1"}
# Time that a rank may wait in a collective for a rank that computes longer. A death is noticed much
# earlier by other means.
COLLECTIVE_TIMEOUT = timedelta(hours=2)


def launch(gpus: bool = True, share_gpus: bool = False) -> Context:
    """Join the ranks of this job, and return the context of this one.

    No process is started: mpirun, srun or torchrun has started them. Each process of the job calls
    this once. If there are several ranks, torch.distributed is started. gpus: True if
    ranks compute on GPUs if there are any; share_gpus: True if several ranks may share a GPU.

    Raises `InputError` on every process if there is no MPI, if the launcher and MPI do not match,
    or if the ranks' devices are not consistent. `parallel.failure.end_launch` then prints one
    message.
    """
    allow_many_files()
    context = _find_this_rank()
    if context.size == 1:
        return _take_device(context, gpus, share_gpus)
    try:
        context = replace(context, store=connect(context, share_gpus))
        if context.local_rank < 0:
            hosts = context.all_gather(context.host)
            context = replace(context, local_rank=hosts[: context.rank].count(context.host))
            os.environ["LOCAL_RANK"] = str(context.local_rank)
        return _take_device(context, gpus, share_gpus)
    except InputError:
        raise
    except Exception as error:
        tell(error, f"rank {context.rank} on {context.host}")
        abort(context.comm, 1)


def launch_if_asked(gpus: bool = True, share_gpus: bool = False) -> Context:
    """Call `launch` if a launcher started this process; otherwise stay alone, without MPI.

    This is for commands that are also used on login nodes, where starting MPI may be forbidden. An
    inversion always starts MPI, because only MPI knows the number of processes of an unknown
    launcher.
    """
    if find_launcher(os.environ) is not None:
        return launch(gpus, share_gpus)
    _keep_off_mpi()
    return _take_device(Context.alone(), gpus, share_gpus)


def stay_alone(remedy: str) -> Context:
    """Return the context of the only process, on the CPU, without starting MPI.

    This is for a program that starts ranks itself. Raises `InputError` with this remedy if a
    launcher has started several processes.
    """
    _keep_off_mpi()
    launcher = find_launcher(os.environ)
    if launcher is not None and launcher.size > 1:
        raise InputError(
            launcher.name,
            f"it has started {launcher.size} processes of a command that must run in one process",
            remedy,
        )
    return _take_device(Context.alone(), gpus=False)


def _keep_off_mpi() -> None:
    """Prevent the import of parallel HDF5 from starting MPI."""
    with contextlib.suppress(ModuleNotFoundError):
        import mpi4py

        mpi4py.rc(initialize=False)


def _find_this_rank() -> Context:
    """Return the context of this rank before it is connected and has a device.

    Its local rank is -1 if it is not known yet.
    """
    alone, launcher = Context.alone(), find_launcher(os.environ)
    if launcher is not None and launcher.name in ("torchrun", ENVIRONMENT):
        if launcher.name == ENVIRONMENT:
            check_operator(os.environ)
        local_rank = int(os.environ.get("LOCAL_RANK") or -1)
        return replace(alone, rank=launcher.rank, size=launcher.size, local_rank=local_rank)
    comm = join_mpi(launcher, os.environ)
    if comm.size == 1:
        return replace(alone, comm=comm)
    from mpi4py import MPI

    tolerant = is_fault_tolerant(MPI.Get_library_version(), os.environ)
    return find_rank(replace(alone, fault_tolerant=tolerant), comm)


def find_rank(context: Context, comm: MPI.Comm) -> Context:
    """Return the context of this rank of a communicator, which is not connected; collective.

    The ranks of a host get consecutive numbers.
    """
    from mpi4py import MPI

    neighbours = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    local_rank, first = neighbours.rank, neighbours.bcast(comm.rank)
    neighbours.Free()
    # Gloo passes sums from rank to rank in a ring. It should enter each host only once, to save
    # network traffic.
    hosts = comm.allgather(first)
    if hosts != sorted(hosts):
        comm = comm.Split(key=first)
    return replace(
        context, rank=comm.rank, size=comm.size, local_rank=local_rank, comm=comm, store=None
    )


def connect(this: Context, share_gpus: bool = False) -> Store:
    """Start torch.distributed for tensors on CPUs and, if torch has NCCL, on GPUs; collective.

    this: the context of this rank, without a store; share_gpus: see `launch`. Returns the store of
    the ranks. Raises RuntimeError if the ranks do not connect in time, for example because one of
    them has died, and `InputError` on all of them if one may not open enough files.
    """
    exchange = this.comm or EnvironmentExchange(COLLECTIVE_TIMEOUT)
    check_files(exchange.allgather(count_files_allowed()))
    store = open_store(exchange, RANKS_CONNECT_WAIT if this.fault_tolerant else STORE_TIMEOUT)
    os.environ.update(
        RANK=str(this.rank),
        WORLD_SIZE=str(this.size),
        LOCAL_RANK=str(this.local_rank),
        **_GLOO,
    )
    backend = "gloo"
    # NCCL would wait for a rank that has died, and supports only one rank for each GPU. Gloo
    # reports a death, and supports tensors on GPUs too.
    by_nccl = not (this.fault_tolerant or share_gpus)
    if torch.cuda.device_count() > 0 and dist.is_nccl_available() and by_nccl:
        backend = "cpu:gloo,cuda:nccl"
    try:
        with shut_afterwards():
            dist.init_process_group(
                backend,
                store=store,
                rank=this.rank,
                world_size=this.size,
                timeout=RANKS_CONNECT_WAIT if this.fault_tolerant else GREETING_WAIT,
            )
        # gloo takes the first process that connects for a rank.
        objects = SignedObjects(this.rank, this.size, store)
        if objects.all_gather(this.rank) != list(range(this.size)):
            raise RuntimeError("the ranks are not connected to each other")
    except BaseException:
        store.close()
        raise
    _set_pg_timeout(COLLECTIVE_TIMEOUT)
    return store


def connect_crew(comm: MPI.Intracomm) -> dist.ProcessGroup:
    """Return a group for messages between tensors on CPUs or, by NCCL, on GPUs; collective.

    The group is made directly, because torch has one default group in a process, which is that of
    the leaders, and `new_group` only makes parts of it.
    """
    store, kinds = open_store(comm, STORE_TIMEOUT), dist.ProcessGroup.BackendType
    group = dist.ProcessGroup(store, comm.rank, comm.size)
    with shut_afterwards():
        gloo = dist.ProcessGroupGloo(
            PrefixStore("cpu/", store), comm.rank, comm.size, COLLECTIVE_TIMEOUT
        )
    group._register_backend(torch.device("cpu"), kinds.GLOO, gloo)
    group._set_default_backend(kinds.GLOO)
    if torch.cuda.device_count() > 0 and dist.is_nccl_available():
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = COLLECTIVE_TIMEOUT
        nccl = dist.ProcessGroupNCCL(PrefixStore("cuda/", store), comm.rank, comm.size, options)
        group._register_backend(torch.device("cuda"), kinds.NCCL, nccl)
    # Without this, `batch_isend_irecv` refuses the group
    _world.pg_group_ranks[group] = {rank: rank for rank in range(comm.size)}
    return group


def disconnect_crew(group: dist.ProcessGroup) -> None:
    """End a group of `connect_crew`, on this rank only."""
    _world.pg_group_ranks.pop(group, None)
    group.abort()


def _take_device(context: Context, gpus: bool, share_gpus: bool = False) -> Context:
    """Return the context with the rank's device and number of threads, and set them for torch."""
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
    """Make this process one of the job's ranks: alone, under mpirun, srun or torchrun; collective.

    gpus: True if ranks compute on GPUs if there are any; share_gpus: True if several ranks may
    share a GPU, which is for tests on a machine with few of them. An error of one of several ranks
    is printed once and ends all of them, so that no rank waits for ever; an error of a single rank
    is raised again.
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


# File descriptors of a single rank, including MPI, the log and the data: 28 were counted, and large
# runs have a few more.
FILES = 64
# File descriptors for each other rank: gloo's connection, and on rank 0 two connections to its
# store, one of them for the watch.
FILES_OF_ROOT = 3


def allow_many_files() -> None:
    """Raise the limit of file descriptors; connections and files take one each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def count_files_allowed() -> int:
    """Return the limit of file descriptors of this process, after `allow_many_files`."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if allowed == resource.RLIM_INFINITY else allowed


def check_files(allowed: Sequence[int]) -> None:
    """Raise `InputError` if a rank will need more file descriptors than its limit.

    allowed: the limit of each rank. This is checked before the ranks connect, because they would
    otherwise wait for each other in vain.
    """
    for rank, found in enumerate(allowed):
        needed = FILES + len(allowed) * (FILES_OF_ROOT if rank == 0 else 1)
        if found < needed:
            raise InputError(
                f"rank {rank}",
                f"it may open {found} files, but needs {needed} among {len(allowed)} ranks, one "
                "for each connection",
                "Raise the limit on open files where jobs start (ulimit -n, LimitNOFILE of slurmd, "
                "/etc/security/limits.conf), or start fewer ranks.",
            )
