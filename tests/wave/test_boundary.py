"""Tests of the absorbing boundary layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcfwi.wave import acoustic
from hpcfwi.wave.numerics import ricker

VELOCITY, SPACING, DT, FREQUENCY, POINTS, SAMPLES = 2000.0, 10.0, 1e-3, 10.0, 101, 1000
# Cells around the model; no reflection crosses them and returns within the record.
FAR = int(0.5 * VELOCITY * DT * SAMPLES / SPACING) + 10


def traces(source: list[float], around: int, boundary: int, free_surface: bool) -> Tensor:
    """Return traces in the middle, at edges and corners of a model enlarged by `around` cells."""
    at = np.array([0.0, 20.0, 500.0, 980.0, 1000.0])
    receivers = np.stack(np.meshgrid(at, at, indexing="ij"), axis=-1).reshape(-1, 2)
    shift = np.array([0 if free_surface else around, around])
    shape = (POINTS + shift[0] + around, POINTS + 2 * around)
    return acoustic(
        torch.full(shape, VELOCITY, dtype=torch.float64),
        SPACING,
        DT,
        torch.tensor(ricker(FREQUENCY, SAMPLES, DT, delay=0.12)),
        np.array([source]) + SPACING * shift,
        receivers + SPACING * shift,
        boundary=boundary,
        free_surface=free_surface,
        engine="cpu",
    )[0]


@pytest.mark.parametrize("free_surface", [False, True])
@pytest.mark.parametrize("source", [[500.0, 500.0], [500.0, 20.0], [50.0, 50.0]])
def test_reflections_stay_below_a_thousandth_of_the_peak_of_the_direct_wave(
    source: list[float], free_surface: bool
) -> None:
    direct = traces(source, FAR, 20, free_surface=False).abs().amax(-1)
    expected = traces(source, FAR, 20, free_surface)
    reflection = (traces(source, 0, 20, free_surface) - expected).abs().amax(-1)
    assert (reflection / direct).max() < 1e-3


def test_wider_boundary_layer_reflects_less() -> None:
    source = [500.0, 500.0]
    expected = traces(source, FAR, 20, free_surface=False)
    widths = (0, 5, 10, 20)
    worst = [float((traces(source, 0, n, False) - expected).abs().max()) for n in widths]
    assert worst == sorted(worst, reverse=True)
    assert worst[-1] < 1e-4 * worst[0]
