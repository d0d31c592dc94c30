"""How far a wave has come: an estimate of the box of cells where its field differs from zero.

An engine that leaves the others out takes less time and memory; how much less is estimated here,
the cells themselves are found by the engine (docs/decisions/012-windows.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Ahead of a wave there are tiny numbers: AT_ONCE cells of them in the first step, and two more with
# each, until they are too small for the precision, as they are AHEAD cells before it.
AHEAD = {np.dtype(np.float32): 80, np.dtype(np.float64): 350}
AT_ONCE = 20
# A sum over a record is found from so many of its steps.
ENOUGH = 200


@dataclass(frozen=True, eq=False)
class Front:
    """Boxes around a source: near and far, (step, ndim), from the first to before the last cell."""

    near: NDArray[np.float64]
    far: NDArray[np.float64]

    def count_cells(self, first: ArrayLike, last: ArrayLike) -> NDArray[np.float64]:
        """How many cells each step's box, (step,), shares with one from first to before last."""
        widths = np.minimum(self.far, last) - np.maximum(self.near, first)
        cells: NDArray[np.float64] = np.maximum(widths, 0.0).prod(axis=-1)
        return cells


def follow_wave(
    speeds: NDArray[np.floating],
    spacing: Sequence[float],
    dt: float,
    source: Sequence[float],
    steps: NDArray[np.int64],
) -> Front:
    """Where the wave of a source is after some steps of dt (s).

    speeds: (nz, nx) or (nz, ny, nx), m/s, in the precision of the simulation; the mean of each
    depth counts; spacing: m; source: its cell, (ndim,). Up and down, a wave goes through one depth
    after the other; sideways, it goes to some depth straight and along that, whichever takes it
    furthest.
    """
    speed = speeds.reshape(len(speeds), -1).mean(axis=1, dtype=np.float64)
    depth = int(np.clip(np.rint(source[0]), 0, len(speeds) - 1))
    passing = spacing[0] / speed
    arrival = np.cumsum(passing) - 0.5 * passing
    arrival = np.abs(arrival - arrival[depth])
    time = dt * steps
    sideways = np.maximum(speed * (time[:, None] - arrival), 0.0).max(axis=1)
    ahead = np.minimum(AHEAD[speeds.dtype], AT_ONCE + 2 * steps)

    def cells_passed(arrival: NDArray[np.float64], last: float) -> NDArray[np.float64]:
        beyond = np.maximum(time - arrival[-1], 0.0) / last
        return np.interp(time, arrival, np.arange(len(arrival))) + beyond

    up, down = (
        cells_passed(arrival[depth::-1], passing[0]),
        cells_passed(arrival[depth:], passing[-1]),
    )
    aside = [sideways / h for h in spacing[1:]]
    near = np.subtract(source, np.stack([up, *aside], axis=-1) + ahead[:, None])
    far = np.add(source, np.stack([down, *aside], axis=-1) + ahead[:, None]) + 1.0
    return Front(near, far)


def unite(fronts: Iterable[Front]) -> Front:
    """The boxes around waves that go together."""
    nears, fars = zip(*((front.near, front.far) for front in fronts), strict=True)
    return Front(np.min(nears, axis=0), np.max(fars, axis=0))


def sum_over(steps: range, count: Callable[[NDArray[np.int64]], NDArray[np.float64]]) -> float:
    """The sum of what is counted for each of the steps, from some of them."""
    if len(steps) == 0:
        return 0.0
    some = np.array(steps[:: -(-len(steps) // ENOUGH)])
    return float(count(some).mean()) * len(steps)
