"""The run directory: the paths of a run, the checks of existing files, and the lock.

Only rank 0 writes here. The layout is part of the public interface; formats are in `storage` and
`report`. Only one job at a time works in a directory. It holds a lock, which is released when the
job ends, even if it is killed.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from hpcfwi.config import Config, changed_keys, load_config
from hpcfwi.errors import InputError, quote, refusing
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.model import PARAMETERS
from hpcfwi.storage.checkpoint import latest_epoch
from hpcfwi.storage.models import read_attribute, read_model, write_model
from hpcfwi.system import (
    check_link,
    check_own,
    digest_file,
    exists,
    is_there,
    open_own,
    unfinished,
    written_whole,
)

log = logging.getLogger("hpcfwi")

# Keys that may change when a run continues: the number of epochs, how it computes, and its output.
FREE_KEYS = (
    "inversion.epochs",
    "inversion.max_failed_shots",
    "inversion.optimizer.sharded",
    "inversion.prior.folder",
    "inversion.schedule",
    "model.network.folder",
    "wave.engine",
    "wave.memory",
    "wave.ranks_per_shot",
    "output.",
    # The keys of a migration have been moved to `inversion` before the comparison.
    "migration",
)
# Other keys that may change until the first epoch is done, because the observed data do not depend
# on them
KEYS_OF_EPOCHS = ("inversion.", "data.", "stage", "model.initial", "model.network", "model.true")
# Relative difference of initial models beyond that of two processors
CHANGED = 1e-3


class RunDirectory:
    """The paths of a run.

    true: the true model, if it is known; image: result of a migration; resolution: result of
    `hpcfwi resolve`; wavelet: the last estimated wavelet; observed: the observed data, if they are
    simulated; epochs: the contents of the figures of epochs and of fits after stages, one file
    each, so that they can be drawn again; masks: the fixed cells in these figures; checked: the
    findings of `check`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.metrics = path / "config.toml", path / "metrics.jsonl"
        self.model, self.best = path / "model.h5", path / "model_best.h5"
        self.true, self.initial = path / "true.h5", path / "initial.h5"
        self.observed, self.wavelet = path / "observed.h5", path / "wavelet.h5"
        self.image, self.resolution = path / "image.h5", path / "resolution.h5"
        self.checkpoints, self.epochs = path / "checkpoints", path / "epochs"
        self.checked, self.masks = path / "check.json", self.epochs / "fixed.h5"
        self.log = path / "log.txt"

    def result(self, linear: bool) -> Path:
        """Return the file of the result: the image of a linear inversion, otherwise the model."""
        return self.image if linear else self.model

    def figure(self, name: str) -> Path:
        """Return the path of the figure of this name."""
        return self.path / f"{name}.png"

    @staticmethod
    def suffix(stage: int, count: int) -> str:
        """Return the end of the names of a stage's figures; empty if it is the only stage."""
        return f"_{stage + 1}" if count > 1 else ""

    def fit(self, stage: int) -> Path:
        """Return the path of the fit after a stage, counted from 0."""
        return self.epochs / f"stage_{stage + 1}.h5"

    def check(self, config: Config) -> None:
        """Raise `InputError` if the directory belongs to a run with another result.

        It also raises the errors of `other_values`.
        """
        other = self.other_values(config)
        if other:
            raise InputError(
                str(self.path),
                f"the run in this directory has other values: {other}",
                "Choose another directory with --output, or use these values.",
            )

    def other_values(self, config: Config) -> str:
        """Return a text with values of the directory's run that change the result of a config.

        The text is empty if all values agree, or if there is no run. Raises `InputError` if the
        config of the run cannot be read, or if a file of the run is a directory or the reverse.
        """
        with self._refusing():
            self._check_kinds()
        if not is_there(self.config):
            if latest_epoch(self.checkpoints):
                raise InputError(
                    str(self.config),
                    f"the file is missing, but {self.checkpoints} has checkpoints of a run",
                    "Choose another directory with --output, or restore the run's config.toml.",
                )
            return ""
        before = load_config(self.path)
        has_begun = latest_epoch(self.checkpoints) or (
            is_there(self.metrics) and self.metrics.stat().st_size
        )
        if not has_begun:
            return _list_changes(changed_keys(before, config), (*FREE_KEYS, *KEYS_OF_EPOCHS))
        if not before.stage and not config.stage:
            return _list_changes(changed_keys(before, config), FREE_KEYS)
        old, new = before.stages(), config.stages()
        if len(new) < len(old):
            return f"{len(old)} stages"
        *earlier, last = [
            changed_keys(was, now) for (_, was), (_, now) in zip(old, new, strict=False)
        ]
        # The epochs of a stage determine the beginning of the next one
        fixed = tuple(key for key in FREE_KEYS if key != "inversion.epochs")
        changes = [_list_changes(changed, fixed) for changed in earlier]
        changes.append(_list_changes(last, FREE_KEYS))
        return ", ".join(
            f"in stage {number} {text}" for number, text in enumerate(changes, start=1) if text
        )

    def write_start(self, experiment: Experiment) -> None:
        """Write the initial model with digests of the files of the run, for `check_start`.

        Raises `WriteFailure`.
        """
        digests = {str(path): digest_file(path) for path in experiment.other_files}
        attributes = {"data": experiment.data_digest, **digests}
        write_model(self.initial, experiment.initial, attributes)

    def check_start(self, experiment: Experiment) -> None:
        """Raise `InputError` if the run has begun with another initial model or with other files.

        Files that the run has not read before may have any contents.
        """
        try:
            before, digest = read_model(self.initial), read_attribute(self.initial, "data")
            known = {p: read_attribute(self.initial, str(p)) for p in experiment.other_files}
        except InputError:
            return  # It is missing or damaged, and will be written again.
        if digest not in (None, experiment.data_digest):
            raise InputError(
                "survey.file",
                f"the observed data differ from those of the run when {self.initial} was written",
                "Restore the file, or choose another directory with --output.",
            )
        for path, digest in known.items():
            if digest not in (None, digest_file(path)):
                raise InputError(
                    str(path),
                    f"this file has changed since {self.initial} was written",
                    "Restore the file, or choose another directory with --output.",
                )
        for name, array in experiment.initial.arrays.items():
            if name not in before.arrays or before[name].shape != array.shape:
                continue
            change, size = float(np.abs(array - before[name]).max()), float(np.abs(array).max())
            if change > CHANGED * size:
                parameter = PARAMETERS[name]
                raise InputError(
                    "model",
                    f"the {parameter.title} of the initial model differs from that of the run by "
                    f"up to {change:.3g} {parameter.unit}".rstrip(),
                    "Restore the files from which it is made, which have changed since "
                    f"{self.initial} was written, or choose another directory with --output.",
                )

    def check_writable(self) -> None:
        """Raise `InputError` if this process may not write in the directory; nothing is written."""
        there = next(path for path in (self.path, *self.path.absolute().parents) if exists(path))
        with self._refusing():
            if not os.access(there, os.W_OK | os.X_OK):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    @contextmanager
    def claim(self, config: Config) -> Iterator[None]:
        """Claim the directory for this run, so that no other job works in it; rank 0 only.

        Existing files are not changed. Raises `InputError` if the directory cannot be written,
        belongs to another run, or is claimed by another job.
        """
        with ExitStack() as held:
            with self._refusing():
                self.checkpoints.mkdir(parents=True, exist_ok=True)
                self.epochs.mkdir(exist_ok=True)
                held.enter_context(locked(self.path))
                # Another job may have begun and ended since the last check, before the lock.
                self.check(config)
            yield

    def begin(self, config: Config) -> None:
        """Write the config of the run, and remove unfinished files of killed jobs.

        The existing config is kept if the new one has fewer epochs than are done. This is called on
        rank 0 by the job that has claimed the directory, after the state of the run has been read.
        Raises `InputError` if the directory cannot be written.
        """
        with self._refusing():
            self._remove_unfinished()
            if latest_epoch(self.checkpoints) <= config.epochs:
                with written_whole(self.config) as file:
                    file.write(config.to_toml().encode())

    def _remove_unfinished(self) -> None:
        """Remove the .part files of a run, and all of those beside its checkpoints and epochs.

        The file of unfinished observed data is kept, because their simulation is continued.
        """
        own = [path.name for path in vars(self).values() if path.parent == self.path]
        files = [(self.path, name) for name in (*own, "*.png", "*.pdf")]
        for folder, name in (*files, (self.checkpoints, "*"), (self.epochs, "*")):
            for part in unfinished(folder, name):
                log.info("Removing %s, an unfinished file of a killed job", part)
                part.unlink()

    def _check_kinds(self) -> None:
        """Raise `InputError` if a file of a run is a directory, or the reverse.

        It also raises if the path leads through a file or a dangling link, and for links of other
        users, through which other files would be written or removed.
        """
        check_own(self.log)
        for path in (self.checkpoints, self.epochs):
            check_link(path)
        directories = (*self.path.parents, self.path, self.checkpoints, self.epochs)
        for path in directories:
            if path.is_symlink() and not path.exists():
                raise InputError(
                    f"output.directory: {self.path}",
                    f"{path} is a link to {path.readlink()}, which is not there",
                    "Make that directory again, or choose another one with --output.",
                )
        for path in (*directories, self.config, self.metrics, self.model, self.best):
            kind = "directory" if path in directories else "file"
            is_right = path.is_dir() if kind == "directory" else path.is_file()
            if path.exists() and not is_right:
                raise InputError(
                    f"output.directory: {self.path}",
                    f"it cannot be a run directory, because {path} is not a {kind}",
                    "Remove it, or choose another directory with --output.",
                )

    def _refusing(self) -> AbstractContextManager[None]:
        return refusing(f"output.directory: {self.path}", "cannot be written", OTHER_DIRECTORY)


OTHER_DIRECTORY = "Choose a directory to which you may write, with --output or output.directory."


def _list_changes(changed: Mapping[str, Any], free: tuple[str, ...]) -> str:
    """Return changed keys with their former values, except for those that are free to change."""
    return ", ".join(
        f"no {key}" if value is None else f"{key} = {quote(value)}"
        for key, value in changed.items()
        if not key.startswith(free)
    )


LOCK = "lock"

# For file systems without locks, s: the interval at which the holder renews its counter; the time
# without a renewal after which the holder counts as dead; and the time that a new holder waits for
# others. It is longer than the interval, so that a job that has been slow to write the file
# sees that another one has become the holder meanwhile.
COUNT_PAUSE = 2.0
HOLDER_WAIT = 30.0
RIVAL_WAIT = 5.0

_HELD = (errno.EAGAIN, errno.EACCES)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock on a directory; the file `lock` names the holder, and is empty afterwards.

    Nothing else in the process may open this file, because closing it would release the lock.
    Child processes do not inherit the lock. Raises `InputError` if another process holds it, or if
    `lock` is not a file, and `OSError` if it cannot be written.
    """
    me = f"pid {os.getpid()} on {socket.gethostname()} since {datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
    descriptor = open_own(directory / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        has_locks = True
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                raise _refusal(directory, os.pread(descriptor, 1000, 0)) from None
            if error.errno not in _NO_LOCKS:
                raise
            has_locks = False
        with nullcontext() if has_locks else _leased(directory, descriptor, me):
            _write(descriptor, 0, me)
            try:
                yield
            finally:
                with suppress(OSError):
                    os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


@contextmanager
def _leased(directory: Path, descriptor: int, me: str) -> Iterator[None]:
    """Hold a directory without locks, by a counter in the file that a thread renews.

    A counter that is not renewed means that the holder is dead. A holder that slept longer than the
    others wait would go on writing (docs/decisions/020). No clocks are compared, because clocks of
    hosts differ and may jump.
    """
    found = _read(directory)
    if found:
        log.warning("%s: waiting %g s to see if that job is alive", directory / LOCK, HOLDER_WAIT)
        _watch(directory, found, HOLDER_WAIT)
    # The last of several simultaneous writers holds the lock.
    _watch(directory, _write(descriptor, 0, me), RIVAL_WAIT)
    over = threading.Event()

    def count() -> None:
        number = 0
        while not over.wait(COUNT_PAUSE):
            number += 1
            try:
                _write(descriptor, number, me)
            except OSError as error:
                log.warning("The lock cannot be renewed (%s)", error.strerror)

    counting = threading.Thread(target=count, daemon=True)
    counting.start()
    try:
        yield
    finally:
        over.set()
        counting.join()


def _watch(directory: Path, content: bytes, seconds: float) -> None:
    """Raise `InputError` if the file changes within some seconds, except if it becomes empty."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(RIVAL_WAIT / 10)
        # Open the file each time, because network file systems check for changes when it is opened.
        now = _read(directory)
        if not now:
            return
        if now != content:
            raise _refusal(directory, now)


def _read(directory: Path) -> bytes:
    with open(directory / LOCK, "rb", opener=open_own) as file:
        return file.read()


def _write(descriptor: int, count: int, me: str) -> bytes:
    """Write the counter and the name of the holder into the file, and return the text."""
    content = f"{count:010d} {me}\n".encode()
    os.pwrite(descriptor, content, 0)
    os.ftruncate(descriptor, len(content))
    os.fsync(descriptor)
    return content


def _refusal(directory: Path, content: bytes) -> InputError:
    holder = content.decode(errors="replace").partition(" ")[2].strip()
    return InputError(
        str(directory),
        f"another job is using this directory ({holder or 'it has just started'})",
        "Wait until it ends, stop it, or choose another directory with --output.",
    )
