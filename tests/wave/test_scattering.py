"""Tests of the scattered field, the exact derivative of the discrete scheme."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from hpcfwi.wave import Boundary, Recompute, Snapshots
from hpcfwi.wave.history import History
from tests.ranks import long_form
from tests.wave.engines.cpu.test_engine import threads
from tests.wave.examples import (
    Shots,
    random_shots,
    relative,
    smooth_shots,
    white_direction,
    white_residual,
)
from tests.wave.test_gradient import LONG_STEP, schemes
from tests.wave.transposes import scattering_error

ENGINES = pytest.mark.parametrize("engine", ["eager", "cpu"])
SOLID = {"shape": (9, 8, 10), "spacing": (9.0, 8.0, 10.0), "boundary": 3}


@ENGINES
@pytest.mark.parametrize("free_surface", [False, True])
@pytest.mark.parametrize("on_grid", [False, True])
@pytest.mark.parametrize("dt", [1e-3, LONG_STEP])
def test_scattering_passes_the_dot_product_test(
    engine: str, free_surface: bool, on_grid: bool, dt: float
) -> None:
    shots = random_shots(
        free_surface=free_surface, on_grid=on_grid, dt=dt, sources=2, samples=20, engine=engine
    )
    assert scattering_error(shots) < 1e-12


@pytest.mark.parametrize(("engine", "order"), [("eager", 8), ("cpu", 8), long_form("eager", 4)])
def test_scattering_passes_the_dot_product_test_in_three_dimensions(
    engine: str, order: int
) -> None:
    shots = random_shots(**SOLID, samples=15, order=order, free_surface=True, engine=engine)
    assert scattering_error(shots) < 1e-12


@settings(max_examples=6)
@given(schemes)
def test_cpu_engine_scattering_agrees_with_jvp_of_torch_for_any_scheme(
    scheme: dict[str, object],
) -> None:
    shots = random_shots(**scheme)  # type: ignore[arg-type]
    direction = white_direction(shots)
    expected, found = (
        shots.simulate(engine=engine).scatter(direction) for engine in ("eager", "cpu")
    )
    assert relative(found, expected) < 1e-12
    assert scattering_error(shots, engine="cpu") < 1e-12


@pytest.mark.parametrize(
    "history",
    [
        Snapshots(5),
        Snapshots(5, format="int8"),
        Snapshots(5, format="float16"),
        Boundary(5),
        Boundary(1),
        Recompute(5, states=2),
        Recompute(1, states=3),
    ],
)
@pytest.mark.parametrize("shape", [(25, 33), (14, 19, 21)])
def test_scattering_passes_the_dot_product_test_with_every_history(
    shape: tuple[int, ...], history: History
) -> None:
    spacing = (8.0, 11.0, 9.0)[: len(shape)]
    shots = random_shots(
        shape=shape, spacing=spacing, boundary=5, samples=50, free_surface=True, engine="cpu"
    )
    assert scattering_error(shots, history=history) < 1e-12


@pytest.mark.parametrize("history", [Snapshots(1), Boundary(1), Recompute(1, states=2)])
def test_scattering_and_backpropagation_can_be_repeated_in_any_order(history: History) -> None:
    shots = random_shots(engine="cpu", history=history)
    direction = white_direction(shots)
    simulation = shots.simulate()
    residual = white_residual(simulation.data)
    expected = simulation.backpropagate(residual).model["vp"]
    scattered = simulation.scatter(direction)
    for _ in range(2):
        assert torch.equal(simulation.scatter(direction), scattered)
        assert torch.equal(simulation.backpropagate(residual).model["vp"], expected)
    other = shots.simulate()
    assert torch.equal(other.scatter(direction), scattered)
    assert torch.equal(other.backpropagate(residual).model["vp"], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scattering_passes_the_dot_product_test_in_windows(dtype: torch.dtype) -> None:
    """The cpu engine computes only a window of a long line."""
    shots = replace(smooth_shots(samples=160), vp=torch.full((61, 900), 2000.0, dtype=dtype))
    for history in (Snapshots(3), Boundary(3), Recompute(3, states=2)):
        tolerance = 1e-12 if dtype == torch.float64 else 1e-4
        assert scattering_error(shots, engine="cpu", history=history) < tolerance


def remainders(shots: Shots, steps: tuple[float, ...]) -> list[float]:
    """Return the change of the traces less its first order, relative to the first order."""
    direction = white_direction(shots)
    simulation = shots.simulate()
    first = simulation.scatter(direction)
    return [
        float(
            (replace(shots, vp=shots.vp + h * direction["vp"]).acoustic() - simulation.data)
            .sub(h * first)
            .norm()
            / (h * first).norm()
        )
        for h in steps
    ]


@ENGINES
@pytest.mark.parametrize("order", [4, 8])
@pytest.mark.parametrize("dt", [1e-3, LONG_STEP])
def test_remainder_of_the_scattered_field_is_of_second_order(
    engine: str, order: int, dt: float
) -> None:
    """By Taylor's theorem, the relative remainder is proportional to the step."""
    shots = random_shots(engine=engine, order=order, dt=dt, free_surface=True, shots=2)
    coarse, fine = remainders(shots, (1.0, 0.5))
    assert coarse / fine == pytest.approx(2.0, rel=0.02)
    assert remainders(shots, (1e-4,))[0] < 1e-5


@ENGINES
def test_window_of_a_model_scatters_like_a_model_of_its_own(engine: str) -> None:
    shots = random_shots(engine=engine, on_grid=True)
    inside = replace(
        shots, sources=np.full((3, 2), [80.0, 110.0]), receivers=np.full((3, 1, 2), [96.0, 220.0])
    )
    part = (slice(2, 20), slice(5, 30))
    origin = np.array([2 * 8.0, 5 * 11.0])
    alone = replace(
        inside,
        vp=inside.vp[part],
        sources=inside.sources - origin,
        receivers=inside.receivers - origin,
    )
    direction = white_direction(alone)
    found = inside.simulate(window=part).scatter(direction)
    assert relative(found, alone.simulate().scatter(direction)) < 1e-12


@pytest.mark.parametrize("count", [1, 2, 3])
def test_threads_that_share_a_shot_do_not_change_its_bits(count: int) -> None:
    shots = random_shots(shape=(120, 70), shots=1, free_surface=True, engine="cpu")
    direction = white_direction(shots)
    expected = shots.simulate().scatter(direction)
    with threads(count):
        found = [
            shots.simulate(history=kept).scatter(direction)
            for kept in (Snapshots(1), Recompute(1, states=1))
        ]
    assert all(torch.equal(one, expected) for one in found)


@ENGINES
def test_shot_scatters_the_same_alone_and_in_a_batch(engine: str) -> None:
    shots = random_shots(engine=engine)
    direction = white_direction(shots)
    together = shots.simulate().scatter(direction)
    last = replace(
        shots, wavelet=shots.wavelet[2:], sources=shots.sources[2:], receivers=shots.receivers[2:]
    )
    assert relative(last.simulate().scatter(direction), together[2:]) < 1e-14


@ENGINES
def test_scattering_without_a_history_is_refused(engine: str) -> None:
    shots = random_shots(engine=engine, samples=4)
    with pytest.raises(RuntimeError, match="keep=True"):
        shots.simulate(keep=False).scatter(white_direction(shots))
