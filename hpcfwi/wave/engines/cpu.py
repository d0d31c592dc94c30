"""The engine for CPUs: compiled sweeps, one shot a thread.

Shots share nothing while they run, so threads never wait for one another, and a shot's bits
do not depend on its batch. Two axes. Time loops are in `sweeps`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave import stencil
from hpcfwi.wave.engines import sweeps
from hpcfwi.wave.engines.rows import HALO
from hpcfwi.wave.history import count_samples, sampling_offset
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
        return np.empty(shape, dtype)

    def put(self, array: NDArray) -> None:
        self._arrays.append(array)


_SHELF = Shelf()


@dataclass(frozen=True, eq=False)
class State:
    """The kept fields and the energy of each shot; its arrays go back to the shelf with it."""

    fields: list[NDArray]
    energy: NDArray

    def __post_init__(self) -> None:
        for array in self.fields:
            weakref.finalize(self, _SHELF.put, array).atexit = False


def available() -> str | None:
    """Why this engine cannot be used here, or None."""
    return None


def forward(problem: Problem, wavelet: Tensor, keep: bool) -> tuple[Tensor, State | None]:
    """Traces (shot, receiver, time) for wavelets (shot, time), and what `backward` needs."""
    scheme, dtype = _scheme(problem), wavelet.numpy().dtype
    shape = scheme.v2dt2.shape
    sources, receivers = (
        _taps(problem.scheme.sources, dtype),
        _taps(problem.scheme.receivers, dtype),
    )
    shots, steps = wavelet.shape
    emitted = np.ascontiguousarray(wavelet.numpy())[..., None]
    traces = np.empty((shots, steps, problem.receivers.shape[1]), dtype)
    interval = problem.interval if keep else 0
    samples = count_samples(steps - 1, interval) if keep else 0
    fields = [_SHELF.take((samples, *shape), dtype) for _ in range(shots)]
    energy = np.zeros((shots, *shape) if keep else (shots, 0, 0), dtype)
    offset = sampling_offset(interval)
    scale = dtype.type(problem.scheme.source_scale)

    def simulate(shot: int) -> None:
        history = sweeps.History(fields[shot], interval, offset)
        sweeps.sweep_forward(
            scheme,
            sources[shot],
            receivers[shot],
            emitted[shot],
            scale,
            traces[shot],
            history,
            energy[shot],
        )

    _each_shot(simulate, shots)
    data = torch.from_numpy(traces).transpose(1, 2).contiguous()
    return data, State(fields, energy) if keep else None


def backward(problem: Problem, state: State, residual: Tensor) -> Gradients:
    """Gradients from the one with respect to the traces, (shot, receiver, time)."""
    arriving = residual.transpose(1, 2).contiguous().numpy()
    scheme, dtype = _scheme(problem), arriving.dtype
    shape = scheme.v2dt2.shape
    sources, receivers = (
        _taps(problem.scheme.sources, dtype),
        _taps(problem.scheme.receivers, dtype),
    )
    shots, steps = arriving.shape[:2]
    wavelet = np.zeros((shots, steps, 1), dtype)
    image = np.zeros((shots, *shape), dtype)
    energy = np.zeros((shots, *shape), dtype)
    offset = sampling_offset(problem.interval)
    scale = dtype.type(problem.scheme.source_scale)

    def backpropagate(shot: int) -> None:
        history = sweeps.History(state.fields[shot], problem.interval, offset)
        sweeps.sweep_backward(
            scheme,
            sources[shot],
            receivers[shot],
            arriving[shot],
            scale,
            wavelet[shot],
            history,
            image[shot],
            energy[shot],
        )

    _each_shot(backpropagate, shots)
    return gather_gradients(
        problem,
        problem.interval * torch.from_numpy(image),
        torch.from_numpy(wavelet[..., 0]),
        problem.interval * torch.from_numpy(state.energy),
        problem.interval * torch.from_numpy(energy),
    )


def _each_shot(work: Callable[[int], None], shots: int) -> None:
    with ThreadPoolExecutor(max(1, min(shots, torch.get_num_threads()))) as threads:
        list(threads.map(work, range(shots)))


def _scheme(problem: Problem) -> sweeps.Scheme:
    scheme = problem.scheme
    dtype = scheme.v2dt2.numpy().dtype
    (top, side), (bottom, _) = scheme.before, scheme.after

    def differences(make: Callable[[int, float], NDArray[np.float64]], axis: int) -> NDArray:
        weights = make(problem.order, problem.spacing[axis])
        return np.pad(weights, (0, HALO + 1 - weights.size)).astype(dtype)

    def strip(values: NDArray[np.float64], before: int, after: int) -> NDArray:
        ends = values[: before + HALO], values[values.size - after - HALO :]
        return np.concatenate(ends).astype(dtype)

    z, x = scheme.profiles
    return sweeps.Scheme(
        v2dt2=scheme.v2dt2.contiguous().numpy(),
        radius=problem.order // 2,
        c_z=differences(stencil.second_difference, 0),
        c_x=differences(stencil.second_difference, 1),
        d_z=differences(stencil.first_difference, 0),
        d_x=differences(stencil.first_difference, 1),
        a_z=strip(z.a, top, bottom),
        b_z=strip(z.b, top, bottom),
        a_x=strip(x.a, side, side),
        b_x=strip(x.b, side, side),
        top=top,
        bottom=bottom,
        side=side,
        free_surface=problem.free_surface,
    )


def _taps(taps: Taps, dtype: np.dtype) -> list[sweeps.Taps]:
    rows = np.ascontiguousarray(taps.cells[..., 0])
    columns = np.ascontiguousarray(taps.cells[..., 1])
    weights = taps.weights.astype(dtype)
    return [sweeps.Taps(*arrays) for arrays in zip(rows, columns, weights, strict=True)]
