"""Tests of starting and ending ranks under mpirun, torchrun and plain Python."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest
import torch

import hpcfwi
from hpcfwi.errors import InputError, InversionFailure, StepFailure, Stopped
from hpcfwi.parallel import launch as start_of_ranks
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.failure import exit_code, run_guarded
from tests.ranks import make_env, messages, run_ranks, warm_python

PROGRAM = ["-m", "tests.parallel.programs"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# Warm ranks start faster and end like others.
run_warm = partial(run_ranks, warm=True)
TIMEOUT = 60.0  # s


def start(*arguments: str, **env: str) -> subprocess.Popen[str]:
    return start_words(sys.executable, *arguments, **env)


def start_words(*words: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        env=make_env(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for a process; end it and the ranks of torchrun after a timeout."""
    try:
        output, errors = process.communicate(timeout=TIMEOUT)
    except BaseException:
        process.terminate()  # on SIGTERM, torchrun ends its ranks
        try:
            process.wait(timeout=15)
        finally:
            process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@pytest.mark.parametrize(
    ("tolerant", "share_gpus", "cards", "expected"),
    [
        (False, False, 2, "cpu:gloo,cuda:nccl"),
        (False, True, 2, "gloo"),
        (True, False, 2, "gloo"),
        (False, False, 0, "gloo"),
    ],
)
def test_nccl_is_used_only_if_each_rank_has_its_own_gpu(
    tolerant, share_gpus, cards, expected, monkeypatch
):
    asked = []

    def init_process_group(backend, **_):
        asked.append(backend)
        raise KeyboardInterrupt

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(start_of_ranks, "check_files", lambda _: None)
    monkeypatch.setattr(start_of_ranks, "open_store", lambda *_: Mock())
    monkeypatch.setattr("torch.cuda.device_count", lambda: cards)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    monkeypatch.setattr("torch.distributed.init_process_group", init_process_group)
    context = replace(Context.alone(), comm=Mock(), fault_tolerant=tolerant)
    with pytest.raises(KeyboardInterrupt):
        start_of_ranks.connect(context, share_gpus)
    assert asked == [expected]


@pytest.mark.parametrize(("n", "run"), [(2, run_ranks), (3, run_warm), (4, run_warm)])
def test_collectives_under_mpirun_equal_those_of_one_process(n, run):
    done = run(n, [*PROGRAM, "collectives"])
    assert done.stdout == f"ranks {n} mpi True environment 0 {n} 127.0.0.1\n"


# Prints how many answers and bytes a rank gets from the store until it is connected
COUNT_ANSWERS = """
from hpcfwi.parallel.launch import launch
from hpcfwi.parallel import store

told, receive = [], store._receive
def counted(*arguments):
    told.append(receive(*arguments))
    return told[-1]

store._receive = counted
context = launch(gpus=False)
answers = sum(len(part) == 36 for part in told)  # the header of an answer
found = context.all_gather((answers, sum(map(len, told))))
if context.is_root:
    print(*(max(counts) for counts in zip(*found)))
context.close()
"""


def test_store_requests_per_rank_do_not_grow_with_the_number_of_ranks():
    counts = []
    for n in (2, 6):
        done = run_warm(n, COUNT_ANSWERS)
        counts.append([int(number) for number in done.stdout.split()])
    (few, of_two), (many, of_six) = counts
    assert few == many
    assert (of_six - of_two) / 4 < 400  # bytes for each additional rank


# Ranks that are distributed cyclically over two hosts, as by `mpirun --map-by node`
CYCLIC = """
from mpi4py import MPI
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.launch import find_rank

class Dealt(MPI.Intracomm):
    def Split_type(self, *_, **__):
        return self.Split(self.rank % 2, self.rank)

world = MPI.COMM_WORLD
for comm in (world, Dealt(world)):
    found = find_rank(Context.alone(), comm)
    assert (found.comm.rank, found.comm.size) == (found.rank, found.size)
    ranks = world.gather((found.rank, found.local_rank))
    if world.rank == 0:
        print(*ranks)
"""


def test_ranks_of_a_host_are_numbered_consecutively():
    done = run_warm(4, CYCLIC)
    assert done.stdout.splitlines() == [
        "(0, 0) (1, 1) (2, 2) (3, 3)",
        "(0, 0) (2, 0) (1, 1) (3, 1)",
    ]


def test_closing_the_context_ends_the_process_group_after_imports():
    run_warm(2, [*PROGRAM, "close_after_imports_that_keep_the_group"])


def test_collectives_under_torchrun_work_without_mpi():
    done = finish(start(*TORCHRUN, *PROGRAM, "collectives"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ranks 2 mpi False environment 0 2 ")


def test_torchrun_on_a_host_whose_name_does_not_resolve_starts_with_a_local_address():
    """The start is that of docs/cluster.md, in a namespace where the host has another name."""
    renamed = ["unshare", "--uts", "sh", "-c", 'hostname nohost.invalid && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*renamed, "true"], check=False).returncode:
        pytest.skip("this process may not rename its host")
    words = [*TORCHRUN[:2], "--local-addr", "127.0.0.1", *TORCHRUN[3:]]
    done = finish(start_words(*renamed, sys.executable, *words, *PROGRAM, "collectives"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ranks 2 mpi False ")


def test_torch_variables_define_ranks_without_mpi():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    words = [*warm_python(), *PROGRAM, "collectives"]
    ranks = [start_words(*words, RANK=str(rank), **common) for rank in range(2)]
    first, second = map(finish, ranks)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert first.stdout.startswith("ranks 2 mpi False environment 0 2 ")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_each_rank_without_master_address_reports_it_and_ends_with_2(rank):
    words = [*warm_python(), *PROGRAM, "collectives"]
    done = finish(start_words(*words, RANK=rank, WORLD_SIZE="2"))
    assert done.returncode == 2
    assert "ranks 1" not in done.stdout
    (message,) = messages(done.stderr)
    who = f"rank 1 on {socket.gethostname()}: " * (rank == "1")
    assert message.startswith(f"hpcfwi: {who}WORLD_SIZE=2: it is set, but ")


def test_missing_mpi_library_is_reported_once_under_mpirun():
    done = run_ranks(2, ["-m", "hpcfwi", "run", "a.toml"], {"MPI4PY_LIBMPI": "/no/libmpi"}, code=2)
    (message,) = messages(done.stderr)
    assert message.startswith("hpcfwi: MPI: mpi4py does not find a usable MPI library")


def test_plain_python_in_a_batch_script_is_a_single_rank():
    done = finish(start(*PROGRAM, "collectives", SLURM_NTASKS="4", SLURM_PROCID="0"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ranks 1 mpi True environment None None None\n"


def test_input_error_of_all_ranks_is_reported_once_by_rank_0():
    done = run_warm(2, [*PROGRAM, "bad_input_for_all"], code=2)
    assert messages(done.stderr) == ["hpcfwi: vp.h5: NaN at (3, 4). Mend the model."]
    assert "Traceback" not in done.stderr
    assert "MPI_ABORT" not in done.stderr


def test_input_error_of_one_rank_ends_the_job_with_its_message():
    began = time.monotonic()
    done = run_warm(2, [*PROGRAM, "bad_input_for_last"], code=2)
    (message,) = messages(done.stderr)
    assert message.startswith("hpcfwi: rank 1 on ")
    assert message.endswith(": observed.h5: cannot be read. Look at the disk.")
    assert "Traceback" not in done.stderr
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("n", [2, 3])
def test_ranks_that_stop_together_wait_for_a_late_rank_0(n):
    done = run_warm(n, [*PROGRAM, "stop_together_with_rank_0_late"], code=3)
    assert messages(done.stderr) == ["hpcfwi: stopped by SIGUSR1 after epoch 7"]
    assert "MPI_ABORT" not in done.stderr


def test_exception_on_rank_0_ends_the_job_with_its_traceback():
    done = run_warm(2, [*PROGRAM, "defect_on_root"], code=1)
    (message,) = messages(done.stderr)
    assert message.startswith("hpcfwi: rank 0 on ")
    assert "ZeroDivisionError: a defect" in done.stderr


def test_killed_rank_ends_the_job():
    done = run_warm(2, [*PROGRAM, "kill_last"], code=None)
    assert done.returncode != 0


def test_failed_rank_under_torchrun_ends_the_job_with_its_message():
    warm = warm_python()
    words = [*warm, *TORCHRUN, "--no-python", *warm, *PROGRAM, "bad_input_for_last"]
    done = finish(start_words(*words))
    assert done.returncode != 0
    (message,) = messages(done.stderr)
    assert message.startswith("hpcfwi: rank 1 on ")


def test_unconnected_ranks_report_the_error_once():
    env = {"SLURM_STEP_NUM_TASKS": "2"}
    ranks = [
        start_words(*warm_python(), *PROGRAM, "collectives", **env, SLURM_PROCID=str(rank))
        for rank in range(2)
    ]
    first, second = map(finish, ranks)
    assert (first.returncode, second.returncode) == (2, 2)
    assert messages(first.stderr) == first.stderr.splitlines()
    assert "`srun --mpi=" in first.stderr
    assert second.stderr == ""


def test_collectives_of_a_single_rank_return_their_input():
    context = Context.alone(threads=2)
    tensor = torch.arange(3.0)
    assert context.sum(tensor) is tensor
    assert context.broadcast("x") == "x"
    assert context.all_gather("x") == ["x"]
    assert context.from_root(lambda: 5) == 5
    assert (context.rank, context.size, context.is_root, context.comm) == (0, 1, True, None)
    context.barrier()
    context.close()


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (InputError("a", "b", "C."), 2, "hpcfwi: a: b. C.\n"),
        (Stopped("stopped after epoch 3"), 3, "hpcfwi: stopped after epoch 3\n"),
        (InversionFailure("replicas differ"), 1, "hpcfwi: replicas differ\n"),
        (StepFailure("the step is too large"), 2, "hpcfwi: the step is too large\n"),
        (KeyboardInterrupt(), 1, "hpcfwi: interrupted\n"),
    ],
)
def test_single_rank_reports_its_error_and_returns_its_exit_code(error, code, text, capsys):
    def main() -> int:
        raise error

    assert run_guarded(Context.alone(), main) == code == exit_code(error)
    assert capsys.readouterr().err == text


def test_successful_main_returns_its_exit_code():
    assert run_guarded(Context.alone(), lambda: 3) == 3


def test_program_alone_is_a_single_rank_and_raises_its_errors():
    with hpcfwi.launch() as context:
        assert (context.rank, context.size) == (0, 1)
    with pytest.raises(KeyError), hpcfwi.launch():
        raise KeyError


def test_program_under_mpirun_has_all_ranks():
    program = "import hpcfwi\nwith hpcfwi.launch() as c: print(c.size, sum(c.all_gather(c.rank)))"
    assert run_warm(3, program).stdout.splitlines() == ["3 3"] * 3


def test_failed_rank_ends_the_program_with_its_traceback():
    program = (
        "import hpcfwi\n"
        "with hpcfwi.launch() as c:\n"
        "    if c.rank == 1: raise ValueError('one is enough')\n"
        "    c.barrier()\n"
    )
    done = run_warm(3, program, code=1)
    assert "hpcfwi: rank 1 on" in done.stderr
    assert done.stderr.count("ValueError: one is enough") == 1
