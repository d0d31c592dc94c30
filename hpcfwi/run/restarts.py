"""Restarts of an inversion from its last checkpoint when it fails, and the status of a run.

The status is how far a run is, as its directory proves: the exit code of a launcher proves nothing.
Batch scripts wait for it. `parallel.supervisor` starts processes and gives them up. Nothing here
may join MPI, which the ranks do, and the status writes nothing.
"""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcfwi.config import Config, load_config
from hpcfwi.errors import InputError
from hpcfwi.parallel.supervisor import supervise
from hpcfwi.report.log import start_log
from hpcfwi.report.page import read_metrics
from hpcfwi.run.directory import RunDirectory
from hpcfwi.storage.checkpoint import latest_epoch, latest_whole_epoch
from hpcfwi.storage.models import read_epoch

log = logging.getLogger("hpcfwi")


@dataclass(frozen=True)
class Status:
    """The epochs that are wanted, of the newest whole checkpoint, and of the model; 0 for none."""

    directory: RunDirectory
    wanted: int
    done: int
    written: int

    @property
    def is_complete(self) -> bool:
        """True if all epochs are done, and the model is the one after the last of them."""
        return self.done >= self.wanted and self.written == self.done

    def __str__(self) -> str:
        path, model = self.directory.path, self.directory.model
        if self.done < self.wanted:
            return f"{self.done} of {self.wanted} epochs are done in {path}: the rest is to be run"
        if self.is_complete:
            return f"All {self.wanted} epochs are done in {path}: the result is {model}"
        found = f"is that of epoch {self.written}" if self.written else "is missing or damaged"
        return (
            f"All {self.wanted} epochs are done in {path}, but {model.name} {found}: "
            "`hpcfwi run` writes it from the checkpoint"
        )


def read_status(config: Config) -> Status:
    """Return the status of the run of a config.

    Raises `InputError` if the directory is another run's, or its files cannot be read.
    """
    directory = RunDirectory(Path(config.output.directory))
    directory.check(config)
    done = latest_whole_epoch(directory.checkpoints)
    return Status(directory, config.epochs, done, read_epoch(directory.model))


def tell_status(path: Path, settings: Sequence[str], quiet: bool) -> int:
    """Say how far the run of these arguments is; 0 if it is complete, else 1.

    Raises what `load_config` and `read_status` raise.
    """
    with start_log(None, 0, quiet):
        status = read_status(load_config(path, settings))
        log.info("%s", status)
    return 0 if status.is_complete else 1


@dataclass(frozen=True)
class Headway:
    """The epochs of the newest checkpoint and of the last line of the metrics, 0 for none.

    finished: None where the metrics cannot be read, which the next try makes anew.
    """

    checkpoint: int
    finished: int | None

    def __str__(self) -> str:
        finished = "an unknown epoch" if self.finished is None else f"epoch {self.finished}"
        return f"after {finished}, the checkpoint is of epoch {self.checkpoint}"


def run_with_restarts(
    path: Path, settings: Sequence[str], launch: str, restarts: int, device: str, quiet: bool
) -> int:
    """Run `hpcfwi run` with these arguments in processes of its own; its exit code.

    launch: the words that start the ranks, such as "mpirun -n 4", or none for a single rank;
    restarts: how often it may be started again after a failure; device: as the command has it.

    Raises `InputError` for a config that cannot be read, for a launcher that is not there, and for
    a directory of another run.
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
        lambda: measure_headway(directory),
        lambda: read_status(config).is_complete,
        say,
        launches=bool(launch),
    )


def measure_headway(directory: RunDirectory) -> Headway:
    """Return the progress of the run in a directory, which need not exist.

    Raises `InputError` if the system does not tell which checkpoints there are.
    """
    finished: int | None
    try:
        metrics = read_metrics(directory.metrics)
        finished = metrics[-1]["epoch"] if metrics else 0
    except (OSError, InputError, KeyError):
        finished = None
    return Headway(latest_epoch(directory.checkpoints), finished)
