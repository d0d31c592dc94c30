"""The shots of an epoch, one by one or encoded: functions of the seed and of the epoch's number.

A run that is continued draws what it would have drawn, and every rank draws the same, without any
state: what is remembered of a draw makes the next one cheaper, and does not change it. `stages` has
the sampler, which hands out shots with their data.

An encoded shot has all sources of a survey at once, with random signs. Its residuals and gradients
are those of the whole survey, and cross-talk between shots that has a mean of zero (Krebs et al.
2009, doi:10.1190/1.3230502). It is simulated as any shot of several sources.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import ceil, frexp, ldexp, log2
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.config.inversion import InversionSection
from hpcfwi.errors import InputError
from hpcfwi.parallel.context import Context
from hpcfwi.storage.background import Prefetcher
from hpcfwi.survey import Survey

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
        """Return the draws that a section describes."""
        count = -(-section.epochs // section.hold)
        first, last = section.batch_ends(n_shots)
        sizes = np.linspace(first, last, count).round().astype(int)
        return cls(section.seed, stage, n_shots, tuple(sizes.tolist()), section.hold)

    @cached_property
    def starts(self) -> list[int]:
        """The number of shots in the draws before each, and at the end in all of them."""
        return [0, *accumulate(self.sizes)]

    def number(self, epoch: int) -> int:
        """Return the number of the draw of an epoch; both count from 0."""
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
        """Return the size of a sweep's first draw, and how many of it belong to the last sweep."""
        draw = bisect_right(self.starts, lap * self.n_shots) - 1
        size = self.sizes[draw] if draw < len(self.sizes) else 0
        return size, lap * self.n_shots - self.starts[draw]

    def _stands_alone(self, lap: int) -> bool:
        """Return True if a sweep does not depend on the one before it.

        Only the shots of its first draw are moved; a sweep that began long ago ends as shuffled.
        """
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


Signs = NDArray[np.int8]
"""(encoded shot, shot of the survey), each -1 or 1."""

# Bits of a whole number that double precision holds
EXACT = 53
# Shots that are read at a time
AT_A_TIME = 4


def draw_signs(draws: Draws, number: int) -> Signs:
    """The signs of the encoded shots of a draw, from 0."""
    shape = (draws.sizes[number], draws.n_shots)
    return draws.generator(number).choice(np.array([-1, 1], dtype=np.int8), shape)


def encode(survey: Survey, signs: Signs) -> Survey:
    """The survey of encoded shots: each has all sources, and their wavelets with its signs.

    Its sources are (shot, source, ndim), its wavelet (shot, source, time). The receivers of the
    survey are the same for all shots.
    """
    count, n_shots = signs.shape
    wavelet = np.broadcast_to(survey.wavelet, (n_shots, survey.n_samples))
    return replace(
        survey,
        sources=np.broadcast_to(survey.sources, (count, *survey.sources.shape)),
        wavelet=signs[:, :, None].astype(np.float32) * wavelet,
    )


@dataclass(frozen=True)
class Lattice:
    """Multiples of a power of two, `unit`: double precision adds so many of them exactly.

    So that sums have the same bits in any order. A value in single precision stays one.
    """

    unit: float

    @classmethod
    def of(cls, largest: float, terms: int) -> Lattice:
        """Return the lattice on which sums of so many terms up to `largest` are exact."""
        spare = EXACT - 1 - ceil(log2(max(terms, 1)))
        return cls(ldexp(1.0, frexp(largest)[1] - spare))

    def round(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """The nearest multiples."""
        return (np.rint(values.astype(np.float64) / self.unit) * self.unit).astype(np.float32)


class EncodedData:
    """The observed data of a survey, for sums of all shots; collective to make.

    Each rank has a part of the shots: in memory where `holds`, else it reads them anew each time.
    Raises `InputError` on all ranks where a value is not finite, as it would be in every sum.
    """

    def __init__(
        self, shape: tuple[int, int, int], prefetcher: Prefetcher, context: Context, holds: bool
    ) -> None:
        self._shape, self._prefetcher, self._context = shape, prefetcher, context
        self._mine = np.array_split(np.arange(shape[0]), context.size)[context.rank]
        largest, faulty = 0.0, []
        held: list[tuple[Shots, NDArray[np.float32]]] = []
        for shots, traces in self._read():
            finite = np.isfinite(traces).all(axis=(1, 2))
            faulty += shots[~finite].tolist()
            largest = max(largest, float(np.abs(traces[finite]).max(initial=0.0)))
            if holds:
                held.append((shots, traces))
        ranks = context.all_gather((largest, faulty))
        faults = sorted(shot for _, shots in ranks for shot in shots)
        if faults:
            context.raise_alike(
                InputError(
                    'inversion.encoding = "signs"',
                    f"the observed data of shots {faults} have values that are not finite, and "
                    "every encoded shot would have them",
                    "Remove these shots from the data, or invert without an encoding.",
                )
            )
        self._lattice = Lattice.of(max(most for most, _ in ranks), shape[0])
        # One after the other, so that no more than one piece is there twice
        for k, (shots, traces) in enumerate(held):
            held[k] = shots, self._lattice.round(traces)
        self._held, self._holds = held, holds

    def combine(self, signs: Signs) -> NDArray[np.float32]:
        """The observed data of encoded shots (shot, receiver, time); collective.

        The same bits for any number of ranks.
        """
        total = torch.zeros((len(signs), *self._shape[1:]), dtype=torch.float64)
        for shots, traces in self._pieces():
            for shot, gather in zip(shots, torch.from_numpy(traces), strict=True):
                for k, encoded in enumerate(total):
                    encoded.add_(gather, alpha=int(signs[k, shot]))
        with self._context.heartbeat.waiting():
            whole = self._context.sum(total.to(self._context.device))
        return whole.to(torch.float32).cpu().numpy()

    def _pieces(self) -> Iterator[tuple[Shots, NDArray[np.float32]]]:
        if self._holds:
            yield from self._held
        else:
            for shots, traces in self._read():
                yield shots, self._lattice.round(traces)

    def _read(self) -> Iterator[tuple[Shots, NDArray[np.float32]]]:
        """This rank's part, some shots at a time, the next being read while some are used."""
        pieces = [self._mine[i : i + AT_A_TIME] for i in range(0, self._mine.size, AT_A_TIME)]
        requests = [self._prefetcher.request(shots) for shots in pieces[:1]]
        for following, shots in enumerate(pieces, start=1):
            requests += [self._prefetcher.request(after) for after in pieces[following:][:1]]
            self._context.heartbeat.beat()
            yield shots, requests.pop(0)()
