"""Whether a person watches the output, and how wide their window is.

What is written there is in `progress` and `log`.
"""

from __future__ import annotations

import os
from typing import TextIO

WIDTH_WHERE_UNKNOWN = 80


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
