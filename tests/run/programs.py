"""What the tests run on several ranks: `python -m tests.run.programs FOLDER NAME[=SIZES]...`.

Program NAME finds its inputs in FOLDER/NAME, and what it prints begins with NAME. Some are told on
how many ranks to do what they do: any_number=1,3.
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
from hpcfwi.inversion import networks
from hpcfwi.inversion.objective import Objective
from hpcfwi.inversion.optimizers.first_order import Adam
from hpcfwi.operators import batching
from hpcfwi.operators.simulator import Simulator
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.rendezvous import MpiExchange, open_store
from hpcfwi.parallel.store import Store
from hpcfwi.report import fit, style
from hpcfwi.run import records, session
from hpcfwi.run.job import run_job
from hpcfwi.run.recorder import Recorder
from hpcfwi.wave import Simulation
from hpcfwi.wave.engines.cpu import engine as cpu
from hpcfwi.wave.problem import Problem
from tests.inversion.bad_inputs import BAD_INPUTS

EVALUATE = Objective.evaluate
SHOT = 0.15  # s, beside what it takes anyway


def ranks(size: int) -> Iterator[Context]:
    """A world of the first `size` ranks of the job, nothing on the others; collective over all.

    One job with all the ranks starts faster than many jobs.
    """
    world = MPI.COMM_WORLD
    comm = world.Split(int(world.rank >= size), world.rank)
    if world.rank < size:
        cpu = torch.device("cpu")
        context = Context(comm.rank, size, comm.rank, socket.gethostname(), cpu, 1, comm)
        if size > 1:
            context = replace(context, store=join(context))
        yield context
        context.barrier()
        context.close()
    # Ranks that wait as MPI does would take the cores of those that work.
    others = world.Ibarrier()
    while not others.Test():
        time.sleep(0.01)
    comm.Free()


def join(context: Context) -> Store:
    """Start torch.distributed among the ranks of a context; its store."""
    store = open_store(MpiExchange(context.comm), timedelta(minutes=1))
    dist.init_process_group("gloo", store=store, rank=context.rank, world_size=context.size)
    return store


def invert(path: Path, context: Context, *settings: str, inverts: bool = True) -> None:
    run_job(path, settings, context, inverts=inverts, quiet=True)


def any_number(folder: Path, sizes: Sequence[int]) -> None:
    """Observe, then invert, on each number of ranks, each in a run directory of its own."""
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


def stages(folder: Path, sizes: Sequence[int]) -> None:
    """Stages, with encoded shots, on one rank and on several, some of them without shots."""
    for size in sizes:
        for context in ranks(size):
            for schedule in ("static", "dynamic"):
                output = f"output.directory={folder / f'{schedule}_{size}'}"
                path = folder / "input.toml"
                invert(path, context, output, f"inversion.schedule={schedule}")


@mock.patch.object(networks, "BLOCK", 500)
def optimizers(folder: Path, sizes: Sequence[int]) -> None:
    """Searches along a line and what is around optimisers, on one rank and on several."""
    for size in sizes:
        schedule = "dynamic" if size == 3 else "static"
        for context in ranks(size):
            for path in sorted(folder.glob("*/input.toml")):
                output = f"output.directory={path.with_name(str(size))}"
                invert(path, context, output, f"inversion.schedule={schedule}")


class PowerCut(Exception):
    """On all ranks at once."""


def cut_power() -> None:
    raise PowerCut


def sharded(folder: Path) -> None:
    """Optimisers with their state in slabs on several ranks, and whole on one.

    Then one that is cut off in epoch 4, so that it goes on from epoch 2, and stops after epoch 4,
    on another number of ranks each time, in slabs or not.
    """
    slabs, whole = (f"inversion.optimizer.sharded={word}" for word in ("true", "false"))
    for size in (1, 2, 3, 4):
        for context in ranks(size):
            for path in sorted(folder.glob("*/input.toml")):
                invert(path, context, f"output.directory={path.with_name(str(size))}", slabs)
                output = f"output.directory={path.with_name('changing')}"
                if size == 1:
                    invert(path, context, f"output.directory={path.with_name('whole')}", whole)
                elif size == 2:
                    dying = after(4, Recorder.describe, cut_power)
                    with suppress(PowerCut), mock.patch.object(Recorder, "describe", dying):
                        invert(path, context, output, slabs)
                elif size == 3:
                    invert(path, context, output, whole, "inversion.epochs=4")
                else:
                    invert(path, context, output, slabs)


others_sharded = sharded


def sharded_stages(folder: Path) -> None:
    """Stages with the state whole on one rank; in slabs on two, cut off in the second stage, and on
    three from there on."""
    for context in ranks(1):
        invert(folder / "whole.toml", context, f"output.directory={folder / 'whole'}")
    output = f"output.directory={folder / 'slabs'}"
    for context in ranks(2):
        dying = after(4, Recorder.describe, cut_power)
        with suppress(PowerCut), mock.patch.object(Recorder, "describe", dying):
            invert(folder / "slabs.toml", context, output)
    for context in ranks(3):
        invert(folder / "slabs.toml", context, output)


def volumes(folder: Path) -> None:
    """A 3-D inversion: on one rank at once; on three, one of them without shots, in two goes."""
    for context in ranks(1):
        invert(folder / "input.toml", context, f"output.directory={folder / '1'}")
    for context in ranks(3):
        output = f"output.directory={folder / '3'}"
        invert(folder / "input.toml", context, output, inverts=False)
        for epochs in (1, 2):
            invert(folder / "input.toml", context, output, f"inversion.epochs={epochs}")


def bad_inputs(folder: Path) -> None:
    """What every rank is told about each bad input, and how many are told the same."""
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
    """A shot's data that are not numbers; then a rank that computes wrongly."""
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
    """Three ranks whose shots take a while, on the first of them three times as long."""
    for context in ranks(3):
        slow = mock.patch.object(Simulator, "simulate", taking(SHOT * (1, 3)[context.is_root]))
        for schedule in ("static", "dynamic"):
            output = f"output.directory={folder / schedule}"
            invert(folder / "input.toml", context, output, inverts=False)
            with slow, mock.patch.object(session, "SHOTS", 1):
                invert(folder / "input.toml", context, output, f"inversion.schedule={schedule}")


def taking(seconds: float) -> Callable[..., Simulation]:
    """A simulation that takes so much longer."""
    simulate = Simulator.simulate

    def take_a_while(*args: Any, **options: Any) -> Simulation:
        time.sleep(seconds)
        return simulate(*args, **options)

    return take_a_while


def memory(folder: Path) -> None:
    """Too little for all shots of a rank, for one of them, and from the beginning."""
    forward = cpu.forward

    def forward_within(most: int, problem: Problem, *rest: Any) -> Any:
        if problem.n_shots > most and problem.speed.numel() > 100:  # not the engine's preparation
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
                    told = failing(partial(invert, path, context, output))
                tell_all("memory", context, size, name, told)
            poor = 10**5 if last else 10**9
            with mock.patch.object(batching, "memory_at_hand", lambda _, poor=poor: poor):
                told = failing(
                    partial(invert, path, context, f"output.directory={folder / 'poor'}")
                )
            tell_all("memory", context, size, "poor", told)


def failing(act: Callable[[], None]) -> str:
    """How it failed, or "nothing"."""
    try:
        act()
    except (InputError, InversionFailure) as error:
        return f"{type(error).__name__} {error}"
    return "nothing"


def tell_all(name: str, context: Context, *words: object) -> None:
    """Print, on rank 0, how many ranks say how many different things, and what rank 0 says."""
    everyone = context.all_gather(words)
    if context.is_root:
        say(name, len(everyone), len(set(everyone)), *words)


def say(*words: object) -> None:
    print(*words, sep="\t", flush=True)


def die(checkpoint: Path) -> None:
    """All ranks at once, as on a power cut, some time after this checkpoint was to be written."""
    while not checkpoint.exists():
        time.sleep(0.01)
    MPI.COMM_WORLD.Barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def after(epoch: int, function: Callable, act: Callable[[], None]) -> Callable:
    """The function, which acts after it was called so many times."""
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
    """Uninterrupted; stopped by a signal to one rank, and continued; killed as the wavelet is
    estimated again, in epoch 3."""
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
        with mock.patch.object(Objective, "relate", after(2, Objective.relate, die_at_2)):
            invert(folder / "input.toml", context)


def go_on_and_die(folder: Path) -> None:
    """What was killed continues from epoch 2 on one rank more, and is killed in the search of
    epoch 5, whose first model is evaluated once more to be looked at."""
    for context in ranks(3):
        folder = folder.with_name("stop_and_die")
        die_at_4 = partial(die, folder / "run" / "checkpoints" / "epoch_000004.ckpt")
        with mock.patch.object(Objective, "evaluate", after(5, EVALUATE, die_at_4)):
            invert(folder / "input.toml", context)


if __name__ == "__main__":
    records.draw_survey = records.draw_epoch_figures = records.draw_wavelet = lambda *_: None
    records.draw_fit = lambda *_: None
    fit.comparison_figure = lambda *_: style.new_figure(1.0, 1.0)
    try:
        folder, *names = sys.argv[1:]
        for word in names:
            name, *sizes = word.replace("=", ",").split(",")
            given = [[int(size) for size in sizes]] if sizes else []
            globals()[name](Path(folder, name), *given)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(9)
