"""The log and the progress of a run: the output of messages on each rank, and the time left.

The whole program writes messages with `logging.getLogger("hpcfwi")`. The progress is a live bar on
a terminal, and plain lines in the log of a batch job. `page` stores the numbers of each epoch.
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from hpcfwi.errors import refusing
from hpcfwi.system import open_own

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

logger = logging.getLogger(__name__)

# A record with this attribute has already been shown and is written to the file only.
ALREADY_SHOWN = "already_shown"


@contextmanager
def start_log(path: Path | None, rank: int, quiet: bool = False) -> Iterator[None]:
    """Direct messages to the screen and a file; an outer log pauses within the block.

    Rank 0 writes messages to the screen (`quiet`: only warnings and errors) and, with the time,
    appends them to the file `path` (None: no file). Other ranks write only warnings and errors to
    stderr, after "rank N:", and none of `hpcfwi.wave`. The stream is looked up for each message,
    because a live bar replaces stdout to print messages above itself. Raises `InputError`, on rank
    0 only, if the file cannot be opened or is a link.
    """
    logger = logging.getLogger("hpcfwi")
    handlers: list[logging.Handler] = [_Screen(rank, quiet)]
    if rank == 0 and path is not None:
        remedy = "Choose another output directory or change its permissions."
        with refusing(str(path), "the log cannot be written", remedy):
            file = _File(path, encoding="utf-8", errors="backslashreplace")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
        handlers.append(file)
    before = logger.handlers, logger.propagate
    others = [h for h in logger.handlers if not isinstance(h, _Screen | _File)]
    # Otherwise each message would appear twice if a library configures the root logger.
    logger.handlers, logger.propagate = [*others, *handlers], False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before
        for handler in handlers:
            handler.close()


class _Screen(logging.Handler):
    def __init__(self, rank: int, quiet: bool) -> None:
        super().__init__(logging.WARNING if quiet or rank > 0 else logging.INFO)
        self._rank = rank

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, ALREADY_SHOWN, False):
            return
        # Messages of `wave` are the same on all ranks
        if self._rank > 0 and record.name.startswith("hpcfwi.wave."):
            return
        try:
            text = self.format(record)
            if record.levelno >= logging.WARNING:
                text = f"{record.levelname}: {text}"
            if self._rank > 0:
                text = f"rank {self._rank}: {text}"
            stream = sys.stderr if self._rank > 0 else sys.stdout
            # A file name may have characters that are not in the terminal's encoding.
            encoding = getattr(stream, "encoding", None) or "utf-8"
            # A single write, so that lines of several ranks do not mix.
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
            stream.flush()
        except Exception:
            self.handleError(record)


class _File(logging.FileHandler):
    """A handler that ignores a full disk, because the run itself reports that it cannot write."""

    def _open(self) -> TextIOWrapper:
        return open(
            self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=open_own
        )

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass

    def close(self) -> None:
        with suppress(OSError):
            super().close()


# The time left is estimated from the median of this number of last steps, which ignores a single
# slow one.
STEPS_REMEMBERED = 9
WIDTH_WHERE_UNKNOWN = 80


class Progress:
    """The progress of a run in units (epochs, shots); use it in a `with` statement.

    total: number of units; done: number of units that an earlier run has done; unit: name of a
    unit, in the singular; every: without a terminal, a line is printed when at least this part of
    the total has been done since the last line, and at the end; 0 for a line at each `advance`;
    enabled: if False, as on all ranks but one, nothing is shown or logged; quiet: if True, nothing
    is shown, but lines are written to the log's file; stream: output, by default the value of
    `sys.stdout` on entry.
    """

    def __init__(
        self,
        total: int,
        unit: str = "epoch",
        *,
        done: int = 0,
        every: float = 0.0,
        enabled: bool = True,
        quiet: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        self._total, self._unit, self._done = total, unit, done
        self._step = every * total
        self._told = done
        self._enabled, self._quiet = enabled, quiet
        self._stream = stream
        self._bar: RichProgress | None = None
        self._seconds: deque[float] = deque(maxlen=STEPS_REMEMBERED)

    def __enter__(self) -> Progress:
        self._last = time.monotonic()
        if self._enabled and not self._quiet:
            self._stream = self._stream or sys.stdout
            width = terminal_width(self._stream)
            if width is not None:
                self._bar = _live_bar(self._stream, width)
                self._bar.add_task(self._count, total=self._total, completed=self._done)
                self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def advance(
        self,
        units: int = 1,
        *,
        misfit: float | None = None,
        errors: str | None = None,
        note: str | None = None,
    ) -> None:
        """Count more units; report the misfit, the model errors and a note if given."""
        if not self._enabled or units == 0:
            return
        now = time.monotonic()
        self._seconds.append((now - self._last) / units)
        self._last = now
        self._done += units
        line = self._line(misfit, errors)
        if note is not None:
            line += f"  ({note})"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._done, description=line)
        if self._done - self._told >= self._step or self._done >= self._total:
            self._told = self._done
            if self._bar is None and not self._quiet:
                print(line, file=self._stream, flush=True)
            logger.info("%s", line, extra={ALREADY_SHOWN: True})

    @property
    def _count(self) -> str:
        return f"{self._unit} {self._done:{len(str(self._total))}d}/{self._total}"

    def _line(self, misfit: float | None, errors: str | None) -> str:
        parts = [self._count]
        if misfit is not None:
            parts.append(f"misfit {misfit:.4e}")
        if errors is not None:
            parts.append(f"error {errors}")
        parts.append(f"{self._seconds[-1]:.3g} s/{self._unit}")
        left = (self._total - self._done) * statistics.median(self._seconds)
        parts.append(f"left {say_duration(left)}")
        return "  ".join(parts)


def _live_bar(stream: TextIO, width: int) -> RichProgress:
    # Imported here, because batch jobs have no terminal and do not need it
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as RichProgress

    console = Console(file=stream, force_terminal=True, width=width)
    return RichProgress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        console=console,
        expand=True,
        refresh_per_second=4,
        # The bar prints stderr above itself, unless stderr goes to a file.
        redirect_stderr=sys.stderr.isatty(),
    )


def terminal_width(stream: TextIO) -> int | None:
    """Return the columns of the terminal of `stream`; None for a file, a pipe or a batch log.

    It is also None for a terminal without a size. Open MPI gives such a terminal to every rank even
    if its output goes to a file, which a live bar would fill.
    """
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except OSError:
        return WIDTH_WHERE_UNKNOWN


def say_duration(seconds: float) -> str:
    """Return a duration as text, such as "2 h 05 min"."""
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole:02d} s" if minutes else f"{whole} s"
