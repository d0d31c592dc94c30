"""How far a long task is, and how long it will still take.

On a terminal this is a live bar, in a batch log it is plain lines. Messages of other kinds are in
`log`; the numbers for later use are in `metrics`.
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, TextIO

from hpcfwi.report.log import ALREADY_SHOWN

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

logger = logging.getLogger(__name__)

# The time left is judged from the median of so many last steps: a single one that was held up
# does not count.
STEPS_REMEMBERED = 9
WIDTH_WHERE_UNKNOWN = 80


class Progress:
    """Shows how many of `total` units (epochs, shots) are done; use it in a `with` statement.

    done: before (by a run that is now continued); unit: what is counted, in the singular; every:
    without a terminal, a line is printed when at least this part of the total has been done since
    the last one, and at the end, 0 for a line at each `advance`; enabled: False on all ranks but
    one, nothing is shown or logged; quiet: nothing is shown, the lines still go to the log's file;
    stream: where to show it, by default what `sys.stdout` is on entry.
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
        self._last = time.monotonic()

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
        model_error: float | None = None,
        note: str | None = None,
    ) -> None:
        """Count `units` more; say the misfit, the model error (m/s) and a note where given."""
        if not self._enabled or units == 0:
            return
        now = time.monotonic()
        self._seconds.append((now - self._last) / units)
        self._last = now
        self._done += units
        line = self._line(misfit, model_error)
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

    def _line(self, misfit: float | None, model_error: float | None) -> str:
        parts = [self._count]
        if misfit is not None:
            parts.append(f"misfit {misfit:.4e}")
        if model_error is not None:
            parts.append(f"error {model_error:.1f} m/s")
        parts.append(f"{self._seconds[-1]:.3g} s/{self._unit}")
        left = (self._total - self._done) * statistics.median(self._seconds)
        parts.append(f"left {say_duration(left)}")
        return "  ".join(parts)


def _live_bar(stream: TextIO, width: int) -> RichProgress:
    # Not above: in a batch job there is no terminal, on no rank
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
        # What is redirected appears on this terminal; a stderr that goes to a file stays there.
        redirect_stderr=sys.stderr.isatty(),
    )


def terminal_width(stream: TextIO) -> int | None:
    """Columns of the terminal that shows `stream`; None where it is a file, a pipe, a batch log.

    None too for a terminal without a size: Open MPI gives one to every rank, wherever its own
    output goes, and what is drawn again and again there would fill a file.
    """
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except OSError:
        return WIDTH_WHERE_UNKNOWN


def say_duration(seconds: float) -> str:
    """Seconds as a reader wants them, such as "2 h 05 min"."""
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole:02d} s" if minutes else f"{whole} s"
