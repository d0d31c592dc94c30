"""Measure the memory of an optimizer's state on each rank, and the time of a step.

    mpirun -n 4 python benchmarks/sharded_state.py

Each optimizer is measured with its state on every rank and divided among the ranks. No waves are
simulated; the misfit is a quadratic function. The memory is the growth of the process by some
steps: the optimizer, and the state that a run keeps for its checkpoints, without the model and the
gradient. Times are measured first, because the allocator settings that make the memory exact slow
the steps down.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from typing import Any

import torch

from hpcfwi.config.inversion import InversionSection
from hpcfwi.inversion.objective import Evaluation, Times
from hpcfwi.inversion.parameters import Limits
from hpcfwi.model import Grid, Model
from hpcfwi.parallel.context import Context
from hpcfwi.parallel.launch import launch
from hpcfwi.parallel.shards import WHOLE, Shards
from hpcfwi.system import resident_bytes

SHAPE = (2000, 2000)
OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "adam", "lr": 20.0, "eps": 1e-22},
    {"name": "sgd", "lr": 0.5, "momentum": 0.5},
    {"name": "lbfgs", "step": 20.0, "search": "backtracking"},
]
STEPS = 7
LIBC = ctypes.CDLL(None)
MMAP_THRESHOLD = -3  # parameter of mallopt: the size from which arrays get separate pages


class Quadratic:
    """Half the weighted squared distance to a model; the weights give L-BFGS a curvature."""

    def __init__(self, target: Model, weights: torch.Tensor) -> None:
        self._target, self._weights = target, weights

    def __call__(self, model: Model) -> Evaluation:
        off = model - self._target
        gradient = off.map(lambda array: array * self._weights)
        misfit = 0.5 * float((gradient["vp"] * off["vp"]).sum(dtype=torch.float64))
        return Evaluation(misfit, 0.0, gradient, {}, (), {}, Times(), 1)

    def precondition(self, gradient: Model) -> Model:
        return gradient


def measure(keys: dict[str, Any], shards: Shards, context: Context) -> tuple[int, float]:
    """Return the bytes of the state on this rank, and the median seconds of a step."""
    generator = torch.Generator().manual_seed(0)
    grid = Grid(SHAPE, (10.0, 10.0), (0.0, 0.0))
    initial = Model(grid, {"vp": torch.full(SHAPE, 2000.0)})
    target = Model(grid, {"vp": 2000.0 + 300.0 * torch.rand(SHAPE, generator=generator)})
    evaluate = Quadratic(target, 0.1 + torch.rand(SHAPE, generator=generator))
    section = InversionSection.model_validate({"epochs": 1, "batch": 1, "optimizer": keys})
    limits = Limits(initial, {"vp": torch.zeros(SHAPE, dtype=torch.bool)}, {})
    model, seconds = initial.map(torch.clone), []
    evaluate(model)
    before = settle()
    optimizer = section.optimizer.bind()(initial, limits, shards)
    state = optimizer.state()
    for _ in range(STEPS):
        context.barrier()
        started = time.perf_counter()
        model = optimizer.step(model, evaluate)[0]
        seconds.append(time.perf_counter() - started)
        state = optimizer.state()
    for _ in range(8):
        context.barrier()  # replaces the last message, which gloo's threads may hold
    after = settle()
    assert state
    return after - before, statistics.median(seconds)


def settle() -> int:
    """Return the resident bytes of the process after free memory was returned to the system."""
    gc.collect()
    LIBC.malloc_trim(0)
    return resident_bytes()


def main() -> None:
    """Measure each optimizer with whole and with sharded state; rank 0 prints the largest."""
    context = launch()
    cases = [(keys, shards) for keys in OPTIMIZERS for shards in (WHOLE, Shards(context))]
    seconds = [measure(*case, context)[1] for case in cases]
    LIBC.mallopt(MMAP_THRESHOLD, 2**16)  # so that free memory between arrays does not count
    taken = [measure(*case, context)[0] for case in cases]
    found = context.all_gather((taken, seconds))
    if context.is_root:
        for number, (keys, shards) in enumerate(cases):
            memory, step = (max(rank[which][number] for rank in found) for which in (0, 1))
            how = "whole" if shards is WHOLE else "sharded"
            print(f"{keys['name']:6} {context.size} {how:8} {memory / 1e6:6.1f} MB  {step:.2f} s")
    context.close()


if __name__ == "__main__":
    main()
