"""Launchers: detect the program that started this process, and check its ranks against MPI's."""

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
                raise lonely(several, library)
            # If a rank dies meanwhile, the others wait for ever unless the launcher ends the
            # job. A thread could not end this process, because MPI holds Python's lock.
            if is_fault_tolerant(library, env):
                signal.alarm(START_WAIT)
            mpi.Init_thread()
            signal.alarm(0)
    world: MPI.Comm = mpi.COMM_WORLD
    if several and world.size == 1:
        raise lonely(several, library)
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
    """Return True if initialising this MPI would end the process without a message."""
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
    """Return mpi4py.MPI without initialising it, because a wrong library may end the process."""
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
            "MPI", f"mpi4py does not find a usable MPI library ({_one_line(error)})", _INSTALL_MPI
        ) from error


def _family(library: str) -> str:
    """Return the family of a library: Open MPI, or MPICH (including Intel, Cray, MVAPICH)."""
    return "Open MPI" if library.startswith("Open MPI") else "MPICH"


def _one_line(error: Exception) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
