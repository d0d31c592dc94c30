"""The scales of figures: limits, decibels, medians, even spacing; numbers only, no drawing."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]

KM = 1e3  # m
MOST_TRACES = 4096
STRAIGHT = 0.01  # how far a line may bend, of the extent of all lines


def value_limits(array: ArrayLike) -> tuple[float, float]:
    """Least and greatest finite value, widened where they are the same."""
    values, finite = _judge(array)
    if not finite.any():
        return 0.0, 1.0
    low = float(values.min(where=finite, initial=inf))
    high = float(values.max(where=finite, initial=-inf))
    if low == high:
        margin = 0.01 * abs(low) or 1.0
        return low - margin, high + margin
    return low, high


def clip_limit(array: ArrayLike, percentile: float, lit: NDArray[np.bool_] | None = None) -> float:
    """Return the magnitude that `percentile` % of the finite values do not exceed; never 0.

    lit: which cells count, as `find_lit` has it, of those that are not 0; all where not given, or
    where no such cell is left.
    """
    values, finite = _judge(array)
    if lit is not None:
        shown = finite & lit & (values != 0.0)
        finite = shown if shown.any() else finite
    magnitudes = np.abs(values[finite])
    if magnitudes.size == 0:
        return 1.0
    greatest = float(magnitudes.max())
    return float(np.percentile(magnitudes, percentile, overwrite_input=True)) or greatest or 1.0


def find_lit(
    energies: Sequence[NDArray[np.floating]], greatest: Sequence[float], least: float
) -> NDArray[np.bool_]:
    """Return which cells have each energy above `least` (dB) of its greatest."""
    parts = zip(energies, greatest, strict=True)
    lit = [energy > most * 10.0 ** (least / 10.0) for energy, most in parts]
    return np.asarray(np.logical_and.reduce(lit))


def tell_factor(ratio: float) -> str:
    """Return a factor to two digits, without an exponent below a million."""
    return f"{float(f'{ratio:.2g}'):g}"


def exceeded(array: ArrayLike, limits: tuple[float, float]) -> str:
    """Return the limits that values exceed: "neither", "min", "max" or "both"."""
    values, finite = _judge(array)
    below = bool(np.any(values < limits[0], where=finite))
    above = bool(np.any(values > limits[1], where=finite))
    if below and above:
        return "both"
    return "min" if below else "max" if above else "neither"


def greatest_of(array: ArrayLike) -> float:
    """The greatest finite value; 0 where none is above that."""
    values, finite = _judge(array)
    return float(values.max(where=finite, initial=0.0))


def decibels(energy: ArrayLike, greatest: float, least: float) -> Values:
    """10 log10 of the energy over the greatest, not below `least` (dB); zeros are at `least`."""
    values = np.asarray(energy, dtype=np.float64)
    floor = 10.0 ** (least / 10.0)
    ratio = values / greatest if greatest > 0.0 else np.zeros_like(values)
    return 10.0 * np.log10(np.maximum(ratio, floor))


def coarsen(array: NDArray[np.floating], most: int) -> NDArray[np.floating]:
    """Means of blocks of cells, so that there are at most `most` along each axis.

    Itself where there are no more. The last block of an axis may have fewer cells.
    """
    for axis, n in enumerate(array.shape):
        if n > most:
            starts = np.arange(0, n, -(-n // most))
            cells = np.diff(starts, append=n).reshape(-1, *[1] * (array.ndim - axis - 1))
            array = np.add.reduceat(array, starts, axis, dtype=np.float64) / cells
    return array


def coarse_size(n: int, most: int) -> int:
    """Return the number of blocks that `coarsen` makes of so many cells along an axis."""
    return -(-n // -(-n // most))


def running_median(values: ArrayLike, window: int) -> Values:
    """The median of the `window` values around each, fewer at the ends; NaN where none is finite.

    values: (n,); returns (n,).
    """
    values = np.asarray(values, dtype=np.float64)
    half = window // 2
    around = (values[max(i - half, 0) : i + half + 1] for i in range(values.size))
    finite = (_finite(part) for part in around)
    return np.array([np.median(part) if part.size else np.nan for part in finite])


def last_above(places: NDArray[np.floating], values: ArrayLike, part: float) -> float:
    """The last of the places (n,) where the values (n,) exceed that part of their maximum."""
    magnitudes = np.abs(np.asarray(values, dtype=np.float64))
    (where,) = np.nonzero(magnitudes > part * magnitudes.max())
    return float(places[where[-1]]) if where.size else float(places[-1])


def evenly_spaced(traces: NDArray, places: NDArray[np.floating]) -> tuple[NDArray, float, float]:
    """The traces (n, time) at even distances, each the nearest of those at `places` (n,).

    Returns (m, time), and the first and last place. Evenly spaced traces come back as they are,
    in order of place; otherwise the least distance is used, as far as `MOST_TRACES` allow.
    """
    order = np.argsort(places, kind="stable")
    places, traces = places[order], traces[order]
    first, last = float(places[0]), float(places[-1])
    gaps = np.diff(places)
    gaps = gaps[gaps > 1e-6 * (last - first)]
    if gaps.size == 0:
        return traces[:1], first, last
    n = min(round((last - first) / gaps.min()) + 1, MOST_TRACES)
    even = np.linspace(first, last, n)
    middles = 0.5 * (places[1:] + places[:-1])
    return traces[np.searchsorted(middles, even)], first, last


def find_structure(volume: NDArray[np.floating]) -> tuple[int, ...]:
    """The index (z, y, x) at which slices of a volume (nz, ny, nx) show most.

    Along each axis that of the slice with the largest squared difference from the mean at the same
    depth, weighted so that slices in the middle come before those at the edges.
    """
    flat = volume.mean(axis=(1, 2), dtype=np.float64)
    scale = np.abs(flat).max() or 1.0
    along = [np.zeros(n) for n in volume.shape]
    for z, level in enumerate(flat):  # by planes, as the volume in double precision is large
        departure = ((volume[z] - level) / scale) ** 2
        along[0][z] = departure.mean()
        along[1] += departure.mean(axis=1) / flat.size
        along[2] += departure.mean(axis=0) / flat.size
    # Where all layers are flat but for rounding, the middle
    weights = (np.hanning(part.size + 2)[1:-1] for part in along)
    return tuple(
        int(np.argmax((part + 1e-9) * weight)) for part, weight in zip(along, weights, strict=True)
    )


def thin_out(positions: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Return one of the positions (n, 2) in each of `most` by `most` parts of their area."""
    extent = np.ptp(positions, axis=0)
    parts = (positions - positions.min(axis=0)) / np.where(extent > 0.0, extent, 1.0) * most
    row, column = parts.astype(np.int64).T
    _, first = np.unique(row * (most + 1) + column, return_index=True)
    return positions[first]


def find_line(
    places: NDArray[np.float64], source: NDArray[np.float64]
) -> tuple[int, NDArray[np.int64]]:
    """The axis along which places (n, ndim) extend the furthest, and those on the line to show.

    In 2-D these are all of them, and so in a well. Of places in an area (z, y, x), those whose
    distance across the axis from the source (ndim,) is the smallest, give or take `STRAIGHT`.
    """
    extent = np.ptp(places, axis=0)
    along = extent.size - 1 - int(extent[::-1].argmax())
    if extent.size == 2 or along == 0:
        return along, np.arange(len(places))
    across = 3 - along
    nearest = places[np.abs(places[:, across] - source[across]).argmin(), across]
    distance = np.abs(places[:, across] - nearest)
    return along, np.flatnonzero(distance <= STRAIGHT * extent[across])


def _finite(array: ArrayLike) -> Values:
    values = np.asarray(array, dtype=np.float64)
    return values[np.isfinite(values)]


def _judge(array: ArrayLike) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    """An array as numbers of its own precision, and which of them are finite."""
    values = np.asarray(array)
    if values.dtype.kind != "f":
        values = values.astype(np.float64)
    return values, np.isfinite(values)
