"""Tests of the figures of models: epochs, profiles, images and resolution tests."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.text import Text

from hpcfwi.model import PARAMETERS, Grid
from hpcfwi.report import models, panels, style
from hpcfwi.report.models import (
    epoch_figure,
    image_figure,
    profiles_figure,
    resolution_figure,
)
from hpcfwi.report.panels import ResolutionTest, find_places
from tests.report.examples import picture, texts_overlap, titles, volume

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


def places_of(shown):
    return find_places(shown.grid, [shown.sources, shown.receivers])


@pytest.mark.parametrize("n", [1, 2, 5, 68, 1191])
def test_places_are_distinct_and_spread_evenly_along_a_line(n):
    places = [place for (place,) in find_places(Grid((15, n), (10.0, 10.0), (0.0, 0.0)))]
    assert len(set(places)) == len(places) <= 5
    assert min(places) >= 0
    assert max(places) < n
    assert min(places) == n - 1 - max(places), "at equal distance from both ends"
    if n > 5:
        assert len(places) == 5
        assert np.ptp(np.diff(places)) <= 1


def test_places_in_a_volume_are_the_centres_of_it_and_its_quarters():
    places = find_places(Grid((8, 17, 33), (10.0,) * 3, (0.0,) * 3))
    assert places == ((4, 8), (4, 24), (8, 16), (12, 8), (12, 24))


def test_places_are_within_the_extent_of_the_survey():
    """The survey covers a part of the model off its middle, and one source is outside."""
    grid = Grid((15, 401), (10.0, 25.0), (0.0, 1000.0))
    sources = np.array([[10.0, 2000.0], [10.0, 4000.0], [10.0, 99000.0]])
    receivers = np.array([[10.0, 2500.0], [10.0, 4500.0]])
    at = 1000.0 + 25.0 * np.array(find_places(grid, [sources, receivers])).ravel()
    np.testing.assert_allclose(at, [2250.0, 2750.0, 3250.0, 3750.0, 4250.0])
    shown = picture(receivers=None, sources=np.array([[0.0, 500.0], [0.0, 1000.0]]))
    assert titles(profiles_figure(shown))[0] == "x = 0.55 km"
    outside = find_places(grid, [sources[2:]])
    assert outside == find_places(grid)


@pytest.mark.parametrize("make", [picture, volume])
def test_profiles_show_the_models_below_their_places(make):
    shown = make()
    shown.inverted[3] += 100.0
    # The lower end of the deepest fixed cell, above 60 m
    h, n = shown.grid.spacing[0], shown.grid.ndim - 1
    depths = shown.grid.coordinates(0).reshape(-1, *[1] * n)
    kept = np.broadcast_to(depths < 60.0, shown.grid.shape)
    end = depths[kept.any(axis=tuple(range(1, n + 1)))].max() + 0.5 * h
    shown = make(inverted=shown.inverted, start=shown.true - 30.0, kept=kept)
    figure = profiles_figure(shown)
    assert not texts_overlap(figure)
    for axes, place in zip(figure.axes, places_of(shown), strict=True):
        true, initial, inverted = axes.lines
        for line, model in ((true, shown.true), (initial, shown.start), (inverted, shown.inverted)):
            np.testing.assert_allclose(line.get_xdata(), model[:, *place] / 1e3)
            np.testing.assert_allclose(line.get_ydata(), shown.grid.coordinates(0) / 1e3)
        (shade,) = axes.patches
        assert shade.get_y() + shade.get_height() == pytest.approx(1e-3 * end)
        bottom, top = axes.get_ylim()
        assert bottom > top, "depth downwards"
    at = shown.grid.coordinates(shown.grid.ndim - 1)[places_of(shown)[0][-1]] / 1e3
    assert f"x = {at:.2f} km" in titles(figure)[0]


def test_profiles_omit_an_unknown_true_model_and_unused_shading():
    shown = picture(true=None, start=picture().true)
    figure = profiles_figure(shown)
    assert all(len(axes.lines) == 2 and not axes.patches for axes in figure.axes)


def test_profiles_are_shaded_where_cells_are_fixed():
    grid = picture().grid
    kept = np.zeros(grid.shape, dtype=bool)
    kept[:2, 34:] = True  # water
    kept[5:7, 34:] = kept[-1] = True  # salt, and the last cells of all columns
    shown = picture(kept=kept)
    figure = profiles_figure(shown)
    h, top = grid.spacing[0], grid.origin[0] - 0.5 * grid.spacing[0]
    for axes, (place,) in zip(figure.axes, places_of(shown), strict=True):
        n = grid.shape[0]
        expected = [(0, 2), (5, 7), (n - 1, n)] if place >= 34 else [(n - 1, n)]
        found = [(p.get_y(), p.get_y() + p.get_height()) for p in axes.patches]
        np.testing.assert_allclose(found, (top + h * np.array(expected)) / 1e3)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()].count("kept") == 1


def test_kept_water_does_not_determine_the_scale_of_quality_factors():
    shown = picture(parameter=PARAMETERS["qp"])
    kept = np.zeros(shown.grid.shape, bool)
    kept[:3] = True
    rock = np.linspace(40.0, 60.0, kept.size, dtype=np.float32).reshape(kept.shape)
    true = np.where(kept, np.float32(1e4), rock)
    shown = replace(shown, true=true, start=true, inverted=true, kept=kept)
    low, high = profiles_figure(shown).axes[0].get_xlim()
    assert 38.0 < low < rock[3:].min() < rock.max() < high < 62.0
    figure = epoch_figure(shown)
    assert figure.axes[0].images[0].get_clim() == pytest.approx((rock[3:].min(), 60.0))
    assert "misfit" in [panel.unit for panel in panels.panels([shown.cut()])], (
        "quality factors have no unit"
    )


@pytest.mark.parametrize("most", [1500, 40])
def test_image_figure_has_no_more_cells_than_dots(most, monkeypatch, tmp_path):
    monkeypatch.setattr(panels, "MOST_CELLS", most)
    shape = (30, 100)
    found, speed = np.random.default_rng(0).normal(size=(2, *shape))
    figure = image_figure({"vp": found}, {"vp": found}, picture(shape, start=speed))
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
    figure = image_figure({"vp": found}, {}, replace(seen, start=found))
    least, most = figure.axes[0].get_images()[0].get_clim()
    assert (least, most) == pytest.approx((-0.98, 0.98), abs=0.01)


def test_grey_scale_of_the_true_reflectivity_is_that_of_cells_that_have_an_image():
    shape = (20, 50)
    found = np.random.default_rng(0).normal(size=shape)
    found[:3] = 0.0
    true = np.full(shape, 0.1)
    true[2] = 5.0
    lit = dict.fromkeys(
        ("source_illumination", "receiver_illumination"), np.ones(shape, np.float32)
    )
    figure = image_figure({"vp": found}, {"vp": true}, picture(shape, start=found, **lit))
    assert figure.axes[2].get_images()[0].get_clim() == pytest.approx((-0.1, 0.1))


def test_image_of_a_volume_is_the_section_of_the_epoch_figure():
    seen = volume()
    found = np.random.default_rng(0).normal(size=seen.grid.shape)
    figure = image_figure({"vp": found}, {}, replace(seen, start=seen.true))
    np.testing.assert_array_equal(figure.axes[0].get_images()[0].get_array(), found[:, 16 // 3])
    assert titles(figure)[0] == "Reflectivity, iteration 20, y = 0.12 km"


def points_of(shape, spacing=50.0, step=8, parameter="vp"):
    """Return a resolution test of points `step` cells apart, with plausible measures."""
    grid = Grid(shape, (spacing,) * len(shape), (0.0,) * len(shape))
    axes = [grid.coordinates(axis)[step // 2 :: step] for axis in range(grid.ndim)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    response = np.random.default_rng(0).uniform(0.5, 1.0, shape)
    measures = {"amplitude": np.full(points.shape[:-1], 0.5), "width": np.full(points.shape, 123.0)}
    values, model = np.full(shape, 2000.0), "the starting model"
    return ResolutionTest(
        grid, step * spacing, model, parameter, values, np.zeros(shape), response, points, measures
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


@pytest.mark.parametrize(
    ("parameter", "label"), [("vs", "S velocity (km/s)"), ("rho", "density (g/cm3)")]
)
def test_perturbed_parameter_is_named_with_its_unit(parameter, label):
    figure = resolution_figure(points_of((30, 120), parameter=parameter))
    assert label in [text.get_text() for text in figure.findobj(Text)]
    checkerboard = replace(points_of((30, 120), parameter=parameter), points=None)
    flat = np.ones((30, 120))
    checkerboard = replace(checkerboard, measures={"amplitude": flat, "correlation": flat})
    label = label.replace("km/s", "m/s").replace("g/cm3", "kg/m3")
    assert label in [text.get_text() for text in resolution_figure(checkerboard).findobj(Text)]


@pytest.mark.filterwarnings("error")
def test_point_without_response_is_drawn_without_a_warning():
    found = points_of((30, 120))
    found.response[:8, :8] = found.measures["amplitude"][0, 0] = 0.0
    resolution_figure(found)


@pytest.mark.parametrize("is_wide", [False, True])
def test_image_of_each_parameter_has_a_row_or_in_wide_models_a_column(is_wide):
    shape, names = (15, 68) if is_wide else (40, 40), ["vp", "vs", "rho"]
    images = dict(zip(names, np.random.default_rng(0).normal(size=(3, *shape)), strict=True))
    truths = {name: 2.0 * image for name, image in images.items()}
    seen = [picture(shape, parameter=PARAMETERS[name]) for name in names]
    figure = image_figure(images, truths, *(replace(each, start=each.true) for each in seen))
    panels = np.reshape(figure.axes[:9], (3, 3))
    for name, row in zip(names, panels.T if is_wide else panels, strict=True):
        assert [axes.get_title(loc="left") for axes in row] == [
            f"Reflectivity in {name}, iteration 20",
            f"Reflectivity in {name} over the starting model",
            f"True reflectivity in {name}",
        ]
        found, _, true = (axes.get_images()[-1].get_array() for axes in row)
        np.testing.assert_array_equal(found, images[name])
        np.testing.assert_array_equal(true, truths[name])
    assert not texts_overlap(figure)
