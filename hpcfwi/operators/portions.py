"""Shots of a survey, some at a time: as many as memory allows, and of one window each.

What is done with them is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcfwi.operators.chunks import Chunks
from hpcfwi.operators.simulator import Simulator
from hpcfwi.operators.window import Window, group_shots
from hpcfwi.survey import Survey

T = TypeVar("T")

WorkAlike = Callable[[NDArray[np.int64], Survey, Window], list[T]]
"""What is found of some shots that have the same window, one value each; and their places."""


def work_by_window(
    survey: Survey, work: WorkAlike[T], simulator: Simulator, chunks: Chunks
) -> Iterator[tuple[int, T]]:
    """What is found of each shot of a survey, with its place in it.

    It ends early where memory does not suffice for a single shot: call `chunks.check` after it.
    """

    def work_on(chunk: slice) -> list[tuple[int, T]]:
        results: list[tuple[int, T]] = []
        places = np.arange(survey.n_shots)[chunk]
        windows = simulator.aperture.find_windows(simulator.grid, survey.select(places))
        for group in group_shots(windows):
            alike = places[group]
            found = work(alike, survey.select(alike), windows[group[0]])
            results += zip(alike.tolist(), found, strict=True)
        return results

    for results in chunks.each(survey.n_shots, work_on):
        yield from results
