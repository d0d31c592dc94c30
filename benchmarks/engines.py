"""Compare the speed of `hpcfwi.wave` with Deepwave's `scalar` on the same CPU cores.

docs/performance.md publishes the ratios. Both programs run in this process, in turn, so that other
load on the machine affects both; a ratio is the median of the ratios within each repetition. Peaks
of memory are measured in separate processes. All simulations are in single precision, and sizes
include boundaries. `hpcfwi bench` compares the engines of a user's machine with smaller shots.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from hpcfwi.bench.waves import (
    BOUNDARY,
    DT,
    FASTEST,
    FREQUENCY,
    SPACING,
    Shots,
    describe_machine,
    longest_interval,
    make_shots,
    measure_growth_of_memory,
    median_ratio,
    time_in_turns,
)
from hpcfwi.wave import Snapshots

RECEIVERS = 60


@dataclass(frozen=True)
class Size:
    """The size of a simulation: points along each axis with boundary, shots and time steps."""

    points: tuple[int, ...]
    shots: int
    steps: int
    order: int = 4

    def make(self) -> Shots:
        shape = tuple(n - 2 * BOUNDARY for n in self.points)
        return make_shots(shape, self.shots, self.steps, RECEIVERS, self.order)


SIZES = (
    Size((391, 1191), shots=4, steps=500),
    Size((391, 1191), shots=4, steps=500, order=8),
    Size((391, 1191), shots=1, steps=500),
    Size((2000, 2000), shots=1, steps=300),
    Size((150, 150, 150), shots=1, steps=200),
)


@dataclass(frozen=True)
class Case:
    """A simulation or gradient for both programs; interval: steps between Deepwave's samples."""

    name: str
    gradient: bool
    interval: int


@dataclass(frozen=True)
class Timing:
    """The results of a case.

    ours, theirs: median seconds of hpcfwi and of Deepwave; speed: million cell updates per second
    of hpcfwi; ratio: median of theirs / ours.
    """

    size: Size
    case: str
    ours: float
    theirs: float
    speed: float
    ratio: float


def run_theirs(shots: Shots, case: Case) -> Tensor:
    """Return Deepwave's traces or, for a gradient, that of half the sum of their squares."""
    import deepwave

    count = len(shots.sources)
    vp = shots.vp.clone().requires_grad_(case.gradient)
    traces: Tensor = deepwave.scalar(
        vp,
        SPACING,
        DT,
        source_amplitudes=(-shots.wavelet / SPACING**2).expand(count, 1, -1),
        source_locations=shots.sources[:, None, :],
        receiver_locations=shots.receivers.expand(count, -1, -1),
        accuracy=shots.order,
        pml_width=BOUNDARY,
        pml_freq=FREQUENCY,
        max_vel=FASTEST,
        model_gradient_sampling_interval=case.interval,
    )[-1]
    if not case.gradient:
        return traces
    (0.5 * traces.square().sum()).backward()  # type: ignore[no-untyped-call]
    assert vp.grad is not None
    return vp.grad


def choose_works(shots: Shots, case: Case, interval: int) -> dict[str, Callable[[], object]]:
    return {
        "ours": partial(shots.run, case.gradient, engine="cpu", history=Snapshots(interval)),
        "theirs": partial(run_theirs, shots, case),
    }


def compare(size: Size, case: Case, interval: int, repetitions: int) -> Timing:
    """Measure both programs in turn, after one run of each that is not counted."""
    shots = size.make()
    seconds = time_in_turns(choose_works(shots, case, interval), repetitions)
    ours, theirs = (statistics.median(seconds[name]) for name in ("ours", "theirs"))
    ratio = median_ratio(seconds["theirs"], seconds["ours"])
    speed = (1 + case.gradient) * shots.updates / ours / 1e6
    return Timing(size, case.name, ours, theirs, speed, ratio)


def list_cases(interval: int) -> list[Case]:
    return [
        Case("forward", False, 1),
        Case(f"gradient, both every {interval} steps", True, interval),
        Case("gradient, Deepwave's default", True, 1),
    ]


def measure_peaks(threads: int) -> dict[str, int]:
    """Return the bytes that the gradient of the first size adds to the peak of each program."""
    command = [sys.executable, __file__, "--threads", str(threads), "--peak"]
    return {
        name: int(subprocess.run([*command, name], capture_output=True, check=True).stdout)
        for name in ("ours", "theirs")
    }


def print_peak(name: str) -> None:
    """Print the bytes that the gradient of one program adds to the peak of this process.

    The interval is the same for both programs. A small gradient is computed first.
    """
    few, all_of_it = Size((101, 201), 1, 200).make(), SIZES[0].make()
    interval = longest_interval(all_of_it)
    case = Case(name, True, interval)
    if name == "theirs":
        works = [partial(run_theirs, shots, case) for shots in (few, all_of_it)]
    else:
        kept = Snapshots(interval, format="float16")  # the automatic choice
        works = [partial(shots.run, True, engine="cpu", history=kept) for shots in (few, all_of_it)]
    works[0]()
    print(measure_growth_of_memory(works[1]))


def show(timings: list[Timing], peaks: dict[str, int], console: Console) -> None:
    """Print a table for each size, and the memory."""
    for size, cases in groupby(timings, key=attrgetter("size")):
        points = " x ".join(map(str, size.points))
        title = f"{points} points, {size.shots} shots, {size.steps} steps, order {size.order}"
        table = Table("case", title=title, title_justify="left")
        for heading in ("hpcfwi", "Deepwave", "M cells/s", "times as fast"):
            table.add_column(heading, justify="right")
        for t in cases:
            seconds = (f"{t.ours:.2f} s", f"{t.theirs:.2f} s")
            table.add_row(t.case, *seconds, f"{t.speed:.0f}", f"{t.ratio:.1f}")
        console.print(table)
    console.print(
        f"Memory of the first gradient at the same interval: {peaks['ours'] / 1e6:.0f} MB, "
        f"Deepwave {peaks['theirs'] / 1e6:.0f} MB"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="write the numbers to this JSON file")
    parser.add_argument("--peak", choices=("ours", "theirs"), help="print a peak in bytes, no more")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    if arguments.peak:
        print_peak(arguments.peak)
        return
    console, timings = Console(), []
    for size in SIZES:
        interval = longest_interval(size.make())
        for case in list_cases(interval):
            with console.status(f"{size}: {case.name}"):
                timings.append(compare(size, case, interval, arguments.repetitions))
    peaks = measure_peaks(arguments.threads)
    show(timings, peaks, console)
    if arguments.output is not None:
        numbers = {
            "machine": describe_machine(arguments.threads),
            "repetitions": arguments.repetitions,
            "timings": [asdict(t) for t in timings],
            "peaks": peaks,
        }
        arguments.output.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
