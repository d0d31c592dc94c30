"""Every trace of observed data that others have made, read once: what is dead, loud or broken.

Traces that `[data]` leaves out are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpcfwi.inversion.conditioning import median_of_neighbours, root_mean_square
from hpcfwi.inversion.experiment import Experiment
from hpcfwi.parallel.context import Context
from hpcfwi.storage.gathers import GatherReader
from hpcfwi.wave.simulation import wave_speed

# Of the median of its neighbours in offset: below it a trace is dead, above it loud.
DEAD, LOUD = 1e-3, 10.0
# A sample so many times as large as the next of its trace: waves have slopes.
SPIKE = 3.0
AT_A_TIME = 2**27  # bytes that are read

Place = tuple[int, int]  # shot and receiver


@dataclass(frozen=True)
class Scan:
    """What is wrong with the traces of a survey, each kind with the places of its traces.

    shots, traces: how many were looked at; broken: which are not finite; silent: shots in which
    nothing is heard.
    """

    shots: int
    traces: int
    silent: tuple[int, ...] = ()
    broken: tuple[Place, ...] = ()
    spiky: tuple[Place, ...] = ()
    dead: tuple[Place, ...] = ()
    loud: tuple[Place, ...] = ()


@dataclass
class _Found:
    traces: int = 0
    places: dict[str, list[Place]] = field(default_factory=dict)
    loudness: dict[int, float] = field(default_factory=dict)


def scan_traces(experiment: Experiment, reader: GatherReader, context: Context) -> Scan:
    """Read the whole survey, each rank its part of the shots; collective."""
    found = _Found()
    mine = np.array_split(np.arange(experiment.survey.n_shots), context.size)[context.rank]
    for shots in _in_parts(mine, reader):
        with context.heartbeat.waiting():
            traces = reader.read(shots)
        _look_at(found, experiment, shots, traces)
        context.heartbeat.beat()
    ranks = context.all_gather(found)
    loudness = {shot: value for rank in ranks for shot, value in rank.loudness.items()}
    audible = [value for value in loudness.values() if value > 0.0]
    least = DEAD * float(np.median(audible)) if audible else 0.0
    return Scan(
        len(loudness),
        sum(rank.traces for rank in ranks),
        silent=tuple(sorted(shot for shot, value in loudness.items() if value <= least)),
        **{
            kind: tuple(sorted(place for rank in ranks for place in rank.places.get(kind, ())))
            for kind in ("broken", "spiky", "dead", "loud")
        },
    )


def _in_parts(shots: NDArray[np.int64], reader: GatherReader) -> Iterator[NDArray[np.int64]]:
    _, n_receivers, n_samples = reader.survey.shape
    size = max(1, AT_A_TIME // (4 * n_receivers * n_samples))
    return (shots[i : i + size] for i in range(0, shots.size, size))


def _look_at(
    found: _Found, experiment: Experiment, shots: NDArray[np.int64], traces: NDArray[np.float32]
) -> None:
    survey = experiment.survey.select(shots)
    heard = experiment.compared().aperture.trace_mask(survey.sources, survey.receivers)
    heard &= experiment.conditioning().select(traces, survey)
    if survey.mask is not None:
        heard &= survey.mask
    distances = np.linalg.norm(survey.receivers - survey.sources[:, None], axis=-1)
    slowest = float(wave_speed(experiment.initial.arrays).min())
    peaks = survey.dt * np.abs(survey.wavelet).argmax(axis=1)
    arrives = peaks[:, None] + distances / slowest < survey.dt * survey.n_samples
    for shot, gather, far, counts, due in zip(
        shots.tolist(), traces, distances, heard, arrives, strict=True
    ):
        found.traces += int(counts.sum())
        loudness = root_mean_square(gather)
        broken, spiky = ~np.isfinite(gather).all(axis=1), find_spikes(gather)
        typical = median_of_neighbours(loudness, far)
        dead = due & (loudness <= DEAD * np.nan_to_num(typical))
        loud = (loudness > LOUD * typical) & ~spiky
        good = counts & due & ~broken
        found.loudness[shot] = float(np.median(loudness[good])) if good.any() else np.inf
        if found.loudness[shot] == 0.0:
            dead[:] = False  # told as a shot
        for kind, which in (
            ("broken", broken),
            ("spiky", spiky),
            ("dead", dead & ~broken),
            ("loud", loud & ~broken),
        ):
            places = [(shot, int(receiver)) for receiver in np.flatnonzero(which & counts)]
            found.places.setdefault(kind, []).extend(places)


def find_spikes(traces: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which traces (trace, time) have one sample that is far beyond all others."""
    second, largest = np.partition(np.abs(traces), (-2, -1), axis=1)[:, -2:].T
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray((largest > SPIKE * second) & np.isfinite(largest) & (largest > 0.0))
