"""A shot's bits on the cpu engine depend on nothing but the shot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcfwi.wave import Snapshots
from tests.wave.examples import Shots, random_shots, white_residual


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def results(shots: Shots, residual: Tensor) -> tuple[Tensor, ...]:
    """Traces, gradients and illuminations, shot by shot."""
    simulation = shots.simulate(engine="cpu")
    gradients = simulation.backpropagate(residual)
    assert gradients.source_illumination is not None
    assert gradients.receiver_illumination is not None
    return (
        simulation.data,
        gradients.vp,
        gradients.wavelet,
        gradients.source_illumination,
        gradients.receiver_illumination,
    )


def some_of(shots: Shots, chosen: list[int]) -> Shots:
    return replace(
        shots,
        wavelet=shots.wavelet[chosen],
        sources=shots.sources[chosen],
        receivers=shots.receivers[chosen],
    )


def mixed_shots(dtype: torch.dtype, **options: object) -> Shots:
    """Four shots; the first has its source and receivers on the grid, the others have not."""
    shots = random_shots(shots=4, **options)  # type: ignore[arg-type]
    on_grid = random_shots(shots=4, on_grid=True)
    sources, receivers = shots.sources.copy(), shots.receivers.copy()
    sources[0], receivers[0] = on_grid.sources[0], on_grid.receivers[0]
    return replace(shots, vp=shots.vp.to(dtype), sources=sources, receivers=receivers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("free_surface", [False, True])
@pytest.mark.parametrize("dt", [1e-3, 4e-3])
def test_a_shot_has_the_same_bits_alone_and_in_any_batch(
    dtype: torch.dtype, free_surface: bool, dt: float
) -> None:
    shots = mixed_shots(dtype, free_surface=free_surface, dt=dt, history=Snapshots(3))
    residual = white_residual(shots.simulate(keep=False).data)
    together = results(shots, residual)
    for batch in ([0], [1], [3, 0], [2, 1, 3]):
        for found, expected in zip(
            results(some_of(shots, batch), residual[batch]), together, strict=True
        ):
            assert torch.equal(found, expected[batch])


def test_a_shot_has_the_same_bits_with_any_number_of_threads() -> None:
    shots = mixed_shots(torch.float32)
    residual = white_residual(shots.simulate(keep=False).data)
    with threads(1):
        expected = results(shots, residual)
    for count in (2, 3):
        with threads(count):
            found = results(shots, residual)
        assert all(map(torch.equal, found, expected))


def test_memory_that_is_used_again_carries_nothing_over_from_the_last_simulation() -> None:
    shots = random_shots()
    residual = white_residual(shots.simulate(keep=False).data)
    expected = results(shots, residual)
    results(replace(shots, wavelet=torch.full_like(shots.wavelet, np.nan)), residual)
    assert all(map(torch.equal, results(shots, residual), expected))


def test_two_simulations_that_live_at_once_do_not_share_their_memory() -> None:
    shots = random_shots()
    louder = replace(shots, wavelet=10.0 * shots.wavelet)
    residual = white_residual(shots.simulate(keep=False).data)
    expected = results(shots, residual)[1]
    simulation = shots.simulate(engine="cpu")
    other = louder.simulate(engine="cpu")
    assert torch.equal(simulation.backpropagate(residual).vp, expected)
    assert not torch.equal(other.backpropagate(residual).vp, expected)
