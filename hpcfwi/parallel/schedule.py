"""Which rank computes which slots of a batch: fixed beforehand, or as each gets through.

A slot is a place in the batch. Which shot is in it is chosen in `inversion.sampler`.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from hpcfwi.parallel.context import Context


class StaticSchedule:
    """Deals out a batch's slots, equal parts to all ranks, at once."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def order(self, costs: NDArray[np.float64]) -> NDArray[np.int64]:
        """In which order to put slots that cost so much: as they come."""
        return np.arange(costs.size)

    def first(self, slots: int) -> NDArray[np.int64]:
        """What this rank begins a batch of so many slots with, known long before.

        Ranks' parts differ by one slot at most, the longer ones first, and may be empty.
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
