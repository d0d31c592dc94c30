"""The launch of a rank: from a started process to a `Context` with torch.distributed.

A process that was started by `mpirun`, `srun`, `torchrun` or plain `python` gets the same kind of
context. This module detects which of them started the process and compares its ranks with MPI's,
checks that a rank may open as many files as its connections need, and connects the ranks.
`rendezvous` lets the ranks find each other and chooses the cores and device of each. `recovery`
connects the remaining ranks again after a death.

`launched` does this for a user's own program: `with hpcfwi.launch() as context`.
"""

from __future__ import annotations

import importlib
import os
import re
import resource
import signal
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

# Imported before a process group exists. If torch.optim imported it later, its functions would keep
# a reference to the group, and gloo's threads and connections would outlive `Context.close`.
import torch.distributed.nn
from torch.distributed.distributed_c10d import _set_pg_timeout

from hpcfwi.errors import InputError, Stopped
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.failure import COMPANY_WAIT, SIGNALS, abort, end_job, exit_code, tell
from hpcfwi.parallel.rendezvous import (
    EnvironmentExchange,
    StoreExchange,
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

OPEN_MPI = "Open MPI's mpirun"

# The variables in which a launcher passes the rank and the number of ranks to a process. The order
# matters: torchrun and mpirun may themselves have been started by srun, whose variables then
# count torchrun's agents or mpirun's daemons. A batch script has no SLURM_STEP_NUM_TASKS.
# Slurm's pmi2 plugin also sets PMI_*, but not MPI_LOCALNRANKS, so that srun comes before the
# launchers with these.
_VARIABLES = (
    ("torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"),
    (OPEN_MPI, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPICH's mpirun", "MPI_LOCALNRANKS", "PMI_RANK", "PMI_SIZE"),
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("a PMI launcher", "PMI_SIZE", "PMI_RANK", "PMI_SIZE"),
)

# A launcher other than torchrun that sets torch's variables, such as an operator on Kubernetes. It
# is detected last, because ranks of MPI also have these variables once they are connected.
ENVIRONMENT = "the launcher that set RANK and WORLD_SIZE"

START_WAIT = 120  # s for MPI to start on all ranks

_ON = ("1", "t", "true", "enabled", "y", "yes")  # values that enable a switch of Open MPI

_INSTALL_MPI = (
    "Install one with `apt install openmpi-bin` or `pip install mpich`, or load it with "
    "`module load` on a cluster; MPI4PY_LIBMPI may name a library in another place."
)


@dataclass(frozen=True)
class Launcher:
    """A program that starts ranks, and the number that it gave to this rank."""

    name: str
    rank: int
    size: int


def find_launcher(env: Mapping[str, str]) -> Launcher | None:
    """Return the launcher that set these environment variables; None for a plain start."""
    for name, mark, rank, size in _VARIABLES:
        if mark in env and env.get(rank, "").isdigit() and env.get(size, "").isdigit():
            return Launcher(name, int(env[rank]), int(env[size]))
    rank, size = env.get("RANK", ""), env.get("WORLD_SIZE", "")
    if not size.isdigit() or int(size) < 2:
        return None
    return Launcher(ENVIRONMENT, int(rank) if rank.isdigit() else 0, int(size))


def check_operator(env: Mapping[str, str]) -> None:
    """Raise `InputError` if these variables do not let the ranks of an `ENVIRONMENT` connect."""
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
    problem = f"without {' and '.join(missing)}, each process would be alone"
    if not missing:
        rank, port = env["RANK"], env["MASTER_PORT"]
        if rank.isdigit() and int(rank) < int(env["WORLD_SIZE"]) and port.isdigit():
            return
        problem = f"RANK={rank} or MASTER_PORT={port} is not valid"
    raise InputError(
        f"WORLD_SIZE={env['WORLD_SIZE']}",
        f"it is set, but no launcher of MPI or torch has started this process, and {problem}",
        "Set RANK (from 0), and MASTER_ADDR and MASTER_PORT to the host of rank 0 and a free port "
        "there; or start the ranks with mpirun, srun or torchrun; or unset WORLD_SIZE for a "
        "single process.",
    )


def join_mpi(launcher: Launcher | None, env: Mapping[str, str]) -> MPI.Comm:
    """Return MPI's communicator of all ranks, as many as the launcher has started.

    Raises InputError if there is no MPI, or if each process is alone in its communicator.
    """
    with warnings.catch_warnings():
        # The message below, with the remedy, replaces mpi4py's warnings in every process.
        warnings.filterwarnings("ignore", "suspicious MPI execution", RuntimeWarning)
        mpi = _import_mpi()
        library = mpi.Get_library_version()
        several = launcher if launcher is not None and launcher.size > 1 else None
        if not mpi.Is_initialized():
            if several and _would_abort(several, library, env):
                Context.raise_on_all_ranks(lonely(several, library))
            # If a rank dies meanwhile, the others wait for ever unless the launcher ends the
            # job. A thread could not end this process, because MPI holds Python's lock.
            if is_fault_tolerant(library, env):
                signal.alarm(START_WAIT)
            mpi.Init_thread()
            signal.alarm(0)
    world: MPI.Comm = mpi.COMM_WORLD
    if several and world.size == 1:
        Context.raise_on_all_ranks(lonely(several, library))
    return world


def is_fault_tolerant(library: str, env: Mapping[str, str]) -> bool:
    """Return True if a job survives the death of a process: Open MPI 5, `mpirun --with-ft ulfm`.

    library: the version string of MPI. The option sets a variable in the environment. The library
    alone is not sufficient, because without the option the launcher ends the job.
    """
    version = re.match(r"Open MPI v(\d+)", library)
    switch = env.get("OMPI_MCA_mpi_ft_enable", "").lower()
    return version is not None and int(version[1]) >= 5 and switch in _ON


def _would_abort(launcher: Launcher, library: str, env: Mapping[str, str]) -> bool:
    """Return True if initializing this MPI would end the process without a message."""
    if _family(library) == "Open MPI":
        return launcher.name == "srun" and "PMIX_RANK" not in env
    return launcher.name == OPEN_MPI


def lonely(launcher: Launcher, library: str) -> InputError:
    """Return the error for several processes that are each the only one according to MPI.

    library: the version string of MPI, as in "Open MPI v4.1.4, package: ..." or
    "MPICH Version:      5.0.2" and further lines.
    """
    family = _family(library)
    plugin = "pmix" if family == "Open MPI" else "pmi2"
    first = library.replace("\0", "").splitlines()[0].split(",")[0]
    version = " ".join(first.replace("Version:", "").split())
    if launcher.name == "srun":
        cause = "so this srun does not work with this MPI"
        remedy = (
            f"Start it with `srun --mpi={plugin}`, which is for {family}; "
            "`srun --mpi=list` shows the plugins of this Slurm."
        )
    else:
        cause = "so the launcher and the library do not belong together"
        remedy = (
            f"Use the mpirun that came with {version}, or let MPI4PY_LIBMPI name "
            f"the libmpi.so that belongs to {launcher.name}."
        )
    return InputError(
        launcher.name,
        f"it started {launcher.size} processes, but each of them is alone in the MPI library of "
        f"mpi4py ({version}), {cause}",
        remedy,
    )


def _import_mpi() -> ModuleType:
    """Return mpi4py.MPI without initializing it, because a wrong library may end the process."""
    try:
        import mpi4py

        mpi4py.rc(initialize=False, finalize=True)
        return importlib.import_module("mpi4py.MPI")
    except ModuleNotFoundError as error:
        raise InputError(
            "mpi4py", f"not installed ({error})", "Install it with `pip install mpi4py`."
        ) from error
    except (ImportError, RuntimeError) as error:
        reason = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
        raise InputError(
            "MPI", f"mpi4py does not find a usable MPI library ({reason})", _INSTALL_MPI
        ) from error


def _family(library: str) -> str:
    """Return the family of a library: Open MPI, or MPICH (including Intel, Cray, MVAPICH)."""
    return "Open MPI" if library.startswith("Open MPI") else "MPICH"


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
    or if the ranks' devices are not consistent. `end_launch` then prints one message.
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
    except InputError as error:
        context.raise_on_all_ranks(error)
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
        error = InputError(
            launcher.name,
            f"it has started {launcher.size} processes of a command that must run in one process",
            remedy,
        )
        Context.raise_on_all_ranks(error)
    return _take_device(Context.alone(), gpus=False)


def _keep_off_mpi() -> None:
    """Prevent the import of parallel HDF5 from starting MPI."""
    with suppress(ModuleNotFoundError):
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


def connect(
    this: Context, share_gpus: bool = False, exchange: StoreExchange | None = None
) -> Store:
    """Start torch.distributed for tensors on CPUs and, if torch has NCCL, on GPUs; collective.

    this: the context of this rank, without a store; share_gpus: see `launch`; exchange: between the
    ranks, if neither MPI nor torch's variables know them. Returns the store of the ranks. Raises
    RuntimeError if the ranks do not connect in time, for example because one of them has died, and
    `InputError` on all of them if one may not open enough files.
    """
    between = this.comm or exchange or EnvironmentExchange(COLLECTIVE_TIMEOUT)
    check_files(between.allgather(allow_many_files()))
    store = open_store(between, RANKS_CONNECT_WAIT if this.fault_tolerant else STORE_TIMEOUT)
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


def end_launch(error: InputError | Stopped) -> int:
    """Print once for the job why the ranks did not start, and return the exit code.

    Processes whose MPI failed cannot communicate. The process that is rank 0 according to the
    launcher prints the error first, because some launchers end a job as soon as one process exits.
    Another process prints its error if the launcher has not ended it by then, unless the error is
    known to be on all of them.
    """
    launcher = find_launcher(os.environ)
    if launcher is None or launcher.rank == 0:
        tell(error)
        return exit_code(error)
    is_common = isinstance(error, Stopped) or getattr(error, "raised_on_all_ranks", False)
    # The signals may be blocked
    has_ended = signal.sigtimedwait(SIGNALS, COMPANY_WAIT) is not None
    if not is_common and not has_ended:
        tell(error, f"rank {launcher.rank} on {socket.gethostname()}")
    return exit_code(error)


@contextmanager
def launched(gpus: bool = True, share_gpus: bool = False) -> Iterator[Context]:
    """Make this process one of the job's ranks, see `hpcfwi.launch`; collective.

    An exception is raised again if there is only one rank; otherwise it ends the job.
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


def allow_many_files() -> int:
    """Raise the limit of file descriptors of this process, if possible, and return it.

    Connections and files take one each.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
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
