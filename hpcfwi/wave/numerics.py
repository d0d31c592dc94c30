"""Numerics of the discrete wave equation, without the arrays of any engine.

In this order: finite differences and the absorbing boundary; sources and receivers between grid
points, by a Kaiser-windowed sinc (Hicks 2002); resampling between the time step of the data and
that of the simulation; numerical dispersion; wavelets. Resampling is linear and limited to the
band, and is done in the frequency domain; its transpose follows by automatic differentiation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from itertools import product
from math import ceil, inf, pi, prod
from typing import TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.model import AXES
from hpcfwi.registry import Order

ORDERS: tuple[Order, ...] = get_args(Order)
# Smallest number of points along each axis of a model. The absorbing slabs at both ends reach half
# the order into it, and must not touch.
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
_STAGGERED = {
    2: (1.0,),
    4: (9 / 8, -1 / 24),
    6: (75 / 64, -25 / 384, 3 / 640),
    8: (1225 / 1024, -245 / 3072, 49 / 5120, -5 / 7168),
}


def second_difference(order: int, spacing: float) -> NDArray[np.float64]:
    """Return the weights (1/m^2) of the central second derivative, for offsets 0 to order / 2.

    They are symmetric: offset -k has the weight of k (Fornberg 1988, table 1).
    """
    return np.asarray(_SECOND[order]) / spacing**2


def first_difference(order: int, spacing: float) -> NDArray[np.float64]:
    """Return the weights (1/m) of the central first derivative, for offsets 0 to order / 2.

    They are antisymmetric: offset -k has minus the weight of k (Fornberg 1988, table 1).
    """
    return np.asarray(_FIRST[order]) / spacing


def staggered_difference(order: int, spacing: float) -> NDArray[np.float64]:
    """Return the weights (1/m) of the first derivative halfway between grid points.

    Weight k, from 0, is that of the point k + 1/2 cells after the derivative's place; the point as
    far before it has minus this weight (Fornberg 1988, table 2).
    """
    return np.asarray(_STAGGERED[order]) / spacing


def longest_step(
    order: int, spacing: tuple[float, ...], velocity: float, staggered: bool = False
) -> float:
    """Return the longest stable time step (s) of the leapfrog scheme for a velocity (m/s).

    A step dt is stable if v^2 dt^2 times the largest eigenvalue of the discrete Laplacian is
    at most 4 (Lines, Slawinski and Bording 1999, eq. 8). On a staggered grid this eigenvalue is
    4 times the sum over axes of (sum over k of abs(c_k))^2, with the weights c_k of the staggered
    difference (Levander 1988 for order 4).
    """
    largest = 0.0
    for h in spacing:
        if staggered:
            largest += 4.0 * np.abs(staggered_difference(order, h)).sum() ** 2
        else:
            c = second_difference(order, h)
            largest += abs(c[0]) + 2.0 * np.abs(c[1:]).sum()
    return float(2.0 / (velocity * np.sqrt(largest)))


def interior(
    shape: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...], radius: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the cells that no absorbing term reaches: first and last + 1 along each axis.

    shape: of the grid, slabs of `before` and `after` cells included; radius: half the order.
    """
    first = tuple(b + radius if b else 0 for b in before)
    return first, tuple(n - a - radius if a else n for n, a in zip(shape, after, strict=True))


@dataclass(frozen=True)
class Profile:
    """The recursive convolution of the CPML in a step dt (s): memory = b memory + a value.

    sigma, alpha: damping and frequency shift, 1/s, for each point of the padded axis, or for each
    cell. They are 0 outside the slabs, where a is 0.
    """

    sigma: NDArray[np.float64]
    alpha: NDArray[np.float64]
    dt: float

    def between(self, first: int, end: int) -> Profile:
        """Return the profile of some of the points of an axis."""
        return Profile(self.sigma[first:end], self.alpha[first:end], self.dt)

    @cached_property
    def a(self) -> NDArray[np.float64]:
        found = np.zeros_like(self.sigma)
        slab = self.sigma > 0
        sigma = self.sigma[slab]
        found[slab] = sigma / (sigma + self.alpha[slab]) * (self.b[slab] - 1.0)
        return found

    @cached_property
    def b(self) -> NDArray[np.float64]:
        return np.asarray(np.exp(-(self.sigma + self.alpha) * self.dt))


def absorbing_profile(
    n: int,
    before: int,
    after: int,
    spacing: float,
    dt: float,
    velocity: float,
    frequency: float,
    shift: float = 0.0,
) -> Profile:
    """Return the CPML of an axis of n points, `before` and `after` absorbing cells included.

    Damping and frequency shift at a distance d of a slab of width L, after Komatitsch and Martin
    (2007, eqs. 22 to 25 and the text below them) with their power N = 3:
    sigma = -4 v log(R) / (2 L) (d / L)^3 and alpha = pi f (1 - d / L). The design reflection R of
    a slab of n cells, 10^(-0.8 n) but not below 10^-8, is the best of those measured (see
    docs/decisions/004-boundary.md): a larger one damps too little, a smaller one too abruptly.

    velocity: the largest, m/s; frequency: the most important one, Hz; shift: distance of the values
    from the grid's points, in cells.
    """
    sigma = np.zeros(n)
    alpha = np.zeros(n)
    places = np.arange(n) + shift
    for width, cells in ((before, before - places), (after, places - (n - 1 - after))):
        if width == 0:
            continue
        here = cells > 0.0
        depth = np.minimum(cells[here] / width, 1.0)
        reflection = 10.0 ** -min(8.0, 0.8 * width)
        sigma[here] = -4.0 * velocity * np.log(reflection) / (2.0 * width * spacing) * depth**3
        alpha[here] = np.pi * frequency * (1.0 - depth)
    return Profile(sigma, alpha, dt)


def mix_profiles(profiles: Sequence[Profile], axis: int, share: float) -> Profile:
    """Return the profile of each cell for derivatives along an axis, if every slab damps them.

    profiles: of all axes, where the derivatives lie; share: of the damping of the other axes that
    is added to that of the axis (Meza-Fajardo and Papageorgiou 2008). The frequency shift is the
    smallest one of the slabs in which a cell lies.
    """

    def spread_out(each: Iterable[NDArray[np.float64]]) -> Sequence[NDArray[np.float64]]:
        return np.meshgrid(*each, indexing="ij", sparse=True)

    shares = (1.0 if k == axis else share for k in range(len(profiles)))
    sigma = reduce(np.add, spread_out(p.sigma * s for p, s in zip(profiles, shares, strict=True)))
    shifts = spread_out(np.where(p.sigma > 0, p.alpha, np.inf) for p in profiles)
    alpha = np.where(sigma > 0, reduce(np.minimum, shifts), 0.0)
    return Profile(sigma, alpha, profiles[0].dt)


Number = TypeVar("Number", np.int64, np.float64)

HALF_WIDTH = 4
# Hicks (2002), table 1: the window's shape for half-width 4 and wavenumbers up to half Nyquist.
KAISER = 6.31
# A point within this distance of a grid point, in cells, is on it.
ON_GRID = 1e-6
# Number of points of a cubic polynomial.
CUBIC = 4
# Number of rows below a free surface for which `surface_shifts` are found.
SHIFTED = 16


@dataclass(frozen=True)
class Taps:
    """The cells and weights of points on the padded grid.

    indices, factors: for each axis, (shot, point, tap), int64 and float64. Every combination of
    taps along the axes is a tap on the grid, whose weight is the product of their factors. A weight
    of 0 means that the tap has no effect, for example outside the grid.
    """

    indices: tuple[NDArray[np.int64], ...]
    factors: tuple[NDArray[np.float64], ...]

    @property
    def across(self) -> Taps:
        """The taps along all axes but the last."""
        return Taps(self.indices[:-1], self.factors[:-1])

    @cached_property
    def cells(self) -> NDArray[np.int64]:
        """The cells, (shot, point, tap, ndim)."""
        return np.stack(self._combine(self.indices), axis=-1)

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """The weights, (shot, point, tap)."""
        return reduce(operator.mul, self._combine(self.factors))

    def flat(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Return the cells as indices into the flattened padded grid, (shot, point, tap).

        The index of a tap without effect is 0.
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
    half: str = "",
    odd: bool = True,
    shifts: NDArray[np.float64] | None = None,
) -> Taps:
    """Return the taps of positions (shot, point, ndim), in m from the model's first point.

    before: cells of padding in front of the model along each axis; shape: of the padded grid.
    half: axes along which the field's values lie half a cell after the grid's points. If the field
    is odd about a free surface, taps above it are mirrored below it with the opposite sign (Hicks
    2002, eq. 9); otherwise points whose taps reach above it are interpolated by a cubic polynomial,
    because the slope of the field is not zero there. shifts: (shot, point, row), by how many cells
    the first rows seem to lie deeper, see `surface_shifts`. Taps outside the padded grid are
    dropped.
    """
    indices, factors = [], []
    for axis, name in enumerate(AXES[len(spacing)]):
        between = name in half
        position = positions[..., axis] / spacing[axis] - 0.5 * between
        index, weight = _spread_along(position)
        if axis == 0 and free_surface and odd:
            weight = np.where(index < 0, -weight, weight)
            index = np.where(index < 0, -index - between, index)
        elif axis == 0 and free_surface:
            index, weight = _below_surface(position, index, weight, shifts)
        index = index + before[axis]
        indices.append(index)
        factors.append(np.where((index >= 0) & (index < shape[axis]), weight, 0.0))
    return Taps(tuple(indices), tuple(factors))


def _spread_along(position: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return grid indices and weights (shot, point, tap) of positions (shot, point) in cells."""
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


def _below_surface(
    position: NDArray[np.float64],
    index: NDArray[np.int64],
    weight: NDArray[np.float64],
    shifts: NDArray[np.float64] | None,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return indices and weights in which no index is above the first cell.

    Points near the surface get the weights of Lagrange's polynomial through four cells. These are
    all points with an index above it and, if there are shifts, those on the grid.
    """
    is_near = (index < 0).any(axis=-1, keepdims=True)
    if shifts is not None and index.shape[-1] == 1:
        is_near = index < HALF_WIDTH - 1
        index = index + np.arange(CUBIC)
        weight = np.where(np.arange(CUBIC) == 0, weight, 0.0)
    rows = np.maximum(np.floor(position).astype(np.int64) - 1, 0)[..., None] + np.arange(CUBIC)
    nodes = rows.astype(np.float64)
    if shifts is not None:
        nodes += np.take_along_axis(shifts, np.minimum(rows, SHIFTED - 1), axis=-1)
    cubic = np.zeros(weight.shape)
    for k in range(min(CUBIC, index.shape[-1])):
        others = np.delete(nodes, k, axis=-1)
        factors = (position[..., None] - others) / (nodes[..., k, None] - others)
        cubic[..., k] = np.prod(factors, axis=-1)
    below = rows[..., :1] + np.arange(index.shape[-1])
    return np.where(is_near, below, index), np.where(is_near, cubic, weight)


@cache
def surface_shifts(order: int, half: bool) -> NDArray[np.float64]:
    """Return by how many cells the first rows of a simulated velocity seem to lie too deep.

    The even image of a velocity at a free surface has a kink, because its slope s is not zero
    there, and differences of more than two points are wrong next to a kink. Stresses are 0 at the
    surface, so that these differences must have the right values nevertheless: an error s e is
    added to the velocity for which D (abs(z) + e) = 1 in all rows, with the difference D of this
    order and depths z in cells. e is even too, and falls quickly with depth. The value of row k is
    therefore that of the true velocity at the depth k + e(k), and points that are interpolated
    accordingly have errors that fall with the square of the spacing, instead of the spacing itself.

    order: of the differences; half: True if the values lie half a cell after the grid's points.

    Returns
    -------
    NDArray
        (row,), in cells; they are 0 at order 2.
    """
    weights, rows = staggered_difference(order, 1.0), np.arange(SHIFTED)
    difference = np.zeros((SHIFTED, SHIFTED))
    slopes = np.zeros(SHIFTED)
    for k, weight in enumerate(weights):
        for sign, row in ((1.0, rows + k + 1), (-1.0, rows - k)):
            mirrored = np.where(row < 0, -row - half, row)
            slopes += sign * weight * (mirrored + 0.5 * half)
            inside = mirrored < SHIFTED
            np.add.at(difference, (rows[inside], mirrored[inside]), sign * weight)
    return np.asarray(np.linalg.solve(difference, 1.0 - slopes), dtype=np.float64)


# Number of samples that are simulated beyond the end of the record if there are substeps, or a
# share of a short record. A cosine over them takes the traces to zero, so that band-limiting does
# not ring.
LONGEST_TAIL = 64
TAIL_SHARE = 8


def count_tail(samples: int) -> int:
    """Return the number of samples that are simulated beyond a record of so many."""
    return min(LONGEST_TAIL, -(-samples // TAIL_SHARE))


def count_substeps(dt: float, longest: float) -> int:
    """Return the smallest number of substeps that are no longer than `longest`, the stable step."""
    return max(1, ceil(dt / longest * (1.0 - 1e-12)))


def count_steps(samples: int, substeps: int) -> int:
    """Return the steps of the simulation for so many samples of the wavelet."""
    return samples if substeps == 1 else (samples + count_tail(samples)) * substeps


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, because sums and transforms depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def upsample(wavelets: Tensor, substeps: int) -> Tensor:
    """Return wavelets (shot, ..., time) at `substeps` times the sampling rate, with a tail.

    They are returned unchanged if substeps is 1. The result of a shot depends neither on other
    shots nor on the number of threads.
    """
    if substeps == 1:
        return wavelets
    with one_thread():
        return torch.stack([_upsample_shot(shot, substeps) for shot in wavelets])


def _upsample_shot(wavelets: Tensor, substeps: int) -> Tensor:
    n = wavelets.shape[-1] + count_tail(wavelets.shape[-1])
    spectrum = torch.fft.rfft(wavelets, n)
    if n % 2 == 0:
        spectrum = torch.cat([spectrum[..., :-1], 0.5 * spectrum[..., -1:]], dim=-1)
    return substeps * torch.fft.irfft(spectrum, n * substeps)


def downsample(traces: Tensor, substeps: int, n: int) -> Tensor:
    """Return the first n samples, at the data's step, of traces (shot, ..., time) with substeps.

    The result of a shot depends neither on other shots nor on the number of threads.
    """
    if substeps == 1:
        return traces
    with one_thread():
        return torch.stack([_downsample_shot(shot, substeps, n) for shot in traces])


def _downsample_shot(traces: Tensor, substeps: int, n: int) -> Tensor:
    tail = count_tail(n)
    ramp = torch.arange(tail * substeps, device=traces.device, dtype=traces.dtype)
    taper = 0.5 + 0.5 * torch.cos(torch.pi * ramp / ramp.numel())
    tapered = torch.cat([traces[..., : n * substeps], traces[..., n * substeps :] * taper], dim=-1)
    spectrum = torch.fft.rfft(tapered)[..., : (n + tail) // 2 + 1]
    return (torch.fft.irfft(spectrum, n + tail) / substeps)[..., :n]


def transpose(linear: Callable[[Tensor], Tensor], at: Tensor, vector: Tensor) -> Tensor:
    """Return the transpose of a linear function of arrays like `at`, applied to `vector`."""
    # The gradient of a scalar is used: torch.func.vjp, and grad with a vector, import torch's
    # compiler or sympy, which adds a second or two to every start.
    with torch.enable_grad(), one_thread():
        start = torch.zeros_like(at, requires_grad=True)
        result: Tensor = torch.autograd.grad((linear(start) * vector).sum(), start)[0]
    return result


# Number of wavenumbers in each direction for which the error of the phase velocity is found.
WAVENUMBERS = 8000


@dataclass(frozen=True)
class Discretization:
    """A scheme for waves of one velocity.

    A plane wave of angular frequency w in a homogeneous medium solves a scheme if its wavenumbers k
    along the axes satisfy (2 / (velocity dt) sin(w dt / 2))^2 = sum of S(k). S is the symbol of
    minus the second difference, S(k) = -c_0 - 2 sum of c_j cos(j k h) (Alford, Kelly and Boore 1974
    for orders 2 and 4), or the square of the symbol of the staggered difference,
    S(k) = (2 sum of c_j sin((j + 1/2) k h))^2 (Virieux 1986 for order 2, Levander 1988 for order
    4), which holds for P waves and for S waves. Long steps make waves too fast, wide cells make
    them too slow.

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
    curves = _find_errors(scheme)
    return max((float(np.interp(frequency, *curve, right=-inf)) for curve in curves), key=abs)


def carried_frequency(scheme: Discretization, error: float) -> float:
    """Return the highest frequency (Hz) at which `phase_velocity_error` is within `error`."""
    carried = scheme.velocity / (2.0 * max(scheme.spacing))
    for frequencies, errors in _find_errors(scheme):
        first = int(np.argmax(np.append(np.abs(errors) > error, True)))
        carried = min(carried, frequencies[first - 1])
    return float(carried)


def _find_errors(
    scheme: Discretization,
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield frequencies from 0 on and the errors of their phase velocities, for each direction.

    The directions are the axes and the diagonals between them, along which the error has its
    extremes. Frequencies are found for wavenumbers, because the reverse has no formula.
    """
    spacing = np.asarray(scheme.spacing)
    for corner in product((0.0, 1.0), repeat=len(spacing)):
        if any(corner):
            direction = np.array(corner) / np.linalg.norm(corner)
            # Symbols rise up to the Nyquist wavenumber of the axis that reaches it first
            shortest = (pi / (spacing * np.maximum(direction, 1e-12))).min()
            wavenumbers = np.linspace(0.0, shortest, WAVENUMBERS)[1:]
            symbols = _symbol(wavenumbers * direction[:, None], scheme)
            sines = np.minimum(1.0, 0.5 * scheme.velocity * scheme.dt * np.sqrt(symbols))
            frequencies = np.arcsin(sines) / (pi * scheme.dt)
            errors = 2.0 * pi * frequencies / (wavenumbers * scheme.velocity) - 1.0
            yield np.append(0.0, frequencies), np.append(0.0, errors)


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


def ricker(frequency: float, n: int, dt: float, delay: float) -> NDArray[np.float64]:
    """Return n samples, every `dt` (s), of a Ricker wavelet of peak `frequency` (Hz).

    It is (1 - 2 a) exp(-a) with a = (pi f (t - delay))^2 (Ricker 1953), centred at `delay` (s).
    """
    a = (np.pi * frequency * (dt * np.arange(n) - delay)) ** 2
    return (1.0 - 2.0 * a) * np.exp(-a)
