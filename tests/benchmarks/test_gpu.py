"""Tests of the benchmark of the gpu engine, also without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import gpu as benchmark
from hpcfwi import bench
from hpcfwi.wave import Snapshots
from tests.ranks import ROOT


class Clock:
    """A stand-in for an event of a GPU that uses the clock of the host."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.time = time.perf_counter()

    def elapsed_time(self, other: Clock) -> float:
        return 1e3 * (other.time - self.time)


DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, cells in (("BOUNDARY", 2), ("EDGE", 0)):
        monkeypatch.setattr(bench, name, cells)
        monkeypatch.setattr(benchmark, name, cells)
    monkeypatch.setattr(benchmark, "list_histories", lambda interval: [Snapshots(interval)])
    monkeypatch.setattr(benchmark, "find_spec", lambda _: None)


def test_gpu_benchmark_without_a_gpu_prints_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--output", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "There is no GPU here, so that there is nothing to measure.\n"
    assert not list(tmp_path.iterdir())


def test_benchmark_measures_copies() -> None:
    assert benchmark.measure_copy(DEVICE, 4096) > 0.0


def take_two_seconds(work: Callable[[], object], *_: object) -> float:
    work()
    return 2.0


def test_benchmark_measures_forward_simulations_and_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(benchmark, "measure_seconds", take_two_seconds)
    case = benchmark.Case((10, 12), 1, 3)
    forward, gradient = benchmark.measure_case(case, 2, DEVICE, 1e6, 1)
    assert forward.what == "forward"
    assert gradient.what == "gradient, snapshots full"
    assert case.updates == 14 * 16 * 3
    assert forward.updates == case.updates / 2.0 / 1e6
    assert forward.of_copy == pytest.approx(16 * case.updates / 2.0 / 1e6)
    assert gradient.of_copy == pytest.approx(2 * forward.of_copy)


@pytest.mark.parametrize("case", benchmark.CASES, ids=lambda case: case.name)
def test_points_of_the_benchmark_are_in_different_cells(case: benchmark.Case) -> None:
    small = replace(case, shape=(5, *[5] * (len(case.shape) - 2), case.shape[-1]), steps=2)
    survey = benchmark.make_survey(small, torch.device("cpu"), 4)
    for points in (survey.sources, survey.receivers):
        assert len(np.unique(points, axis=0)) == len(points)


@pytest.mark.parametrize("error", [RuntimeError("CUDA error: out of memory"), ValueError("no")])
def test_failed_benchmark_case_is_noted_after_writing_results(error) -> None:
    left_out: list[str] = []
    written = []
    with benchmark.going_on("a case", left_out, lambda: written.append(1)):
        raise error
    assert written
    assert left_out == [f"a case, from here on: {type(error).__name__}: {error}"]


def test_benchmark_times_each_kernel_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type != "cuda":
        monkeypatch.setattr("torch.cuda.Event", Clock)
        monkeypatch.setattr("torch.cuda.device", nullcontext)
    shots = benchmark.make_survey(benchmark.Case((10, 12), 1, 3), DEVICE, 2)
    shot = shots.simulate(engine="gpu", history=benchmark.SHORTER)
    found = benchmark.measure_kernels(shot, DEVICE, 2)
    forwards = {"relax", "advance_frame", "advance", "exchange", "store"}
    assert set(found["forwards"]) == forwards
    assert set(found["backwards"]) == forwards - {"store"} | {"correlate"}
    assert all(time > 0.0 for way in found.values() for time in way.values())


def test_benchmark_measures_the_memory_of_each_history() -> None:
    peaks = benchmark.measure_memory(benchmark.Case((10, 12), 1, 3), 1e-3, DEVICE)
    assert set(peaks) == {"snapshots full", "boundary int8"}
