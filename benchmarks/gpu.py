"""Measure the speed of the `gpu` engine on this GPU, relative to its copy bandwidth and Deepwave.

For each grid and order, a forward simulation and the gradient with each history are measured. In
single precision a cell update moves at least 16 bytes: the field and the model are read, and the
previous field is read and written. Absorbing cells move 16 bytes more per axis, because two memory
variables are read and written. A gradient has twice as many updates, forwards and backwards.
`of copy` is the bandwidth of these 16 bytes relative to that of a copy on the GPU; `of floor`
includes the bytes of absorbing cells.

The tiles are timed first, on the same grids for all options, then the kernels of a step. The memory
of one shot is measured at the end. The program takes at most eight minutes; cases for which there
is no time are left out and listed. The file of results is written after each case.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.engines import run_deepwave
from hpcfwi.bench import BOUNDARY, DELAY, DT, EDGE, FREQUENCY, Shots, make_shots
from hpcfwi.wave import Boundary, Recompute, Simulation, Snapshots
from hpcfwi.wave.engines.gpu import engine as gpu
from hpcfwi.wave.engines.gpu import kernels
from hpcfwi.wave.engines.gpu.device import cache_of, find_disk
from hpcfwi.wave.history import History, kind_of, sampling_interval
from hpcfwi.wave.numerics import ricker

BYTES_AN_UPDATE = 16
RECEIVERS = 300
# Size of the copy in bytes, and its largest share of the GPU's free memory.
COPIED, COPIED_SHARE = 2**33, 0.4
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Case:
    """A case: the shape of the model, the number of shots in a batch, and of time steps."""

    shape: tuple[int, ...]
    shots: int
    steps: int

    @property
    def name(self) -> str:
        return "x".join(map(str, self.shape))

    @property
    def updates(self) -> int:
        """The number of cell updates of a forward simulation, including the boundary."""
        return self._count_cells() * self.shots * self.steps

    @property
    def absorbed(self) -> int:
        """The number of updates of absorbing cells, counted once per axis of absorption."""
        cells = sum(self._count_cells() * 2 * BOUNDARY // (n + 2 * BOUNDARY) for n in self.shape)
        return cells * self.shots * self.steps

    def _count_cells(self) -> int:
        return prod(n + 2 * BOUNDARY for n in self.shape)


# The 3-D cases come first, because they are the most informative and time may run out. The last two
# have the size of Marmousi.
CASES = (
    Case((256, 256, 256), 1, 500),
    Case((512, 512, 512), 1, 100),
    Case((4096, 4096), 1, 1000),
    Case((281, 1361), 8, 4000),
    Case((141, 681), 16, 4000),
)
# Grids that exceed the cache, in 2-D and 3-D, and grids that fit into it.
TUNING = (*(replace(case, steps=2) for case in (CASES[2], CASES[0], *CASES[-2:])),)
ORDERS = (4, 8)
MARMOUSI = Case((281, 1361), 1, 4000)
MARMOUSI_DT = 1.25e-3
# The case whose kernels are timed, the order, and the number of steps.
STEP, STEP_ORDER, STEPS = Case((512, 512, 512), 1, 5), 8, 9
SHORTER = Snapshots(1, format="bfloat16")


@dataclass(frozen=True)
class Speed:
    """The speed of a simulation or gradient.

    what: description; seconds: median; updates: million cell updates of the forward simulation
    divided by `seconds`, also for a gradient; of_copy, of_floor: fractions of the copy bandwidth.
    """

    shape: tuple[int, ...]
    order: int
    what: str
    seconds: float
    updates: float
    of_copy: float
    of_floor: float


def make_survey(case: Case, device: torch.device, order: int, dt: float = DT) -> Shots:
    """Return the shots of a case on the GPU, with at most one receiver per cell."""
    receivers = min(RECEIVERS, case.shape[-1] - 2 * EDGE - 2)
    return make_shots(case.shape, case.shots, case.steps, receivers, order, dt, device)


def find_interval(dt: float) -> int:
    """Return the sampling interval of the complete wavelet, which a short record would truncate."""
    return sampling_interval(Snapshots(), ricker(FREQUENCY, 1000, dt, DELAY), dt, 1)


def list_histories(interval: int) -> list[History]:
    histories: list[History] = [Snapshots(interval), Snapshots(interval, format="int8")]
    histories += [Boundary(interval), Boundary(interval, format="bfloat16")]
    if "recompute" in gpu.HISTORIES:
        histories.append(Recompute(interval, states=8))
    return histories


def name_of(history: History) -> str:
    return " ".join([kind_of(history), getattr(history, "format", "")]).strip()


def measure_seconds(work: Callable[[], object], device: torch.device, repetitions: int) -> float:
    """Return the median wall time; the first two runs, which compile and capture, do not count."""
    times = []
    for _ in range(2 + repetitions):
        gc.collect()
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def measure_copy(device: torch.device, size: int) -> float:
    """Return the bandwidth of a copy of `size` bytes in bytes read and written per second.

    On a GPU the time is measured with events.
    """
    source = torch.rand(size // 4, device=device)
    target = torch.empty_like(source)
    if device.type != "cuda":
        return 2 * size / measure_seconds(lambda: target.copy_(source), device, 9)
    times = []
    for _ in range(2 + 9):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return 2 * size / statistics.median(times[2:])


def tune(cases: tuple[Case, ...], device: torch.device) -> dict[str, dict[str, int]]:
    """Return the tiles of all schemes by the keys of `gpu.device`, after new timings."""
    place = find_disk().path
    if place is None:
        return {}
    file = place / "tiles.json"
    file.unlink(missing_ok=True)
    for case, order in [(case, order) for case in cases for order in ORDERS]:
        shots = make_survey(case, device, order)
        shots.simulate(False, engine="gpu", history=Snapshots(find_interval(DT)))
        gpu.clear()
    return json.loads(file.read_text()) if file.exists() else {}


def measure_case(
    case: Case, order: int, device: torch.device, copy: float, repetitions: int
) -> Iterator[Speed]:
    """Measure the forward simulation and the gradient with each history, and yield each result."""
    shots, interval = make_survey(case, device, order), find_interval(DT)
    exact = Snapshots(interval)

    def speed(what: str, work: Callable[[], object], repetitions: int) -> Speed:
        seconds = measure_seconds(work, device, repetitions)
        ways = 2 if what.startswith("gradient") else 1
        moved, most = (
            ways * BYTES_AN_UPDATE * updates / seconds / copy
            for updates in (case.updates, case.updates + case.absorbed)
        )
        return Speed(case.shape, order, what, seconds, case.updates / seconds / 1e6, moved, most)

    yield speed("forward", partial(shots.simulate, False, engine="gpu", history=exact), repetitions)
    for history in list_histories(interval):
        gradient = partial(shots.run, True, engine="gpu", history=history)
        yield speed(f"gradient, {name_of(history)}", gradient, repetitions)
    if find_spec("deepwave") is not None:
        # The interval of Deepwave divides the number of steps.
        kept = max(k for k in range(1, interval + 1) if case.steps % k == 0)
        yield speed("forward, Deepwave", partial(run_deepwave, shots, False, kept), 1)
        yield speed("gradient, Deepwave", partial(run_deepwave, shots, True, kept), 1)


@contextmanager
def going_on(what: str, left_out: list[str], write: Callable[[], object]) -> Iterator[None]:
    """Note an exception in `left_out` and continue; then free memory and call `write`.

    Time on a GPU is scarce, so that one failure must not lose the other results.
    """
    try:
        yield
    except Exception as error:
        left_out.append(f"{what}, from here on: {type(error).__name__}: {error}")
    gpu.clear()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    write()


class Timed:
    """A kernel whose launches are recorded between two events in `times`, by its name."""

    def __init__(self, kernel: Any, times: dict[str, list[tuple[Any, Any]]]) -> None:
        self._kernel, self._times = kernel, times

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            self._kernel[grid](*args, **kwargs)
            end.record()
            self._times.setdefault(self._kernel.__name__, []).append((begin, end))

        return launch


def measure_kernels(
    simulation: Simulation, device: torch.device, steps: int
) -> dict[str, dict[str, float]]:
    """Return the median milliseconds of each kernel, in forward and backward steps.

    Kernels run one after the other, without a second stream.

    simulation: of one shot, with snapshots in a format that needs all kernels.
    """
    found = {}
    sweep = simulation._state.sweep
    sweep.stepper._side = None
    names = ("relax", "advance_frame", "advance", "exchange", "store", "correlate")
    for way, step in (("forwards", sweep._step_forward), ("backwards", sweep._step_backward)):
        times: dict[str, list[tuple[Any, Any]]] = {}
        with ExitStack() as patches, torch.cuda.device(device):
            for name in names:
                timed = Timed(getattr(kernels, name), times)
                patches.enter_context(patch.object(kernels, name, timed))
            for n in range(2 + steps):
                step(n % 2, 0)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found[way] = {
            name: statistics.median(begin.elapsed_time(end) for begin, end in launches[2:])
            for name, launches in times.items()
        }
    return found


def measure_memory(case: Case, dt: float, device: torch.device) -> dict[str, float]:
    """Return the peak memory of one gradient for each history, in MB, without the model."""
    shots, interval = make_survey(case, device, 8, dt), find_interval(dt)
    peaks = {}
    for history in [*list_histories(interval), Boundary(interval, format="int8")]:
        gpu.clear()
        gc.collect()
        before = allocated(device, reset=True)
        simulation = shots.simulate(engine="gpu", history=history)
        simulation.backpropagate(simulation.data)
        peaks[name_of(history)] = (allocated(device) - before) / 1e6
        del simulation
    gpu.clear()
    return peaks


def allocated(device: torch.device, reset: bool = False) -> int:
    """Return the bytes at the peak since the last reset; 0 without a GPU."""
    if device.type != "cuda":
        return 0
    if reset:
        torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.max_memory_allocated(device)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def show(speeds: list[Speed], memory: dict[str, float], copy: float, console: Console) -> None:
    console.print(f"copies move {copy / 1e9:.0f} GB/s, read and written")
    table = Table("grid", "order", "what", "seconds", "M cells/s", "of copy", "of floor")
    for s in speeds:
        grid = " x ".join(map(str, s.shape))
        shares = f"{s.of_copy:.0%}", f"{s.of_floor:.0%}"
        numbers = f"{s.seconds:.3f}", f"{s.updates:.0f}", *shares
        table.add_row(grid, str(s.order), s.what, *numbers)
    console.print(table)
    for name, megabytes in memory.items():
        console.print(f"one shot on {MARMOUSI.shape[0]} x {MARMOUSI.shape[1]} points, "
                      f"{MARMOUSI.steps} steps, {name}: {megabytes:.0f} MB")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=6.5, help="when nothing more is begun")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    known = {case.name: case for case in CASES}
    parser.add_argument("--cases", nargs="+", choices=known, default=list(known), metavar="CASE")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no GPU here, so that there is nothing to measure.")
        return
    end = time.monotonic() + 60.0 * arguments.minutes
    device, console = torch.device("cuda"), Console(width=100)
    card, now = torch.cuda.get_device_name(device), datetime.now(UTC)
    name = re.sub(r"\W+", "_", card).lower()
    arguments.output.mkdir(parents=True, exist_ok=True)
    file = arguments.output / f"gpu_{name}_{now:%Y-%m-%d}.json"
    speeds: list[Speed] = []
    left_out: list[str] = []
    memory: dict[str, float] = {}
    free, _ = torch.cuda.mem_get_info(device)
    numbers: dict[str, Any] = {
        "card": card,
        "cache": cache_of(device),
        "date": now.isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "triton": version("triton"),
        "deepwave": version("deepwave") if find_spec("deepwave") else None,
        "copy": measure_copy(device, min(COPIED, int(COPIED_SHARE * free))),
        "tiles": tune(TUNING, device),
    }
    torch.cuda.empty_cache()

    def write() -> None:
        results = {"speeds": [asdict(s) for s in speeds], "memory": memory, "left_out": left_out}
        file.write_text(json.dumps({**numbers, **results}, indent=2) + os.linesep)

    with going_on("kernels of a step", left_out, write):
        shot = make_survey(STEP, device, STEP_ORDER).simulate(engine="gpu", history=SHORTER)
        numbers["kernels"] = measure_kernels(shot, device, STEPS)
        del shot
    for case, order in [(known[name], order) for name in arguments.cases for order in ORDERS]:
        what = f"{case.name}, order {order}"
        if time.monotonic() > end:
            left_out.append(f"{what}: no time was left")
            continue
        with going_on(what, left_out, write):
            for speed in measure_case(case, order, device, numbers["copy"], arguments.repetitions):
                speeds.append(speed)
                write()
                if time.monotonic() > end:
                    left_out.append(f"{what}, after {speed.what}: no time was left")
                    break
    with going_on("memory of a shot", left_out, write):
        memory |= measure_memory(MARMOUSI, MARMOUSI_DT, device)
    show(speeds, memory, numbers["copy"], console)
    for line in left_out:
        console.print(f"left out: {line}")
    console.print(f"written to {file}")


if __name__ == "__main__":
    main()
