"""Files that are whole or not there: written beside, flushed to disk, renamed; and their hash.

What is in them is the other modules' business.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpcfwi.errors import InputError, WriteFailure


def beside(path: Path) -> Path:
    """Where a file is written until it is whole."""
    return path.with_name(path.name + ".part")


def make_directory(directory: Path) -> None:
    """Make a directory and its parents; `InputError` where that cannot be."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            str(directory),
            f"the directory cannot be made ({error.strerror})",
            "Name a directory in which you may write.",
        ) from error


def put_in_place(part: Path, path: Path) -> None:
    """Rename a complete `part` to `path` so that a power cut leaves the old file or the new one."""
    _flush(part)
    part.replace(path)
    _flush(path.parent)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield the name to write to; put it in place at the end, remove it if anything fails.

    Raises `WriteFailure` where the system lets it not be written; the old file is whole then.
    """
    make_directory(path.parent)
    part = beside(path)
    try:
        yield part
        put_in_place(part, path)
    except OSError as error:
        raise WriteFailure.of(path, error) from error
    finally:
        remove_part(path)


def remove_part(path: Path) -> None:
    """Remove what is beside a file that was not finished, if it is there and can be removed."""
    with suppress(OSError):
        beside(path).unlink()


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
