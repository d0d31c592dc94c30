"""Tests of the pool of reused sweeps and of their estimated memory."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hpcfwi.wave import Boundary, Recompute
from hpcfwi.wave.engines.gpu import engine as gpu
from hpcfwi.wave.engines.gpu import sweep
from hpcfwi.wave.engines.gpu.device import STRETCH
from hpcfwi.wave.engines.gpu.engine import SPARE, SweepPool
from hpcfwi.wave.engines.gpu.layout import ARGUMENTS, LAUNCHES, LOOPS
from tests.wave.engines.gpu.test_engine import on_device, tiny_shots


class Spare:
    """A stand-in for a sweep, with a blueprint and a size."""

    def __init__(self, blueprint: Any, size: int) -> None:
        self.blueprint, self.count_bytes = blueprint, lambda: size


def make_pool(*spares: Any) -> Any:
    pool: Any = SweepPool()
    for spare in spares:
        pool.put(spare)
    return pool


def test_pool_keeps_the_latest_sweeps_up_to_a_number_of_bytes() -> None:
    small, large = [Spare(k, 10) for k in range(5)], Spare("large", 100)
    assert make_pool(*small).count_bytes() == 10 * SPARE
    pool = make_pool(*small, large)
    assert pool.count_bytes() == 100 + 10 * SPARE, "twice the largest sweep, without the oldest"
    assert pool.take(0 + 4, None) is small[4]
    assert pool.take("large", None) is large
    assert pool.count_bytes() == 10


def test_sweep_returned_during_a_search_is_kept() -> None:
    """The garbage collector can return a sweep at any time."""
    late = Spare("late", 10)
    pool: Any = SweepPool()

    class Interrupted(Spare):
        """A sweep that returns another one to the pool while it is compared."""

        def __init__(self) -> None:
            super().__init__(None, 10)
            self.blueprint = self

        def __eq__(self, other: object) -> bool:
            if late is not None and pool.count_bytes() == 0:
                pool.put(late)
            return other is self

        __hash__ = None  # type: ignore[assignment]

    spare = Interrupted()
    pool.put(spare)
    assert pool.take(spare, None) is spare
    assert pool.take("late", None) is late


def test_spare_sweeps_are_freed_when_memory_runs_out(monkeypatch: Any) -> None:
    pool, tries = make_pool(Spare("other", 10)), []

    def make(blueprint: Any, _: Any) -> str:
        tries.append(pool.count_bytes())
        if len(tries) == 1:
            raise torch.OutOfMemoryError("no")
        return f"made for {blueprint}"

    monkeypatch.setattr(sweep, "Sweep", make)
    assert pool.take("this", None) == "made for this"
    assert tries == [10, 0]


def test_spare_sweeps_are_freed_when_states_find_no_memory(monkeypatch: Any) -> None:
    gpu.clear()
    del on_device(tiny_shots(samples=3)).simulate(engine="gpu")._state
    tries: list[int] = []
    run = sweep.Sweep.run_forward

    def run_out(*given: Any) -> torch.Tensor:
        tries.append(gpu.idle())
        if len(tries) == 1:
            raise torch.OutOfMemoryError("no")
        return run(*given)

    monkeypatch.setattr(sweep.Sweep, "run_forward", run_out)
    shots = on_device(tiny_shots(samples=4))
    simulation = shots.simulate(engine="gpu", history=Recompute(1, states=1))
    assert simulation.data.any()
    assert tries[0] > 0
    assert tries[1:] == [0]


def test_sweep_waits_for_work_in_another_stream(
    monkeypatch: Any,
) -> None:
    """The backward pass is in another stream than the forward pass."""
    notes: list[str] = []

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            notes.append(f"{self.name} waits for {other.name}")

    streams = [Stream("first"), Stream("second")]
    now = streams[0]
    recorded: list[str] = []
    monkeypatch.setattr(sweep, "_stream", lambda _: now)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _, s: recorded.append(s.name))
    shots = on_device(tiny_shots(samples=3))
    simulation = shots.simulate(engine="gpu")
    state: Any = simulation._state
    assert notes == recorded == []
    now = streams[1]
    simulation.backpropagate(simulation.data)
    assert notes == ["second waits for first"]
    used = state.sweep
    assert set(recorded) == {"second"}
    assert len(recorded) == len([*used._list_tensors()]) >= len(used.arrays) + 6
    now = streams[0]
    used.run_scattered(state.replay, shots.vp.new_zeros(*used.blueprint.layout.shape))
    assert notes[1:] == ["first waits for second"]


def test_memory_estimate_counts_cell_lists_and_captured_launches() -> None:
    shots = on_device(tiny_shots(samples=4))
    simulation = shots.simulate(engine="gpu", history=Boundary(1))
    used = simulation._state.sweep  # type: ignore[union-attr]
    blueprint = used.blueprint
    arrays = sum(prod(shape) * dtype.itemsize for shape, dtype in blueprint.list_arrays().values())
    listed = sum(4 * kept.cells.numel() for kept in (used.samples, used.edges))
    assert listed > 0
    there = replace(blueprint, device=torch.device("cpu"))
    assert there.count_bytes() == arrays + listed
    card = replace(blueprint, device=SimpleNamespace(type="cuda"))
    assert card.count_bytes() - arrays - listed == 2 * LOOPS * STRETCH * LAUNCHES * ARGUMENTS


pytestmark = pytest.mark.usefixtures("quick_interpreter")
