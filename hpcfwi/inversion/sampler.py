"""Which shots an epoch uses, and their data on the rank that simulates them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hpcfwi.config.inversion import InversionSection
from hpcfwi.inversion.chunks import Chunks
from hpcfwi.parallel.schedule import Schedule
from hpcfwi.registry import SAMPLINGS, find
from hpcfwi.storage.prefetch import Prefetcher, Traces
from hpcfwi.survey import Survey

Shots = NDArray[np.int64]


Choose = Callable[[int, int, int, int], Shots]
"""The shots of an epoch, all different: a function of the seed, the epoch (from 1), and how many
shots a survey and an epoch have. A run that is continued chooses what it would have chosen, with no
state to keep. `registry.SAMPLINGS` has their names."""


def draw_anew(seed: int, epoch: int, n_shots: int, batch: int) -> Shots:
    """Those of each epoch drawn anew: a shot may come again before another has come."""
    return _shuffled(seed, epoch, n_shots)[:batch]


def sweep(seed: int, epoch: int, n_shots: int, batch: int) -> Shots:
    """Every shot of the survey once before any comes again, each time in another order.

    One sweep through the survey follows the other without a gap. Where an epoch ends one and begins
    the next, the next begins with shots that the epoch has not.
    """
    number, start = divmod((epoch - 1) * batch, n_shots)
    # The last sweep that begins with an epoch, and so does not depend on the one before it
    first = number - number % (batch // gcd(batch, n_shots))
    orders = [_shuffled(seed, first, n_shots)]
    for following in range(first + 1, number + 2):
        shuffled = _shuffled(seed, following, n_shots)
        orders = [orders[-1], _follow(orders[-1], shuffled, following, batch)]
    return np.concatenate(orders)[start : start + batch]


def _follow(before: Shots, shuffled: Shots, number: int, batch: int) -> Shots:
    """The order of a sweep after that of the one before it; number: of the sweep, from 0."""
    begun = number * shuffled.size % batch  # shots that its first epoch has from the one before
    if begun == 0:
        return shuffled
    first = shuffled[~np.isin(shuffled, before[-begun:])][: batch - begun]
    return np.concatenate([first, shuffled[~np.isin(shuffled, first)]])


def _shuffled(seed: int, number: int, n_shots: int) -> Shots:
    generator = np.random.default_rng([seed, number])
    return generator.permutation(n_shots).astype(np.int64)


@dataclass(frozen=True)
class Part:
    """Some shots of a batch.

    shots: their numbers in the survey; survey: of these; traces: observed, (shot, receiver, time);
    to ask for them is to wait until they are read.
    """

    shots: Shots
    survey: Survey
    traces: Traces


@dataclass(frozen=True)
class Batch:
    """The shots of an epoch.

    shots: all of them; part: of the batch, given by shots; deal: of all shots, or of those that
    are left to do, this rank's, part by part as the schedule has it, anew at every call, which all
    ranks make.
    """

    shots: Shots
    part: Callable[[Shots], Part]
    deal: Callable[[Shots], Iterator[Part]]


class Sampler:
    """Hands out one batch an epoch, and reads what the next begins with meanwhile.

    Every rank chooses the same shots, as generators are NumPy's and their states functions of the
    seed and the epoch.

    costs: of simulating each shot of the survey, in any unit; chunks: of this rank's shots.
    """

    def __init__(
        self,
        survey: Survey,
        costs: NDArray[np.float64],
        section: InversionSection,
        schedule: Schedule,
        chunks: Chunks,
        prefetcher: Prefetcher,
    ) -> None:
        self._survey, self._costs, self._section = survey, costs, section
        self._schedule, self._chunks, self._prefetcher = schedule, chunks, prefetcher
        self._choose_shots = cast(Choose, find(SAMPLINGS[section.sampling]))
        self._chosen: dict[int, Shots] = {}
        self._begun: dict[int, Part] = {}

    def take(self, epoch: int) -> Batch:
        """The batch of `epoch`; reads the beginning of the one after it, if there is one."""
        following = range(epoch, min(epoch + 1, self._section.epochs) + 1)
        self._chosen = {e: self._chosen.get(e, self._choose(e)) for e in following}
        return Batch(self._chosen[epoch], self._part, partial(self._deal, epoch))

    def _choose(self, epoch: int) -> Shots:
        section = self._section
        return self._choose_shots(section.seed, epoch, self._survey.n_shots, section.batch)

    def _deal(self, epoch: int, left: Shots) -> Iterator[Part]:
        shots = self._in_order(left)
        if left.size < self._chosen[epoch].size:
            self._begun[epoch] = self._begin(left)
        before = self._begun
        self._begun = {e: before.get(e) or self._begin(s) for e, s in self._chosen.items()}
        part = self._begun.pop(epoch)
        self._schedule.begin()
        while part.shots.size:
            yield part
            part = self._part(shots[self._schedule.more(shots.size, self._chunks.size)])

    def _begin(self, shots: Shots) -> Part:
        shots = self._in_order(shots)
        return self._part(shots[self._schedule.first(shots.size)])

    def _in_order(self, shots: Shots) -> Shots:
        return shots[self._schedule.order(self._costs[shots])]

    def _part(self, shots: Shots) -> Part:
        return Part(shots, self._survey.select(shots), self._prefetcher.request(shots))
