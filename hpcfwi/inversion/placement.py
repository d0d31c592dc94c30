"""Where the sources and receivers are that a config places: geometry alone."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from hpcfwi.config.survey import Points, Receivers
from hpcfwi.errors import InputError
from hpcfwi.model import Grid

# Sources, or receivers, that a config places.
MOST_POINTS = 10**6


def place_points(points: Points, grid: Grid, key: str) -> NDArray[np.float64]:
    """Positions (point, ndim) in m, x running fastest; raises `InputError` naming the key."""
    is_pair = isinstance(points.count, tuple)
    if is_pair != (grid.ndim == 3):
        axes = "one number, along x" if grid.ndim == 2 else "a pair, along y and x"
        found = list(points.count) if isinstance(points.count, tuple) else points.count
        raise InputError(
            key,
            f"found {found}, but the model has {grid.ndim} axes ({', '.join(grid.axes)}); "
            f"expected {axes}",
            f"Write {'count = 24' if grid.ndim == 2 else 'count = [4, 6]'}, with the numbers of "
            "points, and first and last likewise.",
        )
    if prod(np.atleast_1d(points.count).tolist()) > MOST_POINTS:
        raise InputError(
            key,
            f"found {points.count}, expected at most {MOST_POINTS} points in all",
            "Give fewer.",
        )
    places = [np.array([points.depth])]
    for axis, n in enumerate(np.atleast_1d(points.count), start=1):
        first, last = (
            end[axis] if given is None else np.atleast_1d(given)[axis - 1]
            for given, end in ((points.first, grid.origin), (points.last, grid.last))
        )
        places.append(np.linspace(first, last, n) if n > 1 else np.array([(first + last) / 2]))
    return np.stack(np.meshgrid(*places, indexing="ij"), axis=-1).reshape(-1, grid.ndim)


def place_spread(
    receivers: Receivers, sources: NDArray[np.float64], grid: Grid
) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    """Receivers that move with the sources (shot, ndim): positions in m, and which there are.

    Positions (shot, receiver, ndim), along x at the y of each source. Those beyond an end of the
    model are not there: they have the position of the nearest one of their shot that is, and the
    mask (shot, receiver) says so, which is None where all are there.
    Raises `InputError` where a shot has none.
    """
    assert isinstance(receivers.count, int)
    assert receivers.offset is not None
    assert receivers.spacing is not None
    n_shots, count = len(sources), receivers.count
    x = sources[:, -1:] + receivers.offset + receivers.spacing * np.arange(count)
    line = Grid(grid.shape[-1:], grid.spacing[-1:], grid.origin[-1:])
    mask = line.contains(x[..., None])
    deaf = np.flatnonzero(~mask.any(axis=1))
    if deaf.size:
        shot = deaf[0]
        raise InputError(
            "survey.receivers.offset",
            f"{deaf.size} of {n_shots} shots have no receiver within the model, which goes from "
            f"x = {line.origin[0]:g} to {line.last[0]:g} m; the first is shot {shot} at "
            f"x = {sources[shot, -1]:g} m, with receivers from {x[shot, 0]:g} to "
            f"{x[shot, -1]:g} m",
            "Leave these shots out with first and last of survey.sources, or give another offset "
            "or spacing; both are negative for receivers towards smaller x.",
        )
    first, last = mask.argmax(axis=1), count - 1 - mask[:, ::-1].argmax(axis=1)
    there = np.clip(np.arange(count), first[:, None], last[:, None])
    positions = np.repeat(sources[:, None], count, axis=1)
    positions[..., 0] = receivers.depth
    positions[..., -1] = np.take_along_axis(x, there, axis=1)
    return positions, None if mask.all() else mask
