"""Replicas: arrays of which every rank has all. Whether they have the same bits, and what they are.

Bits are compared by a hash that is a sum: whole numbers, where the array is, as fast as it is read.
It is made to notice accidents, which change some cells; nobody is kept from making two arrays with
one hash. What is measured is measured in blocks, each by one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.parallel.context import Context

T = TypeVar("T")

# Cells that are looked at at a time: what is between stays in a cache.
BLOCK = 2**16
_WHOLE = {4: torch.int32, 8: torch.int64}  # numbers of as many bytes


def hash_bits(array: Tensor) -> int:
    """Of an array's bits and their places: another one, surely, where one cell changes.

    Modulo 2^64, each cell times an odd number of its own, which divides nothing that 2^64 is.
    """
    cells = array.detach().reshape(-1).view(_WHOLE[array.element_size()])
    weights = torch.arange(1, 2 * BLOCK, 2, device=cells.device)
    total = torch.zeros((), dtype=torch.int64, device=cells.device)
    for first in range(0, cells.numel(), BLOCK):
        block = cells[first : first + BLOCK].long()
        total += (block * (weights[: block.numel()] + 2 * first)).sum()
    return int(total)


def find_differing(arrays: Iterable[Tensor], context: Context) -> list[int]:
    """The ranks whose arrays have other bits than those of rank 0; collective."""
    hashes = context.all_gather([hash_bits(array) for array in arrays])
    return [rank for rank, other in enumerate(hashes) if other != hashes[0]]


def measure_blocks(
    measure: Callable[..., T], arrays: Sequence[NDArray[Any] | Tensor], context: Context
) -> list[T]:
    """What `measure` finds of each block of arrays of one shape, in the order of cells; collective.

    The blocks are the same for any number of ranks, which measure some of them each, in NumPy's
    arrays: of tensors on a card they fetch no others.
    """
    flat = [array.reshape(-1) for array in arrays]
    blocks = range(0, len(flat[0]), BLOCK)
    mine = blocks[context.rank :: context.size]
    found = [measure(*(_fetch(array[first : first + BLOCK]) for array in flat)) for first in mine]
    ranks = context.all_gather(found)
    return [ranks[n % context.size][n // context.size] for n in range(len(blocks))]


def _fetch(block: NDArray[Any] | Tensor) -> NDArray[Any]:
    return block.cpu().numpy() if isinstance(block, Tensor) else block
