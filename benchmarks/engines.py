"""Compare the speed of `hpcfwi.wave` with Deepwave's `scalar` on the same CPU cores.

    make bench
    PYTHON=build/peers/bin/python
    $PYTHON benchmarks/engines.py --output benchmarks/results/engines_MACHINE_DATE.json
    $PYTHON benchmarks/engines.py --long --output benchmarks/results/long_MACHINE_DATE.json

With `--long`, forward simulations of records in which the wave fills the grid are compared with
Deepwave and Devito, on one thread; then gradients and two threads with forward simulations and one
thread. Devito needs a C compiler. `make bench` installs both programs into build/peers, whose
Python runs this file.

docs/performance.md publishes the ratios. The programs run in this process, in turn, so that other
load on the machine affects all; a ratio is the median of the ratios within each repetition. Peaks
of memory are measured in separate processes. All simulations are in single precision, and sizes
include boundaries. `hpcfwi bench` compares the engines of a user's machine with smaller shots.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from hpcfwi.bench import (
    BOUNDARY,
    DT,
    FASTEST,
    FREQUENCY,
    SPACING,
    Shots,
    compare_in_turns,
    describe_machine,
    longest_interval,
    make_shots,
    measure_growth_of_memory,
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

# Records in which the wave fills the grid, from a source in its middle.
LONG = tuple(
    Size(points, 1, steps, order)
    for points, steps in (((181, 721), 3000), ((431, 1231), 3000), ((200, 200, 200), 200))
    for order in (4, 8)
)
# Long enough for the whole wavelet, so that the gradient needs few samples.
LEAST_STEPS_OF_GRADIENT = 300
COPIED = 2**26  # numbers of an array that is copied to measure the rate of the memory


@dataclass(frozen=True)
class Case:
    """A simulation or gradient for both programs; interval: steps between Deepwave's samples."""

    name: str
    gradient: bool
    interval: int


def run_deepwave(shots: Shots, gradient: bool, interval: int) -> Tensor:
    """Return Deepwave's traces or, for a gradient, that of half the sum of their squares.

    interval: steps between the samples that Deepwave stores.
    """
    import deepwave

    count, device = len(shots.sources), shots.vp.device
    vp = shots.vp.clone().requires_grad_(gradient)
    traces: Tensor = deepwave.scalar(
        vp,
        SPACING,
        shots.dt,
        source_amplitudes=(-shots.wavelet / SPACING**2).expand(count, 1, -1),
        source_locations=shots.sources[:, None, :].to(device),
        receiver_locations=shots.receivers.to(device).expand(count, -1, -1),
        accuracy=shots.order,
        pml_width=BOUNDARY,
        pml_freq=FREQUENCY,
        max_vel=FASTEST,
        model_gradient_sampling_interval=interval,
    )[-1]
    if not gradient:
        return traces
    (0.5 * traces.square().sum()).backward()  # type: ignore[no-untyped-call]
    assert vp.grad is not None
    return vp.grad


def prepare_devito(shots: Shots) -> Callable[[], object]:
    """Return a function that simulates a shot with Devito, compiled for one thread.

    Its boundary has as many cells as ours, with plain damping in place of a CPML.
    """
    import devito

    devito.configuration["language"] = "C"
    devito.configuration["log-level"] = "ERROR"
    points = tuple(n + 2 * BOUNDARY for n in shots.vp.shape)
    grid = devito.Grid(points, extent=[SPACING * (n - 1) for n in points], dtype=np.float32)
    p = devito.TimeFunction(name="p", grid=grid, time_order=2, space_order=shots.order)
    squared_slowness, damping = (
        devito.Function(name=name, grid=grid, space_order=shots.order) for name in ("m", "d")
    )
    squared_slowness.data[:] = np.pad(shots.vp.numpy(), BOUNDARY, mode="edge") ** -2.0
    # s/m^2; it is zero in the model, and its strength does not change the speed.
    damping.data[:] = 1e-5 * (np.pad(np.ones(shots.vp.shape), BOUNDARY) == 0)
    steps = shots.wavelet.numel()

    def points_at(name: str, places: Tensor) -> devito.SparseTimeFunction:
        where = SPACING * (places.numpy() + BOUNDARY)
        return devito.SparseTimeFunction(
            name=name, grid=grid, npoint=len(where), nt=steps, coordinates=where
        )

    source, receivers = points_at("s", shots.sources), points_at("r", shots.receivers)
    source.data[:] = shots.wavelet.numpy()[:, None]
    equation = squared_slowness * p.dt2 - p.laplace + damping * p.dt
    update = devito.Eq(p.forward, devito.solve(equation, p.forward))
    emitted = source * DT**2 / (squared_slowness * SPACING ** len(points))
    injected = source.inject(p.forward, expr=emitted)
    operator = devito.Operator([update, injected, receivers.interpolate(p)])

    def simulate() -> object:
        p.data[:] = 0
        return operator.apply(time_M=steps - 2, dt=DT)

    return simulate


def make_long(size: Size) -> Shots:
    """Return a shot from the middle of its grid."""
    shots = size.make()
    return replace(shots, sources=torch.tensor([[n // 2 for n in shots.vp.shape]]))


def compare_long(size: Size, repetitions: int) -> dict[str, object]:
    """Return the median seconds of the three programs, and the ratios to ours."""
    shots = make_long(size)
    works: dict[str, Callable[[], object]] = {
        "ours": partial(shots.run, False, engine="cpu"),
        "devito": prepare_devito(shots),
        "deepwave": partial(run_deepwave, shots, False, 1),
    }
    taken = compare_in_turns(works, repetitions, "ours")
    return {
        "size": asdict(size),
        "updates": shots.updates,
        "seconds": {name: seconds for name, (seconds, _) in taken.items()},
        "ratios": {name: ratio for name, (_, ratio) in taken.items()},
    }


def compare_passes(size: Size, repetitions: int) -> dict[str, object]:
    """Return the median seconds of forward simulations and gradients on one and on two threads."""
    size = replace(size, steps=max(size.steps, LEAST_STEPS_OF_GRADIENT))
    shots = make_long(size)

    def run(gradient: bool, threads: int) -> None:
        torch.set_num_threads(threads)
        shots.run(gradient, engine="cpu")

    works = {
        f"{name}, {threads}": partial(run, gradient, threads)
        for name, gradient in (("forward", False), ("gradient", True))
        for threads in (1, 2)
    }
    taken = compare_in_turns(works, repetitions, "forward, 1")
    return {
        "size": asdict(size),
        "seconds": {name: seconds for name, (seconds, _) in taken.items()},
    }


def measure_copying() -> float:
    """Return the bytes a second that one thread reads and writes when it copies an array."""
    source, target = np.ones(COPIED, np.float32), np.empty(COPIED, np.float32)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - start)
    return 2 * source.nbytes / best


def compare(size: Size, case: Case, interval: int, repetitions: int) -> dict[str, Any]:
    """Measure both programs in turn, after one run of each that is not counted.

    The result has the median seconds of hpcfwi and of Deepwave, million cell updates per second of
    hpcfwi, and the median of the ratios.
    """
    shots = size.make()
    works = {
        "ours": partial(shots.run, case.gradient, engine="cpu", history=Snapshots(interval)),
        "theirs": partial(run_deepwave, shots, case.gradient, case.interval),
    }
    taken = compare_in_turns(works, repetitions, "ours")
    (ours, _), (theirs, ratio) = taken["ours"], taken["theirs"]
    speed = (1 + case.gradient) * shots.updates / ours / 1e6
    found = {"ours": ours, "theirs": theirs, "speed": speed, "ratio": ratio}
    return {"size": asdict(size), "case": case.name, **found}


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
    if name == "theirs":
        works = [partial(run_deepwave, shots, True, interval) for shots in (few, all_of_it)]
    else:
        kept = Snapshots(interval, format="float16")  # the automatic choice
        works = [partial(shots.run, True, engine="cpu", history=kept) for shots in (few, all_of_it)]
    works[0]()
    print(measure_growth_of_memory(works[1]))


def show(timings: list[dict[str, Any]], peaks: dict[str, int], console: Console) -> None:
    """Print a table for each size, and the memory."""
    for size, cases in groupby(timings, key=itemgetter("size")):
        points = " x ".join(map(str, size["points"]))
        title = "{shots} shots, {steps} steps, order {order}".format_map(size)
        title = f"{points} points, {title}"
        table = Table("case", title=title, title_justify="left")
        for heading in ("hpcfwi", "Deepwave", "M cells/s", "times as fast"):
            table.add_column(heading, justify="right")
        for t in cases:
            seconds = (f"{t['ours']:.2f} s", f"{t['theirs']:.2f} s")
            table.add_row(t["case"], *seconds, f"{t['speed']:.0f}", f"{t['ratio']:.1f}")
        console.print(table)
    console.print(
        f"Memory of the first gradient at the same interval: {peaks['ours'] / 1e6:.0f} MB, "
        f"Deepwave {peaks['theirs'] / 1e6:.0f} MB"
    )


def run_long(repetitions: int, output: Path | None) -> None:
    """Compare programs, passes and threads in long records, and print the results."""
    console = Console()

    def compare_all(compare: Callable[[Size, int], dict[str, object]]) -> list[dict[str, object]]:
        found = []
        for size in LONG:
            torch.set_num_threads(1)
            with console.status(f"{size}"):
                found.append(compare(size, repetitions))
            console.print(found[-1])
        return found

    timings, passes = compare_all(compare_long), compare_all(compare_passes)
    if output is not None:
        numbers = {
            "machine": {**describe_machine(1), "devito": version("devito")},
            "repetitions": repetitions,
            "copying": measure_copying(),
            "timings": timings,
            "passes": passes,
        }
        output.write_text(json.dumps(numbers, indent=2) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--long", action="store_true", help="long records, with Devito, one thread")
    parser.add_argument("--output", type=Path, help="write the numbers to this JSON file")
    parser.add_argument("--peak", choices=("ours", "theirs"), help="print a peak in bytes, no more")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    if arguments.peak:
        print_peak(arguments.peak)
        return
    if arguments.long:
        run_long(arguments.repetitions, arguments.output)
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
            "timings": timings,
            "peaks": peaks,
        }
        arguments.output.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
