"""Compiled loops on disk, so that they are compiled once on a machine, and again when they change.

Processes that begin together, as ranks do, and want the same loop, have one of them compile it.

Where they may be, and where not, is decided in `hpcfwi.private`.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numba
from numba import config
from numba.core.caching import FunctionCache

from hpcfwi.private import Place, find_place
from hpcfwi.wave.engines.cpu import (
    buffers,
    layout,
    lines,
    packing,
    rows,
    scattering,
    steps,
    sweeps,
    threads,
    windows,
)

log = logging.getLogger(__name__)

PATIENCE = 300.0  # s, several times what it takes to compile a loop
POLL = 0.1  # s

# What the loops are compiled from: what they call, and the types of what they are given.
SOURCES = (buffers, layout, lines, packing, rows, scattering, steps, sweeps, threads, windows)


def find_disk() -> Place:
    """Where the loops are kept; raises `InputError` as `find_place` does."""
    return find_place("NUMBA_CACHE_DIR", "numba")


@cache
def keep_loops() -> None:
    """Have the loops kept, from now on; says so once where that cannot be."""
    disk = find_disk()
    if disk.path is None:
        _say_not_kept(disk.problem)
        return
    settings: Any = config
    loops: tuple[Any, ...] = (
        sweeps.sweep_forward,
        sweeps.sweep_backward,
        scattering.sweep_scattered,
    )
    # Looked at when a cache is made; what else is compiled by Numba in this process has its own
    given, settings.CACHE_DIR = settings.CACHE_DIR, str(disk.path)
    try:
        for loop in loops:
            loop._cache = _Cache(loop.py_func)
    finally:
        settings.CACHE_DIR = given


def edition() -> str:
    """A hash of all sources of the loops, as Numba itself looks at the file of a loop alone."""
    files = (Path(str(module.__file__)) for module in SOURCES)
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@contextmanager
def taking_turns(path: Path) -> Iterator[bool]:
    """Be the only process within, by a lock on a file; yields whether another one has been before.

    A process that stands still in there is not waited for longer than `PATIENCE`, and nobody is
    where the file system has no locks.
    """
    until, waited = time.monotonic() + PATIENCE, False
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context(path.open("w"))
            while time.monotonic() < until:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    waited = True
                    time.sleep(POLL)
                else:
                    break
        yield waited


class _Cache(FunctionCache):
    """Numba's own, but of one edition; and what cannot be written is done without."""

    def __init__(self, py_func: Any) -> None:
        super().__init__(py_func)
        # Not as the stamp of the source, which Numba compares after it has unpickled types that
        # another edition may not have.
        self._cache_file._version = f"{numba.__version__} {edition()}"
        self._turn = ExitStack()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """A loop from disk, perhaps when another process has compiled it; None: compile it."""
        found = super().load_overload(sig, target_context)
        if found is None:
            name = f"{self._py_func.__name__} {sig}"
            if self._turn.enter_context(self._taking_turns(f"{crc32(name.encode()):08x}")):
                found = super().load_overload(sig, target_context)
        if found is not None:
            self._turn.close()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            # Numba may give two loops that are saved at once the same name
            with self._taking_turns("saving"):
                super().save_overload(sig, data)
        except OSError as error:
            self.disable()
            _say_not_kept(f"{self.cache_path} cannot be written ({error.strerror})")
        finally:
            self._turn.close()

    def _taking_turns(self, name: str) -> AbstractContextManager[bool]:
        return taking_turns(Path(self.cache_path) / f"{name}.lock")


@cache
def _say_not_kept(problem: str) -> None:
    log.warning(
        "The cpu engine is compiled for this process only, as %s; "
        "NUMBA_CACHE_DIR may name a directory that is yours alone",
        problem,
    )
