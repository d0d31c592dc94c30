"""The shots of a part of a batch, some at a time: as many as memory allows, and of one window each.

What is done with them is the caller's, and what is found in `shots`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcfwi.inversion.chunks import Chunks
from hpcfwi.inversion.sampler import Part
from hpcfwi.inversion.simulator import Simulator
from hpcfwi.inversion.timings import Times
from hpcfwi.inversion.window import Window, group_shots
from hpcfwi.parallel.context import Context
from hpcfwi.survey import Survey

T = TypeVar("T")

Observe = Callable[[], NDArray[np.float32]]
"""Waits for observed traces (shot, receiver, time)."""

Work = Callable[[Survey, Window, Observe], list[T]]
"""What is found of some shots that have the same window, one value each."""


def work_through(
    part: Part,
    work: Work[T],
    simulator: Simulator,
    chunks: Chunks,
    context: Context,
    times: Times,
) -> Iterator[tuple[int, T]]:
    """What is found of each shot of a part, with its number.

    It ends early where memory does not suffice for a single shot: call `chunks.check` after it.
    """

    def observe(places: NDArray[np.int64]) -> NDArray[np.float32]:
        with times.spent_on("read"), context.heartbeat.waiting():
            return part.traces()[places]

    def work_on(chunk: slice) -> list[tuple[int, T]]:
        results: list[tuple[int, T]] = []
        places = np.arange(part.shots.size)[chunk]
        with times.spent_on("compute"):
            chosen = part.survey.select(places)
            windows = list(simulator.aperture.find_windows(simulator.grid, chosen))
            for group in group_shots(windows):
                alike = places[group]
                survey = part.survey.select(alike)
                found = work(survey, windows[group[0]], partial(observe, alike))
                results += zip(part.shots[alike].tolist(), found, strict=True)
        return results

    for results in chunks.each(part.shots.size, work_on):
        yield from results
