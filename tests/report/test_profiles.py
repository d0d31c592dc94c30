"""Tests of the figure of vertical profiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpcfwi.model import PARAMETERS, Grid
from hpcfwi.report.models import epoch_figure, profiles_figure
from hpcfwi.report.panels import find_places, panels
from tests.report.examples import picture, texts_overlap, titles, volume


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
        for line, model in (
            (true, shown.true),
            (initial, shown.start),
            (inverted, shown.inverted),
        ):
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
    assert "misfit" in [panel.unit for panel in panels([shown])], "quality factors have no unit"
