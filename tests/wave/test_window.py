"""Tests of simulations in a window of the model, and of the memory that a history needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hpcfwi.wave import Auto, Boundary, Recompute, Snapshots
from hpcfwi.wave.engines import eager
from hpcfwi.wave.engines.cpu import engine as cpu
from hpcfwi.wave.history import NothingFits
from hpcfwi.wave.simulation import set_up
from tests.wave.examples import NAMES, Shots, by_name, random_shots, white_residual

WINDOW = (slice(0, 25), slice(10, 50))


def shots_in_the_window(**options: object) -> tuple[Shots, Shots]:
    """Return the same shots on a model and on a model that is only the window."""
    part = random_shots(shape=(25, 40), spacing=(8.0, 10.0), **options)  # type: ignore[arg-type]
    shift = np.array([0.0, 10 * 10.0])
    vp = torch.full((25, 70), 1900.0, dtype=part.vp.dtype)
    vp[WINDOW] = part.vp
    sources, receivers = part.sources + shift, part.receivers + shift
    return replace(part, vp=vp, sources=sources, receivers=receivers), part


@pytest.mark.parametrize("engine", ["cpu", "eager"])
@pytest.mark.parametrize("on_grid", [True, False])
def test_window_equals_a_separate_model_of_its_part(engine: str, on_grid: bool) -> None:
    whole, part = shots_in_the_window(on_grid=on_grid)
    windowed, alone = whole.simulate(engine=engine, window=WINDOW), part.simulate(engine=engine)
    torch.testing.assert_close(windowed.data, alone.data, rtol=1e-9, atol=1e-12)
    residual = white_residual(alone.data)
    found, expected = windowed.backpropagate(residual), alone.backpropagate(residual)
    assert found.model["vp"].shape == (3, 25, 40)
    for name in NAMES:
        torch.testing.assert_close(by_name(found)[name], by_name(expected)[name])


def test_substeps_in_a_window_are_those_of_the_whole_model() -> None:
    whole, part = shots_in_the_window()
    whole.vp[20, 65] = 6000.0
    options = {"window": WINDOW, "max_velocity": None}
    assert part.simulate(max_velocity=None).substeps == 1
    assert whole.simulate(**options).substeps == 2


def test_points_outside_the_window_are_refused() -> None:
    whole, _ = shots_in_the_window()
    with pytest.raises(ValueError, match="outside the model"):
        whole.simulate(window=(slice(0, 25), slice(10, 30)))


def choose_history(shots: Shots, **options: object) -> tuple[object, int]:
    method, others = shots.split(**options)
    task = set_up({"vp": shots.vp}, shots.spacing, shots.acquisition, method, **others)
    chosen = task.choose_history()
    return chosen, task.footprint(chosen)


def test_history_and_its_memory_are_known_without_a_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shots = random_shots()
    monkeypatch.delattr(eager, "forward")
    for history in (Snapshots(2), Boundary(3, format="int8"), Recompute(1, states=4)):
        kept, needed = choose_history(shots, engine="eager", history=history)
        assert kept == history
        assert needed == eager.footprint(shots_problem(shots, history), 40)


def shots_problem(shots: Shots, history: object) -> object:
    return replace(shots.simulate(engine="cpu", keep=False)._problem, history=history)


def test_choice_of_history_within_a_memory_fits_or_raises() -> None:
    shots = random_shots()
    kept, needed = choose_history(
        shots, engine="cpu", history=Auto(2, kind="snapshots", memory=10**9)
    )
    assert kept == Snapshots(2)
    assert needed == cpu.footprint(shots_problem(shots, Snapshots(2)), 40)
    with pytest.raises(NothingFits) as error:
        choose_history(shots, engine="cpu", history=Auto(2, memory=1000))
    assert 1000 < error.value.needed <= needed


def test_window_needs_less_memory_than_the_model() -> None:
    whole, part = shots_in_the_window()
    assert (
        choose_history(whole, window=WINDOW)[1]
        == choose_history(part)[1]
        < choose_history(whole)[1]
    )


def test_simulation_without_a_history_needs_no_memory_for_it() -> None:
    assert random_shots().simulate(history=Auto(memory=1), keep=False).data.shape == (3, 4, 40)
