"""The engine for GPUs: Triton kernels in two and three dimensions for all shots of a chunk at once.

NVIDIA, AMD and Intel cards have the same source. With TRITON_INTERPRET=1 it runs slowly on a CPU,
so that tests need no card. The ranks of a crew simulate the same shots, each a layer of the grid.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from threading import RLock
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from hpcfwi.wave.engines.eager import count_updates as count_updates
from hpcfwi.wave.engines.gpu.device import find_disk, keep_kernels
from hpcfwi.wave.engines.gpu.layout import Blueprint, Layout, Sizes, layout_of, spread_out
from hpcfwi.wave.history import KINDS, Kind, Recomputation
from hpcfwi.wave.layers import ALONE, Crew, Layer, cut, find_layers, join_fields, join_points
from hpcfwi.wave.numerics import HALF_WIDTH, ON_GRID
from hpcfwi.wave.problem import Gradients, Problem, make_gradients, relative_change, square_speed

if TYPE_CHECKING:
    from hpcfwi.wave.engines.gpu.sweep import Sweep

T = TypeVar("T")

NAME = "gpu"
HISTORIES: tuple[Kind, ...] = KINDS

# Largest memory of the sweeps that are kept for reuse, as a multiple of the memory of the largest
# one. A rank needs several sweeps because the last chunk may have fewer shots than the others.
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

        return self._find(blueprint) or self.make_room(lambda: Sweep(blueprint, problem))

    def make_room(self, run: Callable[[], T]) -> T:
        """Return the result of a function, which is called again without spares if memory ends."""
        try:
            return run()
        except torch.OutOfMemoryError:
            pass
        # The error, and with it the memory of what was unfinished, is released at this point.
        self.clear()
        return run()

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
class GpuState:
    """A sweep after its forward pass; it returns to the pool when this object is deleted.

    replay: the stored states; crew, layers: the ranks that simulate the shots, and the layer of
    each.
    """

    sweep: Sweep
    replay: Recomputation
    crew: Crew
    layers: list[Layer]

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


def footprint(problem: Problem, steps: int, layers: int = 1) -> int:
    """Return the largest number of bytes that `forward` and `backward` take for so many steps.

    layers: number of layers of the grid; the bytes are then those of the rank that needs most.
    Raises ValueError if the grid has too few planes for them.
    """
    points = _most(problem.sources, problem), _most(problem.receivers, problem)
    parts = cut(problem, layers)
    layouts = [layout_of(problem, parts, number) for number in range(layers)]
    blueprints = [_blueprint(problem, each, steps, *points) for each in layouts]
    sweep = max(each.count_bytes() + each.count_states() for each in blueprints)
    size = problem.n_shots * problem.like.element_size()
    # Copies of inputs and outputs: the gradient and its operands, traces and adjoint sources. The
    # first rank of a crew has those of the whole grid.
    fields = 5 if problem.illuminate else 4
    copies = fields * sum(each.size for each in layouts)
    return sweep + size * (copies + 3 * steps * problem.receivers.shape[1])


def idle() -> int:
    """Return the bytes of the sweeps that are kept for reuse."""
    return _POOL.count_bytes()


def clear() -> None:
    """Release the sweeps that are kept for reuse."""
    _POOL.clear()


def forward(
    problem: Problem, wavelet: Tensor, keep: bool, crew: Crew = ALONE
) -> tuple[Tensor, GpuState | None]:
    """Return the traces (shot, receiver, time) of wavelets (shot, source, time), and the state.

    The state is for `backward` and `scatter`; it is None unless `keep` is True.
    """
    if not is_interpreted():
        keep_kernels()
    layers = cut(problem, crew.size)
    layout = layout_of(problem, layers, crew.number)
    sources, receivers = (
        spread_out(taps, layout, scale, layers, crew.number)
        for taps, scale in (
            (problem.source_taps, problem.source_scale),
            (problem.receiver_taps, 1.0),
        )
    )
    blueprint = _blueprint(problem, layout, wavelet.shape[-1], sources.sizes, receivers.sizes, keep)
    sweep = _POOL.take(blueprint, problem)
    state = GpuState(sweep, blueprint.recomputation, crew, layers)
    sweep.load(problem, sources, receivers, crew)
    traces = _POOL.make_room(lambda: sweep.run_forward(state.replay, wavelet))
    owners = find_layers(problem.receiver_taps, layers)
    return join_points(traces, owners, crew), state if keep else None


def backward(problem: Problem, state: GpuState, adjoint_source: Tensor) -> Gradients:
    """Return the gradients, given the one with respect to the traces, (shot, receiver, time)."""
    image, wavelet, energies = _POOL.make_room(
        lambda: state.sweep.run_backward(state.replay, adjoint_source)
    )
    sources = find_layers(problem.source_taps, state.layers)
    wavelet = join_points(wavelet, sources, state.crew)
    joined = [join_fields(fields, state.crew) for fields in (image, *energies)]
    shape = (problem.n_shots, *problem.padded_shape)
    fields = [each.reshape(shape) for each in joined if each is not None]
    if not fields:
        return Gradients({}, wavelet, None, None)
    image, *energies = fields
    return make_gradients(problem, image, wavelet, *(energies or (None, None)))


def scatter(problem: Problem, state: GpuState, direction: Mapping[str, Tensor]) -> Tensor:
    """Return the change of the traces (shot, receiver, time) with the speed, to first order."""
    change = square_speed(problem) * relative_change(problem, direction)
    traces = state.sweep.run_scattered(state.replay, change)
    return join_points(traces, find_layers(problem.receiver_taps, state.layers), state.crew)


def _blueprint(
    problem: Problem,
    layout: Layout,
    steps: int,
    sources: Sizes,
    receivers: Sizes,
    keep: bool = True,
) -> Blueprint:
    return Blueprint(
        layout=layout,
        device=problem.like.device,
        dtype=problem.like.dtype,
        free_surface=problem.free_surface and layout.first == 0,
        shots=problem.n_shots,
        steps=steps,
        sources=sources,
        receivers=receivers,
        history=problem.history,
        keeps=keep,
        illuminates=problem.illuminate,
    )


def _most(positions: np.ndarray, problem: Problem) -> Sizes:
    """Return the sizes of the matrix of points (shot, point, ndim), with at most four to a cell."""
    cells = positions / np.asarray(problem.spacing)
    between = (np.abs(cells - np.rint(cells)) >= ON_GRID).any(axis=(0, 1))
    points, taps = positions.shape[1], (2 * HALF_WIDTH) ** int(between.sum())
    return Sizes(points, taps, points * taps, 4)
