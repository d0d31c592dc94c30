"""Choice of the history and of the number of shots at a time for the memory of a run."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace

import pytest
import torch

from hpcfwi.config import load_config
from hpcfwi.config.values import count_bytes
from hpcfwi.errors import InputError
from hpcfwi.inversion.memory import (
    choose_history_and_chunk,
    count_forward_shots,
    estimate_overhead,
    find_shares,
    most_at_a_time,
)
from hpcfwi.inversion.preparation import prepare
from hpcfwi.operators import simulator as batching
from hpcfwi.parallel.context import Context
from hpcfwi.wave import Snapshots
from tests.inversion.examples import prepared, write_input

CPU = torch.device("cpu")


def test_memory_for_waves_excludes_overhead_unless_a_limit_is_given(monkeypatch, tmp_path):
    monkeypatch.setattr(batching, "memory_at_hand", lambda _: 10**9)
    experiment = prepared(tmp_path)
    overhead = estimate_overhead(experiment, ranks=1, rank=0)
    for has_state in (False, True):
        (share,), _ = find_shares(experiment, experiment.survey, Context.alone(), has_state)
        assert share.reserved == overhead.ahead(CPU, has_state)
        assert share.each_shot == overhead.each_shot
        assert share.memory == 10**9 - share.reserved
    config = load_config(write_input(tmp_path, {"wave.memory": "3 kB"}))
    given = replace(experiment, config=config)
    monkeypatch.setattr(batching, "free_on", lambda _: 10**9)
    for has_state, room in ((False, 10**9 - overhead.ahead(CPU, False)), (True, sys.maxsize)):
        (share,), _ = find_shares(given, given.survey, Context.alone(), has_state)
        assert (share.memory, share.room) == (3000, room), (
            "a limit is refused before a run, not during it"
        )


def test_cpu_simulates_a_shot_per_thread_and_gpu_all_shots_of_its_rank(tmp_path):
    section = load_config(write_input(tmp_path)).inversion
    cpu = Context(0, 3, 0, "node1", CPU, 4)
    gpu = replace(cpu, device=torch.device("cuda:0"))
    few, many = (section.model_copy(update={"batch": batch}) for batch in (2, 8))
    assert [most_at_a_time(section, 20, cpu) for section in (few, many)] == [2, 4]
    assert [most_at_a_time(section, 20, gpu) for section in (few, many)] == [1, 3]
    dynamic = many.model_copy(update={"schedule": "dynamic"})
    assert most_at_a_time(dynamic, 20, gpu) == 1, "shots are left for the rank that is ready first"


@pytest.fixture(scope="module")
def choose_with(tmp_path_factory):
    """Return a function that chooses a simulator and chunks for changes of the config."""
    folder = tmp_path_factory.mktemp("resources")

    def choose(changes, threads=2, batch=8):
        config = load_config(write_input(folder, {"inversion.batch": batch, **changes}))
        context = Context.alone(threads=threads)
        experiment = prepare(config, context)
        model = experiment.initial.as_tensors(context.device)
        simulator = experiment.simulator(experiment.initial)
        return choose_history_and_chunk(simulator, model, experiment, context, has_state=True)

    return choose


def test_chosen_history_is_logged_in_one_line_and_used(choose_with, caplog):
    caplog.set_level(logging.INFO, "hpcfwi")
    simulator, chunks = choose_with({"wave.memory": "1 GB"})
    kept = simulator.method.history
    assert isinstance(kept, Snapshots)
    assert (kept.interval, kept.format, chunks.size) == (None, "float16", 2)
    assert kept.frequency > 8.0, "sampling does not depend on substeps"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("History: snapshots, every 3 steps, ")
    assert line.endswith("kB per shot; 2 shots at a time")


def bytes_of_a_shot(choose_with, changes):
    """Return the least memory for these changes, from the error message, plus 5 %."""
    with pytest.raises(InputError) as error:
        choose_with({**changes, "wave.memory": "1 B"})
    size = error.value.problem.removeprefix("the simulation of one shot takes ").split(",")[0]
    return 1.05 * count_bytes(size)


def test_memory_limit_for_one_shot_gives_one_shot_at_a_time(choose_with):
    fixed = {"wave.history": {"interval": 1}}
    needed = bytes_of_a_shot(choose_with, fixed)
    simulator, chunks = choose_with({**fixed, "wave.memory": f"{needed} B"})
    assert simulator.method.history.interval == 1
    assert chunks.size == 1
    assert choose_with({**fixed, "wave.memory": f"{2 * needed} B"})[1].size == 2
    with pytest.raises(InputError, match=r"one shot takes .* MB, but a rank may take only "):
        choose_with({**fixed, "wave.memory": f"{0.5 * needed} B"})


def test_windows_reduce_memory_of_a_shot(choose_with):
    fixed = {"wave.history": {"interval": 1}}
    near = {"wave.aperture": 100.0, "inversion.max_offset": 100.0}
    whole, window = (bytes_of_a_shot(choose_with, {**fixed, **more}) for more in ({}, near))
    assert window < 0.8 * whole
    choose_with({**fixed, **near, "wave.memory": f"{window} B"})


def test_aperture_without_effect_is_logged_with_the_remedy(choose_with, caplog):
    caplog.set_level(logging.INFO, "hpcfwi")
    choose_with({"wave.aperture": 100.0})
    assert "100 % of the model's cells" in caplog.text
    assert "inversion.max_offset" in caplog.text
    caplog.clear()
    choose_with({"wave.aperture": 100.0, "inversion.max_offset": 100.0})
    assert "inversion.max_offset" not in caplog.text


def test_forward_simulates_as_many_shots_at_a_time_as_fit_in_memory(monkeypatch, tmp_path):
    experiment = prepared(tmp_path)
    context = Context.alone(threads=4)
    monkeypatch.setattr(batching, "memory_at_hand", lambda _: 10**9)
    assert count_forward_shots(experiment, context, is_loaded=True) == 4
    monkeypatch.setattr(batching, "memory_at_hand", lambda _: 1)
    with pytest.raises(InputError, match="the simulation of one shot takes") as error:
        count_forward_shots(experiment, context, is_loaded=True)
    size = error.value.problem.removeprefix("the simulation of one shot takes ").split(",")[0]
    monkeypatch.setattr(batching, "memory_at_hand", lambda _: int(2.5 * count_bytes(size)))
    assert count_forward_shots(experiment, context, is_loaded=True) == 2
    with pytest.raises(InputError, match=r"besides the program; on .* are free of the .* of "):
        count_forward_shots(experiment, context, is_loaded=False)
