"""How fast `hpcfwi.wave` is beside Deepwave's `scalar`, on the same cores: the published ratios.

Both run in this process, in turn, so that whatever else the machine does meets both; a ratio is
the median over the repetitions of the ratios within one. 391 x 1191 points, boundary included, in
single precision. `hpcfwi bench` compares the engines that a user has on smaller shots.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from hpcfwi.bench.measure import describe_machine, median_ratio, time_in_turns
from hpcfwi.bench.shots import BOUNDARY, DT, FASTEST, FREQUENCY, SPACING, Shots, make_shots
from hpcfwi.bench.waves import longest_interval
from hpcfwi.wave import Snapshots

SHAPE, RECEIVERS = (351, 1151), 300


@dataclass(frozen=True)
class Case:
    """One thing to do in both programs; interval: steps between the fields that Deepwave keeps."""

    name: str
    order: int
    gradient: bool
    interval: int


@dataclass(frozen=True)
class Timing:
    """Medians: s of both programs, million cell updates a second of ours, and theirs / ours."""

    case: str
    order: int
    ours: float
    theirs: float
    speed: float
    ratio: float


def run_theirs(shots: Shots, case: Case) -> Tensor:
    """Deepwave's traces or, of half their squared sum, the gradient."""
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
        accuracy=case.order,  # type: ignore[arg-type]  # it is one of its literals
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


def compare(shots: Shots, case: Case, interval: int, repetitions: int) -> Timing:
    """Time both programs in turn, after one run of each that is not counted."""
    works: dict[str, Callable[[], object]] = {
        "ours": partial(shots.run, case.gradient, engine="cpu", history=Snapshots(interval)),
        "theirs": partial(run_theirs, shots, case),
    }
    seconds = time_in_turns(works, repetitions)
    ours, theirs = (statistics.median(seconds[name]) for name in ("ours", "theirs"))
    ratio = median_ratio(seconds["theirs"], seconds["ours"])
    return Timing(case.name, case.order, ours, theirs, shots.updates / ours / 1e6, ratio)


def list_cases(order: int, interval: int) -> list[Case]:
    return [
        Case("forward", order, False, 1),
        Case(f"forward + gradient, both every {interval} steps", order, True, interval),
        Case("forward + gradient, Deepwave's default", order, True, 1),
    ]


def show(timings: list[Timing], console: Console) -> None:
    table = Table("case", "order", "hpcfwi", "Deepwave", "M cells/s", "times as fast")
    for t in timings:
        cells = (f"{t.ours:.2f} s", f"{t.theirs:.2f} s", f"{t.speed:.0f}", f"{t.ratio:.1f}")
        table.add_row(t.case, str(t.order), *cells)
    console.print(table)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--orders", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--output", type=Path, help="write the numbers to this JSON file")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    console, timings = Console(), []
    for order in arguments.orders:
        shots = make_shots(SHAPE, arguments.shots, arguments.steps, RECEIVERS, order)
        interval = longest_interval(shots)
        for case in list_cases(order, interval):
            with console.status(f"order {order}: {case.name}"):
                timings.append(compare(shots, case, interval, arguments.repetitions))
    show(timings, console)
    if arguments.output is not None:
        numbers = {
            "machine": describe_machine(arguments.threads),
            "points": shots.cells,
            "shots": arguments.shots,
            "steps": arguments.steps,
            "repetitions": arguments.repetitions,
            "timings": [asdict(t) for t in timings],
        }
        arguments.output.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
