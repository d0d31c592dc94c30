"""All measurements of this machine, one after the other, and the table of what they say."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from hpcfwi.bench.ranks import compare_ranks
from hpcfwi.bench.waves import (
    compare_engines,
    compare_histories,
    describe_machine,
    list_engines,
    list_histories,
    longest_interval,
    make_shots,
    measure_growth,
)
from hpcfwi.errors import refusing
from hpcfwi.report.log import terminal_width
from hpcfwi.system import written_whole

FILE = "bench.json"
REPETITIONS = 3


def run_bench(
    directory: Path, threads: int, tell: Callable[[str], None], small: bool = False
) -> dict[str, Any]:
    """Measure everything, about two minutes on two cores, and write DIRECTORY/bench.json.

    tell: is told what is being measured; small: with shots that take no time, for tests.
    Raises `InputError` where the directory cannot be written.
    """
    _check_writable(directory)
    torch.set_num_threads(threads)
    shape, steps = ((40, 60), 40) if small else ((160, 320), 400)
    shots = make_shots(shape, threads, steps, receivers=20 if small else 100)
    repetitions = 1 if small else REPETITIONS
    histories = list_histories(list_engines()["cpu"], longest_interval(shots))
    if small:
        histories = histories[:2]
    numbers: dict[str, Any] = {
        "machine": describe_machine(threads),
        "repetitions": repetitions,
        "case": {"points": list(shape), "steps": steps, "shots": threads, "cells": shots.cells},
    }
    # The ranks come first: HDF5 for several ranks starts MPI in this process when it is imported.
    parts: dict[str, Callable[[Path], Any]] = {
        "ranks": lambda _: compare_ranks(repetitions, 1 if small else None),
        "engines": lambda _: compare_engines(shots, repetitions),
        "histories": lambda _: compare_histories(shots, "cpu", histories, repetitions),
        "growth": lambda _: measure_growth(shots, repetitions),
        "reading": lambda folder: _files().compare_reading(folder, repetitions),
        "checkpoints": lambda folder: _files().measure_checkpoints(folder, repetitions),
    }
    for name, measure in parts.items():
        tell(f"measuring {name}")
        with tempfile.TemporaryDirectory(dir=directory) as folder:
            numbers[name] = measure(Path(folder))
    with written_whole(directory / FILE) as file:
        file.write(json.dumps(numbers, indent=2).encode() + b"\n")
    return numbers


def show_numbers(numbers: dict[str, Any]) -> None:
    """Print what was measured."""
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
    for table in _tables(numbers):
        console.print(table)


def _tables(numbers: dict[str, Any]) -> Iterator[Table | str]:
    yield _table(
        ("engine", "case", "s", "M cells/s", "cpu is x times as fast"),
        (
            (r["engine"], r["case"], f"{r['seconds']:.3f}", f"{r['updates_per_second'] / 1e6:.0f}",
             f"{r['ratio']:.1f}")
            for r in numbers["engines"]
        ),
    )  # fmt: skip
    yield _table(
        ("history (cpu)", "error", "MB", "s"),
        (
            (r["history"], f"{r['error']:.1e}", f"{r['bytes'] / 1e6:.0f}", f"{r['seconds']:.3f}")
            for r in numbers["histories"]
        ),
    )
    if numbers["ranks"]:
        yield _table(
            ("ranks", "s an epoch", "efficiency"),
            (
                (str(r["ranks"]), f"{r['seconds']:.3f}", f"{100 * r['efficiency']:.0f} %")
                for r in numbers["ranks"]
            ),
        )
    else:
        yield "No mpirun that works: ranks were not measured."
    yield _table(
        ("cost of a gradient (cpu)", "s", "times", "times the work"),
        (
            (r["case"], f"{r['seconds']:.3f}", f"{r['ratio']:.1f}", f"{r['growth']:.1f}")
            for r in numbers["growth"]
        ),
    )
    reading, checkpoints = numbers["reading"], numbers["checkpoints"]
    yield (
        f"Reading gathers {reading['gathers_bytes_per_second'] / 1e6:.0f} MB/s, a plain file "
        f"{reading['plain_bytes_per_second'] / 1e6:.0f} MB/s (in cache): {reading['ratio']:.2f} of "
        "its rate"
    )
    yield (
        f"A checkpoint of {checkpoints['bytes'] / 1e6:.0f} MB is written in "
        f"{checkpoints['write']:.3f} s and read in {checkpoints['read']:.3f} s"
    )


def _table(heads: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Table:
    table = Table(*heads)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    return table


def _files() -> Any:
    from hpcfwi.bench import files

    return files


def _check_writable(directory: Path) -> None:
    remedy = "Choose a directory that you may write, with --output."
    with refusing(str(directory), "cannot be written", remedy):
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
