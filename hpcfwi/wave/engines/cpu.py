"""The engine for CPUs: compiled sweeps, one shot a thread.

Shots share nothing while they run, so threads never wait for one another, and a shot's bits
do not depend on its batch. Two axes. Time loops are in `sweeps`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave import stencil
from hpcfwi.wave.engines import sweeps
from hpcfwi.wave.engines.layout import (
    field_shape,
    lay_out,
    lay_out_sides,
    make_empty,
    round_up,
    take_out,
)
from hpcfwi.wave.history import Kind, count_samples, sampling_offset
from hpcfwi.wave.points import Taps
from hpcfwi.wave.problem import Gradients, Problem, gather_gradients


class Shelf:
    """Large arrays that are used again: touching fresh memory costs as much as a simulation."""

    def __init__(self) -> None:
        self._arrays: list[NDArray] = []

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> NDArray:
        """An array from the shelf, whatever its contents, or a new one; others are let go."""
        while self._arrays:
            array = self._arrays.pop()
            if array.shape == shape and array.dtype == dtype:
                return array
        return make_empty(shape, dtype)

    def put(self, array: NDArray) -> None:
        self._arrays.append(array)


_SHELF = Shelf()


@dataclass(frozen=True, eq=False)
class State:
    """What was kept of each shot; the fields go back to the shelf with it.

    windows: (shot, ...) and energies: (shot, row, column) as the sweeps leave them.
    """

    fields: list[NDArray]
    windows: NDArray
    energies: NDArray

    def __post_init__(self) -> None:
        for array in self.fields:
            weakref.finalize(self, _SHELF.put, array).atexit = False


HISTORIES: tuple[Kind, ...] = ("snapshots",)


def available() -> str | None:
    """Why this engine cannot be used here, or None."""
    return None


def footprint(problem: Problem, steps: int) -> int:
    """Bytes that `forward` and `backward` take at most, for so many steps."""
    rows, columns = field_shape(problem.padded_shape[0], problem.padded_shape[1])
    fields = problem.n_shots * (count_samples(steps - 1, problem.interval) + 6)
    return fields * rows * columns * problem.vp.element_size()


def forward(problem: Problem, wavelet: Tensor, keep: bool) -> tuple[Tensor, State | None]:
    """Traces (shot, receiver, time) for wavelets (shot, time), and what `backward` needs."""
    task = _Task(problem)
    shots, steps = wavelet.shape
    emitted = wavelet.contiguous().numpy()[..., None]
    traces = np.empty((shots, steps, problem.receivers.shape[1]), task.dtype)
    interval = problem.interval if keep else 0
    samples = count_samples(steps - 1, interval) if keep else 0
    fields = [_SHELF.take((samples, *task.shape), task.dtype) for _ in range(shots)]
    windows = np.zeros((shots, steps // sweeps.PATIENCE + 1, 4), np.int64)
    energies = task.make_sums(keep and problem.illuminate)

    def simulate(shot: int) -> None:
        history = sweeps.History(fields[shot], interval, sampling_offset(interval), windows[shot])
        sweeps.sweep_forward(
            task.scheme,
            task.sources[shot],
            task.receivers[shot],
            emitted[shot],
            task.scale,
            traces[shot],
            history,
            energies[shot],
        )

    _each_shot(simulate, shots)
    data = torch.from_numpy(traces).transpose(1, 2).contiguous()
    return data, State(fields, windows, energies) if keep else None


def backward(problem: Problem, state: State, residual: Tensor) -> Gradients:
    """Gradients from the one with respect to the traces, (shot, receiver, time)."""
    task = _Task(problem)
    arriving = residual.transpose(1, 2).contiguous().numpy()
    shots, steps = arriving.shape[:2]
    wavelet = np.zeros((shots, steps, 1), task.dtype)
    images = task.make_sums(True)
    energies = task.make_sums(problem.illuminate)

    def backpropagate(shot: int) -> None:
        history = sweeps.History(
            state.fields[shot],
            problem.interval,
            sampling_offset(problem.interval),
            state.windows[shot],
        )
        sweeps.sweep_backward(
            task.scheme,
            task.sources[shot],
            task.receivers[shot],
            arriving[shot],
            task.scale,
            wavelet[shot],
            history,
            images[shot],
            energies[shot],
        )

    _each_shot(backpropagate, shots)
    image, *illuminations = (
        problem.interval * take_out(sums, *problem.scheme.shape)
        for sums in (images, state.energies, energies)
    )
    return gather_gradients(
        problem,
        image,
        torch.from_numpy(wavelet[..., 0]),
        *(illuminations if problem.illuminate else (None, None)),
    )


class _Task:
    """A problem as the sweeps want it."""

    def __init__(self, problem: Problem) -> None:
        scheme = problem.scheme
        self.scheme = _scheme(problem)
        self.shape, self.dtype = self.scheme.v2dt2.shape, self.scheme.v2dt2.dtype
        self.sources = _taps(scheme.sources, self.dtype)
        self.receivers = _taps(scheme.receivers, self.dtype)
        self.scale = self.dtype.type(scheme.source_scale)

    def make_sums(self, wanted: bool) -> NDArray:
        """A field of zeros for each shot; without rows if not wanted."""
        rows, columns = self.shape
        return np.zeros((len(self.sources), rows if wanted else 0, columns), self.dtype)


def _each_shot(work: Callable[[int], None], shots: int) -> None:
    workers = max(1, min(shots, torch.get_num_threads()))
    with ThreadPoolExecutor(workers, initializer=_flush_denormals) as threads:
        list(threads.map(work, range(shots)))


def _flush_denormals() -> None:
    """Numbers below 1e-38 become 0 in this thread; ahead of a wave they would slow it tenfold."""
    torch.set_flush_denormal(True)


def _scheme(problem: Problem) -> sweeps.Scheme:
    scheme, radius = problem.scheme, problem.order // 2
    v2dt2 = lay_out(scheme.v2dt2)
    dtype = v2dt2.dtype
    (z0, z, d_z), (x0, x, d_x) = (_differences(problem.order, h, dtype) for h in problem.spacing)
    (nz, nx), (across, along) = scheme.shape, scheme.profiles
    above, below = (width + radius if width else 0 for width in (scheme.before[0], scheme.after[0]))
    top, bottom = (
        sweeps.Slab(rows.start, across.a[rows].astype(dtype), across.b[rows].astype(dtype))
        for rows in (slice(0, above), slice(nz - below, nz))
    )
    width = scheme.after[1] + radius if scheme.after[1] else 0
    a, b = (lay_out_sides(values, width).astype(dtype) for values in (along.a, along.b))
    sides = sweeps.Sides(width, a, b)
    return sweeps.Scheme(
        nz,
        nx,
        round_up(nx),
        v2dt2,
        z0,
        z,
        d_z,
        x0,
        x,
        d_x,
        top,
        bottom,
        sides,
        problem.free_surface,
    )


def _differences(order: int, h: float, dtype: np.dtype) -> tuple[Any, tuple, tuple]:
    """Second difference at 0, at the offsets from 1 on; first difference at those."""
    second = tuple(stencil.second_difference(order, h).astype(dtype))
    return second[0], second[1:], tuple(stencil.first_difference(order, h).astype(dtype))[1:]


def _taps(taps: Taps, dtype: np.dtype) -> list[sweeps.Taps]:
    rows = np.ascontiguousarray(taps.cells[..., 0])
    columns = np.ascontiguousarray(taps.cells[..., 1])
    weights = taps.weights.astype(dtype)
    return [sweeps.Taps(*arrays) for arrays in zip(rows, columns, weights, strict=True)]
