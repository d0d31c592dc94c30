"""Properties of all registered misfits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad

from hpcfwi.inversion.misfits import Misfit
from hpcfwi.registry import MISFITS, find
from tests.inversion.misfits.toys import DT, burst, random_traces, slope

LEAST_SQUARES = "least-squares"
OTHERS = [name for name in MISFITS if name != LEAST_SQUARES]
every_misfit = pytest.mark.parametrize("name", MISFITS)
every_other_misfit = pytest.mark.parametrize("name", OTHERS)


def misfit_of(name: str) -> Misfit:
    return find(MISFITS[name])


@every_misfit
def test_gradient_of_every_misfit_matches_finite_differences(name):
    misfit, observed, simulated = misfit_of(name), random_traces(1), random_traces(2)
    found, gradient = misfit(simulated, observed, DT)
    assert found.shape == (2,)
    assert (found > 0.0).all()
    expected = torch.zeros_like(simulated)
    step = 1e-6
    for place in torch.cartesian_prod(*map(torch.arange, simulated.shape)):
        changed = [simulated.clone(), simulated.clone()]
        changed[0][tuple(place)] -= step
        changed[1][tuple(place)] += step
        below, above = (misfit(traces, observed, DT)[0].sum() for traces in changed)
        expected[tuple(place)] = (above - below) / (2.0 * step)
    torch.testing.assert_close(
        gradient, expected, rtol=0.0, atol=1e-6 * float(expected.abs().max())
    )


@every_misfit
def test_forward_derivative_of_gradient_matches_finite_differences(name):
    misfit, observed, simulated = misfit_of(name), random_traces(1), random_traces(2)
    direction, step = random_traces(3), 1e-6
    with forward_ad.dual_level():
        changing = forward_ad.make_dual(simulated, direction)
        found = forward_ad.unpack_dual(misfit(changing, observed, DT)[1]).tangent
    below, above = (misfit(simulated + h * direction, observed, DT)[1] for h in (-step, step))
    torch.testing.assert_close(
        found, (above - below) / (2.0 * step), rtol=0.0, atol=1e-7 * float(found.abs().max())
    )


@every_misfit
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), exponent=st.floats(-12.0, 12.0))
def test_misfit_is_zero_for_equal_traces_only(name, seed, exponent):
    observed, other = random_traces(seed) * 10.0**exponent, random_traces(seed + 1)
    found, gradient = misfit_of(name)(observed, observed, DT)
    assert found.tolist() == [0.0, 0.0]
    assert not gradient.any()
    assert (misfit_of(name)(other, observed, DT)[0] > 0.0).all()


@every_misfit
def test_misfit_is_quadratic_in_small_differences(name):
    observed, between = random_traces(1), random_traces(2)
    near, nearer = (
        misfit_of(name)(observed + size * between, observed, DT)[0] for size in (1e-4, 1e-5)
    )
    torch.testing.assert_close(near / nearer, torch.full_like(near, 100.0), rtol=0.02, atol=0.0)


@every_misfit
@pytest.mark.parametrize("factor", [0.01, 1e9])
def test_equal_trace_does_not_change_misfit_of_others(name, factor):
    observed, simulated = random_traces(1), random_traces(2)
    without, expected = misfit_of(name)(simulated[:, 1:], observed[:, 1:], DT)
    simulated[:, 0] = observed[:, 0] = factor * observed[:, 0]
    found, gradient = misfit_of(name)(simulated, observed, DT)
    torch.testing.assert_close(found, without, rtol=1e-14, atol=0.0)
    assert not gradient[:, 0].any()
    torch.testing.assert_close(gradient[:, 1:], expected, rtol=1e-12, atol=1e-15)


@every_other_misfit
@pytest.mark.parametrize("rest", [0.0, 1e-9])
@pytest.mark.parametrize("which", ["simulated", "observed", "both"])
def test_dead_traces_do_not_count(name, which, rest):
    simulated, observed = random_traces(2), random_traces(1)
    without, expected = misfit_of(name)(simulated[:, 1:], observed[:, 1:], DT)
    if which != "observed":
        simulated[:, 0] *= rest
    if which != "simulated":
        observed[:, 0] *= rest
    found, gradient = misfit_of(name)(simulated, observed, DT)
    torch.testing.assert_close(found, without, rtol=1e-14, atol=0.0)
    assert not gradient[:, 0].any()
    torch.testing.assert_close(gradient[:, 1:], expected, rtol=1e-12, atol=1e-15)


@every_other_misfit
def test_misfit_of_zero_traces_is_zero(name):
    silence = torch.zeros(2, 3, 40)
    for pair in [(silence, silence), (silence, silence + 1.0), (silence + 1.0, silence)]:
        found, gradient = misfit_of(name)(*pair, DT)
        assert found.tolist() == [0.0, 0.0]
        assert not gradient.any()


@every_misfit
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("which", [0, 1])
def test_nonfinite_trace_affects_misfit_of_its_shot_only(name, which, value):
    pair = (random_traces(2), random_traces(1))
    expected, _ = misfit_of(name)(*pair, DT)
    pair[which][1, 2, 7] = value
    found, gradient = misfit_of(name)(*pair, DT)
    assert found[0] == expected[0]
    assert not found[1].isfinite()
    assert gradient[0].isfinite().all()


@every_misfit
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32), shots=st.integers(2, 4), traces=st.integers(1, 5))
def test_bits_of_a_shot_do_not_depend_on_other_shots(name, dtype, seed, shots, traces):
    simulated, observed = (random_traces(seed + k, shots, traces, 61).to(dtype) for k in range(2))
    together, gradient = misfit_of(name)(simulated, observed, DT)
    assert together.dtype == torch.float64
    assert gradient.dtype == dtype
    for shot in range(shots):
        alone = misfit_of(name)(simulated[shot : shot + 1], observed[shot : shot + 1], DT)
        assert alone[0][0] == together[shot]
        assert torch.equal(alone[1][0], gradient[shot])


@every_misfit
@pytest.mark.parametrize("shape", [(2, 37, 1501), (1, 1, 70001)])
def test_bits_of_every_misfit_do_not_depend_on_the_threads(name, shape):
    simulated, observed = random_traces(2, *shape), random_traces(1, *shape)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(misfit_of(name)(simulated, observed, DT))
    torch.set_num_threads(before)
    for found, gradient in results[1:]:
        assert torch.equal(found, results[0][0])
        assert torch.equal(gradient, results[0][1])


@every_misfit
def test_single_precision_traces_lose_no_further_precision(name):
    simulated, observed = (1e-22 * random_traces(seed) for seed in (2, 1))
    expected, slow = misfit_of(name)(simulated, observed, DT)
    found, gradient = misfit_of(name)(simulated.float(), observed.float(), DT)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0.0)
    largest = float(slow.abs().max())
    torch.testing.assert_close(gradient.double(), slow, rtol=0.0, atol=1e-5 * largest)


@pytest.mark.parametrize("name", ["normalized", "correlation", "adaptive", "transport"])
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), exponents=st.tuples(*[st.floats(-1.0, 1.0)] * 6))
def test_some_misfits_ignore_amplitudes(name, seed, exponents):
    simulated, observed = random_traces(seed), random_traces(seed + 1)
    factors = 10.0 ** torch.tensor(exponents, dtype=torch.float64).reshape(2, 3, 1)
    expected, slow = misfit_of(name)(simulated, observed, DT)
    found, gradient = misfit_of(name)(simulated * factors, observed, DT)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0.0)
    torch.testing.assert_close(gradient * factors, slow, rtol=1e-7, atol=1e-10)
    found, gradient = misfit_of(name)(simulated, observed * factors, DT)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0.0)
    torch.testing.assert_close(gradient, slow, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("periods", [-1.5, 1.5])
def test_some_misfits_have_right_slope_beyond_a_skipped_cycle(periods):
    slopes = {name: slope(misfit_of(name), burst, periods) * periods for name in MISFITS}
    right = {name for name, value in slopes.items() if value > 0.0}
    assert right == {"envelope", "adaptive", "transport"}
