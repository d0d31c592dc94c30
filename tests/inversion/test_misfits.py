"""Misfits: the properties that all registered ones have, then those of each."""

from __future__ import annotations

from collections.abc import Callable
from math import log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad

from hpcfwi.inversion.misfits import (
    Misfit,
    adaptive,
    correlation,
    envelope,
    huber,
    least_squares,
    normalized,
    student,
    transport,
)
from hpcfwi.registry import MISFITS, find

DT, FREQUENCY, SAMPLES = 0.004, 8.0, 250  # s, Hz


def random_traces(seed: int, shots: int = 2, traces: int = 3, samples: int = 40) -> Tensor:
    """Return traces (shot, trace, time) in float64 that are smooth in time."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(shots, traces, samples + 4, generator=generator, dtype=torch.float64)
    return noise.unfold(2, 5, 1).mean(dim=3)


def burst(time: float | Tensor) -> Tensor:
    """Return a trace with a few oscillations at a time in s."""
    since = DT * torch.arange(SAMPLES, dtype=torch.float64) - time
    bell = torch.exp(-((since / 0.1) ** 2))
    return (torch.cos(2 * torch.pi * FREQUENCY * since) * bell)[None, None]


def ricker(time: float | Tensor) -> Tensor:
    """Return a trace with a Ricker wavelet at a time in s."""
    squares = (torch.pi * FREQUENCY * (DT * torch.arange(SAMPLES) - time)) ** 2
    return ((1.0 - 2.0 * squares) * torch.exp(-squares)).double()[None, None]


def slope(misfit: Misfit, arrival: Callable[[float | Tensor], Tensor], periods: float) -> float:
    """Return the derivative of the misfit with the time of an arrival that is periods late."""
    time = torch.tensor(0.5 + periods / FREQUENCY, dtype=torch.float64, requires_grad=True)
    simulated = arrival(time)
    _, gradient = misfit(simulated.detach(), arrival(0.5), DT)
    (simulated * gradient).sum().backward()
    assert time.grad is not None
    return float(time.grad)


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


def test_least_squares_and_its_gradient_match_autograd():
    torch.manual_seed(0)
    simulated = torch.randn(2, 3, 40, dtype=torch.float64, requires_grad=True)
    observed = torch.randn(2, 3, 40, dtype=torch.float64)
    expected = 0.5 * DT * (simulated - observed).square().sum(dim=(1, 2))
    expected.sum().backward()
    misfit, gradient = least_squares(simulated.detach(), observed, DT)
    torch.testing.assert_close(misfit, expected.detach())
    torch.testing.assert_close(gradient, simulated.grad)


def test_small_residuals_of_large_data_are_summed_in_double_precision():
    residual = torch.full((1, 1000, 1000), 1e-3)
    misfit, _ = least_squares(residual, torch.zeros(1, 1000, 1000), DT)
    assert float(misfit) == pytest.approx(0.5 * DT * 1e6 * float(residual[0, 0, 0]) ** 2, rel=1e-12)


def test_least_squares_does_not_change_its_arguments():
    simulated, observed = torch.randn(2, 2, 3, 40, generator=torch.Generator().manual_seed(0))
    before = simulated.clone(), observed.clone()
    least_squares(simulated, observed, DT)
    assert torch.equal(simulated, before[0])
    assert torch.equal(observed, before[1])


def test_huber_is_least_squares_up_to_its_width():
    simulated, observed = random_traces(2), random_traces(1)
    found, gradient = huber(simulated, observed, DT, width=1e3)
    expected, slow = least_squares(simulated, observed, DT)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0.0)
    torch.testing.assert_close(gradient, slow, rtol=1e-13, atol=1e-16)


def test_huber_gradient_is_bounded_beyond_its_width():
    observed = torch.ones(1, 3, 10)
    observed[0, 1] *= 100.0
    simulated = observed.clone()
    simulated[0, 0, 4] += 7.0
    found, gradient = huber(simulated, observed, DT, width=0.5)
    assert float(found) == pytest.approx(DT * (0.5 * 7.0 - 0.125))
    expected = torch.zeros(1, 3, 10)
    expected[0, 0, 4] = 0.5 * DT
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("keys", [{"freedom": 1e9}, {"scale": 1e5}])
def test_student_with_large_freedom_or_scale_is_least_squares(keys):
    simulated, observed = random_traces(2), random_traces(1)
    found, gradient = student(simulated, observed, DT, **keys)
    expected, slow = least_squares(simulated, observed, DT)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=0.0)
    torch.testing.assert_close(gradient, slow, rtol=1e-7, atol=1e-12)


def test_student_gradient_decreases_for_large_residuals():
    observed = torch.ones(1, 1, 10, dtype=torch.float64)
    simulated = observed.clone()
    simulated[0, 0, 4] += 8.0
    found, gradient = student(simulated, observed, DT, freedom=4.0, scale=0.5)
    assert float(found) == pytest.approx(0.5 * DT * log(65.0))
    assert float(gradient[0, 0, 4]) == pytest.approx(DT * 8.0 / 65.0)


@pytest.mark.parametrize("misfit", [correlation, normalized])
def test_correlation_misfit_is_2_for_opposite_and_1_for_orthogonal_traces(misfit):
    phase = 2.0 * torch.pi * torch.arange(40, dtype=torch.float64) / 20.0
    sine, cosine = phase.sin()[None, None], phase.cos()[None, None]
    assert float(misfit(-3.0 * sine, sine, DT)[0]) == pytest.approx(2.0)
    assert float(misfit(cosine, sine, DT)[0]) == pytest.approx(1.0)


def test_normalized_misfit_equals_correlation_misfit():
    simulated, observed = random_traces(2), random_traces(1)
    found, gradient = normalized(simulated, observed, DT)
    expected, slow = correlation(simulated, observed, DT)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0.0)
    torch.testing.assert_close(gradient, slow, rtol=1e-10, atol=1e-14)


def test_envelope_misfit_ignores_the_sign_of_traces():
    observed = burst(0.5)
    found, gradient = envelope(-observed, observed, DT)
    assert float(found) == 0.0
    assert not gradient.any()


def test_envelope_misfit_compares_envelopes():
    since = DT * torch.arange(250, dtype=torch.float64)
    first, second = (torch.exp(-(((since - time) / 0.1) ** 2)) for time in (0.5, 0.6))
    found, _ = envelope(burst(0.6), burst(0.5), DT)
    assert float(found) == pytest.approx(
        0.5 * DT * float((second - first).square().sum()), rel=1e-3
    )


@settings(max_examples=30)
@given(periods=st.floats(0.05, 3.0), sign=st.sampled_from([-1.0, 1.0]))
def test_adaptive_misfit_grows_with_delay_up_to_three_periods(periods, sign):
    assert sign * slope(adaptive, ricker, sign * periods) > 0.0


def test_adaptive_misfit_of_a_spike_is_half_its_squared_lag():
    observed, simulated = (0.0 * ricker(0.0) for _ in range(2))
    observed[0, 0, 30], simulated[0, 0, 80] = 1.0, 5.0
    found, _ = adaptive(simulated, observed, DT, damping=1e-9)
    assert float(found) == pytest.approx(0.5 * (50 / SAMPLES) ** 2, rel=1e-6)


@settings(max_examples=30)
@given(periods=st.floats(0.05, 3.0), sign=st.sampled_from([-1.0, 1.0]))
def test_transport_misfit_grows_with_delay_up_to_three_periods(periods, sign):
    assert sign * slope(transport, ricker, sign * periods) > 0.0


def test_transport_misfit_is_mean_square_of_time_between_equal_shares():
    traces = random_traces(2)[:1, :1], random_traces(1)[:1, :1]
    shares = (np.arange(10**6) + 0.5) / 10**6
    times = []
    for trace in (pair.numpy().ravel() for pair in traces):
        positive = np.log1p(np.exp(2.0 * trace / np.sqrt(np.mean(trace**2))))
        arrived = np.append(0.0, np.cumsum(positive) / np.sum(positive))
        times.append(np.interp(shares, arrived, np.linspace(0.0, 1.0, arrived.size)))
    found, _ = transport(*traces, DT, sharpness=2.0)
    assert float(found) == pytest.approx(np.mean((times[0] - times[1]) ** 2), rel=1e-6)
