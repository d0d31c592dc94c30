"""Count the resources of a job that grow with the numbers of ranks, shots, receivers and cells.

    python benchmarks/scale.py

The program runs inversions with little computation on more ranks than cores. Each rank counts its
memory, its file descriptors, the bytes sent by its sockets, and its collectives with the bytes they
carry, by means of a subclass of `Context`. The resources of an epoch are the difference between two
runs in one process, of one and of several epochs, so that start and end cancel. MPI messages
between ranks of one host go through shared memory: they are included in the bytes of collectives,
but not in those of sockets.

`benchmarks/report.py` writes the tables in docs/cluster.md from the newest result.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np
import tomli_w
import torch
from numpy.typing import NDArray

from hpcfwi.bench import describe_machine
from hpcfwi.model import Grid, Model
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.launch import launch
from hpcfwi.run.job import run_job
from hpcfwi.storage.models import write_model
from hpcfwi.system import peak_resident_bytes

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
MPIRUN = ("mpirun", "--bind-to", "none", "--oversubscribe")
EPOCHS = (1, 4)  # epochs of the two runs
SPACING, DT, SAMPLES = 20.0, 0.002, 30  # m, s
BYTES_ACKED = 120  # offset of tcpi_bytes_acked, of 8 bytes, in Linux's tcp_info
TRACED_RANKS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Case:
    """The size of an inversion.

    points: along each axis; shots: of the survey; batch: shots of an epoch; receivers: of a shot.
    """

    ranks: int
    points: int
    shots: int
    batch: int
    receivers: int = 8


TINY = 41
SERIES = {
    "ranks": [Case(n, TINY, 128, 64) for n in (1, 2, 4, 8, 16, 32, 64)],
    "shots": [Case(2, TINY, n, 16) for n in (1_000, 10_000, 100_000)],
    "receivers": [Case(4, TINY, 10_000, 16, n) for n in (10, 100, 1_000)],
    "cells": [Case(16, n, 128, 16) for n in (250, 500, 1000)],
}


@dataclass
class Counted(Context):
    """A context that counts the collectives of a rank, and the bytes that they carry.

    opened: the largest number of descriptors during a collective; ranks have most descriptors in
    the middle of a run.
    """

    calls: int = 0
    carried: int = 0
    opened: int = 0

    @classmethod
    def like(cls, context: Context) -> Counted:
        return cls(**{each.name: getattr(context, each.name) for each in fields(Context)})

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        self._count(tensor.nbytes)
        return super().sum(tensor)

    def reduce_scatter(self, tensor: torch.Tensor, size: int) -> torch.Tensor:
        self._count(tensor.nbytes)
        return super().reduce_scatter(tensor, size)

    def all_gather_pieces(self, piece: torch.Tensor) -> torch.Tensor:
        self._count(self.size * piece.nbytes)
        return super().all_gather_pieces(piece)

    def bring_to_root(self, array: NDArray[Any], source: int) -> None:
        if source and self.rank in (0, source):
            self._count(array.nbytes)
        super().bring_to_root(array, source)

    def broadcast(self, value: T, source: int = 0) -> T:
        sent = super().broadcast(value, source)
        self._count(len(pickle.dumps(sent)))
        return sent

    def all_gather(self, value: T) -> list[T]:
        found = super().all_gather(value)
        self._count(sum(len(pickle.dumps(each)) for each in found))
        return found

    def _count(self, n_bytes: int) -> None:
        self.calls += 1
        self.carried += n_bytes
        self.opened = max(self.opened, count_descriptors())


@dataclass(frozen=True)
class Counts:
    """The resources that a rank has used so far; seconds: since the start of mpirun."""

    seconds: float
    cpu_seconds: float
    memory: int
    own_memory: int
    descriptors: int
    collectives: int
    carried: int
    sent: int

    @classmethod
    def of(cls, context: Counted, began: float) -> Counts:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(
            time.time() - began,
            used.ru_utime + used.ru_stime,
            peak_resident_bytes(),
            own_bytes(),
            max(context.opened, count_descriptors()),
            context.calls,
            context.carried,
            sum(sent_by_sockets()),
        )


def count_descriptors() -> int:
    """Return the number of open descriptors, without the one that is used to count them."""
    return len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH208


def own_bytes() -> int:
    """Return the bytes of memory that this process does not share with others."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def sent_by_sockets() -> Iterator[int]:
    """Yield the bytes that each TCP socket has sent and the other side has acknowledged."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):  # closed in the meantime, like the listed folder
            if entry.is_socket():
                with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                    if copy.family in (socket.AF_INET, socket.AF_INET6):
                        told = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_ACKED + 8)
                        yield struct.unpack_from("Q", told, BYTES_ACKED)[0]


def write_case(folder: Path, case: Case) -> Path:
    """Write the input of a case, with its starting model and gathers of noise; return its path."""
    folder.mkdir(parents=True)
    grid = Grid((case.points, case.points), (SPACING, SPACING), (0.0, 0.0))
    depth = np.linspace(1500.0, 3000.0, case.points, dtype=np.float32)[:, None]
    write_model(folder / "start.h5", Model(grid, {"vp": np.tile(depth, case.points)}))
    length = SPACING * (case.points - 1)
    draw = np.random.default_rng(0)
    with h5py.File(folder / "observed.h5", "w") as file:
        file.attrs.update(format="hpcfwi-gathers", version=1, dt=DT)
        gather = case.receivers, SAMPLES
        data = file.create_dataset("data", (case.shots, *gather), np.float32, chunks=(1, *gather))
        for part in data.iter_chunks():
            data[part] = draw.standard_normal((1, *gather), np.float32)
        x = np.linspace(0.0, length, case.shots)
        file["sources"] = np.stack([np.full_like(x, SPACING), x], axis=1)
        # Every shot has its own receivers, as in a streamer survey
        spread = np.clip(x[:, None] + np.linspace(-100.0, 100.0, case.receivers), 0.0, length)
        file["receivers"] = np.stack([np.full_like(spread, 2 * SPACING), spread], axis=2)
        t = np.pi * 20.0 * (np.arange(SAMPLES) * DT - 0.03)
        file["wavelet"] = ((1.0 - 2.0 * t**2) * np.exp(-(t**2))).astype(np.float32)
    tables = {
        "model": {"file": "start.h5", "initial": {"smooth": 2 * SPACING}},
        "survey": {"file": "observed.h5"},
        "wave": {"engine": "cpu", "order": 4, "boundary": 10},
        "inversion": {
            "epochs": EPOCHS[0],
            "batch": case.batch,
            "optimizer": {"name": "adam", "lr": 10.0, "eps": 1e-22},
        },
        "output": {"directory": str(folder / "run"), "every": 1000, "checkpoint": 1000},
    }
    path = folder / "input.toml"
    path.write_text(tomli_w.dumps(tables), encoding="utf-8")
    return path


def run_rank(path: Path, began: float) -> None:
    """Run one rank of a case; rank 0 writes the counts of all ranks to counts.json.

    began: time at which mpirun was started.
    """
    context = Counted.like(launch(gpus=False))
    counted = [Counts.of(context, began)]
    for epochs in EPOCHS:
        settings = [
            f"inversion.epochs={epochs}",
            f"output.directory='{path.parent / f'run{epochs}'}'",
        ]
        run_job(path, settings, context, quiet=True)
        counted.append(Counts.of(context, began))
    of_all = context.all_gather([asdict(counts) for counts in counted])
    if context.is_root:
        (path.parent / "counts.json").write_text(json.dumps(of_all))
    context.close()


def summarize(of_all: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the counts of rank 0 and the largest counts of the other ranks.

    of_all: the counts of each rank after its start, the short and the long run. If there is only
    one rank, both numbers are its own.
    """

    def of_epoch(rank: list[dict[str, Any]], what: str) -> float:
        shorter, longer = (after[what] - before[what] for before, after in pairwise(rank))
        return (longer - shorter) / (EPOCHS[1] - EPOCHS[0])

    def beside(take: Any) -> list[float]:
        return [take(of_all[0]), max(map(take, of_all[1:] or of_all))]

    return {
        "connected_s": max(rank[0]["seconds"] for rank in of_all),
        "first_epoch_s": max(rank[1]["seconds"] for rank in of_all),
        "start_cpu_s": beside(lambda rank: rank[0]["cpu_seconds"]),
        "memory": beside(lambda rank: rank[2]["memory"]),
        "own_memory": beside(lambda rank: rank[2]["own_memory"]),
        "descriptors": beside(lambda rank: max(counts["descriptors"] for counts in rank)),
        "begun_carried": beside(lambda rank: rank[1]["carried"]),
        "collectives": beside(lambda rank: of_epoch(rank, "collectives")),
        "carried": beside(lambda rank: of_epoch(rank, "carried")),
        "sent": beside(lambda rank: of_epoch(rank, "sent")),
    }


def measure(case: Case, timeout: float) -> dict[str, Any]:
    """Run a case and return its counts; timeout: s."""
    folder = Path(tempfile.mkdtemp())
    try:
        path = write_case(folder / "case", case)
        rank = [sys.executable, __file__, "--rank", str(path), "--began", str(time.time())]
        run([*MPIRUN, "-n", str(case.ranks), *rank], timeout)
        return {**asdict(case), **summarize(json.loads((folder / "case/counts.json").read_text()))}
    finally:
        shutil.rmtree(folder)


def count_file_calls(ranks: int, timeout: float) -> int | None:
    """Return the number of file-system calls of the last rank of `hpcfwi run`.

    It is None if strace is not installed.
    """
    strace = shutil.which("strace")
    if strace is None:
        return None
    folder = Path(tempfile.mkdtemp())
    try:
        path = write_case(folder / "case", Case(ranks, TINY, 128, 64))
        rank = [sys.executable, "-m", "hpcfwi", "run", str(path), "--quiet"]
        traced = [strace, "-f", "-c", "-e", "trace=file", "-o", str(folder / "calls"), *rank]
        others = ["-n", str(ranks - 1), *rank, ":"] if ranks > 1 else []
        run([*MPIRUN, *others, "-n", "1", *traced], timeout)
        (total,) = (
            line for line in (folder / "calls").read_text().splitlines() if line.endswith(" total")
        )
        return int(total.split()[3])
    finally:
        shutil.rmtree(folder)


def run(command: list[str], timeout: float) -> None:
    """Run a command with one thread per rank; if it fails, exit with its output.

    The output is otherwise dropped, since it has warnings about the noise in place of data. Ranks
    import this checkout, whose modules are compiled once, as in an installation.
    """
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        command,
        env={**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        timeout=timeout,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(done.stdout)


def main() -> None:
    """Run all cases and write the results after each, or run one rank of a case (--rank)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--output", type=Path, default=Path("runs/bench/scale.json"))
    parser.add_argument("--series", nargs="+", choices=SERIES, default=list(SERIES))
    parser.add_argument("--most", type=int, default=64, help="ranks: no case has more")
    parser.add_argument("--timeout", type=float, default=300.0, help="s, of a case")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, default=0.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        run_rank(arguments.rank, arguments.began)
        return
    numbers: dict[str, Any] = {"machine": describe_machine(threads=1)}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    for name in arguments.series:
        numbers[name] = []
        for case in SERIES[name]:
            if case.ranks <= arguments.most:
                print(name, case, flush=True)
                numbers[name].append(measure(case, arguments.timeout))
                arguments.output.write_text(json.dumps(numbers, indent=1) + "\n")
    # Last, because compiling the loops of the engine would add file-system calls
    numbers["file_calls"] = {n: count_file_calls(n, arguments.timeout) for n in TRACED_RANKS}
    arguments.output.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
