"""The fit of simulated to observed traces: phases, spectra and their description."""

from __future__ import annotations

import numpy as np
import pytest

from hpcfwi.inversion.shot_qc import (
    Fit,
    View,
    choose_drawn,
    choose_shots,
    choose_views,
    find_phases,
    find_power,
    knows_amplitudes,
    measure_fit,
)
from hpcfwi.registry import MISFITS, find
from hpcfwi.survey import Components, TimeAxis
from hpcfwi.wave.numerics import ricker

DT, N, FREQUENCY = 0.004, 1000, 6.0


def arriving(*times):
    return np.stack([ricker(FREQUENCY, N, DT, time) for time in times])


@pytest.mark.parametrize("late", [0.0, 0.01, -0.03, 0.08])
def test_phase_is_proportional_to_delay(late):
    found = find_phases(arriving(1.0 + late, 2.0 + late), arriving(1.0, 2.0), FREQUENCY, DT)
    np.testing.assert_allclose(found, 360.0 * FREQUENCY * late, atol=1e-6)


def test_phase_of_delay_above_half_a_period_wraps_to_next_cycle():
    (found,) = find_phases(arriving(1.1), arriving(1.0), FREQUENCY, DT)
    assert found == pytest.approx(360.0 * 0.1 * FREQUENCY - 360.0)


def test_phase_does_not_depend_on_amplitude_and_is_180_for_opposite_sign():
    observed = 1e-5 * arriving(1.0, 1.5)
    assert np.abs(find_phases(observed, arriving(1.0, 1.5), FREQUENCY, DT)).max() < 1e-6
    assert np.abs(find_phases(-observed, arriving(1.0, 1.5), FREQUENCY, DT)).min() > 179.9


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("value", [0.0, 1e-6, np.nan])
def test_trace_with_negligible_energy_has_no_phase(which, value):
    pair = [arriving(1.0, 1.0), arriving(1.1, 1.1)]
    pair[which][0] *= value
    assert np.isnan(find_phases(*pair, FREQUENCY, DT)).tolist() == [True, False]


def test_power_spectrum_has_energy_of_finite_traces():
    """By Parseval's theorem, all frequencies of real traces except the ends count twice."""
    traces = np.random.default_rng(0).normal(size=(3, N))
    power = find_power(traces)
    twice = 2.0 * power.sum() - power[0] - power[-1]
    assert twice / N == pytest.approx(np.sum(traces**2))
    broken = np.concatenate([traces, np.full((1, N), np.nan)])
    np.testing.assert_array_equal(find_power(broken), power)
    assert np.isnan(find_power(broken[3:])).all()


@pytest.mark.parametrize("part", [0.0, 0.3, 1.0, 2.0])
def test_ratio_of_fit_is_residual_relative_to_observed(part):
    observed = arriving(1.0, 1.4).astype(np.float32)
    offsets = np.array([-100.0, 200.0])
    simulated = np.float32(1.0 - part) * observed
    views = [View(number, offsets, observed, simulated) for number in (2, 5)]
    shots = tuple(measure_fit(view, 0.5, FREQUENCY, DT, False) for view in views)
    fit = Fit(FREQUENCY, TimeAxis(DT, 0.0), shots, tuple(views), False)
    assert fit.ratio == pytest.approx(part, rel=1e-5, abs=1e-6)
    assert fit.frequencies.shape == fit.amplitudes[0].shape
    assert f"the residual of 2 shots is {100 * part:.0f} %" in fit.describe()


@pytest.mark.parametrize(
    ("names", "titles"),
    [
        (("pressure",), ["Shot 0", "Shot 1", "Shot 2"]),
        (("pressure", "vz", "vx"), ["Shot 1, pressure", "Shot 1, vz", "Shot 1, vx"]),
    ],
)
def test_drawn_views_have_a_gather_per_component(names, titles):
    kinds = np.arange(6, dtype=np.int8) % len(names)
    traces = kinds[:, None] + np.zeros((6, 8), np.float32)
    components = Components(names, kinds)
    views = [View(k, np.arange(6.0), traces, traces, components=components) for k in range(3)]
    drawn = choose_drawn(views)
    assert [title for title, _ in drawn] == titles
    for number, (_, view) in enumerate(drawn):
        assert (view.observed == number % len(names)).all()


def test_fit_of_zero_traces_is_described_as_nan():
    silent = np.zeros((2, 50), np.float32)
    view = View(0, np.array([0.0, 1.0]), silent, silent)
    fit = Fit(
        FREQUENCY,
        TimeAxis(DT, 0.0),
        (measure_fit(view, 0.0, FREQUENCY, DT, False),),
        (view,),
        False,
    )
    assert "nan %" in fit.describe()


@pytest.mark.parametrize("n_shots", [1, 2, 7, 12, 13, 24, 341])
def test_chosen_shots_are_unique_and_spread_evenly_over_the_survey(n_shots):
    shots = choose_shots(n_shots)
    assert shots.size == min(n_shots, 12)
    assert (shots[0], shots[-1]) == (0, n_shots - 1)
    assert np.unique(shots).size == shots.size
    assert np.ptp(np.diff(shots)) <= 1 if n_shots > 2 else True
    shown = choose_views(shots, 3)
    assert np.unique(shown).size == min(n_shots, 3)
    assert set(shown) <= set(shots)


def fitted(simulated, observed, normalized):
    view = View(0, np.arange(float(len(observed))), *map(np.float32, (observed, simulated)))
    shot = measure_fit(view, 0.0, FREQUENCY, DT, normalized)
    return Fit(FREQUENCY, TimeAxis(DT, 0.0), (shot,), (view,), normalized)


@pytest.mark.parametrize("name", MISFITS)
def test_misfit_reports_whether_it_depends_on_amplitudes(name):
    free = {"normalized", "correlation", "transport", "adaptive"}
    assert knows_amplitudes(find(MISFITS[name])) == (name not in free)


def test_normalized_fit_ranks_good_above_bad_despite_amplitudes():
    times = np.linspace(1.0, 2.0, 20)
    observed = arriving(*times)
    good = arriving(*times + 0.004) * np.geomspace(0.05, 20.0, 20)[:, None]
    bad = arriving(*times + 0.06)
    assert fitted(good, observed, False).ratio > fitted(bad, observed, False).ratio, (
        "without normalization"
    )
    assert fitted(good, observed, True).ratio < 0.2 < fitted(bad, observed, True).ratio
    assert "scaled to the same norm" in fitted(good, observed, True).describe()


@pytest.mark.parametrize("normalized", [False, True])
def test_traces_without_an_arrival_are_ignored_in_a_normalized_fit(normalized):
    observed = arriving(1.0, 1.5, 2.0)
    simulated = observed * np.array([1.0, 1.0, 1e-6])[:, None]
    expected = 0.0 if normalized else 1.0 / np.sqrt(3.0)
    assert fitted(simulated, observed, normalized).ratio == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("late", "size", "words"),
    [
        (0.004, 1.0, None),
        (0.1, 1.0, "only 0 % of the traces are less than 60 degrees off"),
        (0.0, 0.05, "residual is 95 % of the observed data"),
    ],
)
def test_poor_fit_is_reported(late, size, words):
    times = np.linspace(1.0, 2.0, 20)
    found = fitted(size * arriving(*times + late), arriving(*times), False).judge(epoch=3)
    assert [finding.where for finding in found] == ["data fit after epoch 3"] * (words is not None)
    assert all(words in finding.found for finding in found)
