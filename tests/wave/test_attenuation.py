"""Tests of attenuation: quality factors, waves against theory and Deepwave, and limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from hpcfwi.wave import Attenuation, propagate
from hpcfwi.wave.equation import find_equation
from hpcfwi.wave.numerics import ricker
from tests.wave import analytic
from tests.wave.examples import relative
from tests.wave.media import random_medium, random_survey

BAND = (3.0, 30.0)
FREQUENCY, DELAY = 10.0, 0.15
mechanisms = pytest.mark.parametrize("count", [1, 2, 3])
qualities = st.floats(5.0, 1e4)


def relaxing(velocity: float, quality: float, attenuation: Attenuation) -> analytic.Relaxing:
    tau = float(attenuation.strength(quality))
    return analytic.Relaxing(velocity, attenuation.frequency, tau, attenuation.relaxations)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"frequency": 0.0}, "frequency is 0.0; expected a positive frequency"),
        ({"band": (30.0, 2.0)}, "band is .30.0, 2.0.; expected .* the smaller first"),
        ({"band": (0.0, 2.0)}, "band is .0.0, 2.0.; expected two positive frequencies"),
        ({"mechanisms": 0}, "mechanisms is 0; expected a number, 1 or more"),
        ({"mechanisms": 1.5}, "mechanisms is 1.5; expected a number, 1 or more"),
    ],
)
def test_attenuation_without_meaning_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Attenuation(**keys)


@mechanisms
@given(quality=st.floats(20.0, 1e4))
def test_quality_factor_is_nearly_constant_in_the_band(count: int, quality: float) -> None:
    speed = relaxing(1.0, quality, Attenuation(FREQUENCY, BAND, count))
    modulus = speed.modulus(2j * np.pi * np.geomspace(*BAND, 50))
    loss = quality * modulus.imag / modulus.real
    assert np.abs(loss - 1.0).max() < {1: 0.37, 2: 0.09, 3: 0.1}[count]


@mechanisms
@given(quality=qualities)
def test_factors_are_those_of_the_complex_modulus(count: int, quality: float) -> None:
    attenuation = Attenuation(FREQUENCY, BAND, count)
    speed = relaxing(1.0, quality, attenuation)
    unrelaxed, lost = attenuation.factors(quality)
    # The modulus at very high and at very low frequencies
    high, low = (float((speed(np.array(s + 0j)) ** 2).real) for s in (1e12, 1e-12))
    assert unrelaxed == pytest.approx(high, rel=1e-9)
    assert lost * count == pytest.approx(high - low, rel=1e-4)
    wave = 1.0 / (1.0 / speed(np.array(2j * np.pi * FREQUENCY))).real
    assert float(wave) == pytest.approx(1.0, rel=1e-12)


def error(found: NDArray[np.float64], exact: NDArray[np.float64]) -> float:
    """Return the largest difference of a component's traces, divided by the size of the largest."""
    difference = np.linalg.norm(found - exact, axis=-1).max(axis=-1)
    return float((difference / np.linalg.norm(exact, axis=-1).max(axis=-1)).max())


def record(
    equation: str, medium: dict[str, float], offsets: NDArray[np.float64], h: float, **options: Any
) -> NDArray[np.float64]:
    """Return the traces (component, receiver, time) of a source in a homogeneous medium."""
    far = int(offsets.max() / h) + 12
    shape = (far,) * offsets.shape[1]
    model = {name: torch.full(shape, value) for name, value in medium.items()}
    source = np.full(offsets.shape[1], 6.0 * h)
    wavelet = torch.tensor(ricker(FREQUENCY, 400, 1e-3, DELAY))
    found = propagate(equation, model, h, 1e-3, wavelet, source[None], source + offsets, **options)
    return found[:, 0].double().numpy()


@mechanisms
@pytest.mark.parametrize("quality", [10.0, 50.0])
def test_viscoacoustic_waves_agree_with_the_analytic_solution(count: int, quality: float) -> None:
    attenuation, h = Attenuation(FREQUENCY, BAND, count), 7.0
    offsets = h * np.array([[0.0, 20.0], [33.0, 24.0], [60.0, 0.0]])
    medium = {"vp": 2000.0, "rho": 1800.0, "qp": quality}
    found = record(
        "viscoacoustic",
        medium,
        offsets,
        h,
        attenuation=attenuation,
        components=["pressure", "vz", "vx"],
    )
    exact = analytic.explosion(
        ricker(FREQUENCY, 400, 1e-3, DELAY),
        1e-3,
        offsets,
        vp=relaxing(2000.0, quality, attenuation),
        vs=0.0,
        rho=1800.0,
    )
    assert error(found, exact.swapaxes(0, 1)) < 0.005
    lossless = analytic.explosion(
        ricker(FREQUENCY, 400, 1e-3, DELAY), 1e-3, offsets, vp=2000.0, vs=0.0, rho=1800.0
    )
    assert error(found, lossless.swapaxes(0, 1)) > 0.05


@pytest.mark.parametrize("ndim", [2, 3])
def test_viscoelastic_waves_agree_with_the_analytic_solution(ndim: int) -> None:
    attenuation = Attenuation(FREQUENCY, BAND, 2)
    h = 1155.0 / 25.0 / 10.0
    cells = {
        2: [[0.0, 30.0], [24.0, 20.0], [30.0, 0.0]],
        3: [[0.0, 0.0, 14.0], [9.0, 8.0, 7.0], [13.0, 0.0, 3.0]],
    }[ndim]
    offsets, names = h * np.array(cells), ["vz", "vy", "vx"] if ndim == 3 else ["vz", "vx"]
    medium = {"vp": 2000.0, "vs": 1155.0, "rho": 1800.0, "qp": 30.0, "qs": 15.0}
    found = record(
        "viscoelastic",
        medium,
        offsets,
        h,
        attenuation=attenuation,
        source_kind="force-x",
        components=["pressure", *names],
        order=4,
    )
    exact = analytic.force(
        ricker(FREQUENCY, 400, 1e-3, DELAY),
        1e-3,
        offsets,
        vp=relaxing(2000.0, 30.0, attenuation),
        vs=relaxing(1155.0, 15.0, attenuation),
        rho=1800.0,
        axis=ndim - 1,
    )
    assert error(found, exact.swapaxes(0, 1)) < 0.01


@pytest.mark.parametrize(
    ("equation", "lossless"),
    [("viscoacoustic", "acoustic-density"), ("viscoelastic", "elastic")],
)
def test_waves_with_a_very_high_quality_factor_are_those_without_attenuation(
    equation: str, lossless: str
) -> None:
    survey = random_survey((18, 20), free_surface=True, components=["pressure", "vz"])
    model = random_medium(lossless, (18, 20), water=3)
    high = torch.full_like(model["vp"], 1e6)
    names = ("qp", "qs") if equation == "viscoelastic" else ("qp",)
    found = survey.propagate(equation, {**model, **dict.fromkeys(names, high)})
    assert relative(found, survey.propagate(lossless, model)) < 1e-5


def test_viscoelastic_waves_in_a_fluid_are_viscoacoustic() -> None:
    survey = random_survey((18, 20), components=["pressure", "vz", "vx"])
    fluid = random_medium("viscoacoustic", (18, 20))
    solid = {"vs": torch.zeros_like(fluid["vp"]), "qs": torch.full_like(fluid["vp"], 50.0)}
    found = survey.propagate("viscoelastic", {**fluid, **solid})
    expected = survey.propagate("viscoacoustic", fluid)
    for component in range(3):
        assert relative(found[component], expected[component]) < 1e-12


@pytest.mark.parametrize("engine", ["eager", "cpu"])
def test_free_surface_has_no_pressure_above_a_shallow_source(engine: str) -> None:
    survey = random_survey((18, 20), free_surface=True)
    sources = np.array([[12.0, 60.0], [8.0, 100.0]])  # one and a half cells deep, and one
    receivers = np.array([[0.0, x] for x in (30.0, 60.0, 100.0)])
    survey = replace(survey, sources=sources, receivers=receivers)
    found = survey.propagate(
        "viscoacoustic", random_medium("viscoacoustic", (18, 20)), engine=engine
    )
    assert found.abs().max() == 0.0


def test_high_frequencies_are_faster_than_the_velocities_of_the_model() -> None:
    attenuation = Attenuation(FREQUENCY, BAND)
    model = {"vp": np.array([2000.0, 2000.0]), "qp": np.array([10.0, 1e6])}
    speeds = np.asarray(find_equation("viscoacoustic", attenuation).fastest(model))
    assert speeds[0] > 2050.0
    assert speeds[1] == pytest.approx(2000.0, abs=0.01)


def test_waves_before_the_boundary_agree_with_deepwave() -> None:
    deepwave = pytest.importorskip(
        "deepwave", reason="Deepwave is not installed (pip install hpcfwi[deepwave])"
    )
    rng = np.random.default_rng(0)

    def between(lowest: float, highest: float) -> torch.Tensor:
        values = gaussian_filter(rng.standard_normal((80, 80)), 3.0)
        share = (values - values.min()) / (values.max() - values.min())
        return torch.tensor(lowest + (highest - lowest) * share)

    attenuation, quality = Attenuation(12.0, BAND), 20.0
    vp, rho = between(2000.0, 2400.0), between(1700.0, 2300.0)
    model = {"vp": vp, "rho": rho, "qp": torch.full_like(vp, quality)}
    h, dt = 10.0, 5e-4
    wavelet = torch.tensor(ricker(15.0, 400, dt, 0.08))
    source, receivers = np.array([[350.0, 400.0]]), np.array([[300.0, 500.0], [450.0, 450.0]])
    found = propagate(
        "viscoacoustic",
        model,
        h,
        dt,
        wavelet,
        source,
        receivers,
        attenuation=attenuation,
        order=4,
        boundary_frequency=15.0,
        max_velocity=3500.0,
    )
    # Deepwave's velocity is that of the relaxed modulus, and its quality factor that at `q_freq`;
    # 1 / Q = tau / (2 sqrt(1 + tau)) at the frequency with the largest loss
    tau, (w,) = float(attenuation.strength(quality)), attenuation.relaxations
    unrelaxed, lost = attenuation.factors(quality)
    rate = dt * wavelet.cumsum(0) * vp[35, 40] ** 2 / h**2
    cells = torch.tensor(source / h).long()[None], torch.tensor(receivers / h).long()[None]
    out = deepwave.viscoacoustic(
        vp * (unrelaxed - lost) ** 0.5,
        rho,
        torch.full_like(vp, 2.0 * (1.0 + tau) ** 0.5 / tau),
        h,
        dt,
        sources={"pressure_rate": (rate[None, None], cells[0])},
        receivers={"p": cells[1]},
        q_freq=w / (1.0 + tau) ** 0.5 / (2.0 * np.pi),
        pml_freq=15.0,
        max_vel=3500.0,
        accuracy=4,
    )
    assert relative(found, out.receiver_amplitudes_p) < 1e-12
