"""Tests of the analytic solutions against each other and against independent numerics."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import quad
from scipy.linalg import expm
from scipy.special import erf

from tests.wave import analytic

DT, SAMPLES, FREQUENCY, DELAY = 4e-3, 200, 10.0, 0.2
TIMES = DT * np.arange(SAMPLES)
ROCK: dict[str, Any] = {"vp": 2000.0, "vs": 1100.0, "rho": 2200.0}
SOFT = {"vp": 2000.0, "vs": 2000.0 / 11.0**0.5, "rho": 2000.0}
"""Poisson's ratio 0.45."""
WATER = {"vp": 1500.0, "vs": 0.0, "rho": 1000.0}
SEABED = {"vp_fluid": 1500.0, "rho_fluid": 1000.0, "vp": 2600.0, "vs": 1300.0, "rho": 2100.0}


def pulse(times: ArrayLike) -> NDArray[np.float64]:
    """Return a Gaussian, whose mean is not zero, so that integrals of the wavelet matter."""
    return np.exp(-((np.pi * FREQUENCY * (np.asarray(times) - DELAY)) ** 2))


def slope(times: ArrayLike) -> NDArray[np.float64]:
    late = np.asarray(times) - DELAY
    return -2.0 * (np.pi * FREQUENCY) ** 2 * late * pulse(times)


def curvature(times: ArrayLike) -> NDArray[np.float64]:
    """Return a Ricker wavelet."""
    a = (np.pi * FREQUENCY * (np.asarray(times) - DELAY)) ** 2
    return 2.0 * (np.pi * FREQUENCY) ** 2 * (2.0 * a - 1.0) * pulse(times)


def integral(times: ArrayLike) -> NDArray[np.float64]:
    late = np.pi * FREQUENCY * (np.asarray(times) - DELAY)
    return (1.0 + erf(late)) / (2.0 * np.pi**0.5 * FREQUENCY)


def error(found: ArrayLike, expected: ArrayLike) -> float:
    """Return the relative L2 difference."""
    return float(np.linalg.norm(np.subtract(found, expected)) / np.linalg.norm(expected))


explosion = partial(analytic.explosion, pulse(TIMES), DT)
force = partial(analytic.force, pulse(TIMES), DT)
moment = partial(analytic.moment, pulse(TIMES), DT)
garvin = partial(analytic.garvin, pulse(TIMES), DT)
lamb = partial(analytic.lamb, pulse(TIMES), DT)
reflected = partial(analytic.reflected, pulse(TIMES), DT)


def test_explosion_in_a_fluid_has_the_pressure_of_the_scalar_wave_equation() -> None:
    theta = np.linspace(0.0, 5.0, 4001)
    weight = np.full(theta.size, theta[1] / (2.0 * np.pi))
    weight[[0, -1]] /= 2.0
    line = pulse(TIMES[:, None] - 250.0 / WATER["vp"] * np.cosh(theta)) @ weight
    assert error(explosion([[150.0, -200.0]], **WATER)[0, 0], line) < 1e-7
    point = pulse(TIMES - 250.0 / WATER["vp"]) / (4.0 * np.pi * 250.0)
    assert error(explosion([[0.0, 150.0, 200.0]], **WATER)[0, 0], point) < 1e-7


def test_explosion_in_three_dimensions_moves_the_medium_along_the_radius() -> None:
    offset, r, vp = np.array([100.0, -150.0, 200.0]), 269.25824035672520, ROCK["vp"]
    late = TIMES - r / vp
    radial = (pulse(late) / (vp * r) + np.where(late > 0.0, integral(late), 0.0) / r**2) / (
        4.0 * np.pi * ROCK["rho"]
    )
    found = explosion([offset], **ROCK)[0, 1:]
    assert error(found, offset[:, None] / r * radial) < 1e-7


def test_force_in_three_dimensions_is_stokes_solution() -> None:
    """Aki and Richards (2002), equation 4.23; the velocity has the slope of the wavelet."""
    x, vp, vs = np.array([100.0, -80.0, 120.0]), ROCK["vp"], ROCK["vs"]
    r = float(np.linalg.norm(x))
    directions = np.outer(x, x) / r**2
    tau, weight = np.polynomial.legendre.leggauss(60)
    tau = 0.5 * r * ((1.0 / vs - 1.0 / vp) * tau + 1.0 / vs + 1.0 / vp)
    weight = 0.5 * r * (1.0 / vs - 1.0 / vp) * weight
    near = slope(TIMES[:, None] - tau) @ (tau * weight) / r**3
    p, s = slope(TIMES - r / vp) / (vp**2 * r), slope(TIMES - r / vs) / (vs**2 * r)
    for axis in range(3):
        along, unit = directions[axis][:, None], np.eye(3)[axis][:, None]
        exact = (3.0 * along - unit) * near + along * p - (along - unit) * s
        found = force([x], axis=axis, **ROCK)[0, 1:]
        assert error(found, exact / (4.0 * np.pi * ROCK["rho"])) < 1e-7


@pytest.mark.parametrize("medium", [ROCK, WATER], ids=["rock", "water"])
def test_line_source_is_the_integral_of_point_sources(medium: dict[str, float]) -> None:
    y = np.arange(-1600.0, 1601.0, 10.0)
    points = np.column_stack((np.full_like(y, 90.0), y, np.full_like(y, -160.0)))
    tensor = np.array([[1.0, 0.0, 0.3], [0.0, 0.0, 0.0], [0.3, 0.0, -2.0]])
    plane = np.ix_([0, 2], [0, 2])
    pairs = [
        (explosion(points, **medium), explosion([[90.0, -160.0]], **medium)),
        (force(points, axis=2, **medium), force([[90.0, -160.0]], axis=1, **medium)),
        (
            moment(points, tensor=tensor, **medium),
            moment([[90.0, -160.0]], tensor=tensor[plane], **medium),
        ),
    ]
    ratio = (medium["vs"] / medium["vp"]) ** 2
    for in_space, in_plane in pairs:
        total = 10.0 * in_space.sum(axis=0)
        assert error(total[[1, 3]], in_plane[0, 1:]) < 1e-7
        # The mean of two normal stresses is not that of three
        assert error(total[0] * (1.0 - ratio) / (1.0 - 4.0 / 3.0 * ratio), in_plane[0, 0]) < 1e-7


@pytest.mark.parametrize("offset", [[120.0, -90.0], [60.0, 50.0, -90.0]], ids=["2-D", "3-D"])
def test_moment_source_is_a_sum_of_pairs_of_forces(offset: list[float]) -> None:
    ndim, step = len(offset), 0.5
    tensor = np.random.default_rng(3).normal(size=(ndim, ndim))
    tensor += tensor.T
    rate = analytic.moment(slope(TIMES), DT, [offset], tensor=tensor, **ROCK)[0]
    total = np.zeros_like(rate)
    for i in range(ndim):
        for j in range(ndim):
            arm = step * np.eye(ndim)[j]
            there, here = force([offset - arm, offset + arm], axis=i, **ROCK)
            total += tensor[i, j] * (there - here) / (2.0 * step)
    assert error(rate, total) < 1e-4


@pytest.mark.parametrize("offset", [[120.0, -90.0], [60.0, 50.0, -90.0]], ids=["2-D", "3-D"])
def test_explosion_is_the_isotropic_moment(offset: list[float]) -> None:
    tensor = ROCK["vp"] ** 2 * np.eye(len(offset))
    found = analytic.explosion(slope(TIMES), DT, [offset], **ROCK)
    assert error(found, moment([offset], tensor=tensor, **ROCK)) < 1e-8


@pytest.mark.parametrize("offset", [[120.0, -90.0], [60.0, 50.0, -90.0]], ids=["2-D", "3-D"])
def test_pressure_grows_as_the_medium_is_compressed(offset: list[float]) -> None:
    ndim, step = len(offset), 0.1
    bulk = ROCK["rho"] * (ROCK["vp"] ** 2 - (2.0 - 2.0 / ndim) * ROCK["vs"] ** 2)
    around = [offset + sign * step * np.eye(ndim)[i] for i in range(ndim) for sign in (1, -1)]
    tensor = np.diag(np.arange(ndim) - 0.5) + 1.0
    for solution in (
        analytic.explosion,
        partial(analytic.force, axis=1),
        partial(analytic.moment, tensor=tensor),
    ):
        moved = solution(pulse(TIMES), DT, around, **ROCK)
        spread = sum(moved[2 * i, 1 + i] - moved[2 * i + 1, 1 + i] for i in range(ndim))
        growth = solution(slope(TIMES), DT, [offset], **ROCK)[0, 0]
        assert error(growth, -bulk * spread / (2.0 * step)) < 1e-4


def system(
    k: complex, s: complex, vp: float, vs: float, rho: float
) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
    """Return the matrix of d/dz (u_x, u_z, s_xz, s_zz), and what decreases with z (4, 2)."""
    mu, stiff = rho * vs**2, rho * vp**2
    lam = stiff - 2.0 * mu
    matrix = np.array(
        [
            [0.0, -1j * k, 1.0 / mu, 0.0],
            [-1j * k * lam / stiff, 0.0, 0.0, 1.0 / stiff],
            [rho * s**2 + k**2 * (stiff - lam**2 / stiff), 0.0, 0.0, -1j * k * lam / stiff],
            [0.0, rho * s**2, -1j * k, 0.0],
        ]
    )
    # Displacements and stresses of about the same size keep the eigenvalues accurate
    sizes = np.array([1.0, 1.0, abs(rho * vs * s), abs(rho * vs * s)])
    values, vectors = np.linalg.eig(matrix * sizes / sizes[:, None])
    return matrix, (vectors * sizes[:, None])[:, values.real < 0.0]


@pytest.mark.parametrize("source", ["force-z", "force-x", "explosive"])
@pytest.mark.parametrize("wave", [(0.02, 9.0 + 40.0j), (-0.05, 9.0 + 40.0j), (0.01, 20.0)])
def test_surface_moves_as_the_matrix_of_stress_and_displacement_says(
    source: str, wave: tuple[complex, complex]
) -> None:
    k, s = wave
    depth = 30.0
    matrix, decreasing = system(k, s, **ROCK)
    stress = -(ROCK["vp"] ** 2) / s**2
    stiff = ROCK["rho"] * ROCK["vp"] ** 2
    shear = 2.0 * ROCK["rho"] * ROCK["vs"] ** 2 / stiff
    jump = {
        "force-z": np.array([0.0, 0.0, 0.0, -1.0]),
        "force-x": np.array([0.0, 0.0, -1.0, 0.0]),
        "explosive": np.array([0.0, -stress / stiff, -1j * k * stress * shear, 0.0]),
    }[source]
    upwards = expm(-matrix * depth)
    # The surface has no traction
    amounts = np.linalg.solve((upwards @ decreasing)[2:], (upwards @ jump)[2:])
    surface = upwards @ (decreasing @ amounts - jump)
    found = analytic.surface_displacement(
        np.array([k + 0j]), s, depth=depth, source=source, **ROCK
    )[:, 0]
    assert error(found, surface[[1, 0]]) < 1e-10


@pytest.mark.parametrize("medium", [ROCK, SOFT], ids=["rock", "soft"])
def test_garvin_agrees_with_the_integral_over_wavenumbers(medium: dict[str, float]) -> None:
    x = [0.0, 150.0, -500.0]
    expected = lamb(x, depth=30.0, source="explosive", **medium)
    for found, exact in zip(garvin(x, depth=30.0, **medium), expected, strict=True):
        assert error(found, exact) < 1e-7


def test_garvin_agrees_with_pairs_of_buried_forces() -> None:
    depth, x, step = 60.0, np.array([200.0]), 0.1
    pairs = lamb(x, depth=depth + step, source="force-z", **ROCK)
    pairs -= lamb(x, depth=depth - step, source="force-z", **ROCK)
    pairs += lamb(x - step, depth=depth, source="force-x", **ROCK)
    pairs -= lamb(x + step, depth=depth, source="force-x", **ROCK)
    found = analytic.garvin(curvature(TIMES), DT, x, depth=depth, **ROCK)
    assert error(found, ROCK["vp"] ** 2 * pairs / (2.0 * step)) < 1e-5


def test_surface_of_a_fluid_moves_twice_as_much_as_inside() -> None:
    almost = {**WATER, "vs": 1e-3}
    inside = explosion([[-100.0, 150.0]], **WATER)[0, 1:]
    surface = garvin([150.0], depth=100.0, **almost)[0]
    assert error(surface[0], 2.0 * inside[0]) < 1e-4
    assert np.abs(surface[1]).max() < 1e-4 * np.abs(inside).max()


def test_force_on_the_surface_has_the_closed_form() -> None:
    """The vertical velocity of Lamb (1904) is a principal value over the slowness q = t / x."""
    x, (vp, vs, rho) = 300.0, SOFT.values()
    pole = 1.0 / analytic.rayleigh_speed(vp, vs)

    def impulse(q: float) -> float:
        to_p = 1j * np.sqrt(q**2 - 1.0 / vp**2)
        to_s = np.sqrt(1.0 / vs**2 - q**2 + 0j)
        rayleigh = (1.0 / vs**2 - 2.0 * q**2) ** 2 + 4.0 * q**2 * to_p * to_s
        return float((1j * to_p / rayleigh).real) / (np.pi * rho * vs**4)

    def integrand(q: float, time: float) -> float:
        return impulse(q) * float(slope(time - q * x))

    def near(q: float, time: float) -> float:
        return integrand(q, time) * (q - pole)

    far = 2.0 * pole - 1.0 / vs
    pieces = [1.0 / vp, 0.7 / vs, 1.0 / vs]
    times = TIMES[60::20]
    expected = []
    for time in times:
        options = {"args": (time,), "limit": 400, "epsabs": 1e-18}
        total = quad(near, 1.0 / vs, far, weight="cauchy", wvar=pole, **options)[0]
        for start, end in pairwise(pieces):
            total += quad(integrand, start, end, **options)[0]
        if time > far * x:
            total += quad(integrand, far, time / x, **options)[0]
        expected.append(total)
    found = lamb([x, -x], depth=0.0, source="force-z", **SOFT)
    assert error(found[0, 0, 60::20], expected) < 1e-8
    assert error(found[1, 0], found[0, 0]) < 1e-12


def test_forces_on_the_surface_are_reciprocal() -> None:
    down = lamb([300.0], depth=0.0, source="force-z", **ROCK)[0]
    across = lamb([-300.0], depth=0.0, source="force-x", **ROCK)[0]
    assert error(down[1], across[0]) < 1e-9


def test_rayleigh_speed_is_known_for_a_poisson_solid() -> None:
    assert analytic.rayleigh_speed(3.0**0.5, 1.0) == pytest.approx((2.0 - 2.0 / 3.0**0.5) ** 0.5)


def to_fluid(k: complex, s: complex) -> complex:
    """Return s_zz / u_z of the solid of `SEABED` from its matrix, where s_xz = 0."""
    solid = {name: SEABED[name] for name in ("vp", "vs", "rho")}
    _, decreasing = system(k, s, **solid)
    amounts = np.array([-decreasing[2, 1], decreasing[2, 0]])
    return complex((decreasing @ amounts)[3] / (decreasing @ amounts)[1])


def test_scholte_wave_satisfies_the_conditions_of_the_interface() -> None:
    c = analytic.scholte_speed(**SEABED)
    s = 1j
    k = s.imag / c
    # In the fluid p = exp(a z) with u_z = -p,z / (rho s^2), and s_zz = -p
    fluid = SEABED["rho_fluid"] * s**2 / np.sqrt(k**2 - 1.0 / SEABED["vp_fluid"] ** 2)
    assert abs(to_fluid(k, s) - fluid) < 1e-8 * abs(fluid)
    assert c < min(SEABED["vp_fluid"], analytic.rayleigh_speed(SEABED["vp"], SEABED["vs"]))


def test_reflection_agrees_with_the_matrix_of_stress_and_displacement() -> None:
    # Critical angles are 35.2 degrees of P; S, slower than the fluid, has none
    angles = np.radians([0.0, 20.0, 34.0, 37.0, 60.0, 85.0])
    found = analytic.reflection(angles, **SEABED)
    for angle, coefficient in zip(angles, found, strict=True):
        s = 1e-9 + 1j
        solid = -to_fluid(np.sin(angle) / SEABED["vp_fluid"], s)
        # u_z of the incident wave is p g / (rho s^2), that of the reflected wave the opposite
        fluid = SEABED["rho_fluid"] * s * SEABED["vp_fluid"] / np.cos(angle)
        assert coefficient == pytest.approx((solid - fluid) / (solid + fluid), abs=1e-6)


def test_reflection_of_a_normal_wave_is_that_of_impedances() -> None:
    fluid, solid = 1500.0 * 1000.0, SEABED["vp"] * SEABED["rho"]
    expected = (solid - fluid) / (solid + fluid)
    assert analytic.reflection([0.0], **SEABED)[0] == pytest.approx(expected)


def test_reflection_of_fluids_vanishes_at_the_angle_of_intromission() -> None:
    """Brekhovskikh (1980): tan^2 = ((rho c)^2 - 1) / (1 - c^2), of the ratios of both fluids."""
    density, speed = 1.5, 0.8
    angle = np.arctan((((density * speed) ** 2 - 1.0) / (1.0 - speed**2)) ** 0.5)
    media = {"vp_fluid": 1500.0, "rho_fluid": 1000.0, "vp": 1500.0 * speed, "vs": 0.0}
    assert abs(analytic.reflection([angle], **media, rho=1000.0 * density)[0]) < 1e-12


@pytest.mark.parametrize(("density", "sign"), [(1e12, 1.0), (1e-6, -1.0)], ids=["rigid", "free"])
def test_reflected_field_is_that_of_an_image(density: float, sign: float) -> None:
    offsets = [[150.0, -200.0], [90.0, 0.0], [5.0, 300.0]]
    image = explosion([[-height, x] for height, x in offsets], **WATER)
    found = reflected(offsets, **{**SEABED, "vs": 0.0, "rho": density})
    for trace, exact in zip(found, sign * image, strict=True):
        assert error(trace, exact) < 1e-7


def test_reflected_field_is_a_sum_of_plane_waves() -> None:
    """Bouchon and Aki (1977): sources 3 km apart, whose other fields come too late to be seen."""
    period, height, x = 3000.0, 60.0, 250.0
    number = 2.0 * np.pi / period * np.arange(-600, 601)[:, None]
    damping, size = 20.0, 2 * SAMPLES
    decay = np.exp(-damping * TIMES)
    s = damping + 2j * np.pi * np.arange(SAMPLES + 1) / (size * DT)
    up = np.sqrt(number**2 + (s / SEABED["vp_fluid"]) ** 2)
    solid = -np.array([[to_fluid(k[0], at) for at in s[:80]] for k in number[600:]])
    solid = np.concatenate((solid[:0:-1], solid))
    up, s = up[:, :80], s[:80]
    fluid = SEABED["rho_fluid"] * s**2 / up
    waves = (solid - fluid) / (solid + fluid) * np.exp(1j * number * x - up * height) / (2.0 * up)
    spectrum = np.fft.rfft(pulse(TIMES) * decay, size)[:80] * waves.sum(axis=0) / period
    expected = np.fft.irfft(np.pad(spectrum, (0, SAMPLES + 1 - 80)), size)[:SAMPLES] / decay
    assert error(reflected([[height, x]], **SEABED)[0, 0], expected) < 1e-7


@pytest.mark.parametrize(("epsilon", "delta"), [(0.2, 0.1), (0.15, -0.1), (0.1, 0.1)])
def test_vti_phase_velocity_is_the_eigenvalue_of_the_equation(epsilon: float, delta: float) -> None:
    """The matrix is that of q and p, of waves exp(i k x), in Duveneck et al. (2008)."""
    angles = np.linspace(0.0, np.pi / 2.0, 19)
    found, slopes = analytic.vti_phase_velocity(2000.0, epsilon, delta, angles)
    mixed = (1.0 + 2.0 * delta) ** 0.5
    for angle, velocity in zip(angles, found, strict=True):
        z, x = np.cos(angle) ** 2, np.sin(angle) ** 2
        matrix = np.array([[z, mixed * x], [mixed * z, (1.0 + 2.0 * epsilon) * x]])
        assert velocity == pytest.approx(2000.0 * np.linalg.eigvals(matrix).real.max() ** 0.5)
    # Alkhalifah (2000), with the vertical and the horizontal wavenumber at frequency 1
    nmo, eta = 2000.0**2 * (1.0 + 2.0 * delta), (epsilon - delta) / (1.0 + 2.0 * delta)
    kz, kx = (np.cos(angles) / found) ** 2, (np.sin(angles) / found) ** 2
    assert nmo * (1.0 / nmo - kx / (1.0 - 2.0 * nmo * eta * kx)) == pytest.approx(
        2000.0**2 * kz, abs=1e-12
    )
    after = analytic.vti_phase_velocity(2000.0, epsilon, delta, angles + 1e-6)[0]
    before = analytic.vti_phase_velocity(2000.0, epsilon, delta, angles - 1e-6)[0]
    assert slopes == pytest.approx((after - before) / 2e-6, abs=1e-3)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.2, 0.1), (0.15, -0.1), (0.1, 0.1)])
def test_vti_group_velocity_is_that_of_the_envelope_of_plane_waves(
    epsilon: float, delta: float
) -> None:
    rays = np.linspace(0.0, np.pi / 2.0, 10)
    found = analytic.vti_group_velocity(2000.0, epsilon, delta, rays)
    angles = np.linspace(-0.2, np.pi / 2.0 + 0.2, 20001)
    velocity = analytic.vti_phase_velocity(2000.0, epsilon, delta, angles)[0]
    for ray, group in zip(rays, found, strict=True):
        near = np.abs(angles - ray) < 1.0
        envelope = (velocity[near] / np.cos(angles[near] - ray)).min()
        assert group == pytest.approx(envelope, rel=1e-7)
