"""Engines side by side, histories, and how the cost grows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch

from hpcfwi.bench.measure import measure_growth_of_memory, median_ratio, time_in_turns
from hpcfwi.bench.shots import DT, Shots, make_shots
from hpcfwi.registry import ENGINES
from hpcfwi.wave import Auto, Recompute, Snapshots
from hpcfwi.wave.engines import Engine, load
from hpcfwi.wave.history import History, candidates, describe, sampling_interval

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
