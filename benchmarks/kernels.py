"""Timings of the kernels of a step of the `gpu` engine, for `benchmarks/gpu.py`."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch

from hpcfwi.wave import Simulation
from hpcfwi.wave.engines.gpu import kernels
from hpcfwi.wave.engines.gpu import sweep as sweeps


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
    names = {
        sweeps: ("relax", "advance_frame", "advance", "exchange"),
        kernels: ("store", "correlate"),
    }
    for way, step in (("forwards", sweep._step_forward), ("backwards", sweep._step_backward)):
        times: dict[str, list[tuple[Any, Any]]] = {}
        with ExitStack() as patches, torch.cuda.device(device):
            for module, each in names.items():
                for name in each:
                    timed = Timed(getattr(module, name), times)
                    patches.enter_context(patch.object(module, name, timed))
            for n in range(2 + steps):
                step(n % 2, 0)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found[way] = {
            name: statistics.median(begin.elapsed_time(end) for begin, end in launches[2:])
            for name, launches in times.items()
        }
    return found
