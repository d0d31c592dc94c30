"""How fast waves travel on the grid, which is not quite how fast they travel in the earth.

Numbers only, from the dispersion relation of the discrete scheme. What a plan makes of them is
elsewhere; stability is in `stencil`.
"""

from __future__ import annotations

from itertools import product
from math import inf, pi, sin

import numpy as np
import scipy
from numpy.typing import NDArray

from hpcfwi.wave.stencil import second_difference


def phase_velocity_error(
    order: int, spacing: tuple[float, ...], dt: float, velocity: float, frequency: float
) -> float:
    """(c - velocity) / velocity for the phase velocity c of plane waves in a homogeneous medium.

    A plane wave of angular frequency w solves the scheme where its wavenumbers k along the axes
    satisfy (2 / (velocity dt) sin(w dt / 2))^2 = sum of S(k), where S(k) = -c_0 - 2 sum of
    c_j cos(j k h) is the symbol of minus the second difference: a plane wave put into the scheme,
    as Alford, Kelly and Boore (1974) do for orders 2 and 4. c = w / abs(k), in the direction whose
    error is largest in magnitude. Steps too long make waves fast, cells too wide make them slow.

    spacing: m, each axis; dt: of the simulation's step, s; frequency: Hz. -inf where the grid
    carries no wave of this frequency in some direction.
    """
    target = (2.0 / (velocity * dt) * sin(pi * frequency * dt)) ** 2
    errors = [
        _error_along(direction, order, spacing, target, velocity, 2.0 * pi * frequency)
        for direction in _directions(len(spacing))
    ]
    return max(errors, key=abs)


def carried_frequency(
    order: int, spacing: tuple[float, ...], dt: float, velocity: float, error: float
) -> float:
    """The highest frequency (Hz) at which `phase_velocity_error` is still within `error`."""
    highest = velocity / (2.0 * max(spacing))

    def excess(frequency: float) -> float:
        found = abs(phase_velocity_error(order, spacing, dt, velocity, frequency))
        return min(found, 1.0) - error

    frequencies = highest * np.linspace(0.02, 1.0, 50)
    beyond = next((k for k, f in enumerate(frequencies) if excess(f) > 0.0), None)
    if beyond is None:
        return highest
    below = frequencies[beyond - 1] if beyond > 0 else 1e-3 * highest
    if excess(below) > 0.0:
        return 0.0
    return float(scipy.optimize.brentq(excess, below, frequencies[beyond]))


def _directions(ndim: int) -> list[NDArray[np.float64]]:
    """Along the axes and the diagonals between them, where the error has its extremes."""
    corners = [np.array(c, dtype=np.float64) for c in product((0, 1), repeat=ndim) if any(c)]
    return [c / np.linalg.norm(c) for c in corners]


def _error_along(
    direction: NDArray[np.float64],
    order: int,
    spacing: tuple[float, ...],
    target: float,
    velocity: float,
    omega: float,
) -> float:
    components = np.maximum(direction, 1e-12)
    # Beyond the first axis' Nyquist wavenumber the symbol falls again.
    shortest = float((pi / (np.asarray(spacing) * components)).min())

    def excess(wavenumber: float) -> float:
        return _symbol(wavenumber * components, order, spacing) - target

    largest = excess(shortest) + target
    if largest < target:
        return -inf
    # A wave so long that rounding would tell its wavenumber is carried as it is
    if target < 1e-12 * largest or excess(0.0) >= 0.0:
        return 0.0
    wavenumber = scipy.optimize.brentq(excess, 0.0, shortest, xtol=1e-15 * shortest, rtol=1e-14)
    return float(omega / wavenumber / velocity - 1.0)


def _symbol(wavenumbers: NDArray[np.float64], order: int, spacing: tuple[float, ...]) -> float:
    total = 0.0
    for k, h in zip(wavenumbers, spacing, strict=True):
        c = second_difference(order, h)
        total -= float(c[0] + 2.0 * (c[1:] * np.cos(np.arange(1, c.size) * k * h)).sum())
    return total
