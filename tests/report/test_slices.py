"""Tests of the figures of an epoch in three dimensions: a map and two sections per volume."""

import numpy as np
import pytest

from hpcfwi.report import models
from tests.report.examples import texts_overlap, titles, volume

VOLUMES = {
    "long": {"shape": (10, 12, 60)},
    "tall": {"shape": (40, 9, 8)},
    "flat, with an origin": {
        "shape": (8, 19, 20),
        "spacing": (10.0, 25.0, 25.0),
        "origin": (300.0, 5000.0, 9000.0),
    },
}


def slices(panel):
    """Return the axes of the map, the inline and the crossline section of a panel."""
    return panel.child_axes


@pytest.mark.parametrize("shape", VOLUMES.values(), ids=VOLUMES)
def test_volume_has_three_slices_per_panel_without_overlap(shape):
    made = volume(**shape)
    figure = models.epoch_figure(made)
    assert titles(figure) == [
        "True model",
        "Inverted model, epoch 20",
        "Inverted - starting model",
        "Gradient, clipped at 90 %",
        "Source illumination, 1 source",
        "Receiver illumination, 100 receivers",
    ]
    half = 0.5 * np.array(made.grid.spacing)
    (top, front, left), (bottom, back, right) = (
        np.array([made.grid.origin - half, made.grid.last + half]) / 1e3
    )
    for panel in figure.axes:
        limits = [axes.get_xlim() + axes.get_ylim() for axes in slices(panel)]
        assert limits[0] == pytest.approx((left, right, front, back))
        assert limits[1] == pytest.approx((left, right, bottom, top))
        assert limits[2] == pytest.approx((front, back, bottom, top))
    map_, inline, crossline = slices(figure.axes[5])
    assert (map_.get_ylabel(), inline.get_ylabel()) == ("y (km)", "depth (km)")
    assert (inline.get_xlabel(), crossline.get_xlabel()) == ("x (km)", "y (km)")
    assert not texts_overlap(figure)


def test_slices_show_the_block_and_are_marked_in_each_other():
    made = volume()
    cut = (4, 5, 5)
    shown = slices(models.epoch_figure(made).axes[0])
    for axes, axis in zip(shown, range(3), strict=True):
        image = axes.images[0].get_array()
        np.testing.assert_allclose(image, made.true.take(cut[axis], axis) / 1e3, rtol=1e-6)
        # The lines of the other slices cross at the block
        row, column = np.argwhere(image == image.max())[0]
        down, across = axes.lines
        assert down.get_xdata()[0] == pytest.approx(0.025 * column)
        assert across.get_ydata()[0] == pytest.approx(0.025 * row)
        assert image.shape == ((16, 16) if axis == 0 else (8, 16))
    said = [axes.texts[0].get_text() for axes in shown]
    assert said == ["depth 0.10 km", "y 0.12 km", "x 0.12 km"]


def test_volumes_have_the_colour_scale_of_the_true_model():
    for panel in models.epoch_figure(volume()).axes[:2]:
        assert {axes.images[0].get_clim() for axes in slices(panel)} == {(1.5, 3.0)}
        bar = slices(panel)[0].images[0].colorbar
        assert bar.ax.get_ylabel() == "P velocity (km/s)"


def test_sources_and_receivers_are_marked_on_the_illumination_maps():
    figure = models.epoch_figure(volume(start=volume().true))
    marks = [len(slices(panel)[0].lines) - 2 for panel in figure.axes]
    assert marks == [0, 0, 0, 0, 1, 1]
    unmarked = models.epoch_figure(volume(sources=None, receivers=None))
    assert titles(unmarked)[4:] == ["Source illumination", "Receiver illumination"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("depth", [0.0, 1e5])
def test_sources_outside_the_volume_do_not_stretch_the_figure(depth):
    for sources in ([[depth, 1e5, 0.0]], [[0.0, 50.0, 50.0], [depth, 0.0, 1e5]]):
        figure = models.epoch_figure(volume(sources=np.array(sources)))
        figure.draw_without_rendering()
        marks = slices(figure.axes[4])[0].lines[2:]
        assert sum(len(line.get_xdata()) for line in marks) == len(sources) - 1


def test_volume_of_nan_is_drawn():
    nothing = np.full((8, 16, 16), np.nan, np.float32)
    made = volume(true=None, inverted=nothing, gradient=nothing, source_illumination=nothing)
    figure = models.epoch_figure(made)
    assert "not known" in [text.get_text() for text in slices(figure.axes[0])[0].texts]
    figure.canvas.draw()
