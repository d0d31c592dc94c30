"""The errors that a user can act on. Programming errors are not here.

`cli` turns each class into one message and an exit code; everything else that is
raised is a defect of the program and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST_QUOTE = 80  # characters
LONGEST_PART = 5000  # of a message: a path may have 4096


class InputError(Exception):
    """Something the user gave or set up is wrong; the program exits with 2.

    where: what is wrong, a file, a key of a config, an environment variable, a rank; problem: what
    was found and what was expected, without a full stop; remedy: what to do about it, as a whole
    sentence.
    """

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        super().__init__(where, problem, remedy)
        self.where, self.problem, self.remedy = where, problem, remedy

    def __str__(self) -> str:
        """Return one line that any terminal can show, whatever characters are in its names."""
        where, problem, remedy = map(_show, (self.where, self.problem, self.remedy))
        return f"{where}: {problem}. {remedy}"


def _show(text: str) -> str:
    """A text that any terminal can show, without its middle where that is longer than any path."""
    if len(text) > LONGEST_PART:
        text = f"{text[: LONGEST_PART // 2]}...{text[-LONGEST_PART // 2 :]}"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


@contextmanager
def refusing(where: str, problem: str, remedy: str) -> Iterator[None]:
    """Within, what the system refuses is an `InputError`: `problem`, and what the system says."""
    try:
        yield
    except OSError as error:
        raise InputError(where, f"{problem} ({error.strerror})", remedy) from error


class Stopped(BaseException):
    """The run was asked to stop, and has saved what there was to save; the program exits with 3.

    Like KeyboardInterrupt it is no `Exception`: a signal may raise it anywhere, and whoever deals
    with errors should let it pass.
    """


class InversionFailure(Exception):
    """The inversion cannot go on (a misfit that is not finite, replicas that differ); exit 1.

    The state on disk is that of the last good step.
    """


class StepFailure(InversionFailure):
    """A step led to values that no model can have; the program exits with 2.

    Only another input can help: a smaller step, or bounds.
    """


class WriteFailure(Exception):
    """A file cannot be written: the disk is full, or may not be written any more; exit 1.

    A file that existed under that name is unchanged. path: the file; reason: that of the system,
    without a full stop; remedy: what to do about it, as a whole sentence.
    """

    def __init__(self, path: str, reason: str, remedy: str) -> None:
        super().__init__(path, reason, remedy)
        self.path, self.reason, self.remedy = path, reason, remedy

    def __str__(self) -> str:
        return f"{self.path}: cannot be written ({self.reason}). {self.remedy}"

    @classmethod
    def of(cls, path: Path, error: OSError | RuntimeError) -> WriteFailure:
        """Return the failure to write a file that an error of the system, HDF5 or MPI means."""
        number = error_number(error)
        reason = os.strerror(number) if number else first_line(error)
        remedy = _WRITE_REMEDIES.get(number or 0, "See what is wrong with that file system")
        return cls(str(path), reason, f"{remedy}, and give the same command again.")


_WRITE_REMEDIES = {
    errno.ENOSPC: "Free space on that file system",
    errno.EDQUOT: "Free space within your quota",
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "Have that file system mounted for writing",
    errno.EACCES: "Have the permission to write there",
    errno.EPERM: "Have the permission to write there",
}


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def error_number(error: BaseException) -> int | None:
    """The system's number of an error, if it is one of the system's.

    HDF5 mentions it within a RuntimeError, MPI only words.
    """
    if isinstance(error, OSError) and error.errno:
        return error.errno
    text = str(error)
    mentioned = re.search(r"errno = (\d+)", text)
    if mentioned:
        return int(mentioned[1])
    return errno.ENOSPC if "no space" in text.lower() else None


def quote(value: object) -> str:
    """A value that was found, as Python writes it, for a message: cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}..."


def say_bytes(n: float) -> str:
    """A number of bytes as a reader wants it, such as "5.5 GB" (of 1e9 bytes each)."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 999.5:
            return f"{n:.3g} {unit}"
        n /= 1000.0
    return f"{n:.3g} TB"
