"""The numerical dispersion of the schemes: the phase velocities of waves on a grid.

A plane wave of angular frequency w in a homogeneous medium solves a scheme if its wavenumbers k
along the axes satisfy (2 / (velocity dt) sin(w dt / 2))^2 = sum of S(k). S is the symbol of minus
the second difference, S(k) = -c_0 - 2 sum of c_j cos(j k h) (Alford, Kelly and Boore 1974 for
orders 2 and 4), or the square of the symbol of the staggered difference,
S(k) = (2 sum of c_j sin((j + 1/2) k h))^2 (Virieux 1986 for order 2, Levander 1988 for order 4),
which holds for P waves and for S waves. Long steps make waves too fast, wide cells make them too
slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import inf, pi, sin

import numpy as np
import scipy
from numpy.typing import NDArray

from hpcfwi.wave.numerics import second_difference
from hpcfwi.wave.staggered import staggered_difference

# Number of wavenumbers in each direction for which `carried_frequency` finds the error.
WAVENUMBERS = 2000


@dataclass(frozen=True)
class Discretization:
    """A scheme for waves of one velocity.

    order: of the differences; spacing: of each axis, m; dt: step of the simulation, s; velocity:
    m/s; staggered: True for the scheme of a first-order equation.
    """

    order: int
    spacing: tuple[float, ...]
    dt: float
    velocity: float
    staggered: bool = False


def phase_velocity_error(scheme: Discretization, frequency: float) -> float:
    """Return the relative error of the phase velocity of plane waves in a homogeneous medium.

    The error is (c - velocity) / velocity with the phase velocity c = w / abs(k), in the direction
    in which its magnitude is largest. frequency: Hz. The result is -inf if the grid carries no wave
    of this frequency in some direction.
    """
    errors = [_error_along(direction, scheme, frequency) for direction in _directions(scheme)]
    return max(errors, key=abs)


def carried_frequency(scheme: Discretization, error: float) -> float:
    """Return the highest frequency (Hz) at which `phase_velocity_error` is within `error`."""
    # Frequencies are found for many wavenumbers, because the reverse needs scipy.optimize, which
    # takes 30 MB.
    carried = scheme.velocity / (2.0 * max(scheme.spacing))
    for direction in _directions(scheme):
        wavenumbers = np.linspace(0.0, _shortest(direction, scheme), WAVENUMBERS)[1:]
        symbols = _symbol(wavenumbers * direction[:, None], scheme)
        sines = np.minimum(1.0, 0.5 * scheme.velocity * scheme.dt * np.sqrt(symbols))
        frequencies = np.arcsin(sines) / (pi * scheme.dt)
        errors = np.abs(2.0 * pi * frequencies / (wavenumbers * scheme.velocity) - 1.0)
        first = int(np.argmax(np.append(errors > error, True)))
        carried = min(carried, frequencies[first - 1] if first else 0.0)
    return float(carried)


def _directions(scheme: Discretization) -> list[NDArray[np.float64]]:
    """Return the axes and the diagonals between them, along which the error has its extremes."""
    ndim = len(scheme.spacing)
    corners = [np.array(c, dtype=np.float64) for c in product((0, 1), repeat=ndim) if any(c)]
    return [c / np.linalg.norm(c) for c in corners]


def _error_along(direction: NDArray[np.float64], scheme: Discretization, frequency: float) -> float:
    target = (2.0 / (scheme.velocity * scheme.dt) * sin(pi * frequency * scheme.dt)) ** 2
    shortest = _shortest(direction, scheme)

    def excess(wavenumber: float) -> float:
        return float(_symbol(wavenumber * direction, scheme)) - target

    largest = excess(shortest) + target
    if largest < target:
        return -inf
    # A wave whose wavenumber is lost in rounding is carried without error.
    if target < 1e-12 * largest or excess(0.0) >= 0.0:
        return 0.0
    wavenumber = scipy.optimize.brentq(excess, 0.0, shortest, xtol=1e-15 * shortest, rtol=1e-14)
    return float(2.0 * pi * frequency / wavenumber / scheme.velocity - 1.0)


def _shortest(direction: NDArray[np.float64], scheme: Discretization) -> float:
    """Return the Nyquist wavenumber of the axis that reaches it first, up to which symbols rise."""
    return float((pi / (np.asarray(scheme.spacing) * np.maximum(direction, 1e-12))).min())


def _symbol(wavenumbers: NDArray[np.float64], scheme: Discretization) -> NDArray[np.float64]:
    """Return the symbols of wavenumbers (axis, ...)."""
    total = np.zeros(wavenumbers.shape[1:])
    for k, h in zip(wavenumbers, scheme.spacing, strict=True):
        if scheme.staggered:
            weights = staggered_difference(scheme.order, h)
            total += sum(2.0 * c * np.sin((j + 0.5) * k * h) for j, c in enumerate(weights)) ** 2
        else:
            first, *others = second_difference(scheme.order, h)
            total -= first + 2.0 * sum(c * np.cos(j * k * h) for j, c in enumerate(others, start=1))
    return total
