"""The engine for CPUs: compiled sweeps, one shot a thread; threads left over share the last shots.

Shots share nothing while they run, so threads never wait for one another but where several work on
the same shot, and a shot's bits depend neither on its batch nor on the number of threads. What a
shot keeps for the way back is in `keepers`, time loops are in `sweeps`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave import stencil
from hpcfwi.wave.engines.cpu import sweeps
from hpcfwi.wave.engines.cpu.keepers import (
    SHELF,
    Crew,
    Keeper,
    Shot,
    WayBack,
    count_bytes,
    flush_denormals,
    make_keeper,
)
from hpcfwi.wave.engines.cpu.layout import (
    Grid,
    field_shape,
    lay_out,
    lay_out_sides,
    make_grid,
    make_zeros,
    take_out,
)
from hpcfwi.wave.engines.cpu.rows import BLOCK, HALO, MARGIN
from hpcfwi.wave.engines.cpu.windows import Window
from hpcfwi.wave.history import KINDS, Kind
from hpcfwi.wave.points import Taps
from hpcfwi.wave.problem import Gradients, Problem, gather_gradients, stack_gradients

NAME, FOLLOWS_WAVES = "cpu", True
HISTORIES: tuple[Kind, ...] = KINDS

# A thread that shares a shot gets at least so many planes, or blocks of rows.
LEAST_SHARE = 3


@dataclass(frozen=True, eq=False)
class State:
    """What was kept of each shot; energies: (shot, row, column) as the sweeps leave them."""

    kept: list[Keeper]
    energies: NDArray


def available() -> str | None:
    """Why this engine cannot be used here, or None."""
    return None


def footprint(problem: Problem, steps: int) -> int:
    """Bytes that `forward` and `backward` take at most, for so many steps."""
    shots, ndim, size = problem.n_shots, problem.vp.ndim, problem.vp.element_size()
    rows, columns = field_shape(problem.padded_shape)
    absorbing = 1.0 - float(np.prod(np.divide(problem.vp.shape, problem.padded_shape)))
    running = min(shots, torch.get_num_threads())
    working = running * (6.0 + 2.0 * ndim * absorbing)
    working += shots * (4.0 if problem.illuminate else 2.0)
    traces = 4 * shots * steps * problem.receivers.shape[1] * size
    return int(working * rows * columns * size) + shots * count_bytes(problem, steps) + traces


def idle() -> int:
    """Bytes that it holds from earlier batches, to be used again or let go."""
    return SHELF.count_bytes()


def forward(problem: Problem, wavelet: Tensor, keep: bool) -> tuple[Tensor, State | None]:
    """Traces (shot, receiver, time) for wavelets (shot, time), and what `backward` needs."""
    task = _Task(problem)
    shots, steps = wavelet.shape
    emitted = wavelet.contiguous().numpy()[..., None]
    traces = np.empty((shots, steps, problem.receivers.shape[1]), task.dtype)
    energies = task.make_sums(shots if keep and problem.illuminate else 0)
    kept = [make_keeper(problem, task.make_shot(k, emitted[k]), keep) for k in range(shots)]

    def simulate(shot: int, crew: Crew) -> None:
        energy = energies[shot] if len(energies) else None
        kept[shot].simulate(traces[shot], energy, crew)

    _each_shot(simulate, shots, task.most_threads)
    data = torch.from_numpy(traces).transpose(1, 2).contiguous()
    return data, State(kept, energies) if keep else None


def backward(problem: Problem, state: State, residual: Tensor) -> Gradients:
    """Gradients from the one with respect to the traces, (shot, receiver, time)."""
    task, shape = _Task(problem), problem.scheme.shape
    arriving = residual.transpose(1, 2).contiguous().numpy()
    shots, steps = arriving.shape[:2]
    wavelet = np.zeros((shots, steps, 1), task.dtype)
    results: list[Gradients | None] = [None] * shots

    def backpropagate(shot: int, crew: Crew) -> None:
        sums = task.make_sums(2 if problem.illuminate else 1)
        energy = sums[1] if problem.illuminate else None
        state.kept[shot].backpropagate(
            WayBack(arriving[shot], wavelet[shot], sums[0], energy), crew
        )
        image, *arrived = problem.interval * take_out(sums, shape)[:, None]
        emitted = [problem.interval * take_out(e, shape)[None] for e in state.energies[shot:][:1]]
        results[shot] = gather_gradients(
            problem,
            image,
            torch.from_numpy(wavelet[shot, None, :, 0]),
            *([*emitted, *arrived] or [None, None]),
        )

    _each_shot(backpropagate, shots, task.most_threads)
    return stack_gradients([result for result in results if result is not None])


class _Task:
    """A problem as the sweeps want it."""

    def __init__(self, problem: Problem) -> None:
        scheme = problem.scheme
        self._scheme, self._interior = _scheme(problem), _interior(problem)
        self.dtype = self._scheme.v2dt2.dtype
        grid = self._scheme.grid
        self._sources = _taps(scheme.sources, grid, self._interior, self.dtype)
        self._receivers = _taps(scheme.receivers, grid, self._interior, self.dtype)
        self._scale = self.dtype.type(scheme.source_scale)
        parts = grid.planes if grid.planes > 1 else self._scheme.sides.blocks
        self.most_threads = max(1, parts // LEAST_SHARE)

    def make_shot(self, k: int, emitted: NDArray) -> Shot:
        return Shot(
            self._scheme, self._sources[k], self._receivers[k], emitted, self._scale, self._interior
        )

    def make_sums(self, count: int) -> NDArray:
        """Fields of zeros."""
        return make_zeros((count, *self._scheme.v2dt2.shape), self.dtype)


def _each_shot(work: Callable[[int, Crew], None], shots: int, most: int) -> None:
    """Work on all shots with the threads of the process; at most so many share a shot."""
    threads = torch.get_num_threads()
    rest = shots % threads
    alone = shots - rest
    rounds = [(range(alone), 1), (range(alone, shots), min(most, threads // rest if rest else 1))]
    for numbers, size in rounds:
        if len(numbers):
            with ThreadPoolExecutor(
                min(len(numbers), threads), initializer=flush_denormals
            ) as pool:
                list(pool.map(lambda k, size=size: work(k, Crew(size)), numbers))


def _scheme(problem: Problem) -> sweeps.Scheme:
    scheme = problem.scheme
    v2dt2 = lay_out(scheme.v2dt2)
    dtype, grid = v2dt2.dtype, make_grid(scheme.shape)
    weights = [_differences(problem.order, h, dtype) for h in problem.spacing]
    *across, (x0, x, d) = weights
    near = sweeps.Axis(1, *across[-1])
    far = sweeps.Axis(grid.stride, *across[0]) if len(across) == 2 else near
    return sweeps.Scheme(
        grid,
        v2dt2,
        sum((c0 for c0, *_ in across), x0),
        across[0][1] if len(across) == 2 else None,
        across[-1][1],
        x0,
        x,
        (near, far),
        _slabs(problem, grid, dtype),
        _sides(problem, grid, d, dtype),
        _depth(problem, grid),
    )


def _slabs(problem: Problem, grid: Grid, dtype: np.dtype) -> sweeps.Slabs:
    """The slabs at both ends of the rows of a plane, and of the planes where there are several."""
    places, profiles, begin, memory = [], [], 0, 0
    for axis in (-2, -3)[: problem.vp.ndim - 1]:
        at_planes, n, profile = (
            axis == -3,
            problem.scheme.shape[axis],
            problem.scheme.profiles[axis],
        )
        before, after = _reach(problem, axis)
        for first, last in ((0, before), (n - after, n)):
            size = last - first + 2 * HALO
            box = (first, last, 0, grid.rows) if at_planes else (0, grid.planes, first, last)
            step = grid.rows if at_planes else 1
            per_plane = grid.rows if at_planes else size
            origin = memory + (HALO - first) * step
            places.append((*box, at_planes, begin, origin, per_plane, 1, step))
            profiles.append((profile.a[first:last], profile.b[first:last]))
            begin += last - first
            memory += size * (grid.rows if at_planes else grid.planes)
    a, b = (np.concatenate(f).astype(dtype) for f in zip(*profiles, strict=True))
    return sweeps.Slabs(np.array(places, np.int64), a, b, memory)


def _sides(problem: Problem, grid: Grid, d: Any, dtype: np.dtype) -> sweeps.Sides:
    width, profile = _reach(problem, -1)[1], problem.scheme.profiles[-1]
    a, b = (lay_out_sides(values, width).astype(dtype) for values in (profile.a, profile.b))
    return sweeps.Sides(width, a, b, -(-grid.rows // BLOCK), d)


def _depth(problem: Problem, grid: Grid) -> tuple[int, int]:
    if not problem.free_surface:
        return 0, 0
    return (1, 1) if problem.vp.ndim == 2 else (grid.stride, grid.rows)


def _reach(problem: Problem, axis: int) -> tuple[int, int]:
    """How far absorbing terms reach into the grid from both ends of an axis, in cells."""
    before, after = (cells[axis] for cells in problem.padding)
    radius = problem.order // 2
    return before + radius if before else 0, after + radius if after else 0


def _interior(problem: Problem) -> Window:
    """The part of the grid where nothing absorbs."""
    grid = make_grid(problem.scheme.shape)
    bounds = [(0, grid.planes)] if problem.vp.ndim == 2 else []
    for axis, n in enumerate(problem.scheme.shape):
        before, after = _reach(problem, axis)
        bounds.append((before, n - after))
    (front, back), (top, bottom), (left, right) = bounds
    return Window(front, back, top, bottom, left, right)


def _differences(order: int, h: float, dtype: np.dtype) -> tuple[Any, tuple, tuple]:
    """Second difference at 0, at the offsets from 1 on; first difference at those."""
    second = tuple(stencil.second_difference(order, h).astype(dtype))
    return second[0], second[1:], tuple(stencil.first_difference(order, h).astype(dtype))[1:]


def _taps(taps: Taps, grid: Grid, interior: Window, dtype: np.dtype) -> list[sweeps.Taps]:
    """The points of each shot, as rows and columns of arrays in the layout."""
    plane, row, x = (
        [np.zeros_like(taps.cells[..., 0]), *np.moveaxis(taps.cells, -1, 0)]
        if taps.cells.shape[-1] == 2
        else np.moveaxis(taps.cells, -1, 0)
    )
    inner = (
        ((plane >= interior.front) & (plane < interior.back))
        & ((row >= interior.top) & (row < interior.bottom))
        & ((x >= interior.left) & (x < interior.right))
    )
    rows = np.ascontiguousarray(grid.base + plane * grid.stride + row)
    columns = np.ascontiguousarray(MARGIN + x)
    weights = taps.weights.astype(dtype)
    return [sweeps.Taps(*arrays) for arrays in zip(rows, columns, weights, inner, strict=True)]
