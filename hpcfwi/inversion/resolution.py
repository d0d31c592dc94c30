"""Images of reflectors, and resolution tests: pure functions of arrays on a grid.

An image is computed from the change of the model by a migration. A resolution test compares a
perturbation of the model with its response J^T J times the perturbation, where J is the derivative
of the simulated traces (`operators.Born.normal`). `storage.models` writes the files, `report` draws
the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import pi

import numpy as np
import scipy
from numpy.typing import NDArray

from hpcfwi.errors import InputError
from hpcfwi.model import PARAMETERS, Grid, Model

# Corner wavenumber of the filter of images, which halves amplitudes there, as a fraction of the
# wavenumber of reflections at normal incidence.
CORNER = 0.25


def reflectivity(name: str, values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the reflectivity of each cell in a parameter; values: of the parameter, (z, ...).

    It is (b - a) / (b + a) for the value a of the cell and b of the cell below, half of the
    relative contrast. For the P velocity this is the reflectivity at normal incidence with constant
    density (Aki and Richards 2002, equation 5.33). For a parameter that may be negative it is half
    of the contrast, (b - a) / 2, as in the reflectivity of anisotropic rock (Rüger 1997). It is 0
    in the last row and, for the S velocity, beside fluids, whose value is 0.
    """
    wide = values.astype(np.float64, copy=False)
    found = np.zeros_like(wide)
    contrast = np.subtract(wide[1:], wide[:-1], out=found[:-1])
    if PARAMETERS[name].lowest < 0.0:
        contrast *= 0.5
        return found
    contrast[(wide[1:] == 0.0) | (wide[:-1] == 0.0)] = 0.0
    np.divide(contrast, wide[1:] + wide[:-1], out=contrast, where=contrast != 0.0)
    return found


def filter_image(
    change: NDArray[np.floating], grid: Grid, wavenumber: float
) -> NDArray[np.float64]:
    """Return a change of the model without the long wavelengths of waves that are not reflected.

    The filter is k^2 / (k^2 + wavenumber^2), where k is the wavenumber of the change. It is the
    Laplacian that is usual for images of reverse-time migration (Zhang and Sun 2009) at long
    wavelengths, and 1 at short ones. The change is mirrored at the edges of the grid.

    wavenumber: in radians per m.
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


def make_images(
    found: Model, background: Model, fixed: Mapping[str, NDArray[np.bool_]], frequency: float
) -> Model[NDArray[np.float64]]:
    """Return the reflectivities that the filtered change of a model adds to its background.

    found: the parameters that have changed; fixed: cells that were kept, by parameter, in which
    there are no reflectors; frequency: peak frequency of the wavelet, Hz.
    """
    grid = found.grid
    # A reflection of frequency f at normal incidence has the wavenumber 4 pi f / v, which is
    # smallest for P waves.
    corner = CORNER * 4.0 * pi * frequency / float(np.median(background.p_velocity))

    def make(name: str) -> NDArray[np.float64]:
        before, kept = background[name], fixed[name]
        # Outermost cells are left out, because their gradients are those of all cells beyond them.
        change = np.pad((found[name] - before)[(slice(1, -1),) * grid.ndim], 1, mode="edge")
        change = np.where(kept, 0.0, filter_image(change, grid, corner))
        image = reflectivity(name, before + change)
        image -= reflectivity(name, before)
        return np.where(kept, 0.0, image)

    return Model(grid, {name: make(name) for name in found.arrays})


def correlate(
    image: NDArray[np.floating], truth: NDArray[np.floating], fixed: NDArray[np.bool_]
) -> float:
    """Return the correlation of an image with the true reflectivity, in cells that may change."""
    one, other = (array[~fixed] - array[~fixed].mean() for array in (image, truth))
    size = np.sqrt((one * one).sum() * (other * other).sum())
    return float((one * other).sum() / size) if size else 0.0


Values = NDArray[np.float64]

# Perturbation as a fraction of the sizes; the response is proportional to it.
STRENGTH = 0.01
# Smallest size of a checkerboard's cell, or distance between points, in cells of the grid.
FEWEST_CELLS = 4
# Default distance of points in wavelengths; the response of a point is half as wide.
APART = 1.0


def check_size(size: float, grid: Grid, option: str) -> None:
    """Raise `InputError` if a perturbation is too fine for the grid or larger than the model.

    size: of a checkerboard's cell, or distance between points, m; option: its name, for messages.
    """
    least = FEWEST_CELLS * max(grid.spacing)
    if not least <= size <= grid.extent:
        raise InputError(
            option,
            f"found {size:g} m for a model of {grid.extent:g} m with cells of "
            f"{max(grid.spacing):g} m",
            f"Give {least:g} to {grid.extent:g} m.",
        )


def place_points(grid: Grid, fixed: NDArray[np.bool_], apart: float) -> list[NDArray[np.int64]]:
    """Return the indices, along each axis, of points at distances `apart` (m).

    The points are centred in the model; along z they are centred in the cells that may change.
    """
    found = []
    for axis, (n, h) in enumerate(zip(grid.shape, grid.spacing, strict=True)):
        first = _find_top(fixed) if axis == 0 else 0
        cells = n - first
        count = max(1, int(cells * h / apart))
        places = 0.5 * (cells - 1) + (np.arange(count) - 0.5 * (count - 1)) * apart / h
        found.append(first + np.rint(places).astype(np.int64))
    return found


def perturb_points(places: list[NDArray[np.int64]], sizes: Values, free: NDArray) -> Values:
    """Return a perturbation of the cells at points of `place_points`.

    Its sign alternates from point to point, so that the long wavelengths of the responses of
    neighbouring points cancel. sizes: of the parameter in each cell; free: cells that may change;
    there is none elsewhere.
    """
    found = np.zeros_like(sizes)
    at = np.ix_(*places)
    signs = (-1.0) ** sum(np.ix_(*(np.arange(len(place)) for place in places)))
    found[at] = STRENGTH * signs * sizes[at]
    return np.where(free, found, 0.0)


def perturb_checkerboard(grid: Grid, sizes: Values, free: NDArray, size: float) -> Values:
    """Return a perturbation by a checkerboard whose cells have a `size` (m).

    It is a product of one sine per axis, so that it has a single wavelength, twice the size. Along
    x and y, the centre of a cell of the checkerboard is in the middle of the model. Along z, the
    first cell begins at the first row that may change. sizes: as in `perturb_points`.
    """
    found = STRENGTH * sizes
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
    """Measure the amplitudes and widths of the responses of points.

    Returns
    -------
    dict
        `amplitude`, with the shape (nz, ..., nx) of the points, is the response at each point
        divided by its perturbation, relative to the largest such value. `width`, with the shape
        (nz, ..., nx, axis), is the full width of the response at half of its value at the point, in
        m, along each axis. It is NaN if the response does not fall to half before the neighbouring
        points, or is not positive at the point. Both are NaN at points that may not change.
    """
    at = np.ix_(*places)
    there = free[at]
    # The perturbation, and with it the response, is larger where waves are faster.
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
    """Measure the response of a checkerboard in Gaussian windows around all cells of the grid.

    size: of the checkerboard's cells, m; the standard deviation of the window is half of it.

    Returns
    -------
    dict
        `correlation` is the correlation of perturbation and response in each window, from -1 to 1.
        `amplitude` is the root mean square of the response divided by that of the perturbation,
        relative to the largest such value. Both are NaN in cells that may not change.
    """
    sigma = [0.5 * size / h for h in grid.spacing]

    def average(values: Values) -> Values:
        return np.asarray(scipy.ndimage.gaussian_filter(values, sigma, mode="constant"))

    both, own = average(perturbation * response), average(perturbation * perturbation)
    other = average(response * response)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = {"correlation": both / np.sqrt(own * other), "amplitude": np.sqrt(other / own)}
    found = {name: np.where(free, values, np.nan) for name, values in found.items()}
    found["amplitude"] = found["amplitude"] / np.nanmax(found["amplitude"], initial=0.0)
    return found


def describe_measures(measures: Mapping[str, Values], axes: str) -> str:
    """Return a sentence about the measures; axes: names of the axes, such as "zx"."""
    if "correlation" in measures:
        found = measures["correlation"]
        found = found[np.isfinite(found)]
        return (
            f"median correlation {np.median(found):.2f}, above 0.5 in "
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
    return f"median widths {', '.join(words)}" if words else f"none of {count} points is resolved"


def _find_top(fixed: NDArray[np.bool_]) -> int:
    """Return the index of the first row with cells that may change."""
    return int((~fixed).any(axis=tuple(range(1, fixed.ndim))).argmax())


def _find_width(line: Values, centre: int, reach: int) -> float:
    """Return the full width at half of the value at `centre`, in cells.

    It is NaN if the values do not fall to half within `reach` cells on both sides.
    """
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
