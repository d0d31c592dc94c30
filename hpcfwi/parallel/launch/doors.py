"""Sockets that libraries listen on: shut for newcomers, once all who belong there have come.

Nothing here asks who comes: that is `store`'s, whose door stays open.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
