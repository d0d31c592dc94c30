"""Sockets that libraries listen on: shut for newcomers, once all who belong there have come.

And how many of them, and of other files, a rank may open.

Nothing here asks who comes: that is `store`'s, whose door stays open.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hpcfwi.errors import InputError

# Descriptors of a rank that is alone, MPI's, the log's and those of data included: 26 were counted,
# and the largest run has some more. Rank 0 has two for each rank, others one.
FILES, FILES_OF_ROOT = 64, 2

_ATTACH_FILTER = 26  # SO_ATTACH_FILTER of Linux
_DROP = bytes([0x06, 0, 0, 0, 0, 0, 0, 0])  # the program "return 0", of classic BPF: take nothing


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


@contextmanager
def shut_afterwards() -> Iterator[None]:
    """Let nobody come to the sockets that are opened to listen within, when it ends well.

    Whoever has come stays connected. The system drops what reaches such a socket, so that a
    stranger can neither stand in for a rank nor use up this process's descriptors.
    """
    before = set(_listening().values())
    yield
    for number, identity in _listening().items():
        if identity not in before:
            _shut(number)


def allow_many_files() -> None:
    """As many descriptors as this process may have: connections and files take one each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def count_files_allowed() -> int:
    """Descriptors that this process may have, once `allow_many_files` has been called."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if allowed == resource.RLIM_INFINITY else allowed


def check_files(allowed: Sequence[int]) -> None:
    """Raises `InputError` where a rank will need more descriptors than it may have.

    allowed: those of each rank, by rank. Told before ranks connect, which would else wait in vain.
    """
    for rank, found in enumerate(allowed):
        needed = FILES + len(allowed) * (FILES_OF_ROOT if rank == 0 else 1)
        if found < needed:
            raise InputError(
                f"rank {rank}",
                f"it may open {found} files, and takes {needed} among {len(allowed)} ranks, one "
                "for each connection",
                "Raise the limit of open files where jobs start (ulimit -n, LimitNOFILE of slurmd, "
                "/etc/security/limits.conf), or start fewer ranks.",
            )


def _listening() -> dict[int, int]:
    """This process's network sockets that listen: by descriptor, which one it is."""
    found: dict[int, int] = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # it may be closed meanwhile
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as known:
                is_network = known.family in (socket.AF_INET, socket.AF_INET6)
                if is_network and known.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found[int(entry.name)] = os.fstat(known.fileno()).st_ino
    return found


def _shut(number: int) -> None:
    code = ctypes.create_string_buffer(_DROP, len(_DROP))
    program = _Program(1, ctypes.cast(code, ctypes.c_void_p))
    with suppress(OSError), socket.socket(fileno=os.dup(number)) as known:
        known.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, bytes(program))
