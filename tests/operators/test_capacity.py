"""Which history shots have, and how many at a time, for the memory of the ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import pytest
import torch

from hpcfwi.config import load_config
from hpcfwi.errors import InputError
from hpcfwi.inversion.preparation import prepare
from hpcfwi.operators import batching
from hpcfwi.operators.batching import Fit, Share, fit_shots, largest_task, share_of_rank
from hpcfwi.operators.simulator import Aperture
from hpcfwi.parallel.context import Context
from hpcfwi.wave import Auto, Boundary, Recompute, Snapshots
from hpcfwi.wave.engines import load
from hpcfwi.wave.history import KINDS, History, choose
from tests.inversion.examples import write_input

EXACT = Auto(7, exact=True)


@dataclass(frozen=True)
class Shot:
    """A task: 100 bytes of snapshots or 80 of perimeter in full, or 10 a state; and 20 more."""

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
    """History, bytes of a shot and shots at a time, for ranks of (memory, slots)."""
    found = fit_shots(Shot(asked), [Share(*rank) for rank in ranks], reproducible)
    return found.history, found.shot, found.at_once


class Three(Context):
    """One of three ranks, two of them on a host; each takes 100 bytes beside its waves."""

    def all_gather(self, value):
        _, beside = value
        return [("node1", beside), ("node2", beside), ("node1", beside)]


def test_what_is_free_and_not_needed_otherwise_is_shared_by_the_ranks_of_a_host(monkeypatch):
    monkeypatch.setattr(batching, "memory_at_hand", lambda _: 800)
    monkeypatch.setattr(batching, "free_on", lambda _: 1000)
    cpu = Three(0, 3, 0, "node1", torch.device("cpu"), 4)
    assert share_of_rank(cpu, 4, beside=100) == Share(300, 4, 100, 0, 400)
    assert share_of_rank(replace(cpu, host="node2"), 4, beside=100) == Share(700, 4, 100, 0, 900)
    gpu = replace(cpu, device=torch.device("cuda:0"))
    assert share_of_rank(gpu, 4, beside=100) == Share(700, 4, 100, 0, 900)
    two = replace(gpu, sharers=2)
    assert share_of_rank(two, 4, beside=100) == Share(300, 4, 100, 0, 400), "that have the same GPU"
    assert share_of_rank(cpu, 4, 100, 7, limit=3000) == Share(3000, 4, 100, 7, 400)


def test_what_engines_hold_from_earlier_batches_is_free(monkeypatch):
    calls = []
    monkeypatch.setattr(batching, "let_go", lambda: calls.append("let go"))
    monkeypatch.setattr(batching, "memory_at_hand", lambda _: calls.append("look") or 800)
    share_of_rank(Context.alone(), 1)
    assert calls == ["let go", "look"]


def test_what_a_shot_takes_beside_its_waves_has_room_as_well():
    assert fit_shots(Shot(EXACT), [Share(520, 4, each_shot=10)], False) == Fit(Snapshots(7), 120, 4)
    found = fit_shots(Shot(EXACT), [Share(519, 4, each_shot=10)], False)
    assert found.history == Snapshots(7, format="float16")
    told = r"30 B, and a rank may take 29 B beside the 70 B of engine, models, sums and data"
    with pytest.raises(InputError, match=told):
        fit_shots(Shot(EXACT), [Share(89, 1, beside=10, each_shot=60)], False)


def test_a_limit_that_was_given_is_refused_where_there_is_less():
    shares = [Share(480, 4, 50, room=480), Share(480, 4, 50, room=479)]
    assert fit_shots(Shot(EXACT), shares[:1], False).at_once == 4
    told = r"4 shots at a time take 480 B, and rank 1 has room for 479 B beside the 50 B of engine"
    with pytest.raises(InputError, match=told):
        fit_shots(Shot(EXACT), shares, False)


@pytest.mark.parametrize(
    ("node", "kept"),
    [
        (480, Snapshots(7)),
        (479, Snapshots(7, format="float16")),
        (180, Snapshots(7, format="int8")),
        (120, Recompute(7, states=1)),
    ],
)
def test_ranks_that_share_a_node_and_its_threads_choose_alike_whatever_their_number(node, kept):
    for size, threads in ((1, 4), (2, 2), (4, 1)):
        ranks = [(node // size, threads)] * size
        assert fit(ranks) == (kept, Shot(EXACT).footprint(kept), threads)
        assert fit(3 * ranks)[0] == kept, "on three nodes"


def test_where_no_history_lets_all_threads_work_there_are_fewer_shots_at_a_time():
    assert fit([(119, 4)]) == (Recompute(7, states=1), 30, 3)
    assert fit([(59, 4)]) == (Snapshots(7, format="int8"), 45, 1)


def test_the_rank_with_the_least_memory_for_a_shot_decides_for_all():
    assert fit([(480, 4), (70, 1), (1000, 1)])[0] == Snapshots(7, format="float16")
    assert fit([(480, 4), (60, 2)])[::2] == (Recompute(7, states=1), 4)


def test_a_reproducible_inversion_has_the_fastest_history_of_a_single_shot_and_fewer_at_a_time():
    """However many ranks and threads there are, as long as a rank has room for one shot."""
    for ranks, most in (([(480, 8)], 4), ([(240, 4)] * 2, 2), ([(121, 3), (900, 1)], 1)):
        assert fit(ranks, reproducible=True) == (Snapshots(7), 120, most)
    assert fit([(119, 4)], reproducible=True)[0] == Snapshots(7, format="float16")
    with pytest.raises(InputError, match=r"30 B, .* 29 B"):
        fit([(29, 4)], reproducible=True)


def test_states_of_a_recomputation_are_not_in_its_bits_and_may_be_fewer_for_more_at_a_time():
    asked = Auto(7, kind="recompute", exact=True)
    assert fit([(120, 4)], asked, reproducible=True) == (Recompute(7, states=1), 30, 4)


def test_a_history_that_was_told_is_taken_and_the_shots_at_a_time_are_what_fits():
    assert fit([(399, 4)], Boundary(7)) == (Boundary(7), 100, 3)
    with pytest.raises(InputError, match=r"one shot takes 100 B, and a rank may take 99 B"):
        fit([(99, 4)], Boundary(7))


def test_not_even_one_shot_is_an_error_with_what_it_takes_and_a_remedy():
    with pytest.raises(InputError, match=r"wave\.memory: .* 30 B, .* 29 B\. .*wave\.aperture"):
        fit([(480, 4), (29, 4)])


def test_the_shot_with_the_largest_window_decides(tmp_path):
    near = {"wave.aperture": 200.0, "inversion.max_offset": 200.0}
    experiment = prepare(load_config(write_input(tmp_path, near)), Context.alone())
    simulator, survey = experiment.simulator(experiment.initial), experiment.survey
    initial = experiment.initial.as_tensors(torch.device("cpu"))
    task = largest_task(simulator, initial, survey, simulator.costs(survey))
    windows = Aperture(200.0, 200.0).find_windows(experiment.initial.grid, survey)
    sizes = [prod(end - first for first, end in window.cells) for window in windows]
    assert prod(task.problem.speed.shape) == max(sizes)
    assert min(sizes) < max(sizes) < 30 * 60


def test_a_history_that_the_engine_lacks_is_an_error(tmp_path, monkeypatch):
    changes = {"wave.engine": "cpu", "wave.history": "boundary"}
    monkeypatch.setattr(load("cpu"), "HISTORIES", ("snapshots",))
    experiment = prepare(load_config(write_input(tmp_path, changes)), Context.alone())
    simulator, model = experiment.simulator(experiment.initial), experiment.initial
    with pytest.raises(InputError, match=r"wave\.history: history is boundary; this engine has"):
        largest_task(
            simulator, model.as_tensors(torch.device("cpu")), experiment.survey, np.ones(1)
        )
