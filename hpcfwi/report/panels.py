"""The panels of an epoch's figure: what they show, in which units and on which scales; no drawing.

An excerpt is what figures show of an array that may be as large as memory; of a large array nothing
else is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcfwi.model import Grid, Parameter
from hpcfwi.report import scales
from hpcfwi.report.scales import KM

# Cells of a model up to which whole arrays are kept of an epoch's figure, 16 bytes each
MOST_WHOLE = 2**22
MOST_CELLS = 1500  # drawn along an axis, as figures have no more dots
PROFILES = 5
# Of a volume, in parts of its extent along y and x: the middle, and those of its quarters
QUARTERS = ((0.25, 0.25), (0.25, 0.75), (0.5, 0.5), (0.75, 0.25), (0.75, 0.75))


@dataclass(frozen=True)
class Excerpt:
    """The parts of an array that figures show.

    sections: at most `MOST_CELLS` along each axis, or means of as many blocks: a whole 2-D array,
    or the slices of a volume across z, y and x; profiles: (place, z), see `find_places`; limits: of
    the colours.
    """

    sections: tuple[NDArray[np.floating], ...]
    profiles: NDArray[np.floating]
    limits: tuple[float, float]

    @classmethod
    def of(
        cls,
        array: NDArray[np.floating],
        cuts: Sequence[int],
        places: Sequence[tuple[int, ...]],
        limits: tuple[float, float],
    ) -> Excerpt:
        """cuts: the indices of a volume's slices, along z, y and x; places: of profiles."""
        slices = [array]
        if array.ndim == 3:
            slices = [np.take(array, [n], axis).squeeze(axis) for axis, n in enumerate(cuts)]
        profiles = np.stack([array.T[place[::-1]] for place in places])
        return cls(tuple(scales.coarsen(s, MOST_CELLS) for s in slices), profiles, limits)

    def less(self, other: Excerpt, percentile: float) -> Excerpt:
        """Return how much it is more than another, with limits that clip some of it."""
        sections = tuple(a - b for a, b in zip(self.sections, other.sections, strict=True))
        limit = scales.clip_limit(np.concatenate([s.ravel() for s in sections]), percentile)
        return Excerpt(sections, self.profiles - other.profiles, (-limit, limit))


def name_sections(grid: Grid) -> tuple[str, ...]:
    """Return the names of an excerpt's sections, in order: the axes that they are across."""
    return ("section",) if grid.ndim == 2 else tuple(grid.axes)


def size_sections(grid: Grid) -> list[tuple[int, ...]]:
    """The shapes of the sections of an excerpt, in order."""
    shape = tuple(scales.coarse_size(n, MOST_CELLS) for n in grid.shape)
    return [shape] if grid.ndim == 2 else [shape[:k] + shape[k + 1 :] for k in range(grid.ndim)]


def find_places(
    grid: Grid, points: Sequence[NDArray[np.float64]] = ()
) -> tuple[tuple[int, ...], ...]:
    """Return indices of the horizontal axes where profiles are taken, each once.

    They are spread evenly over what the points (n, ndim) of a survey extend over, in m, or over the
    grid where none is in it. In 2-D they are as far from its ends as half of their distance.
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
# By the axes of the model: waves that spread in three leave less to the map in the middle's depth
GRADIENT_CLIP = {2: 99.0, 3: 90.0}
DARKEST = -60.0  # dB
# Matplotlib's names
MODEL_COLOURS = "viridis"
SIGNED_COLOURS = "RdBu_r"
ENERGY_COLOURS = "magma"
# Of a picture, the arrays that another epoch has others of
ENERGIES = ("source_illumination", "receiver_illumination")
CHANGING = ("inverted", "gradient", *ENERGIES)


@dataclass(frozen=True)
class EpochPicture:
    """The contents of an epoch's figure.

    Arrays have the grid's shape; large ones are replaced by excerpts.

    parameter: the parameter that is shown; true: in its unit, None if it is not known, and then
    start, the starting model, takes its place; inverted: the model; gradient: of the misfit with
    respect to it; illuminations: time sums of squared fields; sources, receivers: (n, ndim), m, in
    the grid's coordinates; kept: cells that the inversion keeps; cuts: indices (z, y, x) of a
    volume's slices, and places of profiles, see `find_places`; None until they are found.
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
    sources: NDArray[np.float64] | None = None
    receivers: NDArray[np.float64] | None = None
    kept: NDArray[np.bool_] | None = None
    cuts: tuple[int, ...] | None = None
    places: tuple[tuple[int, ...], ...] | None = None

    def cut(self) -> EpochPicture:
        """Return the same with its slices and the places of its profiles.

        Slices go through what departs most from flat layers, in the true model or, where that is
        not known, in the starting one.
        """
        if self.places is None:
            points = [p for p in (self.sources, self.receivers) if p is not None]
            return replace(self, places=find_places(self.grid, points)).cut()
        if self.cuts is not None or self.grid.ndim == 2:
            return replace(self, cuts=self.cuts or ())
        known = next(v for v in (self.true, self.start, self.inverted) if v is not None)
        assert not isinstance(known, Excerpt), "made with cuts"
        return replace(self, cuts=scales.find_structure(known))

    def shorten(self) -> EpochPicture:
        """The same, with its slices; of a large model excerpts of all that an epoch changes."""
        picture = self.cut()
        if prod(self.grid.shape) <= MOST_WHOLE:
            return picture
        changing: dict[str, Any] = {name: picture.excerpt(name) for name in CHANGING}
        return replace(picture, **changing)

    def excerpt(self, name: str) -> Excerpt | None:
        """Return the excerpt of an array, None if it is not known; slices must be known."""
        assert self.cuts is not None
        assert self.places is not None
        array = getattr(self, name)
        if array is None or isinstance(array, Excerpt):
            return array
        return Excerpt.of(array, self.cuts, self.places, self._find_limits(name, array))

    def find_lit(self) -> NDArray[np.bool_]:
        """Return which cells of the section that is drawn are lit by both waves.

        For a volume it is the one across y. The picture has slices.
        """
        excerpts = [self.excerpt(name) for name in ENERGIES]
        sections = [e.sections[self.grid.ndim // 3] for e in excerpts if e is not None]
        most = [e.limits[1] for e in excerpts if e is not None]
        return scales.find_lit(sections, most, DARKEST)

    def _find_limits(self, name: str, array: NDArray[np.floating]) -> tuple[float, float]:
        """Between which values an array of the picture is drawn."""
        if name == "gradient":
            energies = [np.asarray(getattr(self, each)) for each in ENERGIES]
            lit = scales.find_lit(energies, [*map(scales.greatest_of, energies)], DARKEST)
            limit = scales.clip_limit(array, GRADIENT_CLIP[self.grid.ndim], lit)
            return -limit, limit
        if name in ENERGIES:
            return 0.0, scales.greatest_of(array)
        return scales.value_limits(array)


@dataclass(frozen=True)
class Panel:
    """One of the six panels: an excerpt of an array, and its colours.

    excerpt: None if the array is not known; convert: from a part of it to the values that are
    drawn; origins: (n, ndim), m, of the waves whose energy it is; caption: number and kind of the
    origins.
    """

    title: str
    excerpt: Excerpt | None
    convert: Callable[[NDArray[np.floating]], NDArray[np.floating]]
    limits: tuple[float, float]
    colours: str
    unit: str
    origins: NDArray[np.float64] | None = None
    caption: str | None = None


def panels(picture: EpochPicture) -> Iterator[Panel]:
    """True model, inverted model, what it has changed, gradient, source and receiver illumination.

    Both models have the colour scale of the true one, or of the inverted one where the true one
    is not known.
    """
    picture = picture.cut()
    reference, title = picture.excerpt("true"), "True model"
    inverted = picture.excerpt("inverted")
    common = inverted if reference is None else reference
    assert common is not None, "there is a model that is shown"
    low, high = common.limits
    if reference is None and picture.start is not None:
        reference, title = picture.excerpt("start"), "Starting model"
    parameter = picture.parameter
    scale = parameter.figure_scale

    def in_unit(part: NDArray[np.floating]) -> NDArray[np.floating]:
        """Convert in double precision, as rounding would exceed the limits."""
        return part.astype(np.float64) / scale

    unit = f"{parameter.title} ({parameter.figure_unit})"
    for model, name in (
        (reference, title),
        (inverted, f"Inverted model, epoch {picture.epoch}"),
    ):
        yield Panel(name, model, in_unit, (low / scale, high / scale), MODEL_COLOURS, unit)
    start = picture.excerpt("start")
    change = None if start is None or inverted is None else inverted.less(start, CHANGE_CLIP)
    largest = 1.0 if change is None else change.limits[1]
    yield Panel(
        "Inverted - starting model",
        change,
        in_unit,
        (-largest / scale, largest / scale),
        SIGNED_COLOURS,
        unit,
    )
    gradient = picture.excerpt("gradient")
    assert gradient is not None
    yield Panel(
        f"Gradient, clipped at {GRADIENT_CLIP[picture.grid.ndim]:g} %",
        gradient,
        np.asarray,
        gradient.limits,
        SIGNED_COLOURS,
        f"misfit per {parameter.unit}",
    )
    for name, origins in (("source", picture.sources), ("receiver", picture.receivers)):
        energy = picture.excerpt(f"{name}_illumination")
        assert energy is not None
        yield Panel(
            f"{name.capitalize()} illumination",
            energy,
            partial(scales.decibels, greatest=energy.limits[1], least=DARKEST),
            (DARKEST, 0.0),
            ENERGY_COLOURS,
            "dB re maximum",
            origins,
            None if origins is None else count(origins, name),
        )


def count(things: Sized, name: str) -> str:
    """Return a count with its noun: "1 source", "2 sources"."""
    return f"{len(things)} {name}{'s' if len(things) > 1 else ''}"


def edges(grid: Grid, axis: int) -> tuple[float, float]:
    """Return the outer edges of the first and the last cell along an axis, in km."""
    half = 0.5 * grid.spacing[axis]
    return (grid.origin[axis] - half) / KM, (grid.last[axis] + half) / KM
