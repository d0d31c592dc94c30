"""Tests of the figure of a resolution test, which fits on a page for any shape of the model."""

from __future__ import annotations

import numpy as np
import pytest

from hpcfwi.model import Grid
from hpcfwi.report.models import ResolutionTest, resolution_figure
from tests.report.examples import texts_overlap, titles


def points_of(shape, spacing=50.0, step=8):
    """Return a resolution test of points `step` cells apart, with plausible measures."""
    grid = Grid(shape, (spacing,) * len(shape), (0.0,) * len(shape))
    axes = [grid.coordinates(axis)[step // 2 :: step] for axis in range(grid.ndim)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    response = np.random.default_rng(0).uniform(0.5, 1.0, shape)
    measures = {
        "amplitude": np.full(points.shape[:-1], 0.5),
        "width": np.full(points.shape, 123.0),
    }
    speed, model = np.full(shape, 2000.0), "in the starting model"
    return ResolutionTest(
        grid, step * spacing, model, speed, np.zeros(shape), response, points, measures
    )


@pytest.mark.parametrize("shape", [(34, 67, 67), (30, 30, 90), (40, 40), (120, 30)])
def test_resolution_of_a_narrow_model_is_drawn_in_two_columns(shape):
    figure = resolution_figure(points_of(shape))
    width, height = figure.get_size_inches()
    assert height <= 1.5 * width
    assert len(titles(figure)) == 3 + len(shape)
    assert not texts_overlap(figure)


def test_resolution_of_a_wide_section_is_drawn_in_one_column():
    figure = resolution_figure(points_of((30, 120)))
    assert len({axes.get_position().x0 for axes in figure.axes}) == 1
    assert not texts_overlap(figure)


@pytest.mark.filterwarnings("error")
def test_point_without_response_is_drawn_without_a_warning():
    found = points_of((30, 120))
    found.response[:8, :8] = found.measures["amplitude"][0, 0] = 0.0
    resolution_figure(found)
