"""Tests of the finite differences, the longest stable step and the absorbing profile."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcfwi.wave import numerics
from hpcfwi.wave.engines.cpu import engine as cpu
from hpcfwi.wave.history import Snapshots
from hpcfwi.wave.problem import Problem

spacings = st.floats(0.5, 200.0)
orders = pytest.mark.parametrize("order", numerics.ORDERS)


@orders
def test_second_difference_is_exact_for_polynomials_up_to_order_plus_one(order: int) -> None:
    h = 0.5
    half = numerics.second_difference(order, h)
    weights = np.concatenate([half[:0:-1], half])
    x = h * np.arange(-(order // 2), order // 2 + 1)
    for power in range(order + 2):
        assert weights @ x**power == pytest.approx(2.0 if power == 2 else 0.0, abs=1e-12)
    assert abs(weights @ x ** (order + 2)) > 1e-6


@orders
def test_first_difference_is_exact_for_polynomials_up_to_its_order(order: int) -> None:
    h = 0.5
    half = numerics.first_difference(order, h)
    weights = np.concatenate([-half[:0:-1], half])
    x = h * np.arange(-(order // 2), order // 2 + 1)
    for power in range(order + 1):
        assert weights @ x**power == pytest.approx(1.0 if power == 1 else 0.0, abs=1e-12)
    assert abs(weights @ x ** (order + 1)) > 1e-6


@given(st.sampled_from(numerics.ORDERS), spacings, spacings, st.floats(300.0, 8000.0))
def test_longest_step_is_two_over_the_highest_frequency_of_the_grid(
    order: int, h_z: float, h_x: float, velocity: float
) -> None:
    phase = np.linspace(0.0, np.pi, 201)
    highest = 0.0
    for h in (h_z, h_x):
        c = numerics.second_difference(order, h)
        symbol = c[0] + 2.0 * sum(c[k] * np.cos(k * phase) for k in range(1, c.size))
        highest += float(-symbol.min())
    expected = 2.0 / (velocity * np.sqrt(highest))
    assert numerics.longest_step(order, (h_z, h_x), velocity) == pytest.approx(expected, rel=1e-9)


def impulse_response(order: int, share: float, boundary: int, samples: int) -> torch.Tensor:
    """Return the magnitude of a trace after an impulse, with a share of the longest step."""
    spacing, velocity = (8.0, 11.0), 2000.0
    problem = Problem(
        model={"vp": torch.full((31, 37), velocity, dtype=torch.float64)},
        spacing=spacing,
        dt=share * numerics.longest_step(order, spacing, velocity),
        sources=np.array([[[100.0, 100.0]]]),
        receivers=np.array([[[100.0, 200.0]]]),
        order=order,
        boundary=boundary,
        free_surface=False,
        boundary_frequency=20.0,
        max_velocity=velocity,
        history=Snapshots(1),
    )
    wavelet = torch.zeros(1, 1, samples, dtype=torch.float64)
    wavelet[0, 0, 0] = 1.0
    traces, _ = cpu.forward(problem, wavelet, keep=False)
    return traces[0, 0].abs()


@orders
@pytest.mark.parametrize("boundary", [1, 5, 20])
def test_impulse_decays_just_below_the_longest_step(order: int, boundary: int) -> None:
    size = impulse_response(order, 0.99, boundary, 4000)
    assert size[-500:].max() < size[:500].max()


@orders
def test_impulse_grows_without_bound_just_above_the_longest_step(order: int) -> None:
    assert impulse_response(order, 1.05, 10, 400)[-1] > 1e6


@given(st.integers(1, 40), st.integers(1, 40), spacings, st.floats(1e-5, 1e-2))
def test_absorbing_profile_damps_only_outside_the_model(
    before: int, after: int, spacing: float, dt: float
) -> None:
    n = before + 10 + after
    profile = numerics.absorbing_profile(n, before, after, spacing, dt, 2000.0, 10.0)
    assert np.flatnonzero(profile.a).tolist() == [*range(before), *range(before + 10, n)]
    assert np.all(profile.a <= 0.0)
    assert np.all((profile.b > 0.0) & (profile.b <= 1.0))


def test_mixed_profile_has_a_share_of_the_damping_of_the_other_axes() -> None:
    z, x = (numerics.absorbing_profile(n, 4, 5, 10.0, 1e-3, 2e3, 10.0) for n in (20, 22))
    mixed = numerics.mix_profiles([z, x], 1, 0.25)
    for name in ("a", "b"):
        # Where only the axis itself absorbs, and where none does
        expected = np.broadcast_to(getattr(x, name), (11, 22))
        np.testing.assert_array_equal(getattr(mixed, name)[4:-5], expected)
    np.testing.assert_array_equal(mixed.sigma[:, 10], 0.25 * z.sigma)
    np.testing.assert_array_equal(mixed.alpha[:, 10], z.alpha)
    assert mixed.sigma[0, 0] == x.sigma[0] + 0.25 * z.sigma[0]
    assert mixed.alpha[3, 1] == min(z.alpha[3], x.alpha[1])


@pytest.mark.parametrize(("cells", "reflection"), [(5, 1e-4), (10, 1e-8), (40, 1e-8)])
def test_absorbing_profile_is_cubic_with_its_design_reflection(
    cells: int, reflection: float
) -> None:
    spacing, dt, velocity, frequency = 10.0, 1e-3, 2000.0, 10.0
    profile = numerics.absorbing_profile(cells + 10, cells, 0, spacing, dt, velocity, frequency)
    depth = np.arange(cells, 0, -1) / cells
    rate = -np.log(profile.b[:cells]) / dt  # sigma + alpha
    sigma = rate * profile.a[:cells] / (profile.b[:cells] - 1.0)
    there_and_back = 2.0 * cells * spacing * sigma[0] / 4.0 / velocity
    assert sigma == pytest.approx(sigma[0] * depth**3)
    assert rate - sigma == pytest.approx(np.pi * frequency * (1.0 - depth), abs=1e-9)
    assert np.exp(-there_and_back) == pytest.approx(reflection)
