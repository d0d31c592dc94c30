"""Gradients that are made more like steps, before an optimiser sees them: pure functions.

They are divided by something like the misfit's curvature, or lose what no wave can tell. What is
asked for is in `config.inversion`; the gradient of the misfit itself is `objective`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.config.inversion import PreconditionSection
from hpcfwi.model import Grid, Model
from hpcfwi.operators.vectors import AxisMatrix, add_up, find_blocks
from hpcfwi.wave.simulation import wave_speed

# Standard deviations to which a Gaussian reaches along a row, and down a column
REACH, DEEP = 4.0, 6.0


@dataclass(frozen=True)
class Preconditioner:
    """A preconditioner of gradients; frequency: that of the wavelet's peak, Hz.

    taper: factors of the cells around sources and receivers, if requested.
    """

    section: PreconditionSection
    frequency: float
    taper: NDArray[np.float64] | None = None

    @property
    def needs_illuminations(self) -> bool:
        """True if the engine must compute illuminations, which take a third of its time."""
        return self.section.illumination is not None

    def apply(self, gradient: Model, illuminations: Mapping[str, Tensor], model: Model) -> Model:
        """The gradient with respect to `model`, more like a step; all are of tensors.

        Symmetric and never negative, as searches along lines and conjugate gradients need it: the
        root of the weights, a smoothing's transpose, the smoothing, the root again.
        """
        weights = self._weigh(gradient.grid, gradient.any.device, illuminations)
        if self.section.smooth is None:
            return gradient.map(lambda array: (array * weights).to(array.dtype))
        speeds = wave_speed(model.arrays)
        means = add_up(speeds, tuple(range(1, speeds.ndim))).cpu().numpy() / prod(speeds.shape[1:])
        lengths = self.section.smooth * means / self.frequency / sqrt(2.0)
        smoothing, root = Smoothing(lengths, gradient.grid.spacing), weights.sqrt_()

        def smooth(array: Tensor) -> Tensor:
            return smoothing.apply(smoothing.transpose(array * root)).mul_(root).to(array.dtype)

        return gradient.map(smooth)

    def _weigh(
        self, grid: Grid, device: torch.device, illuminations: Mapping[str, Tensor]
    ) -> Tensor:
        """Factors of cells, float64."""
        if self.section.illumination is None:
            weights = torch.ones(grid.shape, dtype=torch.float64, device=device)
        else:
            weights = balance([*illuminations.values()], self.section.illumination).reciprocal_()
        if self.section.depth is not None:
            depth = np.maximum(grid.coordinates(0) - grid.origin[0], grid.spacing[0])
            by_depth = torch.from_numpy((depth / depth[-1]) ** self.section.depth).to(device)
            weights.mul_(by_depth.reshape(-1, *[1] * (grid.ndim - 1)))
        if self.taper is not None:
            weights.mul_(torch.from_numpy(self.taper).to(device))
        return weights


def balance(illuminations: list[Tensor], damping: float) -> Tensor:
    """The root of their product, as a share of its largest, plus a damping; float64.

    About the diagonal of Gauss's and Newton's matrix (Plessix and Mulder 2004, section 3). 1 where
    nothing is lit at all, as with an engine that has no illuminations.
    """
    product = torch.ones_like(illuminations[0], dtype=torch.float64)
    for field in illuminations:
        product.mul_(field.double() / _largest(field))
    product.sqrt_().div_(_largest(product))
    lit = product.amax() > 0.0
    return product.add_(torch.where(lit, product.new_full((), damping), 1.0))


def _largest(field: Tensor) -> Tensor:
    """The largest value, in double precision; 1 where that is not above 0."""
    largest = field.amax().double()
    return torch.where(largest > 0.0, largest, 1.0)


def rise_from(points: NDArray[np.float64], length: float, grid: Grid) -> NDArray[np.float64]:
    """Factors of cells: 0 at points (n, ndim), 1 from a distance on, half a cosine between; m."""
    points = find_outermost(points, grid)
    tree = scipy.spatial.cKDTree(points)
    factors = np.ones(grid.shape)
    level = np.meshgrid(*(grid.coordinates(axis) for axis in range(1, grid.ndim)), indexing="ij")
    # Depth by depth: the positions of all cells take more than a gradient does
    for plane, depth in zip(factors, grid.coordinates(0), strict=True):
        if np.abs(points[:, 0] - depth).min() < length:
            cells = np.stack([np.full(plane.shape, depth), *level], axis=-1)
            # Infinite where none is so near
            distances, _ = tree.query(cells, distance_upper_bound=length)
            plane[:] = 0.5 - 0.5 * np.cos(np.pi * np.minimum(distances / length, 1.0))
    return factors


def thin_out(parts: Iterable[NDArray[np.float64]], grid: Grid) -> NDArray[np.float64]:
    """Return those of points (n, ndim), m, given in parts, that `find_outermost` finds."""
    pile: list[NDArray[np.float64]] = []
    for part in parts:
        pile.append(find_outermost(part, grid))
        # Not at each part, as what there is so far would be sorted as often
        if sum(map(len, pile)) > 2 * len(pile[0]):
            pile = [find_outermost(np.concatenate(pile), grid)]
    return find_outermost(np.concatenate(pile), grid)


def find_outermost(points: NDArray[np.float64], grid: Grid) -> NDArray[np.float64]:
    """Points (n, ndim) of which one is the nearest to each cell, whichever; sorted, each once; m.

    If points differ along the last axis alone and lie between two cells there, no cell is
    nearer to an inner one than to both outer ones.
    """
    columns = [column for column in points.T[::-1] if np.ptp(column) > 0.0]
    points = points[np.lexsort(columns)] if columns else points[:1]
    points = points[_differ(points)]
    between = np.floor((points[:, -1] - grid.origin[-1]) / grid.spacing[-1])
    begins = _differ(np.column_stack([points[:, :-1], between]))
    return points[begins | np.append(begins[1:], True)]


def _differ(rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which rows differ from the one before."""
    return np.append(True, (rows[1:] != rows[:-1]).any(axis=1))


class Smoothing:
    """A Gaussian whose standard deviation (m) is another at each depth, and its transpose.

    Horizontally row by row; vertically as a matrix, of which each row is a Gaussian. Arrays go on
    beyond their ends as their mirror images, so that both ways leave alone what is constant, where
    all depths have the same deviation.
    """

    def __init__(self, lengths: NDArray[np.float64], spacing: tuple[float, ...]) -> None:
        n, widths = lengths.size, lengths / spacing[0]
        steps = np.arange(-int(DEEP * widths.max()) - 1, int(DEEP * widths.max()) + 2)
        rows, images = np.broadcast_arrays(np.arange(n)[:, None], np.arange(n)[:, None] + steps)
        kernel = np.exp(-0.5 * (steps / widths[:, None]) ** 2)
        kernel[np.abs(steps) > DEEP * widths[:, None]] = 0.0
        kernel /= kernel.sum(axis=1, keepdims=True)
        places = rows.ravel(), _mirror(images, n).ravel()
        matrix = scipy.sparse.csr_array((kernel.ravel(), places), shape=(n, n))
        matrix.eliminate_zeros()
        self._down, self._up = AxisMatrix.of(matrix), AxisMatrix.of(matrix.T.tocsr())
        self._halves = [_halve([length / h for length in lengths]) for h in spacing[1:]]

    def apply(self, array: Tensor) -> Tensor:
        """An array of float64 smoothed."""
        return self._down.apply(self._level(array), 0)

    def transpose(self, array: Tensor) -> Tensor:
        """The transpose of `apply`."""
        return self._level(self._up.apply(array, 0))

    def _level(self, array: Tensor) -> Tensor:
        """Smoothed along the horizontal axes; its own transpose."""
        for axis, halves in enumerate(self._halves, start=1):
            n, reach = array.shape[axis], len(halves) - 1
            images = torch.from_numpy(_mirror(np.arange(-reach, n + reach), n)).to(array.device)
            factors = torch.from_numpy(halves).to(array)
            factors = factors.reshape(*halves.shape, *[1] * (array.ndim - 1))
            total = torch.empty_like(array)
            for rows in find_blocks(array, 0):
                wide = array[rows].index_select(axis, images)
                sums = wide.narrow(axis, reach, n) * factors[0, rows]
                for away in range(reach, 0, -1):
                    left = wide.narrow(axis, reach - away, n)
                    right = wide.narrow(axis, reach + away, n)
                    sums += (left + right).mul_(factors[away, rows])
                total[rows] = sums
            array = total
        return array


def _halve(widths: list[float]) -> NDArray[np.float64]:
    """The middle and one side of a Gaussian for each standard deviation in cells: (away, width)."""
    reaches = [int(REACH * width + 0.5) for width in widths]
    halves = np.zeros((max(reaches) + 1, len(widths)))
    for half, width, reach in zip(halves.T, widths, reaches, strict=True):
        side = np.exp(-0.5 * (np.arange(reach + 1) / width) ** 2)
        half[: reach + 1] = side / (side[0] + 2.0 * side[1:].sum())
    return halves


def _mirror(places: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Return the cells, of n, whose mirror images lie at places beyond the ends."""
    places = places % (2 * n)
    return np.where(places < n, places, 2 * n - 1 - places)
