"""Images of reflectors, and tests of resolution: pure functions of arrays on a grid.

An image is made of how a migration has changed the model it began with. A test of resolution is a
perturbation and what comes back of it, J^T J of the perturbation, with the derivative J of the
simulations (`operators.Born.normal`). `storage.models` has the files, `report` the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import pi

import numpy as np
import scipy
from numpy.typing import NDArray

from hpcfwi.errors import InputError
from hpcfwi.model import Grid

# Of the wavenumber of reflections at normal incidence, what the filter lets pass by half
CORNER = 0.25


def reflectivity(speed: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the reflectivity of each cell at normal incidence; speed: (z, ...).

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


Values = NDArray[np.float64]

# Of the speed in each cell. What comes back is proportional to it
STRENGTH = 0.01
# Cells of the grid that a cell of a checkerboard, or the distance between points, has at least
FEWEST_CELLS = 4
# Wavelengths between points where nothing is said: what comes back of one is half as wide
APART = 1.0


def check_size(size: float, grid: Grid, option: str) -> None:
    """Raise `InputError` where a perturbation is too fine for the grid, or larger than it."""
    least = FEWEST_CELLS * max(grid.spacing)
    most = max(n * h for n, h in zip(grid.shape, grid.spacing, strict=True))
    if not least <= size <= most:
        raise InputError(
            option,
            f"found {size:g} m in a model of {most:g} m with cells of {max(grid.spacing):g} m",
            f"Give {least:g} to {most:g} m.",
        )


def place_points(grid: Grid, fixed: NDArray[np.bool_], apart: float) -> list[NDArray[np.int64]]:
    """Return the indices, along each axis, of points `apart` (m) in the cells that may change.

    They are centred between the ends of the model or, along z, of the cells that may change.
    """
    found = []
    for axis, (n, h) in enumerate(zip(grid.shape, grid.spacing, strict=True)):
        first = _find_top(fixed) if axis == 0 else 0
        cells = n - first
        count = max(1, int(cells * h / apart))
        places = 0.5 * (cells - 1) + (np.arange(count) - 0.5 * (count - 1)) * apart / h
        found.append(first + np.rint(places).astype(np.int64))
    return found


def perturb_points(places: list[NDArray[np.int64]], speed: Values, free: NDArray) -> Values:
    """Return a perturbation, m/s, of single cells at points as `place_points` gives them.

    Its sign alternates from point to point, so that what comes back over long wavelengths, which
    neighbours share, is not added up.
    """
    found = np.zeros_like(speed)
    at = np.ix_(*places)
    signs = (-1.0) ** sum(np.ix_(*(np.arange(len(place)) for place in places)))
    found[at] = STRENGTH * signs * speed[at]
    return np.where(free, found, 0.0)


def perturb_checkerboard(grid: Grid, speed: Values, free: NDArray, size: float) -> Values:
    """Return a perturbation, m/s, of cells of a `size` (m) and alternating sign.

    A product of sines, one an axis, so that it has a single wavelength, twice the size. Along x
    and y a cell is in the middle of the model; along z the first begins where cells may change.
    """
    found = STRENGTH * speed
    for axis in range(grid.ndim):
        along = grid.coordinates(axis)
        middle = 0.5 * (along[0] + along[-1]) - 0.5 * size
        begins = along[_find_top(~free)] if axis == 0 else middle
        wave = np.sin(np.pi * (along - begins) / size)
        found = found * wave.reshape([-1 if a == axis else 1 for a in range(grid.ndim)])
    return np.where(free, found, 0.0)


def measure_points(
    places: list[NDArray[np.int64]],
    response: Values,
    perturbation: Values,
    grid: Grid,
    free: NDArray[np.bool_],
) -> dict[str, Values]:
    """Measure what comes back of points.

    Returns
    -------
    dict
        `amplitude`, (nz, ..., nx) of the points, is the response at each point for its
        perturbation, over the largest of all. `width`, (nz, ..., nx, axis), is how far from each
        other, in m, the response falls to half of that on both sides of the point, along each axis;
        NaN where it does not on the way to the neighbouring points, or the response at the point
        is not positive. Both are NaN where there is no point.
    """
    at = np.ix_(*places)
    there = free[at]
    # A response counts for each m/s of the perturbation, which is stronger where waves are faster
    with np.errstate(invalid="ignore", divide="ignore"):
        amplitude = np.where(there, response[at] / perturbation[at], np.nan)
    width = np.full((*amplitude.shape, grid.ndim), np.nan)
    for where in np.argwhere(there):
        cell = tuple(int(p[i]) for p, i in zip(places, where, strict=True))
        for axis, h in enumerate(grid.spacing):
            others = cell[:axis] + cell[axis + 1 :]
            line = np.moveaxis(response, axis, -1)[others] * np.sign(perturbation[cell])
            gaps = np.diff(places[axis])
            reach = int(gaps.min()) if gaps.size else grid.shape[axis]
            width[(*where, axis)] = h * _find_width(line, cell[axis], reach)
    return {"amplitude": amplitude / np.nanmax(amplitude, initial=0.0), "width": width}


def measure_checkerboard(
    response: Values, perturbation: Values, grid: Grid, free: NDArray[np.bool_], size: float
) -> dict[str, Values]:
    """Measure what comes back of a checkerboard, in a Gaussian window of its cells' size.

    Returns
    -------
    dict
        `correlation`, on the grid, is that of perturbation and response in the window, from -1 to
        1. `amplitude` is how strong the response is there for its perturbation, over the largest of
        all. Both are NaN in cells that may not change.
    """
    sigma = [0.5 * size / h for h in grid.spacing]

    def average(values: Values) -> Values:
        return np.asarray(scipy.ndimage.gaussian_filter(values, sigma, mode="constant"))

    both, own, other = (
        average(a * b)
        for a, b in (
            (perturbation, response),
            (perturbation, perturbation),
            (response, response),
        )
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        found = {"correlation": both / np.sqrt(own * other), "amplitude": np.sqrt(other / own)}
    found = {name: np.where(free, values, np.nan) for name, values in found.items()}
    found["amplitude"] = found["amplitude"] / np.nanmax(found["amplitude"], initial=0.0)
    return found


def describe_measures(measures: Mapping[str, Values], axes: str) -> str:
    """Return measures in words."""
    if "correlation" in measures:
        found = measures["correlation"]
        found = found[np.isfinite(found)]
        return (
            f"correlation {np.median(found):.2f} in the median, above 0.5 in "
            f"{100.0 * np.mean(found > 0.5):.0f} % of the cells"
        )
    amplitude, width = measures["amplitude"], measures["width"]
    count = int(np.isfinite(amplitude).sum())
    words = []
    for axis, name in enumerate(axes):
        found = width[..., axis][np.isfinite(width[..., axis])]
        if found.size:
            words.append(
                f"{np.median(found):.0f} m along {name} ({found.min():.0f} to {found.max():.0f} m, "
                f"{found.size} of {count} points)"
            )
    return f"median widths {', '.join(words)}" if words else f"none of {count} points comes back"


def _find_top(fixed: NDArray[np.bool_]) -> int:
    """The first row that has cells which may change."""
    return int((~fixed).any(axis=tuple(range(1, fixed.ndim))).argmax())


def _find_width(line: Values, centre: int, reach: int) -> float:
    """Cells between where values fall to half of the centre's, NaN where they do not in reach."""
    half = 0.5 * line[centre]
    if not half > 0.0:
        return np.nan
    width = 0.0
    for side in (line[centre::-1][: reach + 1], line[centre:][: reach + 1]):
        below = np.flatnonzero(side < half)
        if not below.size:
            return np.nan
        k = int(below[0])
        width += k - 1 + (side[k - 1] - half) / (side[k - 1] - side[k])
    return width
