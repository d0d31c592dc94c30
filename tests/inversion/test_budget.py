"""Which history a run has, and how many shots at a time, for the memory of its ranks."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from hpcfwi.config import load_config
from hpcfwi.config.values import count_bytes
from hpcfwi.errors import InputError
from hpcfwi.inversion import budget
from hpcfwi.inversion.budget import choose, memory_of_rank, most_at_a_time, settle
from hpcfwi.inversion.experiment import Physics, prepare
from hpcfwi.inversion.window import Reach
from hpcfwi.parallel.context import Context
from hpcfwi.wave import Auto, Boundary, Recompute, Snapshots
from hpcfwi.wave.history import KINDS
from hpcfwi.wave.history import choose as choose_history
from tests.inversion.examples import write_input


def weigh(memory):
    """A shot of 100 bytes of snapshots or 80 of perimeter in full, or 10 a state; and 20 more."""

    def footprint(history):
        if isinstance(history, Recompute):
            return 20 + 10 * history.states
        size = 100 if isinstance(history, Snapshots) else 80
        return 20 + size * {"full": 4, "float16": 2, "int8": 1}[history.format] // 4

    history = choose_history(Auto(7, exact=True), KINDS, memory, footprint)
    return history, footprint(history)


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
        assert choose(weigh, ranks, reproducible=False) == (kept, weigh(node // 4)[1], threads)
        assert choose(weigh, 3 * ranks, reproducible=False)[0] == kept, "on three nodes"


def test_where_no_history_lets_all_threads_work_there_are_fewer_shots_at_a_time():
    assert choose(weigh, [(119, 4)], reproducible=False) == (Recompute(7, states=1), 30, 3)
    assert choose(weigh, [(59, 4)], reproducible=False) == (Snapshots(7, format="int8"), 45, 1)


def test_the_rank_with_the_least_memory_for_a_shot_decides_for_all():
    assert choose(weigh, [(480, 4), (70, 1), (1000, 1)], reproducible=False)[0] == Snapshots(
        7, format="float16"
    )
    assert choose(weigh, [(480, 4), (60, 2)], reproducible=False)[::2] == (
        Recompute(7, states=1),
        4,
    )


def test_a_reproducible_inversion_has_the_fastest_history_of_a_single_shot_and_fewer_at_a_time():
    """However many ranks and threads there are, as long as a rank has room for one shot."""
    for ranks, most in (([(480, 8)], 4), ([(240, 4)] * 2, 2), ([(121, 3), (900, 1)], 1)):
        assert choose(weigh, ranks, reproducible=True) == (Snapshots(7), 120, most)
    assert choose(weigh, [(119, 4)], reproducible=True)[0] == Snapshots(7, format="float16")
    with pytest.raises(InputError, match=r"30 B, .* 29 B"):
        choose(weigh, [(29, 4)], reproducible=True)


def test_states_of_a_recomputation_are_not_in_its_bits_and_may_be_fewer_for_more_at_a_time():
    def recompute(memory):
        auto = Auto(7, kind="recompute", exact=True)
        history = choose_history(auto, KINDS, memory, lambda h: 20 + 10 * h.states)
        return history, 20 + 10 * history.states

    assert choose(recompute, [(120, 4)], reproducible=True) == (Recompute(7, states=1), 30, 4)


def test_a_history_that_was_told_is_taken_and_the_shots_at_a_time_are_what_fits():
    def told(_):
        return Boundary(7), 100

    assert choose(told, [(399, 4)], reproducible=False) == (Boundary(7), 100, 3)
    with pytest.raises(InputError, match=r"one shot takes 100 B, and a rank may take 99 B"):
        choose(told, [(99, 4)], reproducible=False)


def test_not_even_one_shot_is_an_error_with_what_it_takes_and_a_remedy():
    with pytest.raises(InputError, match=r"wave\.memory: .* 30 B, .* 29 B\. .*wave\.aperture"):
        choose(weigh, [(480, 4), (29, 4)], reproducible=False)


def test_a_history_that_the_engine_lacks_is_an_error():
    def refuse(_):
        raise ValueError("history is boundary; this engine has snapshots")

    with pytest.raises(InputError, match=r"wave\.history: history is boundary"):
        choose(refuse, [(480, 4)], reproducible=False)


class Neighbours(Context):
    """A rank that finds others on its host."""

    def all_gather(self, _):
        return ["node1", "node2", "node1"]


def test_what_is_free_is_shared_by_the_ranks_of_a_host(monkeypatch, tmp_path):
    monkeypatch.setattr(budget, "memory_at_hand", lambda _: 1000)
    wave = load_config(write_input(tmp_path)).wave
    cpu = Neighbours(0, 3, 0, "node1", torch.device("cpu"), 4)
    assert memory_of_rank(wave, cpu) == 500
    assert memory_of_rank(wave, replace(cpu, host="node2")) == 1000
    assert memory_of_rank(wave, replace(cpu, device=torch.device("cuda:0"))) == 1000
    assert memory_of_rank(wave.model_copy(update={"memory": "3 kB"}), cpu) == 3000


def test_a_thread_of_a_cpu_has_a_shot_at_a_time_and_a_gpu_all_of_its_rank(tmp_path):
    section = load_config(write_input(tmp_path)).inversion
    cpu = Neighbours(0, 3, 0, "node1", torch.device("cpu"), 4)
    gpu = replace(cpu, device=torch.device("cuda:0"))
    few, many = (section.model_copy(update={"batch": batch}) for batch in (2, 8))
    assert [most_at_a_time(section, cpu) for section in (few, many)] == [2, 4]
    assert [most_at_a_time(section, gpu) for section in (few, many)] == [1, 3]
    dynamic = many.model_copy(update={"schedule": "dynamic"})
    assert most_at_a_time(dynamic, gpu) == 1, "so that some are left for whoever is first"


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    """Physics and portions with so much memory and other changes."""
    folder = tmp_path_factory.mktemp("budget")

    def settle_with(changes, threads=2, batch=8):
        config = load_config(write_input(folder, {"inversion.batch": batch, **changes}))
        context = Context.alone(threads=threads)
        experiment = prepare(config, context)
        model = experiment.initial.as_tensors(context.device)
        physics = experiment.physics(experiment.initial)
        return settle(physics, model, experiment.survey, config, context)

    return settle_with


def test_the_choice_is_told_in_one_line_and_reaches_the_simulation(settled, caplog):
    caplog.set_level(logging.INFO, "hpcfwi")
    physics, portions = settled({"wave.memory": "1 GB"})
    kept = physics.method.history
    assert isinstance(kept, Snapshots)
    assert (kept.interval, kept.format, portions.size) == (None, "float16", 2)
    assert kept.frequency > 8.0, "so that samples stay as far apart whatever the substeps"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("History: snapshots, every 3 steps, ")
    assert line.endswith("KB a shot; 2 shots at a time")


def bytes_of_a_shot(settled, changes):
    """The least memory with which these changes are good: what the error says it takes."""
    with pytest.raises(InputError) as error:
        settled({**changes, "wave.memory": "1 B"})
    size = error.value.problem.removeprefix("the simulation of one shot takes ").split(",")[0]
    return 1.05 * count_bytes(size)


def test_a_limit_that_one_shot_fits_leaves_one_at_a_time(settled):
    told = {"wave.history": {"interval": 1}}
    needed = bytes_of_a_shot(settled, told)
    physics, portions = settled({**told, "wave.memory": f"{needed} B"})
    assert physics.method.history.interval == 1
    assert portions.size == 1
    assert settled({**told, "wave.memory": f"{2 * needed} B"})[1].size == 2
    with pytest.raises(InputError, match=r"one shot takes .* MB, and a rank may take "):
        settled({**told, "wave.memory": f"{0.5 * needed} B"})


def test_windows_make_a_shot_fit_that_would_not_otherwise(settled):
    told = {"wave.history": {"interval": 1}}
    near = {"wave.aperture": 100.0, "inversion.max_offset": 100.0}
    whole, window = (bytes_of_a_shot(settled, {**told, **more}) for more in ({}, near))
    assert window < 0.8 * whole
    settled({**told, **near, "wave.memory": f"{window} B"})


def test_an_aperture_that_leaves_nothing_out_is_told_with_what_would(settled, caplog):
    caplog.set_level(logging.INFO, "hpcfwi")
    settled({"wave.aperture": 100.0})
    assert "100 % of the model's cells" in caplog.text
    assert "inversion.max_offset" in caplog.text
    caplog.clear()
    settled({"wave.aperture": 100.0, "inversion.max_offset": 100.0})
    assert "inversion.max_offset" not in caplog.text


def test_the_shot_with_the_largest_window_decides(settled, monkeypatch, tmp_path):
    weighed = []

    def note(_, model, survey, window, memory):
        shape = model["vp"].shape
        weighed.append((survey.sources.tolist(), window.size, shape, memory))
        return Snapshots(3), 1

    monkeypatch.setattr(Physics, "choose_history", note)
    near = {"wave.aperture": 200.0, "inversion.max_offset": 200.0, "wave.memory": "1 MB"}
    settled({**near, "inversion.reproducible": False})
    experiment = prepare(load_config(write_input(tmp_path, near)), Context.alone())
    survey = experiment.survey
    sizes = [w.size for w in Reach(200.0, 200.0).find_windows(experiment.initial.grid, survey)]
    assert weighed == [(survey.sources[[np.argmax(sizes)]].tolist(), max(sizes), (30, 60), 500_000)]
    assert min(sizes) < max(sizes) < 30 * 60
