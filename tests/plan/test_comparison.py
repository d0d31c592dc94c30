"""Findings from the comparison of observed data with data of the starting model."""

from __future__ import annotations

import numpy as np
import pytest

from hpcfwi.inversion.wavelets import Estimate
from hpcfwi.model import Model
from hpcfwi.plan import checks
from hpcfwi.plan.arrivals import Scan, Tally, find_heads
from hpcfwi.plan.comparison import View, compare, find_conventions
from hpcfwi.storage.models import write_model
from hpcfwi.survey import Components, TimeAxis
from hpcfwi.wave.numerics import ricker
from tests.inversion.examples import prepared, true_model

DT, N, PERIOD = 0.004, 800, 0.1
AXIS = TimeAxis(DT, 0.0)
OFFSETS = np.linspace(-2000.0, 4000.0, 61)


def gather(late=0.0):
    times = 0.2 + np.abs(OFFSETS) / 2000.0 + late * np.ones(61)
    return np.stack([ricker(10.0, N, DT, t) for t in times]).astype(np.float32)


def check_comparison(compared, **keys):
    return list(checks.check_comparison(compared, "given.h5", **keys))


def compare_shot(observed, simulated=None, scan=None, **keys):
    """Return the comparison of a shot with the traces of `gather` or with others."""
    view = View(3, OFFSETS, observed, gather() if simulated is None else simulated)
    return compare([view], scan, AXIS, PERIOD, **keys)


def findings(observed, simulated=None, scan=None):
    return check_comparison(compare_shot(observed, simulated, scan))


def test_good_data_give_no_finding():
    noise = 0.02 * np.random.default_rng(0).normal(size=(61, N))
    assert findings((0.8 * gather(0.01) + noise).astype(np.float32)) == []


def test_arrivals_off_by_more_than_half_a_period_are_cycle_skips():
    far = np.abs(OFFSETS) > 2950.0
    (found,) = findings(gather(0.07 * far))
    assert found.where == "model.initial"
    assert "18 % of the traces, 100 % at offsets of 3000 to 4000 m" in found.found
    assert "lower frequencies" in found.remedy
    assert findings(gather(0.03 * far)) == []
    assert findings(gather(0.07 * (np.abs(OFFSETS) > 3950.0))) == [], "a single trace"


@pytest.mark.parametrize(
    ("observed", "words"),
    [
        (1e-3 * gather(), "0.001 times"),
        (-gather(), "opposite sign"),
        (gather(0.04), "40 ms later"),
        (gather(-0.04), "40 ms earlier"),
    ],
)
def test_difference_of_all_traces_is_reported_once(observed, words):
    (found,) = findings(observed.astype(np.float32))
    assert found.severity == "warning"
    assert words in found.found


@pytest.mark.parametrize("flipped", [0, 1])
def test_component_with_the_opposite_sign_of_the_others_is_named(flipped):
    names, kinds = ("vz", "pressure"), np.arange(61, dtype=np.int8) % 2
    observed = np.where(kinds[:, None] == flipped, -1.0, 1.0) * gather(0.01)
    view = View(
        3, OFFSETS, observed.astype(np.float32), gather(), components=Components(names, kinds)
    )
    compared = compare([view], None, AXIS, PERIOD)
    (found,) = check_comparison(compared)
    assert f"arrivals of {names[flipped]} have the opposite sign" in found.found
    assert f"those of {names[1 - flipped]} have the same" in found.found
    assert f"the traces of {names[flipped]} by -1" in found.remedy
    assert f"{names[flipped]} is the opposite" in " ".join(compared.describe())


@pytest.mark.parametrize("keys", [{}, {"per": "shot"}, {"furthest": 1000.0}])
def test_differences_that_wavelet_estimation_corrects_are_not_reported(keys):
    off = (-1e-3 * gather(0.04)).astype(np.float32)
    views = [View(number, OFFSETS, off, gather()) for number in (3, 7)]
    found = compare(views, None, AXIS, PERIOD, estimate=Estimate(**keys))
    assert check_comparison(found) == []
    assert "3, 7 in the starting model, with an estimated wavelet: " in next(found.describe())
    assert len(check_comparison(compare(views, None, AXIS, PERIOD))) == 3
    far = np.where(np.abs(OFFSETS) > 2950.0, 0.07, 0.0)
    estimate = Estimate(furthest=1000.0)
    (skipped,) = check_comparison(compare_shot(-gather(far), estimate=estimate))
    assert "100 % at offsets of 3000 to 4000 m" in skipped.found, "no wavelet corrects cycle skips"


def test_no_misfit_is_recommended_for_a_migration():
    """A migration has only one misfit, and does not update its model."""
    for linear, remedies in ((False, 2), (True, 0)):
        found = check_comparison(compare_shot(9.0 * gather(0.07)), linear=linear)
        assert sum("half a period" in finding.found for finding in found) == 1
        assert sum("times the simulated" in finding.found for finding in found) == 1
        assert sum("inversion.misfit" in finding.remedy for finding in found) == remedies


def test_skipped_cycles_of_muted_data_are_not_reported_for_a_migration():
    """The simulated arrival is then the edge of the mute, and the observed one a reflection."""
    compared = compare_shot(gather(0.07))
    for linear, mutes, count in ((True, False, 1), (True, True, 0), (False, True, 1)):
        found = check_comparison(compared, linear=linear, mutes=mutes)
        assert sum("half a period" in finding.found for finding in found) == count


def test_comparison_without_arrivals_states_no_measurements():
    (line,) = compare_shot(0.0 * gather(), 0.0 * gather()).describe()
    assert "first arrivals in 0 traces" in line
    assert "ms late" not in line


def test_noise_is_reported_as_noise_without_a_sign():
    noise = np.random.default_rng(0).normal(size=(61, N)).astype(np.float32)
    message = " ".join(map(str, findings(noise)))
    assert "are found in" in message
    assert "the noise before the first arrivals is" in message
    assert "sign" not in message


def test_other_waves_after_a_mute_of_the_input_do_not_blame_the_wavelet_alone():
    noise = np.random.default_rng(0).normal(size=(61, N)).astype(np.float32)
    compared = compare_shot(noise)
    for mutes in (False, True):
        found = " ".join(map(str, check_comparison(compared, mutes=mutes)))
        assert ("the model does not explain these waves" in found) is mutes
        assert ("Repeat hpcfwi check without data.mute" in found) is mutes


@pytest.mark.parametrize(
    ("observed", "simulated", "scan", "words"),
    [
        (gather(), gather(), None, "misfit is zero"),
        (gather(), 0.0 * gather(), None, "no wave arrives"),
        (0.0 * gather(), gather(), Scan(1, 61, silent=(3,)), "all observed traces"),
    ],
)
def test_data_with_nothing_to_invert_are_an_error(observed, simulated, scan, words):
    (found,) = findings(observed, simulated, scan)
    assert found.severity == "error"
    assert words in found.found


def test_later_stage_reports_only_what_a_better_model_cannot_correct():
    skipped = gather(0.07 * (np.abs(OFFSETS) > 2950.0))

    def later(observed):
        return check_comparison(compare_shot(observed.astype(np.float32)), begins=False)

    assert later(skipped) == []
    assert later(gather(0.04)) == []
    (found,) = later(1e-3 * skipped)
    assert "0.001 times" in found.found
    assert later(1e-3 * np.random.default_rng(0).normal(size=(61, N))) == [], (
        "arrivals are not found in noise"
    )


def test_band_without_recorded_energy_is_an_error():
    (found,) = check_comparison(compare_shot(gather(0.01), left=1e-6))
    assert (found.severity, found.where) == ("error", "data.band")
    assert check_comparison(compare_shot(gather(0.01), left=1e-3)) == []


def test_at_most_three_broken_traces_are_named():
    broken = sum((Tally(1, ((2, receiver),)) for receiver in range(5)), Tally())
    (found,) = findings(gather(0.01), scan=Scan(10, 610, broken=broken))
    assert "5 of 610 traces are not finite" in found.found
    assert "(shot 2, receiver 0; shot 2, receiver 1; shot 2, receiver 2; ...)" in found.found
    assert "data.edit = {}" in found.remedy


def test_comparison_is_described_with_and_without_arrivals():
    for observed in (gather(0.01), 0.0 * gather()):
        lines = list(compare_shot(observed, scan=Scan(1, 61)).describe())
        assert len(lines) == (5 if observed.any() else 2)
        assert not any("nan" in line for line in lines)


def muted(traces, until):
    """Return traces that are zero until times (trace,), in s, and fade in over 0.1 s."""
    later = DT * np.arange(N) - np.asarray(until)[:, None]
    return (traces * np.sin(0.5 * np.pi * np.clip(later / 0.1, 0.0, 1.0)) ** 2).astype(np.float32)


def compare_heads(observed, recorded=None, simulated=None, **keys):
    """Return the comparison of observed data, with the mutes of the recorded ones."""
    heads = {3: find_heads(observed if recorded is None else recorded, AXIS)}
    view = View(3, OFFSETS, observed, gather() if simulated is None else simulated, np.arange(61))
    return compare([view], None, AXIS, PERIOD, heads=heads, **keys)


def echoes(late=0.0):
    """Return a gather of first arrivals and of waves of the same shape 0.25 s later."""
    return gather(late) + 0.8 * gather(late + 0.25)


def test_waves_after_muted_first_arrivals_are_not_taken_for_them():
    arrivals = 0.2 + np.abs(OFFSETS) / 2000.0
    found = compare_heads(muted(echoes(0.01), arrivals + 0.12), simulated=echoes())
    assert (found.traces, found.muted, found.compared) == (61, 61, 0)
    message = " ".join(map(str, check_comparison(found)))
    assert "muted (zero) at 61 of 61 first arrivals" in message
    assert "only 0 first arrivals can be compared" in message
    assert "61 of which are muted in the observed data, found again in 0 % of the others" in next(
        found.describe()
    )


def test_mute_before_first_arrivals_gives_no_finding():
    arrivals = 0.2 + np.abs(OFFSETS) / 2000.0
    found = compare_heads(muted(echoes(0.01), arrivals - 0.1), simulated=echoes())
    assert (found.muted, found.alike) == (0, 1.0)
    assert check_comparison(found) == []
    assert "noise before them muted" in list(found.describe())[1], (
        "zeros do not count as noise of 0 %"
    )


def test_late_arrivals_without_noise_are_not_taken_for_muted():
    found = compare_heads(gather(0.2))
    assert (found.muted, found.alike, found.skipped) == (0, 1.0, 1.0)


def test_wavelet_fit_to_a_few_noise_traces_is_judged_by_other_traces():
    noise = np.random.default_rng(0).normal(size=(61, N)).astype(np.float32)
    noise[3:] = 0.0
    found = compare_heads(noise)
    assert found.traces == 3
    assert abs(found.fitted) < 0.3, "on traces that the wavelet was not fitted to"
    message = " ".join(map(str, check_comparison(found)))
    assert "only 3 first arrivals can be compared" in message
    alone = compare_heads(np.where(np.arange(61)[:, None] == 1, noise, 0.0).astype(np.float32))
    assert "fitted" not in " ".join(alone.describe())


def test_fitted_wavelet_explains_traces_not_used_for_the_fit():
    assert compare_heads(np.roll(gather(), 11, axis=1)).fitted > 0.99


@pytest.mark.parametrize(
    ("factor", "names"),
    [(-100.0, "Deepwave"), (100.0, "Devito and JUDI"), (100.0 / 36.0, "SWEEP"), (31.0, None)],
)
def test_amplitudes_of_other_codes_are_named_with_their_factor(factor, names, tmp_path):
    """Cells have 100 m2, and waves travel 6 m in a step at the sources, which are in water."""
    conventions = find_conventions(prepared(tmp_path, {"model.spacing": 10.0, "survey.dt": DT}))
    found = compare_heads((1.1 * factor * gather(0.01)).astype(np.float32), conventions=conventions)
    (message,) = check_comparison(found)
    if names is None:
        assert "31" not in message.remedy
        assert "amplitudes" in message.found
    else:
        assert names in message.found
        assert f"multiply the data by {1.0 / factor:.6g} " in message.remedy


@pytest.mark.parametrize(
    ("kind", "components", "count"),
    [
        ("explosive", ["vz", "pressure"], 3),
        ("explosive", ["vz"], 0),
        ("force-z", ["pressure", "vz"], 0),
    ],
)
def test_codes_of_the_scalar_equation_have_only_explosions_and_pressure(
    kind, components, count, tmp_path
):
    keys = {
        "wave.equation": "acoustic-density",
        "survey.sources.kind": kind,
        "survey.receivers.components": components,
    }
    found = true_model()
    arrays = {**found.arrays, "rho": np.full(found.grid.shape, 2000.0, np.float32)}
    write_model(tmp_path / "true.h5", Model(found.grid, arrays))
    assert len(find_conventions(prepared(tmp_path, keys))) == count
