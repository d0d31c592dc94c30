"""The figure of vertical profiles."""

from __future__ import annotations

import numpy as np
import pytest

from hpcfwi.model import Grid
from hpcfwi.report.profiles import find_places, profiles_figure
from tests.report.examples import picture, texts_overlap, titles, volume


@pytest.mark.parametrize("n", [1, 2, 5, 68, 1191])
def test_places_are_spread_evenly_along_a_line_each_once_and_within_it(n):
    places = [place for (place,) in find_places(Grid((15, n), (10.0, 10.0), (0.0, 0.0)))]
    assert len(set(places)) == len(places) <= 5
    assert min(places) >= 0
    assert max(places) < n
    assert min(places) == n - 1 - max(places), "as far from either end"
    if n > 5:
        assert len(places) == 5
        assert np.ptp(np.diff(places)) <= 1


def test_places_in_a_volume_are_its_middle_and_those_of_its_quarters():
    places = find_places(Grid((8, 17, 33), (10.0,) * 3, (0.0,) * 3))
    assert places == [(4, 8), (4, 24), (8, 16), (12, 8), (12, 24)]


@pytest.mark.parametrize("make", [picture, volume])
def test_each_profile_is_what_the_model_has_below_a_place(make):
    shown = make()
    shown.inverted[3] += 100.0
    floor = np.full(shown.grid.shape[1:], 60.0)
    shown = make(inverted=shown.inverted, start=shown.true - 30.0, floor=floor)
    figure = profiles_figure(shown)
    assert not texts_overlap(figure)
    for axes, place in zip(figure.axes, find_places(shown.grid), strict=True):
        true, initial, inverted = axes.lines
        for line, model in (
            (true, shown.true),
            (initial, shown.start),
            (inverted, shown.inverted),
        ):
            np.testing.assert_allclose(line.get_xdata(), model[:, *place] / 1e3)
            np.testing.assert_allclose(line.get_ydata(), shown.grid.coordinates(0) / 1e3)
        (kept,) = axes.patches
        assert kept.get_y() + kept.get_height() == pytest.approx(0.06)
        bottom, top = axes.get_ylim()
        assert bottom > top, "depth downwards"
    at = shown.grid.coordinates(shown.grid.ndim - 1)[find_places(shown.grid)[0][-1]] / 1e3
    assert f"x = {at:.2f} km" in titles(figure)[0]


def test_where_the_truth_is_not_known_and_nothing_is_kept_these_are_left_out():
    shown = picture(true=None, start=picture().true)
    figure = profiles_figure(shown)
    assert all(len(axes.lines) == 2 and not axes.patches for axes in figure.axes)


def test_each_profile_is_shaded_down_to_what_is_kept_there_and_the_legend_says_so_once():
    floor = np.linspace(-10.0, 190.0, 68)
    shown = picture(floor=floor)
    figure = profiles_figure(shown)
    for axes, (place,) in zip(figure.axes, find_places(shown.grid), strict=True):
        ends = [patch.get_y() + patch.get_height() for patch in axes.patches]
        np.testing.assert_allclose(ends, [floor[place] / 1e3])
    shallow = picture(floor=np.where(np.arange(68) < 34, -25.0, 60.0))
    figure = profiles_figure(shallow)
    assert [len(axes.patches) for axes in figure.axes] == [0, 0, 1, 1, 1]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()].count("kept") == 1
