"""The earth on a grid: its parameters, named arrays of them, and what is done to these.

Arrays are in axis order (z, x) or (z, y, x), and so is every position and spacing.
Reading and writing models is in `storage.models`; waves are in `wave`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

AXES = {2: "zx", 3: "zyx"}
Array = TypeVar("Array")
Other = TypeVar("Other")


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
        """Return which of the positions (..., ndim), in m, lie within the grid, shape (...)."""
        slack = 1e-6 * np.asarray(self.spacing)
        inside = (positions >= np.asarray(self.origin) - slack) & (
            positions <= np.asarray(self.last) + slack
        )
        return np.asarray(inside.all(axis=-1))

    def covers(self, other: Grid) -> bool:
        """Return True if another grid reaches less than one cell of this one beyond it."""
        if other.ndim != self.ndim:
            return False
        ends = zip(self.origin, self.last, other.origin, other.last, self.spacing, strict=True)
        return all(a - h < first and last < b + h for a, b, first, last, h in ends)

    def agrees(self, other: Grid) -> bool:
        """Return True if its points are those of another grid, up to rounding."""
        return self.shape == other.shape and np.allclose(
            [*self.spacing, *self.origin], [*other.spacing, *other.origin]
        )

    def cells_of(self, positions: NDArray[np.float64]) -> tuple[NDArray[np.int64], ...]:
        """The indices, one array an axis, of the points nearest to positions (..., ndim), in m."""
        nearest = np.rint((positions - np.asarray(self.origin)) / np.asarray(self.spacing))
        nearest = np.clip(nearest.astype(np.int64), 0, np.asarray(self.shape) - 1)
        return tuple(nearest.reshape(-1, self.ndim).T)


@dataclass(frozen=True)
class Parameter:
    """A parameter that a model has a value of in each cell.

    name: its key in files and in the input; title: its name in words; unit: that of the values;
    lowest, highest: limits of rock, water and air. Figures show values in `figure_unit`, of which
    one is `figure_scale` of the unit; values that are all below `mistaken` are taken to be in it.
    """

    name: str
    title: str
    unit: str
    lowest: float
    highest: float
    figure_unit: str
    figure_scale: float
    mistaken: float


# By name: what a model file, an input and a gradient may hold.
PARAMETERS = {
    parameter.name: parameter
    for parameter in (
        # No rock is as slow as 20 m/s, and none as fast as 20 km/s.
        Parameter("vp", "P velocity", "m/s", 1.0, 1e5, "km/s", 1e3, 20.0),
    )
}


@dataclass(frozen=True)
class Model(Generic[Array]):
    """Named arrays on one grid: of the earth, of a gradient, of anything that has a value a cell.

    arrays: by the names of `PARAMETERS`, all of the grid's shape: NumPy's, or tensors, which are
    what waves and updates are computed with.
    """

    grid: Grid
    arrays: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def map(self, function: Callable[..., Other], *others: Model) -> Model[Other]:
        """Apply a function to each array, and to those of the same name in other models."""
        return Model(
            self.grid,
            {
                name: function(array, *(other[name] for other in others))
                for name, array in self.arrays.items()
            },
        )

    def __add__(self, other: Model) -> Model[Array]:
        return self.map(operator.add, other)

    def __sub__(self, other: Model) -> Model[Array]:
        return self.map(operator.sub, other)

    def __mul__(self, factor: float) -> Model[Array]:
        return self.map(lambda array: array * factor)

    @property
    def any(self) -> Array:
        """One of the arrays, for their common shape, type and device."""
        return next(iter(self.arrays.values()))

    def as_tensors(self, device: torch.device) -> Model[torch.Tensor]:
        """A copy in tensors."""
        import torch

        return self.map(lambda array: torch.tensor(array, device=device))

    def as_arrays(self: Model[torch.Tensor]) -> Model[NDArray[np.float32]]:
        """A model of tensors in NumPy's arrays, which on a CPU share their memory."""
        return self.map(lambda tensor: tensor.cpu().numpy())


def resample(model: Model, spacing: tuple[float, ...]) -> Model:
    """The model on points `spacing` (m) apart, from the same origin and no further than its end.

    As `resample_onto` does it.
    """
    old = model.grid
    if np.allclose(old.spacing, spacing, rtol=1e-9, atol=0.0):
        return model
    shape = tuple(map(int, resampled_shape(old, spacing)))
    return resample_onto(model, Grid(shape, tuple(spacing), old.origin))


def resample_onto(model: Model, grid: Grid) -> Model:
    """The model on the points of another grid; beyond its own, the values of its edge.

    Linear interpolation. Where the new grid is coarser, a Gaussian removes first what it
    cannot carry: its standard deviation brings an original of spacing h to the resolution of a
    box of the new spacing H, sqrt((H^2 - h^2) / 12).
    """
    old = model.grid
    sigma = [
        np.sqrt(max(new**2 - h**2, 0.0) / 12.0) / h
        for h, new in zip(old.spacing, grid.spacing, strict=True)
    ]
    step = [new / h for h, new in zip(old.spacing, grid.spacing, strict=True)]
    first = [(b - a) / h for a, b, h in zip(old.origin, grid.origin, old.spacing, strict=True)]

    def onto_new_grid(array: NDArray[np.float32]) -> NDArray[np.float32]:
        smooth = scipy.ndimage.gaussian_filter(array.astype(np.float64), sigma, mode="nearest")
        # Axis by axis, as a matrix that is diagonal allows: without the coordinates of all points
        new = scipy.ndimage.affine_transform(
            smooth, step, first, output_shape=grid.shape, order=1, mode="nearest"
        )
        return new.astype(np.float32)

    return Model(grid, model.map(onto_new_grid).arrays)


def find_nearest(cells: NDArray[np.bool_], own: Grid, grid: Grid) -> NDArray[np.bool_]:
    """Return a mask on a grid, from the nearest cells of a mask on the grid `own`."""
    if grid == own:
        return cells
    places = [
        np.clip(np.rint((grid.coordinates(axis) - own.origin[axis]) / h).astype(np.int64), 0, n - 1)
        for axis, (h, n) in enumerate(zip(own.spacing, own.shape, strict=True))
    ]
    return cells[np.ix_(*places)]


def resampled_shape(grid: Grid, spacing: tuple[float, ...]) -> tuple[float, ...]:
    """Return the number of points with a new spacing (m) along each axis of a grid's extent.

    Whole numbers, or infinity.
    """
    points = (
        (n - 1) * h / new + 1e-6
        for n, h, new in zip(grid.shape, grid.spacing, spacing, strict=True)
    )
    return tuple(float(np.floor(n)) + 1.0 for n in points)


def fixed_cells(grid: Grid, floor: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The cells that an inversion keeps as they are: those at or above a depth.

    floor: m, of each column of the grid, (x,) or (y, x).
    """
    depths = grid.coordinates(0).reshape(-1, *[1] * (grid.ndim - 1))
    return np.asarray(depths <= floor + 1e-6 * grid.spacing[0])


def smooth(model: Model, length: float, fixed: NDArray[np.bool_], power: float = 1.0) -> Model:
    """The model after a Gaussian of standard deviation `length` (m); `fixed` cells are kept.

    power: of the values, which is what is averaged; of velocities -1 keeps the times of waves.
    """
    sigma = [length / h for h in model.grid.spacing]

    def smooth_free(array: NDArray[np.float32]) -> NDArray[np.float32]:
        averaged = array.astype(np.float64) ** power
        blurred = scipy.ndimage.gaussian_filter(averaged, sigma, mode="nearest")
        return np.where(fixed, array, blurred ** (1.0 / power)).astype(np.float32)

    return model.map(smooth_free)


def rms_difference(
    a: NDArray[np.float32], b: NDArray[np.float32], cells: NDArray[np.bool_]
) -> float:
    """Root mean square of a - b over the chosen cells, in their unit."""
    return float(np.sqrt(np.mean((a[cells].astype(np.float64) - b[cells]) ** 2)))


def squared_difference(
    a: NDArray[np.float32], b: NDArray[np.float32], fixed: NDArray[np.bool_]
) -> float:
    """Sum of (a - b)^2 over all cells but the fixed ones."""
    free = ~fixed
    return float(np.sum((a[free].astype(np.float64) - b[free]) ** 2))
