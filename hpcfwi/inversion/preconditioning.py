"""Gradients that are made more like steps, before an optimiser sees them: pure functions.

They are divided by something like the misfit's curvature, or lose what no wave can tell. What is
asked for is in `config.precondition`; the gradient of the misfit itself is `objective`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.config.precondition import PreconditionSection
from hpcfwi.model import Grid, Model
from hpcfwi.wave.simulation import wave_speed


@dataclass(frozen=True)
class Preconditioner:
    """What is asked for; frequency: of the wavelet's peak, Hz.

    taper: factors of the cells around sources and receivers, where these are asked for.
    """

    section: PreconditionSection
    frequency: float
    taper: NDArray[np.float64] | None = None

    @property
    def needs_illuminations(self) -> bool:
        """Whether these are to be asked of the engine, which makes the way back a third longer."""
        return self.section.illumination is not None

    def apply(self, gradient: Model, illuminations: Mapping[str, Tensor], model: Model) -> Model:
        """The gradient with respect to `model`, more like a step; all are of tensors.

        Symmetric and never negative, as searches along lines and conjugate gradients need it: the
        root of the weights, a smoothing's transpose, the smoothing, the root again.
        """
        found = gradient.map(lambda array: array.cpu().numpy().astype(np.float64))
        weights = self._weigh(gradient.grid, illuminations)
        if self.section.smooth is None:
            found = found.map(lambda array: array * weights)
        else:
            speeds = wave_speed(model.as_arrays().arrays)
            lengths = self.section.smooth * speeds.mean(axis=tuple(range(1, speeds.ndim)))
            smoothing = Smoothing(lengths / self.frequency / sqrt(2.0), gradient.grid.spacing)
            root = np.sqrt(weights)
            found = found.map(
                lambda array: root * smoothing.apply(smoothing.transpose(root * array))
            )
        return found.map(lambda array, like: torch.from_numpy(array).to(like), gradient)

    def _weigh(self, grid: Grid, illuminations: Mapping[str, Tensor]) -> NDArray[np.float64]:
        """Factors of cells."""
        weights = np.ones(grid.shape)
        if self.section.illumination is not None:
            weights /= balance([*illuminations.values()], self.section.illumination)
        if self.section.depth is not None:
            depth = np.maximum(grid.coordinates(0) - grid.origin[0], grid.spacing[0])
            by_depth = (depth / depth[-1]) ** self.section.depth
            weights *= by_depth.reshape(-1, *[1] * (grid.ndim - 1))
        if self.taper is not None:
            weights *= self.taper
        return weights


def balance(illuminations: list[Tensor], damping: float) -> NDArray[np.float64]:
    """The root of their product, as a share of its largest, plus a damping.

    About the diagonal of Gauss's and Newton's matrix (Plessix and Mulder 2004, section 3). 1 where
    nothing is lit at all, as with an engine that has no illuminations.
    """
    product = np.ones(illuminations[0].shape)
    for field in illuminations:
        share = field.cpu().numpy().astype(np.float64)
        share /= share.max() or 1.0
        product *= share
    np.sqrt(product, out=product)
    largest = product.max()
    if largest == 0.0:
        return np.ones_like(product)
    product /= largest
    product += damping
    return product


def rise_from(points: NDArray[np.float64], length: float, grid: Grid) -> NDArray[np.float64]:
    """Factors of cells: 0 at points (n, ndim), 1 from a distance on, half a cosine between; m."""
    tree = scipy.spatial.cKDTree(np.unique(points, axis=0))
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


class Smoothing:
    """A Gaussian whose standard deviation (m) is another at each depth, and its transpose.

    Horizontally row by row; vertically as a matrix, of which each row is a Gaussian. Arrays go on
    beyond their ends as their mirror images, so that both ways leave alone what is constant, where
    all depths have the same deviation.
    """

    def __init__(self, lengths: NDArray[np.float64], spacing: tuple[float, ...]) -> None:
        n = lengths.size
        rows = np.arange(n)
        images = np.stack([k * n + either for k in (-2, 0, 2) for either in (rows, -1 - rows)])
        distances = (rows[:, None] - images[:, None]) * spacing[0] / lengths[:, None]
        kernel = np.exp(-0.5 * distances**2).sum(axis=0)
        self._kernel = kernel / kernel.sum(axis=1, keepdims=True)
        self._widths = [[length / h for h in spacing[1:]] for length in lengths]

    def apply(self, array: NDArray[np.float64]) -> NDArray[np.float64]:
        """An array smoothed."""
        # Not BLAS, whose sums may depend on the number of threads
        return np.asarray(np.einsum("ij,j...->i...", self._kernel, self._level(array)))

    def transpose(self, array: NDArray[np.float64]) -> NDArray[np.float64]:
        """The transpose of `apply`."""
        return self._level(np.asarray(np.einsum("ij,i...->j...", self._kernel, array)))

    def _level(self, array: NDArray[np.float64]) -> NDArray[np.float64]:
        """Smoothed along the horizontal axes; its own transpose."""
        planes = [
            scipy.ndimage.gaussian_filter(plane, widths, mode="reflect")
            for plane, widths in zip(array, self._widths, strict=True)
        ]
        return np.stack(planes)
