"""Tests of the watch: signals in the middle of a step, and ranks that hang."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from hpcfwi.parallel import watch
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.store import Server, Store, make_secret
from tests.parallel.faults.watched import GRACE, HEARTBEAT_WAIT
from tests.ranks import make_env, run_ranks

PROGRAM = "tests.parallel.faults.watched"
# The program, the number of ranks, and the rank to which something happens
SCENES = [
    ("stop_in_a_long_step", 1, 0),
    *(("stop_in_a_long_step", 3, rank) for rank in range(3)),
    ("stop_while_others_wait", 3, 0),
    ("stop_while_others_wait", 3, 2),
    ("stop_in_a_short_step", 3, 0),
    ("stop_in_a_short_step", 3, 1),
    *(("fall_silent", 3, rank) for rank in range(3)),
    ("hang", 3, 0),
    ("hang", 3, 2),
    ("work_slowly", 3, 1),
    ("wait_for_the_disk", 3, 0),
]
SAVED = ["rank 0 saves", "rank 0 has saved"]


@dataclass(frozen=True)
class End:
    """The end of a program: the first exit code that is not 0, and the output of its ranks."""

    code: int
    seconds: float
    output: list[str]
    errors: list[str]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, int, int], End]:
    """The ends of all scenes, which run at the same time since they mostly sleep."""
    folder = tmp_path_factory.mktemp("watched")
    names = ["-".join(map(str, scene)) for scene in SCENES]
    words = " ".join(names).replace("-", " ").split()
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM, "--fork", str(folder), *words],
        env=make_env({"TORCH_CPP_LOG_LEVEL": "ERROR"}),
        timeout=150,
    )
    assert done.returncode == 0
    found = json.loads((folder / "ends.json").read_text())

    def read(name: str) -> list[str]:
        return (folder / name).read_text().splitlines()

    return {
        scene: End(*found[name], read(f"{name}.stdout"), read(f"{name}.stderr"))
        for scene, name in zip(SCENES, names, strict=True)
    }


@pytest.mark.parametrize(("size", "rank"), [(1, 0), (3, 0), (3, 1), (3, 2)])
def test_step_longer_than_the_grace_period_is_given_up_after_a_checkpoint(ends, size, rank):
    end = ends["stop_in_a_long_step", size, rank]
    assert end.code == 3
    assert end.output == SAVED * 2, "once when the signal comes, once at the end"
    assert end.errors == [
        "hpcfwi: stopped by SIGUSR1 during epoch 7; the same command continues from epoch 6"
    ]
    assert end.seconds > GRACE


@pytest.mark.parametrize("rank", [0, 2])
def test_step_is_given_up_if_others_wait_for_the_signalled_rank(ends, rank):
    end = ends["stop_while_others_wait", 3, rank]
    assert end.code == 3
    assert end.output == SAVED * 2
    assert [line.split("; ")[0] for line in end.errors] == [
        "hpcfwi: stopped by SIGTERM during epoch 7"
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_step_within_the_grace_period_is_kept_and_its_checkpoint_completes(ends, rank):
    end = ends["stop_in_a_short_step", 3, rank]
    assert end.code == 3
    assert end.errors == ["hpcfwi: stopped by SIGTERM after epoch 7"]
    assert end.seconds > 2 * GRACE


@pytest.mark.parametrize("rank", range(3))
def test_frozen_process_ends_the_job_with_its_rank_and_host(ends, rank):
    end = ends["fall_silent", 3, rank]
    assert end.code == 1
    assert end.errors[0].startswith(f"hpcfwi: rank {rank} on node7 has not answered for ")
    assert end.errors[0].endswith(" s (last seen in its start): the job is ended")
    assert end.output == [], "nothing is saved from the middle of a failure"
    assert end.seconds > HEARTBEAT_WAIT


@pytest.mark.parametrize("rank", [0, 2])
def test_rank_whose_computation_never_returns_ends_the_job(ends, rank):
    end = ends["hang", 3, rank]
    assert end.code == 1
    assert end.errors[0].startswith(f"hpcfwi: rank {rank} on node7 has not answered for ")
    assert end.errors[0].endswith(" s (last seen in epoch 7): the job is ended")


@pytest.mark.parametrize(("name", "rank"), [("work_slowly", 1), ("wait_for_the_disk", 0)])
def test_slow_work_and_a_slow_disk_do_not_end_the_job(ends, name, rank):
    end = ends[name, 3, rank]
    assert (end.code, end.errors) == (0, [])
    assert end.seconds > HEARTBEAT_WAIT


def test_stopped_ranks_under_mpirun_exit_together_without_an_abort():
    done = run_ranks(2, ["-m", PROGRAM, "stop_in_a_long_step", "1"], warm=True, code=3)
    assert done.stdout.splitlines() == SAVED * 2
    assert "continues from epoch 6" in done.stderr
    assert "MPI_ABORT" not in done.stderr
    assert "finalize" not in done.stderr


def test_frozen_rank_0_under_mpirun_leaves_no_process():
    done = run_ranks(2, ["-m", PROGRAM, "fall_silent", "0"], code=1)
    assert "rank 0 on " in done.stderr
    assert "has not answered for " in done.stderr
    for _ in range(50):
        left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if is_left(path)]
        if not left:
            break
        time.sleep(0.1)
    assert not left


def is_left(cmdline: Path) -> bool:
    try:
        return PROGRAM.encode() in cmdline.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("word", "code", "signal"),
    [
        ("3", 3, None),
        ("1", 1, None),
        ("SIGTERM", None, "SIGTERM"),
        ("0", None, None),
        ("-1", None, None),
        ("SIGKILL", None, None),
        ("", None, None),
    ],
)
def test_rank_exits_only_for_a_failure_or_a_stop(word, code, signal):
    secret = make_secret()
    server = Server("127.0.0.1", secret)
    store = Store(server.place, secret, timedelta(seconds=10), server)
    context = replace(Context.alone(), rank=1, size=2, store=store)
    client = watch._StoreClient(context, "watch")
    store.set("watch/order", word)
    client._carry()
    assert (client.code, client.job_signal) == (code, signal)
    store.close()


def test_clock_ignores_the_time_in_which_the_machine_sleeps(monkeypatch):
    seconds = iter([0.0, 1.0, 2.5, 3600.0, 3601.0, 3500.0])
    monkeypatch.setattr(watch.time, "monotonic", lambda: next(seconds))
    clock = watch._Clock(2.0)
    assert [clock.read() for _ in range(4)] == [1.0, 2.5, 4.5, 5.5]


def test_ranks_wait_until_all_are_connected_to_the_store_of_rank_0() -> None:
    program = ["-m", "tests.parallel.programs", "hold_the_gil_after_the_watch_starts"]
    done = run_ranks(2, program, warm=True)
    assert done.stdout == "soon True\nsoon True\n"
