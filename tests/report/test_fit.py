"""Tests of the figures of the fit between simulated and observed traces."""

from __future__ import annotations

import numpy as np
import pytest

from hpcfwi.report.figures import bin_phases, fit_figure, take_turns, traces_figure
from hpcfwi.survey import TimeAxis
from tests.report.examples import texts_overlap, titles


@pytest.mark.parametrize("shots", [1, 3])
def test_each_shot_has_panels_of_observed_interleaved_and_residual_traces(shots):
    generator = np.random.default_rng(0)
    offsets = np.linspace(-1000.0, 2000.0, 31)
    observed, simulated = generator.normal(size=(2, 31, 200)).astype(np.float32)
    gathers = [(f"Shot {7 + k}", offsets, observed, simulated) for k in range(shots)]
    figure = traces_figure(gathers, TimeAxis(0.004, -0.4), 20)
    assert not texts_overlap(figure)
    assert titles(figure)[:3] == [
        "Shot 7, observed",
        "interleaved, red: simulated",
        "observed - simulated, epoch 20",
    ]
    left, middle, right = (axes.images[0] for axes in figure.axes[:3])
    turns = take_turns(offsets, 12)
    np.testing.assert_array_equal(left.get_array(), observed.T)
    np.testing.assert_array_equal(middle.get_array()[:, turns], simulated[turns].T)
    np.testing.assert_array_equal(middle.get_array()[:, ~turns], observed[~turns].T)
    np.testing.assert_array_equal(right.get_array(), (observed - simulated).T)
    assert left.get_clim() == middle.get_clim() == right.get_clim(), "one scale"
    assert left.get_extent()[2:] == pytest.approx((-0.4 + 199.5 * 0.004, -0.402))


@pytest.mark.parametrize("groups", [1, 4, 12])
def test_interleaved_traces_alternate_in_groups_of_equal_size(groups):
    places = np.random.default_rng(0).permutation(60).astype(float)
    turns = take_turns(places, groups)[np.argsort(places)]
    ends = np.flatnonzero(np.diff(turns)) + 1
    assert [part.size for part in np.split(turns, ends)] == [60 // groups] * groups
    assert not turns[0]


def test_phases_in_a_bin_of_offsets_are_averaged_on_the_circle():
    offsets, phases = np.array([1.0, 2.0, 11.0, 12.0, 40.0]), np.array([170, -170, 10, 30, np.nan])
    found = bin_phases(offsets, phases, np.linspace(0.0, 40.0, 5))
    assert np.abs(found[0]) == pytest.approx(180.0)
    assert found[1] == pytest.approx(20.0)
    assert np.isnan(found[2:]).all()


def shot(number, misfit=1e-4, traces=20, phase=30.0):
    offsets = np.linspace(-500.0, 1500.0, traces) - 50.0 * number
    return number, misfit, offsets, np.full(traces, phase)


def test_fit_figure_shows_phases_misfits_and_spectra():
    frequencies = np.linspace(0.0, 25.0, 51)
    observed = np.exp(-((frequencies - 8.0) ** 2) / 8.0)
    shots = [shot(3), shot(5, np.nan, phase=np.nan), shot(250, 3e-4)]
    figure = fit_figure(shots, 8.0, (frequencies, observed, 0.4 * observed), 20)
    assert not texts_overlap(figure)
    phases, misfits, _, ratio = figure.axes
    image = phases.images[0].get_array()
    assert np.ma.masked_invalid(image[:, 1]).mask.all()
    assert set(np.round(image[:, 0][np.isfinite(image[:, 0])], 9)) == {30.0}
    assert [text.get_text() for text in misfits.get_xticklabels()] == ["3", "5", "250"]
    found = ratio.lines[1].get_ydata()
    np.testing.assert_allclose(found[np.isfinite(found)], 0.4)
    assert np.isfinite(found).sum() < found.size, "only where the spectrum has energy"


def test_fit_of_silent_shots_and_shots_without_traces_is_drawn():
    nothing = np.zeros(11)
    spectra = np.linspace(0.0, 50.0, 11), nothing, nothing
    figure = fit_figure([shot(0, traces=0), shot(1, phase=np.nan)], 8.0, spectra, 1)
    figure.canvas.draw()
    phases, misfits, amplitudes, ratio = figure.axes
    assert np.ma.getmaskarray(np.ma.masked_invalid(phases.images[0].get_array())).all()
    assert [text.get_text() for text in misfits.get_xticklabels()] == ["0", "1"]
    assert [line.get_ydata().tolist() for line in amplitudes.lines] == [[0.0] * 11] * 2
    assert np.isnan(ratio.lines[1].get_ydata()).all()
    empty = np.zeros((0, 20), np.float32)
    figure = traces_figure([("Shot 0", np.zeros(0), empty, empty)], TimeAxis(0.01, 0.0), 1)
    figure.canvas.draw()
    assert titles(figure)[0] == "Shot 0, observed"
    assert not any(axes.images for axes in figure.axes)
