"""Choice of the history and of the number of shots at a time for the memory of the ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import pytest
import torch

from hpcfwi.errors import InputError
from hpcfwi.operators import simulator as batching
from hpcfwi.operators.simulator import (
    Aperture,
    MemoryPlan,
    MemoryShare,
    largest_task,
    plan_memory,
    share_of_rank,
)
from hpcfwi.parallel.context import Context
from hpcfwi.wave import Auto, Boundary, Recompute, Snapshots
from hpcfwi.wave.engines import choose as choose_engine
from hpcfwi.wave.history import KINDS, History, choose
from tests.inversion.examples import prepared

EXACT = Auto(7, exact=True)


@dataclass(frozen=True)
class Shot:
    """A task of 20 bytes, and 100 of full snapshots, 80 of a full boundary, or 10 per state."""

    asked: Auto | History

    def footprint(self, history):
        if isinstance(history, Recompute):
            return 20 + 10 * history.states
        size = 100 if isinstance(history, Snapshots) else 80
        return 20 + size * {"full": 4, "float16": 2, "int8": 1}[history.format] // 4

    def choose_history(self):
        if not isinstance(self.asked, Auto):
            return self.asked
        return choose(self.asked, KINDS, self.asked.memory, self.footprint)


def fit(ranks, asked=EXACT, reproducible=False):
    """Return the history, bytes of a shot and shots at a time, for ranks (memory, most_at_once)."""
    found = plan_memory(Shot(asked), [MemoryShare(*rank) for rank in ranks], reproducible)
    return found.history, found.shot, found.at_once


class Three(Context):
    """The context of one of three ranks, the first and the last of which share a host."""

    def all_gather(self, value):
        _, beside = value
        return [("node1", beside), ("node2", beside), ("node1", beside)]


def test_free_memory_is_shared_by_ranks_of_a_host(monkeypatch):
    monkeypatch.setattr(batching, "memory_at_hand", lambda _: 800)
    monkeypatch.setattr(batching, "free_on", lambda _: 1000)
    cpu = Three(0, 3, 0, "node1", torch.device("cpu"), 4)
    assert share_of_rank(cpu, 4, reserved=100) == MemoryShare(300, 4, 100, 0, 400)
    assert share_of_rank(replace(cpu, host="node2"), 4, reserved=100) == MemoryShare(
        700, 4, 100, 0, 900
    )
    gpu = replace(cpu, device=torch.device("cuda:0"))
    assert share_of_rank(gpu, 4, reserved=100) == MemoryShare(700, 4, 100, 0, 900)
    two = replace(gpu, sharers=2)
    assert share_of_rank(two, 4, reserved=100) == MemoryShare(300, 4, 100, 0, 400), (
        "two ranks share the GPU"
    )
    assert share_of_rank(cpu, 4, 100, 7, limit=3000) == MemoryShare(3000, 4, 100, 7, 400)


def test_engine_buffers_are_released_before_memory_is_measured(monkeypatch):
    calls = []
    monkeypatch.setattr(batching, "release_buffers", lambda: calls.append("let go"))
    monkeypatch.setattr(batching, "memory_at_hand", lambda _: calls.append("look") or 800)
    share_of_rank(Context.alone(), 1)
    assert calls == ["let go", "look"]


def test_memory_of_a_shot_besides_its_waves_is_reserved():
    assert plan_memory(Shot(EXACT), [MemoryShare(520, 4, each_shot=10)], False) == MemoryPlan(
        Snapshots(7), 120, 4
    )
    found = plan_memory(Shot(EXACT), [MemoryShare(519, 4, each_shot=10)], False)
    assert found.history == Snapshots(7, format="float16")
    message = r"30 B, but a rank may take only 29 B besides 70 B for engine, models, sums and data"
    with pytest.raises(InputError, match=message):
        plan_memory(Shot(EXACT), [MemoryShare(89, 1, reserved=10, each_shot=60)], False)


def test_memory_limit_above_room_of_a_rank_is_refused():
    shares = [MemoryShare(480, 4, 50, room=480), MemoryShare(480, 4, 50, room=479)]
    assert plan_memory(Shot(EXACT), shares[:1], False).at_once == 4
    message = r"4 shots at a time take 480 B, but rank 1 has room for 479 B besides 50 B for engine"
    with pytest.raises(InputError, match=message):
        plan_memory(Shot(EXACT), shares, False)


@pytest.mark.parametrize(
    ("node", "kept"),
    [
        (480, Snapshots(7)),
        (479, Snapshots(7, format="float16")),
        (180, Snapshots(7, format="int8")),
        (120, Recompute(7, states=1)),
    ],
)
def test_history_does_not_depend_on_number_of_ranks_sharing_a_node(node, kept):
    for size, threads in ((1, 4), (2, 2), (4, 1)):
        ranks = [(node // size, threads)] * size
        assert fit(ranks) == (kept, Shot(EXACT).footprint(kept), threads)
        assert fit(3 * ranks)[0] == kept, "on three nodes"


def test_fewer_shots_run_at_a_time_if_no_history_fits_all_threads():
    assert fit([(119, 4)]) == (Recompute(7, states=1), 30, 3)
    assert fit([(59, 4)]) == (Snapshots(7, format="int8"), 45, 1)


def test_rank_with_least_memory_per_shot_decides_history_for_all():
    assert fit([(480, 4), (70, 1), (1000, 1)])[0] == Snapshots(7, format="float16")
    assert fit([(480, 4), (60, 2)])[::2] == (Recompute(7, states=1), 4)


def test_reproducible_inversion_takes_fastest_history_that_fits_one_shot():
    """The history is the same for any number of ranks and threads with room for one shot."""
    for ranks, most in (([(480, 8)], 4), ([(240, 4)] * 2, 2), ([(121, 3), (900, 1)], 1)):
        assert fit(ranks, reproducible=True) == (Snapshots(7), 120, most)
    assert fit([(119, 4)], reproducible=True)[0] == Snapshots(7, format="float16")
    with pytest.raises(InputError, match=r"30 B, .* 29 B"):
        fit([(29, 4)], reproducible=True)


def test_reproducible_recomputation_may_keep_fewer_states_for_more_shots():
    asked = Auto(7, kind="recompute", exact=True)
    assert fit([(120, 4)], asked, reproducible=True) == (Recompute(7, states=1), 30, 4)


def test_given_history_is_kept_and_limits_shots_at_a_time():
    assert fit([(399, 4)], Boundary(7)) == (Boundary(7), 100, 3)
    with pytest.raises(InputError, match=r"one shot takes 100 B, but a rank may take only 99 B"):
        fit([(99, 4)], Boundary(7))


def test_error_for_one_shot_too_large_gives_sizes_and_remedy():
    with pytest.raises(InputError, match=r"wave\.memory: .* 30 B, .* 29 B\. .*wave\.aperture"):
        fit([(480, 4), (29, 4)])


def test_largest_task_is_shot_with_largest_window(tmp_path):
    near = {"wave.aperture": 200.0, "inversion.max_offset": 200.0}
    experiment = prepared(tmp_path, near)
    simulator, survey = experiment.simulator(experiment.initial), experiment.survey
    initial = experiment.initial.as_tensors(torch.device("cpu"))
    costs = simulator.aperture.costs(simulator.grid, survey)
    task = largest_task(simulator, initial, survey, costs)
    windows = Aperture(200.0, 200.0).find_windows(experiment.initial.grid, survey)
    sizes = [prod(end - first for first, end in window.cells) for window in windows]
    assert prod(task.problem.like.shape) == max(sizes)
    assert min(sizes) < max(sizes) < 30 * 60


def test_history_that_engine_does_not_support_is_an_error(tmp_path, monkeypatch):
    changes = {"wave.engine": "cpu", "wave.history": "boundary"}
    monkeypatch.setattr(choose_engine("cpu", torch.device("cpu")), "HISTORIES", ("snapshots",))
    experiment = prepared(tmp_path, changes)
    simulator, model = experiment.simulator(experiment.initial), experiment.initial
    with pytest.raises(InputError, match=r"wave\.history: history is boundary; this engine has"):
        largest_task(
            simulator, model.as_tensors(torch.device("cpu")), experiment.survey, np.ones(1)
        )
