"""Files in directories where others may write too: whole or not there, and never through a link.

A name that is known beforehand may have been taken by somebody: what is made anew has a random one
until it is whole, and what is opened by a fixed one is looked at before a byte is written. What is
in the files is the business of `storage` and `report`.
"""

from __future__ import annotations

import os
import pwd
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from hpcfwi.errors import InputError, WriteFailure, refusing

_TOKEN = 16  # hexadecimal digits
_NEW = os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to fill; put it in place at the end, remove it if anything fails.

    A power cut leaves the old file or the new one, and of several that write it at once the last
    one's stays. A link of that name is replaced, not followed.
    Raises `WriteFailure` where the system lets it not be written; the old file is whole then.
    """
    make_directory(path.parent)
    part = path.with_name(f".{path.name}.{secrets.token_hex(_TOKEN // 2)}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | _NEW, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(descriptor)
            part.replace(path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
        flush_to_disk(path.parent)
    except OSError as error:
        raise WriteFailure.of(path, error) from error


def unfinished(directory: Path, pattern: str) -> Iterator[Path]:
    """What `written_whole` has left, where it was killed, of files of these names."""
    return directory.glob(f".{pattern}.{'[0-9a-f]' * _TOKEN}.part")


def beside(path: Path) -> Path:
    """Where a file that takes long to come is until it is whole, for a later job to go on with."""
    return path.with_name(path.name + ".part")


def put_in_place(part: Path, path: Path) -> None:
    """Rename a complete `part` to `path` so that a power cut leaves the old file or the new one."""
    flush_to_disk(part)
    part.replace(path)
    flush_to_disk(path.parent)


def open_own(path: str | Path, flags: int) -> int:
    """An opener, as `open` takes one, for a file that stays, and that is written where it is.

    Raises `InputError` as `check_own` does, for what is open. Not for the mode "w", which empties a
    file before it can be looked at.
    """
    path = Path(path)
    try:
        # A pipe would otherwise wait for somebody who reads it
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError:
        check_own(path)
        raise
    try:
        _check_own(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: str | Path, flags: int) -> int:
    """An opener, as `open` takes one, for a file that is read, wherever links lead to it.

    Raises `InputError` for what is no file, such as a pipe, which would be waited for for ever.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(str(path), "this is a directory, a pipe or a device", "Remove it.")
    return descriptor


def check_own(path: Path) -> None:
    """Raise `InputError` unless there is nothing, or a regular file without other names.

    A link, also a hard one, may have been made by somebody else, to have another file written.
    """
    with suppress(OSError):
        _check_own(path, path.lstat())


def check_link(path: Path) -> None:
    """Raise `InputError` for a symbolic link that somebody else has made, unless that is root."""
    with suppress(OSError):
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode) and found.st_uid not in (os.geteuid(), 0):
            raise InputError(
                str(path),
                f"this is a symbolic link of {user_name(found.st_uid)}, and is not followed",
                "Remove it if you do not know what it is for; a link of your own is followed.",
            )


def make_directory(directory: Path) -> None:
    """Make a directory and its parents; `InputError` where that cannot be."""
    remedy = "Name a directory in which you may write."
    with refusing(str(directory), "the directory cannot be made", remedy):
        directory.mkdir(parents=True, exist_ok=True)


def flush_to_disk(path: Path) -> None:
    """Have a file's content, or a directory's names, on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def user_name(uid: int) -> str:
    """How a message names a user."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _check_own(path: Path, found: os.stat_result) -> None:
    mode = found.st_mode
    if stat.S_ISREG(mode) and found.st_nlink == 1:
        return
    if stat.S_ISLNK(mode):
        kind = "a symbolic link"
    elif stat.S_ISDIR(mode):
        kind = "a directory"
    elif stat.S_ISREG(mode):
        kind = f"a file of {found.st_nlink} names"
    else:
        kind = "a pipe or device"
    raise InputError(
        str(path),
        f"this is {kind}, of {user_name(found.st_uid)}, expected a file that has no other name",
        "Remove it, and it is made anew.",
    )
