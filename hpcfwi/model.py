"""Models of the earth on a grid: parameters, named arrays, and operations on them.

The axis order of arrays, positions and spacings is (z, x) or (z, y, x).
Reading and writing models is in `storage.models`; waves are in `wave`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
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

    def __str__(self) -> str:
        """Return the grid for messages: "3 x 4 points, 20 x 20 m apart, from (0, 0) to (40, 60) m".

        The numbers are in the order of the axes.
        """
        shape, spacing = (
            " x ".join(map(str, self.shape)),
            " x ".join(f"{h:g}" for h in self.spacing),
        )
        ends = (f"({', '.join(f'{v:g}' for v in end)})" for end in (self.origin, self.last))
        return f"{shape} points, {spacing} m apart, from {' to '.join(ends)} m"

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

    @property
    def extent(self) -> float:
        """The length of the longest side, with all of its cells, m."""
        return max(n * h for n, h in zip(self.shape, self.spacing, strict=True))

    def coordinates(self, axis: int) -> NDArray[np.float64]:
        """Return the positions of the points along an axis, m, (shape[axis],)."""
        return self.origin[axis] + self.spacing[axis] * np.arange(
            self.shape[axis], dtype=np.float64
        )

    def contains(self, positions: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return True for each of the positions (..., ndim), in m, that lies within the grid."""
        slack = 1e-6 * np.asarray(self.spacing)
        inside = (positions >= np.asarray(self.origin) - slack) & (
            positions <= np.asarray(self.last) + slack
        )
        return np.asarray(inside.all(axis=-1))

    def covers(self, other: Grid) -> bool:
        """Return True if another grid extends beyond this one by less than one cell of this one."""
        if other.ndim != self.ndim:
            return False
        ends = zip(self.origin, self.last, other.origin, other.last, self.spacing, strict=True)
        return all(a - h < first and last < b + h for a, b, first, last, h in ends)

    def agrees(self, other: Grid) -> bool:
        """Return True if the points of both grids are the same, up to rounding."""
        return self.shape == other.shape and np.allclose(
            [*self.spacing, *self.origin], [*other.spacing, *other.origin]
        )

    def cells_of(self, positions: NDArray[np.float64]) -> tuple[NDArray[np.int64], ...]:
        """Return the indices along each axis of the points nearest to positions (..., ndim), m."""
        nearest = np.rint((positions - np.asarray(self.origin)) / np.asarray(self.spacing))
        nearest = np.clip(nearest.astype(np.int64), 0, np.asarray(self.shape) - 1)
        return tuple(nearest.reshape(-1, self.ndim).T)


@dataclass(frozen=True)
class Parameter:
    """A parameter of the medium, which has a value in each cell of a model.

    name: its key in files and in the input; title: its name in words; unit: the unit of the values;
    lowest, highest: limits for rock, water and air. Figures show values in `figure_unit`, which is
    `figure_scale` times the unit. Values that are all below `mistaken` are probably in figure_unit.
    positive: True if values must be above 0, otherwise they may be `lowest`; scale: size of a
    typical change, in the unit, of which only the ratios between parameters are used.
    """

    name: str
    title: str
    unit: str
    lowest: float
    highest: float
    figure_unit: str
    figure_scale: float
    mistaken: float
    positive: bool
    scale: float

    @property
    def label(self) -> str:
        """The title with the unit of figures, if it has one."""
        return f"{self.title} ({self.figure_unit})" if self.figure_unit else self.title


# The parameters of model files, inputs and gradients, by name.
PARAMETERS = {
    parameter.name: parameter
    for parameter in (
        # No rock is as slow as 20 m/s, and none as fast as 20 km/s.
        Parameter("vp", "P velocity", "m/s", 1.0, 1e5, "km/s", 1e3, 20.0, True, 100.0),
        # 0 in water and air.
        Parameter("vs", "S velocity", "m/s", 0.0, 1e5, "km/s", 1e3, 20.0, False, 100.0),
        Parameter("rho", "density", "kg/m3", 1.0, 1e5, "g/cm3", 1e3, 20.0, True, 100.0),
        # Thomsen's parameters, 1986. Waves with values of -0.5 or less do not propagate.
        Parameter("epsilon", "Thomsen's epsilon", "", -0.49, 5.0, "", 1.0, -inf, False, 0.05),
        Parameter("delta", "Thomsen's delta", "", -0.49, 5.0, "", 1.0, -inf, False, 0.05),
        # Angle of the axis of symmetry from the vertical towards x.
        Parameter("theta", "tilt", "degrees", -180.0, 180.0, "degrees", 1.0, -inf, False, 10.0),
        # Below 5, standard linear solids do not have the asked quality factor.
        Parameter("qp", "quality factor of P waves", "", 5.0, 1e5, "", 1.0, -inf, False, 20.0),
        Parameter("qs", "quality factor of S waves", "", 5.0, 1e5, "", 1.0, -inf, False, 20.0),
    )
}


@dataclass(frozen=True)
class Model(Generic[Array]):
    """Named arrays on one grid: a model of the earth, a gradient, or other values of cells.

    arrays: by the names of `PARAMETERS`, all in the shape of the grid: NumPy arrays, or tensors for
    waves and updates.
    """

    grid: Grid
    arrays: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    @property
    def p_velocity(self) -> Array:
        """The velocity of P waves, by which cells above the sea floor and reflectors are found."""
        return self.arrays["vp"]

    def with_p_velocity(self, array: Array) -> Model[Array]:
        """Return the model with another velocity of P waves."""
        return Model(self.grid, {**self.arrays, "vp": array})

    def select(self, names: Iterable[str]) -> Model[Array]:
        """Return the model with some of its arrays only; the same object if these are all."""
        names = list(names)
        return self if names == [*self.arrays] else Model(self.grid, {n: self[n] for n in names})

    def map(self, function: Callable[..., Other], *others: Model) -> Model[Other]:
        """Apply a function to each array and to those of the same name in other models."""
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
        """Return a copy in tensors."""
        import torch

        return self.map(lambda array: torch.tensor(array, device=device))

    def as_arrays(self: Model[torch.Tensor]) -> Model[NDArray[np.float32]]:
        """Return a model of tensors as NumPy arrays, which share memory with tensors on a CPU."""
        return self.map(lambda tensor: tensor.cpu().numpy())


def resample(model: Model, spacing: tuple[float, ...]) -> Model:
    """Return the model with another spacing (m), from the same origin and within its extent.

    See `resample_onto`.
    """
    old = model.grid
    if np.allclose(old.spacing, spacing, rtol=1e-9, atol=0.0):
        return model
    shape = tuple(map(int, resampled_shape(old, spacing)))
    return resample_onto(model, Grid(shape, tuple(spacing), old.origin))


def resample_onto(model: Model, grid: Grid) -> Model:
    """Return the model on another grid; edge values are repeated outside of the model's grid.

    The interpolation is linear. If the new spacing H is coarser than the old spacing h, a Gaussian
    filter is applied first. Its standard deviation is sqrt((H^2 - h^2) / 12), because H^2 / 12 and
    h^2 / 12 are the variances of boxes of these widths. Cells with vs = 0 are fluid and left out of
    the averages of vs; a new cell is fluid if the nearest old one is.
    """
    old = model.grid
    sigma = [
        np.sqrt(max(new**2 - h**2, 0.0) / 12.0) / h
        for h, new in zip(old.spacing, grid.spacing, strict=True)
    ]
    step = [new / h for h, new in zip(old.spacing, grid.spacing, strict=True)]
    first = [(b - a) / h for a, b, h in zip(old.origin, grid.origin, old.spacing, strict=True)]

    def onto_new_grid(array: NDArray[np.float64]) -> NDArray[np.float64]:
        smooth = scipy.ndimage.gaussian_filter(array, sigma, mode="nearest")
        # This works axis by axis and does not need the coordinates of all points
        return scipy.ndimage.affine_transform(
            smooth, step, first, output_shape=grid.shape, order=1, mode="nearest"
        )

    found = {name: onto_new_grid(a.astype(np.float64)) for name, a in model.arrays.items()}
    if "vs" in found and not (solid := model["vs"] > 0.0).all():
        rock = find_nearest(solid, old, grid)
        averaged = _average_rock(onto_new_grid, model["vs"].astype(np.float64), solid, rock)
        found["vs"] = np.where(rock, averaged, 0.0)
    return Model(grid, {name: array.astype(np.float32) for name, array in found.items()})


def find_nearest(cells: NDArray[np.bool_], own: Grid, grid: Grid) -> NDArray[np.bool_]:
    """Return the mask `cells` of the grid `own` on another grid, from the nearest cells."""
    if grid == own:
        return cells
    places = [
        np.clip(np.rint((grid.coordinates(axis) - own.origin[axis]) / h).astype(np.int64), 0, n - 1)
        for axis, (h, n) in enumerate(zip(own.spacing, own.shape, strict=True))
    ]
    return cells[np.ix_(*places)]


def resampled_shape(grid: Grid, spacing: tuple[float, ...]) -> tuple[float, ...]:
    """Return the number of points along each axis of a grid after resampling.

    spacing: the new one, m. The numbers are whole, but may be infinite, hence floats.
    """
    points = (
        (n - 1) * h / new + 1e-6
        for n, h, new in zip(grid.shape, grid.spacing, spacing, strict=True)
    )
    return tuple(float(np.floor(n)) + 1.0 for n in points)


def fixed_cells(grid: Grid, floor: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the mask of the cells at or above a depth, which an inversion does not change.

    floor: the depth (m) in each column of the grid, (x,) or (y, x).
    """
    depths = grid.coordinates(0).reshape(-1, *[1] * (grid.ndim - 1))
    return np.asarray(depths <= floor + 1e-6 * grid.spacing[0])


def smooth(model: Model, length: float, fixed: NDArray[np.bool_], power: float = 1.0) -> Model:
    """Smooth the model by a Gaussian of standard deviation `length` (m); `fixed` cells are kept.

    power: exponent of the values that are averaged; for velocities -1 preserves travel times.
    Parameters other than velocities that need not be positive are averaged themselves. Cells with
    vs = 0 are fluid: they keep this value, and are left out of the averages of vs.
    """
    sigma = [length / h for h in model.grid.spacing]

    def blur(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return scipy.ndimage.gaussian_filter(values, sigma, mode="nearest")

    def smooth_free(name: str, array: NDArray[np.float32]) -> NDArray[np.float32]:
        if name != "vs":
            exponent = power if PARAMETERS[name].positive else 1.0
            blurred = blur(array.astype(np.float64) ** exponent)
            return np.where(fixed, array, blurred ** (1.0 / exponent)).astype(np.float32)
        solid = array > 0.0
        values = np.where(solid, array, 1.0).astype(np.float64) ** power
        blurred = _average_rock(blur, values, solid, solid)
        return np.where(fixed | ~solid, array, blurred ** (1.0 / power)).astype(np.float32)

    smoothed = {name: smooth_free(name, array) for name, array in model.arrays.items()}
    return Model(model.grid, smoothed)


def _average_rock(
    average: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    values: NDArray[np.float64],
    solid: NDArray[np.bool_],
    rock: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return averages over solid cells, in the cells `rock` of the result, and 1 elsewhere."""
    share = np.where(rock, average(solid.astype(np.float64)), 1.0)
    return np.where(rock, average(solid * values), 1.0) / share


def rms_difference(
    a: NDArray[np.float32], b: NDArray[np.float32], cells: NDArray[np.bool_]
) -> float:
    """Return the root mean square of a - b over the chosen cells, in their unit."""
    return float(np.sqrt(np.mean((a[cells].astype(np.float64) - b[cells]) ** 2)))


def squared_difference(
    a: NDArray[np.float32], b: NDArray[np.float32], fixed: NDArray[np.bool_]
) -> float:
    """Return the sum of (a - b)^2 over all cells except the fixed ones."""
    free = ~fixed
    return float(np.sum((a[free].astype(np.float64) - b[free]) ** 2))
