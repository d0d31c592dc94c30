"""Restarts of an inversion from its last checkpoint after failures, and the status of a run.

The status is the progress of a run according to its directory, because the exit code of a launcher
is not reliable. Batch scripts query it, and it writes nothing. Processes that a launcher has
started cannot start themselves again. Therefore a supervisor, which is a separate process and does
not use MPI, starts the whole program with all its ranks. `parallel.failure` describes the end of a
failing program.
"""

from __future__ import annotations

import logging
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

import numpy as np

from hpcfwi.config import Config, load_config
from hpcfwi.errors import InputError, say_bytes
from hpcfwi.parallel.failure import handling
from hpcfwi.report.text import read_metrics, start_log
from hpcfwi.run.directory import RunDirectory
from hpcfwi.storage.checkpoint import latest_epoch, latest_whole_epoch
from hpcfwi.storage.hdf5 import open_alone
from hpcfwi.storage.models import read_epoch
from hpcfwi.system import beside, free_on_host, is_there

log = logging.getLogger("hpcfwi")


def read_status(config: Config) -> tuple[bool, str]:
    """Return True if the run of a config is complete, and a sentence about its progress.

    A run is complete if all epochs are done, and the model on disk is that after the last one.
    Raises `InputError` if the directory is another run's, or its files cannot be read.
    """
    directory = RunDirectory(Path(config.output.directory))
    directory.check(config)
    path, model, wanted = directory.path, directory.model, config.epochs
    done, written = latest_whole_epoch(directory.checkpoints), read_epoch(model)
    if done < wanted:
        return False, f"{done} of {wanted} epochs are done in {path}"
    if written == done:
        result = directory.result(config.inversion.linear)
        return True, f"All {wanted} epochs are done in {path}: the result is {result}"
    found = f"is that of epoch {written}" if written else "is missing or damaged"
    return False, (
        f"All {wanted} epochs are done in {path}, but {model.name} {found}: "
        "`hpcfwi run` writes it from the checkpoint"
    )


def tell_status(path: Path, settings: Sequence[str], quiet: bool) -> int:
    """Log the status of the run with these arguments; return 0 if it is complete, else 1.

    Raises what `load_config` and `read_status` raise.
    """
    with start_log(None, 0, quiet):
        is_complete, status = read_status(load_config(path, settings))
        log.info("%s", status)
    return 0 if is_complete else 1


def run_with_restarts(
    path: Path, settings: Sequence[str], launch: str, restarts: int, device: str, quiet: bool
) -> int:
    """Run `hpcfwi run` with these arguments in separate processes; return its exit code.

    launch: the command that starts the ranks, such as "mpirun -n 4", or empty for a single rank;
    restarts: largest number of restarts after failures; device: option of the command.

    Raises `InputError` if the config cannot be read, the launcher does not exist, or the directory
    belongs to another run.
    """
    config = load_config(path, settings)
    directory = RunDirectory(Path(config.output.directory))
    command = [*shlex.split(launch), sys.executable, "-P", "-m", "hpcfwi", "run", str(path)]
    command += [word for setting in settings for word in ("--set", setting)]
    command += ["--device", device, *["--quiet"] * quiet]

    def say(message: str) -> None:
        with start_log(directory.log if directory.path.is_dir() else None, 0, quiet):
            log.warning("%s", message)

    return supervise(
        command,
        restarts,
        lambda: tell_headway(directory),
        lambda: read_status(config)[0],
        say,
        launches=bool(launch),
    )


def tell_headway(directory: RunDirectory) -> str:
    """Return a text with the progress of the run in a directory, which need not exist.

    Metrics that cannot be read are no error, because the next run writes them again. Raises
    `InputError` if the system cannot list the checkpoints.
    """
    part, simulated = beside(directory.observed), 0
    if is_there(part):
        with suppress(OSError, InputError, LookupError), open_alone(part) as file:
            simulated = int(np.count_nonzero(file["digests"]))
    if simulated:
        return f"with {simulated} shots of the observed data"
    try:
        metrics = read_metrics(directory.metrics)
        finished = f"epoch {metrics[-1]['epoch'] if metrics else 0}"
    except (OSError, InputError, KeyError):
        finished = "an unknown epoch"
    return f"after {finished}, with the checkpoint of epoch {latest_epoch(directory.checkpoints)}"


FINAL = (2, 3)  # bad input, and stopped on request, for which a restart is useless

# The code of a program that was killed, as one that exceeds the memory of its control group is.
KILLED = 128 + signal.SIGKILL


def supervise(
    command: Sequence[str],
    restarts: int,
    reached: Callable[[], str],
    is_done: Callable[[], bool],
    say: Callable[[str], None],
    *,
    launches: bool,
) -> int:
    """Run a command, and again after failures; return 0 if it is done, otherwise its exit code.

    A command that exits with 0 before the work is done counts as failed with code 1, because some
    launchers exit with 0 if they could not start anything. The code of a program that was killed is
    128 plus the number of the signal. A signal to this process is passed on to the command, and
    there is no restart after it. There is also no restart if a failure is repeated at the same
    place.

    restarts: largest number of restarts; reached: a function that names the place that the program
    has reached; is_done: a function that returns True if the work is done, by any of the runs; say:
    a function that is called with a message at every decision; launches: True if the command is a
    launcher, which would kill its ranks at SIGTERM and SIGINT and therefore gets SIGUSR1 instead.
    Raises `InputError` if the command cannot be started.
    """
    child: subprocess.Popen[bytes] | None = None
    received = 0  # the number of the last signal

    def pass_on(number: int, frame: FrameType | None = None) -> None:  # noqa: ARG001
        nonlocal received
        received = number
        if child is not None:
            child.send_signal(signal.SIGUSR1 if launches else number)

    with handling(pass_on):
        place = ""
        for restart in range(restarts + 1):
            child = _start(command)
            if received:  # it came before the command was started
                pass_on(received)
            code = child.wait()
            child = None
            code = code if code >= 0 else 128 - code
            if code in FINAL:
                return code
            before, place = place, reached()
            if is_done():
                if code != 0:
                    say(f"It ended with {code}, but all epochs are done ({place}).")
                return 0
            end = f"It ended with {code}"
            if code == 0:
                end += ", but not all epochs are done"
            if code == KILLED:
                end += f" (killed, probably for memory: {say_bytes(free_on_host())} are free here)"
            code = code or 1
            if received:
                return code
            if restart == restarts:
                break
            if place == before:
                say(f"{end}, again at the same place ({place}): no restart.")
                return code
            say(f"{end} ({place}): restart {restart + 1} of {restarts}.")
    say(f"{end} ({place}), and no restart is left.")
    return code


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a command with the input and output of this process."""
    try:
        # The launcher gets a new session; otherwise Ctrl-C would also reach it directly.
        return subprocess.Popen(command, start_new_session=True)
    except OSError as error:
        raise InputError(
            f"--launch: {command[0]}",
            f"it cannot be started ({error.strerror})",
            "Give a command that starts the ranks, as in --launch 'mpirun -n 4'.",
        ) from error
