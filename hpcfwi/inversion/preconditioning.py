"""Gradients that are made more like steps, before an optimiser sees them: pure functions.

They are divided by something like the misfit's curvature, or lose what no wave can tell. What is
asked for is in `config.precondition`; the gradient of the misfit itself is `objective`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial import cKDTree
from torch import Tensor

from hpcfwi.config.precondition import PreconditionSection
from hpcfwi.model import Grid, Model
from hpcfwi.wave.acoustic import wave_speed


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
        """The gradient with respect to `model`, more like a step; all are of tensors."""
        section = self.section
        found = gradient.map(lambda array: array.cpu().numpy().astype(np.float64))
        if section.illumination is not None:
            lit = balance([*illuminations.values()], section.illumination)
            found = found.map(lambda array: array / lit)
        if section.depth is not None:
            grid = gradient.grid
            depth = np.maximum(grid.coordinates(0) - grid.origin[0], grid.spacing[0])
            weights = (depth / depth[-1]) ** section.depth
            found = found.map(lambda array: array * weights.reshape(-1, *[1] * (grid.ndim - 1)))
        if self.taper is not None:
            taper = self.taper
            found = found.map(lambda array: array * taper)
        if section.smooth is not None:
            speeds = wave_speed(model.as_arrays().arrays)
            lengths = section.smooth * speeds.mean(axis=tuple(range(1, speeds.ndim)))
            lengths = lengths / self.frequency
            found = found.map(lambda array: smooth_by_depth(array, lengths, gradient.grid.spacing))
        return found.map(lambda array, like: torch.from_numpy(array).to(like), gradient)


def balance(illuminations: list[Tensor], damping: float) -> NDArray[np.float64]:
    """The root of their product, as a share of its largest, plus a damping.

    About the diagonal of Gauss's and Newton's matrix (Plessix and Mulder 2004, section 3). 1 where
    nothing is lit at all, as with an engine that has no illuminations.
    """
    fields = [field.cpu().numpy().astype(np.float64) for field in illuminations]
    product = np.sqrt(np.prod([field / (field.max() or 1.0) for field in fields], axis=0))
    largest = product.max()
    if largest == 0.0:
        return np.ones_like(product)
    return np.asarray(product / largest + damping)


def rise_from(points: NDArray[np.float64], length: float, grid: Grid) -> NDArray[np.float64]:
    """Factors of cells: 0 at points (n, ndim), 1 from a distance on, half a cosine between; m."""
    tree = cKDTree(np.unique(points, axis=0))
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


def smooth_by_depth(
    array: NDArray[np.float64], lengths: NDArray[np.float64], spacing: tuple[float, ...]
) -> NDArray[np.float64]:
    """An array smoothed by a Gaussian whose standard deviation (m) is another at each depth.

    Horizontally row by row; vertically as a matrix, of which each row is a Gaussian.
    """
    rows = np.arange(array.shape[0])
    distances = (rows[:, None] - rows) * spacing[0] / lengths[:, None]
    kernel = np.exp(-0.5 * distances**2)
    kernel /= kernel.sum(axis=1, keepdims=True)
    level = [
        ndimage.gaussian_filter(plane, [length / h for h in spacing[1:]], mode="nearest")
        for plane, length in zip(array, lengths, strict=True)
    ]
    # Not BLAS, whose sums may depend on the number of threads
    return np.asarray(np.einsum("ij,j...->i...", kernel, np.stack(level)))
