"""Estimates of the bytes and of the computed cells of the `cpu` engine.

Cells that a wave has not reached are left out (docs/decisions/012-windows.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from hpcfwi.model import AXES
from hpcfwi.wave.engines.cpu.layout import field_shape, make_grid, make_interior
from hpcfwi.wave.engines.cpu.staggered_tables import make_tables
from hpcfwi.wave.engines.cpu.windows import count_bytes, count_cells, count_scales, rim_of
from hpcfwi.wave.history import Boundary, Recomputation, Recompute, sampled_steps
from hpcfwi.wave.layers import Layer
from hpcfwi.wave.numerics import FEWEST_POINTS
from hpcfwi.wave.problem import Problem, make_leaves
from hpcfwi.wave.staggered import discretize

# Cells in front of a wave hold tiny numbers: AT_ONCE cells in the first step and two more in each
# later one, up to AHEAD cells, where the numbers are too small for the precision.
AHEAD = {np.dtype(np.float32): 80, np.dtype(np.float64): 350}
AT_ONCE = 20
# Number of steps from which the sum over a record is estimated.
ENOUGH = 200


@dataclass(frozen=True, eq=False)
class Front:
    """Boxes around a source: first cell `near` and last + 1 `far`, each (step, ndim)."""

    near: NDArray[np.float64]
    far: NDArray[np.float64]

    def count_cells(self, first: ArrayLike, last: ArrayLike) -> NDArray[np.float64]:
        """Return the cells that the box of each step, (step,), shares with [first, last)."""
        widths = np.minimum(self.far, last) - np.maximum(self.near, first)
        return np.maximum(widths, 0.0).prod(axis=-1)


def follow_wave(
    speeds: NDArray[np.floating],
    spacing: Sequence[float],
    dt: float,
    source: Sequence[float],
    steps: NDArray[np.int64],
) -> Front:
    """Return the boxes that the wave of a source has reached after some steps of dt (s).

    speeds: (nz, nx) or (nz, ny, nx), m/s, in the precision of the simulation, of which the mean
    over each depth is used; spacing: m; source: its cell, (ndim,); steps: step numbers, (step,).
    Up and down, a wave passes one depth after the other. Sideways, it goes vertically to a depth
    and then along it, and the depth that takes it furthest counts.
    """
    speed = speeds.reshape(len(speeds), -1).mean(axis=1, dtype=np.float64)
    depth = int(np.clip(np.rint(source[0]), 0, len(speeds) - 1))
    passing = spacing[0] / speed
    arrival = np.cumsum(passing) - 0.5 * passing
    arrival = np.abs(arrival - arrival[depth])
    time = dt * steps
    sideways = np.maximum(speed * (time[:, None] - arrival), 0.0).max(axis=1)
    ahead = np.minimum(AHEAD[speeds.dtype], AT_ONCE + 2 * steps)

    def cells_passed(arrival: NDArray[np.float64], last: float) -> NDArray[np.float64]:
        beyond = np.maximum(time - arrival[-1], 0.0) / last
        return np.interp(time, arrival, np.arange(len(arrival))) + beyond

    up, down = (
        cells_passed(arrival[depth::-1], passing[0]),
        cells_passed(arrival[depth:], passing[-1]),
    )
    aside = [sideways / h for h in spacing[1:]]
    near = np.subtract(source, np.stack([up, *aside], axis=-1) + ahead[:, None])
    far = np.add(source, np.stack([down, *aside], axis=-1) + ahead[:, None]) + 1.0
    return Front(near, far)


def unite(fronts: Iterable[Front]) -> Front:
    """Return the boxes around several waves together."""
    nears, fars = zip(*((front.near, front.far) for front in fronts), strict=True)
    return Front(np.min(nears, axis=0), np.max(fars, axis=0))


def sum_over(steps: range, count: Callable[[NDArray[np.int64]], NDArray[np.float64]]) -> float:
    """Estimate the sum of counts over all steps from some of them."""
    if len(steps) == 0:
        return 0.0
    some = np.array(steps[:: -(-len(steps) // ENOUGH)])
    return float(count(some).mean()) * len(steps)


def footprint(problem: Problem, steps: int, layers: int = 1) -> int:  # noqa: ARG001
    """Estimate the bytes of the forward and the backward pass of a chunk of shots.

    layers: number of ranks that divide each shot; the bytes are those of all of them.

    Every shot counts as if it were in the middle of the model. Shots at the ends of a line store
    less, but in buffers that other shots have filled before.
    """
    threads, shots, size = torch.get_num_threads(), problem.n_shots, problem.like.element_size()
    rows, columns = field_shape(problem.padded_shape)
    # Memory, in fields: the waves and the memory variables; for a running shot, also u, the image
    # and its intermediate results; for a waiting shot, its gradients and illuminations.
    state = 2.0 + 2.0 * float(np.sum(1.0 - np.divide(problem.like.shape, problem.padded_shape)))
    kept, running, waiting = _estimate_history(problem, steps - 1, state)
    running += state + (4.0 if problem.illuminate else 3.0)
    waiting += 4.0 if problem.illuminate else 1.0
    traces = steps * (4 * problem.receivers.shape[1] + 3 * problem.sources.shape[1]) * size
    fields = 1.0 + min(shots, threads) * running + shots * waiting
    return int(fields * rows * columns * size + shots * (kept + traces))


def staggered_footprint(problem: Problem, steps: int, layers: int = 1) -> int:
    """Estimate the bytes of the forward and the backward pass of a first-order equation.

    See `footprint`. A shot that runs has its fields, memory variables and buffers; each shot
    keeps samples and the gradients of the rates. Each rank has all rates.
    """
    threads, system = torch.get_num_threads(), problem.system
    rates, derivatives = system.count_rates(), len(system.derivatives)
    shots, size, ndim = problem.n_shots, problem.like.element_size(), problem.like.ndim
    rows, columns = field_shape(problem.padded_shape)
    absorbing = 1.0 - np.divide(problem.like.shape, problem.padded_shape)
    axes = [AXES[ndim].index(axis) for axis, _ in system.derivatives]
    # In 3-D, buffers have the planes that differences reach.
    planes = 2.0 * problem.order / problem.padded_shape[0] if ndim == 3 else 0.1
    memories, profiles = float(absorbing[axes].sum()), 0.0
    if system.multiaxial:
        frame = 1.0 - float(np.prod(1.0 - absorbing))
        memories, profiles = derivatives * frame, 2.0 * len(system.find_places()) * frame
    state = len(system.fields) + memories
    samples, running, waiting = _estimate_history(problem, steps, state)
    running += state + derivatives * 0.5 * min(planes, 1.0)
    if shots % threads:
        # Threads that share a shot use buffers of the size of the grid; rows are a power of two.
        running += (0.5 * derivatives + 1.0) * 2 ** ceil(log2(rows)) / rows
    if layers > 1:
        # The planes of neighbours, and the messages
        running += len(system.fields)
    waiting += rates + (2.0 if problem.illuminate else 0.0)
    points = problem.receivers.shape[1] + problem.sources.shape[1]
    # Models on the padded grid and their graph, the rates, and the gradients of one shot
    fields = 6.0 * rates * layers + profiles + min(shots, threads) * running + shots * waiting
    each = count_kept(problem) * samples + 6 * steps * points * size
    return int(fields * rows * columns * size + shots * each)


def _estimate_history(problem: Problem, steps: int, state: float) -> tuple[float, float, float]:
    """Return the bytes of the samples of a field that a shot stores, and two numbers of fields.

    These are the fields that a shot needs while it runs, and while it waits, because of the
    history. state: fields of a state.
    """
    history, sampled = problem.history, sampled_steps(steps, problem.interval)
    size = problem.like.element_size()
    if isinstance(history, Recompute):
        replay = Recomputation(history, steps, problem.interval)
        stored = _count_stored(problem, sampled[-replay.length :])
        return stored * size, state, state * replay.states
    numbers, entries, others = _count_stored(problem, sampled), len(sampled), 0.0
    if isinstance(history, Boundary):
        numbers += (steps + 1) * _count_rim(problem)
        entries, others = entries + steps + 1, 2.0
    dtype = np.dtype(np.float32 if size == 4 else np.float64)
    rows, _ = field_shape(problem.padded_shape)
    scales = entries * count_scales(history.format, rows) * np.float32().itemsize
    return numbers * count_bytes(history.format, dtype) + scales, others, others


def count_kept(problem: Problem) -> int:
    """Return the number of differences, or sums of them, that a shot stores for a sampled step.

    They are those of terms whose coefficients depend on a wanted parameter, also in a small model.
    """
    corner = (slice(0, FEWEST_POINTS),) * problem.like.ndim
    model = {name: array[corner] for name, array in problem.model.items()}
    small = make_leaves(replace(problem.select([0]), model=model, boundary=0), keep=True)
    with torch.enable_grad():
        scheme = discretize(small)
    varying = [k for k, rate in enumerate(scheme.distinct_rates) if rate.requires_grad]
    tables = make_tables(small, scheme, varying, Layer(0, FEWEST_POINTS))
    return int(tables.stages["n_samples"].sum())


def count_updates(problem: Problem, steps: int) -> float:
    """Return the approximate number of cells with a wave, summed over shots and steps."""
    return _count_cells(problem, range(steps), problem.sources / problem.spacing)


def _count_stored(problem: Problem, steps: range) -> float:
    """Return the number of cells of its wave that a shot stores, summed over some steps."""
    sources = problem.sources[0] / problem.spacing
    sources += np.divide(problem.like.shape, 2) - sources.mean(axis=0)
    sources[:, 0] = float(problem.sources[..., 0].max()) / problem.spacing[0]
    return _count_cells(problem, steps, sources[None], isinstance(problem.history, Boundary))


def _count_cells(
    problem: Problem, steps: range, shots: NDArray[np.float64], rebuilt: bool = False
) -> float:
    """Return the number of cells with a wave, summed over shots and steps.

    shots: cells of the sources, (shot, source, ndim); rebuilt: True leaves out the interior.
    """
    medium = (np.asarray(problem.equation.fastest(problem.model)), problem.spacing, problem.dt)
    whole = [np.subtract(edge, problem.padding[0]) for edge in (0, problem.padded_shape)]
    interior = [np.subtract(edge, problem.padding[0]) for edge in problem.interior]

    def count(some: NDArray[np.int64]) -> NDArray[np.float64]:
        fronts = [unite(follow_wave(*medium, s, some) for s in sources) for sources in shots]
        cells = (f.count_cells(*whole) - rebuilt * f.count_cells(*interior) for f in fronts)
        return np.sum(list(cells), axis=0)

    return sum_over(steps, count) if len(shots) else 0.0


def _count_rim(problem: Problem) -> int:
    """Return the number of cells around the interior that its stencils reach."""
    interior = make_interior(problem, Layer(0, problem.padded_shape[0]))
    return count_cells(rim_of(interior, problem.order // 2, make_grid(problem.padded_shape)))
