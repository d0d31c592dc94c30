"""The figure of a migration has as many cells as dots, and shows each of its arrays."""

from __future__ import annotations

import numpy as np
import pytest

from hpcfwi.model import Grid
from hpcfwi.report import image, style
from hpcfwi.report.image import image_figure


@pytest.mark.parametrize("most", [1500, 40])
def test_reflectors_are_drawn_of_no_more_cells_than_there_are_dots(most, monkeypatch, tmp_path):
    monkeypatch.setattr(image, "MOST_CELLS", most)
    grid = Grid((30, 100), (10.0, 10.0), (0.0, 0.0))
    found, speed = np.random.default_rng(0).normal(size=(2, *grid.shape))
    figure = image_figure(found, speed, found, grid, 3)
    style.save(figure, tmp_path / "image.png")
    drawn = [shown.get_array() for axes in figure.axes[:3] for shown in axes.get_images()]
    assert [values.shape for values in drawn] == 4 * [(30, 100 if most == 1500 else 34)]
    assert drawn[0].mean() == pytest.approx(found.mean(), abs=0.02)
