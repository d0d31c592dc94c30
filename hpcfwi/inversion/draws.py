"""Which shots an epoch has, and how many: functions of the seed and of the epoch's number alone.

A run that is continued draws what it would have drawn, and every rank the same, with no state to
keep: what is remembered of a draw makes the next one cheaper, and not another. Whose data are read
when is in `sampler`, and how shots are added up beforehand in `encoding`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hpcfwi.config.inversion import InversionSection

Shots = NDArray[np.int64]

# Sweeps whose orders are remembered, 8 bytes a shot: so many have an epoch and the one after it
KEPT = 3


@dataclass(frozen=True)
class Draws:
    """The draws of a stage, one after the other.

    stage: its number, from 0; n_shots: of the survey; sizes: how many shots each draw has; hold:
    epochs that have the same. It remembers the orders of the last sweeps that were asked for.
    """

    seed: int
    stage: int
    n_shots: int
    sizes: tuple[int, ...]
    hold: int = 1
    _orders: dict[int, Shots] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, section: InversionSection, n_shots: int, stage: int = 0) -> Self:
        """Those that a config asks for."""
        count = -(-section.epochs // section.hold)
        first, last = section.batch_ends(n_shots)
        sizes = np.linspace(first, last, count).round().astype(int)
        return cls(section.seed, stage, n_shots, tuple(sizes.tolist()), section.hold)

    @cached_property
    def starts(self) -> list[int]:
        """How many shots the draws before each have, and in the end all of them."""
        return [0, *accumulate(self.sizes)]

    def number(self, epoch: int) -> int:
        """Of the draw that an epoch has; both count from 0."""
        return epoch // self.hold

    def generator(self, number: int) -> np.random.Generator:
        """Random numbers for the draw of this number, or for anything else that is numbered."""
        return np.random.default_rng([self.seed, number, self.stage])

    def shuffled(self, number: int) -> Shots:
        """All shots of the survey."""
        return self.generator(number).permutation(self.n_shots).astype(np.int64)

    def order(self, lap: int) -> Shots:
        """All shots of the survey, as the sweep of this number, from 0, has them.

        It follows from the one before it, unless it stands alone: from the last that is known, or
        that does.
        """
        first = lap
        while first not in self._orders and not self._stands_alone(first):
            first -= 1
        for number in range(first, lap + 1):
            if number not in self._orders:
                self._orders[number] = self._follow(number)
                if len(self._orders) > KEPT:
                    del self._orders[next(iter(self._orders))]
        return self._orders[lap]

    def _begin(self, lap: int) -> tuple[int, int]:
        """How many shots the draw in which a sweep begins has, and of these of the one before."""
        draw = bisect_right(self.starts, lap * self.n_shots) - 1
        size = self.sizes[draw] if draw < len(self.sizes) else 0
        return size, lap * self.n_shots - self.starts[draw]

    def _stands_alone(self, lap: int) -> bool:
        """Whether the sweep before it need not be known: it began so long ago that its last shots
        are those of its shuffled ones, as only those of its first draw have other places."""
        _, begun = self._begin(lap)
        return begun == 0 or begun + self._begin(lap - 1)[0] <= self.n_shots

    def _follow(self, lap: int) -> Shots:
        """The order of a sweep: shuffled, but that it begins with shots that the draw has not."""
        shuffled, (size, begun) = self.shuffled(lap), self._begin(lap)
        if begun == 0:
            return shuffled
        before = self._orders[lap - 1] if lap - 1 in self._orders else self.shuffled(lap - 1)
        is_new = np.ones(self.n_shots, dtype=bool)
        is_new[before[-begun:]] = False
        first = shuffled[is_new[shuffled]][: size - begun]
        is_left = np.ones(self.n_shots, dtype=bool)
        is_left[first] = False
        return np.concatenate([first, shuffled[is_left[shuffled]]])


Choose = Callable[[Draws, int], Shots]
"""The shots of the draw of some number, from 0, all different; named in `registry.SAMPLINGS`."""


def take_all(draws: Draws, number: int) -> Shots:
    """Every shot of the survey."""
    return draws.shuffled(number)


def draw_anew(draws: Draws, number: int) -> Shots:
    """Those of each draw drawn anew: a shot may come again before another has come."""
    return draws.shuffled(number + 1)[: draws.sizes[number]]


def sweep(draws: Draws, number: int) -> Shots:
    """Every shot of the survey once before any comes again, each time in another order.

    One sweep through the survey follows the other without a gap. Where a draw ends one and begins
    the next, the next begins with shots that the draw has not.
    """
    n_shots, (begin, end) = draws.n_shots, draws.starts[number : number + 2]
    laps = range(begin // n_shots, -(-end // n_shots))
    parts = (draws.order(lap)[max(0, begin - lap * n_shots) : end - lap * n_shots] for lap in laps)
    return np.concatenate([*parts])
