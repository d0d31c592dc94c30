"""Tests of the numerical dispersion relation."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
import torch
from scipy.special import hankel1

from hpcfwi.wave import Acquisition, Method, simulate
from hpcfwi.wave.equation import find_equation
from hpcfwi.wave.numerics import (
    ORDERS,
    Discretization,
    carried_frequency,
    longest_step,
    phase_velocity_error,
    ricker,
)

VELOCITY, FREQUENCY = 2000.0, 10.0


@pytest.mark.parametrize(
    ("equation", "order", "h", "dt"),
    [
        ("acoustic", 2, 20.0, 2e-3),
        ("acoustic", 4, 40.0, 2e-3),
        ("acoustic", 6, 50.0, 2e-3),
        ("acoustic", 8, 12.5, 3e-3),
        ("acoustic-density", 2, 20.0, 2e-3),
        ("acoustic-density", 4, 50.0, 2e-3),
    ],
    ids=[
        "order 2",
        "order 4",
        "order 6",
        "order 8, too fast because of its long step",
        "order 2, staggered",
        "order 4, staggered",
    ],
)
def test_simulated_phase_velocity_agrees_with_the_dispersion_relation(
    equation: str, order: int, h: float, dt: float
) -> None:
    """The phase between two receivers along an axis, where both errors are nearly the largest.

    In a homogeneous plane, a wave of wavenumber k is H0(k r) at a distance r from its source.
    """
    near, far, samples = 1500.0, 3500.0, int(3.2 / dt)
    assert dt < longest_step(order, (h, h), VELOCITY)
    shape = (int(4000.0 / h) + 1, int(4200.0 / h) + 1)
    shot = Acquisition(
        dt,
        torch.tensor(ricker(FREQUENCY, samples, dt, delay=0.15)),
        np.array([[2000.0, 400.0]]),
        np.array([[2000.0, 400.0 + near], [2000.0, 400.0 + far]]),
    )
    homogeneous = torch.full(shape, VELOCITY, dtype=torch.float64)
    parameters = {"vp": homogeneous, "rho": torch.full_like(homogeneous, 1000.0)}
    model = {name: parameters[name] for name in find_equation(equation).parameters}
    method = Method(order=order, boundary=20, equation=equation)
    data = simulate(model, h, shot, method, keep=False).data[0]
    spectrum = np.fft.rfft(data.numpy(), 8 * samples)
    frequencies = np.fft.rfftfreq(8 * samples, dt)
    at = int(np.abs(frequencies - FREQUENCY).argmin())
    # numpy's transform has exp(-i w t): a wave that travels outwards is the conjugate of H0.
    phase = np.angle(spectrum[1, at] / spectrum[0, at])

    def lag(error: float) -> float:
        k = 2.0 * np.pi * frequencies[at] / (VELOCITY * (1.0 + error))
        return float(
            np.angle(np.conj(hankel1(0, k * far) / hankel1(0, k * near)) / np.exp(1j * phase))
        )

    expected = phase_velocity_error(
        Discretization(order, (h, h), dt, VELOCITY, equation != "acoustic"), float(frequencies[at])
    )
    along = np.linspace(expected - 0.01, expected + 0.01, 4001)
    lags = np.array([abs(lag(e)) for e in along])
    found = along[int(lags.argmin())]
    assert lags.min() < 1e-2
    assert abs(expected) > 1e-3, "the error is large enough to be measured"
    assert found == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("staggered", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_phase_velocity_error_falls_with_the_order_of_the_scheme(
    order: int, staggered: bool
) -> None:
    coarse, fine = (
        abs(phase_velocity_error(Discretization(order, (h, h), 1e-6, 1500.0, staggered), 10.0))
        for h in (20.0, 10.0)
    )
    assert coarse / fine == pytest.approx(2.0**order, rel=0.15)


def test_waves_of_two_points_per_wavelength_do_not_propagate() -> None:
    assert phase_velocity_error(Discretization(8, (10.0, 10.0), 1e-3, 1500.0), 80.0) == -inf
    assert phase_velocity_error(Discretization(8, (10.0, 10.0, 10.0), 1e-3, 1500.0), 80.0) == -inf


def test_phase_velocity_error_is_largest_along_an_axis_or_a_diagonal() -> None:
    """The expected error solves the dispersion relation by Newton's method in many directions."""
    h, dt, velocity, frequency, order = (8.0, 11.0), 1e-3, 1500.0, 25.0, 4
    c = {1: 4.0 / 3.0, 2: -1.0 / 12.0}
    errors = []
    for angle in np.linspace(0.0, np.pi / 2.0, 91):
        n = np.array([np.cos(angle), np.sin(angle)])
        k = 2.0 * np.pi * frequency / velocity
        for _ in range(20):
            left = sum(
                (2.5 - 2.0 * sum(c[j] * np.cos(j * k * n[i] * h[i]) for j in c)) / h[i] ** 2
                for i in (0, 1)
            )
            slope = sum(
                2.0
                * sum(j * n[i] * h[i] * c[j] * np.sin(j * k * n[i] * h[i]) for j in c)
                / h[i] ** 2
                for i in (0, 1)
            )
            target = (2.0 / (velocity * dt) * np.sin(np.pi * frequency * dt)) ** 2
            k -= (left - target) / slope
        errors.append(2.0 * np.pi * frequency / k / velocity - 1.0)
    worst = max(errors, key=abs)
    found = phase_velocity_error(Discretization(order, h, dt, velocity), frequency)
    assert found == pytest.approx(worst, rel=1e-6)


@pytest.mark.parametrize("staggered", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_phase_velocity_error_is_tolerable_up_to_the_carried_frequency(
    order: int, staggered: bool
) -> None:
    scheme = Discretization(order, (10.0, 12.0), 5e-4, 1500.0, staggered)
    carried = carried_frequency(scheme, 0.01)
    below = [phase_velocity_error(scheme, f) for f in np.linspace(0.05, 1.0, 20) * carried]
    assert max(map(abs, below)) <= 0.01 * (1.0 + 1e-6)
    assert abs(phase_velocity_error(scheme, 1.01 * carried)) > 0.01
