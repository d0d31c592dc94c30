"""Tests of illuminations, the time sums of squared fields, against sums over traces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.wave.examples import EXACT, Shots, random_shots, relative, smooth_shots, white_residual

SHAPE, SPACING = (9, 11), (8.0, 11.0)


def every_grid_point() -> np.ndarray:
    axes = [h * np.arange(n) for n, h in zip(SHAPE, SPACING, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)


def illuminations(shots: Shots, residual: Tensor, **options: object) -> tuple[Tensor, Tensor]:
    gradients = shots.simulate(**options).backpropagate(residual)
    assert gradients.source_illumination is not None
    assert gradients.receiver_illumination is not None
    return gradients.source_illumination, gradients.receiver_illumination


@pytest.mark.parametrize("engine", ["eager", "cpu"])
@pytest.mark.parametrize("free_surface", [False, True])
def test_source_illumination_is_the_energy_recorded_at_every_grid_point(
    engine: str, free_surface: bool
) -> None:
    shots = random_shots(shape=SHAPE, spacing=SPACING, engine=engine, free_surface=free_surface)
    everywhere = replace(shots, receivers=every_grid_point()).acoustic()
    expected = (everywhere[..., :-1] ** 2).sum(-1).reshape(-1, *SHAPE)
    found, _ = illuminations(shots, white_residual(shots.acoustic()))
    assert relative(found, expected) < 1e-12


@pytest.mark.parametrize("engine", ["eager", "cpu"])
@pytest.mark.parametrize("free_surface", [False, True])
def test_receiver_illumination_is_the_adjoint_energy_at_every_grid_point(
    engine: str, free_surface: bool
) -> None:
    shots = random_shots(shape=SHAPE, spacing=SPACING, shots=1, free_surface=free_surface)
    residual = white_residual(shots.acoustic())
    points = every_grid_point()
    # No source is on the free surface, where the adjoint field is zero
    with_wavelet = (points[..., 0] > 0.0).reshape(-1) | (not free_surface)
    sources = points[with_wavelet]
    count = len(sources)
    everywhere = replace(
        shots,
        sources=sources,
        receivers=shots.receivers.repeat(count, axis=0),
        wavelet=shots.wavelet.repeat(count, 1),
    ).simulate()
    # The gradient of a source's wavelet is the adjoint field there, per cell volume.
    field = everywhere.backpropagate(residual.repeat(count, 1, 1)).wavelet * float(np.prod(SPACING))
    expected = torch.zeros(len(points), dtype=field.dtype)
    expected[torch.tensor(with_wavelet)] = (field**2).sum(-1).reshape(-1)
    expected = expected.reshape(1, *SHAPE)
    _, found = illuminations(shots, residual, engine=engine)
    assert relative(found, expected) < 1e-12


def test_sampled_illuminations_are_close_to_the_exact_ones() -> None:
    shots = smooth_shots()
    residual = shots.acoustic()
    sampled, exact = (illuminations(shots, residual, history=kept) for kept in ("auto", EXACT))
    assert 0.0 < relative(sampled[0], exact[0]) < 1e-5
    assert 0.0 < relative(sampled[1], exact[1]) < 5e-3
