"""Which shots an epoch uses, and their data on the rank that simulates them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcfwi.parallel.context import Context
from hpcfwi.parallel.schedule import split_shots
from hpcfwi.storage.prefetch import Prefetcher
from hpcfwi.survey import Survey


def choose_shots(seed: int, epoch: int, n_shots: int, batch: int) -> NDArray[np.int64]:
    """`batch` different shots of `n_shots`, in the order in which ranks share them.

    The generator is a function of seed and epoch: a run that is continued draws what it would
    have drawn, with no state to keep.
    """
    generator = np.random.default_rng([seed, epoch])
    return generator.permutation(n_shots)[:batch].astype(np.int64)


@dataclass(frozen=True)
class Batch:
    """The shots of one epoch, and this rank's part of them.

    shots: all of them; mine: those of this rank, possibly none; survey: of mine; observed:
    (shot, receiver, time), of mine.
    """

    shots: NDArray[np.int64]
    mine: NDArray[np.int64]
    survey: Survey
    observed: NDArray[np.float32]


class Sampler:
    """Hands out one batch an epoch, and reads the next one's data meanwhile.

    Collective: all ranks ask for the same epochs in the same order.
    """

    def __init__(
        self, survey: Survey, seed: int, batch: int, prefetcher: Prefetcher, context: Context
    ) -> None:
        self._survey, self._seed, self._batch = survey, seed, batch
        self._prefetcher, self._context = prefetcher, context
        self._ahead: tuple[int, NDArray[np.int64]] | None = None

    def take(self, epoch: int, last: int) -> Batch:
        """The batch of `epoch`; starts to read the one after it, up to epoch `last`."""
        if self._ahead is None:
            self._request(epoch)
        assert self._ahead is not None
        ahead, shots = self._ahead
        assert ahead == epoch, "epochs come one after the other"
        observed = self._prefetcher.take()
        self._ahead = None
        if epoch < last:
            self._request(epoch + 1)
        mine = self._part(shots)
        return Batch(shots, mine, self._survey.select(mine), observed)

    def _request(self, epoch: int) -> None:
        shots = self._context.broadcast(
            choose_shots(self._seed, epoch, self._survey.n_shots, self._batch)
        )
        self._ahead = (epoch, shots)
        self._prefetcher.request(self._part(shots))

    def _part(self, shots: NDArray[np.int64]) -> NDArray[np.int64]:
        return split_shots(shots, self._context.size)[self._context.rank]
