"""Tests of the figures of an epoch in two dimensions, which are vertical sections."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from hpcfwi.model import PARAMETERS
from hpcfwi.report import models
from tests.report.examples import picture, texts_overlap, titles

SHAPES = {
    "wide": {"shape": (15, 68)},
    "square": {"shape": (40, 40)},
    "small": {"shape": (3, 5), "spacing": (10.0, 10.0)},
    "tall": {"shape": (60, 10)},
    "very wide": {"shape": (5, 400)},
    "with an origin": {"shape": (30, 50), "origin": (300.0, 5000.0)},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_epoch_figure_has_six_panels_in_km_with_depth_downwards(shape):
    made = picture(**shape)
    made = replace(made, start=made.true - 50.0)
    figure = models.epoch_figure(made)
    assert titles(figure) == [
        "True model",
        "Inverted model, epoch 20",
        "Inverted - starting model",
        "Gradient, clipped at 99 %",
        "Source illumination",
        "Receiver illumination",
    ]
    (top, left), (bottom, right) = made.grid.origin, made.grid.last
    half = 0.5 * made.grid.spacing[0]
    for axes in figure.axes:
        assert axes.get_ylim() == pytest.approx([(bottom + half) / 1e3, (top - half) / 1e3])
        assert axes.get_xlim() == pytest.approx([(left - half) / 1e3, (right + half) / 1e3])
    assert figure.axes[0].get_ylabel() == "depth (km)"
    assert figure.axes[5].get_xlabel() == "x (km)"
    assert not texts_overlap(figure)


def test_both_models_have_the_colour_scale_of_the_true_model_in_km_per_s():
    made = picture()
    true, inverted = (axes.images[0] for axes in models.epoch_figure(made).axes[:2])
    assert true.get_clim() == inverted.get_clim() == pytest.approx((1.5, 2.9))
    assert true.colorbar.ax.get_ylabel() == "P velocity (km/s)"
    assert (true.colorbar.extend, inverted.colorbar.extend) == ("neither", "max")


def test_gradient_that_is_zero_everywhere_is_said_to_be_zero():
    made = replace(picture(), gradient=np.zeros_like(picture().gradient))
    axes = models.epoch_figure(made).axes[3]
    assert not axes.images
    assert [text.get_text() for text in axes.texts] == ["zero"]


def test_gradient_has_a_symmetric_clipped_colour_scale():
    image = models.epoch_figure(picture()).axes[3].images[0]
    low, high = image.get_clim()
    assert low == -high
    assert high == pytest.approx(np.percentile(np.abs(picture().gradient), 99))
    assert image.colorbar.extend == "both"


def test_model_change_has_a_symmetric_colour_scale_in_km_per_s():
    true = picture().true
    image = models.epoch_figure(picture(start=true - 100.0)).axes[2].images[0]
    np.testing.assert_allclose(image.get_array(), 0.15, rtol=1e-5)
    assert image.get_clim() == pytest.approx((-0.15, 0.15))
    assert image.colorbar.ax.get_ylabel() == "P velocity (km/s)"


def test_illumination_is_drawn_in_decibels_down_to_minus_60():
    image = models.epoch_figure(picture()).axes[4].images[0]
    assert image.get_clim() == (-60.0, 0.0)
    assert image.get_array().max() == 0.0
    assert image.get_array()[1, 0] == pytest.approx(-10.0 / np.log(10.0))


def test_large_model_is_coarsened_to_the_figure_in_little_memory():
    made = picture(shape=(1400, 3200))
    made = replace(made, start=made.true)
    tracemalloc.start()
    figure = models.epoch_figure(made)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for axes in figure.axes:
        (image,) = axes.images
        assert image.get_array().shape == (1400, 1067)
    # Six panels of a third of the cells, twice in double precision, and temporary arrays
    assert peak < 54 * made.true.size


def test_starting_model_is_drawn_in_place_of_an_unknown_true_model():
    made = picture(true=None, start=np.full((15, 68), 2000.0, np.float32))
    figure = models.epoch_figure(made)
    start, inverted = (axes.images[0] for axes in figure.axes[:2])
    assert titles(figure)[0] == "Starting model"
    assert start.get_clim() == inverted.get_clim() == pytest.approx((1.55, 2.95))


def test_panel_says_that_the_true_model_is_not_known():
    axes = models.epoch_figure(picture(true=None)).axes[0]
    assert "not known" in [text.get_text() for text in axes.texts]


def test_sources_and_receivers_are_marked_and_counted():
    figure = models.epoch_figure(picture(origin=(0.0, 5000.0)))
    receivers, sources = figure.axes[0].lines
    assert (sources.get_xdata(), sources.get_ydata()) == (pytest.approx([5.1]), [0.0])
    assert len(receivers.get_xdata()) == 30
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["60 receivers", "1 source"]
    twice = np.concatenate([picture().receivers] * 2)
    legend = models.epoch_figure(picture(receivers=twice)).legends[0].get_texts()
    assert legend[0].get_text() == "60 receivers", "each position counts once"
    assert not models.epoch_figure(picture(sources=None, receivers=None)).legends


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("depth", [0.0, 1e5])
def test_sources_outside_the_grid_are_counted_and_do_not_stretch_the_figure(depth):
    inside, outside = [0.0, 100.0], [depth, 1e5]
    for sources in ([outside], [inside, outside]):
        figure = models.epoch_figure(picture(sources=np.array(sources)))
        figure.draw_without_rendering()
        _, stars = figure.axes[0].lines
        assert len(stars.get_xdata()) == len(sources) - 1
        assert figure.legends[0].get_texts()[1].get_text().startswith(f"{len(sources)} source")


def test_every_parameter_is_drawn_in_its_unit():
    pictures = [picture(parameter=parameter) for parameter in PARAMETERS.values()]
    figure, profiles = models.epoch_figure(*pictures), models.profiles_figure(*pictures)
    for drawn in (figure, profiles):
        drawn.canvas.draw()
    for number, parameter in enumerate(PARAMETERS.values()):
        axes = figure.axes[4 * number]
        assert titles(figure)[4 * number] == f"True {parameter.title}"
        assert axes.images[0].colorbar.ax.get_ylabel() == parameter.label
        factor = axes.images[0].get_array() / pictures[number].true
        np.testing.assert_allclose(factor, 1.0 / parameter.figure_scale, rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_epoch_of_zeros_or_nan_is_drawn(value):
    nothing = np.full((15, 68), value, np.float32)
    made = picture(gradient=nothing, inverted=nothing, source_illumination=nothing)
    figure = models.epoch_figure(made)
    figure.canvas.draw()
    true, inverted, *gradient, source, receiver = (
        axes.images[0] for axes in figure.axes if axes.images
    )
    assert true.get_clim() == inverted.get_clim() == pytest.approx((1.5, 2.9))
    assert [image.get_clim() for image in gradient] == [(-1.0, 1.0)] * bool(np.isnan(value))
    for image in (inverted, *gradient):
        np.testing.assert_array_equal(image.get_array(), nothing)
    illuminations = source, receiver
    assert all((image.get_array() == -60.0).all() for image in illuminations)


@pytest.mark.parametrize(("shape", "wide"), [((40, 68), False), ((30, 120), True)])
def test_each_parameter_has_a_row_or_in_wide_figures_a_column(shape, wide):
    first = picture(shape)
    other = replace(first, parameter=PARAMETERS["vs"], inverted=0.5 * first.inverted)
    figure = models.epoch_figure(first, other)
    assert not texts_overlap(figure)
    names = titles(figure)
    assert names[:2] == ["True P velocity", "Inverted P velocity, epoch 20"]
    assert names[4:6] == ["True S velocity", "Inverted S velocity, epoch 20"]
    assert names[8:] == ["Source illumination", "Receiver illumination"]
    places = [axes.get_subplotspec() for axes in figure.axes[:10]]
    lines = [(p.colspan if wide else p.rowspan).start for p in places]
    assert lines[:8] == [0] * 4 + [1] * 4
    limits = [figure.axes[k].images[0].get_clim() for k in (1, 5)]
    assert limits[0] == limits[1], "those of the true models"
