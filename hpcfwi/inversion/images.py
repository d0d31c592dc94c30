"""Images of reflectors, from how a migration has changed the model it began with: pure functions.

How the change is found is the business of `objective` and `optimizers.linear`; files are in
`storage.models`, pictures in `report`.
"""

from __future__ import annotations

from math import pi

import numpy as np
import scipy
from numpy.typing import NDArray

from hpcfwi.model import Grid

# Of the wavenumber of reflections at normal incidence, what the filter lets pass by half
CORNER = 0.25


def reflectivity(speed: NDArray[np.floating]) -> NDArray[np.float64]:
    """How much of a wave each cell reflects to the one above, at normal incidence; speed: (z, ...).

    (v2 - v1) / (v2 + v1) of the cell below and the cell itself, where the density is the same; 0 in
    the last row. Aki and Richards (2002), equation 5.33.
    """
    wide = speed.astype(np.float64, copy=False)
    found = np.zeros_like(wide)
    np.subtract(wide[1:], wide[:-1], out=found[:-1])
    found[:-1] /= wide[1:] + wide[:-1]
    return found


def filter_image(
    change: NDArray[np.floating], grid: Grid, wavenumber: float
) -> NDArray[np.float64]:
    """A change of the model without what waves that are not reflected have left in it.

    A Laplacian, as images of reverse time want it (Zhang and Sun 2009), that is divided by itself
    and the square of a wavenumber (1/m, times 2 pi): it leaves alone what is much shorter. Beyond
    the edges are mirror images.
    """
    squares = np.zeros(grid.shape)
    for axis, (n, h) in enumerate(zip(grid.shape, grid.spacing, strict=True)):
        along = (pi * np.arange(n) / (n * h)) ** 2
        squares = squares + along.reshape([-1 if a == axis else 1 for a in range(grid.ndim)])
    spectrum = scipy.fft.dctn(change.astype(np.float64), norm="ortho", overwrite_x=True)
    spectrum *= squares
    squares += wavenumber**2
    spectrum /= squares
    return np.asarray(scipy.fft.idctn(spectrum, norm="ortho", overwrite_x=True))


def make_image(
    found: NDArray[np.floating],
    background: NDArray[np.floating],
    grid: Grid,
    fixed: NDArray[np.bool_],
    frequency: float,
) -> NDArray[np.float64]:
    """The reflectivity that a change from a background, filtered, adds to it.

    found, background: speeds, m/s; fixed: cells that were kept, where there are no reflectors;
    frequency: of the wavelet's peak, Hz.
    """
    # 4 pi f / v is the wavenumber of a layer that reflects a frequency f upwards
    corner = CORNER * 4.0 * pi * frequency / float(np.median(background))
    image = reflectivity(
        background + np.where(fixed, 0.0, filter_image(found - background, grid, corner))
    )
    image -= reflectivity(background)
    return image


def correlate(
    image: NDArray[np.floating], truth: NDArray[np.floating], fixed: NDArray[np.bool_]
) -> float:
    """The correlation of an image with the true reflectivity, in the cells that may change."""
    one, other = (array[~fixed] - array[~fixed].mean() for array in (image, truth))
    size = np.sqrt((one * one).sum() * (other * other).sum())
    return float((one * other).sum() / size) if size else 0.0
