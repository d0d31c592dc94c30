"""Conditioning of traces by the keys of [data], and its effect on gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import ndimage

from hpcfwi.config import load_config
from hpcfwi.config.survey import DataSection, Edit
from hpcfwi.errors import InputError
from hpcfwi.inversion.conditioning import (
    NO_CONDITIONING,
    Conditioning,
    find_factors,
    find_gains,
    find_ordinary,
    measure_energies,
    median_of_neighbours,
)
from hpcfwi.inversion.misfits import least_squares
from hpcfwi.inversion.objective import Objective
from hpcfwi.model import Model
from hpcfwi.operators.simulator import Chunks
from hpcfwi.parallel.context import Context
from hpcfwi.survey import Components, Survey
from hpcfwi.wave import Snapshots
from tests.inversion.examples import N_RECEIVERS, N_SAMPLES, prepared, write_input
from tests.inversion.test_objective import batch_of

DT = 0.01
TIMES = DT * np.arange(200)
OFFSETS = np.array([0.0, 500.0, 1000.0])
TRACES = np.random.default_rng(3).normal(size=(3, 200)).astype(np.float32)


def factors(**keys):
    section = DataSection.model_validate(keys)
    return find_factors(TRACES, OFFSETS, TIMES, section)


def at(time):
    return round(time / DT)


def test_no_conditioning_changes_nothing():
    survey = Survey(np.zeros((1, 2)), np.zeros((1, 3, 2)), np.ones((1, 200)), DT)
    found = NO_CONDITIONING.apply(TRACES[None], survey)
    assert found.observed.base is TRACES
    assert found.counts.all()
    assert found.factors is None


def of_components(names=("pressure", "vz")):
    """Return traces of two components, the second much weaker, and their survey."""
    kinds = np.array([0, 1, 1, 0, 1, 0], np.int8)
    traces = np.random.default_rng(4).normal(size=(1, 6, 200)).astype(np.float32)
    traces *= np.float32(1e-6) ** kinds[:, None]
    components = Components(names, kinds)
    receivers = np.zeros((1, 6, 2))
    receivers[..., 1] = 100.0 * np.arange(6)
    return traces, Survey(np.zeros((1, 2)), receivers, np.ones((1, 200)), DT, components=components)


@pytest.mark.parametrize("weights", [{}, {"vz": 0.25}, {"pressure": 4.0, "vz": 9.0}])
def test_gains_give_components_equal_energies_times_their_weights(weights):
    traces, survey = of_components()
    plain = NO_CONDITIONING.apply(traces, survey)
    names = survey.components.names
    gains = find_gains(measure_energies(plain, survey)[0], names, weights)
    balanced = Conditioning(DataSection(), gains=gains).apply(traces, survey)
    _, weighed = balanced.pair_traces(torch.from_numpy(traces))
    energies = [
        float(weighed[0, survey.components.kinds == k].double().square().sum()) for k in (0, 1)
    ]
    expected = [weights.get(name, 1.0) for name in names]
    assert energies == pytest.approx(expected, rel=1e-5)


def test_component_with_weight_0_does_not_count():
    traces, survey = of_components()
    gains = find_gains(np.ones(2), survey.components.names, {"pressure": 0.0})
    counts = Conditioning(DataSection(), gains=gains).apply(traces, survey).counts
    np.testing.assert_array_equal(counts[0], survey.components.kinds == 1)


def test_silent_component_has_a_finite_gain():
    assert find_gains(np.array([0.0, 4.0]), ("pressure", "vz"), {}) == (1.0, 0.5)


def test_traces_are_edited_and_weighted_among_those_of_their_component():
    traces, survey = of_components()
    section = DataSection(edit=Edit(), weight={"amplitude": -1.0})
    given = Conditioning(section).apply(traces, survey)
    assert given.counts.all()
    for kind in (0, 1):
        some = survey.components.kinds == kind
        alone = find_factors(traces[0, some], np.zeros(3), TIMES, section)
        np.testing.assert_array_equal(given.factors[0, some], alone)


def test_mute_zeros_one_side_of_a_line_with_a_taper():
    mute = {"velocity": 1000.0, "delay": 0.2, "taper": 0.1}
    below, above = factors(mute=mute), factors(mute={**mute, "keep": "above"})
    for trace, line in zip(range(3), (0.2, 0.7, 1.2), strict=True):
        assert not below[trace, : at(line) + 1].any()
        assert (below[trace, at(line + 0.1) :] == 1.0).all()
        assert below[trace, at(line + 0.05)] == pytest.approx(0.5, abs=1e-6)
        assert not above[trace, at(line) :].any()
        assert (above[trace, : at(line - 0.1)] == 1.0).all()


def test_mute_with_width_zeros_a_strip_around_the_direct_wave():
    strip = factors(
        mute={"velocity": 1000.0, "width": 0.3, "delay": 0.1, "keep": "outside", "taper": 0.05}
    )
    assert not strip[1, at(0.6) : at(0.9)].any()
    assert (strip[1, : at(0.54)] == 1.0).all()
    assert (strip[1, at(0.96) :] == 1.0).all()


def test_several_mutes_by_curve_and_time_are_combined():
    curve = {"curve": [[0.0, 0.1], [1000.0, 0.6]], "taper": 0.0}
    after = {"after": 1.5, "taper": 0.0}
    both = factors(mute=[curve, after])
    for trace, first in zip(range(3), (0.1, 0.35, 0.6), strict=True):
        kept = np.flatnonzero(both[trace]) * DT
        assert kept[0] == pytest.approx(first + DT, abs=1.1 * DT)
        assert kept[-1] == pytest.approx(1.5 - DT, abs=1e-9)


def test_gain_and_weights_are_powers_of_time_offset_and_amplitude():
    np.testing.assert_allclose(factors(gain=2.0)[1], (DT * np.arange(200)) ** 2, rtol=1e-6)
    by_offset = factors(weight={"offset": 0.5})[:, 0]
    np.testing.assert_allclose(by_offset, np.sqrt([0.01, 0.5, 1.0]), rtol=1e-6)
    loud = TRACES * np.array([1.0, 100.0, 0.0], np.float32)[:, None]
    section = DataSection.model_validate({"weight": {"amplitude": -1.0}})
    balanced = loud * find_factors(loud, OFFSETS, TIMES, section)
    strength = np.sqrt((balanced**2).mean(axis=1))
    assert strength[0] == pytest.approx(strength[1], rel=1e-5)
    assert strength[2] == 0.0


def test_traces_unlike_their_neighbours_are_left_out():
    offsets = np.abs(np.linspace(-1000.0, 1500.0, 40))
    spread = np.random.default_rng(0).normal(size=(40, 100)) / np.maximum(offsets, 50.0)[:, None]
    bad = {3: 50.0, 17: 0.0, 25: np.nan, 39: 1e-3}
    for trace, factor in bad.items():
        spread[trace] *= factor
    ordinary = find_ordinary(spread.astype(np.float32), offsets, Edit())
    assert np.flatnonzero(~ordinary).tolist() == sorted(bad)


def test_median_of_neighbours_matches_numpy_in_order_of_offset():
    values = np.array([5.0, 1.0, np.nan, 0.0, 2.0, 9.0, 4.0])
    np.testing.assert_array_equal(median_of_neighbours(values, np.arange(7.0)), np.full(7, 4.0))
    many, offsets = np.random.default_rng(1).random((2, 50))
    order = np.argsort(offsets)
    expected = [np.median(many[order[k - 5 : k + 6]]) for k in range(5, 45)]
    np.testing.assert_allclose(median_of_neighbours(many, offsets)[order[5:45]], expected)
    assert np.isnan(median_of_neighbours(np.zeros(4), np.arange(4.0))).all()


def test_edit_of_a_shot_does_not_depend_on_other_shots():
    draw = np.random.default_rng(2)
    spreads, offsets = draw.normal(size=(5, 30, 40)), draw.random((5, 30))
    spreads[draw.random((5, 30)) < 0.2] *= 1e-4
    spreads[3, 4], spreads[1] = np.nan, 0.0
    together = find_ordinary(spreads.astype(np.float32), offsets, Edit())
    for shot, spread in enumerate(spreads.astype(np.float32)):
        np.testing.assert_array_equal(together[shot], find_ordinary(spread, offsets[shot], Edit()))


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("conditioning"))


SHOTS = np.array([2, 7])
SHAPED = {
    "mute": [{"velocity": 1500.0, "delay": 0.1}, {"after": 0.55, "taper": 0.05}],
    "weight": {"offset": 0.5, "amplitude": -0.5},
    "gain": 1.0,
}


def evaluate(experiment, vp, observed, data, history=None):
    simulator = experiment.simulator(experiment.initial).with_history(history or Snapshots(1))
    limits = {"data": DataSection.model_validate(data)}
    simulator = replace(
        replace(experiment, config=experiment.config.model_copy(update=limits)).simulator(
            experiment.initial
        ),
        method=simulator.method,
    )
    context = Context.alone()
    objective = Objective(
        simulator,
        least_squares,
        context,
        Chunks(1, context),
        conditioning=Conditioning(limits["data"]),
    )
    batch = batch_of(SHOTS, experiment.survey.select(SHOTS), observed)
    return objective.evaluate(Model(simulator.grid, {"vp": vp}), batch)


def observed_of(experiment):
    true = experiment.true.as_tensors(torch.device("cpu"))
    survey = experiment.survey.select(SHOTS)
    return experiment.simulator(experiment.true).simulate(true, survey, keep=False).data.numpy()


@pytest.mark.parametrize("data", [SHAPED, {"edit": {}, "offsets": [100.0, 700.0]}], ids=str)
def test_gradient_with_conditioning_matches_finite_differences(experiment, data):
    observed = observed_of(experiment)
    vp = torch.tensor(experiment.initial["vp"]).double()
    rough = np.random.default_rng(5).normal(size=vp.shape)
    direction = torch.from_numpy(ndimage.gaussian_filter(rough, 3.0))
    gradient = evaluate(experiment, vp, observed, data).gradient["vp"]
    expected = float((gradient * direction).sum())
    step = 1.0
    values = [
        evaluate(experiment, vp + k * step * direction, observed, data).misfit
        for k in (-2, -1, 1, 2)
    ]
    slope = (values[0] - 8.0 * values[1] + 8.0 * values[2] - values[3]) / (12.0 * step)
    assert expected == pytest.approx(slope, rel=1e-5)


def test_values_of_traces_left_out_by_edit_do_not_matter(experiment):
    observed = observed_of(experiment)
    vp = torch.tensor(experiment.initial["vp"])
    good = evaluate(experiment, vp, observed, {"edit": {}})
    damaged = observed.copy()
    damaged[0, 4], damaged[1, 20] = np.nan, 1e20 * observed[1, 20]
    found = evaluate(experiment, vp, damaged, {"edit": {}})
    assert not found.failed
    assert found.misfit == pytest.approx(good.misfit, rel=0.2)
    again = damaged.copy()
    again[0, 4, :] = -np.inf
    assert torch.equal(
        evaluate(experiment, vp, again, {"edit": {}}).gradient["vp"], found.gradient["vp"]
    )


def test_traces_outside_range_of_offsets_are_left_out(experiment):
    observed = observed_of(experiment)
    vp = torch.tensor(experiment.initial["vp"])
    found = evaluate(experiment, vp, observed, {"offsets": [300.0, 500.0]})
    offsets = np.abs(
        experiment.survey.receivers[:, 1] - experiment.survey.sources[SHOTS][:, 1:]
    ).reshape(2, N_RECEIVERS)
    damaged = observed.copy()
    damaged[(offsets < 300.0) | (offsets > 500.0)] = np.nan
    same = evaluate(experiment, vp, damaged, {"offsets": [300.0, 500.0]})
    assert torch.equal(found.gradient["vp"], same.gradient["vp"])
    assert 0.0 < found.misfit == same.misfit
    assert observed.shape[-1] == N_SAMPLES


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"offsets": [600.0, 100.0]}, ("data", "offsets are [600.0, 100.0]", "nearer one first")),
        ({"offsets": [0.0, 0.006]}, ("data.offsets", "[0.0, 0.006]", "no receiver at such", "m")),
        ({"offsets": [9e4, 1e5]}, ("data.offsets", "[90000.0, 100000.0]", "no receiver at such")),
        (
            {"mute": {"keep": "above"}},
            ("data.mute", "exactly one of velocity, curve, picks and after"),
        ),
        ({"mute": [{"after": 1.0, "delay": 1.0}]}, ("data.mute", "combined with taper only")),
        ({"mute": {"velocity": 1.0, "keep": "outside"}}, ("data.mute", "width belong together")),
        ({"mute": {"velocty": 1.0}}, ("data.mute", "velocty", "unknown key", "velocity")),
        ({"mute": {"curve": [[1.0, 0.0], [1.0, 1.0]]}}, ("data.mute", "each above the last")),
        ({"edit": {"above": 0.1, "below": 0.2}}, ("data.edit", "below less than above")),
        ({"weight": {"offset": "1"}}, ("data.weight.offset", "'1'", "number")),
        ({"correct": "3d"}, ("data.correct", "'3d'", "line-source")),
    ],
    ids=str,
)
def test_invalid_data_section_is_refused_with_its_key(data, words, tmp_path):
    with pytest.raises(InputError) as caught:
        prepared(tmp_path, {"data": data})
    for word in words:
        assert word in str(caught.value)


def test_mute_may_be_a_table_or_a_list_of_tables(tmp_path):
    one = load_config(write_input(tmp_path, {"data.mute": {"after": 1.0}}))
    several = load_config(write_input(tmp_path, {"data.mute": [{"after": 1.0}]}))
    assert one.data == several.data
    (tmp_path / "again.toml").write_text(one.to_toml(), encoding="utf-8")
    assert load_config(tmp_path / "again.toml").data == one.data
