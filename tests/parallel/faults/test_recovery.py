"""Ranks that die, and the others, which go on: under Open MPI 5 with its fault tolerance on."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from functools import partial

import pytest
import torch

from hpcfwi.parallel.context import Context
from hpcfwi.parallel.recovery import Salvage, poll_deaths, retry_after_death
from tests.openmpi import FAULT_TOLERANT, find_open_mpi
from tests.ranks import long_form, run_ranks

PROGRAM = ["-m", "tests.parallel.programs"]
PATIENCE = 90.0  # s, after which ranks are taken to hang


@pytest.fixture(scope="session")
def run_on_ranks():
    """`run_ranks` under an mpirun with fault tolerance; skips where none can be had.

    Warm, mpirun learns of a death from what stands for the rank, later than the others do, which
    have to wait for it: on a busy machine perhaps for too long, unless their program bears that.
    """
    mpirun, env = find_open_mpi()

    def run(n: int, program: str, tolerant: bool = True, warm: bool = True, **more: str):
        launcher = (mpirun, *(FAULT_TOLERANT if tolerant else ()))
        return run_ranks(n, [*PROGRAM, program], {**env, **more}, PATIENCE, launcher, warm)

    return run


def messages(errors: str) -> list[str]:
    return [line for line in errors.splitlines() if line.startswith("hpcfwi: ")]


@pytest.mark.parametrize(
    ("victims", "pause"),
    [((1, 0), 0.03), long_form((2, 3, 0), 0.5)],
    ids=[
        "rank 0 while the others recover from rank 1",
        "one after the other until one is left",
    ],
)
def test_surviving_ranks_continue_with_the_same_sums(run_on_ranks, victims, pause):
    moment = random.uniform(0.0, 0.3)
    deaths = " ".join(f"{rank}:{moment + k * pause}" for k, rank in enumerate(victims))
    done = run_on_ranks(4, "outlive", DEATHS=deaths)
    assert done.returncode == 3, (deaths, done.stderr)
    assert done.stdout == f"left {4 - len(victims)}\n", deaths
    assert "Died: rank" in done.stderr
    assert messages(done.stderr) == []


@pytest.mark.parametrize("dead", [0, long_form(1)], ids=["who sent it", "who was to receive it"])
def test_a_death_while_a_message_is_half_on_its_way_keeps_nobody_waiting(run_on_ranks, dead):
    done = run_on_ranks(3, "lose_a_message_on_its_way", DEAD=str(dead))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "left 2 True\n"
    assert "Died: rank" in done.stderr


def test_ranks_that_do_not_find_each_other_in_time_after_a_death_try_again(run_on_ranks):
    done = run_on_ranks(4, "connect_too_late")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "left 3 tries 2\n"


def test_a_rank_with_an_error_of_its_own_ends_the_job_and_is_the_only_one_to_speak(run_on_ranks):
    done = run_on_ranks(3, "defect_while_others_could_go_on")
    assert done.returncode == 1
    told = messages(done.stderr)
    assert len(told) == 1, done.stderr
    assert told[0].startswith("hpcfwi: rank 1 on ")
    assert "RuntimeError: a defect of rank 1" in done.stderr


def test_a_death_where_the_others_cannot_go_on_ends_the_job_and_is_told(run_on_ranks):
    done = run_on_ranks(3, "kill_last", warm=False)
    assert done.returncode == 1
    told = messages(done.stderr)
    assert told
    assert all(": rank 2 on " in message for message in told), told
    assert "Traceback" not in done.stderr


def test_without_fault_tolerance_a_death_ends_the_job(run_on_ranks):
    done = run_on_ranks(3, "outlive", tolerant=False, DEATHS="2:0")
    assert done.returncode not in (0, 3)
    assert "Died: rank" not in done.stderr


def test_where_ranks_do_not_survive_work_is_run_once_and_its_errors_are_raised():
    calls: list[str] = []
    context = Context.alone()
    assert retry_after_death(context, partial(calls.append, "once")) is None
    assert calls == ["once"]
    poll_deaths(context)
    with pytest.raises(RuntimeError, match="by itself"):
        retry_after_death(context, partial(_raise, RuntimeError("by itself")))


def test_what_was_done_before_a_death_is_taken_up_where_the_same_is_to_be_done():
    salvage: Salvage[list[int]] = Salvage(replace(Context.alone(), fault_tolerant=True))
    model = torch.ones(2)
    mine = salvage.take_up([], "epoch 7", model)
    mine.append(3)
    assert salvage.take_up([], "epoch 7", torch.ones(2)) is mine
    assert salvage.gather(mine) == [3]
    assert salvage.take_up([], "epoch 7", 2 * model) == []
    assert salvage.take_up([], "epoch 7", model) == [], "only what was done last is kept"


def test_to_see_whether_it_is_the_same_no_copy_of_the_model_is_made():
    salvage: Salvage[list[int]] = Salvage(replace(Context.alone(), fault_tolerant=True))
    model = torch.ones(2**20)
    tracemalloc.start()
    try:
        salvage.take_up([], "epoch 7", model)
        assert tracemalloc.get_traced_memory()[1] < model.nbytes / 4
    finally:
        tracemalloc.stop()


def test_where_no_death_is_survived_nothing_is_kept():
    salvage: Salvage[list[int]] = Salvage(Context.alone())
    salvage.take_up([1], "epoch 7")
    assert salvage.take_up([], "epoch 7") == []
    assert salvage.gather([1]) == []


def _raise(error: Exception) -> None:
    raise error
