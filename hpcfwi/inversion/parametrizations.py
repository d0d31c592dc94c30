"""Parametrizations: the unknowns that an optimizer updates in place of the parameters of a model.

A model, its gradient, its limits and its files have the parameters of the equation, such as
velocities and density. The unknowns are functions of them in each cell, and have the names of the
parameters whose place they take. Tied parameters are functions of the P velocity and have no
unknown. `registry.PARAMETRIZATIONS` names the parametrizations of this module, and
`wrappers.Parametrized` uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import log2, sqrt

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Model
from hpcfwi.operators.stack import pull_back
from hpcfwi.operators.vectors import dot, one_thread

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


def _find_logarithms(arrays: Arrays, medium: Medium) -> Arrays:
    start = medium.initial
    return {n: a if n in SIGNED else _find_log(a, start[n]) for n, a in arrays.items()}


def _from_logarithms(unknowns: Arrays, medium: Medium) -> Arrays:
    start = medium.initial
    return {n: a if n in SIGNED else start[n] * torch.exp(a) for n, a in unknowns.items()}


# Parameters that may be negative, which have no logarithm.
SIGNED = ("epsilon", "delta", "theta")


def _find_log(array: Tensor, start: Tensor) -> Tensor:
    """Return the logarithm of values relative to initial ones, 0 in fluids without S waves."""
    solid = start > 0.0
    return torch.log(torch.where(solid, array, 1.0) / torch.where(solid, start, 1.0))


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
