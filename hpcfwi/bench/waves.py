"""Measurements of the simulation of waves: engines, histories, and growth with the problem size.

The module begins with functions that repeat measurements in turns, measure peaks of memory and
describe the machine, and with the shots that are simulated, in a model whose velocity increases
with depth.
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
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hpcfwi.registry import ENGINES, find
from hpcfwi.system import peak_resident_bytes, resident_bytes
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
