"""Whether a person watches the output, and how wide their window is.

What is written there is in `progress` and `log`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TextIO

WIDTH_WHERE_UNKNOWN = 80


def terminal_width(stream: TextIO) -> int | None:
    """Columns of the terminal that shows `stream`; None where it is a file, a pipe, a batch log.

    Open MPI gives every rank a pseudo-terminal, even when its own output goes to a file. Such a
    terminal has no size, which tells it from a person's; what counts then is where the launcher
    itself writes, found by going up through the parent processes (Linux; elsewhere None).
    """
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        return WIDTH_WHERE_UNKNOWN
    return columns or _launcher_width()


def _launcher_width() -> int | None:
    process = os.getppid()
    try:
        while process > 0:
            columns = _output_width(process)
            if columns != 0:
                return columns
            process = _parent(process)
    except (OSError, ValueError):
        return None
    return None


def _output_width(process: int) -> int | None:
    """Columns of the terminal that `process` writes to; 0 for one without size, None for none."""
    output = f"/proc/{process}/fd/1"
    # Opening a pipe or a file could block or do harm; a terminal is a character device.
    if not stat.S_ISCHR(Path(output).stat().st_mode):
        return None
    descriptor = os.open(output, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        return os.get_terminal_size(descriptor).columns
    finally:
        os.close(descriptor)


def _parent(process: int) -> int:
    # The second field, the name in parentheses, may itself hold spaces and parentheses.
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])
