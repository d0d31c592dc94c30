"""Tests of `propagate` against analytic solutions and Deepwave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from torch import Tensor

from hpcfwi.wave import propagate
from hpcfwi.wave.numerics import ricker
from tests.wave import analytic
from tests.wave.examples import relative

ROCK = {"vp": 2000.0, "vs": 1155.0, "rho": 1800.0}
FREQUENCY, DELAY = 10.0, 0.15
# No wave of the wavelet is shorter than a wave of this frequency (Hz)
HIGHEST = 25.0
MOMENT = [[1.0, 0.5], [0.5, -2.0]]


def homogeneous(shape: tuple[int, ...], medium: dict[str, float]) -> dict[str, Tensor]:
    return {name: torch.full(shape, value) for name, value in medium.items()}


def record(
    equation: str,
    model: dict[str, Tensor],
    spacing: float,
    dt: float,
    samples: int,
    source: NDArray[np.float64],
    receivers: NDArray[np.float64],
    **options: Any,
) -> NDArray[np.float64]:
    """Return the traces (component, receiver, time) of a Ricker wavelet."""
    wavelet = torch.tensor(ricker(FREQUENCY, samples, dt, DELAY))
    found = propagate(equation, model, spacing, dt, wavelet, source[None], receivers, **options)
    return found[:, 0].double().numpy()


def error(found: NDArray[np.float64], exact: NDArray[np.float64]) -> float:
    """Return the largest difference of a component's traces, divided by the size of the largest."""
    difference = np.linalg.norm(found - exact, axis=-1).max(axis=-1)
    return float((difference / np.linalg.norm(exact, axis=-1).max(axis=-1)).max())


@pytest.mark.parametrize(("order", "bound"), [(4, 0.01), (8, 0.005)])
@pytest.mark.parametrize("kind", ["explosive", "force-z", "force-x", "moment"])
def test_elastic_waves_agree_with_the_analytic_solution(
    kind: str, order: int, bound: float
) -> None:
    h = ROCK["vs"] / HIGHEST / 10.0
    dt, samples = 1e-3, 400
    offsets = np.rint(np.array([[0.0, 150.0], [120.0, 100.0], [150.0, 0.0]]) / h) * h
    source = np.array([10.0 * h, 10.0 * h])
    wavelet = ricker(FREQUENCY, samples, dt, DELAY)
    exact = {
        "explosive": lambda: analytic.explosion(wavelet, dt, offsets, **ROCK),
        "force-z": lambda: analytic.force(wavelet, dt, offsets, axis=0, **ROCK),
        "force-x": lambda: analytic.force(wavelet, dt, offsets, axis=1, **ROCK),
        "moment": lambda: analytic.moment(wavelet, dt, offsets, tensor=MOMENT, **ROCK),
    }[kind]()
    found = record(
        "elastic",
        homogeneous((54, 54), ROCK),
        h,
        dt,
        samples,
        source,
        source + offsets,
        order=order,
        source_kind=MOMENT if kind == "moment" else kind,
        components=["pressure", "vz", "vx"],
    )
    assert error(found, exact.swapaxes(0, 1)) < bound


def test_elastic_waves_in_three_dimensions_agree_with_the_analytic_solution() -> None:
    h = ROCK["vs"] / HIGHEST / 10.0
    dt, samples = 1e-3, 300
    offsets = h * np.array([[0.0, 0.0, 14.0], [9.0, 8.0, 7.0], [13.0, 0.0, 3.0]])
    source = np.array([4.0, 4.0, 4.0]) * h
    wavelet = ricker(FREQUENCY, samples, dt, DELAY)
    found = record(
        "elastic",
        homogeneous((22, 22, 22), ROCK),
        h,
        dt,
        samples,
        source,
        source + offsets,
        order=4,
        boundary=12,
        source_kind="force-y",
        components=["pressure", "vz", "vy", "vx"],
    )
    exact = analytic.force(wavelet, dt, offsets, axis=1, **ROCK)
    assert error(found, exact.swapaxes(0, 1)) < 0.01


def on_half_space(
    points: float, poisson: float, source: str, depth: float, order: int = 4
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return simulated and exact velocities (component, receiver, time) on a free surface.

    points: cells of the shortest Rayleigh wave; depth: of the source, in cells.
    """
    vs = ROCK["vp"] * np.sqrt((0.5 - poisson) / (1.0 - poisson))
    medium = {**ROCK, "vs": float(vs)}
    shortest = analytic.rayleigh_speed(medium["vp"], medium["vs"]) / HIGHEST
    h = shortest / points
    distances = np.array([3.0, 6.0]) * shortest
    dt, samples = 1e-3, int(1e3 * (0.35 + distances[-1] / HIGHEST / shortest))
    place = np.array([depth * h, 10.0 * h])
    receivers = np.stack([np.zeros(2), place[1] + distances], axis=-1)
    shape = (int(2.0 * shortest / h) + 20, int(distances[-1] / h) + 20)
    found = record(
        "elastic",
        homogeneous(shape, medium),
        h,
        dt,
        samples,
        place,
        receivers,
        order=order,
        free_surface=True,
        source_kind=source,
        components=["vz", "vx"],
    )
    wavelet = ricker(FREQUENCY, samples, dt, DELAY)
    if source == "explosive":
        exact = analytic.garvin(wavelet, dt, distances, depth=place[0], **medium)
    else:
        exact = analytic.lamb(wavelet, dt, distances, depth=place[0], source=source, **medium)
    return found, exact.swapaxes(0, 1)


@pytest.mark.parametrize("kind", ["explosive", "moment"])
def test_sources_between_points_below_a_free_surface_lie_between_those_on_points(
    kind: str,
) -> None:
    h, depths = 5.0, np.array([0.0, 1.0, 2.0, 3.0, 1.5])
    traces = [
        record(
            "elastic",
            homogeneous((30, 50), ROCK),
            h,
            1e-3,
            300,
            np.array([depth * h, 50.0]),
            np.array([[100.0, 180.0]]),
            free_surface=True,
            source_kind=[[0.0, 0.0], [0.0, 1.0]] if kind == "moment" else kind,
            components=["vz", "vx"],
        )
        for depth in depths
    ]
    cubic = (9.0 * (traces[1] + traces[2]) - traces[0] - traces[3]) / 16.0
    assert error(traces[4], cubic) < 0.05


@pytest.mark.parametrize("order", [4, 8])
@pytest.mark.parametrize("poisson", [0.25, 0.45])
def test_explosion_below_a_free_surface_agrees_with_garvin(poisson: float, order: int) -> None:
    assert error(*on_half_space(8.5, poisson, "explosive", 20.0, order)) < 0.02


@pytest.mark.parametrize("poisson", [0.25, 0.45])
@pytest.mark.parametrize("kind", ["force-z", "force-x"])
def test_force_on_a_free_surface_agrees_with_lamb(kind: str, poisson: float) -> None:
    assert error(*on_half_space(20.0, poisson, kind, 0.0)) < 0.015


@pytest.mark.parametrize(("kind", "order"), [("explosive", 4), ("force-z", 8), ("force-x", 4)])
def test_error_at_a_free_surface_falls_with_the_square_of_the_spacing(
    kind: str, order: int
) -> None:
    pairs = [
        on_half_space(points, 0.25, kind, 0.0 if kind == "force-x" else points, order)
        for points in (8.5, 17.0)
    ]
    for component in range(2):
        coarse, fine = (
            error(found[component, None], exact[component, None]) for found, exact in pairs
        )
        assert np.log2(coarse / fine) > 1.8


def test_reflection_of_a_fluid_over_a_solid_agrees_with_the_analytic_solution() -> None:
    h, dt, samples, interface = 4.0, 1e-3, 500, 20
    water = {"vp": 1500.0, "vs": 0.0, "rho": 1000.0}
    model = homogeneous((50, 90), ROCK)
    for name, value in water.items():
        model[name][:interface] = value
    # The density and the moduli change halfway between the last row of water and the first of rock
    bottom = (interface - 0.5) * h
    source = np.array([bottom - 34.0, 72.0])
    receivers = np.array([[bottom - 22.0, source[1] + x] for x in (40.0, 200.0)])
    found = record("elastic", model, h, dt, samples, source, receivers, components=["pressure"])
    wavelet = ricker(FREQUENCY, samples, dt, DELAY)
    direct = analytic.explosion(wavelet, dt, receivers - source, **water)
    heights = 2.0 * bottom - source[0] - receivers[:, 0]
    offsets = np.stack([heights, receivers[:, 1] - source[1]], axis=-1)
    solid = {"vp_fluid": water["vp"], "rho_fluid": water["rho"], **ROCK}
    exact = direct + analytic.reflected(wavelet, dt, offsets, **solid)
    assert error(found, exact[:, :1].swapaxes(0, 1)) < 0.02


def test_wave_along_the_sea_floor_has_the_phase_velocity_of_scholte() -> None:
    h, dt, samples, interface = 4.0, 1e-3, 2000, 20
    rock, water = {**ROCK, "vs": 800.0}, {"vp": 1500.0, "vs": 0.0, "rho": 1000.0}
    model = homogeneous((85, 300), rock)
    for name, value in water.items():
        model[name][:interface] = value
    distances = np.arange(300.0, 1000.0, 10.0)
    source = np.array([(interface - 2.0) * h, 100.0])
    receivers = source + np.stack([np.zeros_like(distances), distances], axis=-1)
    ((*traces,),) = record(
        "elastic", model, h, dt, samples, source, receivers, components=["pressure"]
    )
    spectra = np.fft.rfft(traces) * np.hanning(distances.size)[:, None]
    expected = analytic.scholte_speed(water["vp"], water["rho"], **rock)
    velocities = np.linspace(0.9, 1.1, 2001) * expected
    for frequency in (8.0, 12.0, 16.0):
        angular = 2.0 * np.pi * frequency
        # The phase velocity at which the spectra of all distances are in phase
        delays = distances / velocities[:, None]
        stack = np.exp(1j * angular * delays) @ spectra[:, round(frequency * samples * dt)]
        assert velocities[np.abs(stack).argmax()] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("angle", [0.0, 30.0, 60.0, 90.0])
def test_vti_waves_travel_at_the_group_velocity(angle: float) -> None:
    h, dt, samples = 8.0, 1e-3, 520
    medium = {"vp": 2000.0, "epsilon": 0.2, "delta": 0.1, "rho": 1000.0}
    along = np.array([np.cos(np.radians(angle)), np.sin(np.radians(angle))])
    source = np.array([80.0, 80.0])
    distances = np.array([200.0, 480.0])
    ((near, far),) = record(
        "acoustic-vti",
        homogeneous((82, 82), medium),
        h,
        dt,
        samples,
        source,
        source + distances[:, None] * along,
        components=["pressure"],
    )
    # Cross-correlation of the first arrivals; what follows is the slow wave of the equation
    velocity = float(
        analytic.vti_group_velocity(2000.0, 0.2, 0.1, np.array([np.radians(angle)]))[0]
    )
    times = dt * np.arange(samples)
    near, far = (
        np.where(times < DELAY + distance / velocity + 0.06, trace, 0.0)
        for trace, distance in zip((near, far), distances, strict=True)
    )
    padded = 16 * samples
    spectrum = np.fft.rfft(far, 2 * samples) * np.fft.rfft(near, 2 * samples).conj()
    lags = np.fft.irfft(spectrum, 2 * padded)[:padded]
    found = (distances[1] - distances[0]) / (lags.argmax() * dt / 16)
    assert found == pytest.approx(velocity, rel=0.003)


@pytest.mark.parametrize("tilt", [30.0, -70.0])
def test_waves_of_a_rotated_medium_are_the_rotated_waves(tilt: float) -> None:
    h, dt, samples = 5.0, 1e-3, 400
    upright = {**ROCK, "epsilon": 0.2, "delta": 0.1}
    source = np.array([250.0, 250.0])
    angles, turn = np.radians(np.arange(0.0, 360.0, 45.0)), np.radians(tilt)
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    offsets = 175.0 * np.stack([np.cos(angles), np.sin(angles)])
    found, before = (
        record(
            equation,
            homogeneous((101, 101), medium),
            h,
            dt,
            samples,
            source,
            source + places.T,
            components=["vz", "vx"],
            source_kind=moment.tolist(),
            order=8,
        )
        for equation, medium, places, moment in (
            (
                "elastic-tti",
                {**upright, "theta": tilt},
                rotation @ offsets,
                rotation @ np.array(MOMENT) @ rotation.T,
            ),
            ("elastic-vti", upright, offsets, np.array(MOMENT)),
        )
    )
    assert error(found, np.einsum("ij,jrt->irt", rotation, before)) < 0.01


def test_waves_of_a_strongly_anisotropic_tilted_medium_leave_the_grid() -> None:
    medium = {"vp": 2500.0, "vs": 700.0, "epsilon": 0.3, "delta": -0.1, "rho": 2000.0}
    model = homogeneous((30, 30), {**medium, "theta": 45.0})
    source = np.array([145.0, 145.0])
    options: dict[str, Any] = {"components": ["vz"], "source_kind": "force-z", "order": 4}
    ((trace,),) = record(
        "elastic-tti", model, 10.0, 1e-3, 2500, source, source[None] - 60.0, **options
    )
    assert np.abs(trace[1000:]).max() < 1e-3 * np.abs(trace).max()


@pytest.mark.parametrize(
    ("equation", "vs", "epsilon", "delta"),
    [
        ("elastic-vti", 1250.0, 0.1, 0.22),
        ("elastic-vti", 1250.0, -0.15, -0.08),
        # Mesaverde clayshale (Thomsen 1986), which elastic-vti refuses
        ("elastic-tti", 1308.0, 0.334, 0.73),
    ],
)
def test_waves_of_media_with_a_large_delta_leave_the_grid(
    equation: str, vs: float, epsilon: float, delta: float
) -> None:
    medium = {"vp": 2500.0, "vs": vs, "epsilon": epsilon, "delta": delta, "rho": 2000.0}
    model = homogeneous((30, 30), {**medium, **({"theta": 0.0} if "tti" in equation else {})})
    source = np.array([145.0, 145.0])
    options: dict[str, Any] = {"components": ["vz"], "source_kind": "force-z", "order": 4}
    ((trace,),) = record(equation, model, 10.0, 1e-3, 4000, source, source[None] - 60.0, **options)
    assert np.abs(trace[1000:]).max() < 1e-3 * np.abs(trace).max()


@pytest.mark.parametrize("order", [4, 8])
@pytest.mark.parametrize("equation", ["acoustic-density", "elastic", "acoustic-vti", "elastic-vti"])
def test_waves_before_the_boundary_agree_with_deepwave(equation: str, order: int) -> None:
    deepwave = pytest.importorskip(
        "deepwave", reason="Deepwave is not installed (pip install hpcfwi[deepwave])"
    )
    rng = np.random.default_rng(0)

    def between(lowest: float, highest: float) -> Tensor:
        values = gaussian_filter(rng.standard_normal((80, 80)), 3.0)
        share = (values - values.min()) / (values.max() - values.min())
        return torch.tensor(lowest + (highest - lowest) * share)

    vp, rho, vs = between(2000.0, 2400.0), between(1700.0, 2300.0), between(900.0, 1300.0)
    delta = between(0.0, 0.1)
    epsilon = delta + between(0.0, 0.1)
    vs[:30] = 0.0
    model = {
        "acoustic-density": {"vp": vp, "rho": rho},
        "elastic": {"vp": vp, "vs": vs, "rho": rho},
        "acoustic-vti": {"vp": vp, "epsilon": epsilon, "delta": delta, "rho": rho},
        "elastic-vti": {"vp": vp, "vs": vs, "epsilon": epsilon, "delta": delta, "rho": rho},
    }[equation]
    h, dt, tuned = 10.0, 5e-4, {"pml_freq": 15.0, "max_vel": 3500.0, "accuracy": order}
    wavelet = torch.tensor(ricker(15.0, 400, dt, 0.08))
    source, receivers = np.array([[350.0, 400.0]]), np.array([[300.0, 500.0], [450.0, 450.0]])
    found = propagate(
        equation,
        model,
        h,
        dt,
        wavelet,
        source,
        receivers,
        order=order,
        boundary_frequency=15.0,
        max_velocity=3500.0,
    )
    rate = dt * wavelet.cumsum(0) * vp[35, 40] ** 2 / h**2
    cells = torch.tensor(source / h).long()[None], torch.tensor(receivers / h).long()[None]
    modulus = rho * vp**2
    if equation == "acoustic-density":
        channels = {"sources": {"volume_rate": ((rate / modulus[35, 40])[None, None], cells[0])}}
        out = deepwave.acoustic(vp, rho, h, dt, **channels, receivers={"p": cells[1]}, **tuned)
        expected = out.receiver_amplitudes_p
    else:
        channels = {"sources": {"pressure_rate": (rate[None, None], cells[0])}}
        if equation == "elastic":
            mu = rho * vs**2
            medium = (modulus - 2.0 * mu, mu, 1.0 / rho)
            expected = deepwave.elastic(
                *medium, h, dt, **channels, receivers={"p": cells[1]}, **tuned
            ).receiver_amplitudes_p
        elif equation == "elastic-vti":
            found_by_thomsen = deepwave.anisotropy.thomsen_to_cij(vp, vs, rho, epsilon, delta)
            medium = (*found_by_thomsen[:4], found_by_thomsen[-1])
            expected = deepwave.elastic_vti(
                *medium, h, dt, **channels, receivers={"p": cells[1]}, **tuned
            ).receiver_amplitudes_p
        else:
            coupling = modulus * (1.0 + 2.0 * delta).sqrt()
            medium = (modulus * (1.0 + 2.0 * epsilon), coupling, modulus, 1.0 / rho)
            stresses = {"sigma_h": cells[1], "sigma_v": cells[1]}
            out = deepwave.acoustic_vti(*medium, h, dt, **channels, receivers=stresses, **tuned)
            expected = (
                -(2.0 * out.receiver_amplitudes_sigma_h + out.receiver_amplitudes_sigma_v) / 3
            )
    assert relative(found, expected) < 1e-12
