"""Finite differences and the absorbing boundary: coefficients, profiles and what limits them.

Numbers only: the arrays that engines work with, as float64. Applying them is in `engines`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from hpcfwi.registry import Order

ORDERS: tuple[Order, ...] = get_args(Order)
# Along each axis of a model: the absorbing slabs at its ends reach half the order into it, and
# must not meet.
FEWEST_POINTS = max(ORDERS)

_SECOND = {
    2: (-2.0, 1.0),
    4: (-5 / 2, 4 / 3, -1 / 12),
    6: (-49 / 18, 3 / 2, -3 / 20, 1 / 90),
    8: (-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560),
}
_FIRST = {
    2: (0.0, 1 / 2),
    4: (0.0, 2 / 3, -1 / 12),
    6: (0.0, 3 / 4, -3 / 20, 1 / 60),
    8: (0.0, 4 / 5, -1 / 5, 4 / 105, -1 / 280),
}


def second_difference(order: int, spacing: float) -> NDArray[np.float64]:
    """Central second derivative, weights of the offsets 0 to order / 2 (1/m^2).

    Symmetric: offset -k has the weight of k (Fornberg 1988, table 1).
    """
    return np.asarray(_SECOND[order]) / spacing**2


def first_difference(order: int, spacing: float) -> NDArray[np.float64]:
    """Central first derivative, weights of the offsets 0 to order / 2 (1/m).

    Antisymmetric: offset -k has minus the weight of k (Fornberg 1988, table 1).
    """
    return np.asarray(_FIRST[order]) / spacing


def longest_step(order: int, spacing: tuple[float, ...], velocity: float) -> float:
    """The longest stable time step (s) of the leapfrog scheme at `velocity` (m/s).

    The step is stable while v^2 dt^2 times the largest eigenvalue of the discrete Laplacian is
    at most 4 (Lines, Slawinski and Bording 1999, eq. 8).
    """
    largest = 0.0
    for h in spacing:
        c = second_difference(order, h)
        largest += abs(c[0]) + 2.0 * np.abs(c[1:]).sum()
    return float(2.0 / (velocity * np.sqrt(largest)))


def interior(
    shape: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...], radius: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The cells that no absorbing term reaches: from the first to before the last of each axis.

    shape: of the grid, slabs of `before` and `after` cells included; radius: half the order.
    """
    first = tuple(b + radius if b else 0 for b in before)
    return first, tuple(n - a - radius if a else n for n, a in zip(shape, after, strict=True))


@dataclass(frozen=True)
class Profile:
    """The recursive convolution of the CPML along one axis: memory = b memory + a value.

    a, b: one value for each point of the padded axis; a is 0 outside the slabs.
    """

    a: NDArray[np.float64]
    b: NDArray[np.float64]


def absorbing_profile(
    n: int,
    before: int,
    after: int,
    spacing: float,
    dt: float,
    velocity: float,
    frequency: float,
) -> Profile:
    """CPML of `before` and `after` cells at the ends of an axis of n points, slabs included.

    Damping and frequency shift at a distance d of a slab of width L, after Komatitsch and Martin
    (2007, eqs. 22 to 25 and the text below them) with their power N = 3:
    sigma = -4 v log(R) / (2 L) (d / L)^3 and alpha = pi f (1 - d / L). The design reflection R of
    a slab of n cells, 10^-0.8 n down to 10^-8, is the best of those measured (see
    docs/decisions/004-boundary.md): a larger one damps too little, a smaller one too abruptly.

    velocity: the largest, m/s; frequency: the one that matters most, Hz.
    """
    sigma = np.zeros(n)
    alpha = np.zeros(n)
    ends = ((before, np.arange(before, 0, -1), 0), (after, np.arange(1, after + 1), n - after))
    for width, cells, first in ends:
        if width == 0:
            continue
        depth = cells / width
        reflection = 10.0 ** -min(8.0, 0.8 * width)
        here = slice(first, first + width)
        sigma[here] = -4.0 * velocity * np.log(reflection) / (2.0 * width * spacing) * depth**3
        alpha[here] = np.pi * frequency * (1.0 - depth)
    b = np.exp(-(sigma + alpha) * dt)
    a = np.zeros(n)
    slab = sigma > 0
    a[slab] = sigma[slab] / (sigma[slab] + alpha[slab]) * (b[slab] - 1.0)
    return Profile(a, b)
