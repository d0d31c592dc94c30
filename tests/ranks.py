"""Programs in other processes for the tests, on one or several ranks, with a time limit.

done = run_ranks(3, "from mpi4py import MPI; print(MPI.COMM_WORLD.rank)")
assert done.stdout.split() == ["0", "1", "2"]
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WARM = str(ROOT / "tests" / "warm.py")


def long_form(*values: object) -> object:
    """Return a test case that only `make torture` and CI run, since others are similar."""
    return pytest.param(*values, marks=pytest.mark.long)


def make_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment with what mpirun needs as root and on few cores.

    The project's root is on PYTHONPATH, so that rank programs find `hpcfwi` and `tests`. Python
    writes whole lines even if this process is unbuffered, since lines of ranks would mix.
    """
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        **(extra or {}),
    }


def messages(errors: str) -> list[str]:
    """Return the lines that hpcfwi has written to stderr, without those of the launcher.

    Open MPI 5 ends its own text with a zero byte, which the next line then begins with.
    """
    lines = errors.replace("\0", "").splitlines()
    return [line for line in lines if line.startswith("hpcfwi: ")]


def run_ranks(
    n: int,
    program: str | Sequence[str],
    env: Mapping[str, str] | None = None,
    timeout: float = 180.0,
    launcher: Sequence[str] = ("mpirun",),
    warm: bool | tuple[str, ...] = False,
    code: int | None = 0,
) -> subprocess.CompletedProcess[str]:
    """Run Python on `n` ranks, wait for the end and check the exit code.

    program: source code, or the arguments that follow `python` (["-m", "hpcfwi", "run", ...]).
    env: variables to set on top of `make_env()`.
    timeout: seconds after which every process of the job is killed and
    `subprocess.TimeoutExpired` is raised with the output so far.
    launcher: an mpirun, and flags for it.
    warm: True to fork the ranks from a process that has imported the slow modules, see `warm`; or
    the names of further modules that it imports.
    code: the expected exit code; None for any.

    The test is skipped if there is no mpirun.
    """
    mpirun = shutil.which(launcher[0])
    if mpirun is None:
        pytest.skip("no mpirun on this machine: an MPI is needed to test several ranks")
    arguments = ["-c", program] if isinstance(program, str) else list(program)
    python = [sys.executable]
    if warm is not False:
        library = (env or {}).get("MPI4PY_LIBMPI", "")
        python = warm_python(library, () if warm is True else warm)
    job = subprocess.Popen(
        [
            *(mpirun, *launcher[1:], "--bind-to", "none", "--oversubscribe", "-n", str(n)),
            *(*python, *arguments),
        ],
        env=make_env(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill_session(job.pid)
        raise subprocess.TimeoutExpired(job.args, timeout, *job.communicate()) from None
    except BaseException:
        _kill_session(job.pid)
        raise
    assert code in (None, job.returncode), (arguments, job.returncode, errors)
    return subprocess.CompletedProcess(job.args, job.returncode, output, errors)


def run_torchrun(
    n: int, program: str | Sequence[str], timeout: float = 180.0
) -> subprocess.CompletedProcess[str]:
    """Run Python on `n` warm ranks that MPI does not know; program: as in `run_ranks`."""
    arguments = ["-c", program] if isinstance(program, str) else list(program)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
    warm = warm_python()
    return run_command([*warm, *torchrun, "--no-python", *warm, *arguments], timeout=timeout)


def run_command(
    words: Sequence[object],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = 180.0,
    code: int | None = 0,
) -> subprocess.CompletedProcess[str]:
    """Run a command in one process; env, timeout, code: as in `run_ranks`."""
    command = [*map(str, words)]
    done = subprocess.run(
        command, env=make_env(env), cwd=cwd, capture_output=True, text=True, timeout=timeout
    )
    assert code in (None, done.returncode), (command, done.returncode, done.stdout + done.stderr)
    return done


def warm_python(library: str = "", modules: tuple[str, ...] = ()) -> list[str]:
    """Return the command that replaces `python` to fork from a warm process, see `warm`.

    It is for programs whose start is not what is tested.
    """
    return [sys.executable, "-IS", WARM, serve_warm_ranks(library, modules)]


@cache
def serve_warm_ranks(library: str = "", modules: tuple[str, ...] = ()) -> str:
    """Start the process from which warm ranks are forked, and return its socket.

    It ends with this process, which closes its standard input. library: the MPI library if it is
    not that of the system; the loader must know it when the process starts. modules: further
    modules to import.
    """
    path = str(Path(tempfile.mkdtemp()) / "warm")
    beside = {"LD_LIBRARY_PATH": str(Path(library).parent)} if library else {}
    server = subprocess.Popen(
        [sys.executable, "-P", WARM, path, *modules],
        env=make_env(beside),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    atexit.register(shutil.rmtree, Path(path).parent)
    atexit.register(server.communicate)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    return path


def _kill_session(leader: int) -> None:
    """Kill every process of a session; mpirun puts each rank in its own process group."""
    for process in (int(entry.name) for entry in Path("/proc").glob("[0-9]*")):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process) == leader:
                os.kill(process, signal.SIGKILL)
