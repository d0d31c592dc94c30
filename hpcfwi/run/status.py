"""How far a run is, as its directory proves: what a launcher's exit code says of it proves nothing.

For who waits for a run, such as a batch script. Nothing here may join MPI, nor write.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcfwi.config import Config, load_config
from hpcfwi.report.log import start_log
from hpcfwi.run.directory import RunDirectory
from hpcfwi.storage.checkpoint import latest_whole_epoch
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
        """Whether all epochs are done, and the model is the one after the last of them."""
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
    """How far the run of a config is.

    Raises `InputError` where the directory is another run's, or its files cannot be read.
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
