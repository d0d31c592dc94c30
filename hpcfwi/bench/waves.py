"""The cost of waves: engines side by side, histories, and growth with the size of the grid.

The module begins with how measurements are repeated in turns, with peaks of memory and the
machine's name, and with the shots that are measured, in a model that grows faster with depth.
"""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from math import prod
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfwi.parallel.rendezvous import usable_cores
from hpcfwi.registry import ENGINES
from hpcfwi.system import peak_resident_bytes, resident_bytes
from hpcfwi.wave import Acquisition, Auto, Method, Recompute, Simulation, Snapshots, simulate
from hpcfwi.wave.engines import Engine, load
from hpcfwi.wave.history import History, candidates, describe, sampling_interval
from hpcfwi.wave.numerics import ricker

PACKAGES = ("hpcfwi", "torch", "numba", "numpy", "h5py", "mpi4py", "deepwave")


def time_in_turns(
    works: Mapping[str, Callable[[], object]], repetitions: int
) -> dict[str, list[float]]:
    """Seconds of each work, by its name, `repetitions` times in turn (A B A B).

    Other work of the machine affects all of them alike. Each is run once before, not counted.
    """
    for work in works.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repetitions):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def median_ratio(numerator: list[float], denominator: list[float]) -> float:
    """The median of the ratios within each turn."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def measure_growth_of_memory(work: Callable[[], object]) -> int:
    """Bytes that a work adds to the resident size of this process at its peak.

    Linux forgets the peak so far on request; elsewhere what came before hides smaller works.
    """
    gc.collect()  # or what is freed meanwhile would be taken off
    forget = Path("/proc/self/clear_refs")
    if forget.exists():
        forget.write_text("5")
    before = resident_bytes()
    work()
    return max(0, peak_resident_bytes() - before)


def describe_machine(threads: int) -> dict[str, Any]:
    """Return the machine, date and versions of a measurement."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "machine": platform.node(),
        "cpu": models[0] if models else platform.processor(),
        "cores": len(usable_cores()),
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


SPACING, DT, FREQUENCY, BOUNDARY = 12.5, 1e-3, 10.0, 20
SLOWEST, FASTEST = 1500.0, 4500.0
EDGE = 20  # cells between the outermost points and the model's sides


@dataclass(frozen=True)
class Shots:
    """Sources and receivers at grid points, which all programs treat alike.

    vp: (nz, nx) or (nz, ny, nx), m/s; wavelet: (time,); sources: (shot, axis) and receivers:
    (receiver, axis), indices; order: of the differences.
    """

    vp: Tensor
    wavelet: Tensor
    sources: Tensor
    receivers: Tensor
    order: int = 4

    @property
    def cells(self) -> int:
        """Points of the grid, boundary included."""
        return prod(n + 2 * BOUNDARY for n in self.vp.shape)

    @property
    def updates(self) -> int:
        """Cell updates of a simulation of all shots, one way."""
        return self.cells * self.wavelet.numel() * len(self.sources)

    def simulate(self, keep: bool = True, **options: Any) -> Simulation:
        """Simulate them with hpcfwi; options: of a `wave.Method`."""
        method = Method(
            order=self.order,
            boundary=BOUNDARY,
            boundary_frequency=FREQUENCY,
            max_velocity=FASTEST,
            **options,
        )
        where = (SPACING * self.sources, SPACING * self.receivers)
        shots = Acquisition(DT, self.wavelet, *where)
        return simulate({"vp": self.vp}, SPACING, shots, method, keep=keep, illuminate=False)

    def run(self, gradient: bool, **options: Any) -> Tensor:
        """The traces or, of half their squared sum, the gradient summed over shots."""
        simulation = self.simulate(gradient, **options)
        if not gradient:
            return simulation.data
        return simulation.backpropagate(simulation.data).model["vp"].sum(0)


def make_shots(
    shape: tuple[int, ...], shots: int, steps: int, receivers: int = 100, order: int = 4
) -> Shots:
    """Shots evenly along the middle of a model of this shape, without its boundary."""
    depth = torch.linspace(0.0, 1.0, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    vp = (SLOWEST + (FASTEST - SLOWEST) * depth).expand(shape).contiguous()

    def line(count: int, row: int) -> Tensor:
        ends = torch.linspace(EDGE, shape[-1] - 1 - EDGE, count + 2)
        columns = ends[1:-1].long()
        before = [
            torch.full_like(columns, place) for place in (row, *(n // 2 for n in shape[1:-1]))
        ]
        return torch.stack([*before, columns], dim=-1)

    wavelet = torch.tensor(ricker(FREQUENCY, steps, DT, delay=0.12), dtype=torch.float32)
    return Shots(vp, wavelet, line(shots, 2), line(receivers, 4), order)


# Recomputation is measured with as many states as this.
STATES = 16


def list_engines() -> dict[str, Engine]:
    """The engines that can be used here for 2-D models on CPUs, by name."""
    found = {name: load(name) for name in ENGINES}
    return {
        name: engine
        for name, engine in found.items()
        if name != "gpu" and engine.available() is None
    }


def longest_interval(shots: Shots) -> int:
    """The automatic interval, lowered until it divides the record, as Deepwave wants it."""
    longest = sampling_interval(Auto(), np.asarray(shots.wavelet), DT, 1)
    return max(k for k in range(1, longest + 1) if shots.wavelet.numel() % k == 0)


def compare_engines(shots: Shots, repetitions: int) -> list[dict[str, Any]]:
    """Every engine's time for the same shots; ratio: how many times as fast cpu is.

    Gradients with fields kept at the automatic interval; not those of `eager`, which keeps all.
    """
    kept = Snapshots(longest_interval(shots))
    rows = []
    for gradient in (False, True):
        names = [name for name in list_engines() if not (gradient and name == "eager")]
        works: dict[str, Callable[[], object]] = {
            name: partial(shots.run, gradient, engine=name, history=kept) for name in names
        }
        seconds = time_in_turns(works, repetitions)
        for name in names:
            rows.append(
                {
                    "engine": name,
                    "case": "forward and gradient" if gradient else "forward",
                    "seconds": statistics.median(seconds[name]),
                    "updates_per_second": (1 + gradient)
                    * shots.updates
                    / statistics.median(seconds[name]),
                    "ratio": median_ratio(seconds[name], seconds["cpu"]),
                }
            )
    return rows


def list_histories(engine: Engine, interval: int) -> list[History]:
    """The exact one first, then what the engine offers at this interval."""
    offered = candidates(Auto(interval), engine.HISTORIES)
    fewer = (Recompute(interval, states=STATES) if isinstance(h, Recompute) else h for h in offered)
    return [Snapshots(1), *fewer]


def compare_histories(
    shots: Shots, name: str, histories: Sequence[History], repetitions: int
) -> list[dict[str, Any]]:
    """Error against the first, exact, history's gradient (relative L2), memory and time of each."""
    exact = shots.run(True, engine=name, history=histories[0]).double()
    works: dict[str, Callable[[], object]] = {
        describe(h): partial(shots.run, True, engine=name, history=h) for h in histories
    }
    seconds = time_in_turns(works, repetitions)
    rows = []
    for history in histories:
        found = shots.run(True, engine=name, history=history).double()
        rows.append(
            {
                "engine": name,
                "history": describe(history),
                "error": float((found - exact).norm() / exact.norm()),
                "bytes": measure_peak(shots, name, history),
                "seconds": statistics.median(seconds[describe(history)]),
                "ratio": median_ratio(seconds[describe(history)], seconds[describe(histories[0])]),
            }
        )
    return rows


def measure_peak(shots: Shots, engine: str, history: History) -> int:
    """Bytes that a gradient adds to the peak of a process of its own, which has been warmed up."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_peak, shots, engine, history, torch.get_num_threads()).result()


def _peak(shots: Shots, engine: str, history: History, threads: int) -> int:
    torch.set_num_threads(threads)
    few = make_shots((60, 60), 1, 2 * (history.interval or 1) + 8, 4, shots.order)
    few.run(True, engine=engine, history=history)
    return measure_growth_of_memory(partial(shots.run, True, engine=engine, history=history))


def measure_growth(shots: Shots, repetitions: int) -> list[dict[str, Any]]:
    """Time of gradients of twice the steps, cells and shots, with windows as they come.

    ratio: to the first case's time; growth: of cells times steps times shots.
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
    works: dict[str, Callable[[], object]] = {
        name: partial(case.run, True, engine="cpu") for name, case in cases.items()
    }
    seconds = time_in_turns(works, repetitions)
    first = next(iter(cases))
    return [
        {
            "case": name,
            "seconds": statistics.median(seconds[name]),
            "ratio": median_ratio(seconds[name], seconds[first]),
            "growth": case.updates / shots.updates,
        }
        for name, case in cases.items()
    ]
