"""Tests of the figure that compares observed data with those of the starting model."""

from __future__ import annotations

import numpy as np
import pytest

from hpcfwi.report.figures import comparison_figure
from hpcfwi.survey import TimeAxis


@pytest.mark.parametrize("shots", [1, 3])
@pytest.mark.parametrize("ratio", [1.1, 1e4])
def test_comparison_has_a_row_per_shot_and_a_panel_of_first_arrivals(shots, ratio):
    generator = np.random.default_rng(0)
    offsets = np.linspace(-1000.0, 2000.0, 31)
    observed, simulated = generator.normal(size=(2, 31, 200)).astype(np.float32)
    observed[3] = np.nan
    gathers = [(f"Shot {k}", offsets, observed, simulated, np.zeros((0, 31))) for k in range(shots)]
    lags = np.linspace(-0.2, 0.3, 31)
    figure = comparison_figure(gathers, TimeAxis(0.004, -0.4), ratio, np.abs(offsets), lags, 0.125)
    figure.canvas.draw()
    *images, below = figure.axes
    titles = [axes.get_title(loc="left") for axes in images]
    assert len(images) == 3 * shots
    assert titles[0] == "Shot 0, observed"
    assert titles[1] == ("simulated" if ratio < 2.0 else "simulated, times 10000")
    drawn = [axes.images[0] for axes in images]
    begin, end = -0.4 - 0.002, -0.4 + 199.5 * 0.004
    for axes in images:
        assert axes.get_ylim() == pytest.approx((end, begin))
    assert {image.get_clim() for image in drawn[:3]} == {drawn[0].get_clim()}, "one scale"
    good, skipped = (line.get_ydata() for line in below.lines[1:])
    assert np.abs(good).max() <= 62.5 < np.abs(skipped).min(), (
        "more than half a period, in ms, is marked"
    )


def test_comparison_of_silent_traces_is_drawn():
    silent, none = np.zeros((5, 20), np.float32), np.array([])
    figure = comparison_figure(
        [("Shot 0", np.arange(5.0), silent, silent, np.zeros((0, 5)))],
        TimeAxis(0.01, 0.0),
        0.0,
        none,
        none,
        0.1,
    )
    figure.canvas.draw()
    assert figure.axes[1].get_title(loc="left") == "simulated"


@pytest.mark.parametrize(("ratio", "told"), [(-1.0, ", times -1"), (-30.0, ", times -30")])
def test_simulated_traces_are_scaled_by_the_factor_in_the_title(ratio, told):
    simulated = np.random.default_rng(0).normal(size=(5, 20)).astype(np.float32)
    gathers = [("Shot 0", np.arange(5.0), ratio * simulated, simulated, np.zeros((0, 5)))]
    none = np.array([])
    figure = comparison_figure(gathers, TimeAxis(0.01, 0.0), ratio, none, none, 0.1)
    observed, scaled, difference, _ = figure.axes
    assert scaled.get_title(loc="left") == f"simulated{told}"
    np.testing.assert_allclose(scaled.images[0].get_array(), observed.images[0].get_array())
    np.testing.assert_allclose(difference.images[0].get_array(), 0.0, atol=1e-5)


def test_picks_are_marked_at_their_offsets_and_times():
    traces, picks = np.ones((3, 20), np.float32), np.array([[0.05, np.nan, 0.1]])
    gathers = [("Shot 0", np.array([-1000.0, 0.0, 500.0]), traces, traces, picks)]
    none = np.array([])
    figure = comparison_figure(gathers, TimeAxis(0.01, 0.0), 1.0, none, none, 0.1)
    for axes in figure.axes[:3]:
        (line,) = axes.lines
        np.testing.assert_array_equal(line.get_xdata(), [-1.0, 0.0, 0.5])
        np.testing.assert_array_equal(line.get_ydata(), picks[0])
