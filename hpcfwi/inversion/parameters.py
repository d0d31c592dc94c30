"""The parameters of a model that an inversion may change, their limits, and the fixed cells.

Cells whose values are known in advance are kept. `storage.models` reads the files of surfaces,
masks and weights, and `model.PARAMETERS` has the possible values of a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.config.inversion import InversionSection
from hpcfwi.errors import InputError, StepFailure
from hpcfwi.model import PARAMETERS, Grid, Model, find_nearest, fixed_cells

# Smallest extent of positions, as a share of the model's longest side. Positions in km instead of m
# have a share of at most a thousandth.
SMALLEST_SPREAD = 1.0 / 500.0


@dataclass(frozen=True)
class Known:
    """Prior knowledge of cells: fixed cells and expected values.

    start: the initial model before it is smoothed or made linear. The cells above a velocity are
    found in this model, because smoothing blurs the sea floor. surfaces: depths (m) in all columns
    of that model; priors: models with which regularizers compare; masks: fixed cells;
    weights: of cells in a regularizer; each by the names of their files.
    """

    start: Model
    surfaces: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    priors: Mapping[str, Model] = field(default_factory=dict)
    masks: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    weights: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def floor(self, section: InversionSection, grid: Grid) -> NDArray[np.float64]:
        """Return the depth (m) down to which the columns (x,) or (y, x) of a grid are kept.

        In a column in which all cells may change, it is above the first cell. A mask has no such
        depth.
        """
        fixed = section.fixed
        if fixed is None:
            return level_floor(section, grid)
        if fixed.file is not None:
            return _on_columns(self.surfaces[fixed.file], self.start.grid, grid)
        assert fixed.above_velocity is not None
        return _on_columns(find_floor(self.start, fixed.above_velocity), self.start.grid, grid)

    def cells(self, section: InversionSection, grid: Grid) -> NDArray[np.bool_]:
        """Return the cells of a grid that are kept."""
        file = None if section.fixed is None else section.fixed.file
        if file is not None and file in self.masks:
            return find_nearest(self.masks[file], self.start.grid, grid)
        return fixed_cells(grid, self.floor(section, grid))


def level_floor(section: InversionSection, grid: Grid) -> NDArray[np.float64]:
    """Return the floor of `fixed_above`."""
    nothing = grid.origin[0] - grid.spacing[0]
    above = section.fixed_above
    return np.full(grid.shape[1:], nothing if above is None else above)


def find_floor(model: Model, velocity: float) -> NDArray[np.float64]:
    """Return the depth (m) of the last cell above the first faster one, in each column.

    If no cell is faster, it is that of the column's last cell.
    """
    fast = model.p_velocity > velocity
    first = np.where(fast.any(axis=0), fast.argmax(axis=0), len(fast))
    return np.asarray(model.grid.origin[0] + (first - 1) * model.grid.spacing[0])


def lay_surface(rows: NDArray[np.float64], grid: Grid, where: str) -> NDArray[np.float64]:
    """Interpolate depths (m) of a surface, from its rows (row, ndim) to the columns of a grid.

    Beyond the rows, the depth is that of the nearest row. Raises `InputError` with the file (where)
    if the rows are in another unit or far from the model, or span no area of a 3-D model.
    """
    places, depths = rows[:, :-1], rows[:, -1]
    _check_places(places, grid, where)
    if grid.ndim == 2:
        order = places[:, 0].argsort()
        return np.interp(grid.coordinates(1), places[order, 0], depths[order])
    columns = np.meshgrid(grid.coordinates(1), grid.coordinates(2), indexing="ij")
    nearest = scipy.interpolate.NearestNDInterpolator(places, depths)(*columns)
    if len(rows) == 1:
        return np.asarray(nearest)
    try:
        within = scipy.interpolate.LinearNDInterpolator(places, depths)(*columns)
    except scipy.spatial.QhullError as error:
        raise InputError(
            where,
            f"its {len(rows)} positions lie on one line, expected some off this line for a model "
            "with three axes",
            "Give at least two lines of positions, or a single row for a level surface.",
        ) from error
    return np.asarray(np.where(np.isnan(within), nearest, within))


def _check_places(places: NDArray[np.float64], grid: Grid, where: str) -> None:
    lowest, highest = places.min(axis=0), places.max(axis=0)
    origin, last = np.array(grid.origin[1:]), np.array(grid.last[1:])
    extent = float((last - origin).max())
    spread = float((highest - lowest).max())
    if 0.0 < spread < SMALLEST_SPREAD * extent:
        raise InputError(
            where,
            f"its positions lie within {spread:.3g} m, in a model of {extent:g} m; expected m",
            "They seem to be in km: multiply all columns by 1000.",
        )
    if (highest < origin).any() or (lowest > last).any():
        found, expected = (
            ", ".join(
                f"{name} = {a:g} to {b:g}" for name, a, b in zip(grid.axes[1:], *ends, strict=True)
            )
            for ends in ((lowest, highest), (origin, last))
        )
        raise InputError(
            where,
            f"its positions go from {found} m, outside the model, which goes from {expected} m",
            "Give positions in the model's coordinates.",
        )


def _on_columns(depths: NDArray[np.float64], own: Grid, grid: Grid) -> NDArray[np.float64]:
    """Interpolate depths linearly from the columns of their grid to those of another one."""
    if grid == own:
        return depths
    places = [
        (grid.coordinates(axis) - own.origin[axis]) / own.spacing[axis]
        for axis in range(1, own.ndim)
    ]
    at = np.meshgrid(*places, indexing="ij")
    return np.asarray(scipy.ndimage.map_coordinates(depths, at, order=1, mode="nearest"))


@dataclass(frozen=True)
class Limits:
    """The limits within which an inversion may change a model.

    initial: the starting model, of tensors; fixed: mask of the cells that keep its values, by
    parameter; bounds: lowest and highest value of parameters with bounds; linear: True if waves
    are simulated to first order in the model, so that any finite value is possible; limit: a
    function of the arrays within these bounds that returns those which the equation limits further.
    """

    initial: Model
    fixed: Mapping[str, Tensor]
    bounds: Mapping[str, tuple[float, float]]
    linear: bool = False
    limit: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = lambda _: {}

    def free(self, gradient: Model) -> Model:
        """Return a gradient that is zero in the fixed cells."""
        free = {n: torch.where(self.fixed[n], 0.0, array) for n, array in gradient.arrays.items()}
        return Model(gradient.grid, free)

    def within(self, model: Model, direction: Model) -> Model:
        """Return a direction that is zero in cells where it would leave the limits at once."""
        within = {
            name: torch.where(self._is_stuck(name, model[name], array), 0.0, array)
            for name, array in direction.arrays.items()
        }
        return Model(model.grid, within)

    def _is_stuck(self, name: str, values: Tensor, direction: Tensor) -> Tensor:
        if name not in self.bounds:
            return self.fixed[name]
        lowest, highest = self.bounds[name]
        low, high = values <= lowest, values >= highest
        return self.fixed[name] | (low & (direction < 0.0)) | (high & (direction > 0.0))

    def apply(self, model: Model) -> Model:
        """Return the nearest model within the limits.

        Raises `StepFailure` if a value is not finite or impossible.
        """
        kept = {name: self._apply(name, array) for name, array in model.arrays.items()}
        if not self.linear:
            kept |= self.limit(kept)
        return Model(model.grid, kept)

    def check(self, model: Model) -> None:
        """Raise `ValueError` if a stored model has impossible values."""
        for name, array in model.arrays.items():
            parameter = PARAMETERS[name]
            lowest, highest = float(array.min()), float(array.max())
            if not self.linear and not parameter.lowest <= lowest <= highest <= parameter.highest:
                found = f"from {lowest:g} to {highest:g} {parameter.unit}"
                raise ValueError(f"{name} has impossible values {found}")

    def _apply(self, name: str, array: Tensor) -> Tensor:
        if name in self.bounds:
            array = array.clamp(*self.bounds[name])
        array = torch.where(self.fixed[name], self.initial[name], array)
        parameter = PARAMETERS[name]
        if not self.linear:
            array = array.clamp(max=parameter.highest)
        positive, lowest = parameter.positive, parameter.lowest
        possible = self.linear or (array.min() > 0.0 if positive else array.min() >= lowest)
        if not (torch.isfinite(array).all() and possible):
            limit = "not above 0" if positive else f"below {lowest:g}"
            low = "" if self.linear else f" or {limit} {parameter.unit}".rstrip()
            raise StepFailure(
                f"the last step led to values of {name} ({parameter.title}) that are not finite"
                f"{low}. Use a smaller inversion.optimizer.lr, or give inversion.bounds."
            )
        return array
