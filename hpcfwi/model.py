"""The earth on a grid: named arrays, their spacing and origin, and what is done to them.

Arrays are in axis order (z, x) or (z, y, x), and so is every position and spacing.
Reading and writing models is in `storage.models`; waves are in `wave`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

AXES = {2: "zx", 3: "zyx"}
# No wave in rock, water or air is slower or faster, m/s
SLOWEST, FASTEST = 1.0, 1e5


@dataclass(frozen=True)
class Grid:
    """Points at `origin + index * spacing`.

    shape: points along each axis; spacing: m, each axis; origin: m, of the first point.
    """

    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    origin: tuple[float, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def axes(self) -> str:
        """The axes' names in order, "zx" or "zyx"."""
        return AXES[self.ndim]

    @property
    def last(self) -> tuple[float, ...]:
        """Position of the last point along each axis, in m."""
        return tuple(
            o + (n - 1) * h for o, n, h in zip(self.origin, self.shape, self.spacing, strict=True)
        )

    def coordinates(self, axis: int) -> NDArray[np.float64]:
        """Positions of the points along `axis`, in m, shape (shape[axis],)."""
        return self.origin[axis] + self.spacing[axis] * np.arange(
            self.shape[axis], dtype=np.float64
        )

    def contains(self, positions: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which of the positions (..., ndim), in m, lie within the grid, shape (...)."""
        slack = 1e-6 * np.asarray(self.spacing)
        inside = (positions >= np.asarray(self.origin) - slack) & (
            positions <= np.asarray(self.last) + slack
        )
        return np.asarray(inside.all(axis=-1))


@dataclass(frozen=True)
class Model:
    """Named float32 arrays on one grid; `vp` (m/s) is the P-wave velocity."""

    grid: Grid
    arrays: Mapping[str, NDArray[np.float32]]

    @property
    def vp(self) -> NDArray[np.float32]:
        return self.arrays["vp"]

    def with_vp(self, vp: NDArray[np.float32]) -> Model:
        """The same model with another velocity."""
        return replace(self, arrays={**self.arrays, "vp": vp})


def resample(model: Model, spacing: tuple[float, ...]) -> Model:
    """The model on points `spacing` (m) apart, from the same origin and no further than its end.

    Linear interpolation. Where the new grid is coarser, a Gaussian removes first what it
    cannot carry: its standard deviation brings an original of spacing h to the resolution of a
    box of the new spacing H, sqrt((H^2 - h^2) / 12).
    """
    old = model.grid
    if np.allclose(old.spacing, spacing, rtol=1e-9, atol=0.0):
        return model
    shape = tuple(map(int, resampled_shape(old, spacing)))
    sigma = [
        np.sqrt(max(new**2 - h**2, 0.0) / 12.0) / h
        for h, new in zip(old.spacing, spacing, strict=True)
    ]
    step = [new / h for h, new in zip(old.spacing, spacing, strict=True)]

    def onto_new_grid(array: NDArray[np.float32]) -> NDArray[np.float32]:
        smooth = ndimage.gaussian_filter(array.astype(np.float64), sigma, mode="nearest")
        # Axis by axis, as a matrix that is diagonal allows: without the coordinates of all points
        new = ndimage.affine_transform(smooth, step, output_shape=shape, order=1, mode="nearest")
        return new.astype(np.float32)

    arrays = {name: onto_new_grid(array) for name, array in model.arrays.items()}
    return Model(Grid(shape, tuple(spacing), old.origin), arrays)


def resampled_shape(grid: Grid, spacing: tuple[float, ...]) -> tuple[float, ...]:
    """How many points `spacing` (m) apart the extent of a grid holds along each axis.

    Whole numbers, or infinity.
    """
    points = (
        (n - 1) * h / new + 1e-6
        for n, h, new in zip(grid.shape, grid.spacing, spacing, strict=True)
    )
    return tuple(float(np.floor(n)) + 1.0 for n in points)


def fixed_cells(grid: Grid, above: float | None) -> NDArray[np.bool_]:
    """The cells that an inversion keeps as they are: those at or above the depth `above` (m)."""
    fixed = np.zeros(grid.shape, dtype=bool)
    if above is not None:
        fixed[grid.coordinates(0) <= above + 1e-6 * grid.spacing[0]] = True
    return fixed


def smooth(model: Model, length: float, fixed: NDArray[np.bool_]) -> Model:
    """The model after a Gaussian of standard deviation `length` (m); `fixed` cells are kept."""
    sigma = [length / h for h in model.grid.spacing]
    blurred = ndimage.gaussian_filter(model.vp.astype(np.float64), sigma, mode="nearest")
    return model.with_vp(np.where(fixed, model.vp, blurred).astype(np.float32))


def rms_difference(
    a: NDArray[np.float32], b: NDArray[np.float32], cells: NDArray[np.bool_]
) -> float:
    """Root mean square of a - b over the chosen cells, in their unit."""
    return float(np.sqrt(np.mean((a[cells].astype(np.float64) - b[cells]) ** 2)))
