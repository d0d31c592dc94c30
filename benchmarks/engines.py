"""How fast `hpcfwi.wave.acoustic` is beside Deepwave's `scalar`, on the same cores.

Both run in this process, in turn, so that whatever else the machine does meets both; a ratio is
the median over the repetitions of the ratios within one. 391 x 1191 points, boundary
included, in single precision.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from hpcfwi.wave import acoustic
from hpcfwi.wave.history import Auto, sampling_interval
from hpcfwi.wave.wavelet import ricker

SHAPE, SPACING, DT, FREQUENCY, BOUNDARY = (351, 1151), 12.5, 1e-3, 10.0, 20
POINTS = (SHAPE[0] + 2 * BOUNDARY) * (SHAPE[1] + 2 * BOUNDARY)
SLOWEST, FASTEST = 1500.0, 4500.0
RECEIVERS = 300


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


@dataclass(frozen=True)
class Survey:
    """Shots and receivers at grid points, which both programs treat alike."""

    vp: Tensor
    wavelet: Tensor
    sources: Tensor
    receivers: Tensor

    def run_ours(self, order: int, vp: Tensor) -> Tensor:
        return acoustic(
            vp,
            SPACING,
            DT,
            self.wavelet,
            self.sources * SPACING,
            self.receivers * SPACING,
            order=order,
            boundary=BOUNDARY,
            boundary_frequency=FREQUENCY,
            max_velocity=FASTEST,
            engine="cpu",
        )

    def run_theirs(self, order: int, interval: int, vp: Tensor) -> Tensor:
        import deepwave

        shots = len(self.sources)
        traces: Tensor = deepwave.scalar(
            vp,
            SPACING,
            DT,
            source_amplitudes=(-self.wavelet / SPACING**2).expand(shots, 1, -1),
            source_locations=self.sources[:, None, :],
            receiver_locations=self.receivers.expand(shots, -1, -1),
            accuracy=order,  # type: ignore[arg-type]  # it is one of its literals
            pml_width=BOUNDARY,
            pml_freq=FREQUENCY,
            max_vel=FASTEST,
            model_gradient_sampling_interval=interval,
        )[-1]
        return traces


def make_survey(shots: int, steps: int) -> Survey:
    """A model that grows faster with depth, shots and receivers near its top."""
    depth = torch.linspace(0.0, 1.0, SHAPE[0])[:, None]
    vp = (SLOWEST + (FASTEST - SLOWEST) * depth).expand(SHAPE).contiguous()

    def line(count: int, row: int) -> Tensor:
        columns = torch.linspace(50, SHAPE[1] - 50, count).long()
        return torch.stack([torch.full_like(columns, row), columns], dim=-1)

    wavelet = torch.tensor(ricker(FREQUENCY, steps, DT, delay=0.12), dtype=torch.float32)
    return Survey(vp, wavelet, line(shots, 2), line(RECEIVERS, 4))


def measure_seconds(simulate: Callable[[Tensor], Tensor], vp: Tensor, gradient: bool) -> float:
    """Wall time of one simulation, and of its gradient where asked."""
    vp = vp.clone().requires_grad_(gradient)
    start = time.perf_counter()
    data = simulate(vp)
    if gradient:
        (data**2).sum().backward()  # type: ignore[no-untyped-call]
    return time.perf_counter() - start


def compare(survey: Survey, case: Case, repetitions: int) -> Timing:
    """Time both programs in turn, after one run of each that is not counted."""

    def ours() -> float:
        return measure_seconds(lambda vp: survey.run_ours(case.order, vp), survey.vp, case.gradient)

    def theirs() -> float:
        return measure_seconds(
            lambda vp: survey.run_theirs(case.order, case.interval, vp), survey.vp, case.gradient
        )

    ours(), theirs()
    pairs = [(ours(), theirs()) for _ in range(repetitions)]
    our_seconds, their_seconds = (statistics.median(times) for times in zip(*pairs, strict=True))
    updates = POINTS * len(survey.sources) * survey.wavelet.numel()
    ratio = statistics.median(b / a for a, b in pairs)
    speed = updates / our_seconds / 1e6
    return Timing(case.name, case.order, our_seconds, their_seconds, speed, ratio)


def list_cases(order: int, interval: int) -> list[Case]:
    return [
        Case("forward", order, False, 1),
        Case(f"forward + gradient, both every {interval} steps", order, True, interval),
        Case("forward + gradient, Deepwave's default", order, True, 1),
    ]


def describe_machine(threads: int) -> dict[str, str | int]:
    """Where and when the numbers were taken, and with what."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    packages = ("hpcfwi", "deepwave", "torch", "numba", "numpy")
    return {
        "machine": platform.node(),
        "cpu": models[0] if models else platform.processor(),
        "threads": threads,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


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
    survey = make_survey(arguments.shots, arguments.steps)
    longest = sampling_interval(Auto(), np.asarray(survey.wavelet), DT, substeps=1)
    # Deepwave wants an interval that divides the number of steps.
    interval = max(k for k in range(1, longest + 1) if arguments.steps % k == 0)
    console = Console()
    timings = []
    for order in arguments.orders:
        for case in list_cases(order, interval):
            with console.status(f"order {order}: {case.name}"):
                timings.append(compare(survey, case, arguments.repetitions))
    show(timings, console)
    if arguments.output is not None:
        numbers = {
            "machine": describe_machine(arguments.threads),
            "points": POINTS,
            "shots": arguments.shots,
            "steps": arguments.steps,
            "repetitions": arguments.repetitions,
            "timings": [asdict(t) for t in timings],
        }
        arguments.output.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
