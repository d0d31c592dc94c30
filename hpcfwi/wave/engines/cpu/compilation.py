"""The on-disk cache of the compiled loops of the `cpu` engine.

Loops are compiled once on a machine, and again when their sources change. If several ranks need the
same loop, one of them compiles it. `hpcfwi.system` decides where compiled loops may be stored.
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

from hpcfwi.system import Place, find_place
from hpcfwi.wave import layers
from hpcfwi.wave.engines.cpu import (
    jit,
    kernels,
    layout,
    staggered_blocks,
    staggered_rows,
    staggered_sweeps,
    staggered_tables,
    sweeps,
    teams,
    windows,
)

log = logging.getLogger(__name__)

LOCK_WAIT = 300.0  # s, several times the time to compile a loop
POLL = 0.1  # s

# The modules that the loops are compiled from: the functions that they call, the types of their
# arguments, and constants.
SOURCES = (
    layers,
    layout,
    jit,
    kernels,
    teams,
    windows,
    sweeps,
    staggered_tables,
    staggered_rows,
    staggered_blocks,
    staggered_sweeps,
)


def find_disk() -> Place:
    """Return the directory of compiled loops; raises `InputError` as `find_place` does."""
    return find_place("NUMBA_CACHE_DIR", "numba")


@cache
def keep_loops() -> None:
    """Enable the on-disk cache of compiled loops; warn once if that is impossible."""
    disk = find_disk()
    if disk.path is None:
        _say_not_kept(disk.problem)
        return
    settings: Any = config
    loops: tuple[Any, ...] = (
        sweeps.sweep_forward,
        sweeps.sweep_backward,
        sweeps.sweep_scattered,
        staggered_sweeps.sweep_staggered,
        staggered_sweeps.sweep_staggered_back,
    )
    # Numba reads this setting when a cache is made; other code in this process keeps the old one.
    given, settings.CACHE_DIR = settings.CACHE_DIR, str(disk.path)
    try:
        for loop in loops:
            loop._cache = _Cache(loop.py_func)
    finally:
        settings.CACHE_DIR = given


def edition() -> str:
    """Return a hash of all sources of the loops, because Numba checks only the file of a loop."""
    files = (Path(str(module.__file__)) for module in SOURCES)
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@contextmanager
def taking_turns(path: Path) -> Iterator[bool]:
    """Hold a lock on a file; yield True if this process had to wait for another one.

    It waits for at most `LOCK_WAIT`, in case the other process hangs, and not at all if the file
    system has no locks.
    """
    until, waited = time.monotonic() + LOCK_WAIT, False
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
    """Numba's cache for one edition of the sources, which ignores errors of writing."""

    def __init__(self, py_func: Any) -> None:
        super().__init__(py_func)
        # This is not the stamp of the source, which Numba compares only after it has unpickled
        # types that another edition may not have.
        self._cache_file._version = f"{numba.__version__} {edition()}"
        self._turn = ExitStack()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return a loop from disk, perhaps after another process has compiled it, or None."""
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
            # Numba may give the same name to two loops that are saved at the same time.
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
        "The cpu engine is compiled for this process only, because %s; "
        "NUMBA_CACHE_DIR may name a directory that only you can access",
        problem,
    )
