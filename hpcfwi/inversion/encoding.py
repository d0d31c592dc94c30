"""Encoded shots: all sources of a survey at once, with random signs.

Residuals and gradients of an encoded shot are those of the whole survey, and cross-talk between its
shots that has a mean of zero (Krebs et al. 2009, doi:10.1190/1.3230502). An encoded shot is
simulated as any shot of several sources; `sampler` hands them out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, frexp, ldexp, log2

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.errors import InputError
from hpcfwi.inversion.draws import Draws, Shots
from hpcfwi.parallel.context import Context
from hpcfwi.storage.background import Prefetcher
from hpcfwi.survey import Survey

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
        """That on which sums of so many terms, none larger than `largest`, are exact."""
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
