"""The batch of each epoch: its shots, and their data on the rank that simulates them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hpcfwi.inversion.draws import Shots
from hpcfwi.inversion.encoding import EncodedData, Signs, draw_signs, encode
from hpcfwi.inversion.stages import Stage
from hpcfwi.inversion.wavelets import Wavelet
from hpcfwi.operators.chunks import Chunks
from hpcfwi.parallel.shards import Schedule
from hpcfwi.storage.background import Prefetcher, Traces
from hpcfwi.survey import Survey


@dataclass(frozen=True)
class Part:
    """Some shots of a batch.

    shots: their numbers in the survey; survey: of these; traces: observed, (shot, receiver, time);
    to ask for them is to wait until they are read; signs: of the sources, where shots are encoded.
    """

    shots: Shots
    survey: Survey
    traces: Traces
    signs: Signs | None = None

    def emitting(self, wavelet: Wavelet) -> Part:
        """The same, of sources that emit this wavelet: all of them, or each its own."""
        if self.signs is not None:
            wavelets = self.signs[:, :, None].astype(np.float32) * wavelet
        elif wavelet.ndim == 1:
            wavelets = np.broadcast_to(wavelet, (self.shots.size, wavelet.size))
        else:
            wavelets = wavelet[self.shots]
        return replace(self, survey=replace(self.survey, wavelet=wavelets))

    def collect(self, shot: int, gradient: NDArray[np.floating]) -> NDArray[np.float64]:
        """The gradient with respect to the wavelet of all, (time,), from that of a shot.

        Which is with respect to what its sources emit, (source, time). Transpose of `emitting`.
        """
        signs = np.ones(1) if self.signs is None else self.signs[self.shots == shot][0]
        return (signs[:, None] * gradient.astype(np.float64)).sum(axis=0)


@dataclass(frozen=True)
class Batch:
    """The shots of an epoch.

    epoch: its number, from 1; shots: all of them, in no order; sample: what tells whether another
    epoch of the stage has the same; part: of the batch, given by shots; deal: of all shots, or of
    those that are left to do, this rank's, part by part as the schedule has it, anew at every call,
    which all ranks make.
    """

    epoch: int
    shots: Shots
    sample: tuple[int, ...]
    part: Callable[[Shots], Part]
    deal: Callable[[Shots], Iterator[Part]]

    def emitting(self, wavelet: Wavelet) -> Batch:
        """The same, of sources that emit this wavelet: all of them, or each its own."""

        def part(shots: Shots) -> Part:
            return self.part(shots).emitting(wavelet)

        def deal(left: Shots) -> Iterator[Part]:
            return (part.emitting(wavelet) for part in self.deal(left))

        return replace(self, part=part, deal=deal)


class Sampler:
    """Hands out one batch an epoch, and reads what the next begins with meanwhile.

    Every rank draws the same shots.

    costs: of simulating each shot of the survey, in any unit; chunks: of this rank's shots.
    """

    def __init__(
        self,
        stage: Stage,
        costs: NDArray[np.float64],
        schedule: Schedule,
        chunks: Chunks,
        prefetcher: Prefetcher,
    ) -> None:
        self._stage, self._survey, self._costs = stage, stage.experiment.survey, costs
        self._schedule, self._chunks, self._prefetcher = schedule, chunks, prefetcher
        self._chosen: dict[int, Shots] = {}
        self._begun: dict[int, Part] = {}

    def take(self, epoch: int) -> Batch:
        """The batch of `epoch`; reads the beginning of the one after it, if there is one."""
        following = range(epoch, min(epoch + 1, self._stage.last) + 1)
        chosen = self._chosen
        self._chosen = {e: chosen[e] if e in chosen else self._stage.shots(e) for e in following}
        shots = self._chosen[epoch]
        sample = tuple(sorted(shots.tolist()))
        return Batch(epoch, shots, sample, self._part, partial(self._deal, epoch))

    def _deal(self, epoch: int, left: Shots) -> Iterator[Part]:
        if left.size < self._chosen[epoch].size:
            self._begun[epoch] = self._begin(left)
        before = self._begun
        self._begun = {e: before.get(e) or self._begin(s) for e, s in self._chosen.items()}
        first = self._begun.pop(epoch)
        yield from _deal_all(self._in_order(left), first, self._part, self._schedule, self._chunks)

    def _begin(self, shots: Shots) -> Part:
        shots = self._in_order(shots)
        return self._part(shots[self._schedule.first(shots.size)])

    def _in_order(self, shots: Shots) -> Shots:
        return shots[self._schedule.order(self._costs[shots])]

    def _part(self, shots: Shots) -> Part:
        return Part(shots, self._survey.select(shots), self._prefetcher.request(shots))


class EncodedSampler:
    """Hands out one batch of encoded shots an epoch."""

    def __init__(self, stage: Stage, data: EncodedData, schedule: Schedule, chunks: Chunks) -> None:
        self._stage, self._data = stage, data
        self._schedule, self._chunks = schedule, chunks
        self._draws, self._number = stage.draws(), -1

    def take(self, epoch: int) -> Batch:
        """The batch of `epoch`; collective."""
        number = self._draws.number(self._stage.place(epoch))
        if number != self._number:
            signs = draw_signs(self._draws, number)
            self._signs, self._traces = signs, self._data.combine(signs)
            self._number = number
        shots = self._stage.shots(epoch)
        return Batch(epoch, shots, (number, shots.size), self._part, self._deal)

    def _deal(self, left: Shots) -> Iterator[Part]:
        first = self._part(left[self._schedule.first(left.size)])
        return _deal_all(left, first, self._part, self._schedule, self._chunks)

    def _part(self, shots: Shots) -> Part:
        traces, signs = partial(self._traces.__getitem__, shots), self._signs[shots]
        # Of these alone: each has the wavelets of all shots
        encoded = encode(self._stage.experiment.survey, signs)
        return Part(shots, encoded.select(np.arange(shots.size)), traces, signs)


def _deal_all(
    shots: Shots,
    first: Part,
    make_part: Callable[[Shots], Part],
    schedule: Schedule,
    chunks: Chunks,
) -> Iterator[Part]:
    """This rank's parts of shots that are in the schedule's order; `first` is that with its first.

    All ranks call this together, and each goes on as it gets through.
    """
    schedule.begin()
    part = first
    while part.shots.size:
        yield part
        part = make_part(shots[schedule.more(shots.size, chunks.size)])
