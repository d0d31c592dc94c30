"""Compare the speed of first-order equations with Deepwave on one thread.

    make bench
    PYTHON=build/peers/bin/python
    $PYTHON benchmarks/equations.py --output benchmarks/results/equations_MACHINE_DATE.json

One shot in the middle of a 2-D grid, in single precision. In a short record the wave reaches the
edges of the grid only at the end; in a long one it has filled the grid after a third of the steps.
The arrays of the larger grid do not fit into the caches.

Gradients are those with respect to all parameters of the equation; both programs store their fields
at the same interval, hpcfwi in float16. The programs run in turn, as in `engines.py`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from hpcfwi.bench import compare_in_turns, describe_machine
from hpcfwi.wave import Snapshots, propagate
from hpcfwi.wave.numerics import ricker

POINTS, LARGE, BOUNDARY = (340, 640), (680, 1280), 20  # including the boundaries
SPACING, DT = 10.0, 1.5e-3  # m, s
FREQUENCY, FASTEST = 10.0, 2000.0  # Hz, m/s
INTERVAL = 8  # steps between samples, below the Nyquist rate of the wavelet
SHORT, LONG, LONGEST = 504, 1504, 3008  # steps; Deepwave needs multiples of INTERVAL


@dataclass(frozen=True)
class Case:
    """A simulation or a gradient for both programs."""

    equation: str
    order: int
    points: tuple[int, ...]
    steps: int
    gradient: bool


CASES = [
    Case(equation, order, points, steps, gradient)
    for equation in ("elastic", "acoustic-density")
    for order in (4, 8)
    for points, steps, gradient in (
        (POINTS, SHORT, False),
        (POINTS, LONG, False),
        (LARGE, LONGEST, False),
        (POINTS, SHORT, True),
        (POINTS, LONG, True),
    )
]


def make_model(equation: str, points: tuple[int, ...]) -> dict[str, Tensor]:
    """Return a medium with small changes from cell to cell."""
    shape = tuple(n - 2 * BOUNDARY for n in points)
    noise = 0.05 * torch.rand(shape, generator=torch.Generator().manual_seed(0))
    model = {"vp": FASTEST * (0.999 - noise), "rho": 2000.0 * (1.0 + noise)}
    if equation == "elastic":
        model["vs"] = 0.5 * model["vp"]
    return model


def make_work(case: Case, ours: bool) -> Callable[[], object]:
    """Return a function that runs a case with one of the programs."""
    model = make_model(case.equation, case.points)
    shape = model["vp"].shape
    wavelet = torch.tensor(ricker(FREQUENCY, case.steps, DT, 0.12), dtype=torch.float32)
    columns = torch.arange(10, shape[1] - 10, 10)
    receivers = torch.stack([torch.full_like(columns, 5), columns], dim=-1)
    source = torch.tensor([[shape[0] // 2, shape[1] // 2]])
    run = partial(run_ours if ours else run_theirs, case)
    return partial(run, model, wavelet, source, receivers)


def run_ours(
    case: Case, model: dict[str, Tensor], wavelet: Tensor, source: Tensor, receivers: Tensor
) -> object:
    """Return the pressure, or the gradient of half the sum of its squares."""
    leaves = {name: array.clone().requires_grad_(case.gradient) for name, array in model.items()}
    traces = propagate(
        case.equation,
        leaves,
        SPACING,
        DT,
        wavelet,
        SPACING * source,
        SPACING * receivers,
        order=case.order,
        boundary=BOUNDARY,
        max_velocity=FASTEST,
        boundary_frequency=FREQUENCY,
        history=Snapshots(INTERVAL, format="float16"),
    )
    return _finish(case, traces, leaves)


def run_theirs(
    case: Case, model: dict[str, Tensor], wavelet: Tensor, source: Tensor, receivers: Tensor
) -> object:
    """Do the same with Deepwave."""
    import deepwave

    leaves = {name: array.clone().requires_grad_(case.gradient) for name, array in model.items()}
    settings = {
        "grid_spacing": SPACING,
        "dt": DT,
        "accuracy": case.order,
        "pml_width": BOUNDARY,
        "pml_freq": FREQUENCY,
        "max_vel": FASTEST,
        "model_gradient_sampling_interval": INTERVAL,
        "receiver_locations_p": receivers[None],
    }
    if case.equation == "elastic":
        shear = leaves["rho"] * leaves["vs"].square()
        lamb = leaves["rho"] * leaves["vp"].square() - 2.0 * shear
        out = deepwave.elastic(
            lamb,
            shear,
            1.0 / leaves["rho"],
            source_amplitudes_pressure_rate=wavelet[None, None],
            source_locations_pressure_rate=source[None],
            **settings,
        )
    else:
        out = deepwave.acoustic(
            leaves["vp"],
            leaves["rho"],
            source_amplitudes_volume_rate=wavelet[None, None],
            source_locations_volume_rate=source[None],
            **settings,
        )
    traces = next(
        t for t in reversed(out) if t.ndim == 3 and t.shape[1:] == (len(receivers), case.steps)
    )
    return _finish(case, traces, leaves)


def _finish(case: Case, traces: Tensor, leaves: dict[str, Tensor]) -> object:
    if not case.gradient:
        return traces
    return torch.autograd.grad(0.5 * traces.square().sum(), list(leaves.values()))


def compare(case: Case, repetitions: int) -> dict[str, object]:
    """Return the median seconds of both programs, and the median of their ratios."""
    works = {"ours": make_work(case, ours=True), "theirs": make_work(case, ours=False)}
    taken = compare_in_turns(works, repetitions, "ours")
    (ours, _), (theirs, ratio) = taken["ours"], taken["theirs"]
    return {**asdict(case), "ours": ours, "theirs": theirs, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=Path, help="write the numbers to this JSON file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console, timings = Console(), []
    for case in CASES:
        with console.status(f"{case}"):
            timings.append(compare(case, arguments.repetitions))
        console.print(timings[-1])
    if arguments.output is not None:
        numbers = {
            "machine": describe_machine(1),
            "repetitions": arguments.repetitions,
            "interval": INTERVAL,
            "timings": timings,
        }
        arguments.output.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
