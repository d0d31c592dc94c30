"""The part of the model and of the receivers that a shot is simulated with.

Geometry alone: what is simulated there is `simulator`'s, and sums are `objective`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcfwi.model import Grid
from hpcfwi.survey import Survey
from hpcfwi.wave.numerics import FEWEST_POINTS, ON_GRID


@dataclass(frozen=True, eq=False)
class Window:
    """Where a shot is simulated, and with which receivers.

    cells: first and last + 1 along each axis of the model; receivers: whether each of the
    shot's is there, None where all are.
    """

    cells: tuple[tuple[int, int], ...]
    receivers: NDArray[np.bool_] | None = None

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(*ends) for ends in self.cells)

    @property
    def trace_mask(self) -> slice | NDArray[np.bool_]:
        """What picks its receivers from an array of all of the shot's."""
        return slice(None) if self.receivers is None else self.receivers


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

    def find_windows(self, grid: Grid, survey: Survey) -> list[Window]:
        """The window of each shot of a survey, in order; for as many as are simulated together."""
        ends = self.find_cells(grid, survey).tolist()
        cells = [tuple((first, end) for first, end in shot) for shot in ends]
        if self.margin is None:
            return [Window(shot) for shot in cells]
        heard = np.broadcast_to(self.trace_mask(survey.sources, survey.receivers), survey.shape[:2])
        return [Window(c, None if h.all() else h.copy()) for c, h in zip(cells, heard, strict=True)]

    def find_cells(self, grid: Grid, survey: Survey) -> NDArray[np.int64]:
        """The cells of each shot's window, (shot, axis, 2): first and last + 1 along each axis."""
        cells = np.empty((survey.n_shots, grid.ndim, 2), dtype=np.int64)
        cells[:] = [(0, n) for n in grid.shape]
        if self.margin is None:
            return cells
        first = 0
        for block in survey.blocks():
            part = slice(first, first + block.n_shots)
            heard = self.trace_mask(block.sources, block.receivers)
            for axis in range(1, grid.ndim):
                ends = block.sources[..., axis], block.receivers[..., axis]
                cells[part, axis] = _around(grid, axis, *ends, heard, self.margin)
            first = part.stop
        return cells

    def costs(self, grid: Grid, survey: Survey) -> NDArray[np.float64]:
        """What the shots of a survey take, beside each other: the cells that they have."""
        ends = self.find_cells(grid, survey)
        return np.asarray(np.diff(ends, axis=-1).prod(axis=(1, 2), dtype=np.float64))

    def find_deaf(self, survey: Survey) -> NDArray[np.int64]:
        """The numbers of the shots of which no trace counts."""
        deaf = []
        for block in survey.blocks():
            heard = self.trace_mask(block.sources, block.receivers)
            counts = heard if block.mask is None else heard & block.mask
            deaf.append(np.broadcast_to(~counts.any(axis=-1), block.n_shots))
        return np.flatnonzero(np.concatenate(deaf))

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


def _around(
    grid: Grid,
    axis: int,
    sources: NDArray[np.float64],
    receivers: NDArray[np.float64],
    heard: NDArray[np.bool_],
    margin: float,
) -> NDArray[np.int64]:
    """First cells and last + 1 of shots, (shot, 2): as many whole ones as the margin (m) needs.

    sources: (shot,) or (shot, source), receivers: (..., receiver), along the axis, m.
    """

    def place(points: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray((points - grid.origin[axis]) / grid.spacing[axis])

    there, emitting = place(receivers), place(sources).reshape(len(sources), -1)
    nearest = np.where(heard, there, np.inf).min(axis=-1)
    furthest = np.where(heard, there, -np.inf).max(axis=-1)
    # Never less than a simulation needs, which is more than interpolation reaches.
    reach = max(margin / grid.spacing[axis], FEWEST_POINTS)
    first = np.floor(np.minimum(nearest, emitting.min(axis=1)) - reach + ON_GRID)
    last = np.ceil(np.maximum(furthest, emitting.max(axis=1)) + reach - ON_GRID)
    ends = np.maximum(first, 0.0), np.minimum(last + 1.0, grid.shape[axis])
    return np.stack(ends, axis=1).astype(np.int64)


def group_shots(windows: list[Window]) -> list[NDArray[np.int64]]:
    """The numbers of the shots that have each window, for every different one."""
    groups: dict[object, list[int]] = {}
    for shot, window in enumerate(windows):
        kept = None if window.receivers is None else window.receivers.tobytes()
        groups.setdefault((window.cells, kept), []).append(shot)
    return [np.array(shots) for shots in groups.values()]
