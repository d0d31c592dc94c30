"""A simulation of a part of the model, and what a history would take, known beforehand."""

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
    """The same shots on a model and on the part of it that is the window."""
    part = random_shots(shape=(25, 40), spacing=(8.0, 10.0), **options)  # type: ignore[arg-type]
    shift = np.array([0.0, 10 * 10.0])
    vp = torch.full((25, 70), 1900.0, dtype=part.vp.dtype)
    vp[WINDOW] = part.vp
    sources, receivers = part.sources + shift, part.receivers + shift
    return replace(part, vp=vp, sources=sources, receivers=receivers), part


@pytest.mark.parametrize("engine", ["cpu", "eager"])
@pytest.mark.parametrize("on_grid", [True, False])
def test_a_window_is_a_model_of_its_own_and_positions_stay_those_of_the_whole(
    engine: str, on_grid: bool
) -> None:
    whole, part = shots_in_the_window(on_grid=on_grid)
    windowed, alone = whole.simulate(engine=engine, window=WINDOW), part.simulate(engine=engine)
    torch.testing.assert_close(windowed.data, alone.data, rtol=1e-9, atol=1e-12)
    residual = white_residual(alone.data)
    found, expected = windowed.backpropagate(residual), alone.backpropagate(residual)
    assert found.model["vp"].shape == (3, 25, 40)
    for name in NAMES:
        torch.testing.assert_close(by_name(found)[name], by_name(expected)[name])


def test_steps_are_divided_as_the_whole_model_asks_for_though_the_window_is_slower() -> None:
    whole, part = shots_in_the_window()
    whole.vp[20, 65] = 6000.0
    options = {"window": WINDOW, "max_velocity": None}
    assert part.simulate(max_velocity=None).substeps == 1
    assert whole.simulate(**options).substeps == 2


def test_points_outside_the_window_are_refused() -> None:
    whole, _ = shots_in_the_window()
    with pytest.raises(ValueError, match="outside the model"):
        whole.simulate(window=(slice(0, 25), slice(10, 30)))


def weigh(shots: Shots, **options: object) -> tuple[object, int]:
    method, others = shots.split(**options)
    task = set_up({"vp": shots.vp}, shots.spacing, shots.acquisition, method, **others)
    chosen = task.choose_history()
    return chosen, task.footprint(chosen)


def test_the_history_that_a_simulation_would_take_is_known_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shots = random_shots()
    monkeypatch.delattr(eager, "forward")
    for history in (Snapshots(2), Boundary(3, format="int8"), Recompute(1, states=4)):
        kept, needed = weigh(shots, engine="eager", history=history)
        assert kept == history
        assert needed == eager.footprint(shots_problem(shots, history), 40)


def shots_problem(shots: Shots, history: object) -> object:
    return replace(shots.simulate(engine="cpu", keep=False)._problem, history=history)


def test_a_choice_within_a_memory_is_the_fastest_that_fits_or_an_error() -> None:
    shots = random_shots()
    kept, needed = weigh(shots, engine="cpu", history=Auto(2, kind="snapshots", memory=10**9))
    assert kept == Snapshots(2)
    assert needed == cpu.footprint(shots_problem(shots, Snapshots(2)), 40)
    with pytest.raises(NothingFits) as error:
        weigh(shots, engine="cpu", history=Auto(2, memory=1000))
    assert 1000 < error.value.needed <= needed


def test_a_window_takes_less() -> None:
    whole, part = shots_in_the_window()
    assert weigh(whole, window=WINDOW)[1] == weigh(part)[1] < weigh(whole)[1]


def test_a_simulation_that_keeps_nothing_needs_no_memory_for_it() -> None:
    assert random_shots().simulate(history=Auto(memory=1), keep=False).data.shape == (3, 4, 40)
