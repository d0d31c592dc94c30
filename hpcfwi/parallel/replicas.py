"""Replicas, which are arrays that every rank has, and arrays that the ranks of a host share.

The bits of replicas are compared by a hash, a sum of integers that is computed as fast as the array
is read. It detects accidental changes of some cells, but not deliberate collisions. Measures of
replicas are computed in blocks, each by one rank.

Arrays that the ranks of a host share are in a file in shared memory (/dev/shm). Its name is removed
as soon as these ranks have opened it, and it is empty until then, so that it takes no memory when
they have ended, however they end. The arrays are read-only. The file contains an object in the form
of `transport`.
"""

from __future__ import annotations

import mmap
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.parallel.context import Context, portable
from hpcfwi.parallel.transport import find_sizes, put_together, take_apart
from hpcfwi.system import reserve

T = TypeVar("T")

# Number of cells that are compared at a time, so that intermediate results stay in a cache.
BLOCK = 2**16
_WHOLE = {4: torch.int32, 8: torch.int64}  # integer types by size in bytes


def hash_bits(array: Tensor) -> int:
    """Return a hash of the bits of an array, which changes if any single cell changes.

    It is the sum of the cells, as integers, times different odd numbers, modulo 2^64.
    """
    cells = array.detach().reshape(-1).view(_WHOLE[array.element_size()])
    weights = torch.arange(1, 2 * BLOCK, 2, device=cells.device)
    total = torch.zeros((), dtype=torch.int64, device=cells.device)
    for first in range(0, cells.numel(), BLOCK):
        block = cells[first : first + BLOCK].long()
        total += (block * (weights[: block.numel()] + 2 * first)).sum()
    return int(total)


def find_differing(arrays: Iterable[Tensor], context: Context) -> list[int]:
    """Return the ranks whose arrays have other bits than those of rank 0; collective."""
    hashes = context.all_gather([hash_bits(array) for array in arrays])
    return [rank for rank, other in enumerate(hashes) if other != hashes[0]]


def measure_blocks(
    measure: Callable[..., T], arrays: Sequence[NDArray[Any] | Tensor], context: Context
) -> list[T]:
    """Return the results of `measure` for each block of arrays of one shape, in order; collective.

    The blocks do not depend on the number of ranks. Each rank measures some of them as NumPy
    arrays, and copies only these from a GPU.
    """
    flat = [array.reshape(-1) for array in arrays]
    blocks = range(0, len(flat[0]), BLOCK)
    mine = blocks[context.rank :: context.size]
    found = [measure(*(_fetch(array[first : first + BLOCK]) for array in flat)) for first in mine]
    ranks = context.all_gather(found)
    return [ranks[n % context.size][n // context.size] for n in range(len(blocks))]


def _fetch(block: NDArray[Any] | Tensor) -> NDArray[Any]:
    return block.cpu().numpy() if isinstance(block, Tensor) else block


MEMORY = Path("/dev/shm")  # other users cannot replace a file there
ALIGNED = 64  # bytes: arrays begin at multiples of it


def once_per_host(call: Callable[[], T], context: Context) -> T:
    """Run a function on one rank of each host and return its result on all ranks; collective.

    The result must pickle. Its larger arrays are in memory that the ranks of a host share, and are
    read-only. All ranks get the result of rank 0 if a host has not enough shared memory, or if its
    result has different bits, for example because of another type of processor. An exception of the
    function is raised on every rank.
    """
    if context.size == 1:
        return call()
    hosts = context.all_gather(context.host)
    first = hosts.index(context.host)
    with open_together(context.rank, first, context.all_gather) as file:
        laid: tuple[int, int] | None = None
        error: BaseException | None = None
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
                context.raise_on_all_ranks(error)
            finally:
                del error, every
        firsts = [laid for rank, (laid, _) in enumerate(every) if hosts.index(hosts[rank]) == rank]
        laid, _ = every[first]
        taken = []
        if file is not None and laid is not None and firsts.count(laid) == len(firsts):
            with suppress(OSError):
                taken.append(_take_up(file, laid[0]))
    if all(context.all_gather(len(taken))):
        value: T = taken[0]
        return value
    return context.from_root(call)


def is_host_shared(array: NDArray[Any]) -> bool:
    """Return True if an array lies in memory that the ranks of this host share."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    return isinstance(base, mmap.mmap)


@contextmanager
def open_together(
    rank: int, first: int, all_gather: Callable[[Any], Sequence[Any]]
) -> Iterator[int | None]:
    """Yield a file in shared memory that the ranks of this host open; None if this rank cannot.

    It is empty and has no name any more. rank: number of this rank; first: that of the rank of this
    host that makes the file; all_gather: returns the values of all ranks. Collective.
    """
    file, name = None, None
    try:
        try:
            with suppress(OSError):
                if rank == first:
                    file, name = tempfile.mkstemp(prefix="hpcfwi-", dir=MEMORY)
            theirs = all_gather(name)[first]
            with suppress(OSError):
                if file is None and theirs is not None:
                    file = _open_own(theirs)
            all_gather(None)  # all have opened it
        finally:
            if name is not None:
                Path(name).unlink(missing_ok=True)
        yield file
    finally:
        if file is not None:
            os.close(file)


def _open_own(name: str) -> int | None:
    """Open the file of this name if it belongs to this user."""
    file = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(file)
    if found.st_uid == os.geteuid() and stat.S_ISREG(found.st_mode):
        return file
    os.close(file)
    return None


def _lay_down(value: Any, file: int) -> tuple[int, int] | None:
    """Write an object into an empty file; return None if there is no room.

    Otherwise return the size of the outline, which comes first, and a checksum of the object.
    """
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
            return len(outline), digest
    return None


def _take_up(file: int, outlined: int) -> Any:
    """Return the object in a file, with read-only arrays; outlined: bytes of its outline."""
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
    """Return the offsets of arrays of these sizes after an outline, and the end of the last one."""
    places = [outlined]
    for size in sizes:
        places[-1] = -(-places[-1] // ALIGNED) * ALIGNED
        places.append(places[-1] + size)
    return places
