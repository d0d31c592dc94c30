"""Which shots an epoch has, and how many: functions of the seed and of the epoch's number alone.

A run that is continued draws what it would have drawn, and every rank the same, with no state to
keep. Whose data are read when is in `sampler`, and how shots are added up beforehand in `encoding`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hpcfwi.config.inversion import InversionSection

Shots = NDArray[np.int64]


@dataclass(frozen=True)
class Draws:
    """The draws of a stage, one after the other.

    stage: its number, from 0; n_shots: of the survey; sizes: how many shots each draw has; hold:
    epochs that have the same.
    """

    seed: int
    stage: int
    n_shots: int
    sizes: tuple[int, ...]
    hold: int = 1

    @classmethod
    def of(cls, section: InversionSection, n_shots: int, stage: int = 0) -> Self:
        """Those that a config asks for."""
        count = -(-section.epochs // section.hold)
        first, last = section.batch_ends(n_shots)
        sizes = np.linspace(first, last, count).round().astype(int)
        return cls(section.seed, stage, n_shots, tuple(sizes.tolist()), section.hold)

    @property
    def grow(self) -> bool:
        """Whether they have more and more shots, so that each depends on how many there are."""
        return len(set(self.sizes)) > 1

    def number(self, epoch: int) -> int:
        """Of the draw that an epoch has; both count from 0."""
        return epoch // self.hold

    def generator(self, number: int) -> np.random.Generator:
        """Random numbers for the draw of this number, or for anything else that is numbered."""
        return np.random.default_rng([self.seed, number, self.stage])

    def shuffled(self, number: int) -> Shots:
        """All shots of the survey."""
        return self.generator(number).permutation(self.n_shots).astype(np.int64)


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
    n_shots, starts = draws.n_shots, [0, *accumulate(draws.sizes)]
    begin, end = starts[number : number + 2]
    # The last sweep that begins with a draw does not depend on the one before it
    first = max(start for start in starts[: number + 1] if start % n_shots == 0)
    sequence = draws.shuffled(first // n_shots)
    for lap in range(first // n_shots + 1, -(-end // n_shots)):
        draw = bisect_right(starts, lap * n_shots) - 1
        begun = lap * n_shots - starts[draw]
        order = _follow(sequence, draws.shuffled(lap), begun, draws.sizes[draw])
        sequence = np.concatenate([sequence, order])
    return sequence[begin - first : end - first]


def _follow(before: Shots, shuffled: Shots, begun: int, size: int) -> Shots:
    """The order of a sweep after that of the one before it.

    begun: shots that the draw with which it begins, of so many, has from the one before.
    """
    if begun == 0:
        return shuffled
    first = shuffled[~np.isin(shuffled, before[-begun:])][: size - begun]
    return np.concatenate([first, shuffled[~np.isin(shuffled, first)]])
