"""Every trace of observed data that others have made, read once: what is dead, loud or broken.

Traces that `[data]` leaves out are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.inversion.conditioning import (
    NEIGHBOURS,
    Conditioning,
    median_of_finite,
    median_of_neighbours,
    root_mean_square,
)
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.operators.simulator import Aperture
from hpcfwi.parallel.context import Context
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.survey import Survey
from hpcfwi.wave.simulation import wave_speed

# Of the median of its neighbours in offset: below it a trace is dead, above it loud.
DEAD, LOUD = 1e-3, 10.0
# A sample so many times as large as the next of its trace: waves have slopes.
SPIKE = 3.0
AT_A_TIME = 2**22  # bytes that are looked at
FAULTS = ("broken", "spiky", "dead", "loud")

SHOWN = 3  # places of traces with a fault that are told

Place = tuple[int, int]  # shot and receiver


@dataclass(frozen=True)
class Tally:
    """Traces with a fault: how many, and the places of the first `SHOWN`."""

    count: int = 0
    first: tuple[Place, ...] = ()

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.count + other.count, (*self.first, *other.first)[:SHOWN])


@dataclass(frozen=True)
class Scan:
    """What is wrong with the traces of a survey.

    shots, traces: how many were looked at; broken: traces that are not finite; silent: shots in
    which nothing is heard.
    """

    shots: int
    traces: int
    silent: tuple[int, ...] = ()
    broken: Tally = Tally()
    spiky: Tally = Tally()
    dead: Tally = Tally()
    loud: Tally = Tally()


@dataclass(frozen=True)
class _Found:
    """In some shots; loudness: of a typical trace of each, infinite where there is none."""

    traces: int
    loudness: NDArray[np.float64]
    tallies: Mapping[str, Tally]


def scan_traces(experiment: Experiment, reader: GatherReader, context: Context) -> Scan:
    """Read the whole survey, each rank its part of the shots; collective."""
    n_shots = experiment.survey.n_shots
    share = -(-n_shots // context.size)
    mine = np.arange(n_shots)[context.rank * share :][:share]
    scanner = _Scanner.of(experiment)
    traces, tallies, typical = 0, dict.fromkeys(FAULTS, Tally()), torch.zeros(share).double()
    for shots in _in_parts(mine, reader):
        with context.heartbeat.waiting():
            gathers = reader.read(shots)
        found = scanner.look_at(shots, gathers)
        traces += found.traces
        tallies = {kind: tallies[kind] + found.tallies[kind] for kind in FAULTS}
        typical[shots - context.rank * share] = torch.from_numpy(found.loudness)
        context.heartbeat.beat()
    ranks = context.all_gather((traces, tallies))
    loudness = context.gather_pieces(typical).view(-1)[:n_shots].numpy()
    audible = loudness[np.isfinite(loudness) & (loudness > 0.0)]
    least = DEAD * float(np.median(audible)) if audible.size else 0.0
    return Scan(
        n_shots,
        sum(traces for traces, _ in ranks),
        silent=tuple(np.flatnonzero(loudness <= least).tolist()),
        **{kind: sum((tallies[kind] for _, tallies in ranks), Tally()) for kind in FAULTS},
    )


def _in_parts(shots: NDArray[np.int64], reader: GatherReader) -> Iterator[NDArray[np.int64]]:
    _, n_receivers, n_samples = reader.survey.shape
    # Beside its samples each trace has its neighbours, in double precision
    size = max(1, AT_A_TIME // (n_receivers * (4 * n_samples + 8 * NEIGHBOURS)))
    return (shots[i : i + size] for i in range(0, shots.size, size))


@dataclass(frozen=True)
class _Scanner:
    """What traces are judged by; slowest: speed of waves, m/s."""

    survey: Survey
    aperture: Aperture
    conditioning: Conditioning
    slowest: float

    @classmethod
    def of(cls, experiment: Experiment) -> Self:
        return cls(
            experiment.survey,
            experiment.compared().aperture,
            experiment.conditioning(),
            float(wave_speed(experiment.initial.arrays).min()),
        )

    def look_at(self, shots: NDArray[np.int64], traces: NDArray[np.float32]) -> _Found:
        """The traces (shot, receiver, time) of these shots."""
        survey = self.survey.select(shots)
        heard = self.aperture.trace_mask(survey.sources, survey.receivers)
        heard &= self.conditioning.select(traces, survey)
        if survey.mask is not None:
            heard &= survey.mask
        distances = np.linalg.norm(survey.receivers - survey.sources[:, None], axis=-1)
        peaks = survey.dt * np.abs(survey.wavelet).argmax(axis=1)
        due = peaks[:, None] + distances / self.slowest < survey.dt * survey.n_samples
        loudness = root_mean_square(traces)
        broken, spiky = ~np.isfinite(traces).all(axis=-1), find_spikes(traces)
        typical = median_of_neighbours(loudness, distances)
        dead = due & (loudness <= DEAD * np.nan_to_num(typical))
        with np.errstate(invalid="ignore"):
            loud = (loudness > LOUD * typical) & ~spiky
        good = heard & due & ~broken
        # Of traces that hold anything: the few that do make a shot that is not silent
        of_shots = median_of_finite(np.where(good & (loudness > 0.0), loudness, np.nan))
        of_shots = np.nan_to_num(of_shots)
        dead[of_shots == 0.0] = False  # told as a shot
        faults = {"broken": broken, "spiky": spiky, "dead": dead & ~broken, "loud": loud & ~broken}
        return _Found(
            int(heard.sum()),
            np.where(good.any(axis=1), of_shots, np.inf),
            {kind: _count(shots, heard & faults[kind]) for kind in FAULTS},
        )


def _count(shots: NDArray[np.int64], which: NDArray[np.bool_]) -> Tally:
    rows, receivers = np.nonzero(which)
    first = zip(shots[rows[:SHOWN]].tolist(), receivers[:SHOWN].tolist(), strict=True)
    return Tally(rows.size, tuple(first))


def find_spikes(traces: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which traces (..., time) have one sample that is far beyond all others."""
    ends = np.partition(np.abs(traces), (-2, -1), axis=-1)
    second, largest = ends[..., -2], ends[..., -1]
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray((largest > SPIKE * second) & np.isfinite(largest) & (largest > 0.0))
