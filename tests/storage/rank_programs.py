"""Programs that the tests run on ranks: `python -m tests.storage.rank_programs NAME FOLDER`."""

from __future__ import annotations

import errno
import json
import os
import pickle
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
from mpi4py import MPI

from benchmarks.scale import sent_by_sockets
from hpcfwi.errors import InputError, WriteFailure
from hpcfwi.parallel.launch import launch
from hpcfwi.storage.gathers import GatherReader, Prefetcher, create_gathers
from hpcfwi.storage.hdf5 import is_parallel
from hpcfwi.storage.models import load_model
from tests.storage.examples import (
    N_SHOTS,
    example_model,
    example_survey,
    example_traces,
    large_survey,
)

WITH_MPI_HDF5 = h5py.get_config().mpi


def contexts(context):
    """Yield a context with parallel HDF5, one without it, and one without MPI."""
    for mode in ("mpio", "serial", "torchrun"):
        mpi = WITH_MPI_HDF5 and mode == "mpio"
        h5py.get_config = partial(SimpleNamespace, mpi=mpi)
        variant = replace(context, comm=None) if mode == "torchrun" else context
        assert is_parallel(variant) == (mpi and context.size > 1)
        yield mode, variant


def rounds(context):
    """Yield the shots of this rank in rounds of three shots; some ranks have none."""
    for first in range(0, N_SHOTS, 3):
        shots = np.arange(first, min(first + 3, N_SHOTS))
        yield np.array_split(shots, context.size)[context.rank]


def round_trip(folder, world):
    """Write, read and prefetch in every mode."""
    for mode, context in contexts(world):
        path = folder / f"{mode}.h5"
        with create_gathers(path, example_survey(), context, {"made_by": "ranks"}) as writer:
            for shots in rounds(context):
                writer.write(shots, example_traces()[shots])
        with GatherReader(path, context) as reader, Prefetcher(reader) as prefetcher:
            mine = list(rounds(context))
            requests = [prefetcher.request(shots) for shots in mine]
            for traces, shots in zip(requests, mine, strict=True):
                context.barrier()
                np.testing.assert_array_equal(traces(), example_traces()[shots])
            np.testing.assert_array_equal(reader.survey.sources, example_survey().sources)
        model = load_model(folder / "model.h5", ["vp"], context)
        assert model.grid == example_model().grid
        np.testing.assert_array_equal(model["vp"], example_model()["vp"])


def begin_and_die(folder, world):
    """Write two rounds of at most one shot per rank in every mode, then die with open files."""
    writers = []
    for mode, context in contexts(world):
        writers.append(create_gathers(folder / f"{mode}.h5", example_survey(), context))
        for first in range(2):
            shots = np.arange(N_SHOTS)[first * context.size :][: context.size]
            mine = shots[context.rank : context.rank + 1]
            writers[-1].write(mine, example_traces()[mine])
    world.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def write_the_rest(folder, world):
    """Write the remaining shots in every mode and print them."""
    for mode, context in contexts(world):
        with create_gathers(folder / f"{mode}.h5", example_survey(), context) as writer:
            if context.is_root:
                print(mode, writer.left.tolist(), flush=True)
            mine = np.array_split(writer.left, context.size)[context.rank]
            writer.write(mine, example_traces()[mine])


def count_sent_bytes(folder, world):
    """Print how much each rank pickles and sends while rank 0 writes a megabyte for each."""
    survey = large_survey(world.size)
    traces = np.ones((1, survey.n_receivers, survey.n_samples), dtype=np.float32)
    for mode, context in contexts(world):
        if mode == "mpio":
            continue
        pickled = []

        def dumps(value, protocol=None, pickled=pickled):
            pickled.append(pickle.dumps(value, protocol))
            return pickled[-1]

        MPI.pickle.__init__(dumps, pickle.loads)
        path = folder / f"{mode}.h5"
        with create_gathers(path, survey, context) as writer:
            before = sum(sent_by_sockets())
            writer.write(np.array([context.rank]), context.rank * traces)
            context.barrier()
            time.sleep(0.2)  # until the counters of the kernel are up to date
            sent = sum(sent_by_sockets()) - before
        told = context.all_gather((sent, max(map(len, pickled), default=0)))
        if context.is_root:
            print(mode, json.dumps(told), flush=True)
            with h5py.File(path) as file:
                assert (file["data"][:, 0, 0] == np.arange(context.size)).all()


def full_disk(folder, world):
    """Print the errors of all ranks if rank 0 cannot write."""
    for mode, context in contexts(world):
        if mode == "mpio":
            continue
        writer = create_gathers(folder / f"{mode}.h5", example_survey(), context)

        def fail(shots, _, path=folder / f"{mode}.h5"):
            if shots[0] > 0:
                raise WriteFailure.of(path, OSError(errno.ENOSPC, "full"))

        writer._put = fail
        try:
            for shots in rounds(context):
                writer.write(shots, example_traces()[shots])
            told = "nothing"
        except WriteFailure as failure:
            told = str(failure) if vars(failure).get("raised_on_all_ranks") else "by itself"
        every = context.all_gather(told)
        writer.close()
        if context.is_root:
            print(len(every), len(set(every)), every[0], flush=True)


def bad_input(folder, world):
    """Print the errors of all ranks for each bad file."""
    for _mode, context in contexts(world):
        for attempt in (
            partial(load_model, folder / "missing.h5", ["vp"]),
            partial(load_model, folder / ("nan.h5" if world.is_root else "model.h5"), ["vp"]),
            partial(GatherReader, folder / "text.h5"),
            partial(create_gathers, folder / "text.h5" / "new.h5", example_survey()),
            partial(create_gathers, folder / "occupied.h5", example_survey()),
        ):
            try:
                attempt(context)
            except InputError as error:
                told = context.all_gather(str(error))
                if context.is_root:
                    print(len(told), len(set(told)), error, flush=True)


def write_then(folder, context, fail):
    with create_gathers(folder / "data.h5", example_survey(), context) as writer:
        for shots in rounds(context):
            writer.write(shots, example_traces()[shots])
        fail()


def stop_on_all_ranks(folder, context):
    """Raise the same exception on all ranks while they write."""

    def fail():
        sys.exit(3)

    write_then(folder, context, fail)


def forget_a_shot(folder, context):
    """Write all shots but one."""
    with create_gathers(folder / "data.h5", example_survey(), context) as writer:
        writer.write(np.arange(context.rank, N_SHOTS - 1), example_traces()[context.rank : -1])


def fail_on_one_rank(folder, context):
    """Fail on one rank while the others wait for it, and end as `cli` does."""

    def fail():
        if context.rank == 1:
            raise ArithmeticError("rank 1 is out of luck")
        context.barrier()

    try:
        write_then(folder, context, fail)
    except ArithmeticError as error:
        print(error, file=sys.stderr, flush=True)
        context.comm.Abort(7)


if __name__ == "__main__":
    world = launch()
    try:
        globals()[sys.argv[1]](Path(sys.argv[2]), world)
    finally:
        world.close()
