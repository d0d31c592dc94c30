"""Tests of the recovery from the death of ranks, under Open MPI 5 with fault tolerance."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from functools import partial

import pytest
import torch

from hpcfwi.parallel.context import Context
from hpcfwi.parallel.recovery import Salvage, raise_if_rank_failed, retry_after_death
from tests.openmpi import FAULT_TOLERANT, find_open_mpi
from tests.ranks import long_form, messages, run_ranks

PROGRAM = ["-m", "tests.parallel.programs"]
PATIENCE = 90.0  # s, after which ranks are assumed to hang


@pytest.fixture(scope="session")
def run_on_ranks():
    """Return a `run_ranks` under an mpirun with fault tolerance; skip if there is none.

    With warm ranks, mpirun learns of a death from the process that represents the rank, later than
    the other ranks do. On a busy machine, they may wait too long, unless their program allows it.
    """
    mpirun, env = find_open_mpi()

    def run(n: int, program: str, tolerant: bool = True, warm: bool = True, **more: str):
        launcher = (mpirun, *(FAULT_TOLERANT if tolerant else ()))
        return run_ranks(n, [*PROGRAM, program], {**env, **more}, PATIENCE, launcher, warm, None)

    return run


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


@pytest.mark.parametrize("dead", [0, long_form(1)], ids=["the sender dies", "the receiver dies"])
def test_death_during_a_message_does_not_block_the_other_ranks(run_on_ranks, dead):
    done = run_on_ranks(3, "die_during_a_message", DEAD=str(dead))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "left 2 True\n"
    assert "Died: rank" in done.stderr


def test_survivors_that_do_not_connect_in_time_try_again(run_on_ranks):
    done = run_on_ranks(4, "connect_too_late")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "left 3 tries 2\n"


def test_rank_with_an_exception_ends_the_job_with_one_message(run_on_ranks):
    done = run_on_ranks(3, "exception_in_recoverable_work")
    assert done.returncode == 1
    told = messages(done.stderr)
    assert len(told) == 1, done.stderr
    assert told[0].startswith("hpcfwi: rank 1 on ")
    assert "RuntimeError: a defect of rank 1" in done.stderr


def test_death_outside_recoverable_work_ends_the_job_with_a_message(run_on_ranks):
    done = run_on_ranks(3, "kill_last", warm=False)
    assert done.returncode == 1
    told = messages(done.stderr)
    assert told
    assert all(": rank 2 on " in message for message in told), told
    assert "Traceback" not in done.stderr


def test_death_without_fault_tolerance_ends_the_job(run_on_ranks):
    done = run_on_ranks(3, "outlive", tolerant=False, DEATHS="2:0")
    assert done.returncode not in (0, 3)
    assert "Died: rank" not in done.stderr


def test_work_without_fault_tolerance_runs_once_and_raises_its_errors():
    calls: list[str] = []
    context = Context.alone()
    assert retry_after_death(context, partial(calls.append, "once")) is None
    assert calls == ["once"]
    raise_if_rank_failed(context)
    with pytest.raises(RuntimeError, match="by itself"):
        retry_after_death(context, partial(_raise, RuntimeError("by itself")))


def test_salvage_resumes_the_same_work_after_a_death():
    salvage: Salvage[list[int]] = Salvage(replace(Context.alone(), fault_tolerant=True))
    model = torch.ones(2)
    mine = salvage.take_up([], "epoch 7", model)
    mine.append(3)
    assert salvage.take_up([], "epoch 7", torch.ones(2)) is mine
    assert salvage.gather(mine) == [3]
    assert salvage.take_up([], "epoch 7", 2 * model) == []
    assert salvage.take_up([], "epoch 7", model) == [], "only the last work is kept"


def test_salvage_does_not_copy_the_model():
    salvage: Salvage[list[int]] = Salvage(replace(Context.alone(), fault_tolerant=True))
    model = torch.ones(2**20)
    tracemalloc.start()
    try:
        salvage.take_up([], "epoch 7", model)
        assert tracemalloc.get_traced_memory()[1] < model.nbytes / 4
    finally:
        tracemalloc.stop()


def test_salvage_keeps_nothing_without_fault_tolerance():
    salvage: Salvage[list[int]] = Salvage(Context.alone())
    salvage.take_up([1], "epoch 7")
    assert salvage.take_up([], "epoch 7") == []
    assert salvage.gather([1]) == []


def _raise(error: Exception) -> None:
    raise error
