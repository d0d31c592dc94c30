"""Tests of points that the cpu engine processes by lines, against the eager engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hpcfwi.wave.engines.cpu.kernels import make_lines
from hpcfwi.wave.engines.cpu.layout import Box, Cut, make_grid
from hpcfwi.wave.numerics import spread
from tests.wave.engines.cpu.test_engine import threads
from tests.wave.examples import Shots, random_shots, relative, white_residual

SHAPES = pytest.mark.parametrize("shape", [(25, 33), (12, 13, 21)], ids=str)


def on_lines(shape: tuple[int, ...], free_surface: bool) -> Shots:
    """Return shots with unordered points at few depths; some are on the grid, some occur twice."""
    spacing = (8.0, 11.0, 9.0)[: len(shape)]
    shots = random_shots(
        shape=shape,
        spacing=spacing,
        shots=2,
        sources=9,
        receivers=40,
        samples=30,
        free_surface=free_surface,
    )
    rng, last = np.random.default_rng(1), (np.array(shape) - 1) * spacing
    few = [np.array([0.0, 0.3, 0.5, 1.0]) * end for end in last[:-1]]
    if free_surface:
        few[0][0] = spacing[0]  # sources on the surface are refused
    along = rng.choice([*rng.uniform(0.0, last[-1], 20), 0.0, 18.0, last[-1]], 49)

    def place(points: np.ndarray, x: np.ndarray) -> np.ndarray:
        depths = [rng.choice(values, points.shape[:-1]) for values in few]
        return np.stack([*depths, np.broadcast_to(x, points.shape[:-1])], axis=-1)

    sources = place(shots.sources, along[:9])
    return replace(shots, sources=sources, receivers=place(shots.receivers, along[9:]))


@SHAPES
@pytest.mark.parametrize("free_surface", [False, True])
def test_points_on_lines_agree_with_the_eager_engine(
    shape: tuple[int, ...], free_surface: bool
) -> None:
    shots = on_lines(shape, free_surface)
    residual = white_residual(shots.simulate(keep=False).data)
    expected, found = (shots.simulate(engine=name) for name in ("eager", "cpu"))
    assert relative(found.data, expected.data) < 1e-12
    expected, found = expected.backpropagate(residual), found.backpropagate(residual)
    assert relative(found.model["vp"], expected.model["vp"]) < 1e-12
    assert relative(found.wavelet, expected.wavelet) < 1e-12


@SHAPES
def test_lines_of_points_have_the_same_bits_with_any_number_of_threads(
    shape: tuple[int, ...],
) -> None:
    shots, found = on_lines(shape, free_surface=True), []
    for count in (1, 2, 3):
        with threads(count):
            one = shots.simulate(engine="cpu")
            found.append((one.data, one.backpropagate(one.data).model["vp"]))
    for data, gradient in found[1:]:
        assert torch.equal(data, found[0][0])
        assert torch.equal(gradient, found[0][1])


def test_line_has_all_points_of_its_depth_in_order() -> None:
    depths, x = np.array([30.0, 12.0, 30.0, 30.0, 12.0]), np.array([90.0, 50.0, 20.0, 40.0, 71.0])
    grid = make_grid((20, 20))
    taps = spread(np.stack([depths, x], -1)[None], (8.0, 8.0), (2, 2), (20, 20), False)
    (lines,) = make_lines(
        taps,
        np.ones((1, 5), dtype=bool),
        grid,
        Cut(grid, 0, 0, 1, 1),
        Box(0, 1, 2, 18, 2, 18),
        np.dtype(np.float32),
    )
    assert lines.rows.shape == (2, 8)
    spans = [slice(*lines.ends[k : k + 2]) for k in (0, 1)]
    assert [lines.points[span].tolist() for span in spans] == [[1, 4], [2, 3, 0]]
    assert all((np.diff(lines.columns[span]) >= 0).all() for span in spans)
