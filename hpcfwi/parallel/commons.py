"""What ranks of a host have in common: arrays that are there once a host, not once a rank.

They lie in a file of the system's memory, which loses its name as soon as these ranks have it open:
nothing is left of it after them, however they end. What lies in it is an object as it would travel,
see `parcels`, and nobody may change it.
"""

from __future__ import annotations

import mmap
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from hpcfwi.host import reserve
from hpcfwi.parallel.context import Context, portable
from hpcfwi.parallel.parcels import find_sizes, put_together, take_apart

T = TypeVar("T")

MEMORY = Path("/dev/shm")  # nobody can put a file in the place of another's there
ALIGNED = 64  # bytes: arrays begin at multiples of it


def once_a_host(call: Callable[[], T], context: Context) -> T:
    """What `call` returns on one rank of each host, the only ones that run it; collective.

    It must pickle. Its larger arrays are in memory that the ranks of a host share, and cannot be
    written to. Where a host has no such memory, or not enough, or finds other bits than the rest,
    as another kind of processor may, all ranks have what `call` returns on rank 0. An exception
    that it raises is raised on every rank alike.
    """
    if context.size == 1:
        return call()
    hosts = context.all_gather(context.host)
    first = hosts.index(context.host)
    with _open_together(first, context) as file:
        laid: _Laid | None = None
        error: Exception | None = None
        if file is not None and context.rank == first:
            try:
                with context.heartbeat.waiting():
                    laid = _lay_down(call(), file)
            except Exception as raised:
                error = portable(raised)
        every = context.all_gather((laid, error))
        error = next((error for _, error in every if error is not None), None)
        if error is not None:
            try:
                context.raise_alike(error)
            finally:
                del error, every
        firsts = [laid for rank, (laid, _) in enumerate(every) if hosts.index(hosts[rank]) == rank]
        laid, _ = every[first]
        taken = []
        if file is not None and laid is not None and firsts.count(laid) == len(firsts):
            with suppress(OSError):
                taken.append(_take_up(file, laid.outlined))
    if all(context.all_gather(len(taken))):
        value: T = taken[0]
        return value
    return context.from_root(call)


def is_common(array: NDArray[Any]) -> bool:
    """Whether an array lies in memory that the ranks of this host have in common."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    return isinstance(base, mmap.mmap)


@contextmanager
def _open_together(first: int, context: Context) -> Iterator[int | None]:
    """A file without a name that the ranks of each host have open; None on those who have not.

    first: of this rank's host, who makes it.
    """
    file, name = None, None
    try:
        try:
            with suppress(OSError):
                if context.rank == first:
                    file, name = tempfile.mkstemp(prefix="hpcfwi-", dir=MEMORY)
            theirs = context.all_gather(name)[first]
            with suppress(OSError):
                if file is None and theirs is not None:
                    file = _open_own(theirs)
            context.barrier()
        finally:
            if name is not None:
                Path(name).unlink(missing_ok=True)
        yield file
    finally:
        if file is not None:
            os.close(file)


def _open_own(name: str) -> int | None:
    """The file of this name, where it is of this user."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(file)
    if found.st_uid == os.geteuid() and stat.S_ISREG(found.st_mode):
        return file
    os.close(file)
    return None


@dataclass(frozen=True)
class _Laid:
    """What lies in a file: the bytes of its outline, which comes first, and a checksum of all."""

    outlined: int
    digest: int


def _lay_down(value: Any, file: int) -> _Laid | None:
    """Write an object into an empty file; None where there is no room."""
    outline, arrays = take_apart(value)
    *places, size = _place(len(outline), [array.size for array in arrays])
    with suppress(OSError):
        if reserve(file, size):
            with open(file, "wb", closefd=False) as writer:
                writer.write(outline)
                digest = crc32(outline)
                for place, array in zip(places, arrays, strict=True):
                    writer.seek(place)
                    writer.write(array.data)
                    digest = crc32(array.data, digest)
            return _Laid(len(outline), digest)
    return None


def _take_up(file: int, outlined: int) -> Any:
    """The object in a file, whose outline takes so many bytes; in its arrays nothing can change."""
    content = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    outline = content[:outlined]
    sizes = find_sizes(outline)
    *places, _ = _place(outlined, sizes)
    arrays = [
        np.frombuffer(content, np.uint8, size, place)
        for place, size in zip(places, sizes, strict=True)
    ]
    return put_together(outline, arrays)


def _place(outlined: int, sizes: list[int]) -> list[int]:
    """Where arrays of these sizes begin after an outline, and the end of all."""
    places = [outlined]
    for size in sizes:
        places[-1] = -(-places[-1] // ALIGNED) * ALIGNED
        places.append(places[-1] + size)
    return places
