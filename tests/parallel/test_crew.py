"""Tests of crews: ranks that simulate shots together, and what happens when one of them fails."""

from __future__ import annotations

import pytest
import torch

from hpcfwi.parallel.replicas import MEMORY
from tests.inversion.examples import read_vp, write_input
from tests.ranks import messages, run_ranks, run_torchrun

# Ranks that take part in a crew of all ranks, whose leader simulates shots
CREW = '''
import os, signal, sys
from dataclasses import replace
from unittest import mock
import numpy as np
import torch
from hpcfwi.wave.engines.cpu import engine, layout
from hpcfwi.wave.engines import Leader, dismiss, serve
from tests.wave.examples import random_shots, white_residual

shots = random_shots(shape=(57, 33))

def simulate(**options):
    simulation = shots.simulate(engine="cpu", **options)
    gradient = simulation.backpropagate(white_residual(simulation.data)).model["vp"]
    return simulation.data.numpy().tobytes(), gradient.numpy().tobytes()

def fail_at(name, rank, number):
    """Let a function of the engine fail on a rank when it is called for the `number`-th time."""
    module = engine if hasattr(engine, name) else layout
    function, calls = getattr(module, name), []

    def failing(*given):
        calls.append(given)
        if crew.number == rank and len(calls) == number:
            raise MemoryError("no memory left")
        return function(*given)

    setattr(module, name, failing)
'''


WITH_MPI = """
from mpi4py import MPI
from hpcfwi.parallel.crew import RankCrew

torch.set_num_threads(1)
world = MPI.COMM_WORLD
host = f"host{world.rank * HOSTS // world.size}"
crew = RankCrew(world.Dup(), world, host, wait=WAIT, tick=0.1)
"""
WITHOUT_MPI = """
from hpcfwi.parallel.crew import form_crews
from hpcfwi.parallel.launch import launch

context = launch(gpus=False)
_, crew = form_crews(context, context.size)
"""
LAUNCHERS = pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])


def run_crew(n, program, wait=60.0, hosts=1, launcher="mpirun", code=0):
    """Run a program on ranks, which take themselves for those of so many hosts under mpirun."""
    if launcher == "torchrun":
        return run_torchrun(n, CREW + WITHOUT_MPI + program)
    crew = WITH_MPI.replace("WAIT", str(wait)).replace("HOSTS", str(hosts))
    return run_ranks(n, CREW + crew + program, warm=True, code=code)


@LAUNCHERS
def test_ranks_of_a_crew_share_memory_and_gather_values_on_the_first(launcher):
    program = """
memory = crew.share(1000)
memory[100 + crew.number] = crew.number + 1
crew.check()
assert memory[100:103].tolist() == [1, 2, 3]
assert crew.share(500) is memory
assert not crew.share(5000).any()
large = np.arange(100_000) + crew.number
found = crew.gather((large, torch.tensor([crew.number]), "x"))
if crew.number == 0:
    for number, (array, tensor, text) in enumerate(found):
        assert (array == np.arange(100_000) + number).all()
        assert tensor.item() == number and text == "x"
else:
    assert found is None
assert crew.broadcast(large if crew.number == 0 else None)[0] == 0
crew.close()
print("ended")
"""
    done = run_crew(3, program, launcher=launcher)
    assert done.stdout.count("ended") == 3


@pytest.mark.parametrize(("n", "hosts"), [(2, 2), (3, 3), (4, 2)])
def test_ranks_of_several_hosts_have_the_bits_of_one_rank(n, hosts):
    program = """
if crew.number > 0:
    serve(crew)
else:
    leader = Leader(crew)
    assert crew.hosts.count(0) == crew.size // HOSTS
    assert simulate(leader=leader) == simulate()
    dismiss(crew)
    print("ended")
crew.close()
""".replace("HOSTS", str(hosts))
    done = run_crew(n, program, hosts=hosts)
    assert "ended" in done.stdout


@LAUNCHERS
def test_neighbours_of_a_crew_swap_tensors_until_one_fails_and_then_again(launcher):
    program = """
n, size, count = crew.number, crew.size, 0

def swap():
    global count
    count += 1
    sent = [[torch.full((4, 3), 100.0 * count + 10 * n + side)] * 2 for side in (0, 1)]
    received = [[torch.full((4, 3), -1.0) for _ in range(2)] for _ in (0, 1)]
    crew.swap(sent, received)
    for side, rank in ((0, n - 1), (1, n + 1)):
        value = 100.0 * count + 10 * rank + 1 - side if 0 <= rank < size else -1.0
        assert all((tensor == value).all() for tensor in received[side])

for failing in range(size):
    for _ in range(5):
        swap()
    try:
        if n == failing:
            raise MemoryError("no memory left")
        for _ in range(5):
            swap()
        crew.check()
    except MemoryError as error:
        crew.fail(error)
        print("found", error)
    count = 0
swap()
crew.close()
print("ended")
"""
    done = run_crew(3, program, launcher=launcher)
    assert done.stdout.count("found no memory left") == 9
    assert done.stdout.count("ended") == 3


# After a fault, the leader says what it has found and simulates again.
SIMULATE_TWICE = """
if crew.number > 0:
    serve(crew)
else:
    leader = Leader(crew)
    try:
        simulate(leader=leader)
    except MemoryError as error:
        print("found", error)
    assert simulate(leader=leader) == simulate()
    dismiss(crew)
crew.close()
print("ended")
"""


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("function", ["make_tables", "ShotHistory", "take_out"])
def test_memory_error_of_one_rank_is_raised_by_the_leader_which_can_go_on(function, failing, hosts):
    """The failing rank has no memory before it shares some, before its sweep, or after it."""
    fault = f'fail_at("{function}", {failing}, 1)'
    done = run_crew(3, fault + SIMULATE_TWICE, hosts=hosts)
    assert "found no memory left" in done.stdout
    assert done.stdout.count("ended") == 3


@pytest.mark.parametrize("failing", [0, 1])
def test_memory_error_of_one_rank_under_torchrun_is_raised_by_the_leader(failing):
    fault = f'fail_at("ShotHistory", {failing}, 1)'
    done = run_crew(3, fault + SIMULATE_TWICE, launcher="torchrun")
    assert "found no memory left" in done.stdout
    assert done.stdout.count("ended") == 3


def test_crews_under_torchrun_invert_to_the_bits_of_one_rank(tmp_path):
    """Two crews of two ranks; the leaders alone add up the gradients."""
    models = []
    for together in (1, 2):
        path = write_input(tmp_path / str(together), {"wave.ranks_per_shot": together})
        program = f"""
import sys
from tests.undrawn import main

sys.argv = ["hpcfwi", "run", {str(path)!r}]
main()
"""
        done = run_torchrun(4, program) if together > 1 else run_ranks(1, program, warm=True)
        assert ("2 ranks simulate each shot" in done.stderr + done.stdout) == (together == 2)
        models.append(read_vp(path.parent / "run"))
    assert models[0].tobytes() == models[1].tobytes()


def test_crews_under_torchrun_that_span_hosts_are_refused():
    program = """
from dataclasses import replace
from hpcfwi.errors import InputError
from hpcfwi.parallel.crew import form_crews
from hpcfwi.parallel.launch import launch

context = launch(gpus=False)
try:
    form_crews(replace(context, hosts=("a", "b")), 2)
except InputError as error:
    print("found", error)
"""
    done = run_torchrun(2, program)
    assert (
        done.stdout.count("found wave.ranks_per_shot: ranks exchange halos between hosts by") == 2
    )
    assert "Start a multiple of 2 ranks on each host" in done.stdout


def test_lack_of_shared_memory_is_raised_by_the_leader_which_can_go_on():
    fault = """
import errno, os
reserve = os.posix_fallocate

def refuse(*given):
    os.posix_fallocate = reserve
    raise OSError(errno.ENOSPC, "No space left on device")

os.posix_fallocate = refuse
"""
    done = run_crew(2, fault + SIMULATE_TWICE)
    assert "found /dev/shm of " in done.stdout
    assert "No space left on device" in done.stdout
    assert done.stdout.count("ended") == 2


def test_states_on_the_other_ranks_are_released_with_that_of_the_leader():
    program = """
if crew.number > 0:
    from hpcfwi.wave import engines
    states, obey = [], engines._States.obey
    def watch(self, *given):
        found = obey(self, *given)
        states.append(len(self.held))
        return found
    with mock.patch.object(engines._States, "obey", watch):
        serve(crew)
    print("held", max(states), states[-1])
else:
    leader = Leader(crew)
    for _ in range(3):
        simulate(leader=leader)
    dismiss(crew)
crew.close()
"""
    done = run_crew(2, program)
    assert "held 1 1" in done.stdout


@pytest.mark.parametrize(("hosts", "wait"), [(1, 5.0), (2, 0.5)])
@pytest.mark.parametrize("stopped", [0, 1])
def test_rank_that_stops_ends_the_job_with_its_number(stopped, hosts, wait):
    """A rank of another host is lost after ten times the wait."""
    program = f"""
if crew.number == {stopped}:
    os.kill(os.getpid(), signal.SIGSTOP)
if crew.number > 0:
    serve(crew)
else:
    simulate(leader=Leader(crew))
"""
    done = run_crew(2, program, wait, hosts, code=1)
    (message,) = messages(done.stderr)
    assert message.startswith(f"hpcfwi: rank {stopped} of a crew of 2 on ")
    assert "has stopped or died, 5 s ago" in message


def test_failure_ends_the_states_of_earlier_simulations():
    """One of the simulations is on a larger grid, for which the crew shares other memory."""
    program = """
fail_at("ShotHistory", 1, 7)  # the first shot of the third simulation
if crew.number > 0:
    serve(crew)
else:
    leader = Leader(crew)
    one = shots.simulate(engine="cpu", leader=leader)
    large = random_shots(shape=(57, 99))
    two = large.simulate(engine="cpu", leader=leader)
    for work in (
        lambda: simulate(leader=leader),
        lambda: one.backpropagate(one.data),
        lambda: two.backpropagate(two.data),
    ):
        try:
            work()
        except (MemoryError, RuntimeError) as error:
            print("found", error, flush=True)
    assert simulate(leader=leader) == simulate()
    dismiss(crew)
crew.close()
"""
    done = run_crew(2, program)
    assert "found no memory left" in done.stdout
    assert done.stdout.count("found the state of backward was lost when a rank failed") == 2


def test_memory_error_while_values_are_gathered_is_raised_on_all_ranks():
    program = """
from hpcfwi.parallel import transport

def fail(outline):
    if transport.find_sizes(outline):
        raise MemoryError("no memory left")
    return []

large = np.zeros(100_000)
with mock.patch.object(transport, "make_room", fail):
    try:
        crew.gather(large)
    except MemoryError as error:
        crew.fail(error)
        print("found", error)
crew.gather(large)
crew.close()
"""
    done = run_crew(3, program)
    assert done.stdout.count("found no memory left") == 3


@pytest.mark.parametrize("killed", [0, 1])
def test_killed_rank_ends_the_job_which_continues_to_the_same_bits(tmp_path, killed):
    changes = {"inversion.epochs": 40, "output.every": 40}
    path = write_input(tmp_path, {"wave.ranks_per_shot": 2, **changes})
    checkpoint = tmp_path / "run" / "checkpoints" / "epoch_000004.ckpt"
    program = f"""
import os, signal, sys, threading, time
from tests.undrawn import main

def die():
    while not os.path.exists({str(checkpoint)!r}):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

if int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]) == {killed}:
    threading.Thread(target=die, daemon=True).start()
sys.argv = ["hpcfwi", "run", {str(path)!r}]
main()
"""
    assert run_ranks(2, program, timeout=60.0, warm=True, code=None).returncode != 0
    run_ranks(2, ["-m", "tests.undrawn", "run", str(path)], warm=True)
    undivided = write_input(tmp_path / "undivided", changes)
    run_ranks(1, ["-m", "tests.undrawn", "run", str(undivided)], warm=True)
    found, expected = (read_vp(folder / "run") for folder in (tmp_path, tmp_path / "undivided"))
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("number", ["SIGUSR1", "SIGTERM"])
def test_signal_stops_all_ranks_with_a_checkpoint(tmp_path, number):
    path = write_input(tmp_path, {"wave.ranks_per_shot": 2, "inversion.epochs": 2000})
    program = f"""
import os, signal, sys, threading, time
from tests.undrawn import main

def stop():
    while not os.path.exists({str(tmp_path / "run" / "metrics.jsonl")!r}):
        time.sleep(0.1)
    time.sleep(1.0)
    os.kill(os.getpid(), signal.{number})

threading.Thread(target=stop, daemon=True).start()
sys.argv = ["hpcfwi", "run", {str(path)!r}]
main()
"""
    done = run_ranks(2, program, timeout=60.0, warm=True, code=3)
    (message,) = messages(done.stderr)
    assert f"stopped by {number} after epoch" in message


def run_job(folder, n: int, changes: dict[str, object], code: int = 0):
    path = write_input(folder, {"wave.ranks_per_shot": 2, **changes})
    return run_ranks(n, ["-m", "tests.undrawn", "run", str(path)], warm=True, code=code)


@pytest.mark.parametrize(
    ("n", "changes", "expected"),
    [
        (3, {}, "3 ranks cannot be divided into crews of 2"),
        (2, {"wave.engine": "eager"}, "only the engine cpu divides shots between ranks"),
        (2, {"wave.ranks_per_shot": 0}, "found 0, expected greater than 0"),
        (2, {"wave.ranks_per_shot": "two"}, "wave.ranks_per_shot: found 'two'"),
        (6, {"wave.ranks_per_shot": 6}, "cannot be divided into 6 layers"),
        (
            3,
            {"wave.ranks_per_shot": 3, "stage": [{"spacing": 100.0}]},
            "stage.1.wave.ranks_per_shot: 28 planes",
        ),
        (2, {"stage": [{"wave": {"ranks_per_shot": 1}}]}, "as in the other stages"),
    ],
)
def test_ranks_or_grids_that_cannot_be_divided_are_refused(tmp_path, n, changes, expected):
    done = run_job(tmp_path, n, changes, code=2)
    (message,) = messages(done.stderr)
    assert "wave.ranks_per_shot: " in message
    assert expected in message
    assert not (tmp_path / "run").exists()


def test_error_of_the_leaders_is_told_once(tmp_path):
    done = run_job(tmp_path, 4, {"model.file": "missing.h5"}, code=2)
    (message,) = messages(done.stderr)
    assert "missing.h5" in message


def test_automatic_number_divides_a_shot_only_if_ranks_have_none(tmp_path):
    large = {"wave.boundary": 60, "inversion.epochs": 1, "output.every": 1}
    for batch, expected in ((1, True), (2, False)):
        changes = {**large, "wave.ranks_per_shot": "auto", "inversion.batch": batch}
        done = run_job(tmp_path / str(batch), 2, changes)
        assert ("2 ranks simulate each shot" in done.stderr + done.stdout) == expected
        assert ("1 crew of 2 ranks on 1 host" if expected else "2 ranks on 1 host") in done.stdout


def test_shared_memory_leaves_no_file(tmp_path):
    before = set(MEMORY.glob("hpcfwi-*"))
    run_job(tmp_path, 2, {"inversion.epochs": 1, "output.every": 1})
    assert set(MEMORY.glob("hpcfwi-*")) <= before


@pytest.mark.skipif(torch.cuda.is_available(), reason="both ranks would need a GPU of their own")
def test_gpu_engine_inverts_to_the_same_bits_with_two_ranks_per_shot(tmp_path):
    """Triton interprets the kernels, which takes some milliseconds for each of them."""
    short = {
        "survey.sources": {"count": 1, "depth": 20.0},
        "model.spacing": 40.0,
        "survey.dt": 0.003,
        "survey.duration": 0.03,
        "survey.wavelet": {"kind": "ricker", "frequency": 40.0, "delay": 0.01},
        "wave.engine": "gpu",
        "wave.boundary": 4,
        "wave.order": 2,
        "inversion.epochs": 1,
        "inversion.batch": 1,
        "output.every": 1,
    }
    models = []
    for ranks in (1, 2):
        path = write_input(tmp_path / str(ranks), {**short, "wave.ranks_per_shot": ranks})
        program = f"""
import sys
from tests.undrawn import main
from tests.wave.engines.gpu.conftest import quickly_interpreted

sys.argv = ["hpcfwi", "run", {str(path)!r}]
with quickly_interpreted():
    main()
"""
        done = run_ranks(ranks, program, warm=True)
        assert ("2 ranks simulate each shot" in done.stderr + done.stdout) == (ranks == 2)
        models.append(read_vp(path.parent / "run"))
    assert models[0].tobytes() == models[1].tobytes()
