"""Numerics of the discrete wave equation, without the arrays of any engine.

In this order: finite differences and the absorbing boundary; sources and receivers between grid
points, by a Kaiser-windowed sinc (Hicks 2002); resampling between the time step of the data and
that of the simulation; numerical dispersion; wavelets. Resampling is linear and limited to the
band, and is done in the frequency domain; its transpose follows by automatic differentiation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import product
from math import ceil, inf, pi, prod, sin
from typing import TypeVar, get_args

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.registry import Order
from hpcfwi.survey import Spectrum

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


Number = TypeVar("Number", np.int64, np.float64)

HALF_WIDTH = 4
# Hicks (2002), table 1: the window's shape for half-width 4 and wavenumbers up to half Nyquist.
KAISER = 6.31
# A point this close to a grid point, in cells, is on it.
ON_GRID = 1e-6


@dataclass(frozen=True)
class Taps:
    """The cells and weights of points on the padded grid.

    indices, factors: of each axis, (shot, point, tap), int64 and float64. Every combination of
    taps along the axes is one on the grid, and its weight the product of their factors: 0 where
    a tap has no effect, as outside the grid.
    """

    indices: tuple[NDArray[np.int64], ...]
    factors: tuple[NDArray[np.float64], ...]

    @property
    def across(self) -> Taps:
        """The same but for the last axis."""
        return Taps(self.indices[:-1], self.factors[:-1])

    @cached_property
    def cells(self) -> NDArray[np.int64]:
        """(shot, point, tap, ndim)."""
        return np.stack(self._combine(self.indices), axis=-1)

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """(shot, point, tap)."""
        return reduce(operator.mul, self._combine(self.factors))

    def flat(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """The cells as indices into the flattened padded grid, (shot, point, tap).

        The value of a tap without effect is 0.
        """
        cells = np.where(self.weights == 0.0, 0, np.moveaxis(self.cells, -1, 0))
        return np.ravel_multi_index(tuple(cells), shape)

    def _combine(self, values: Sequence[NDArray[Number]]) -> list[NDArray[Number]]:
        """Return the values of each axis, (shot, point, tap), for every combination of taps."""
        counts = [index.shape[-1] for index in self.indices]
        found = []
        for axis, along in enumerate(values):
            before, after = prod(counts[:axis]), prod(counts[axis + 1 :])
            found.append(np.tile(np.repeat(along, after, axis=-1), before))
        return found


def spread(
    positions: NDArray[np.float64],
    spacing: tuple[float, ...],
    before: tuple[int, ...],
    shape: tuple[int, ...],
    free_surface: bool,
) -> Taps:
    """Taps of positions (shot, point, ndim), in m from the model's first point.

    before: cells of padding in front of the model along each axis; shape: the padded grid's.
    Under a free surface, what falls above it comes back from below with the opposite sign
    (Hicks 2002, eq. 9). What falls outside the padded grid is dropped.
    """
    indices, factors = [], []
    for axis in range(len(spacing)):
        index, weight = _spread_along(positions[..., axis] / spacing[axis])
        if axis == 0 and free_surface:
            weight = np.where(index < 0, -weight, weight)
            index = np.abs(index)
        index = index + before[axis]
        indices.append(index)
        factors.append(np.where((index >= 0) & (index < shape[axis]), weight, 0.0))
    return Taps(tuple(indices), tuple(factors))


def _spread_along(
    position: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Grid indices and weights (shot, point, tap) of positions (shot, point) in cells."""
    nearest = np.rint(position)
    on_grid = np.abs(position - nearest) < ON_GRID
    if on_grid.all():
        return nearest.astype(np.int64)[..., None], np.ones((*position.shape, 1))
    first = np.where(on_grid, nearest, np.floor(position)).astype(np.int64)
    index = first[..., None] + np.arange(1 - HALF_WIDTH, HALF_WIDTH + 1)
    distance = index - position[..., None]
    window = np.i0(KAISER * np.sqrt(np.maximum(0.0, 1.0 - (distance / HALF_WIDTH) ** 2)))
    weight = np.sinc(distance) * window / np.i0(KAISER)
    exact = (index == nearest[..., None]).astype(np.float64)
    return index, np.where(on_grid[..., None], exact, weight)


# Samples of the data's step that are simulated beyond the record's end when there are
# substeps, and for records so short, a share of it: a cosine over them takes the traces to zero, so
# that band-limiting does not ring.
LONGEST_TAIL = 64
TAIL_SHARE = 8


def count_tail(samples: int) -> int:
    """Samples beyond a record of so many."""
    return min(LONGEST_TAIL, -(-samples // TAIL_SHARE))


def count_substeps(dt: float, longest: float) -> int:
    """The smallest whole number of substeps that `longest`, the longest stable step, allows."""
    return max(1, ceil(dt / longest * (1.0 - 1e-12)))


def count_steps(samples: int, substeps: int) -> int:
    """Steps of the simulation for so many samples of the wavelet."""
    return samples if substeps == 1 else (samples + count_tail(samples)) * substeps


def refine(wavelet: Tensor, substeps: int) -> Tensor:
    """Wavelets (shot, time) at `substeps` times the sampling rate, with a tail.

    Returned as they are where substeps is 1.
    """
    if substeps == 1:
        return wavelet
    n = wavelet.shape[-1] + count_tail(wavelet.shape[-1])
    spectrum = torch.fft.rfft(wavelet, n)
    if n % 2 == 0:
        spectrum = torch.cat([spectrum[..., :-1], 0.5 * spectrum[..., -1:]], dim=-1)
    return substeps * torch.fft.irfft(spectrum, n * substeps)


def coarsen(traces: Tensor, substeps: int, n: int) -> Tensor:
    """The first n samples at the data's step of traces (..., time) simulated with substeps."""
    if substeps == 1:
        return traces
    tail = count_tail(n)
    ramp = torch.arange(tail * substeps, device=traces.device, dtype=traces.dtype)
    taper = 0.5 + 0.5 * torch.cos(torch.pi * ramp / ramp.numel())
    tapered = torch.cat([traces[..., : n * substeps], traces[..., n * substeps :] * taper], dim=-1)
    spectrum = torch.fft.rfft(tapered)[..., : (n + tail) // 2 + 1]
    return (torch.fft.irfft(spectrum, n + tail) / substeps)[..., :n]


def transpose(linear: Callable[[Tensor], Tensor], at: Tensor, vector: Tensor) -> Tensor:
    """The transpose of a linear function, applied to `vector`; `at` has an argument's shape."""
    # By way of a scalar: torch.func.vjp, and grad with a vector, import torch's compiler or sympy,
    # a second or two of every start.
    with torch.enable_grad():
        start = torch.zeros_like(at, requires_grad=True)
        result: Tensor = torch.autograd.grad((linear(start) * vector).sum(), start)[0]
    return result


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


def ricker(frequency: float, n: int, dt: float, delay: float) -> NDArray[np.float64]:
    """Ricker wavelet of peak `frequency` (Hz), n samples every `dt` (s), centred at `delay` (s).

    (1 - 2 a) exp(-a) with a = (pi f (t - delay))^2 (Ricker 1953).
    """
    a = (np.pi * frequency * (dt * np.arange(n) - delay)) ** 2
    return (1.0 - 2.0 * a) * np.exp(-a)


def peak_frequency(wavelet: NDArray[np.floating], dt: float) -> float:
    """Frequency (Hz) of the largest amplitude in the spectra of wavelets (..., time)."""
    return Spectrum.of(wavelet, dt).peak


def highest_frequency(wavelet: NDArray[np.floating], dt: float, share: float = 1e-4) -> float:
    """Frequency (Hz) above which no amplitude exceeds `share` of the largest.

    0 for a wavelet that is zero.
    """
    return Spectrum.of(wavelet, dt).highest(share)
