"""The run directory: where everything of a run is, and what is allowed to go on in it.

Only rank 0 writes here. The layout is part of the public contract; formats are in `storage` and
`report`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hpcfwi.config import Config, changed_keys, load_config
from hpcfwi.errors import InputError, WriteFailure, quote
from hpcfwi.storage.checkpoint import latest_epoch
from hpcfwi.storage.lock import locked
from hpcfwi.system import check_link, check_own, is_there, unfinished, written_whole

log = logging.getLogger("hpcfwi")

# What may change when a run goes on: how long it goes, how it is computed, what it writes.
FREE_KEYS = (
    "inversion.epochs",
    "inversion.max_failed_shots",
    "inversion.optimizer.sharded",
    "inversion.prior.folder",
    "inversion.schedule",
    "model.network.folder",
    "wave.engine",
    "wave.memory",
    "output.",
    # What a migration does is in `inversion` by then, and else nothing looks at it
    "migration",
)
# What may change until an epoch is done: all that the observed data do not depend on.
UPDATES = ("inversion.", "data.", "stage", "model.true")


class RunDirectory:
    """Paths of a run.

    true: the true model, where it is known; image: of a migration; resolution: of
    `hpcfwi resolve`; wavelet: that was estimated
    last; observed: the observed data, where they are simulated; epochs: what the figures of epochs
    and of the ends of stages show, a file each, so that they can be drawn again; masks: which
    cells of the model are kept, for these; checked: what `check` has found.
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

    def figure(self, name: str, label: int = 0) -> Path:
        """Return the figure of this name; label: of a stage, see `label`."""
        return self.path / (f"{name}_{label}.png" if label else f"{name}.png")

    @staticmethod
    def label(stage: int, count: int) -> int:
        """Return the number in names of figures of a stage, from 1; 0 if there is only one."""
        return stage + 1 if count > 1 else 0

    def ending(self, stage: int) -> Path:
        """Return the file of the fit after a stage, counted from 0."""
        return self.epochs / f"stage_{stage + 1}.h5"

    def check(self, config: Config) -> None:
        """Raise `InputError` if it belongs to a run of a config that would give another answer.

        And where `other_values` does.
        """
        other = self.other_values(config)
        if other:
            raise InputError(
                str(self.path),
                f"the run in this directory has other values: {other}",
                "Choose another directory with --output, or give these values.",
            )

    def other_values(self, config: Config) -> str:
        """Return the values of the run in it that differ from a config and change the result.

        The text is empty if they agree, or there is no run. Raises `InputError` if its config
        cannot be read, or something else is in the place of a file of the run.
        """
        try:
            self._check_kinds()
        except OSError as error:
            raise self._unusable(error) from error
        if not is_there(self.config):
            if latest_epoch(self.checkpoints):
                raise InputError(
                    str(self.config),
                    f"there is none, but checkpoints of a run are in {self.checkpoints}",
                    "Choose another directory with --output, or put the run's config.toml back.",
                )
            return ""
        before = load_config(self.path)
        if not latest_epoch(self.checkpoints) and not self._has_metrics():
            return _tell(changed_keys(before, config), (*FREE_KEYS, *UPDATES))
        if not before.stage and not config.stage:
            return _tell(changed_keys(before, config), FREE_KEYS)
        old, new = before.stages(), config.stages()
        if len(new) < len(old):
            return f"{len(old)} stages"
        *earlier, last = [
            changed_keys(was, now) for (_, was), (_, now) in zip(old, new, strict=False)
        ]
        # Where the epochs of a stage end, the next begins
        fixed = tuple(key for key in FREE_KEYS if key != "inversion.epochs")
        told = [*(_tell(changed, fixed) for changed in earlier), _tell(last, FREE_KEYS)]
        return ", ".join(
            f"in stage {number} {text}" for number, text in enumerate(told, start=1) if text
        )

    @contextmanager
    def claim(self, config: Config) -> Iterator[None]:
        """Make the directory this run's: no other job works in it meanwhile; rank 0 only.

        Files of the run in it stay unchanged.
        Raises `InputError` where it cannot be written, is another run's, or another job has it.
        """
        with ExitStack() as held:
            try:
                self.checkpoints.mkdir(parents=True, exist_ok=True)
                self.epochs.mkdir(exist_ok=True)
                held.enter_context(locked(self.path))
                # Another job may have begun, and ended, since the last look
                self.check(config)
            except OSError as error:
                raise self._unusable(error) from error
            yield

    def begin(self, config: Config) -> None:
        """Note the config of its run, and remove what killed jobs have left unfinished.

        Where fewer epochs are asked for than are done, the config that asked for these stays. For
        who has claimed it, on rank 0 only, and knows that what the run goes on from is good.
        Raises `InputError` where it cannot be written.
        """
        try:
            self._remove_unfinished()
            if latest_epoch(self.checkpoints) <= config.epochs:
                with written_whole(self.config) as file:
                    file.write(config.to_toml().encode())
        except (OSError, WriteFailure) as error:
            raise self._unusable(error) from error

    def _remove_unfinished(self) -> None:
        """Remove the .part files of what belongs to a run, and of nothing else.

        Not that of the observed data, with whose simulation the run goes on.
        """
        models = (self.model, self.best, self.true, self.initial)
        own = (self.config, self.metrics, *models, self.wavelet, self.image, self.resolution)
        for part in [
            *(part for path in own for part in unfinished(self.path, path.name)),
            *unfinished(self.path, "*.png"),
            *unfinished(self.path, "*.pdf"),
            *unfinished(self.checkpoints, "epoch_*.ckpt"),
            *unfinished(self.epochs, "epoch_*.h5"),
            *unfinished(self.epochs, "stage_*.h5"),
            *unfinished(self.epochs, self.masks.name),
        ]:
            log.info("Removing %s, which a job that was killed had not finished", part)
            part.unlink()

    def _has_metrics(self) -> bool:
        """Return True if there are metrics of an epoch, which may have left figures."""
        return is_there(self.metrics) and self.metrics.stat().st_size > 0

    def _check_kinds(self) -> None:
        """Raise `InputError` where what is a file in a run directory is not, or a directory.

        And where somebody else's links would have other files written or removed.
        """
        check_own(self.log)
        for path in (self.checkpoints, self.epochs):
            check_link(path)
        directories = (self.path, self.checkpoints, self.epochs)
        for path in (*directories, self.config, self.metrics, self.model, self.best):
            kind = "directory" if path in directories else "file"
            is_right = path.is_dir() if kind == "directory" else path.is_file()
            if path.exists() and not is_right:
                raise InputError(
                    f"output.directory: {self.path}",
                    f"cannot be a run directory, as {path} is not a {kind}",
                    "Remove it, or choose another directory with --output.",
                )

    def _unusable(self, error: OSError | WriteFailure) -> InputError:
        reason = error.reason if isinstance(error, WriteFailure) else error.strerror
        return InputError(
            f"output.directory: {self.path}",
            f"cannot be written ({reason})",
            "Choose a directory that you may write, with --output or output.directory.",
        )


def _tell(changed: Mapping[str, Any], free: tuple[str, ...]) -> str:
    """Keys with the values that they had, but for those that are free to change."""
    return ", ".join(
        f"no {key}" if value is None else f"{key} = {quote(value)}"
        for key, value in changed.items()
        if not key.startswith(free)
    )
