"""Shards: the division of arrays and of the shots of a batch between ranks.

Arrays that are the same on all ranks are cut into equal pieces, one for each rank, in the order of
their cells. A function that works cell by cell can be applied to a piece as to the whole array.

A slot is a place in the batch. `inversion.stages` decides which shot is in it. The schedule decides
which rank computes it, either beforehand or when a rank has finished its last slots.
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
from torch.nn.functional import pad

from hpcfwi.parallel.context import Context

# A shard begins at a multiple of this number of cells, so that SIMD vectors are aligned as in the
# whole array. Remaining cells that do not fill a vector may be rounded differently.
LINE = 64


def size_shards(cells: int, ranks: int) -> int:
    """Return the number of cells of a shard; the last shards may have fewer, or none."""
    return LINE * ceil(cells / (LINE * ranks))


@dataclass(frozen=True)
class Shard:
    """The cells of an array that this rank has; shape: shape of the whole array."""

    values: Tensor
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Shards:
    """The division of arrays into one shard for each rank.

    context: the ranks, None if arrays are not divided. Scalars, whose shape is (), are never
    divided.
    """

    context: Context | None = None

    @property
    def count(self) -> int:
        return 1 if self.context is None else self.context.size

    def cut(self, whole: Tensor) -> Tensor:
        """Return a view of this rank's shard, (cell,); the array itself if it is not divided."""
        if self.context is None or self.count == 1 or not whole.ndim:
            return whole
        rank, size = self.context.rank, size_shards(whole.numel(), self.count)
        return whole.reshape(-1)[rank * size : (rank + 1) * size]

    def all_gather(self, shard: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return the whole array of this shape on every rank; collective."""
        if self.context is None or self.count == 1 or not shape:
            return shard
        cells = prod(shape)
        padded = pad(shard, (0, size_shards(cells, self.count) - shard.numel()))
        return self.context.all_gather_pieces(padded).view(-1)[:cells].view(shape)

    def reduce_scatter(self, whole: Tensor) -> Tensor:
        """Return this rank's shard of the sum of the ranks' integer arrays; collective."""
        assert self.context is not None, "arrays that are not divided are summed by their context"
        size = size_shards(whole.numel(), self.count)
        return self.context.reduce_scatter(whole.reshape(-1), size)

    def wrap(self, shard: Tensor, shape: tuple[int, ...]) -> Tensor | Shard:
        """Return a shard as it is kept in a state: a `Shard`, or an array that is not divided."""
        return shard if self.count == 1 or not shape else Shard(shard, tuple(shape))

    def unwrap(self, kept: Tensor | Shard) -> Tensor:
        """Return this rank's shard from a result of `wrap` or from a whole array."""
        return kept.values if isinstance(kept, Shard) else self.cut(kept)

    def divide(self, tree: Any) -> Any:
        """Divide the arrays in nested dicts, lists and tuples, in the form of `wrap`."""

        def wrap(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or self.count == 1:
                return leaf
            return self.wrap(self.cut(leaf).clone(), leaf.shape)

        return replace_leaves(tree, wrap)


WHOLE = Shards()
"""No division: every rank has whole arrays."""


def gather_to_root(tree: Any, context: Context) -> Any:
    """Return a tree with whole arrays on the CPU of rank 0, and unchanged elsewhere; collective.

    Arrays are gathered one at a time, so that other ranks have at most one whole array at a time.
    """
    shards = Shards(context)

    def gather(leaf: Any) -> Any:
        if not isinstance(leaf, Shard):
            return leaf
        whole = shards.all_gather(leaf.values, leaf.shape)
        return whole.cpu() if context.is_root else leaf

    return replace_leaves(tree, gather)


def has_shards(tree: Any) -> bool:
    """Return True if an array in a tree is divided."""
    found: list[Any] = []
    replace_leaves(tree, found.append)
    return any(isinstance(leaf, Shard) for leaf in found)


def replace_leaves(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of nested dicts, lists and tuples with each leaf replaced by `change(leaf)`."""
    if isinstance(tree, Mapping):
        return {key: replace_leaves(branch, change) for key, branch in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(replace_leaves(branch, change) for branch in tree)
    return change(tree)


class StaticSchedule:
    """A schedule that gives each rank an equal part of the slots of a batch beforehand."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def order(self, costs: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the order in which slots with these costs are given out, which is unchanged."""
        return np.arange(costs.size)

    def first(self, slots: int) -> NDArray[np.int64]:
        """Return the first slots of this rank in a batch, which are known beforehand.

        The sizes of the parts differ by at most one slot. The first ranks have the larger parts,
        and parts may be empty.
        """
        return np.array_split(np.arange(slots), self._context.size)[self._context.rank]

    def begin(self) -> None:
        """Begin a new batch; each rank calls this when it has finished the one before.

        All ranks call it equally often, because the number of calls names the counter of a batch.
        """

    def more(self, slots: int, at_most: int) -> NDArray[np.int64]:  # noqa: ARG002
        """Return at most `at_most` more slots for this rank, none when all are given out."""
        return np.arange(0)


class DynamicSchedule:
    """A schedule that gives the next slots to a rank when it has finished; slow ranks get fewer.

    portion: number of slots with which this rank begins. Construction is collective. The store of
    the ranks counts the slots that have been given out.
    """

    def __init__(self, portion: int, context: Context) -> None:
        portions = context.all_gather(portion)
        self._start = sum(portions[: context.rank])
        self._portion, self._dealt = portion, sum(portions)
        assert context.store is not None, "several ranks have a store"
        self._store = context.store
        self._name, self._batches = context.broadcast(secrets.token_hex(8)), 0

    def order(self, costs: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the order with the largest costs first, so that the last slots are cheap."""
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
    """Return the schedule of this name, "static" or "dynamic"; collective.

    portion: number of slots with which this rank begins in a dynamic schedule.
    """
    if name == "static" or context.size == 1:
        return StaticSchedule(context)
    return DynamicSchedule(portion, context)
