"""The parameters of a model that an inversion may change: fixed cells, limits and unknowns.

Cells whose values are known in advance are kept. `storage.models` reads the files of surfaces,
masks and weights, and `model.PARAMETERS` has the possible values of a parameter.

A model, its gradient, its limits and its files have the parameters of the equation, such as
velocities and density. A parametrization is a change of variables: an optimizer may update unknowns
in place of the parameters, which are functions of them in each cell, and have the names of the
parameters whose place they take. Tied parameters are functions of the P velocity and have no
unknown. `registry.PARAMETRIZATIONS` names the parametrizations, and `wrappers.OptimizerOfUnknowns`
uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import log2, sqrt

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import forward_ad

from hpcfwi.config.inversion import InversionSection
from hpcfwi.errors import InputError, StepFailure
from hpcfwi.model import PARAMETERS, Grid, Model, find_nearest, fixed_cells
from hpcfwi.operators.stack import pull_back
from hpcfwi.operators.vectors import dot
from hpcfwi.wave.numerics import one_thread

# Smallest extent of positions, as a share of the model's longest side. Positions in km instead of m
# have a share of at most a thousandth.
SMALLEST_SPREAD = 1.0 / 500.0


@dataclass(frozen=True)
class PriorKnowledge:
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


Arrays = Mapping[str, Tensor]

# Powers of the P velocity by relation; Gardner's is that of Gardner, Gardner and Gregory (1974).
POWERS = {"gardner": 0.25, "ratio": 1.0}


@dataclass(frozen=True)
class Medium:
    """The parameters that a change of variables takes as given.

    initial: all arrays of the initial model, of which those that do not change are used; powers: of
    the P velocity in tied parameters, by name, where the initial values fix the factors.
    """

    initial: Arrays
    powers: Mapping[str, float]

    def p_velocity(self, product: Tensor, power: float, known: Arrays) -> Tensor:
        """Return the P velocity, given the density times a power of it.

        known: the unknowns, among which the density may be.
        """
        start = self.initial
        if "rho" not in self.powers:
            return _power(product / known.get("rho", start["rho"]), 1.0 / power)
        before = start["rho"] * start["vp"] ** power
        return start["vp"] * _power(product / before, 1.0 / (power + self.powers["rho"]))

    def tie(self, arrays: Arrays) -> dict[str, Tensor]:
        """Return the arrays with the tied ones, which follow the P velocity."""
        start, found = self.initial, dict(arrays)
        for name, power in self.powers.items():
            # Limits have not been applied to the P velocity of a trial model yet
            found[name] = start[name] * (found["vp"] / start["vp"]).abs() ** power
        return found

    def density(self, arrays: Arrays) -> Tensor:
        """Return the density of arrays that may have one."""
        return arrays.get("rho", self.initial["rho"])


@dataclass(frozen=True)
class Parametrization:
    """A change of variables, cell by cell.

    unknowns: a function of the parameters, among them tied ones, that returns an unknown for each
    that is not tied; parameters: its inverse, which need not return tied ones; needs: names of
    parameters that the equation must have; together: names of parameters that depend on several
    unknowns, of which all that the equation has must be inverted.
    """

    unknowns: Callable[[Arrays, Medium], Arrays]
    parameters: Callable[[Arrays, Medium], Arrays]
    needs: tuple[str, ...] = ()
    together: tuple[str, ...] = ()


def _power(values: Tensor, power: float) -> Tensor:
    """Return a power of the sizes of values, with their sign, which limits then refuse or clamp.

    The derivative is 0 where a value is 0, as that of the shear modulus in a fluid.
    """
    present = values != 0.0
    return torch.where(
        present, torch.sign(values) * torch.where(present, values.abs(), 1.0) ** power, 0.0
    )


def _find_impedances(arrays: Arrays, medium: Medium) -> Arrays:
    rho = medium.density(arrays)
    return {n: a * rho if n in ("vp", "vs") else a for n, a in arrays.items()}


def _from_impedances(unknowns: Arrays, medium: Medium) -> Arrays:
    found = dict(unknowns)
    if "vp" in unknowns:
        found["vp"] = medium.p_velocity(unknowns["vp"], 1.0, unknowns)
    if "vs" in unknowns:
        found["vs"] = unknowns["vs"] / medium.density(medium.tie(found))
    return found


def _find_moduli(arrays: Arrays, medium: Medium) -> Arrays:
    rho, found = medium.density(arrays), dict(arrays)
    found["vp"] = rho * arrays["vp"] ** 2
    if "vs" in arrays:
        found["vs"] = rho * arrays["vs"] ** 2
        found["vp"] = found["vp"] - 2.0 * found["vs"]
    return found


def _from_moduli(unknowns: Arrays, medium: Medium) -> Arrays:
    found = dict(unknowns)
    shear = unknowns.get("vs", torch.zeros_like(unknowns["vp"]))
    found["vp"] = medium.p_velocity(unknowns["vp"] + 2.0 * shear, 2.0, unknowns)
    if "vs" in unknowns:
        found["vs"] = _power(shear / medium.density(medium.tie(found)), 0.5)
    return found


# Parameters that may be negative, which have no logarithm.
SIGNED = tuple(name for name, parameter in PARAMETERS.items() if parameter.lowest < 0.0)


def _find_logarithms(arrays: Arrays, medium: Medium) -> Arrays:
    """Return the logarithms of values relative to initial ones, 0 in fluids without S waves."""
    found = dict(arrays)
    for name in arrays.keys() - SIGNED:
        start = medium.initial[name]
        solid = start > 0.0
        ratio = torch.where(solid, arrays[name], 1.0) / torch.where(solid, start, 1.0)
        found[name] = torch.log(ratio)
    return found


def _from_logarithms(unknowns: Arrays, medium: Medium) -> Arrays:
    start = medium.initial
    return {n: a if n in SIGNED else start[n] * torch.exp(a) for n, a in unknowns.items()}


VELOCITY = Parametrization(lambda arrays, _: arrays, lambda unknowns, _: unknowns)
IMPEDANCE = Parametrization(_find_impedances, _from_impedances, needs=("rho",))
LAME = Parametrization(_find_moduli, _from_moduli, needs=("rho",), together=("vp", "vs"))
LOGARITHM = Parametrization(_find_logarithms, _from_logarithms)


@dataclass(frozen=True)
class Unknowns:
    """The unknowns of an inversion.

    limits: of the parameters that change, with their initial values; sizes: typical changes of the
    parameters with an unknown, relative to that of the first one. Unknowns are divided by powers of
    two, so that a unit step of the first one changes its parameter by about one unit.
    """

    parametrization: Parametrization
    limits: Limits
    medium: Medium
    sizes: Mapping[str, float]

    def of(self, model: Model) -> Model:
        """Return the unknowns of a model."""
        return _apply(self._find, model)

    def make(self, unknowns: Model) -> Model:
        """Return the model of these unknowns, within the limits."""
        return self.keep(_apply(self._solve_untied, unknowns))

    def keep(self, model: Model) -> Model:
        """Return the nearest model within the limits, with ties to its limited P velocity."""
        untied = Model(model.grid, {name: model[name] for name in self.sizes})
        found = self.limits.apply(untied)
        if not self.medium.powers:
            return found
        return self.limits.apply(_apply(self.medium.tie, found))

    def push(self, unknowns: Model, direction: Model) -> Model:
        """Return the first-order change of the model with the unknowns in a direction."""
        return _differentiate(self._solve, unknowns, direction)

    def pull_back(self, unknowns: Model, _model: Model, gradient: Model) -> Model:
        """Return the gradient with respect to the unknowns, given that of the model."""
        return _transpose(self._solve, unknowns, gradient)

    def push_to_unknowns(self, model: Model, direction: Model) -> Model:
        """Return the first-order change of the unknowns with the model in a direction."""
        return _differentiate(self._find, model, direction)

    def pull_back_to_model(self, model: Model, gradient: Model) -> Model:
        """Return a gradient with respect to the model, given that of its unknowns."""
        return _transpose(self._find, model, gradient)

    @cached_property
    def _scales(self) -> dict[str, float]:
        initial, scales = self.limits.initial, {}
        for name, size in self.sizes.items():
            free = (~self.limits.fixed[name]).double()
            along = Model(initial.grid, {n: free * (n == name) for n in initial.arrays})
            found = _differentiate(self._find_unscaled, initial, along)
            rate = Model(initial.grid, {name: found[name]})
            rms = sqrt(dot(rate, rate) / max(float(free.sum()), 1.0))
            scales[name] = 2.0 ** round(log2(size * (rms or 1.0)))
        return scales

    def _find_unscaled(self, arrays: Arrays) -> Arrays:
        # Bounds of a tied parameter change the model, but not the unknowns
        return self.parametrization.unknowns(self.medium.tie(arrays), self.medium)

    def _find(self, arrays: Arrays) -> Arrays:
        found = self._find_unscaled(arrays)
        return {name: found[name] / scale for name, scale in self._scales.items()}

    def _solve_untied(self, unknowns: Arrays) -> Arrays:
        scaled = {name: unknowns[name] * scale for name, scale in self._scales.items()}
        return self.parametrization.parameters(scaled, self.medium)

    def _solve(self, unknowns: Arrays) -> Arrays:
        return self.medium.tie(self._solve_untied(unknowns))


def _apply(function: Callable[[Arrays], Arrays], model: Model) -> Model:
    """Return a model of a function of arrays, which is computed in double precision.

    Powers and logarithms of the same numbers may differ in the last bit at the ends of threads'
    parts, so that a single thread computes them.
    """
    with one_thread():
        found = function(model.map(Tensor.double).arrays)
        return Model(model.grid, {name: a.to(model.any.dtype) for name, a in found.items()})


def _differentiate(function: Callable[[Arrays], Arrays], at: Model, direction: Model) -> Model:
    """Return the derivative of a function of arrays in a direction, in its precision."""
    kind = direction.any.dtype

    def move(array: Tensor, along: Tensor) -> Tensor:
        moving: Tensor = forward_ad.make_dual(array.double(), along.double())  # type: ignore[no-untyped-call]
        return moving

    def find_tangent(array: Tensor) -> Tensor:
        tangent = forward_ad.unpack_dual(array).tangent  # type: ignore[no-untyped-call]
        return (torch.zeros_like(array) if tangent is None else tangent).to(kind)

    with one_thread(), forward_ad.dual_level():
        moving = at.map(move, direction)
        found = function(moving.arrays)
        return Model(at.grid, {name: find_tangent(array) for name, array in found.items()})


def _transpose(function: Callable[[Arrays], Arrays], at: Model, gradient: Model) -> Model:
    """Return the transpose of the derivative of a function of arrays, applied to a gradient."""

    def stack(model: Model) -> Tensor:
        found = function(model.arrays)
        return torch.stack([found[name] for name in gradient.arrays])

    weights = torch.stack([array.double() for array in gradient.arrays.values()])
    with one_thread():
        found: Model[Tensor] = pull_back(stack, at.map(Tensor.double), weights)
    return found.map(lambda array: array.to(gradient.any.dtype))
