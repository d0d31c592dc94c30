"""Launchers: which program started this process, and whether MPI agrees on the number of ranks."""

from __future__ import annotations

import importlib
import re
import signal
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from hpcfwi.errors import InputError

if TYPE_CHECKING:
    from mpi4py import MPI


OPEN_MPI = "Open MPI's mpirun"

# The variables by which a launcher tells a process its rank and the number of ranks. The order
# matters: torchrun and mpirun may themselves have been started by srun, whose variables then
# count torchrun's agents or mpirun's daemons. A batch script has no SLURM_STEP_NUM_TASKS.
# Slurm's pmi2 plugin sets PMI_* too, but not MPI_LOCALNRANKS, so srun comes before those.
_VARIABLES = (
    ("torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"),
    (OPEN_MPI, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPICH's mpirun", "MPI_LOCALNRANKS", "PMI_RANK", "PMI_SIZE"),
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("a PMI launcher", "PMI_SIZE", "PMI_RANK", "PMI_SIZE"),
)

# Who sets torch's variables without torchrun, as operators of jobs on Kubernetes do. It is looked
# for last: ranks that MPI knows have these variables, too, once they are connected.
OPERATOR = "the launcher that set RANK and WORLD_SIZE"

START_WAIT = 120  # s for MPI to start on all ranks

_ON = ("1", "t", "true", "enabled", "y", "yes")  # what Open MPI takes for a switch that is on

_INSTALL_MPI = (
    "Install one with `apt install openmpi-bin` or `pip install mpich`, or load it with "
    "`module load` on a cluster; MPI4PY_LIBMPI names a library elsewhere."
)


@dataclass(frozen=True)
class Launcher:
    """A program that starts ranks, and what it calls this one."""

    name: str
    rank: int
    size: int


def find_launcher(env: Mapping[str, str]) -> Launcher | None:
    """The launcher that set these environment variables; None for a plain start."""
    for name, mark, rank, size in _VARIABLES:
        if mark in env and env.get(rank, "").isdigit() and env.get(size, "").isdigit():
            return Launcher(name, int(env[rank]), int(env[size]))
    rank, size = env.get("RANK", ""), env.get("WORLD_SIZE", "")
    if not size.isdigit() or int(size) < 2:
        return None
    return Launcher(OPERATOR, int(rank) if rank.isdigit() else 0, int(size))


def check_operator(env: Mapping[str, str]) -> None:
    """Raise `InputError` if ranks of an `OPERATOR` cannot find each other by these variables."""
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
    problem = f"without {' and '.join(missing)}, each process would be alone"
    if not missing:
        rank, port = env["RANK"], env["MASTER_PORT"]
        if rank.isdigit() and int(rank) < int(env["WORLD_SIZE"]) and port.isdigit():
            return
        problem = f"RANK={rank} and MASTER_PORT={port} do not fit"
    raise InputError(
        f"WORLD_SIZE={env['WORLD_SIZE']}",
        f"it is set, but no launcher of MPI or torch has started this process, and {problem}",
        "Set RANK (from 0), and MASTER_ADDR and MASTER_PORT to the host of rank 0 and a free port "
        "there; or start the ranks with mpirun, srun or torchrun; or unset WORLD_SIZE for a "
        "process by itself.",
    )


def join_mpi(launcher: Launcher | None, env: Mapping[str, str]) -> MPI.Comm:
    """MPI's communicator of all ranks, as many as the launcher has started.

    Raises InputError where there is no MPI, and where each process is alone in its own.
    """
    with warnings.catch_warnings():
        # mpi4py warns in every process of what is told below, once and with the remedy.
        warnings.filterwarnings("ignore", "suspicious MPI execution", RuntimeWarning)
        mpi = _import_mpi()
        library = mpi.Get_library_version()
        several = launcher if launcher is not None and launcher.size > 1 else None
        if not mpi.Is_initialized():
            if several and _would_abort(several, library, env):
                raise lonely(several, library)
            # A rank that dies meanwhile is waited for for ever where the launcher does not end the
            # job. No thread could end this process: MPI holds Python's lock.
            if is_fault_tolerant(library, env):
                signal.alarm(START_WAIT)
            mpi.Init_thread()
            signal.alarm(0)
    world: MPI.Comm = mpi.COMM_WORLD
    if several and world.size == 1:
        raise lonely(several, library)
    return world


def is_fault_tolerant(library: str, env: Mapping[str, str]) -> bool:
    """Return True if a job survives its processes: Open MPI 5, `mpirun --with-ft ulfm`.

    library: the version string of MPI. The option sets the variable in the processes. The library
    alone does not tell: without the option the launcher ends the job.
    """
    version = re.match(r"Open MPI v(\d+)", library)
    switch = env.get("OMPI_MCA_mpi_ft_enable", "").lower()
    return version is not None and int(version[1]) >= 5 and switch in _ON


def _would_abort(launcher: Launcher, library: str, env: Mapping[str, str]) -> bool:
    """Return True if initialising this MPI would end the process without a message."""
    if _family(library) == "Open MPI":
        return launcher.name == "srun" and "PMIX_RANK" not in env
    return launcher.name == OPEN_MPI


def lonely(launcher: Launcher, library: str) -> InputError:
    """Return the error for a launcher of several processes of which MPI sees one in each.

    library: the version string of MPI, as in "Open MPI v4.1.4, package: ..." or
    "MPICH Version:      5.0.2" and further lines.
    """
    family = _family(library)
    plugin = "pmix" if family == "Open MPI" else "pmi2"
    first = library.replace("\0", "").splitlines()[0].split(",")[0]
    version = " ".join(first.replace("Version:", "").split())
    if launcher.name == "srun":
        cause = "so this srun does not speak to this MPI"
        remedy = (
            f"Start it with `srun --mpi={plugin}`, which is for {family}; "
            "`srun --mpi=list` shows what this Slurm has."
        )
    else:
        cause = "so the launcher and the library do not belong together"
        remedy = (
            f"Use the mpirun that came with {version}, or let MPI4PY_LIBMPI name "
            f"the libmpi.so that belongs to {launcher.name}."
        )
    return InputError(
        launcher.name,
        f"it started {launcher.size} processes, but in the MPI library of mpi4py ({version}) "
        f"each of them is alone, {cause}",
        remedy,
    )


def _import_mpi() -> ModuleType:
    """mpi4py.MPI, not initialised: a library of the wrong family may end the process on that."""
    try:
        import mpi4py

        mpi4py.rc(initialize=False, finalize=True)
        return importlib.import_module("mpi4py.MPI")
    except ModuleNotFoundError as error:
        raise InputError(
            "mpi4py", f"not installed ({error})", "Install it with `pip install mpi4py`."
        ) from error
    except (ImportError, RuntimeError) as error:
        raise InputError(
            "MPI", f"mpi4py finds no MPI library that it can use ({_one_line(error)})", _INSTALL_MPI
        ) from error


def _family(library: str) -> str:
    """Open MPI, or MPICH and what descends from it (Intel's, Cray's, MVAPICH)."""
    return "Open MPI" if library.startswith("Open MPI") else "MPICH"


def _one_line(error: Exception) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
