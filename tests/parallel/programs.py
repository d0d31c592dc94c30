"""Programs that the tests run on several ranks: python -m tests.parallel.programs NAME."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import torch

from hpcfwi.errors import InputError, Stopped
from hpcfwi.parallel import failure, recovery
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.failure import COMPANY_WAIT, run_guarded
from hpcfwi.parallel.launch import connect, end_launch, launch
from hpcfwi.parallel.recovery import raise_if_rank_failed, retry_after_death
from hpcfwi.parallel.shards import make_schedule
from hpcfwi.parallel.store import Store
from hpcfwi.parallel.watch import StopRequest, Watch
from hpcfwi.wave import acoustic

SLEEP = 3.0  # s
# s, long enough for a launcher to notice the death of a warm rank on any machine
DEATH_WAIT = 30.0
LONG = 50_000_000  # bytes, more than the buffers of the system between two ranks hold


class StubbornError(Exception):
    """An exception that cannot be unpickled."""

    def __init__(self, shot: int, why: str) -> None:
        super().__init__(f"shot {shot}: {why}")


def collectives(context: Context) -> int:
    """Compare every collective with the result of one process, then print the ranks."""
    size, ranks = context.size, range(context.size)
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.int64, torch.float32, torch.float64):
        parts = torch.randint(-1000, 1000, (size, 5, 3), generator=generator).to(dtype)
        total = context.sum(parts[context.rank].clone())
        assert torch.equal(total, parts.sum(0)), dtype
        pieces = torch.randint(-1000, 1000, (size, size, 4), generator=generator).to(dtype)
        mine = pieces[context.rank].clone().reshape(-1)
        assert torch.equal(context.reduce_scatter(mine, 4), pieces.sum(0)[context.rank]), dtype
        assert torch.equal(mine, pieces[context.rank].reshape(-1)), "the input is not changed"
        assert torch.equal(context.all_gather_pieces(parts[context.rank].clone()), parts), dtype
    assert context.sum(torch.empty(0)).shape == (0,)
    with mock.patch("hpcfwi.parallel.context.BLOCK", 3):
        for cells in range(5 * size + 1):
            mine = torch.arange(cells)[5 * context.rank : 5 * context.rank + 5]
            assert torch.equal(context.reduce_scatter(torch.arange(cells), 5), size * mine)
    with mock.patch("torch.distributed.all_reduce", wraps=torch.distributed.all_reduce) as call:
        context.reduce_scatter(torch.ones(9 * size), 9)
    assert call.call_count == (size > 1), "not one collective for each rank"
    assert context.broadcast({"rank": context.rank}) == {"rank": 0}
    assert context.all_gather("r" * context.rank) == ["r" * rank for rank in ranks]
    assert context.from_root(os.getpid) == context.broadcast(os.getpid())
    for error in (InputError("a.h5", "torn", "Copy it again."), StubbornError(3, "dead")):
        try:
            context.from_root(lambda error=error: fail(error))
        except (InputError, StubbornError, RuntimeError) as raised:
            said = context.all_gather(str(raised))
            kinds = context.all_gather(type(raised).__name__)
        assert len(set(said)) == len(set(kinds)) == 1, (said, kinds)
        assert str(error) in said[0]
    context.barrier()
    assert context.all_gather(context.rank) == list(ranks)
    assert context.all_gather(context.local_rank) == list(ranks), "one host"
    assert torch.get_num_threads() == context.threads
    assert torch.distributed.is_initialized() == (size > 1)
    if context.is_root:
        named = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")]
        print("ranks", size, "mpi", context.comm is not None, "environment", *named)
    return 0


def deal_while_root_computes(context: Context) -> int:
    """Deal two batches to the other ranks while rank 0 simulates shots."""
    schedule, slots = make_schedule("dynamic", 1, context), 60
    for _ in range(2):
        schedule.begin()
        began, slowest = time.monotonic(), 0.0
        mine = schedule.first(slots).tolist()
        if context.is_root:
            while time.monotonic() - began < SLEEP:
                compute_without_releasing_the_gil()
        else:
            while (more := schedule.more(slots, 2)).size:
                mine += more.tolist()
            slowest = time.monotonic() - began
        everything = [slot for rank in context.all_gather(mine) for slot in rank]
        assert sorted(everything) == list(range(slots)), everything
        in_time = max(context.all_gather(slowest)) < SLEEP / 2
    if in_time and context.is_root:
        print("each once and in time")
    return 0


def compute_without_releasing_the_gil() -> None:
    """Compute with the eager engine, which rarely releases the lock of Python."""
    vp, wavelet = torch.full((60, 60), 2000.0), torch.ones(100)
    source, receiver = torch.tensor([[50.0, 50.0]]), torch.tensor([[[50.0, 90.0]]])
    acoustic(vp, 10.0, 1e-3, wavelet, source, receiver, engine="eager")


def bad_input_for_all(context: Context) -> int:
    context.from_root(lambda: fail(InputError("vp.h5", "NaN at (3, 4)", "Mend the model.")))
    return 0


def bad_input_for_last(context: Context) -> int:
    if context.rank == context.size - 1:
        raise InputError("observed.h5", "cannot be read", "Look at the disk.")
    context.barrier()
    return 0


def stop_together_with_rank_0_late(context: Context) -> int:
    """Rank 0 stops later than other ranks wait for one that does not fail."""
    try:
        context.raise_on_all_ranks(Stopped("stopped by SIGUSR1 after epoch 7"))
    finally:
        if context.is_root:
            time.sleep(COMPANY_WAIT + 2.0)


def defect_on_root(context: Context) -> int:
    if context.is_root:
        raise ZeroDivisionError("a defect")
    context.barrier()
    return 0


def close_after_imports_that_keep_the_group(context: Context) -> int:
    """Create an optimizer, which imports functions that keep the process group as a default."""
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    group = weakref.ref(torch.distributed.group.WORLD)
    context.close()
    assert group() is None
    threads = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    assert not [name for name in threads if "gloo" in name], threads
    return 0


def kill_last(context: Context) -> int:
    if context.rank == context.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    context.barrier()
    return 0


def outlive(context: Context) -> int:
    """Add whole numbers in steps until ranks have died as DEATHS says, and in three more steps.

    DEATHS is "rank:seconds rank:seconds ...", counted from the first step. A step has a number for
    each of 24 shots, which ranks fetch through the store, and adds the numbers of all shots.
    """
    failure.DEATH_WAIT = DEATH_WAIT
    deaths = dict(part.split(":") for part in os.environ["DEATHS"].split())
    began_as, all_ranks, left = context.rank, context.size, context.size - len(deaths)
    totals: list[int] = []
    more = 3
    while more:
        more -= context.size == left
        done: dict[int, int] = {}
        step = len(totals)

        def work(step: int = step, done: dict[int, int] = done) -> int:
            lost = sorted(set(range(24)).difference(*context.all_gather(set(done))))
            while (shot := fetch(context, lost, step, done)) is not None:
                raise_if_rank_failed(context)
                time.sleep(0.0005)
                done[shot] = (step + 1) * shot**2
            assert context.broadcast(step) == step
            return int(context.sum(torch.full((1000,), sum(done.values())))[7])

        totals.append(retry_after_death(context, work))
        if step == 0 and str(began_as) in deaths:
            threading.Timer(float(deaths[str(began_as)]), os.kill, (os.getpid(), 9)).start()
    every = context.all_gather((began_as, context.rank, totals))
    assert [rank for rank, _, _ in every] == [r for r in range(all_ranks) if str(r) not in deaths]
    assert [rank for _, rank, _ in every] == list(range(context.size)), every
    assert all(found == totals for _, _, found in every), every
    assert totals == [(step + 1) * sum(shot**2 for shot in range(24)) for step in range(step + 1)]
    assert context.comm is not None
    assert (context.comm.rank, context.comm.size) == (context.rank, context.size)
    assert len(context.hosts) == context.size
    context.barrier()
    if context.is_root:
        print("left", context.size)
    return 3


def die_during_a_message(context: Context) -> int:
    """Kill the sender or the receiver of a message while half of it is transferred: rank DEAD.

    Rank 1 expects the message and stops, so that rank 0 can only fill the buffers of the system.
    """
    failure.DEATH_WAIT = DEATH_WAIT
    pids, began_as = context.all_gather(os.getpid()), context.rank
    dead, receiver = pids[int(os.environ["DEAD"])], pids[1]
    broadcast = torch.distributed.broadcast

    def half(tensor: torch.Tensor, source: int, **options: Any) -> Any:
        if tensor.numel() >= LONG and context.size == len(pids):
            if began_as == 0:
                time.sleep(1.0)
            elif began_as == 1:
                end = f"sleep 1.5; kill -KILL {dead}; kill -CONT {receiver}"
                subprocess.Popen(["sh", "-c", end])
                threading.Timer(0.5, os.kill, (receiver, signal.SIGSTOP)).start()
        return broadcast(tensor, source, **options)

    with mock.patch.object(torch.distributed, "broadcast", half):
        sent = retry_after_death(context, lambda: context.broadcast(bytes(LONG)))
    if context.is_root:
        print("left", context.size, len(sent) == LONG)
    return 0


def connect_too_late(context: Context) -> int:
    """Rank 3 dies, and at the first try rank 1 connects to the others too late."""
    calls = []

    def late(connecting: Context) -> Store:
        store = connect(connecting)
        calls.append(connecting)
        if began_as == 1 and len(calls) == 1:
            raise RuntimeError("no connection in time")
        return store

    failure.DEATH_WAIT = DEATH_WAIT
    began_as = context.rank
    if began_as == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    with mock.patch.object(recovery, "connect", late):
        retry_after_death(context, context.barrier)
    if context.is_root:
        print("left", context.size, "tries", len(calls))
    return 0


def hold_the_gil_after_the_watch_starts(context: Context) -> int:
    """Hold the lock of Python on rank 0, as HDF5 does, before rank 1 connects to its store."""
    clone = Store.clone

    def clone_late(store: Store) -> Store:
        time.sleep(1.0)
        return clone(store)

    with (
        StopRequest(context) as stop,
        mock.patch.object(Store, "clone", clone if context.is_root else clone_late),
    ):
        began = time.monotonic()
        Watch(context, stop, lambda: "the last checkpoint")
        took = time.monotonic() - began
    if context.is_root:
        ctypes.PyDLL(None).sleep(int(2 * SLEEP))
    print("soon", took < SLEEP)
    context.barrier()
    return 0


def fetch(context: Context, shots: list[int], step: int, done: dict[int, int]) -> int | None:
    """Return the next shot that no rank has taken; a single rank needs no store."""
    if context.store is None:
        return next((shot for shot in shots if shot not in done), None)
    taken = context.store.add(f"step {step}", 1) - 1
    return shots[taken] if taken < len(shots) else None


def exception_in_recoverable_work(context: Context) -> int:
    def work() -> None:
        if context.rank == 1:
            raise RuntimeError("a defect of rank 1")
        context.barrier()

    retry_after_death(context, work)
    return 0


def fail(error: Exception) -> NoReturn:
    raise error


if __name__ == "__main__":
    program = globals()[sys.argv[1]]
    try:
        started = launch()
    except InputError as error:
        sys.exit(end_launch(error))
    sys.exit(run_guarded(started, lambda: program(started)))
