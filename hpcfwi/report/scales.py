"""What of an array is shown: limits, decibels, medians, even spacing. Numbers only, no drawing."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]

KM = 1e3  # m
MOST_TRACES = 4096
STRAIGHT = 0.01  # how far a line may bend, of the extent of all lines


def value_limits(array: ArrayLike) -> tuple[float, float]:
    """Least and greatest finite value, widened where they are the same."""
    values = _finite(array)
    if values.size == 0:
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    if low == high:
        margin = 0.01 * abs(low) or 1.0
        return low - margin, high + margin
    return low, high


def clip_limit(array: ArrayLike, percentile: float) -> float:
    """The magnitude that `percentile` % of the finite values do not exceed; never 0."""
    magnitudes = np.abs(_finite(array))
    if magnitudes.size == 0:
        return 1.0
    return float(np.percentile(magnitudes, percentile)) or float(magnitudes.max()) or 1.0


def exceeded(array: ArrayLike, limits: tuple[float, float]) -> str:
    """Which limits some value exceeds: "neither", "min", "max" or "both"."""
    values = _finite(array)
    below, above = bool((values < limits[0]).any()), bool((values > limits[1]).any())
    if below and above:
        return "both"
    return "min" if below else "max" if above else "neither"


def decibels(energy: ArrayLike, least: float) -> Values:
    """10 log10 of the energy over its maximum, not below `least` (dB); zeros are at `least`."""
    values = np.asarray(energy, dtype=np.float64)
    greatest = _finite(values).max(initial=0.0)
    floor = 10.0 ** (least / 10.0)
    ratio = values / greatest if greatest > 0.0 else np.zeros_like(values)
    return 10.0 * np.log10(np.maximum(ratio, floor))


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
    flat = volume.mean(axis=(1, 2), keepdims=True, dtype=np.float64)
    departure = ((volume - flat) / (np.abs(flat).max() or 1.0)) ** 2
    others = ((1, 2), (0, 2), (0, 1))
    # Where all layers are flat but for rounding, the middle
    found = (departure.mean(axis=axes) + 1e-9 for axes in others)
    return tuple(int(np.argmax(along * np.hanning(along.size + 2)[1:-1])) for along in found)


def thin_out(positions: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """One of the positions (n, 2) in each of `most` by `most` parts of the area they cover."""
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
