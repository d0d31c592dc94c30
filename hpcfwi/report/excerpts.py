"""Excerpts: what figures show of an array that may be as large as memory.

Made of whole arrays, and all that is kept of large ones. Numbers only, no drawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcfwi.model import Grid
from hpcfwi.report import scales

# Cells of a model up to which whole arrays are kept of an epoch's figure, 16 bytes each
MOST_WHOLE = 2**22
MOST_CELLS = 1500  # drawn along an axis, as figures have no more dots
PROFILES = 5
# Of a volume, in parts of its extent along y and x: the middle, and those of its quarters
QUARTERS = ((0.25, 0.25), (0.25, 0.75), (0.5, 0.5), (0.75, 0.25), (0.75, 0.75))


@dataclass(frozen=True)
class Excerpt:
    """What figures show of an array.

    sections: of at most `MOST_CELLS` along each axis, or means of as many blocks: of a 2-D array
    all of it, of a volume its slices across z, y and x; profiles: (place, z), where `find_places`
    has them; limits: of its colours.
    """

    sections: tuple[NDArray[np.floating], ...]
    profiles: NDArray[np.floating]
    limits: tuple[float, float]

    @classmethod
    def of(
        cls,
        array: NDArray[np.floating],
        cuts: Sequence[int],
        places: Sequence[tuple[int, ...]],
        limits: tuple[float, float],
    ) -> Excerpt:
        """cuts: the indices of a volume's slices, along z, y and x; places: of profiles."""
        slices = [array]
        if array.ndim == 3:
            slices = [np.take(array, [n], axis).squeeze(axis) for axis, n in enumerate(cuts)]
        profiles = np.stack([array.T[place[::-1]] for place in places])
        return cls(tuple(scales.coarsen(s, MOST_CELLS) for s in slices), profiles, limits)

    def less(self, other: Excerpt, percentile: float) -> Excerpt:
        """Return how much it is more than another, with limits that clip some of it."""
        sections = tuple(a - b for a, b in zip(self.sections, other.sections, strict=True))
        limit = scales.clip_limit(np.concatenate([s.ravel() for s in sections]), percentile)
        return Excerpt(sections, self.profiles - other.profiles, (-limit, limit))


def name_sections(grid: Grid) -> tuple[str, ...]:
    """What the sections of an excerpt are called, in order: by the axes that they are across."""
    return ("section",) if grid.ndim == 2 else tuple(grid.axes)


def size_sections(grid: Grid) -> list[tuple[int, ...]]:
    """The shapes of the sections of an excerpt, in order."""
    shape = tuple(scales.coarse_size(n, MOST_CELLS) for n in grid.shape)
    return [shape] if grid.ndim == 2 else [shape[:k] + shape[k + 1 :] for k in range(grid.ndim)]


def find_places(
    grid: Grid, points: Sequence[NDArray[np.float64]] = ()
) -> tuple[tuple[int, ...], ...]:
    """Return indices of the horizontal axes where profiles are taken, each once.

    They are spread evenly over what the points (n, ndim) of a survey extend over, in m, or over the
    grid where none is in it. In 2-D they are as far from its ends as half of their distance.
    """
    inside = np.concatenate([np.zeros((0, grid.ndim)), *(p[grid.contains(p)] for p in points)])
    extent = inside if len(inside) else np.array([grid.origin, grid.last])
    low, high = extent.min(axis=0)[1:], extent.max(axis=0)[1:]
    along = [((k + 0.5) / PROFILES,) for k in range(PROFILES)]
    parts: Sequence[tuple[float, ...]] = along if grid.ndim == 2 else QUARTERS
    at = low + np.array(parts) * (high - low)
    indices = np.rint((at - grid.origin[1:]) / grid.spacing[1:]).astype(np.int64)
    return tuple(dict.fromkeys(map(tuple, indices.tolist())))
