"""The engine for GPUs: Triton kernels in two and three dimensions for all shots of a batch at once.

NVIDIA, AMD and Intel cards have the same source. With TRITON_INTERPRET=1 it runs slowly on a CPU,
so that tests need no card.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hpcfwi.wave.engines.gpu.device import find_disk, keep_kernels
from hpcfwi.wave.engines.gpu.layout import Sizes, layout_of, spread_out
from hpcfwi.wave.history import KINDS, Kind
from hpcfwi.wave.numerics import HALF_WIDTH, ON_GRID
from hpcfwi.wave.problem import (
    Gradients,
    Problem,
    make_gradients,
    relative_change,
    square_speed,
)

if TYPE_CHECKING:
    from hpcfwi.wave.engines.gpu.layout import Blueprint
    from hpcfwi.wave.engines.gpu.sweep import Sweep

NAME = "gpu"
HISTORIES: tuple[Kind, ...] = KINDS

# Largest memory of the sweeps that are kept for reuse, as a multiple of the memory of the largest
# one. A rank needs several sweeps because the last batch may have fewer shots than the others.
SPARE = 2


class SweepPool:
    """A pool of sweeps that are reused, with their allocated arrays and captured graphs.

    Kernels of a sweep in the pool may still be running in the stream in which it was used.
    """

    def __init__(self) -> None:
        self._spare: list[Sweep] = []
        # The garbage collector may call `put` at any time, also while this thread holds the lock.
        self._lock = RLock()

    def take(self, blueprint: Blueprint, problem: Problem) -> Sweep:
        """Return a sweep with this blueprint and arbitrary contents, from the pool or a new one."""
        from hpcfwi.wave.engines.gpu.sweep import Sweep

        sweep = self._find(blueprint)
        if sweep is not None:
            return sweep
        try:
            return Sweep(blueprint, problem)
        except torch.OutOfMemoryError:
            pass
        # The error, and with it the memory of the unfinished sweep, is released at this point.
        self.clear()
        return Sweep(blueprint, problem)

    def put(self, sweep: Sweep) -> None:
        """Put a sweep into the pool; the oldest are released if they take too much memory."""
        with self._lock:
            spares = [sweep, *self._spare]
            sizes = [spare.count_bytes() for spare in spares]
            kept = np.cumsum(sizes) <= SPARE * max(sizes)
            self._spare = [spare for spare, stays in zip(spares, kept, strict=True) if stays]

    def clear(self) -> None:
        with self._lock:
            self._spare = []

    def count_bytes(self) -> int:
        with self._lock:
            return sum(sweep.count_bytes() for sweep in self._spare)

    def _find(self, blueprint: Blueprint) -> Sweep | None:
        with self._lock:
            # The pool is empty during this loop, as the garbage collector may call `put` in it.
            spares, self._spare = self._spare, []
            places = (k for k, spare in enumerate(spares) if spare.blueprint == blueprint)
            place = next(places, None)
            sweep = None if place is None else spares.pop(place)
            self._spare = [*self._spare, *spares]
            return sweep


_POOL = SweepPool()


@dataclass(frozen=True, eq=False)
class State:
    """A sweep after its forward pass; it returns to the pool when this object is deleted."""

    sweep: Sweep

    def __post_init__(self) -> None:
        weakref.finalize(self, _POOL.put, self.sweep).atexit = False


def is_interpreted() -> bool:
    """Return True if kernels are interpreted on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def available() -> str | None:
    """Return the reason why this engine cannot be used here, or None if it can.

    Raises `InputError` if TRITON_CACHE_DIR names a directory in which others may write.
    """
    if find_spec("triton") is None:
        return "Triton is not installed (pip install hpcfwi[gpu])"
    if not is_interpreted():
        find_disk()
    return None


def footprint(problem: Problem, steps: int) -> int:
    """Return the largest number of bytes that `forward` and `backward` take for so many steps."""
    blueprint = _blueprint(
        problem, steps, _most(problem.sources, problem), _most(problem.receivers, problem)
    )
    size = problem.n_shots * problem.like.element_size()
    # Copies of inputs and outputs: the gradient and its operands, traces and adjoint sources.
    fields = 5 if problem.illuminate else 4
    copies = fields * blueprint.layout.size + 3 * steps * problem.receivers.shape[1]
    return blueprint.count_bytes() + size * copies


def count_updates(problem: Problem, steps: int) -> float:
    """Return the cells that `forward` computes, summed over shots and steps: all of the grid."""
    return problem.count_cells(steps)


def idle() -> int:
    """Return the bytes of the sweeps that are kept for reuse."""
    return _POOL.count_bytes()


def clear() -> None:
    """Release the sweeps that are kept for reuse."""
    _POOL.clear()


def forward(problem: Problem, wavelet: Tensor, keep: bool) -> tuple[Tensor, State | None]:
    """Return the traces (shot, receiver, time) of wavelets (shot, source, time), and the state.

    The state is for `backward` and `scatter`; it is None unless `keep` is True.
    """
    if not is_interpreted():
        keep_kernels()
    scheme, layout = problem.scheme, layout_of(problem)
    sources, receivers = (
        spread_out(taps, layout, scale)
        for taps, scale in ((scheme.sources, scheme.source_scale), (scheme.receivers, 1.0))
    )
    blueprint = _blueprint(problem, wavelet.shape[-1], sources.sizes, receivers.sizes, keep)
    state = State(_POOL.take(blueprint, problem))
    state.sweep.load(problem, sources, receivers)
    return state.sweep.run_forward(wavelet), state if keep else None


def backward(problem: Problem, state: State, adjoint_source: Tensor) -> Gradients:
    """Return the gradients, given the one with respect to the traces, (shot, receiver, time)."""
    image, wavelet, energies = state.sweep.run_backward(adjoint_source)
    shape = (problem.n_shots, *problem.scheme.shape)
    image, *energies = (fields.reshape(shape) for fields in (image, *energies))
    return make_gradients(problem, image, wavelet, *(energies or (None, None)))


def scatter(problem: Problem, state: State, direction: Mapping[str, Tensor]) -> Tensor:
    """Return the change of the traces (shot, receiver, time) with the speed, to first order."""
    return state.sweep.run_scattered(square_speed(problem) * relative_change(problem, direction))


def _blueprint(
    problem: Problem, steps: int, sources: Sizes, receivers: Sizes, keep: bool = True
) -> Blueprint:
    from hpcfwi.wave.engines.gpu.layout import Blueprint

    return Blueprint(
        layout_of(problem),
        problem.like.device,
        problem.like.dtype,
        problem.free_surface,
        problem.n_shots,
        steps,
        sources,
        receivers,
        problem.history,
        keep,
        problem.illuminate,
    )


def _most(positions: np.ndarray, problem: Problem) -> Sizes:
    """Return the sizes of the matrix of points (shot, point, ndim), with at most four to a cell."""
    cells = positions / np.asarray(problem.spacing)
    between = (np.abs(cells - np.rint(cells)) >= ON_GRID).any(axis=(0, 1))
    points, taps = positions.shape[1], (2 * HALF_WIDTH) ** int(between.sum())
    return Sizes(points, taps, points * taps, 4)
