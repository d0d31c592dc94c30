"""The contents of figures of models, which `models` draws: panels of epochs, resolution tests.

Panels have units, and limits and scales of colours. An excerpt is the part of an array that figures
show. Only the excerpt of a large array is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcfwi.errors import say_count
from hpcfwi.model import Grid, Parameter

Values = NDArray[np.float64]

# Number of cells of a model up to which whole arrays are kept for an epoch's figure, 16 bytes each
MOST_WHOLE = 2**22
MOST_CELLS = 1500  # largest number drawn along an axis, because figures have no more pixels
PROFILES = 5
# Places of profiles in a volume, relative to its extent along y and x: the middle and the quarters
QUARTERS = ((0.25, 0.25), (0.25, 0.75), (0.5, 0.5), (0.75, 0.25), (0.75, 0.75))


@dataclass(frozen=True)
class Excerpt:
    """The parts of an array that figures show.

    sections: a whole 2-D array, or the slices of a volume across z, y and x, with at most
    `MOST_CELLS` cells or means of blocks along each axis; profiles: (place, z), see `find_places`;
    limits: limits of the colour scale.
    """

    sections: tuple[NDArray[np.floating], ...]
    profiles: NDArray[np.floating]
    limits: tuple[float, float]

    def less(self, other: Excerpt, percentile: float) -> Excerpt:
        """Return this excerpt minus another one, with limits at a percentile of its magnitudes."""
        sections = tuple(a - b for a, b in zip(self.sections, other.sections, strict=True))
        limit = clip_limit(np.concatenate([s.ravel() for s in sections]), percentile)
        return Excerpt(sections, self.profiles - other.profiles, (-limit, limit))


def name_sections(grid: Grid) -> tuple[str, ...]:
    """Return the names of an excerpt's sections, in order: the axes perpendicular to them."""
    return ("section",) if grid.ndim == 2 else tuple(grid.axes)


def size_sections(grid: Grid) -> list[tuple[int, ...]]:
    """Return the shapes of the sections of an excerpt, in order."""
    # The number of blocks that `coarsen` makes along each axis
    shape = tuple(-(-n // -(-n // MOST_CELLS)) for n in grid.shape)
    return [shape] if grid.ndim == 2 else [shape[:k] + shape[k + 1 :] for k in range(grid.ndim)]


def find_places(grid: Grid, points: Sequence[Values] = ()) -> tuple[tuple[int, ...], ...]:
    """Return the places of profiles as indices along the horizontal axes, without duplicates.

    They are spread evenly over the extent of points (n, ndim) of a survey, in m, or over the grid
    if no point is in it. In 2-D the first and last place are half an interval from its ends.
    """
    inside = np.concatenate([np.zeros((0, grid.ndim)), *(p[grid.contains(p)] for p in points)])
    extent = inside if len(inside) else np.array([grid.origin, grid.last])
    low, high = extent.min(axis=0)[1:], extent.max(axis=0)[1:]
    along = [((k + 0.5) / PROFILES,) for k in range(PROFILES)]
    parts: Sequence[tuple[float, ...]] = along if grid.ndim == 2 else QUARTERS
    at = low + np.array(parts) * (high - low)
    indices = np.rint((at - grid.origin[1:]) / grid.spacing[1:]).astype(np.int64)
    return tuple(dict.fromkeys(map(tuple, indices.tolist())))


CHANGE_CLIP = 99.5  # percentile of the magnitudes
# By the number of axes. In 3-D, amplitudes decrease faster, so that the map at middle depth is weak
GRADIENT_CLIP = {2: 99.0, 3: 90.0}
DARKEST = -60.0  # dB
# Matplotlib's names
MODEL_COLOURS = "viridis"
SIGNED_COLOURS = "RdBu_r"
ENERGY_COLOURS = "magma"
# Arrays of a picture that change from epoch to epoch
ENERGIES = ("source_illumination", "receiver_illumination")
OF_EACH = ("inverted", "gradient")  # of each parameter
CHANGING = (*OF_EACH, *ENERGIES)


@dataclass(frozen=True)
class EpochPicture:
    """The contents of an epoch's figure.

    Arrays have the grid's shape; large ones are replaced by excerpts.

    parameter: the parameter that is shown; true: the true model in its unit, None if it is not
    known; start: the starting model, which then replaces it; inverted: the inverted model;
    gradient: gradient of the misfit with respect to it; illuminations: time sums of squared fields;
    sources, receivers: (n, ndim), m, in the grid's coordinates; kept: cells that the inversion does
    not change; cuts, places: indices (z, y, x) of a volume's slices, and places of profiles, see
    `find_places`; empty until `cut` finds them.
    """

    epoch: int
    grid: Grid
    parameter: Parameter
    true: NDArray[np.float32] | None
    inverted: NDArray[np.float32] | Excerpt
    gradient: NDArray[np.float32] | Excerpt
    source_illumination: NDArray[np.float32] | Excerpt
    receiver_illumination: NDArray[np.float32] | Excerpt
    start: NDArray[np.float32] | None = None
    sources: Values | None = None
    receivers: Values | None = None
    kept: NDArray[np.bool_] | None = None
    cuts: tuple[int, ...] = ()
    places: tuple[tuple[int, ...], ...] = ()

    def cut(self) -> EpochPicture:
        """Return the same picture with its slices and the places of its profiles.

        Slices go through the part of the true model, or of the starting model if the true one is
        not known, that differs most from flat layers, so that they are the same in all epochs.
        """
        places, cuts = self.places, self.cuts
        if not places:
            points = [p for p in (self.sources, self.receivers) if p is not None]
            places = find_places(self.grid, points)
        if not cuts and self.grid.ndim == 3:
            known = next(v for v in (self.true, self.start, self.inverted) if v is not None)
            assert not isinstance(known, Excerpt), "made with cuts"
            cuts = find_structure(known)
        return replace(self, cuts=cuts, places=places)

    def shorten(self) -> EpochPicture:
        """Return the same picture with slices; if it is large, excerpts replace changing arrays."""
        picture = self.cut()
        if prod(self.grid.shape) <= MOST_WHOLE:
            return picture
        changing: dict[str, Any] = {name: picture.excerpt(name) for name in CHANGING}
        return replace(picture, **changing)

    def excerpt(self, name: str) -> Excerpt | None:
        """Return the excerpt of an array, None if the array is not known; needs slices."""
        array = getattr(self, name)
        if array is None or isinstance(array, Excerpt):
            return array
        slices = [array]
        if array.ndim == 3:
            slices = [array.take(n, axis) for axis, n in enumerate(self.cuts)]
        sections = tuple(coarsen(each, MOST_CELLS) for each in slices)
        profiles = np.stack([array.T[place[::-1]] for place in self.places])
        return Excerpt(sections, profiles, self._find_limits(name, array))

    def find_lit(self) -> NDArray[np.bool_]:
        """Return a mask of the cells of the drawn section that both waves illuminate.

        For a volume this is the section across y. The picture must have slices.
        """
        excerpts = [self.excerpt(name) for name in ENERGIES]
        sections = [e.sections[self.grid.ndim // 3] for e in excerpts if e is not None]
        most = [e.limits[1] for e in excerpts if e is not None]
        return find_lit(sections, most)

    def _find_limits(self, name: str, array: NDArray[np.floating]) -> tuple[float, float]:
        """Return the limits of the values of an array of the picture."""
        if name == "gradient":
            energies = [np.asarray(getattr(self, each)) for each in ENERGIES]
            lit = find_lit(energies, [*map(greatest_of, energies)])
            limit = clip_limit(array, GRADIENT_CLIP[self.grid.ndim], lit)
            return -limit, limit
        if name in ENERGIES:
            return 0.0, greatest_of(array)
        return value_limits(array if self.scaled is None else array[self.scaled])

    @property
    def scaled(self) -> NDArray[np.bool_] | None:
        """The cells whose values determine the scale of models, None if all of them do.

        Kept water has quality factors that are hundreds of times those of rock.
        """
        if self.parameter.name not in ("qp", "qs") or self.kept is None or self.kept.all():
            return None
        return ~self.kept


@dataclass(frozen=True)
class Panel:
    """One of the six panels: the sections of an array in the unit of the figure, and its colours.

    sections: as those of an `Excerpt`, None to write `instead` in their place; origins: positions
    (n, ndim), m, of the sources of waves whose energy is shown; caption: number and kind of the
    origins.
    """

    title: str
    sections: tuple[NDArray[np.floating], ...] | None
    limits: tuple[float, float]
    colours: str
    unit: str
    origins: Values | None = None
    caption: str | None = None
    instead: str = "not known"


# Number of panels of each parameter
OF_PARAMETER = 4


def panels(pictures: Sequence[EpochPicture]) -> Iterator[Panel]:
    """Yield the panels: for each parameter those of `_panels_of`, then both illuminations.

    pictures: one for each parameter, of the same model and epoch, with the same slices.
    """
    for picture in pictures:
        yield from _panels_of(picture, is_alone=len(pictures) == 1)
    picture = pictures[0]
    for name, origins in (("source", picture.sources), ("receiver", picture.receivers)):
        energy = picture.excerpt(f"{name}_illumination")
        assert energy is not None
        yield Panel(
            f"{name.capitalize()} illumination",
            tuple(decibels(part, energy.limits[1]) for part in energy.sections),
            (DARKEST, 0.0),
            ENERGY_COLOURS,
            "dB re maximum",
            origins,
            None if origins is None else count(origins, name),
        )


def _panels_of(picture: EpochPicture, is_alone: bool) -> Iterator[Panel]:
    """Yield the panels of a parameter: true model, inverted model, change and gradient.

    Both models have the colour scale of the true one, or of the inverted one if the true one is not
    known. is_alone: True if there is no other parameter, so that titles need not name it.
    """
    parameter = picture.parameter
    what = "model" if is_alone else parameter.title
    inverted, true, start = (picture.excerpt(name) for name in ("inverted", "true", "start"))
    gradient = picture.excerpt("gradient")
    assert inverted is not None
    assert gradient is not None
    change = None if start is None else inverted.less(start, CHANGE_CLIP)
    common = inverted if true is None else true
    reference = f"True {what}", true
    if true is None and start is not None:
        reference = f"Starting {what}", start
    for title, excerpt, (low, high), colours in (
        (*reference, common.limits, MODEL_COLOURS),
        (f"Inverted {what}, epoch {picture.epoch}", inverted, common.limits, MODEL_COLOURS),
        (
            f"Inverted - starting {what}",
            change,
            (-1.0, 1.0) if change is None else change.limits,
            SIGNED_COLOURS,
        ),
    ):
        scale, sections = parameter.figure_scale, None
        if excerpt is not None:
            # In double precision, because rounded values could exceed the limits
            sections = tuple(part.astype(np.float64) / scale for part in excerpt.sections)
        yield Panel(title, sections, (low / scale, high / scale), colours, parameter.label)
    of = "" if is_alone else f" in {parameter.name}"
    # The gradient of a parameter that is tied to another one is part of the other's
    is_zero = not any(part.any() for part in gradient.sections)
    yield Panel(
        f"Gradient{of}, clipped at {GRADIENT_CLIP[picture.grid.ndim]:g} %",
        None if is_zero else gradient.sections,
        gradient.limits,
        SIGNED_COLOURS,
        f"misfit per {parameter.unit}" if parameter.unit else "misfit",
        instead="zero",
    )


@dataclass(frozen=True)
class ResolutionTest:
    """A resolution test; arrays have the shape of the grid unless stated otherwise.

    size: of a checkerboard's cells, or the distance between points, m; model: a description of the
    model around which the waves were linearised; parameter: name of the parameter that is
    perturbed; values: those of the parameter in that model, in its unit; perturbation: their
    change, in the same unit; response: J^T J of the perturbation; points: positions (nz, ..., nx,
    ndim), m, of the points of point spread functions; measures: result of `measure_points` or
    `measure_checkerboard`.
    """

    grid: Grid
    size: float
    model: str
    parameter: str
    values: Values
    perturbation: Values
    response: Values
    points: Values | None
    measures: Mapping[str, Values]


def count(positions: Values, name: str) -> str:
    """Return the number of different positions (n, ndim) with a noun: "1 source", "2 sources"."""
    return say_count(len(np.unique(positions, axis=0)), name)


def edges(grid: Grid, axis: int) -> tuple[float, float]:
    """Return the outer edges of the first and the last cell along an axis, in km."""
    half = 0.5 * grid.spacing[axis]
    return (grid.origin[axis] - half) / KM, (grid.last[axis] + half) / KM


KM = 1e3  # m
MOST_TRACES = 4096
STRAIGHT = 0.01  # deviation of a line from straight, as a share of the extent of all lines


def value_limits(array: ArrayLike) -> tuple[float, float]:
    """Return the least and the greatest finite value, moved apart if they are equal."""
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

    lit: mask of the cells that count if they are not 0, see `find_lit`; all cells count if it is
    not given, or if none is left.
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
    energies: Sequence[NDArray[np.floating]], greatest: Sequence[float]
) -> NDArray[np.bool_]:
    """Return a mask of the cells where each energy is above `DARKEST` of its greatest value."""
    parts = zip(energies, greatest, strict=True)
    lit = [energy > most * 10.0 ** (DARKEST / 10.0) for energy, most in parts]
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
    """Return the greatest finite value; 0 if none is above it."""
    values, finite = _judge(array)
    return float(values.max(where=finite, initial=0.0))


def decibels(energy: ArrayLike, greatest: float) -> Values:
    """Return 10 log10(energy / greatest) in dB, but at least `DARKEST`, also for zeros."""
    values = np.asarray(energy, dtype=np.float64)
    floor = 10.0 ** (DARKEST / 10.0)
    ratio = values / greatest if greatest > 0.0 else np.zeros_like(values)
    return 10.0 * np.log10(np.maximum(ratio, floor))


def coarsen(array: NDArray[np.floating], most: int) -> NDArray[np.floating]:
    """Return the means of blocks of cells, so that there are at most `most` along each axis.

    An axis with at most as many cells is not changed. The last block of an axis may be smaller.
    """
    for axis, n in enumerate(array.shape):
        if n > most:
            starts = np.arange(0, n, -(-n // most))
            cells = np.diff(starts, append=n).reshape(-1, *[1] * (array.ndim - axis - 1))
            array = np.add.reduceat(array, starts, axis, dtype=np.float64) / cells
    return array


def take_section(values: NDArray[np.floating], plane: int) -> NDArray[np.floating]:
    """Return the section of an array of the grid; plane: its index along y in a volume."""
    return coarsen(values[:, plane] if values.ndim == 3 else values, MOST_CELLS)


def running_median(values: ArrayLike, window: int) -> Values:
    """Return the running median of values (n,), shape (n,).

    It is the median of the finite ones of `window` values, fewer at the ends, or NaN without any.
    """
    values = np.asarray(values, dtype=np.float64)
    half = window // 2
    around = (values[max(i - half, 0) : i + half + 1] for i in range(values.size))
    finite = (part[np.isfinite(part)] for part in around)
    return np.array([np.median(part) if part.size else np.nan for part in finite])


def last_above(places: NDArray[np.floating], values: ArrayLike, part: float) -> float:
    """Return the last of the places (n,) at which values (n,) exceed this part of their maximum."""
    magnitudes = np.abs(np.asarray(values, dtype=np.float64))
    (where,) = np.nonzero(magnitudes > part * magnitudes.max())
    return float(places[where[-1]]) if where.size else float(places[-1])


def evenly_spaced(traces: NDArray, places: NDArray[np.floating]) -> tuple[NDArray, float, float]:
    """Return evenly spaced traces (m, time), and the first and the last place.

    Each is the nearest of the traces (n, time) at `places` (n,). Traces that are already evenly
    spaced are only sorted by place; otherwise the interval is the smallest one between places, but
    not so small that there are more than `MOST_TRACES` traces.
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
    """Return the index (z, y, x) at which slices of a volume (nz, ny, nx) show most structure.

    Along each axis it is the slice with the largest squared difference from the mean at the same
    depth, weighted to prefer slices in the middle to slices at the edges.
    """
    flat = volume.mean(axis=(1, 2), dtype=np.float64)
    scale = np.abs(flat).max() or 1.0
    along = [np.zeros(n) for n in volume.shape]
    for z, level in enumerate(flat):  # plane by plane, to save memory in double precision
        departure = ((volume[z] - level) / scale) ** 2
        along[0][z] = departure.mean()
        along[1] += departure.mean(axis=1) / flat.size
        along[2] += departure.mean(axis=0) / flat.size
    # If all layers are flat except for rounding errors, this takes the middle.
    weights = (np.hanning(part.size + 2)[1:-1] for part in along)
    return tuple(
        int(np.argmax((part + 1e-9) * weight)) for part, weight in zip(along, weights, strict=True)
    )


def thin_out(positions: Values, most: int) -> Values:
    """Return one of the positions (n, 2) in each of `most` by `most` parts of their area."""
    extent = np.ptp(positions, axis=0)
    parts = (positions - positions.min(axis=0)) / np.where(extent > 0.0, extent, 1.0) * most
    row, column = parts.astype(np.int64).T
    _, first = np.unique(row * (most + 1) + column, return_index=True)
    return positions[first]


def find_line(places: Values, source: Values) -> tuple[int, NDArray[np.int64]]:
    """Return the axis along which places (n, ndim) extend the furthest, and the indices of a line.

    In 2-D and in a well, the line has all places, if there are any. If places (z, y, x) cover an
    area, it has those that are nearest to the source (ndim,) across the axis, within a tolerance
    (`STRAIGHT`).
    """
    if not len(places):
        return 0, np.arange(0)
    extent = np.ptp(places, axis=0)
    along = extent.size - 1 - int(extent[::-1].argmax())
    if extent.size == 2 or along == 0:
        return along, np.arange(len(places))
    across = 3 - along
    nearest = places[np.abs(places[:, across] - source[across]).argmin(), across]
    distance = np.abs(places[:, across] - nearest)
    return along, np.flatnonzero(distance <= STRAIGHT * extent[across])


def _judge(array: ArrayLike) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    """Return an array of numbers without a change of precision, and a mask of finite ones."""
    values = np.asarray(array)
    if values.dtype.kind != "f":
        values = values.astype(np.float64)
    return values, np.isfinite(values)
