"""How far a way back is from being the transpose of a way forward: zero but for rounding."""

from __future__ import annotations

from tests.wave.examples import Shots, white_direction, white_residual


def transposition_error(shots: Shots) -> float:
    """<F w, d> - <w, F^T d>, F being linear in the wavelet, relative to what <F w, d> is.

    For white d that is |F w| |d| over the square root of their length; 0 where F w is zero.
    """
    simulation = shots.simulate()
    residual = white_residual(simulation.data)
    forward = (simulation.data * residual).sum()
    backward = shots.wavelet.flatten() @ simulation.backpropagate(residual).wavelet.flatten()
    size = simulation.data.norm() * residual.norm() / residual.numel() ** 0.5
    return float(abs(forward - backward) / size) if size > 0.0 else 0.0


def scattering_error(shots: Shots, **changes: object) -> float:
    """<J d, r> - <d, J^T r>, relative to what <J d, r> is for a white r."""
    simulation = shots.simulate(illuminate=False, **changes)
    direction, residual = white_direction(shots), white_residual(simulation.data)
    scattered = simulation.scatter(direction)
    forward = (scattered.double() * residual.double()).sum()
    gradient = simulation.backpropagate(residual).model["vp"].sum(0)
    backward = (direction["vp"] * gradient.double()).sum()
    size = scattered.norm() * residual.norm() / residual.numel() ** 0.5
    return float(abs(forward - backward) / size) if size > 0.0 else 0.0
