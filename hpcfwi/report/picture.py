"""What the figure of an epoch shows, in which units and on which scales. Numbers only, no drawing.

Drawn in `sections` for 2-D models and in `slices` for 3-D ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hpcfwi.model import Grid, Parameter
from hpcfwi.report import scales
from hpcfwi.report.scales import KM

GRADIENT_CLIP = 99.0  # percentile of the magnitudes
DARKEST = -60.0  # dB
MOST_CELLS = 1500  # drawn along an axis, as figures have no more dots
# Matplotlib's names
MODEL_COLOURS = "viridis"
SIGNED_COLOURS = "RdBu_r"
ENERGY_COLOURS = "magma"


@dataclass(frozen=True)
class EpochPicture:
    """What the figure of an epoch shows. Arrays have the grid's shape.

    parameter: what is shown of the models; true: in its unit, None where it is not known, and then
    start, the starting model, takes its place; inverted; gradient: of the misfit with respect to
    it; illuminations: time sums of squared fields; sources, receivers: (n, ndim), m, in the grid's
    coordinates, marked where given; floor: the depth (m) down to which the inversion keeps each
    column, (x,) or (y, x).
    """

    epoch: int
    grid: Grid
    parameter: Parameter
    true: NDArray[np.float32] | None
    inverted: NDArray[np.float32]
    gradient: NDArray[np.float32]
    source_illumination: NDArray[np.float32]
    receiver_illumination: NDArray[np.float32]
    start: NDArray[np.float32] | None = None
    sources: NDArray[np.float64] | None = None
    receivers: NDArray[np.float64] | None = None
    floor: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Panel:
    """One of the five: an array of the grid's shape, and what is drawn of it in which colours.

    array: None where it is not known; convert: from a part of it to the values that are drawn,
    which in all cells at once would take several times its memory; origins: (n, ndim), m, where
    the waves come from that it is the energy of; caption: how many and what they are.
    """

    title: str
    array: NDArray[np.floating] | None
    convert: Callable[[NDArray[np.floating]], NDArray[np.floating]]
    limits: tuple[float, float]
    colours: str
    unit: str
    origins: NDArray[np.float64] | None = None
    caption: str | None = None


def panels(picture: EpochPicture) -> Iterator[Panel]:
    """True model, inverted model, gradient, source and receiver illumination.

    Both models have the colour scale of the true one, or of the inverted one where the true one
    is not known.
    """
    reference, title = picture.true, "True model"
    if picture.true is None and picture.start is not None:
        reference, title = picture.start, "Starting model"
    common = picture.inverted if picture.true is None else picture.true
    low, high = scales.value_limits(common)
    parameter = picture.parameter
    scale = parameter.figure_scale

    def in_unit(part: NDArray[np.floating]) -> NDArray[np.floating]:
        """In double precision, or rounding would exceed the limits."""
        return part.astype(np.float64) / scale

    for model, name in (
        (reference, title),
        (picture.inverted, f"Inverted model, epoch {picture.epoch}"),
    ):
        unit = f"{parameter.title} ({parameter.figure_unit})"
        yield Panel(name, model, in_unit, (low / scale, high / scale), MODEL_COLOURS, unit)
    limit = scales.clip_limit(picture.gradient, GRADIENT_CLIP)
    yield Panel(
        f"Gradient, clipped at {GRADIENT_CLIP:g} %",
        picture.gradient,
        np.asarray,
        (-limit, limit),
        SIGNED_COLOURS,
        f"misfit per {parameter.unit}",
    )
    for energy, name, origins in (
        (picture.source_illumination, "source", picture.sources),
        (picture.receiver_illumination, "receiver", picture.receivers),
    ):
        yield Panel(
            f"{name.capitalize()} illumination",
            energy,
            partial(scales.decibels, greatest=scales.greatest_of(energy), least=DARKEST),
            (DARKEST, 0.0),
            ENERGY_COLOURS,
            "dB re maximum",
            origins,
            None if origins is None else count(origins, name),
        )


def count(things: Sized, name: str) -> str:
    """ "1 source", "2 sources"."""
    return f"{len(things)} {name}{'s' if len(things) > 1 else ''}"


def edges(grid: Grid, axis: int) -> tuple[float, float]:
    """Where the first cell along an axis begins and the last one ends, in km."""
    half = 0.5 * grid.spacing[axis]
    return (grid.origin[axis] - half) / KM, (grid.last[axis] + half) / KM
