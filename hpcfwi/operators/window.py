"""The part of the model and of the receivers that a shot is simulated with.

Geometry alone: what is simulated there is `simulator`'s, and sums are `objective`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from hpcfwi.model import Grid
from hpcfwi.survey import Survey
from hpcfwi.wave.points import ON_GRID
from hpcfwi.wave.stencil import FEWEST_POINTS


@dataclass(frozen=True)
class Window:
    """Where a shot is simulated, and with which receivers.

    cells: first and last + 1 along each axis of the model; receivers: whether each of the
    shot's is there, None where all are.
    """

    cells: tuple[tuple[int, int], ...]
    receivers: tuple[bool, ...] | None = None

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(*ends) for ends in self.cells)

    @property
    def trace_mask(self) -> slice | NDArray[np.bool_]:
        """What picks its receivers from an array of all of the shot's."""
        return slice(None) if self.receivers is None else np.array(self.receivers)

    @property
    def size(self) -> int:
        """How many cells it has."""
        return prod(end - first for first, end in self.cells)


@dataclass(frozen=True)
class Aperture:
    """How far from a shot's source and receivers it is simulated, and whom it hears.

    margin: from the outermost of them along each horizontal axis, m; None for the whole model;
    max_offset: horizontal distance of the furthest receiver that counts, m; None for all of them;
    min_offset: of the nearest, m.
    """

    margin: float | None = None
    max_offset: float | None = None
    min_offset: float = 0.0

    def find_windows(self, grid: Grid, survey: Survey) -> Iterator[Window]:
        """The window of each shot of a survey, in order."""
        shared = survey.receivers.ndim == 2
        for shot, source in enumerate(survey.sources):
            receivers = survey.receivers if shared else survey.receivers[shot]
            yield self.find_window(grid, source, receivers)

    def find_window(
        self, grid: Grid, source: NDArray[np.float64], receivers: NDArray[np.float64]
    ) -> Window:
        """The window of one shot; source: (ndim,), receivers: (receiver, ndim), m."""
        if self.margin is None:
            return Window(tuple((0, n) for n in grid.shape))
        heard = self.trace_mask(source, receivers)
        cells = _around(grid, np.vstack([source, receivers[heard]]), self.margin)
        return Window(cells, None if heard.all() else tuple(heard.tolist()))

    def trace_mask(
        self, sources: NDArray[np.float64], receivers: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Which traces (..., receiver) count, of sources (..., ndim), with receivers of each, m."""
        if self.max_offset is None and self.min_offset == 0.0:
            return np.ones(receivers.shape[:-1], dtype=bool)
        offsets, furthest = find_offsets(sources, receivers), self.max_offset
        near_enough = furthest is None or offsets <= furthest * (1.0 + 1e-9)
        return np.asarray((offsets >= self.min_offset * (1.0 - 1e-9)) & near_enough)


def find_offsets(
    sources: NDArray[np.float64], receivers: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Offsets (..., receiver) from sources (..., ndim) to receivers of each, m."""
    return np.asarray(np.linalg.norm(receivers[..., 1:] - sources[..., None, 1:], axis=-1))


def _around(grid: Grid, points: NDArray[np.float64], margin: float) -> tuple[tuple[int, int], ...]:
    """All depths, and as many whole cells as the margin (m) around the points needs."""
    cells = [(0, grid.shape[0])]
    for axis in range(1, grid.ndim):
        place = (points[:, axis] - grid.origin[axis]) / grid.spacing[axis]
        # Never less than a simulation needs, which is more than interpolation reaches.
        reach = max(margin / grid.spacing[axis], FEWEST_POINTS)
        first = int(np.floor(place.min() - reach + ON_GRID))
        last = int(np.ceil(place.max() + reach - ON_GRID))
        cells.append((max(0, first), min(last + 1, grid.shape[axis])))
    return tuple(cells)


def group_shots(windows: list[Window]) -> list[NDArray[np.int64]]:
    """The numbers of the shots that have each window, for every different one."""
    groups: dict[Window, list[int]] = {}
    for shot, window in enumerate(windows):
        groups.setdefault(window, []).append(shot)
    return [np.array(shots) for shots in groups.values()]
