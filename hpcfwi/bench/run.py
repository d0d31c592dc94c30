"""All measurements of `hpcfwi bench`, and the tables of their results.

The time of an epoch is measured on 1, 2, 4, ... ranks with one thread each. Each number of ranks is
a separate job, `mpirun -n N python -P -m hpcfwi.bench.run CASE BATCH DEPTH`, which simulates the
batch, sums the gradients over its ranks, and prints the seconds. If a batch has one shot, all ranks
simulate it together, each a layer of its grid, which is DEPTH times as deep as that of the case.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from hpcfwi.bench.waves import (
    Shots,
    compare_engines,
    compare_histories,
    compare_in_turns,
    describe_machine,
    list_engines,
    list_histories,
    longest_interval,
    make_shots,
    measure_growth,
    median_ratio,
)
from hpcfwi.errors import refusing
from hpcfwi.report.text import terminal_width
from hpcfwi.survey import Survey
from hpcfwi.system import written_whole

FILE = "bench.json"
REPETITIONS = 3


def run_bench(
    directory: Path, threads: int, tell: Callable[[str], None], small: bool = False
) -> dict[str, Any]:
    """Run all measurements and write DIRECTORY/bench.json; takes two minutes on two cores.

    threads: number of threads of the engines; tell: called with a description of each measurement
    when it begins; small: True for tiny shots, for tests. Raises `InputError` if the directory
    cannot be written.
    """
    remedy = "Choose a directory that you may write, with --output."
    with refusing(str(directory), "cannot be written", remedy):
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    torch.set_num_threads(threads)
    shape, steps = ((40, 60), 40) if small else ((160, 320), 400)
    shots = make_shots(shape, threads, steps, receivers=20 if small else 100)
    repetitions, most = (1, 1) if small else (REPETITIONS, len(os.sched_getaffinity(0)))
    histories = list_histories(list_engines()["cpu"], longest_interval(shots))
    if small:
        histories = histories[:2]
    numbers: dict[str, Any] = {
        "machine": describe_machine(threads),
        "repetitions": repetitions,
        "case": {"points": list(shape), "steps": steps, "shots": threads, "cells": shots.cells},
    }
    # Ranks are measured first, because importing parallel HDF5 starts MPI in this process.
    parts: dict[str, Callable[[Path], Any]] = {
        "ranks": lambda _: compare_ranks(repetitions, most),
        "layers": lambda _: compare_layers(repetitions, most),
        "engines": lambda _: compare_engines(shots, repetitions),
        "histories": lambda _: compare_histories(shots, "cpu", histories, repetitions),
        "growth": lambda _: measure_growth(shots, repetitions),
        "reading": lambda folder: compare_reading(folder, repetitions),
        "checkpoints": lambda folder: measure_checkpoints(folder, repetitions),
    }
    for name, measure in parts.items():
        tell(f"measuring {name}")
        with tempfile.TemporaryDirectory(dir=directory) as folder:
            numbers[name] = measure(Path(folder))
    with written_whole(directory / FILE) as file:
        file.write(json.dumps(numbers, indent=2).encode() + b"\n")
    return numbers


def show_numbers(numbers: dict[str, Any]) -> None:
    """Print the results of `run_bench` as tables."""
    console = Console(width=terminal_width(sys.stdout) or 100, soft_wrap=True)
    machine = numbers["machine"]
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, load "
        f"{machine['load'][0]}; hpcfwi {machine['hpcfwi']}, torch {machine['torch']}"
    )
    case = numbers["case"]
    console.print(
        f"{case['points'][0]} x {case['points'][1]} points and their boundary, "
        f"{case['steps']} steps, {case['shots']} shots, order 4, float32"
    )
    for heads, rows in tabulate(numbers).values():
        table = Table(*heads)
        for column in table.columns[1:]:
            column.justify = "right"
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if not numbers["ranks"]:
        console.print("No mpirun that works: ranks were not measured.")
    reading, checkpoints = numbers["reading"], numbers["checkpoints"]
    console.print(
        f"Reading gathers {reading['gathers_bytes_per_second'] / 1e6:.0f} MB/s, a plain file "
        f"{reading['plain_bytes_per_second'] / 1e6:.0f} MB/s (in cache): {reading['ratio']:.2f} of "
        "its rate"
    )
    console.print(
        f"A checkpoint of {checkpoints['bytes'] / 1e6:.0f} MB is written in "
        f"{checkpoints['write']:.3f} s and read in {checkpoints['read']:.3f} s"
    )


# For each measurement, the heads of the columns of its table, and the formats of their values.
TABLES = {
    "engines": {
        "engine": "{engine}",
        "case": "{case}",
        "s": "{seconds:.3f}",
        "M cells/s": "{rate:.0f}",
        "cpu is x times as fast": "{ratio:.1f}",
    },
    "histories": {
        "history (cpu)": "{history}",
        "error": "{error:.1e}",
        "MB": "{megabytes:.0f}",
        "s": "{seconds:.3f}",
    },
    "ranks": {"ranks": "{ranks}", "s an epoch": "{seconds:.3f}", "efficiency": "{percent:.0f} %"},
    "layers": {
        "ranks for one shot": "{ranks}",
        "points": "{grid}",
        "s a gradient": "{seconds:.3f}",
        "efficiency": "{percent:.0f} %",
    },
    "growth": {
        "cost of a gradient (cpu)": "{case}",
        "s": "{seconds:.3f}",
        "times": "{ratio:.1f}",
        "times the work": "{growth:.1f}",
    },
}


def tabulate(numbers: dict[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the heads and the rows of the table of each measurement that was made."""
    tables = {}
    for name, columns in TABLES.items():
        rows = [
            {
                **row,
                "rate": row.get("updates_per_second", 0.0) / 1e6,
                "megabytes": row.get("bytes", 0) / 1e6,
                "percent": 100 * row.get("efficiency", 0.0),
                "grid": "x".join(map(str, row.get("points", ()))),
            }
            for row in numbers.get(name, ())
        ]
        if rows:
            cells = [[form.format_map(row) for form in columns.values()] for row in rows]
            tables[name] = [*columns], cells
    return tables


# Parallel HDF5 is imported when files are measured, because it starts MPI in this process.
SHOTS, RECEIVERS, SAMPLES = 32, 400, 1500
CELLS = 1_000_000


def compare_reading(folder: Path, repetitions: int) -> dict[str, Any]:
    """Measure the rates of reading all shots of a gathers file and of a plain file.

    Both have the same bytes, and are read in the same random order. After the first time both are
    in the system's cache, so that the overhead of the format is measured, not the disk.
    """
    from hpcfwi.parallel.context import Context
    from hpcfwi.storage.gathers import GatherReader, create_gathers

    rng = np.random.default_rng(0)
    data = rng.normal(size=(SHOTS, RECEIVERS, SAMPLES)).astype(np.float32)
    places = np.zeros((SHOTS, 2)), np.zeros((RECEIVERS, 2))
    survey = Survey(*places, np.ones(SAMPLES, np.float32), 1e-3)
    order = rng.permutation(SHOTS).astype(np.int64)
    with create_gathers(folder / "gathers.h5", survey, Context.alone()) as writer:
        writer.write(np.arange(SHOTS), data)
    plain = folder / "plain.bin"
    plain.write_bytes(data.tobytes())

    def read_plainly() -> None:
        traces = np.empty_like(data)
        with plain.open("rb", buffering=0) as file:
            for gather, shot in zip(traces, order, strict=True):
                file.seek(int(shot) * gather.nbytes)
                file.readinto(gather.data)

    with GatherReader(folder / "gathers.h5", Context.alone()) as reader:
        works = {"gathers": lambda: reader.read(order), "plain": read_plainly}
        taken = compare_in_turns(works, repetitions, "gathers")
    return {
        "bytes": data.nbytes,
        "gathers_bytes_per_second": data.nbytes / taken["gathers"][0],
        "plain_bytes_per_second": data.nbytes / taken["plain"][0],
        "ratio": taken["plain"][1],
    }


def measure_checkpoints(folder: Path, repetitions: int) -> dict[str, Any]:
    """Measure the seconds to write and to read the checkpoint of Adam for a million cells."""
    from hpcfwi.storage.checkpoint import load_latest_checkpoint, save_checkpoint

    cells = torch.zeros(CELLS)
    payload = {"model": cells, "first": cells.clone(), "second": cells.clone()}
    works: dict[str, Callable[[], object]] = {
        "write": lambda: save_checkpoint(folder, 1, payload),
        "read": lambda: load_latest_checkpoint(folder),
    }
    taken = compare_in_turns(works, repetitions, "write")
    size = (folder / "epoch_000001.ckpt").stat().st_size
    return {"cells": CELLS, "bytes": size} | {name: s for name, (s, _) in taken.items()}


MPIRUN = "mpirun --bind-to none"
EPOCHS = 3
# Points of the model, number of steps and order of each case: the first one for a batch of shots,
# all for one shot that ranks divide.
CASES = {
    "200x400": ((200, 400), 600, 4),
    "64x64x64": ((64, 64, 64), 150, 8),
}
# Prefixes of variables that an MPI process sets for itself, which confuse the MPI jobs it starts.
OWN_VARIABLES = ("PMIX_", "PMI_", "OMPI_COMM_", "OMPI_UNIVERSE", "OMPI_APP_CTX", "PRTE_")


def compare_ranks(repetitions: int, most: int) -> list[dict[str, Any]]:
    """Measure the seconds of an epoch on 1, 2, 4, ... and `most` ranks, and the efficiency.

    The efficiency is the time of one rank divided by the number of ranks and by their time; it is
    the median over the repetitions. The list is empty if there is no working launcher.
    """
    return _compare("200x400", 2 * most, repetitions, most)


def compare_layers(repetitions: int, most: int) -> list[dict[str, Any]]:
    """Measure the seconds of the gradient of one shot on 1, 2, 4, ... and `most` ranks.

    The ranks simulate the shot together, each a layer of its grid. The grid is the same for all
    numbers of ranks (strong scaling), or its depth is proportional to their number (weak scaling).
    The efficiency is the number of cells per second and rank, divided by that of one rank.
    """
    return [
        row
        for case in CASES
        for grows in (False, True)
        for row in _compare(case, 1, repetitions, most, grows)
    ]


def _compare(
    case: str, batch: int, repetitions: int, most: int, grows: bool = False
) -> list[dict[str, Any]]:
    """Measure a batch on 1, 2, 4, ... and `most` ranks.

    The list is empty if the launcher, $MPIRUN or mpirun, is not installed or if a job fails. grows:
    True if the depth of the grid is proportional to the number of ranks.
    """
    launcher = shlex.split(os.environ.get("MPIRUN", MPIRUN))
    if shutil.which(launcher[0]) is None:
        return []
    sizes = [n for n in range(1, most + 1) if n in (1, most) or n & (n - 1) == 0]
    seconds: dict[int, list[float]] = {n: [] for n in sizes}
    for _ in range(repetitions):
        for n in sizes:
            taken = _run(launcher, n, case, batch, n if grows else 1)
            if taken is None:
                return []
            seconds[n].append(taken)
    shots = {n: _make_batch(case, batch, n if grows else 1) for n in sizes}
    return [
        {
            "ranks": n,
            "shots": batch,
            "points": list(shots[n].shape),
            "seconds": statistics.median(seconds[n]),
            "efficiency": median_ratio(seconds[1], seconds[n])
            * (shots[n].cells / shots[1].cells / n),
        }
        for n in sizes
    ]


def _run(launcher: list[str], ranks: int, case: str, batch: int, depth: int) -> float | None:
    """Run a job and return the seconds that it prints; None if it fails."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(OWN_VARIABLES)}
    done = subprocess.run(
        [
            *(*launcher, "-n", str(ranks), sys.executable, "-P", "-m", "hpcfwi.bench.run"),
            *(case, str(batch), str(depth)),
        ],
        env={**env, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def _make_batch(case: str, batch: int, depth: int) -> Shots:
    """Return the shots of a case; the source of a single one is in the middle of the grid.

    Its wave reaches all layers early.
    """
    (n, *others), steps, order = CASES[case]
    shots = make_shots((n * depth, *others), batch, steps, order=order)
    if batch == 1:
        shots.sources[:, 0] = shots.shape[0] // 2
    return shots


def _measure(case: str, batch: int, depth: int) -> None:
    """Run a job on this rank; rank 0 prints the median seconds of the slowest rank."""
    from hpcfwi.parallel.launch import launch
    from hpcfwi.run.job import run_on_leaders

    context = launch(gpus=False)
    together = context.size if batch == 1 else 1
    shots = _make_batch(case, batch, depth)
    run_on_leaders(together, context, lambda leaders: _measure_epochs(shots, leaders))
    context.close()


def _measure_epochs(shots: Shots, context: Any) -> None:
    mine = np.array_split(np.arange(len(shots.sources)), context.size)[context.rank]
    seconds = []
    for _ in range(1 + EPOCHS):
        context.barrier()
        start = time.perf_counter()
        total = torch.zeros(shots.shape, dtype=torch.float64)
        for shot in mine:
            one = replace(shots, sources=shots.sources[shot : shot + 1])
            total += one.run(True, engine="cpu", leader=context.leader)
        context.sum(total)
        seconds.append(time.perf_counter() - start)
    slowest = max(context.all_gather(statistics.median(seconds[1:])))
    if context.is_root:
        print(slowest, flush=True)


if __name__ == "__main__":
    _measure(sys.argv[1], *map(int, sys.argv[2:]))
