"""Tests of the histories of the cpu engine, all of which give the same gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from numba.core.event import install_recorder
from torch import Tensor

from hpcfwi.bench import make_shots
from hpcfwi.wave import Boundary, Method, Recompute, Simulation, Snapshots, warm_up
from hpcfwi.wave.engines.cpu import engine, teams
from hpcfwi.wave.engines.cpu.teams import run_team
from hpcfwi.wave.history import Format, History
from tests.wave.engines.cpu.test_engine import long_line, threads
from tests.wave.examples import EXACT, Shots, random_shots, relative, smooth_shots, white_residual

FLAT = (25, 33)
SOLID = (14, 19, 21)
KEPT = [Boundary(1), Recompute(1, states=1), Recompute(1, states=3)]


def shots_in(shape: tuple[int, ...], **options: object) -> Shots:
    spacing = (8.0, 11.0, 9.0)[: len(shape)]
    return random_shots(shape=shape, spacing=spacing, boundary=5, **options)  # type: ignore[arg-type]


def gradients(simulation: Simulation, residual: Tensor) -> tuple[Tensor, ...]:
    found = simulation.backpropagate(residual)
    assert found.source_illumination is not None
    assert found.receiver_illumination is not None
    return found.model["vp"], found.wavelet, found.source_illumination, found.receiver_illumination


@pytest.mark.parametrize("history", [EXACT, *KEPT])
@pytest.mark.parametrize("shape", [FLAT, SOLID])
@pytest.mark.parametrize("free_surface", [False, True])
def test_every_history_gives_the_exact_gradient(
    shape: tuple[int, ...], free_surface: bool, history: History
) -> None:
    shots = shots_in(shape, samples=30, free_surface=free_surface)
    reference = shots.simulate(engine="eager")
    residual = white_residual(reference.data)
    simulation = shots.simulate(engine="cpu", history=history)
    assert relative(simulation.data, reference.data) < 1e-12
    expected = gradients(reference, residual)
    for found, wanted in zip(gradients(simulation, residual), expected, strict=True):
        assert relative(found, wanted) < 1e-12


@pytest.mark.parametrize("history", KEPT)
def test_simulation_can_be_backpropagated_twice(history: History) -> None:
    simulation = shots_in(FLAT, samples=30).simulate(engine="cpu", history=history)
    residual = white_residual(simulation.data)
    first, second = (gradients(simulation, residual) for _ in range(2))
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize("kind", [Snapshots, Boundary, Recompute])
def test_every_history_samples_the_same_steps(kind: type[History]) -> None:
    shots = shots_in(FLAT, samples=50)
    residual = white_residual(shots.simulate(keep=False).data)
    expected = gradients(shots.simulate(engine="cpu", history=Snapshots(7)), residual)
    found = gradients(shots.simulate(engine="cpu", history=kind(7)), residual)
    for a, b in zip(found, expected, strict=True):
        assert relative(a, b) < 1e-12


@pytest.mark.parametrize("history", [Boundary(5), Recompute(5, states=2)])
@pytest.mark.parametrize("free_surface", [False, True])
def test_windowed_histories_give_the_same_gradient(history: History, free_surface: bool) -> None:
    shots = long_line(torch.float64, free_surface=free_surface)
    residual = white_residual(shots.simulate(keep=False).data)
    for illuminate in (False, True):
        expected, found = (
            shots.simulate(engine="cpu", history=kept, illuminate=illuminate)
            .backpropagate(residual)
            .model["vp"]
            for kept in (Snapshots(5), history)
        )
        assert relative(found, expected) < 1e-12


# Rounding error of a format, relative to the largest value in a row or to the value
RESOLUTION = {"full": 1e-6, "float32": 1e-6, "bfloat16": 2**-8, "float16": 2**-11, "int8": 1 / 127}


def loss_of(history: History) -> float:
    """Return the relative difference of the gradient from that of snapshots in full precision."""
    shots = smooth_shots(samples=400)
    shots = replace(shots, vp=shots.vp.float())
    observed = replace(shots, vp=1.03 * shots.vp).acoustic()
    exact = shots.simulate(engine="cpu", history=Snapshots(5))
    residual = exact.data - observed
    found = shots.simulate(engine="cpu", history=history).backpropagate(residual).model["vp"]
    return relative(found, exact.backpropagate(residual).model["vp"])


@pytest.mark.parametrize("format", get_args(Format))
def test_gradient_error_is_below_the_resolution_of_the_format(format: Format) -> None:
    assert loss_of(Snapshots(5, format=format)) < RESOLUTION[format]


@pytest.mark.parametrize("format", ["full", "float16"])
def test_perimeter_in_fewer_bits_rebuilds_the_field_nearly_as_well(format: Format) -> None:
    assert loss_of(Boundary(5, format=format)) < 10.0 * RESOLUTION[format]


@pytest.mark.parametrize("history", [Snapshots(3), *KEPT])
@pytest.mark.parametrize("shape", [(140, 70), (15, 40, 21)])
def test_threads_that_share_a_shot_do_not_change_its_bits(
    shape: tuple[int, ...], history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def note_size(size: int, *rest: Any, **options: Any) -> None:
        sizes.append(size)
        run_team(size, *rest, **options)

    monkeypatch.setattr(engine, "run_team", note_size)
    monkeypatch.setattr(teams, "UPDATES_PER_PIECE", 1)
    shots = shots_in(shape, shots=1, free_surface=True, samples=30)
    shots = replace(shots, vp=shots.vp.float())
    residual = white_residual(shots.simulate(keep=False).data)

    def results() -> tuple[Tensor, ...]:
        simulation = shots.simulate(engine="cpu", history=history)
        return simulation.data, *gradients(simulation, residual)

    with threads(1):
        expected = results()
    for count in (2, 3):
        sizes.clear()
        with threads(count):
            found = results()
        assert set(sizes) == {count}
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("history", [Snapshots(3), *KEPT])
@pytest.mark.parametrize("shape", [FLAT, SOLID])
def test_sweeps_in_pieces_have_the_same_bits(
    shape: tuple[int, ...], history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    shots = shots_in(shape, samples=30, free_surface=True)

    def results() -> tuple[Tensor, ...]:
        simulation = shots.simulate(engine="cpu", history=history)
        change = {"vp": torch.ones_like(shots.vp)}
        data = simulation.data
        return data, simulation.scatter(change), *gradients(simulation, white_residual(data))

    expected = results()
    monkeypatch.setattr(teams, "UPDATES_PER_PIECE", 1)
    assert all(map(torch.equal, results(), expected))


@pytest.mark.parametrize("history", [Snapshots(4), Boundary(4), Recompute(4, states=3)])
def test_threads_divide_a_small_window_and_its_receivers_equally(history: History) -> None:
    """A thread must add residuals only to the rows that it has stepped."""
    shots = make_shots((120, 200), 1, 200)
    rows = torch.arange(120)
    shots = replace(shots, receivers=torch.stack([rows, torch.full_like(rows, 100)], dim=-1))
    residual = white_residual(shots.simulate(keep=False).data)

    def gradient() -> Tensor:
        simulation = shots.simulate(keep=True, engine="cpu", history=history)
        return simulation.backpropagate(residual).model["vp"]

    with threads(1):
        expected = gradient()
    for count in (2, 3, 3, 3):
        with threads(count):
            assert torch.equal(gradient(), expected)


def test_field_without_an_absorbing_boundary_is_rebuilt_exactly() -> None:
    shots = shots_in(FLAT, samples=30)
    options = {**shots.options, "boundary": 0}
    shots = replace(shots, options=options)
    residual = white_residual(shots.simulate(keep=False).data)
    expected, found = (
        shots.simulate(engine="cpu", history=kept).backpropagate(residual).model["vp"]
        for kept in (EXACT, Boundary(1))
    )
    assert relative(found, expected) < 1e-12


@pytest.mark.parametrize("history", [EXACT, Snapshots(3, format="int8"), *KEPT])
def test_warm_up_compiles_everything_a_simulation_needs(history: History) -> None:
    shots = shots_in(FLAT, samples=30)
    warm_up(Method(order=8, engine="cpu"), {"vp": shots.vp}, scatter=True)
    with install_recorder("numba:compile") as recorder:
        simulation = shots.simulate(engine="cpu", history=history)
        simulation.backpropagate(simulation.data)
        simulation.scatter({"vp": shots.vp})
    assert not recorder.buffer
