"""Tests of the cpu engine: the bits of a shot depend only on the shot."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcfwi.wave import Boundary, Recompute, Snapshots
from hpcfwi.wave.engines.cpu import teams
from hpcfwi.wave.engines.cpu.layout import make_grid
from hpcfwi.wave.history import History, Span, describe
from tests.wave.examples import Shots, random_shots, relative, smooth_shots, white_residual


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def results(shots: Shots, residual: Tensor) -> tuple[Tensor, ...]:
    """Return traces, gradients and illuminations for each shot."""
    simulation = shots.simulate(engine="cpu")
    gradients = simulation.backpropagate(residual)
    assert gradients.source_illumination is not None
    assert gradients.receiver_illumination is not None
    return (
        simulation.data,
        gradients.model["vp"],
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
    """Return four shots; only the first has its source and receivers on the grid."""
    shots = random_shots(shots=4, **options)  # type: ignore[arg-type]
    on_grid = random_shots(shots=4, on_grid=True)
    sources, receivers = shots.sources.copy(), shots.receivers.copy()
    sources[0], receivers[0] = on_grid.sources[0], on_grid.receivers[0]
    return replace(shots, vp=shots.vp.to(dtype), sources=sources, receivers=receivers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("free_surface", [False, True])
@pytest.mark.parametrize("dt", [1e-3, 4e-3])
def test_shot_has_the_same_bits_alone_and_in_any_batch(
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


def test_shot_has_the_same_bits_with_any_number_of_threads() -> None:
    shots = mixed_shots(torch.float32)
    residual = white_residual(shots.simulate(keep=False).data)
    with threads(1):
        expected = results(shots, residual)
    for count in (2, 3):
        with threads(count):
            found = results(shots, residual)
        assert all(map(torch.equal, found, expected))


def test_reused_memory_does_not_affect_the_next_simulation() -> None:
    shots = random_shots()
    residual = white_residual(shots.simulate(keep=False).data)
    expected = results(shots, residual)
    results(
        replace(
            shots, wavelet=torch.full_like(shots.wavelet, torch.finfo(shots.wavelet.dtype).max)
        ),
        residual,
    )
    assert all(map(torch.equal, results(shots, residual), expected))


def test_simultaneous_simulations_do_not_share_memory() -> None:
    shots = random_shots()
    louder = replace(shots, wavelet=10.0 * shots.wavelet)
    residual = white_residual(shots.simulate(keep=False).data)
    expected = results(shots, residual)[1]
    simulation = shots.simulate(engine="cpu")
    other = louder.simulate(engine="cpu")
    assert torch.equal(simulation.backpropagate(residual).model["vp"], expected)
    assert not torch.equal(other.backpropagate(residual).model["vp"], expected)


def long_line(dtype: torch.dtype, **options: object) -> Shots:
    """Return two shots whose waves do not reach the ends of the model."""
    shots = random_shots(
        shape=(90, 300), spacing=(5.0, 5.0), shots=2, receivers=3, samples=200, **options
    )  # type: ignore[arg-type]
    sources = np.array([[15.0, 753.0], [434.0, 1055.0]])
    near = np.array([[0.0, 40.0], [-12.0, -233.0], [5.0, 0.0]])
    return replace(
        shots,
        vp=shots.vp.to(dtype),
        sources=sources,
        receivers=np.clip(sources[:, None] + near, 0.0, [445.0, 1495.0]),
    )


@pytest.mark.parametrize("free_surface", [False, True])
def test_cells_outside_the_window_do_not_change_the_results(free_surface: bool) -> None:
    shots = long_line(torch.float64, free_surface=free_surface)
    residual = white_residual(shots.simulate(keep=False).data)
    expected = shots.simulate(engine="eager").backpropagate(residual)
    for illuminate in (False, True):
        simulation = shots.simulate(engine="cpu", illuminate=illuminate)
        rows, columns = 90 + 14 - 7 * free_surface, 320
        for kept in simulation._state.histories:  # type: ignore[union-attr]
            assert kept.windows[0, 3] - kept.windows[0, 2] < rows
            assert (kept.windows[:6, 5] - kept.windows[:6, 4] < columns).all()
        found = simulation.backpropagate(residual)
        assert relative(found.model["vp"], expected.model["vp"]) < 1e-12
        assert relative(found.wavelet, expected.wavelet) < 1e-12


def test_simultaneous_sources_far_apart_give_the_sum_of_their_waves() -> None:
    shots = smooth_shots(samples=60)
    apart = np.array([[[20.0, 20.0], [590.0, 790.0], [20.0, 790.0]]])
    shots = replace(shots, sources=apart, options={**shots.options, "engine": "cpu"})
    alone = [replace(shots, sources=apart[:, k]).acoustic() for k in range(3)]
    assert all(trace.norm() > 0.0 for trace in alone)
    assert relative(shots.acoustic(), torch.stack(alone).sum(0)) < 1e-12


@pytest.mark.parametrize(
    "history",
    [Snapshots(3), Snapshots(3, format="float16"), Boundary(3), Recompute(3, states=4)],
    ids=describe,
)
def test_illuminations_do_not_change_a_bit_of_the_gradient(history: History) -> None:
    shots = long_line(torch.float32, history=history)
    residual = white_residual(shots.simulate(keep=False).data)
    without, with_them = (
        shots.simulate(illuminate=asked).backpropagate(residual) for asked in (False, True)
    )
    assert without.source_illumination is without.receiver_illumination is None
    assert torch.equal(without.model["vp"], with_them.model["vp"])
    assert torch.equal(without.wavelet, with_them.wavelet)


def test_waves_outside_the_window_do_not_grow_in_the_adjoint() -> None:
    shots = random_shots(
        shape=(20, 500), spacing=(5.0, 5.0), shots=1, receivers=40, samples=900, boundary=20
    )
    shots = replace(shots, vp=shots.vp.float(), sources=np.array([[20.0, 30.0]]))
    residual = white_residual(shots.simulate(keep=False).data)
    without, with_them = (
        shots.simulate(illuminate=asked).backpropagate(residual).model["vp"]
        for asked in (False, True)
    )
    assert relative(without, with_them) < 1e-5


def test_interrupt_stops_all_shots_after_their_current_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid, pieces = make_grid((40, 40)), [0, 0, 0]
    monkeypatch.setattr(teams, "UPDATES_PER_PIECE", 1)

    def simulate(shot: int, size: int) -> None:
        def work(span: Span, team: teams.ThreadTeam) -> None:  # noqa: ARG001
            pieces[shot] += 1
            time.sleep(0.001)
            if shot == 0 and pieces[1] > 5:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                time.sleep(0.1)

        teams.run_team(size, grid, (0, 12_000), work)

    with threads(2), pytest.raises(KeyboardInterrupt):
        teams.each_shot(simulate, 3, grid)
    assert 5 < pieces[1] < 3000
    assert pieces[0] < 3000
    assert pieces[2] == 0
