"""The errors that a user can act on.

`parallel.failure` turns each class into one message and an exit code. Any other exception is a
defect of the program and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

LONGEST_QUOTE = 80  # characters
LONGEST_PART = 5000  # of a message: a path may have 4096


class InputError(Exception):
    """An error in something that the user gave or set up; the program exits with 2.

    where: the faulty file, key of the input, environment variable or rank; problem: what was found
    and what was expected, without a full stop; remedy: what to do about it, as a whole sentence;
    findings: all findings of the same check, including this one.
    """

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        super().__init__(where, problem, remedy)
        self.where, self.problem, self.remedy = where, problem, remedy
        self.findings: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        """Return one line that any terminal can show, whatever characters are in its names."""
        where, problem, remedy = map(_show, (self.where, self.problem, self.remedy))
        return f"{where}: {problem}. {remedy}"


def _show(text: str) -> str:
    """Return a text that any terminal can show, without its middle if it is very long."""
    if len(text) > LONGEST_PART:
        text = f"{text[: LONGEST_PART // 2]}...{text[-LONGEST_PART // 2 :]}"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """Something that the user should know before a run.

    severity: an "error" makes a run fail or its result worthless, a "warning" may do so, a "note"
    costs at most time; where: the key of the input; found: what was found and its effect, without a
    full stop; remedy: what to do about it, as a whole sentence.
    """

    severity: Severity
    where: str
    found: str
    remedy: str

    @property
    def text(self) -> str:
        """The finding without its severity, which a log adds."""
        return f"{self.where}: {self.found}. {self.remedy}"

    def __str__(self) -> str:
        return f"{self.severity.upper()}: {self.text}"


def refuse(findings: Iterable[Finding]) -> None:
    """Raise `InputError` for the first error among findings, if there is one."""
    found = tuple(findings)
    for finding in found:
        if finding.severity == "error":
            error = InputError(finding.where, finding.found, finding.remedy)
            error.findings = found
            raise error


@contextmanager
def refusing(where: str, problem: str, remedy: str) -> Iterator[None]:
    """Turn an OSError or a `WriteFailure` into an `InputError` with the problem and the reason."""
    try:
        yield
    except (OSError, WriteFailure) as error:
        reason = error.reason if isinstance(error, WriteFailure) else error.strerror
        raise InputError(where, f"{problem} ({reason})", remedy) from error


class Stopped(BaseException):
    """A stop on request; the program exits with 3. A run that has begun has saved its state before.

    Like KeyboardInterrupt this is not an `Exception`, because a signal may raise it anywhere, and
    code that handles errors should let it pass.
    """


class InversionFailure(Exception):
    """An inversion that cannot continue, as its misfit is not finite or replicas differ; exit 1.

    The state on disk is that of the last good step.
    """


class StepFailure(InversionFailure):
    """A step that led to values that no model can have; the program exits with 2.

    Only another input helps, such as a smaller step or bounds.
    """


class WriteFailure(Exception):
    """A file that cannot be written, for example because the disk is full; exit 1.

    A file that existed under that name is unchanged. path: the file; reason: the system's reason,
    without a full stop; remedy: what to do about it, as a whole sentence.
    """

    def __init__(self, path: str, reason: str, remedy: str) -> None:
        super().__init__(path, reason, remedy)
        self.path, self.reason, self.remedy = path, reason, remedy

    def __str__(self) -> str:
        return f"{self.path}: cannot be written ({self.reason}). {self.remedy}"

    @classmethod
    def of(cls, path: Path, error: OSError | RuntimeError) -> WriteFailure:
        """Return the failure for an error of the system, HDF5 or MPI while a file is written."""
        number = error_number(error)
        reason = os.strerror(number) if number else first_line(error)
        remedy = WRITE_REMEDIES.get(number or 0, "Check that file system")
        return cls(str(path), reason, f"{remedy}, and run the same command again.")


WRITE_REMEDIES = {
    errno.ENOSPC: "Free space on that file system",
    errno.EDQUOT: "Free space within your quota",
    errno.EFBIG: "Raise the limit on the file size (ulimit -f)",
    errno.EROFS: "Mount that file system for writing",
    errno.EACCES: "Get permission to write there",
    errno.EPERM: "Get permission to write there",
}


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type if it has no message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def error_number(error: BaseException) -> int | None:
    """Return the system's error number (errno) of an exception, or None if it has none.

    HDF5 states the number in the message of a RuntimeError, MPI only the system's text.
    """
    if isinstance(error, OSError) and error.errno:
        return error.errno
    text = str(error)
    mentioned = re.search(r"errno = (\d+)", text)
    if mentioned:
        return int(mentioned[1])
    return errno.ENOSPC if "no space" in text.lower() else None


# Messages of torch's allocators, which raise a RuntimeError.
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error says that memory has run out, on a CPU or on a GPU."""
    if isinstance(error, RuntimeError):
        return any(words in str(error) for words in _OUT_OF_MEMORY)
    return isinstance(error, MemoryError)


def quote(value: object) -> str:
    """Return a value as in an input, for a message; cut if it is long."""
    try:
        text = repr([*value] if isinstance(value, tuple) else value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        return "a number with thousands of digits"
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}..."


def say_bytes(n: float) -> str:
    """Return a number of bytes as text, such as "5.5 GB" (1 GB is 1e9 bytes)."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 999.5:
            return f"{n:.3g} {unit}"
        n /= 1000.0
    return f"{n:.3g} TB"


def say_count(n: int, noun: str) -> str:
    """Return a number of things as text, such as "1 shot" or "2 shots"."""
    return f"{n} {noun}{'s' * (n != 1)}"
