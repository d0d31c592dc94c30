"""Preconditioners, which bring gradients closer to steps before an optimizer uses them.

Gradients are divided by an approximation of the curvature of the misfit, or smoothed over parts of
a wavelength. `config.inversion` has the settings, and `objective` computes the gradients.
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
from hpcfwi.wave.equation import Speed

# Extent of a Gaussian to each side, in standard deviations, horizontally and vertically.
REACH, DEEP = 4.0, 6.0


@dataclass(frozen=True)
class Preconditioner:
    """A preconditioner of gradients.

    frequency: of the wavelet's peak, Hz; slowest: the speed of the slowest waves in a model; taper:
    factors of the cells around sources and receivers, if requested.
    """

    section: PreconditionSection
    frequency: float
    slowest: Speed
    taper: NDArray[np.float64] | None = None

    def apply(self, gradient: Model, illuminations: Mapping[str, Tensor], model: Model) -> Model:
        """Return the preconditioned gradient with respect to a model, both of tensors.

        The operator is symmetric and positive semidefinite, as line searches and conjugate
        gradients require: the root of the weights, the transpose of a smoothing, the smoothing, and
        the root again.
        """
        weights = self._weigh(gradient.grid, gradient.any.device, illuminations)
        if self.section.smooth is None:
            return gradient.map(lambda array: (array * weights).to(array.dtype))
        speeds = self.slowest(model.arrays)
        means = add_up(speeds, tuple(range(1, speeds.ndim))).cpu().numpy() / prod(speeds.shape[1:])
        lengths = self.section.smooth * means / self.frequency / sqrt(2.0)
        smoothing, root = Smoothing(lengths, gradient.grid.spacing), weights.sqrt_()

        def smooth(array: Tensor) -> Tensor:
            return smoothing.apply(smoothing.transpose(array * root)).mul_(root).to(array.dtype)

        return gradient.map(smooth)

    def _weigh(
        self, grid: Grid, device: torch.device, illuminations: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the factors of cells, in float64."""
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
    """Return the root of the product of fields, divided by its maximum, plus a damping; float64.

    It approximates the diagonal of the Gauss-Newton matrix (Plessix and Mulder 2004, section 3). It
    is 1 if there are no illuminations.
    """
    product = torch.ones_like(illuminations[0], dtype=torch.float64)
    for field in illuminations:
        product.mul_(field.double() / _largest(field))
    product.sqrt_().div_(_largest(product))
    lit = product.amax() > 0.0
    return product.add_(torch.where(lit, product.new_full((), damping), 1.0))


def _largest(field: Tensor) -> Tensor:
    """Return the largest value in double precision, or 1 if that is not above 0."""
    largest = field.amax().double()
    return torch.where(largest > 0.0, largest, 1.0)


def rise_from(points: NDArray[np.float64], length: float, grid: Grid) -> NDArray[np.float64]:
    """Return factors of cells: 0 at points (n, ndim), 1 from a distance (m) on."""
    points = find_outermost(points, grid)
    tree = scipy.spatial.cKDTree(points)
    factors = np.ones(grid.shape)
    level = np.meshgrid(*(grid.coordinates(axis) for axis in range(1, grid.ndim)), indexing="ij")
    # This is done for each depth, because positions of all cells take more memory than a gradient.
    for plane, depth in zip(factors, grid.coordinates(0), strict=True):
        if np.abs(points[:, 0] - depth).min() < length:
            cells = np.stack([np.full(plane.shape, depth), *level], axis=-1)
            # The distance is infinite if no point is close.
            distances, _ = tree.query(cells, distance_upper_bound=length)
            plane[:] = 0.5 - 0.5 * np.cos(np.pi * np.minimum(distances / length, 1.0))
    return factors


def thin_out(parts: Iterable[NDArray[np.float64]], grid: Grid) -> NDArray[np.float64]:
    """Return `find_outermost` of points (n, ndim), m, that are given in parts."""
    pile: list[NDArray[np.float64]] = []
    for part in parts:
        pile.append(find_outermost(part, grid))
        # This is not done after every part, because it sorts the earlier points again.
        if sum(map(len, pile)) > 2 * len(pile[0]):
            pile = [find_outermost(np.concatenate(pile), grid)]
    return find_outermost(np.concatenate(pile), grid)


def find_outermost(points: NDArray[np.float64], grid: Grid) -> NDArray[np.float64]:
    """Return the points (n, ndim), m, that can be nearest to a cell, sorted and distinct.

    Of points that differ only along the last axis and lie between the same two cells there, only
    the two outer ones can be nearest to a cell.
    """
    columns = [column for column in points.T[::-1] if np.ptp(column) > 0.0]
    points = points[np.lexsort(columns)] if columns else points[:1]
    points = points[_differ(points)]
    between = np.floor((points[:, -1] - grid.origin[-1]) / grid.spacing[-1])
    begins = _differ(np.column_stack([points[:, :-1], between]))
    return points[begins | np.append(begins[1:], True)]


def _differ(rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask of the rows that differ from the row before."""
    return np.append(True, (rows[1:] != rows[:-1]).any(axis=1))


class Smoothing:
    """Smoothing by a Gaussian whose standard deviation (m) depends on depth, and its transpose.

    Horizontally, it is applied row by row; vertically, it is a matrix whose rows are Gaussians.
    Arrays are continued beyond their ends by their mirror images, so that both operators preserve
    constants if all depths have the same standard deviation.
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
        """Return a smoothed array, in float64."""
        return self._down.apply(self._level(array), 0)

    def transpose(self, array: Tensor) -> Tensor:
        """Apply the transpose of `apply`."""
        return self._level(self._up.apply(array, 0))

    def _level(self, array: Tensor) -> Tensor:
        """Smooth along the horizontal axes; the operator is its own transpose."""
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
    """Return the centre and one side of Gaussians of these widths in cells, (distance, width)."""
    reaches = [int(REACH * width + 0.5) for width in widths]
    halves = np.zeros((max(reaches) + 1, len(widths)))
    for half, width, reach in zip(halves.T, widths, reaches, strict=True):
        side = np.exp(-0.5 * (np.arange(reach + 1) / width) ** 2)
        half[: reach + 1] = side / (side[0] + 2.0 * side[1:].sum())
    return halves


def _mirror(places: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Return the cells, of n, that are continued by mirror images to these places."""
    places = places % (2 * n)
    return np.where(places < n, places, 2 * n - 1 - places)
