"""Tests of the figure of a migration."""

from __future__ import annotations

import numpy as np
import pytest

from hpcfwi.report import models, panels, style
from hpcfwi.report.models import image_figure
from tests.report.examples import picture, titles, volume


@pytest.mark.parametrize("most", [1500, 40])
def test_image_figure_has_no_more_cells_than_dots(most, monkeypatch, tmp_path):
    monkeypatch.setattr(models, "MOST_CELLS", most)
    monkeypatch.setattr(panels, "MOST_CELLS", most)
    shape = (30, 100)
    found, speed = np.random.default_rng(0).normal(size=(2, *shape))
    figure = image_figure(found, speed, found, picture(shape))
    style.save(figure, tmp_path / "image.png")
    drawn = [shown.get_array() for axes in figure.axes[:3] for shown in axes.get_images()]
    assert [values.shape for values in drawn] == 4 * [(30, 100 if most == 1500 else 34)]
    assert drawn[0].mean() == pytest.approx(found.mean(), abs=0.02)


def test_grey_scale_of_an_image_is_that_of_its_illuminated_part():
    shape = (20, 50)
    found = np.full(shape, 1e-3)
    lit = np.zeros(shape, np.float32)
    lit[:, :10] = 1.0
    found[:, :10] = np.linspace(0.0, 1.0, 200).reshape(20, 10)
    seen = picture(shape, source_illumination=lit, receiver_illumination=lit)
    figure = image_figure(found, found, None, seen)
    least, most = figure.axes[0].get_images()[0].get_clim()
    assert (least, most) == pytest.approx((-0.98, 0.98), abs=0.01)


def test_image_of_a_volume_is_the_section_of_the_epoch_figure():
    seen = volume()
    found = np.random.default_rng(0).normal(size=seen.grid.shape)
    figure = image_figure(found, found, None, seen)
    np.testing.assert_array_equal(figure.axes[0].get_images()[0].get_array(), found[:, 16 // 3])
    assert titles(figure)[0] == "Reflectivity, iteration 20, y = 0.12 km"
