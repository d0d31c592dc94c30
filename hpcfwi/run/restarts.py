"""An inversion that is started again from its last checkpoint when it fails.

How processes are started and when they are given up is in `parallel.supervisor`. Nothing
here may join MPI, which its ranks do.
"""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcfwi.config import load_config
from hpcfwi.errors import InputError
from hpcfwi.parallel.supervisor import supervise
from hpcfwi.report.log import start_log
from hpcfwi.report.metrics import read_metrics
from hpcfwi.run.directory import RunDirectory
from hpcfwi.run.status import read_status
from hpcfwi.storage.checkpoint import latest_epoch

log = logging.getLogger("hpcfwi")


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
    """How far the run in a directory, which need not be there, has got.

    Raises `InputError` where the system does not tell which checkpoints there are.
    """
    finished: int | None
    try:
        metrics = read_metrics(directory.metrics)
        finished = metrics[-1]["epoch"] if metrics else 0
    except (OSError, InputError, KeyError):
        finished = None
    return Headway(latest_epoch(directory.checkpoints), finished)
