"""Dot-product tests of simulations and of scattering."""

from __future__ import annotations

from tests.wave.examples import Shots, white_direction, white_residual


def transposition_error(shots: Shots) -> float:
    """Return <F w, d> - <w, F^T d> relative to the expected size of <F w, d>; F w are the traces.

    For white noise d, that size is |F w| |d| over the square root of their length. The error is 0
    if F w is zero.
    """
    simulation = shots.simulate()
    residual = white_residual(simulation.data)
    forward = (simulation.data * residual).sum()
    backward = shots.wavelet.flatten() @ simulation.backpropagate(residual).wavelet.flatten()
    size = simulation.data.norm() * residual.norm() / residual.numel() ** 0.5
    return float(abs(forward - backward) / size) if size > 0.0 else 0.0


def scattering_error(shots: Shots, **changes: object) -> float:
    """Return <J d, r> - <d, J^T r> relative to the expected size of <J d, r> for white noise r."""
    simulation = shots.simulate(illuminate=False, **changes)
    direction, residual = white_direction(shots), white_residual(simulation.data)
    scattered = simulation.scatter(direction)
    forward = (scattered.double() * residual.double()).sum()
    gradient = simulation.backpropagate(residual).model["vp"].sum(0)
    backward = (direction["vp"] * gradient.double()).sum()
    size = scattered.norm() * residual.norm() / residual.numel() ** 0.5
    return float(abs(forward - backward) / size) if size > 0.0 else 0.0
