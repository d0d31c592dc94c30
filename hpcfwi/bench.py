"""The measurements of a machine by `hpcfwi bench`; benchmarks for developers are in `benchmarks`.

The module begins with functions that repeat measurements in turns, measure peaks of memory and
describe the machine, and with the shots that are simulated, in a model whose velocity increases
with depth. Engines, histories and the growth with the problem size are measured in this process.

The time of an epoch is measured on 1, 2, 4, ... ranks with one thread each. Each number of ranks is
a separate job, `mpirun -n N python -P -m hpcfwi.bench CASE BATCH DEPTH`, which simulates the batch,
sums the gradients over its ranks, and prints the seconds. If a batch has one shot, all ranks
simulate it together, each a layer of its grid, which is DEPTH times as deep as that of the case.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from math import prod
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from hpcfwi.errors import refusing
from hpcfwi.registry import ENGINES, find
from hpcfwi.report.text import terminal_width
from hpcfwi.survey import Survey
from hpcfwi.system import peak_resident_bytes, resident_bytes, written_whole
from hpcfwi.wave import Acquisition, Auto, Method, Recompute, Simulation, Snapshots, simulate
from hpcfwi.wave.engines import Engine
from hpcfwi.wave.history import History, candidates, describe, sampling_interval
from hpcfwi.wave.numerics import ricker

PACKAGES = ("hpcfwi", "torch", "numba", "numpy", "h5py", "mpi4py", "deepwave")


def median_ratio(numerator: list[float], denominator: list[float]) -> float:
    """Return the median of the ratios within each turn."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def compare_in_turns(
    works: Mapping[str, Callable[[], object]], repetitions: int, reference: str
) -> dict[str, tuple[float, float]]:
    """Return the median seconds of each function, and their median ratio to those of another.

    The functions are called in turns (A B A B), so that other load on the machine affects all of
    them alike. Each is called once before, which is not counted. reference: name of the other one.
    """
    for work in works.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repetitions):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    return {
        name: (statistics.median(taken), median_ratio(taken, seconds[reference]))
        for name, taken in seconds.items()
    }


def measure_growth_of_memory(work: Callable[[], object]) -> int:
    """Return the bytes that a function adds to the resident size of this process at its peak.

    On Linux the earlier peak is reset. Elsewhere the result is too small if the process had a
    higher peak before.
    """
    gc.collect()  # memory that is freed during the call would be subtracted
    forget = Path("/proc/self/clear_refs")
    if forget.exists():
        forget.write_text("5")
    before = resident_bytes()
    work()
    return max(0, peak_resident_bytes() - before)


def describe_machine(threads: int) -> dict[str, Any]:
    """Return the machine, date and versions of packages, for the results of a measurement."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "machine": platform.node(),
        "cpu": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "load": [round(load, 2) for load in os.getloadavg()],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


SPACING, DT, FREQUENCY, DELAY, BOUNDARY = 12.5, 1e-3, 10.0, 0.12, 20
SLOWEST, FASTEST = 1500.0, 4500.0
EDGE = 20  # cells, from the sides of the model to the ends of a line of points


@dataclass(frozen=True)
class Shots:
    """Shots with sources and receivers at grid points, so that all programs treat them alike.

    vp: (nz, nx) or (nz, ny, nx), m/s; wavelet: (time,); sources: (shot, axis) and receivers:
    (receiver, axis), indices of grid points; order: order of the differences in space; dt: s.
    """

    vp: Tensor
    wavelet: Tensor
    sources: Tensor
    receivers: Tensor
    order: int = 4
    dt: float = DT

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the model, without its boundary."""
        return tuple(self.vp.shape)

    @property
    def cells(self) -> int:
        """The number of cells of the grid, including the boundary."""
        return prod(n + 2 * BOUNDARY for n in self.vp.shape)

    @property
    def updates(self) -> int:
        """The number of cell updates in the forward simulation of all shots."""
        return self.cells * self.wavelet.numel() * len(self.sources)

    def simulate(self, keep: bool = True, **options: Any) -> Simulation:
        """Simulate the shots with hpcfwi; keep: for a gradient; options: of `wave.Method`."""
        method = Method(
            order=self.order,
            boundary=BOUNDARY,
            boundary_frequency=FREQUENCY,
            max_velocity=FASTEST,
            **options,
        )
        where = (SPACING * self.sources, SPACING * self.receivers)
        shots = Acquisition(self.dt, self.wavelet, *where)
        return simulate({"vp": self.vp}, SPACING, shots, method, keep=keep, illuminate=False)

    def run(self, gradient: bool, **options: Any) -> Tensor:
        """Return the traces or, with `gradient`, the gradient of half the sum of their squares."""
        simulation = self.simulate(gradient, **options)
        if not gradient:
            return simulation.data
        return simulation.backpropagate(simulation.data).model["vp"].sum(0)


def make_shots(
    shape: tuple[int, ...],
    shots: int,
    steps: int,
    receivers: int = 100,
    order: int = 4,
    dt: float = DT,
    device: torch.device | str = "cpu",
) -> Shots:
    """Return shots that are evenly distributed along x, near the top of a model.

    shape: of the model, without its boundary; shots, steps, receivers: their numbers; device: of
    the model and the wavelet.
    """
    depth = torch.linspace(0.0, 1.0, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    vp = (SLOWEST + (FASTEST - SLOWEST) * depth).expand(shape).contiguous()

    def line(count: int, row: int) -> Tensor:
        ends = torch.linspace(EDGE, shape[-1] - 1 - EDGE, count + 2)
        columns = ends[1:-1].long()
        before = [
            torch.full_like(columns, place) for place in (row, *(n // 2 for n in shape[1:-1]))
        ]
        return torch.stack([*before, columns], dim=-1)

    wavelet = torch.tensor(ricker(FREQUENCY, steps, dt, delay=DELAY), dtype=torch.float32)
    places = line(shots, 2), line(receivers, 4)
    return Shots(vp.to(device), wavelet.to(device), *places, order, dt)


# Number of states with which recomputation is measured.
STATES = 16


def list_engines() -> dict[str, Engine]:
    """Return the engines that are available for 2-D models on CPUs, by name."""
    found = {name: cast(Engine, find(place)) for name, place in ENGINES.items()}
    return {
        name: engine
        for name, engine in found.items()
        if name != "gpu" and engine.available() is None
    }


def longest_interval(shots: Shots) -> int:
    """Return the largest interval up to the automatic one that divides the number of steps.

    Deepwave requires such an interval.
    """
    longest = sampling_interval(Auto(), np.asarray(shots.wavelet), DT, 1)
    return max(k for k in range(1, longest + 1) if shots.wavelet.numel() % k == 0)


def compare_engines(shots: Shots, repetitions: int) -> list[dict[str, Any]]:
    """Measure the time of all engines for the same shots.

    `ratio` is the time of the engine divided by that of `cpu`. Gradients use snapshots at the
    automatic interval. There is no gradient of `eager`, which stores all steps.
    """
    kept = Snapshots(longest_interval(shots))
    rows = []
    for gradient in (False, True):
        works = {
            name: partial(shots.run, gradient, engine=name, history=kept)
            for name in list_engines()
            if not (gradient and name == "eager")
        }
        for name, (seconds, ratio) in compare_in_turns(works, repetitions, "cpu").items():
            rows.append(
                {
                    "engine": name,
                    "case": "forward and gradient" if gradient else "forward",
                    "seconds": seconds,
                    "updates_per_second": (1 + gradient) * shots.updates / seconds,
                    "ratio": ratio,
                }
            )
    return rows


def list_histories(engine: Engine, interval: int) -> list[History]:
    """Return the exact history, then all histories of the engine at this interval."""
    offered = candidates(Auto(interval), engine.HISTORIES)
    fewer = (Recompute(interval, states=STATES) if isinstance(h, Recompute) else h for h in offered)
    return [Snapshots(1), *fewer]


def compare_histories(
    shots: Shots, name: str, histories: Sequence[History], repetitions: int
) -> list[dict[str, Any]]:
    """Measure the error of the gradient, the memory and the time of each history.

    The error is the relative L2 difference from the gradient of the first history, which is exact.
    """
    exact = shots.run(True, engine=name, history=histories[0]).double()
    works = {describe(h): partial(shots.run, True, engine=name, history=h) for h in histories}
    taken = compare_in_turns(works, repetitions, describe(histories[0]))
    rows = []
    for history in histories:
        found = shots.run(True, engine=name, history=history).double()
        seconds, ratio = taken[describe(history)]
        rows.append(
            {
                "engine": name,
                "history": describe(history),
                "error": float((found - exact).norm() / exact.norm()),
                "bytes": measure_peak(shots, name, history),
                "seconds": seconds,
                "ratio": ratio,
            }
        )
    return rows


def measure_peak(shots: Shots, engine: str, history: History) -> int:
    """Return the bytes that a gradient adds to the peak of a separate process.

    The process computes a small gradient first, which compiles the code.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_peak, shots, engine, history, torch.get_num_threads()).result()


def _peak(shots: Shots, engine: str, history: History, threads: int) -> int:
    torch.set_num_threads(threads)
    few = make_shots((60, 60), 1, 2 * (history.interval or 1) + 8, 4, shots.order)
    few.run(True, engine=engine, history=history)
    return measure_growth_of_memory(partial(shots.run, True, engine=engine, history=history))


def measure_growth(shots: Shots, repetitions: int) -> list[dict[str, Any]]:
    """Measure the time of gradients with more steps, cells and shots, using the engine's windows.

    `ratio` is the time relative to the first case; `growth` is the number of cells times steps
    times shots relative to it.
    """
    (nz, nx), steps = shots.vp.shape, shots.wavelet.numel()
    count, receivers = len(shots.sources), len(shots.receivers)
    cases = {
        f"{nz} x {nx} points, {steps} steps, {count} shots": shots,
        "twice the steps": make_shots((nz, nx), count, 2 * steps, receivers),
        "four times the steps": make_shots((nz, nx), count, 4 * steps, receivers),
        "four times the cells": make_shots((2 * nz, 2 * nx), count, steps, receivers),
        "twice the shots": make_shots((nz, nx), 2 * count, steps, receivers),
        "four times the shots": make_shots((nz, nx), 4 * count, steps, receivers),
    }
    works = {name: partial(case.run, True, engine="cpu") for name, case in cases.items()}
    taken = compare_in_turns(works, repetitions, next(iter(cases)))
    return [
        {
            "case": name,
            "seconds": seconds,
            "ratio": ratio,
            "growth": cases[name].updates / shots.updates,
        }
        for name, (seconds, ratio) in taken.items()
    ]


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
CASES = {"200x400": ((200, 400), 600, 4), "64x64x64": ((64, 64, 64), 150, 8)}
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
            *(*launcher, "-n", str(ranks), sys.executable, "-P", "-m", "hpcfwi.bench"),
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
