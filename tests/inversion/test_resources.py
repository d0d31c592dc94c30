"""Which history a run has, and how many shots at a time, for the memory of its ranks."""

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
    find_shares,
    fit_forward,
    most_at_a_time,
    weigh_upkeep,
)
from hpcfwi.inversion.preparation import prepare
from hpcfwi.operators import batching
from hpcfwi.parallel.context import Context
from hpcfwi.wave import Snapshots
from tests.inversion.examples import write_input

CPU = torch.device("cpu")


def test_upkeep_is_left_out_of_what_waves_may_take_unless_that_is_given(monkeypatch, tmp_path):
    monkeypatch.setattr(batching, "memory_at_hand", lambda _: 10**9)
    experiment = prepare(load_config(write_input(tmp_path)), Context.alone())
    upkeep = weigh_upkeep(experiment, ranks=1, rank=0)
    for has_state in (False, True):
        (share,), _ = find_shares(experiment, experiment.survey, Context.alone(), has_state)
        assert share.beside == upkeep.ahead(CPU, has_state)
        assert share.each_shot == upkeep.each_shot
        assert share.memory == 10**9 - share.beside
    config = load_config(write_input(tmp_path, {"wave.memory": "3 kB"}))
    given = replace(experiment, config=config)
    monkeypatch.setattr(batching, "free_on", lambda _: 10**9)
    for has_state, room in ((False, 10**9 - upkeep.ahead(CPU, False)), (True, sys.maxsize)):
        (share,), _ = find_shares(given, given.survey, Context.alone(), has_state)
        assert (share.memory, share.room) == (3000, room), "refused before a run, not within"


def test_a_thread_of_a_cpu_has_a_shot_at_a_time_and_a_gpu_all_of_its_rank(tmp_path):
    section = load_config(write_input(tmp_path)).inversion
    cpu = Context(0, 3, 0, "node1", CPU, 4)
    gpu = replace(cpu, device=torch.device("cuda:0"))
    few, many = (section.model_copy(update={"batch": batch}) for batch in (2, 8))
    assert [most_at_a_time(section, 20, cpu) for section in (few, many)] == [2, 4]
    assert [most_at_a_time(section, 20, gpu) for section in (few, many)] == [1, 3]
    dynamic = many.model_copy(update={"schedule": "dynamic"})
    assert most_at_a_time(dynamic, 20, gpu) == 1, "so that some are left for whoever is first"


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    """Simulator and chunks with so much memory and other changes."""
    folder = tmp_path_factory.mktemp("resources")

    def settle_with(changes, threads=2, batch=8):
        config = load_config(write_input(folder, {"inversion.batch": batch, **changes}))
        context = Context.alone(threads=threads)
        experiment = prepare(config, context)
        model = experiment.initial.as_tensors(context.device)
        simulator = experiment.simulator(experiment.initial)
        return choose_history_and_chunk(simulator, model, experiment, context, has_state=True)

    return settle_with


def test_the_choice_is_told_in_one_line_and_reaches_the_simulation(settled, caplog):
    caplog.set_level(logging.INFO, "hpcfwi")
    simulator, chunks = settled({"wave.memory": "1 GB"})
    kept = simulator.method.history
    assert isinstance(kept, Snapshots)
    assert (kept.interval, kept.format, chunks.size) == (None, "float16", 2)
    assert kept.frequency > 8.0, "so that samples stay as far apart whatever the substeps"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("History: snapshots, every 3 steps, ")
    assert line.endswith("kB a shot; 2 shots at a time")


def bytes_of_a_shot(settled, changes):
    """The least memory with which these changes are good: what the error says it takes."""
    with pytest.raises(InputError) as error:
        settled({**changes, "wave.memory": "1 B"})
    size = error.value.problem.removeprefix("the simulation of one shot takes ").split(",")[0]
    return 1.05 * count_bytes(size)


def test_a_limit_that_one_shot_fits_leaves_one_at_a_time(settled):
    told = {"wave.history": {"interval": 1}}
    needed = bytes_of_a_shot(settled, told)
    simulator, chunks = settled({**told, "wave.memory": f"{needed} B"})
    assert simulator.method.history.interval == 1
    assert chunks.size == 1
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


def test_observed_data_are_simulated_as_many_shots_at_a_time_as_fit_or_refused(
    monkeypatch, tmp_path
):
    experiment = prepare(load_config(write_input(tmp_path)), Context.alone())
    context = Context.alone(threads=4)
    monkeypatch.setattr(batching, "memory_at_hand", lambda _: 10**9)
    assert fit_forward(experiment, context, is_loaded=True) == 4
    monkeypatch.setattr(batching, "memory_at_hand", lambda _: 1)
    with pytest.raises(InputError, match="the simulation of one shot takes") as error:
        fit_forward(experiment, context, is_loaded=True)
    size = error.value.problem.removeprefix("the simulation of one shot takes ").split(",")[0]
    monkeypatch.setattr(batching, "memory_at_hand", lambda _: int(2.5 * count_bytes(size)))
    assert fit_forward(experiment, context, is_loaded=True) == 2
    with pytest.raises(InputError, match=r"beside the program; on .* are free of the .* of "):
        fit_forward(experiment, context, is_loaded=False)
