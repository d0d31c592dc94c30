"""Programs of the tests of the watch: python -m tests.parallel.faults.watched NAME RANK.

RANK is the rank to which something happens. The times are a fraction of the real ones. With
`--fork FOLDER` and triples NAME SIZE RANK, all of these programs run at the same time, without MPI,
on SIZE ranks that are forked from one process. As mpirun does, it ends the remaining ranks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from hpcfwi.errors import Stopped
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.failure import SIGNALS, run_guarded
from hpcfwi.parallel.launch import launch
from hpcfwi.parallel.store import Address, Server, Store
from hpcfwi.parallel.watch import StopRequest, Watch

GRACE, HEARTBEAT_WAIT, TICK = 2.0, 6.0, 0.25  # s
SECRET = b"of these tests"


@dataclass(frozen=True)
class Scene:
    """The context of a program, and whether it is on the rank to which something happens."""

    context: Context
    stop: StopRequest
    is_chosen: bool


Program = Callable[[Scene], None]


def compute_for_ever() -> None:
    """Block the main thread without handling signals, as a call of compiled code does."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    time.sleep(3600.0)


def signal_myself(number: int, delay: float = 0.5) -> None:
    threading.Timer(delay, os.kill, (os.getpid(), number)).start()


def stop_in_a_long_step(scene: Scene) -> None:
    """All ranks compute for longer than the grace period."""
    if scene.is_chosen:
        signal_myself(signal.SIGUSR1)
    compute_for_ever()


def stop_while_others_wait(scene: Scene) -> None:
    """The chosen rank computes, and the others wait for it."""
    if scene.is_chosen:
        signal_myself(signal.SIGTERM)
        compute_for_ever()
    scene.context.barrier()


def stop_in_a_short_step(scene: Scene) -> None:
    """The step ends within the grace period."""
    if scene.is_chosen:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE / 3)
    name = scene.stop.agree_to_stop()
    time.sleep(2 * GRACE)  # a checkpoint is written
    raise Stopped(f"stopped by {name} after epoch 7")


def fall_silent(scene: Scene) -> None:
    """The chosen process is frozen."""
    if scene.is_chosen:
        os.kill(os.getpid(), signal.SIGSTOP)
    scene.context.barrier()


def hang(scene: Scene) -> None:
    """The main thread of the chosen rank hangs in a call that should be fast."""
    scene.context.heartbeat.beat()
    if scene.is_chosen:
        compute_for_ever()
    scene.context.barrier()


def work_slowly(scene: Scene) -> None:
    """The others wait longer than allowed before any shot is complete, and again afterwards."""
    for _ in range(2):
        if scene.is_chosen:
            time.sleep(1.5 * HEARTBEAT_WAIT)
            scene.context.heartbeat.beat()
        scene.context.barrier()


def wait_for_the_disk(scene: Scene) -> None:
    """The chosen rank writes for longer than a shot may take."""
    scene.context.heartbeat.beat()
    if scene.is_chosen:
        with scene.context.heartbeat.waiting():
            time.sleep(2 * HEARTBEAT_WAIT)
    scene.context.barrier()


def run(program: Program, context: Context, chosen: int) -> int:
    """Run a program under watch on this rank and return its exit code."""

    def save() -> str:
        print(f"rank {context.rank} saves", flush=True)
        time.sleep(GRACE / 3)
        print(f"rank {context.rank} has saved", flush=True)
        return "epoch 6"

    def watched() -> int:
        with (
            StopRequest(context) as stop,
            Watch(context, stop, save, grace=GRACE, wait=HEARTBEAT_WAIT, tick=TICK),
        ):
            context.heartbeat.begin("epoch 7")
            program(Scene(context, stop, context.rank == chosen))
        context.barrier()
        return 0

    return run_guarded(context, watched)


def fork(folder: Path, size: int, program: Program, chosen: int) -> int:
    """Run a program on forked ranks, with its output in a folder; return its first exit code."""
    name = f"{program.__name__}-{size}-{chosen}"
    for stream in (sys.stdout, sys.stderr):
        file = (folder / f"{name}.{stream.name.strip('<>')}").open("w")
        os.dup2(file.fileno(), stream.fileno())
    address = str(folder / f"{name}.store")
    ranks = []
    for rank in range(size):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            os._exit(run(program, join(address, rank, size), chosen))
    for _ in range(size):
        rank, status = os.wait()
        ranks.remove(rank)
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            break
    time.sleep(5 * TICK if ranks else 0.0)
    for rank in ranks:
        os.kill(rank, signal.SIGKILL)
    return code


def join(address: str, rank: int, size: int) -> Context:
    """Return a context like that of a rank of torchrun; rank 0 writes the address of its store."""
    if size == 1:
        return Context.alone()
    note, server = Path(address), None
    if rank == 0:
        server = Server("127.0.0.1", SECRET)
        note.with_suffix(".part").write_text(str(server.place.port))
        note.with_suffix(".part").rename(note)
    while not note.exists():
        time.sleep(0.01)
    place = Address("127.0.0.1", int(note.read_text()))
    store = Store(place, SECRET, timedelta(minutes=1), server)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    hosts = ("node7",) * size
    return Context(rank, size, rank, "node7", torch.device("cpu"), 1, None, store, hosts)


def main(words: list[str]) -> int:
    if words[0] != "--fork":
        return run(globals()[words[0]], launch(), int(words[1]))
    folder = Path(words[1])
    jobs, ends = {}, {}
    for name, size, chosen in zip(words[2::3], words[3::3], words[4::3], strict=True):
        began = time.monotonic()
        job = os.fork()
        if job == 0:
            os._exit(fork(folder, int(size), globals()[name], int(chosen)) % 256)
        jobs[job] = f"{name}-{size}-{chosen}", began
    for _ in range(len(jobs)):
        job, status = os.wait()
        name, began = jobs[job]
        ends[name] = (os.waitstatus_to_exitcode(status), time.monotonic() - began)
    (folder / "ends.json").write_text(json.dumps(ends))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
