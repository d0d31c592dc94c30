"""What an optimiser's state takes of each rank's memory, and a step of time, sharded or not.

`mpirun -n 4 python benchmarks/sharded_state.py`. No waves: gradients are random numbers. Memory is
how much larger the process has become when some steps are done, beside the model, the gradient and
what else it had before: the optimiser, and the state that a run keeps for its checkpoints. Times
are taken first, as what makes memory exact makes it slow.
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
from hpcfwi.parallel.shards import WHOLE, Slabs
from hpcfwi.system import resident_bytes

SHAPE = (2000, 2000)
OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "adam", "lr": 20.0, "eps": 1e-22},
    {"name": "sgd", "lr": 0.5, "momentum": 0.5},
    {"name": "lbfgs", "step": 20.0, "search": "backtracking"},
]
STEPS = 7
LIBC = ctypes.CDLL(None)
MMAP_THRESHOLD = -3  # of mallopt: larger arrays have pages of their own


class Quadratic:
    """Half the squared distance to a model, weighted so that L-BFGS has something to learn."""

    def __init__(self, target: Model, weights: torch.Tensor) -> None:
        self._target, self._weights = target, weights

    def __call__(self, model: Model) -> Evaluation:
        off = model - self._target
        gradient = off.map(lambda array: array * self._weights)
        misfit = 0.5 * float((gradient["vp"] * off["vp"]).sum(dtype=torch.float64))
        return Evaluation(misfit, 0.0, gradient, {}, (), {}, Times(), 1)

    def precondition(self, gradient: Model) -> Model:
        return gradient


def measure(keys: dict[str, Any], slabs: Slabs, context: Context) -> tuple[int, float]:
    """Bytes of this rank and seconds of a step."""
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
    optimizer = section.optimizer.make()(initial, limits, slabs)
    state = optimizer.state()
    for _ in range(STEPS):
        context.barrier()
        started = time.perf_counter()
        model = optimizer.step(model, evaluate)[0]
        seconds.append(time.perf_counter() - started)
        state = optimizer.state()
    for _ in range(8):
        context.barrier()  # gloo's threads may keep what they had last
    after = settle()
    assert state
    return after - before, statistics.median(seconds)
    assert state
    return after - before, statistics.median(seconds)


def settle() -> int:
    """What the process has when all that is free was given back."""
    gc.collect()
    LIBC.malloc_trim(0)
    return resident_bytes()


def main() -> None:
    """Measure each optimiser with whole arrays and with slabs; rank 0 prints what is most."""
    context = launch()
    cases = [(keys, slabs) for keys in OPTIMIZERS for slabs in (WHOLE, Slabs(context))]
    seconds = [measure(*case, context)[1] for case in cases]
    LIBC.mallopt(MMAP_THRESHOLD, 2**16)  # or holes between arrays would count, too
    taken = [measure(*case, context)[0] for case in cases]
    found = context.all_gather((taken, seconds))
    if context.is_root:
        for number, (keys, slabs) in enumerate(cases):
            memory, step = (max(rank[which][number] for rank in found) for which in (0, 1))
            how = "whole" if slabs is WHOLE else "sharded"
            print(f"{keys['name']:6} {context.size} {how:8} {memory / 1e6:6.1f} MB  {step:.2f} s")
    context.close()


if __name__ == "__main__":
    main()
