"""The run's log: where the messages of the logger "hpcfwi" go, on which rank.

Messages are written with `logging.getLogger(__name__)` throughout the program; the figures of
merit of each epoch are in `metrics`, the line that tells how far the run is in `progress`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path

from hpcfwi.errors import refusing
from hpcfwi.system import open_own

LOGGER = "hpcfwi"
# A record with this attribute set has been shown already and is for the file only.
ALREADY_SHOWN = "already_shown"


@contextmanager
def start_log(path: Path | None, rank: int, quiet: bool = False) -> Iterator[None]:
    """Send the messages where they belong; a log started before has none of them meanwhile.

    Rank 0 writes to the screen (`quiet`: only from WARNING up) and, with a time, to the end of
    the file `path` (None: no file). Other ranks write only from WARNING up, to stderr, after
    "rank N:", and nothing of `hpcfwi.wave`. The screen is looked up anew for each message, so that
    a live bar which has taken the place of stdout prints the message above itself. Raises
    `InputError`, on rank 0 only, where the file cannot be opened, or is no file of its own, as a
    link.
    """
    logger = logging.getLogger(LOGGER)
    handlers: list[logging.Handler] = [_Screen(rank, quiet)]
    if rank == 0 and path is not None:
        handlers.append(_open_file(path))
    before = logger.handlers, logger.propagate
    others = [h for h in logger.handlers if not isinstance(h, _Screen | _File)]
    # A library that sets up the root logger must not make each message appear twice.
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
        # Waves know nothing of ranks: what they have to say is the same on all of them
        if self._rank > 0 and record.name.startswith("hpcfwi.wave."):
            return
        try:
            text = self.format(record)
            if record.levelno >= logging.WARNING:
                text = f"{record.levelname}: {text}"
            if self._rank > 0:
                text = f"rank {self._rank}: {text}"
            stream = sys.stderr if self._rank > 0 else sys.stdout
            # A file name may hold letters that this terminal's encoding lacks.
            encoding = getattr(stream, "encoding", None) or "utf-8"
            # One write, so that lines of several ranks do not mix.
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
            stream.flush()
        except Exception:
            self.handleError(record)


class _File(logging.FileHandler):
    """A line that a full disk does not take is lost: the run itself tells that it cannot write."""

    def _open(self) -> TextIOWrapper:
        return open(
            self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=open_own
        )

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass

    def close(self) -> None:
        with suppress(OSError):
            super().close()


def _open_file(path: Path) -> _File:
    remedy = "Choose another output directory or change its permissions."
    with refusing(str(path), "the log cannot be written", remedy):
        file = _File(path, encoding="utf-8", errors="backslashreplace")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    return file
