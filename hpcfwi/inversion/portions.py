"""The shots of a part of a batch, with their observed traces, some at a time.

How many is found in `operators.portions`. What is done with them is the caller's, and what is found
in `shots`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcfwi.inversion.sampler import Part
from hpcfwi.inversion.timings import Times
from hpcfwi.operators.chunks import Chunks
from hpcfwi.operators.portions import work_by_window
from hpcfwi.operators.simulator import Simulator
from hpcfwi.operators.window import Window
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

    def work_alike(places: NDArray[np.int64], survey: Survey, window: Window) -> list[T]:
        with times.spent_on("compute"):
            return work(survey, window, partial(observe, places))

    for place, found in work_by_window(part.survey, work_alike, simulator, chunks):
        yield int(part.shots[place]), found
