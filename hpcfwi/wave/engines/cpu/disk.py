"""Compiled loops on disk, so that they are compiled once on a machine.

Where they may be, and where not, is decided in `hpcfwi.private`.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from numba import config
from numba.core.caching import FunctionCache

from hpcfwi.private import Place, find_place
from hpcfwi.wave.engines.cpu import sweeps

log = logging.getLogger(__name__)


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
    loops: tuple[Any, ...] = (sweeps.sweep_forward, sweeps.sweep_backward)
    # Looked at when a cache is made; what else is compiled by Numba in this process has its own
    given, settings.CACHE_DIR = settings.CACHE_DIR, str(disk.path)
    try:
        for loop in loops:
            loop._cache = _Cache(loop.py_func)
    finally:
        settings.CACHE_DIR = given


class _Cache(FunctionCache):
    """Numba's own, but what cannot be written is done without."""

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            self.disable()
            _say_not_kept(f"{self.cache_path} cannot be written ({error.strerror})")


@cache
def _say_not_kept(problem: str) -> None:
    log.warning(
        "The cpu engine is compiled for this process only, as %s; "
        "NUMBA_CACHE_DIR may name a directory that is yours alone",
        problem,
    )
