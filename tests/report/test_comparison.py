"""The figure of the data beside those of the starting model."""

from __future__ import annotations

import numpy as np
import pytest

from hpcfwi.report.comparison import comparison_figure
from hpcfwi.survey import TimeAxis


@pytest.mark.parametrize("shots", [1, 3])
@pytest.mark.parametrize("ratio", [1.1, 1e4])
def test_each_shot_has_a_row_and_first_arrivals_one_below(shots, ratio):
    generator = np.random.default_rng(0)
    offsets = np.linspace(-1000.0, 2000.0, 31)
    observed, simulated = generator.normal(size=(2, 31, 200)).astype(np.float32)
    observed[3] = np.nan
    gathers = [(k, offsets, observed, simulated) for k in range(shots)]
    lags = np.linspace(-0.2, 0.3, 31)
    figure = comparison_figure(gathers, TimeAxis(0.004, -0.4), ratio, np.abs(offsets), lags, 0.125)
    figure.canvas.draw()
    *images, below = figure.axes
    titles = [axes.get_title(loc="left") for axes in images]
    assert len(images) == 3 * shots
    assert titles[0] == "Shot 0, observed"
    assert titles[1] == ("simulated" if ratio < 2.0 else "simulated, times 1e+04")
    drawn = [axes.images[0] for axes in images]
    begin, end = -0.4 - 0.002, -0.4 + 199.5 * 0.004
    for axes in images:
        assert axes.get_ylim() == pytest.approx((end, begin))
    assert {image.get_clim() for image in drawn[:3]} == {drawn[0].get_clim()}, "one scale"
    good, skipped = (line.get_ydata() for line in below.lines[1:])
    assert np.abs(good).max() <= 62.5 < np.abs(skipped).min(), "half a period, ms"


def test_where_nothing_was_found_it_is_drawn_all_the_same():
    silent, none = np.zeros((5, 20), np.float32), np.array([])
    figure = comparison_figure(
        [(0, np.arange(5.0), silent, silent)], TimeAxis(0.01, 0.0), 0.0, none, none, 0.1
    )
    figure.canvas.draw()
