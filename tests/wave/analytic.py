"""Analytic solutions of the elastic, acoustic and VTI wave equations, for tests of solvers.

Lengths are in m, times in s and densities in kg/m3. Positions and vectors are ordered (z, x) or
(z, y, x), with z downwards. Particle velocity v and stress s obey

    rho v_i,t = s_ij,j + f_i
    s_ij,t = lam delta_ij v_k,k + mu (v_i,j + v_j,i) - m_ij

with delta functions in space as sources. A force is f_i = w(t), in N (2-D: N/m); a moment source is
m_ij = M_ij w(t), so that w is the moment rate; an explosive source is m_ij = delta_ij vp^2 W(t)
with W the time integral of w, so that the pressure in a fluid obeys p,tt / vp^2 - lap p = w(t).
Pressure is the negative mean of the n normal stresses of n dimensions.

A wavelet is an array of samples at times 0, dt, 2 dt, ..., zero before and after, and negligible at
the Nyquist frequency; traces have the same times. The solutions are products with its Laplace
transform at s = a + i omega with a > 0 (Phinney, 1965), where they have no singularity. Fields in
layered media are sums over exp(i k x), with g_c = sqrt(k^2 + s^2 / c^2) for a wave of speed c.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import brentq
from scipy.special import kv

Real = NDArray[np.float64]
Complex = NDArray[np.complex128]

WRAPPED = 1e-8
"""Factor of what returns one period of the Fourier transform late."""


@dataclass(frozen=True)
class Relaxing:
    """The speed of a wave whose medium has a modulus M(s) of standard linear solids.

    M(s) = M_R (1 + tau sum over l of s / (s + w_l)). The phase velocity at a frequency is given.

    Parameters
    ----------
    velocity : float
        Phase velocity, m/s.
    frequency : float
        Its frequency, Hz.
    tau : float
        Relaxation of the modulus.
    relaxations : sequence of float
        Angular frequencies w_l, rad/s.
    """

    velocity: float
    frequency: float
    tau: float
    relaxations: Sequence[float]

    def modulus(self, s: Complex) -> Complex:
        """Return M(s) / M_R."""
        terms = np.array([s / (s + w) for w in self.relaxations])
        return np.asarray(1.0 + self.tau * terms.sum(axis=0))

    def __call__(self, s: Complex) -> Complex:
        """Return the complex speed, m/s."""
        at = self.modulus(np.array(2j * np.pi * self.frequency))
        return np.asarray(self.velocity * (at**-0.5).real * self.modulus(s) ** 0.5)


Speed = float | Relaxing


def explosion(
    wavelet: Real, dt: float, offsets: ArrayLike, *, vp: Speed, vs: Speed, rho: float
) -> Real:
    """Return pressure and velocity of an explosive source in an unbounded medium.

    The displacement is the gradient of -w g / (rho s^2), with g the Green's function of the scalar
    wave equation (Aki and Richards, 2002, section 4.3, special case of equation 4.29).

    Parameters
    ----------
    wavelet : array (sample)
        Wavelet w of the source.
    dt : float
        Interval of its samples, s.
    offsets : array (receiver, axis)
        Receivers minus source, m, of 2 or 3 axes; not zero. In 2-D the source is a line.
    vp, vs, rho : float
        Speeds of the medium, m/s, and its density, kg/m3. A fluid has vs = 0.

    Returns
    -------
    array (receiver, component, sample)
        The pressure, then the velocity along each axis.
    """
    x = np.asarray(offsets, dtype=float)[..., None]

    def transfer(s: Complex) -> Complex:
        speed = _at(vp, s)
        green, slope = (_radial(order, s / speed, x) for order in (0, 1))
        # The source adds the square of the velocity itself, whatever the modulus
        strength = (vp.velocity / speed) ** 2 if isinstance(vp, Relaxing) else 1.0
        share = _pressure_share(speed, _at(vs, s), x.shape[1])
        return strength * np.concatenate((share * green, -slope * x / (rho * s)), axis=1)

    return _filtered(wavelet, dt, transfer)


def force(
    wavelet: Real, dt: float, offsets: ArrayLike, *, vp: Speed, vs: Speed, rho: float, axis: int
) -> Real:
    """Return pressure and velocity of a force along an axis in an unbounded medium.

    The displacement is Stokes' solution (Aki and Richards, 2002, equation 4.23, transformed), in
    2-D that of a line force, with Bessel functions of integer order (Eason, Fulton and Sneddon,
    1956). Arguments and results are those of `explosion`.
    """
    x = np.asarray(offsets, dtype=float)[..., None]
    along = x[:, axis : axis + 1]
    unit = np.eye(x.shape[1])[axis][:, None]

    def transfer(s: Complex) -> Complex:
        p, shear = _at(vp, s), _at(vs, s)
        first, second = (_p_minus_s(order, s, x, p, shear) for order in (1, 2))
        velocity = (first * unit + second * along * x) / (rho * s)
        if np.all(shear != 0.0):
            velocity = velocity + unit * s * _radial(0, s / shear, x) / (rho * shear**2)
        pressure = -_pressure_share(p, shear, x.shape[1]) * _radial(1, s / p, x) * along
        return np.concatenate((pressure, velocity), axis=1)

    return _filtered(wavelet, dt, transfer)


def moment(
    wavelet: Real,
    dt: float,
    offsets: ArrayLike,
    *,
    vp: float,
    vs: float,
    rho: float,
    tensor: ArrayLike,
) -> Real:
    """Return pressure and velocity of a moment source in an unbounded medium.

    The displacement is the moment times the derivative of Stokes' solution by the position of the
    source (Aki and Richards, 2002, equations 3.23 and 4.29). Arguments and results are those of
    `explosion`; tensor (axis, axis) is M, symmetric, and the wavelet the moment rate.
    """
    x = np.asarray(offsets, dtype=float)[..., None]
    given = np.asarray(tensor, dtype=float)
    trace = np.trace(given)
    mapped = np.einsum("ij,rjo->rio", given, x)
    twice = (x * mapped).sum(axis=1, keepdims=True)

    def transfer(s: Complex) -> Complex:
        second, third = (_p_minus_s(order, s, x, vp, vs) for order in (2, 3))
        velocity = -(third * twice * x + second * (2.0 * mapped + trace * x)) / (rho * s**2)
        if vs > 0.0:
            velocity = velocity - mapped * _radial(1, s / vs, x) / (rho * vs**2)
        curvature = twice * _radial(2, s / vp, x) + trace * _radial(1, s / vp, x)
        pressure = _pressure_share(vp, vs, x.shape[1]) * curvature / s
        return np.concatenate((pressure, velocity), axis=1)

    return _filtered(wavelet, dt, transfer)


def garvin(
    wavelet: Real,
    dt: float,
    distances: ArrayLike,
    *,
    depth: float,
    vp: float,
    vs: float,
    rho: float,
) -> Real:
    """Return the velocity on a free surface of an explosive line source below it.

    This is the closed form of Garvin (1956) by the method of Cagniard and de Hoop (1960); see also
    Sanchez-Sesma and Iturraran-Viveros (2006) and Kausel (2006, section 5.5). The time of the
    impulse response is r / vp cosh(theta), so that its singularity at the first arrival vanishes
    and its convolution with the wavelet is the integral over theta.

    Parameters
    ----------
    wavelet, dt
        As for `explosion`.
    distances : array (receiver)
        x of the receivers minus x of the source, m; the receivers are on the surface, z = 0.
    depth : float
        Depth of the source, m, positive.
    vp, vs, rho : float
        Speeds, m/s, and density, kg/m3, of the half space.

    Returns
    -------
    array (receiver, component, sample)
        The velocity along z and x.
    """
    x = np.asarray(distances, dtype=float)
    r = np.hypot(x, depth)
    # Steps resolve the wavelet at the last time, and the Rayleigh pole at the imaginary part
    # arctan(depth / |x|) of theta, on which the convergence of the trapezoidal rule depends
    last = np.arccosh(np.maximum(wavelet.size * dt * vp / r, 1.0 + 1e-9))
    finest = np.maximum(2.0 * wavelet.size, 4.0 / np.arctan2(depth, np.abs(x)))
    theta = np.linspace(0.0, 1.0, int((finest * last).max()) + 2) * last[:, None]
    weight = np.full(theta.shape[1], 1.0 / (theta.shape[1] - 1.0))
    weight[[0, -1]] /= 2.0
    # Slownesses on de Hoop's contour, on which the delay is real
    p = (depth * np.sinh(theta) + 1j * np.abs(x[:, None]) * np.cosh(theta)) / (vp * r[:, None])
    to_p = (depth * np.cosh(theta) + 1j * np.abs(x[:, None]) * np.sinh(theta)) / (vp * r[:, None])
    to_s = np.sqrt(p**2 + 1.0 / vs**2)
    omega = 2.0 * p**2 + 1.0 / vs**2
    rayleigh = omega**2 - 4.0 * p**2 * to_p * to_s
    kernels = np.stack((omega * to_p, np.sign(x)[:, None] * 2j * p * to_s * to_p)) / rayleigh
    kernels = -kernels.real / (np.pi * rho * vs**2) * weight * last[:, None]
    delays = np.cosh(theta) * r[:, None] / vp

    def transfer(s: Complex) -> Complex:
        pairs = zip(kernels.swapaxes(0, 1), delays, strict=True)
        return np.stack([kernel @ np.exp(-delay[:, None] * s) for kernel, delay in pairs])

    return _filtered(wavelet, dt, transfer)


def lamb(
    wavelet: Real,
    dt: float,
    distances: ArrayLike,
    *,
    depth: float,
    vp: float,
    vs: float,
    rho: float,
    source: str,
) -> Real:
    """Return the velocity on a free surface of a line source on or below it.

    This is the wavenumber integral of Lamb (1904); see also Aki and Richards (2002, section 6.3).
    Arguments and results are those of `garvin`; source is "force-z", "force-x" or "explosive". The
    depth of a force may be 0 where no distance is.
    """
    x = np.asarray(distances, dtype=float)
    even, odd = np.ones_like(x), np.sign(x)
    signs = np.stack((odd, even) if source == "force-x" else (even, odd), axis=1)[..., None]
    slowest = rayleigh_speed(vp, vs)

    def transfer(s: Complex) -> Complex:
        def kernel(k: Complex, s: complex) -> Complex:
            return s * surface_displacement(k, s, depth=depth, vp=vp, vs=vs, rho=rho, source=source)

        found = [_over_wavenumbers(kernel, s, abs(at), depth, slowest, vp) for at in x]
        return signs * np.stack(found)

    return _filtered(wavelet, dt, transfer)


def surface_displacement(
    k: Complex, s: complex, *, depth: float, vp: float, vs: float, rho: float, source: str
) -> Complex:
    """Return the displacement along z and x at the free surface, of wavenumber k, per unit of w.

    With potentials u_z = phi,z + psi,x and u_x = phi,x - psi,z, the source sends upwards phi and
    psi, and the surface, where s_zz = s_xz = 0, reflects both (Aki and Richards, 2002, section
    5.2). The source is at x = 0; see `lamb`.
    """
    p, q = (np.sqrt(k**2 + (s / c) ** 2) for c in (vp, vs))
    along_p, along_s = np.exp(-p * depth), np.exp(-q * depth)
    phi, psi = {
        "force-z": (along_p, 1j * k / q * along_s),
        "force-x": (1j * k / p * along_p, -along_s),
        "explosive": (-along_p / p, 0.0 * k),
    }[source]
    omega = 2.0 * k**2 + (s / vs) ** 2
    factor = 1.0 / (rho * vs**2 * (omega**2 - 4.0 * k**2 * p * q))
    return factor * np.stack(
        (p * omega * phi + 2j * k * p * q * psi, 2j * k * p * q * phi - q * omega * psi)
    )


def rayleigh_speed(vp: float, vs: float) -> float:
    """Return the speed of the Rayleigh wave of a solid with a free surface (Rayleigh, 1885)."""
    return scholte_speed(vp, 0.0, vp, vs, 1.0)


def scholte_speed(vp_fluid: float, rho_fluid: float, vp: float, vs: float, rho: float) -> float:
    """Return the speed of the interface wave between fluid and solid half spaces (Scholte, 1947).

    It is the root below all speeds of (2 - c^2/vs^2)^2 - 4 a b + (rho_fluid / rho) (c/vs)^4 a / f,
    with a, b, f = sqrt(1 - c^2 / speed^2) for the speeds vp, vs and vp_fluid.
    """

    def secular(c: float) -> float:
        a, b, f = (np.sqrt(1.0 - (c / speed) ** 2) for speed in (vp, vs, vp_fluid))
        x = (c / vs) ** 2
        return float(f * ((2.0 - x) ** 2 - 4.0 * a * b) + rho_fluid / rho * x**2 * a)

    fastest = min(vp_fluid, vs)
    return float(brentq(secular, 0.01 * fastest, (1.0 - 1e-12) * fastest, xtol=1e-12, rtol=1e-14))


def reflection(
    angle: ArrayLike, *, vp_fluid: float, rho_fluid: float, vp: float, vs: float, rho: float
) -> Complex:
    """Return the pressure reflection coefficient of a plane wave from a fluid into a solid.

    Parameters
    ----------
    angle : array
        Angle of incidence from the normal, radians.
    vp_fluid, rho_fluid, vp, vs, rho : float
        Speeds, m/s, and densities, kg/m3, of the two media. With vs = 0 the second is a fluid.

    Returns
    -------
    complex array
        Reflected over incident pressure, for positive frequencies of the time dependence
        exp(+i omega t). It is real below the first critical angle.
    """
    slowness = np.sin(np.asarray(angle, dtype=float)) / vp_fluid
    return _reflection(slowness + 0j, 1j, vp_fluid, rho_fluid, vp, vs, rho)


def reflected(
    wavelet: Real,
    dt: float,
    offsets: ArrayLike,
    *,
    vp_fluid: float,
    rho_fluid: float,
    vp: float,
    vs: float,
    rho: float,
) -> Real:
    """Return what a solid half space reflects of an explosive line source in a fluid above it.

    This is the wavenumber integral of Sommerfeld and Weyl with the coefficient of plane waves (Aki
    and Richards, 2002, section 6.2). Added to `explosion` with vs = 0 it is the whole field of
    the fluid.

    Parameters
    ----------
    wavelet, dt, vp_fluid, rho_fluid, vp, vs, rho
        As for `explosion` and `reflection`.
    offsets : array (receiver, 2)
        Sum of the heights of source and receiver above the solid, and x of the receiver minus x of
        the source, m; not both zero.

    Returns
    -------
    array (receiver, component, sample)
        The pressure, then the velocity along z and x.
    """
    heights, x = np.asarray(offsets, dtype=float).T
    signs = np.stack((np.ones_like(x), np.ones_like(x), np.sign(x)), axis=1)[..., None]
    slowest = scholte_speed(vp_fluid, rho_fluid, vp, vs, rho) if vs > 0.0 else min(vp_fluid, vp)

    def transfer(s: Complex) -> Complex:
        def field(height: float, distance: float) -> Complex:
            def kernel(k: Complex, s: complex) -> Complex:
                up = np.sqrt(k**2 + (s / vp_fluid) ** 2)
                coefficient = _reflection(k, s, vp_fluid, rho_fluid, vp, vs, rho)
                pressure = coefficient * np.exp(-up * height) / (2.0 * up)
                per = -pressure / (rho_fluid * s)
                return np.stack((pressure, up * per, 1j * k * per))

            fastest = max(vp, vp_fluid)
            return _over_wavenumbers(kernel, s, distance, height, slowest, fastest)

        return signs * np.stack([field(*at) for at in zip(heights, np.abs(x), strict=True)])

    return _filtered(wavelet, dt, transfer)


def vti_phase_velocity(
    vp: float, epsilon: float, delta: float, angle: ArrayLike
) -> tuple[Real, Real]:
    """Return the phase velocity of the acoustic VTI equation, and its derivative by the angle.

    The velocity is that of Thomsen's (1986) parameters with vs = 0 (Tsvankin, 1996),
    which solves the dispersion relation of Alkhalifah (2000).

    Parameters
    ----------
    vp, epsilon, delta : float
        Speed along the axis of symmetry z, m/s, and Thomsen's parameters.
    angle : array
        Angle between the normal of the wavefront and z, radians.
    """
    angle = np.asarray(angle, dtype=float)
    sine = np.sin(angle) ** 2
    linear = 1.0 + 2.0 * epsilon * sine
    root = np.sqrt(linear**2 - 2.0 * (epsilon - delta) * np.sin(2.0 * angle) ** 2)
    velocity = vp * np.sqrt((linear + root) / 2.0)
    linear_slope = 2.0 * epsilon * np.sin(2.0 * angle)
    root_slope = (linear * linear_slope - 2.0 * (epsilon - delta) * np.sin(4.0 * angle)) / root
    return velocity, vp**2 * (linear_slope + root_slope) / (4.0 * velocity)


def vti_group_velocity(vp: float, epsilon: float, delta: float, group_angle: ArrayLike) -> Real:
    """Return the velocity along rays of the acoustic VTI equation, m/s.

    The group velocity has the phase velocity as its component along the normal of the wavefront and
    the derivative of the phase velocity as the other (Thomsen, 1986, equations 13 and 14).

    Parameters
    ----------
    vp, epsilon, delta : float
        Speed along the axis of symmetry z, m/s, and Thomsen's parameters.
    group_angle : array
        Angle between the ray and z, radians, from 0 to pi / 2.
    """

    def at(ray: float) -> float:
        def excess(angle: float) -> float:
            velocity, slope = vti_phase_velocity(vp, epsilon, delta, angle)
            return float(angle + np.arctan2(slope, velocity)) - ray

        angle = brentq(excess, -1e-9, np.pi / 2.0 + 1e-9, xtol=1e-14)
        return float(np.hypot(*vti_phase_velocity(vp, epsilon, delta, angle)))

    rays = np.asarray(group_angle, dtype=float)
    return np.array([at(ray) for ray in rays.ravel()]).reshape(rays.shape)


def _filtered(wavelet: Real, dt: float, transfer: Callable[[Complex], Complex]) -> Real:
    """Return the wavelet filtered by transfer(s) (..., frequency), as traces (..., sample)."""
    size = next_fast_len(2 * wavelet.size, real=True)
    damping = -np.log(WRAPPED) / (size * dt)
    decay = np.exp(-damping * dt * np.arange(wavelet.size))
    spectrum = rfft(wavelet * decay, size)
    s = damping + 2j * np.pi * np.arange(spectrum.size) / (size * dt)
    heard = np.abs(spectrum) > 1e-13 * np.abs(spectrum).max()
    response = transfer(s[heard])
    product = np.zeros((*response.shape[:-1], spectrum.size), dtype=complex)
    product[..., heard] = response * spectrum[heard]
    return irfft(product, size)[..., : wavelet.size] / decay


def _radial(order: int, k: Complex, x: Real) -> Complex:
    """Return ((1/r) d/dr)^order of the Green's function of lap g - k^2 g = -delta.

    x: (receiver, axis, 1). In n dimensions g is (2 pi)^(-n/2) (k/r)^m K_m(k r) with m = n/2 - 1, so
    that g,i is x_i times order 1, and g,ij is x_i x_j times order 2 plus delta_ij times order 1.
    """
    r = np.sqrt((x**2).sum(axis=1, keepdims=True))
    half = x.shape[1] / 2.0
    bessel = half - 1.0 + order
    scale = (-1.0) ** order * (2.0 * np.pi) ** -half
    return scale * (k / r) ** bessel * kv(bessel, k * r)


def _at(speed: Speed, s: Complex) -> Any:
    """Return a speed at s, a number or an array."""
    return speed(s) if isinstance(speed, Relaxing) else speed


def _p_minus_s(order: int, s: Complex, x: Real, vp: Any, vs: Any) -> Complex:
    """Return `_radial` of P minus that of S, which a fluid lacks."""
    of_p = _radial(order, s / vp, x)
    return of_p - _radial(order, s / vs, x) if np.all(vs != 0.0) else of_p


def _pressure_share(vp: Any, vs: Any, ndim: int) -> Any:
    """Return the pressure in a P wave over that in a fluid: (lam + 2 mu / n) / (lam + 2 mu)."""
    return 1.0 - (2.0 - 2.0 / ndim) * (vs / vp) ** 2


def _reflection(
    k: Complex, s: complex, vp_fluid: float, rho_fluid: float, vp: float, vs: float, rho: float
) -> Complex:
    """Return the pressure reflection coefficient, from pressure over displacement on both sides.

    The half space of a solid has rho s^2 R / g_vp, with R the Rayleigh function over (s/vs)^4 (Aki
    and Richards, 2002, section 5.2, with s_xz = 0); this form holds for vs = 0 too.
    """
    p, in_fluid = (np.sqrt(k**2 + (s / c) ** 2) for c in (vp, vp_fluid))
    x = (vs * k / s) ** 2
    rayleigh = (1.0 + 2.0 * x) ** 2 - 4.0 * x * vs * p * np.sqrt((vs * k) ** 2 + s**2) / s**2
    solid, fluid = rho * rayleigh / p, rho_fluid / in_fluid
    return (solid - fluid) / (solid + fluid)


def _over_wavenumbers(
    kernel: Callable[[Complex, complex], Complex],
    frequencies: Complex,
    x: float,
    depth: float,
    slowest: float,
    fastest: float,
) -> Complex:
    """Return the integral of kernel(k, s) exp(i k x) / (2 pi) over all real k, for x >= 0.

    kernel decreases as exp(-|k| depth). For a positive frequency its singularities in the upper
    half plane are between i s / slowest and the imaginary axis, in the second quadrant. The path
    goes below them along the real axis and turns upwards beyond them, where exp(i k x) decreases.
    """
    left, right = np.exp(0.75j * np.pi), np.exp(0.25j * np.pi)
    ray, ray_weight = _gauss(4)
    sums: list[Complex] = []
    for s in frequencies:
        turn = 1.2 * abs(s) / slowest
        # The singularities are as far from the path as s.real / fastest
        node, weight = _gauss(1 + int(turn * x / 20.0 + 0.3 * turn * fastest / s.real))
        # Nodes of the rays are close to each other where the kernel changes on the scale of s
        scale = abs(s) / fastest
        end = np.arcsinh(40.0 * np.sqrt(2.0) / ((x + depth) * scale))
        far, far_weight = scale * np.sinh(end * ray), ray_weight * scale * end * np.cosh(end * ray)
        k = np.concatenate((-turn + left * far, -turn * node, right * far))
        step = np.concatenate((-left * far_weight, turn * weight, right * far_weight))
        sums.append(kernel(k, s) @ (np.exp(1j * k * x) * step))
    return np.stack(sums, axis=-1) / (2.0 * np.pi)


def _gauss(panels: int) -> tuple[Real, Real]:
    """Return nodes and weights from 0 to 1 of Gauss and Legendre's rule of 20 points, in panels."""
    node, weight = np.polynomial.legendre.leggauss(20)
    first = np.arange(panels)[:, None]
    return ((first + (node + 1.0) / 2.0) / panels).ravel(), np.tile(weight / (2.0 * panels), panels)
