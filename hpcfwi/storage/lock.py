"""One job at a time in a directory: a lock that goes with its holder, however that ends.

Which directory is locked, and when, is decided in `inversion`.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path

from hpcfwi.errors import InputError
from hpcfwi.system import open_own

NAME = "lock"

# Where the file system has no locks: how often the holder counts, how long another watches it
# before it takes the holder for dead, and how long it looks whether it was alone in that; s
COUNT_PAUSE = 5.0
HOLDER_WAIT = 30.0
RIVAL_WAIT = 1.0

_HELD = (errno.EAGAIN, errno.EACCES)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

log = logging.getLogger("hpcfwi")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold a directory's lock; its file, `lock`, stays and says, while it is held, by whom.

    Nothing else in the process may open that file: closing it would give the lock up. Children
    do not inherit it.
    Raises `InputError` where another process holds it, or something else than a file has its name,
    and `OSError` where it cannot be written.
    """
    me = f"pid {os.getpid()} on {socket.gethostname()} since {datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
    descriptor = open_own(directory / NAME, os.O_RDWR | os.O_CREAT)
    try:
        has_locks = _lock(directory, descriptor)
        with nullcontext() if has_locks else _leased(directory, descriptor, me):
            _write(descriptor, 0, me)
            try:
                yield
            finally:
                with suppress(OSError):
                    os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _lock(directory: Path, descriptor: int) -> bool:
    """Lock the file; whether its file system has locks."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        if error.errno in _HELD:
            raise _refusal(directory, os.pread(descriptor, 1000, 0)) from None
        raise
    return True


@contextmanager
def _leased(directory: Path, descriptor: int, me: str) -> Iterator[None]:
    """Hold a directory without locks: who lives counts up in the file, who is dead does not.

    No clocks are compared, since those of hosts differ, and may jump.
    """
    found = _read(directory)
    if found:
        log.warning("%s: waiting %g s to see whether that job lives", directory / NAME, HOLDER_WAIT)
        _watch(directory, found, HOLDER_WAIT)
    # Of several that come at once, the last to write has it
    _watch(directory, _write(descriptor, 0, me), RIVAL_WAIT)
    over = threading.Event()
    counting = threading.Thread(target=_count, args=(descriptor, me, over), daemon=True)
    counting.start()
    try:
        yield
    finally:
        over.set()
        counting.join()


def _watch(directory: Path, content: bytes, seconds: float) -> None:
    """Raise `InputError` if the file becomes another than `content` meanwhile, but not empty."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(RIVAL_WAIT / 10)
        # Opened anew each time, which is when network file systems look for changes
        now = _read(directory)
        if not now:
            return
        if now != content:
            raise _refusal(directory, now)


def _read(directory: Path) -> bytes:
    with open(directory / NAME, "rb", opener=open_own) as file:
        return file.read()


def _count(descriptor: int, me: str, over: threading.Event) -> None:
    count = 0
    while not over.wait(COUNT_PAUSE):
        count += 1
        try:
            _write(descriptor, count, me)
        except OSError as error:
            log.warning("The lock cannot be renewed (%s)", error.strerror)


def _write(descriptor: int, count: int, me: str) -> bytes:
    """Make the file say who holds it; returns what it says."""
    content = f"{count:010d} {me}\n".encode()
    os.pwrite(descriptor, content, 0)
    os.ftruncate(descriptor, len(content))
    os.fsync(descriptor)
    return content


def _refusal(directory: Path, content: bytes) -> InputError:
    holder = content.decode(errors="replace").partition(" ")[2].strip()
    return InputError(
        str(directory),
        f"another job is at work in this directory ({holder or 'it has just begun'})",
        "Wait for its end, stop it, or choose another directory with --output.",
    )
