"""Programs of `test_ranks`, run by `python -m tests.run.programs FOLDER NAME[=SIZES]...`.

Program NAME finds its inputs in FOLDER/NAME and begins each line that it prints with NAME. SIZES
are the numbers of ranks on which a program runs: any_number=1,3. After each program, rank 0 prints
"finished" and the word of the command line. The first failure ends all ranks.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import h5py
import torch
import torch.distributed as dist
from mpi4py import MPI

from hpcfwi.errors import InputError, InversionFailure, Stopped
from hpcfwi.inversion import networks, shot_qc
from hpcfwi.inversion.objective import Objective
from hpcfwi.inversion.optimizers import Adam
from hpcfwi.operators import simulator
from hpcfwi.operators.simulator import Simulator
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.rendezvous import open_store
from hpcfwi.parallel.store import Store
from hpcfwi.run.job import run_job
from hpcfwi.run.recorder import Recorder
from hpcfwi.wave import Simulation
from hpcfwi.wave.engines.cpu import engine as cpu
from hpcfwi.wave.problem import Problem
from tests.inversion.bad_inputs import BAD_INPUTS
from tests.undrawn import draw_nothing

EVALUATE = Objective.evaluate
SHOT = 0.15  # s, added to the time of a shot


def ranks(size: int) -> Iterator[Context]:
    """Yield a context of the first `size` ranks, and nothing on the others; collective over all."""
    world = MPI.COMM_WORLD
    comm = world.Split(int(world.rank >= size), world.rank)
    if world.rank < size:
        cpu = torch.device("cpu")
        context = Context(comm.rank, size, comm.rank, socket.gethostname(), cpu, 1, comm)
        if size > 1:
            context = replace(context, store=join(context))
        yield context
        # Of ranks that were divided into crews, only the leaders are connected.
        if dist.is_initialized():
            context.barrier()
        context.close()
    # MPI would wait actively and take the cores of the working ranks.
    others = world.Ibarrier()
    while not others.Test():
        time.sleep(0.01)
    comm.Free()


def join(context: Context) -> Store:
    """Start torch.distributed among the ranks of a context and return its store."""
    store = open_store(context.comm, timedelta(minutes=1))
    dist.init_process_group("gloo", store=store, rank=context.rank, world_size=context.size)
    return store


def invert(path: Path, context: Context, *settings: str, inverts: bool = True) -> None:
    run_job(path, settings, context, inverts=inverts, quiet=True)


def any_number(folder: Path, sizes: Sequence[int]) -> None:
    """Simulate the data and invert on each number of ranks, each in its own run directory."""
    dynamic, plain = "inversion.schedule=dynamic", "inversion.reproducible=false"
    for size in sizes:
        for context in ranks(size):
            output = f"output.directory={folder / str(size)}"
            invert(folder / "input.toml", context, output, inverts=False)
            invert(folder / "input.toml", context, output)
            output = f"output.directory={folder / f'dynamic_{size}'}"
            invert(folder / "input.toml", context, output, dynamic)
            if size in (1, 3):
                output = f"output.directory={folder / f'plain_{size}'}"
                invert(folder / "input.toml", context, output, plain)
    if 3 not in sizes:
        return
    serial = partial(SimpleNamespace, mpi=False)
    with mock.patch.object(h5py, "get_config", serial):
        for context in ranks(3):
            invert(folder / "input.toml", context, f"output.directory={folder / 'serial'}")


def invert_together(path: Path, output: Path, size: int, together: int, *changes: str) -> None:
    """Invert on some ranks, of which several simulate each shot."""
    ranks_per_shot = f"wave.ranks_per_shot={together}"
    for context in ranks(size):
        # Leaders set variables of gloo, with which they could not connect to the others again.
        with mock.patch.dict(os.environ):
            invert(path, context, f"output.directory={output}", ranks_per_shot, *changes)


def layers(folder: Path) -> None:
    """Invert with several ranks for each shot, and on one rank; continue with other numbers."""
    runs = {
        "flat": ((1, 1), (2, 2), (4, 2), (4, 4), (3, 3)),
        "solid": ((1, 1), (4, 2)),
        "encoded": ((1, 1), (4, 4)),
        "windows": ((1, 1), (2, 2)),
        "newton": ((1, 1), (2, 2)),
    }
    for name, numbers in runs.items():
        for size, together in numbers:
            output = folder / name / f"{together}_of_{size}"
            invert_together(folder / name / "input.toml", output, size, together)
    path, output = folder / "flat" / "input.toml", folder / "flat" / "continued"
    for epochs, size, together in ((2, 4, 2), (3, 1, 1), (5, 3, 3)):
        invert_together(path, output, size, together, f"inversion.epochs={epochs}")


def stages(folder: Path, sizes: Sequence[int]) -> None:
    """Invert in stages with encoded shots on one rank and on several, some without shots."""
    for size in sizes:
        for context in ranks(size):
            for schedule in ("static", "dynamic"):
                output = f"output.directory={folder / f'{schedule}_{size}'}"
                path = folder / "input.toml"
                invert(path, context, output, f"inversion.schedule={schedule}")


@mock.patch.object(networks, "BLOCK", 500)
def optimizers(folder: Path, sizes: Sequence[int]) -> None:
    """Invert with line searches, a denoiser and a network on one rank and on several."""
    for size in sizes:
        schedule = "dynamic" if size == 3 else "static"
        for context in ranks(size):
            for path in sorted(folder.glob("*/input.toml")):
                output = f"output.directory={path.with_name(str(size))}"
                invert(path, context, output, f"inversion.schedule={schedule}")


def equations(folder: Path) -> None:
    """Invert with other equations on one to three ranks, and continue those on three.

    One of them is also inverted with several ranks for each shot.
    """
    for size in (1, 2, 3):
        for context in ranks(size):
            for path in sorted(folder.glob("*/input.toml")):
                output = f"output.directory={path.with_name(str(size))}"
                for epochs in (2, 4) if size == 3 else (4,):
                    invert(path, context, output, f"inversion.epochs={epochs}")
    layered = folder / "several components"
    for size, together in ((2, 2), (4, 2), (3, 3)):
        output = layered / f"{together}_of_{size}"
        invert_together(layered / "input.toml", output, size, together)


class PowerCut(Exception):
    """An interruption of all ranks at once."""


def cut_power() -> None:
    raise PowerCut


def sharded(folder: Path) -> None:
    """Invert with the optimizer's state in shards on several ranks, and whole on one.

    The run "changing" is interrupted in epoch 4, continues from epoch 2, stops after epoch 4 and
    continues again, each time on another number of ranks, with shards or without.
    """
    shards, whole = (f"inversion.optimizer.sharded={word}" for word in ("true", "false"))
    for size in (1, 2, 3, 4):
        for context in ranks(size):
            for path in sorted(folder.glob("*/input.toml")):
                invert(path, context, f"output.directory={path.with_name(str(size))}", shards)
                output = f"output.directory={path.with_name('changing')}"
                if size == 1:
                    invert(path, context, f"output.directory={path.with_name('whole')}", whole)
                elif size == 2:
                    dying = after(4, Recorder.measure, cut_power)
                    with suppress(PowerCut), mock.patch.object(Recorder, "measure", dying):
                        invert(path, context, output, shards)
                elif size == 3:
                    invert(path, context, output, whole, "inversion.epochs=4")
                else:
                    invert(path, context, output, shards)


others_sharded = sharded


def sharded_stages(folder: Path) -> None:
    """Invert in stages with whole state; in shards on two ranks up to stage 2, then on three."""
    for context in ranks(1):
        invert(folder / "whole.toml", context, f"output.directory={folder / 'whole'}")
    output = f"output.directory={folder / 'shards'}"
    for context in ranks(2):
        dying = after(4, Recorder.measure, cut_power)
        with suppress(PowerCut), mock.patch.object(Recorder, "measure", dying):
            invert(folder / "shards.toml", context, output)
    for context in ranks(3):
        invert(folder / "shards.toml", context, output)


def volumes(folder: Path) -> None:
    """Invert a volume on one rank, and on three in two runs; one of the three has no shots."""
    for context in ranks(1):
        invert(folder / "input.toml", context, f"output.directory={folder / '1'}")
    for context in ranks(3):
        output = f"output.directory={folder / '3'}"
        invert(folder / "input.toml", context, output, inverts=False)
        for epochs in (1, 2):
            invert(folder / "input.toml", context, output, f"inversion.epochs={epochs}")


def bad_inputs(folder: Path) -> None:
    """Print for each bad input the error, and how many different errors the ranks raise."""
    for context in ranks(3):
        for bad in BAD_INPUTS:
            told = "nothing"
            try:
                path = folder / bad.name / "input.toml"
                run_job(path, bad.settings, context, inverts=True, quiet=True)
            except InputError as error:
                told = str(error)
            everyone = context.all_gather(told)
            if context.is_root:
                say("bad_inputs", len(everyone), len(set(everyone)), told)


def failures(folder: Path) -> None:
    """Print the errors for a shot with a NaN in its data, and for a rank that computes wrongly."""
    step = Adam.step

    def slightly_wrong(optimizer: Adam, *given: Any) -> Any:
        model, evaluation = step(optimizer, *given)
        model["vp"][20, 20] = torch.nextafter(model["vp"][20, 20], torch.tensor(9000.0))
        return model, evaluation

    for context in ranks(3):
        for name in ("nan", "input"):
            wrong = slightly_wrong if name == "input" and context.rank == 2 else step
            told = "nothing"
            with mock.patch.object(Adam, "step", wrong):
                try:
                    invert(folder / f"{name}.toml", context)
                except InversionFailure as error:
                    told = str(error)
            everyone = context.all_gather(told)
            if context.is_root:
                say("failures", len(everyone), len(set(everyone)), told)


def windows(folder: Path) -> None:
    """Invert on one and on three ranks."""
    for size in (1, 3):
        for context in ranks(size):
            invert(folder / "input.toml", context, f"output.directory={folder / str(size)}")


set_aside = windows


def slow_rank(folder: Path) -> None:
    """Invert on three ranks with slowed shots, which take three times as long on rank 0."""
    for context in ranks(3):
        slow = mock.patch.object(Simulator, "simulate", taking(SHOT * (1, 3)[context.is_root]))
        for schedule in ("static", "dynamic"):
            output = f"output.directory={folder / schedule}"
            invert(folder / "input.toml", context, output, inverts=False)
            with slow, mock.patch.object(shot_qc, "SHOTS", 1):
                invert(folder / "input.toml", context, output, f"inversion.schedule={schedule}")


def taking(seconds: float) -> Callable[..., Simulation]:
    """Return a `simulate` that takes longer by so many seconds."""
    simulate = Simulator.simulate

    def take_a_while(*args: Any, **options: Any) -> Simulation:
        time.sleep(seconds)
        return simulate(*args, **options)

    return take_a_while


def memory(folder: Path) -> None:
    """Invert with too little memory for all shots of a rank, for a single shot, and to begin."""
    forward = cpu.forward

    def forward_within(most: int, problem: Problem, *rest: Any) -> Any:
        if (
            problem.n_shots > most and problem.like.numel() > 100
        ):  # larger than the engine's preparation
            raise MemoryError("Unable to allocate 7 GiB")
        return forward(problem, *rest)

    for size in (1, 3):
        for single in ranks(size):
            context = replace(single, threads=4)
            path, last = folder / "input.toml", context.rank == size - 1
            for name, most in (
                ("enough", 9),
                ("half", 2 if last else 9),
                ("none", 0 if last else 9),
            ):
                output = f"output.directory={folder / f'{name}_{size}'}"
                invert(path, context, output, inverts=False)
                with mock.patch.object(cpu, "forward", partial(forward_within, most)):
                    told = error_of(partial(invert, path, context, output))
                print_agreement("memory", context, size, name, told)
            poor = 10**5 if last else 10**9
            with mock.patch.object(simulator, "memory_at_hand", lambda _, poor=poor: poor):
                told = error_of(
                    partial(invert, path, context, f"output.directory={folder / 'poor'}")
                )
            print_agreement("memory", context, size, "poor", told)


def error_of(act: Callable[[], None]) -> str:
    """Return the name and message of the error that a call raises, or "nothing"."""
    try:
        act()
    except (InputError, InversionFailure) as error:
        return f"{type(error).__name__} {error}"
    return "nothing"


def print_agreement(name: str, context: Context, *words: object) -> None:
    """Print the number of ranks, how many different words they have, and the words of rank 0."""
    everyone = context.all_gather(words)
    if context.is_root:
        say(name, len(everyone), len(set(everyone)), *words)


def say(*words: object) -> None:
    print(*words, sep="\t", flush=True)


def die(checkpoint: Path) -> None:
    """Kill all ranks at once, as a power cut does, after this checkpoint is written."""
    while not checkpoint.exists():
        time.sleep(0.01)
    MPI.COMM_WORLD.Barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def after(epoch: int, function: Callable, act: Callable[[], None]) -> Callable:
    """Return the function with a call of `act` after its call number `epoch`."""
    calls = 0

    def acting(*args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        result = function(*args, **options)
        if calls == epoch:
            act()
        return result

    return acting


def stop_and_die(folder: Path) -> None:
    """Run an inversion three times: uninterrupted, stopped by a signal to one rank and continued,
    and killed while the wavelet is estimated again in epoch 3."""
    for context in ranks(2):
        invert(folder / "input.toml", context, f"output.directory={folder / 'whole'}")
        terminate = partial(os.kill, os.getpid(), signal.SIGTERM)
        evaluate = EVALUATE if context.rank != 1 else after(3, EVALUATE, terminate)
        stopped = f"output.directory={folder / 'stopped'}"
        try:
            with mock.patch.object(Objective, "evaluate", evaluate):
                invert(folder / "input.toml", context, stopped)
        except Stopped as stop:
            say("stop_and_die", context.rank, stop)
        invert(folder / "input.toml", context, stopped)
        die_at_2 = partial(die, folder / "run" / "checkpoints" / "epoch_000002.ckpt")
        with mock.patch.object(Objective, "find_each", after(2, Objective.find_each, die_at_2)):
            invert(folder / "input.toml", context)


def go_on_and_die(folder: Path) -> None:
    """Continue the killed run from epoch 2 on one more rank, and kill it in the line search of
    epoch 5, whose first model is evaluated once more for its illuminations."""
    for context in ranks(3):
        folder = folder.with_name("stop_and_die")
        die_at_4 = partial(die, folder / "run" / "checkpoints" / "epoch_000004.ckpt")
        with mock.patch.object(Objective, "evaluate", after(5, EVALUATE, die_at_4)):
            invert(folder / "input.toml", context)


if __name__ == "__main__":
    draw_nothing()
    try:
        folder, *names = sys.argv[1:]
        for word in names:
            name, *sizes = word.replace("=", ",").split(",")
            given = [[int(size) for size in sizes]] if sizes else []
            globals()[name](Path(folder, name), *given)
            if MPI.COMM_WORLD.rank == 0:
                say("finished", word)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(9)
