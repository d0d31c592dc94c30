"""Shards: which cells of an array a rank keeps, and which shots of a batch it computes.

Arrays that are the same on all ranks are cut into equal pieces, one a rank, in the order of their
cells. A function that works cell by cell is applied to a piece as it is to the whole.

A slot is a place in the batch. The schedule says which rank computes it, beforehand or as each
rank gets through; `inversion.draws` says which shot is in it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.parallel.context import Context

# Cells. What a slab begins with lies to vectors of any processor as it does in the whole: the last
# cells of an array, which fill no vector, may be rounded otherwise than others.
LINE = 64


def size_slabs(cells: int, ranks: int) -> int:
    """Return the number of cells of a slab; the last ones may have fewer, or none."""
    return LINE * ceil(cells / (LINE * ranks))


@dataclass(frozen=True)
class Slab:
    """This rank's cells of an array; shape: of the whole."""

    values: Tensor
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Slabs:
    """The division of arrays; context: of the ranks with a slab each, None for whole arrays.

    All ranks keep single numbers, which have no shape.
    """

    context: Context | None = None

    @property
    def count(self) -> int:
        return 1 if self.context is None else self.context.size

    def cut(self, whole: Tensor) -> Tensor:
        """This rank's slab, (cell,), a view; the array itself where that is all of it."""
        if self.context is None or self.count == 1 or not whole.ndim:
            return whole
        return self._pieces(whole)[self.context.rank]

    def gather(self, slab: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The whole array of this shape on every rank, of the slabs of all; collective."""
        if self.context is None or self.count == 1 or not shape:
            return slab
        cells = prod(shape)
        padded = _pad(slab, size_slabs(cells, self.count))
        return self.context.gather_pieces(padded).view(-1)[:cells].view(shape)

    def sum(self, whole: Tensor) -> Tensor:
        """This rank's slab of the sum of the ranks' arrays, of whole numbers; collective."""
        assert self.context is not None, "what is whole everywhere is its context's to add up"
        return self.context.sum_pieces(self._pieces(whole))

    def keep(self, slab: Tensor, shape: tuple[int, ...]) -> Tensor | Slab:
        """Return the form of a slab in a state: a `Slab`, or the whole array."""
        return slab if self.count == 1 or not shape else Slab(slab, tuple(shape))

    def take(self, kept: Tensor | Slab) -> Tensor:
        """This rank's slab, of what `keep` has made or of a whole array."""
        return kept.values if isinstance(kept, Slab) else self.cut(kept)

    def divide(self, tree: Any) -> Any:
        """Nested dicts, lists and tuples with whole arrays, as `keep` has them."""

        def keep(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or self.count == 1:
                return leaf
            return self.keep(self.cut(leaf).clone(), leaf.shape)

        return _replace(tree, keep)

    def _pieces(self, whole: Tensor) -> list[Tensor]:
        flat, size = whole.reshape(-1), size_slabs(whole.numel(), self.count)
        return [flat[first * size : (first + 1) * size] for first in range(self.count)]


WHOLE = Slabs()
"""All of it on every rank."""


def gather_to_root(tree: Any, context: Context) -> Any:
    """Return divided arrays as whole ones on the CPU of rank 0, unchanged elsewhere; collective.

    Arrays are gathered one after the other, so that other ranks have at most one whole array.
    """
    slabs = Slabs(context)

    def gather(leaf: Any) -> Any:
        if not isinstance(leaf, Slab):
            return leaf
        whole = slabs.gather(leaf.values, leaf.shape)
        return whole.cpu() if context.is_root else leaf

    return _replace(tree, gather)


def has_slabs(tree: Any) -> bool:
    """Return True if anything in a tree was divided."""
    found: list[Any] = []
    _replace(tree, found.append)
    return any(isinstance(leaf, Slab) for leaf in found)


def _replace(tree: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(tree, Mapping):
        return {key: _replace(branch, change) for key, branch in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_replace(branch, change) for branch in tree)
    return change(tree)


def _pad(piece: Tensor, size: int) -> Tensor:
    if piece.numel() == size:
        return piece
    padded = piece.new_zeros(size)
    padded[: piece.numel()] = piece
    return padded


class StaticSchedule:
    """Deals out a batch's slots, equal parts to all ranks, at once."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def order(self, costs: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the order of slots with these costs: as they come."""
        return np.arange(costs.size)

    def first(self, slots: int) -> NDArray[np.int64]:
        """Return the slots with which this rank begins a batch, known long before.

        The parts of ranks differ by at most one slot, the longer ones first, and may be empty.
        """
        return np.array_split(np.arange(slots), self._context.size)[self._context.rank]

    def begin(self) -> None:
        """Deal a batch anew, as all ranks do, each when it has got through the one before."""

    def more(self, slots: int, at_most: int) -> NDArray[np.int64]:  # noqa: ARG002
        """Further slots for this rank now, at most so many of them; none when all are dealt."""
        return np.arange(0)


class DynamicSchedule:
    """Each rank takes the next slots whenever it has finished its last; slow ones get fewer.

    portion: how many slots this rank begins with. Collective to make. What is dealt already is
    counted by the ranks' store.
    """

    def __init__(self, portion: int, context: Context) -> None:
        portions = context.all_gather(portion)
        self._start = sum(portions[: context.rank])
        self._portion, self._dealt = portion, sum(portions)
        assert context.store is not None, "several ranks have a store"
        self._store = context.store
        self._name, self._batches = context.broadcast(secrets.token_hex(8)), 0

    def order(self, costs: NDArray[np.float64]) -> NDArray[np.int64]:
        """The largest first, so that what comes last is short."""
        return np.argsort(-costs, kind="stable")

    def first(self, slots: int) -> NDArray[np.int64]:
        return np.arange(min(self._start, slots), min(self._start + self._portion, slots))

    def begin(self) -> None:
        self._batches += 1

    def more(self, slots: int, at_most: int) -> NDArray[np.int64]:
        if self._dealt >= slots:
            return np.arange(0)
        counted = self._store.add(f"dealt/{self._name}/{self._batches}", at_most)
        last = self._dealt + counted
        return np.arange(min(last - at_most, slots), min(last, slots))


Schedule = StaticSchedule | DynamicSchedule


def make_schedule(name: str, portion: int, context: Context) -> Schedule:
    """The schedule of that name, "static" or "dynamic"; collective.

    portion: how many slots this rank takes first where the schedule is dynamic.
    """
    if name == "static" or context.size == 1:
        return StaticSchedule(context)
    return DynamicSchedule(portion, context)
