"""The engine for GPUs: Triton kernels, many shots of a batch in each launch. Two or three axes.

One source for NVIDIA, AMD and Intel cards. Under TRITON_INTERPRET=1 it runs on a CPU, slowly, so
that tests need no card.
"""

from __future__ import annotations

import os
import weakref
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
from hpcfwi.wave.problem import Gradients, Problem, gather_gradients, relative_change

if TYPE_CHECKING:
    from hpcfwi.wave.engines.gpu.layout import Blueprint
    from hpcfwi.wave.engines.gpu.sweep import Sweep

NAME = "gpu"
HISTORIES: tuple[Kind, ...] = KINDS

# Bytes of what is kept for the next batch of the same sizes, in those of the largest batch: a rank
# has several sizes, as what is left over in the last batch has its own
SPARE = 2


class SweepPool:
    """Sweeps of batches that are used again: arrays are allocated, and graphs captured.

    One that comes back may still be at work, in the stream that it was used in.
    """

    def __init__(self) -> None:
        self._spare: list[Sweep] = []
        # They come back when the garbage collector finds them, which may be in the midst of this.
        self._lock = RLock()

    def take(self, blueprint: Blueprint, problem: Problem) -> Sweep:
        """Return a spare sweep with that blueprint, whatever its contents, or a new one."""
        from hpcfwi.wave.engines.gpu.sweep import Sweep

        sweep = self._find(blueprint)
        if sweep is not None:
            return sweep
        try:
            return Sweep(blueprint, problem)
        except torch.OutOfMemoryError:
            pass
        # The error is gone here, and with it the memory of the sweep that was begun.
        self.clear()
        return Sweep(blueprint, problem)

    def put(self, sweep: Sweep) -> None:
        """Keep a sweep for the next batch; the oldest are released if there are too many."""
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
            # Those that come back in the midst of this find an empty pool
            spares, self._spare = self._spare, []
            places = (k for k, spare in enumerate(spares) if spare.blueprint == blueprint)
            place = next(places, None)
            sweep = None if place is None else spares.pop(place)
            self._spare = [*self._spare, *spares]
            return sweep


_POOL = SweepPool()


@dataclass(frozen=True, eq=False)
class State:
    """A sweep that went forwards; it goes back to the pool when this object is deleted."""

    sweep: Sweep

    def __post_init__(self) -> None:
        weakref.finalize(self, _POOL.put, self.sweep).atexit = False


def is_interpreted() -> bool:
    """Return True if kernels are interpreted on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def available() -> str | None:
    """Why this engine cannot be used here, or None.

    Raises `InputError` where TRITON_CACHE_DIR names a directory in which others may write.
    """
    if find_spec("triton") is None:
        return "Triton is not installed (pip install hpcfwi[gpu])"
    if not is_interpreted():
        find_disk()
    return None


def footprint(problem: Problem, steps: int) -> int:
    """Bytes that `forward` and `backward` take at most, for so many steps."""
    blueprint = _blueprint(
        problem, steps, _most(problem.sources, problem), _most(problem.receivers, problem)
    )
    size = problem.n_shots * problem.speed.element_size()
    # Copies on the way in and out: the gradient and what it is made of, traces and residuals.
    fields = 5 if problem.illuminate else 4
    copies = fields * blueprint.layout.size + 3 * steps * problem.receivers.shape[1]
    return blueprint.count_bytes() + size * copies


def count_updates(problem: Problem, steps: int) -> float:
    """Cells that `forward` computes, added up over shots and steps: all of them."""
    return problem.count_cells(steps)


def idle() -> int:
    """Bytes that it holds from earlier batches, to be used again or let go."""
    return _POOL.count_bytes()


def clear() -> None:
    """Let go what earlier batches have left for use again."""
    _POOL.clear()


def forward(problem: Problem, wavelet: Tensor, keep: bool) -> tuple[Tensor, State | None]:
    """Traces (shot, receiver, time) of wavelets (shot, source, time); what `backward` takes."""
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


def backward(problem: Problem, state: State, residual: Tensor) -> Gradients:
    """Gradients from the one with respect to the traces, (shot, receiver, time)."""
    image, wavelet, energies = state.sweep.run_backward(residual)
    shape = (problem.n_shots, *problem.scheme.shape)
    image, *energies = (fields.reshape(shape) for fields in (image, *energies))
    return gather_gradients(problem, image, wavelet, *(energies or (None, None)))


def scatter(problem: Problem, state: State, direction: Tensor) -> Tensor:
    """Return the change of the traces (shot, receiver, time) with the speed, to first order."""
    return state.sweep.run_scattered(problem.scheme.v2dt2 * relative_change(problem, direction))


def _blueprint(
    problem: Problem, steps: int, sources: Sizes, receivers: Sizes, keep: bool = True
) -> Blueprint:
    from hpcfwi.wave.engines.gpu.layout import Blueprint

    return Blueprint(
        layout_of(problem),
        problem.speed.device,
        problem.speed.dtype,
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
    """Return the sizes of the matrix of points (shot, point, ndim), at most four to a cell."""
    cells = positions / np.asarray(problem.spacing)
    between = (np.abs(cells - np.rint(cells)) >= ON_GRID).any(axis=(0, 1))
    points, taps = positions.shape[1], (2 * HALF_WIDTH) ** int(between.sum())
    return Sizes(points, taps, points * taps, 4)
