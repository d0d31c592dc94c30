"""What the `cpu` engine will take: bytes of its other modules' arrays, and cells to compute."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu.front import follow_wave, sum_over, unite
from hpcfwi.wave.engines.cpu.histories import SAMPLES_PER_STATE, grown
from hpcfwi.wave.engines.cpu.layout import field_shape, make_grid, make_interior
from hpcfwi.wave.engines.cpu.packing import Frame, count_bytes, count_cells, count_scales
from hpcfwi.wave.engines.cpu.windows import whole_of
from hpcfwi.wave.history import Boundary, Recompute, sampled_steps
from hpcfwi.wave.problem import Problem


def estimate_bytes(problem: Problem, steps: int, threads: int) -> int:
    """Bytes of a batch, forwards and backwards, about.

    Each shot counts as one in the middle of its line: those at its ends keep less, but in the
    memory that others have filled before them.
    """
    shots, size = problem.n_shots, problem.speed.element_size()
    rows, columns = field_shape(problem.padded_shape)
    # In fields: the waves and what the slabs remember; of a shot that runs, also u, the image and
    # what is made of it; of one that waits, its gradients and illuminations.
    state = 2.0 + 2.0 * float(np.sum(1.0 - np.divide(problem.speed.shape, problem.padded_shape)))
    running = state + (4.0 if problem.illuminate else 3.0)
    waiting = 4.0 if problem.illuminate else 1.0
    history, sampled = problem.history, sampled_steps(steps - 1, problem.interval)
    if isinstance(history, Recompute):
        stretch = SAMPLES_PER_STATE * history.states
        kept = _count_cells(problem, sampled[-stretch:]) * size
        waiting += state * (1 + min(history.states, -(-len(sampled) // stretch)))
    else:
        dtype = np.dtype(np.float32 if size == 4 else np.float64)
        numbers, entries = _count_cells(problem, sampled), len(sampled)
        if isinstance(history, Boundary):
            numbers += steps * _count_rim(problem)
            entries += steps
            waiting += 2.0
            running += 2.0
        kept = numbers * count_bytes(history.format, dtype)
        kept += entries * count_scales(history.format, rows) * np.float32().itemsize
    traces = steps * (4 * problem.receivers.shape[1] + 3 * problem.sources.shape[1]) * size
    fields = 1.0 + min(shots, threads) * running + shots * waiting
    return int(fields * rows * columns * size + shots * (kept + traces))


def estimate_updates(problem: Problem, steps: int) -> float:
    """Cells that the waves of all shots have reached, added up over so many steps, about."""
    whole = [np.subtract(edge, problem.padding[0]) for edge in (0, problem.padded_shape)]
    medium = (problem.speed.numpy(), problem.spacing, problem.dt)
    shots = problem.sources / problem.spacing

    def count(some: NDArray[np.int64]) -> NDArray[np.float64]:
        fronts = (unite(follow_wave(*medium, s, some) for s in sources) for sources in shots)
        return np.sum([front.count_cells(*whole) for front in fronts], axis=0)

    return sum_over(range(steps), count) if len(shots) else 0.0


def _count_cells(problem: Problem, steps: range) -> float:
    """Cells that a shot keeps of its wave, summed over some steps."""
    medium = (problem.speed.numpy(), problem.spacing, problem.dt)
    sources = problem.sources[0] / problem.spacing
    sources += np.divide(problem.speed.shape, 2) - sources.mean(axis=0)
    sources[:, 0] = float(problem.sources[..., 0].max()) / problem.spacing[0]
    whole = [np.subtract(edge, problem.padding[0]) for edge in (0, problem.padded_shape)]
    interior = [np.subtract(edge, problem.padding[0]) for edge in problem.interior]

    def count(some: NDArray[np.int64]) -> NDArray[np.float64]:
        front = unite(follow_wave(*medium, source, some) for source in sources)
        rebuilt = isinstance(problem.history, Boundary)
        return front.count_cells(*whole) - rebuilt * front.count_cells(*interior)

    return sum_over(steps, count)


def _count_rim(problem: Problem) -> int:
    """Cells around the interior that its stencils reach."""
    interior = make_interior(problem)
    whole = whole_of.py_func(make_grid(problem.padded_shape))
    return count_cells(Frame(grown(interior, problem.order // 2, whole), interior))
