"""What the `cpu` engine will take of memory: the arrays of its other modules, added up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu.keepers import SAMPLES_PER_STATE
from hpcfwi.wave.engines.cpu.layout import field_shape
from hpcfwi.wave.engines.cpu.packing import count_bytes
from hpcfwi.wave.front import Front, follow_wave
from hpcfwi.wave.history import Boundary, Recompute, sampled_steps
from hpcfwi.wave.problem import Problem

Steps = NDArray[np.int64]


def estimate_bytes(problem: Problem, steps: int, threads: int) -> int:
    """Bytes of a batch, forwards and backwards, all its shots as in the middle of their line.

    Other shots keep less, but take over the memory of those.
    """
    shots, size = problem.n_shots, problem.vp.element_size()
    field = int(np.prod(field_shape(problem.padded_shape))) * size
    # Waves, and the memory variables of the slabs.
    state = 2.0 + 2.0 * float(np.sum(1.0 - np.divide(problem.vp.shape, problem.padded_shape)))
    sums = 2 if problem.illuminate else 1
    running = state + 2.0 + sums
    waiting = 4.0 if problem.illuminate else 1.0
    history, sampled = problem.history, np.array(sampled_steps(steps - 1, problem.interval))
    if isinstance(history, Recompute):
        stretch = SAMPLES_PER_STATE * history.states
        segments = -(-len(sampled) // stretch)
        kept = _count_reached(problem, sampled[-stretch:]) * size
        waiting += state * (1 + min(history.states, segments))
    else:
        dtype = np.dtype(np.float32 if size == 4 else np.float64)
        kept = _count_numbers(problem, sampled, steps) * count_bytes(history.format, dtype)
    if isinstance(history, Boundary):
        waiting += 2.0
        running += 2.0
    traces = 4 * steps * problem.receivers.shape[1] * size
    fields = 1.0 + min(shots, threads) * running + shots * waiting
    return int(fields * field + shots * (kept + traces))


def _follow(problem: Problem, steps: Steps) -> Front:
    depth = float(problem.sources[..., 0].max()) / problem.spacing[0]
    middle = (depth, *(n / 2 for n in problem.vp.shape[1:]))
    return follow_wave(problem.vp.numpy(), problem.spacing, problem.dt, middle, steps)


def _count_reached(problem: Problem, steps: Steps) -> float:
    """Cells that a shot's wave has reached, summed over some steps."""
    first, last = (np.subtract(edge, problem.padding[0]) for edge in (0, problem.padded_shape))
    return float(_follow(problem, steps).count_cells(first, last).sum())


def _count_numbers(problem: Problem, sampled: Steps, steps: int) -> float:
    """Numbers of the fields, or of the perimeters and frames, that a shot keeps."""
    reached = _count_reached(problem, sampled)
    if not isinstance(problem.history, Boundary):
        return reached
    first, last = (np.subtract(edge, problem.padding[0]) for edge in problem.interior)
    rim = np.prod(last - first + 2 * (problem.order // 2)) - np.prod(last - first)
    hidden = _follow(problem, sampled).count_cells(first, last).sum()
    return float(steps * rim + reached - hidden)
