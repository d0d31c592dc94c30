"""The engine for CPUs: compiled sweeps, one shot a thread; threads left over share the last shots.

Shots share nothing while they run, so threads never wait for one another but where several work on
the same shot, and a shot's bits depend neither on its batch nor on the number of threads. What a
shot keeps for the way back is in `keepers`, time loops are in `sweeps`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave.engines.cpu.disk import find_disk, keep_loops
from hpcfwi.wave.engines.cpu.footprint import estimate_bytes, estimate_updates
from hpcfwi.wave.engines.cpu.keepers import Keeper, make_keeper
from hpcfwi.wave.engines.cpu.layout import make_zeros, take_out
from hpcfwi.wave.engines.cpu.scheme import make_interior, make_scheme, make_taps
from hpcfwi.wave.engines.cpu.shot import SHELF, Crew, Shot, WayBack, flush_denormals
from hpcfwi.wave.history import KINDS, Kind
from hpcfwi.wave.problem import Gradients, Problem, gather_gradients

NAME = "cpu"
HISTORIES: tuple[Kind, ...] = KINDS

# A thread that shares a shot gets at least so many planes, or blocks of rows.
LEAST_SHARE = 3


@dataclass(frozen=True, eq=False)
class State:
    """What was kept of each shot; energies: (shot, row, column), as the sweeps leave them."""

    task: _Task
    kept: list[Keeper]
    energies: NDArray


def available() -> str | None:
    """Why this engine cannot be used here, or None.

    Raises `InputError` where NUMBA_CACHE_DIR names a directory in which others may write.
    """
    find_disk()
    return None


def footprint(problem: Problem, steps: int) -> int:
    """Bytes that `forward` and `backward` take, about, for so many steps."""
    return estimate_bytes(problem, steps, torch.get_num_threads())


def count_updates(problem: Problem, steps: int) -> float:
    """Cells that `forward` computes, about, added up over shots and steps: those with a wave."""
    return estimate_updates(problem, steps)


def idle() -> int:
    """Bytes that it holds from earlier batches, to be used again or let go."""
    return SHELF.count_bytes()


def forward(problem: Problem, wavelet: Tensor, keep: bool) -> tuple[Tensor, State | None]:
    """Traces (shot, receiver, time) for wavelets (shot, time), and what `backward` needs."""
    keep_loops()
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
    return data, State(task, kept, energies) if keep else None


def backward(problem: Problem, state: State, residual: Tensor) -> Gradients:
    """Gradients from the one with respect to the traces, (shot, receiver, time)."""
    task, shape = state.task, problem.scheme.shape
    arriving = residual.transpose(1, 2).contiguous().numpy()
    shots, steps = arriving.shape[:2]
    wavelet = torch.zeros((shots, steps), dtype=problem.speed.dtype)
    fields = 3 if problem.illuminate else 1
    found = torch.empty((fields, shots, *problem.speed.shape), dtype=problem.speed.dtype)

    def backpropagate(shot: int, crew: Crew) -> None:
        sums = task.make_sums(2 if problem.illuminate else 1)
        energy = sums[1] if problem.illuminate else None
        way_back = WayBack(arriving[shot], wavelet[shot, :, None].numpy(), sums[0], energy)
        state.kept[shot].backpropagate(way_back, crew)
        image, *arrived = take_out(sums, shape).mul_(problem.interval)[:, None]
        emitted = [problem.interval * take_out(e, shape)[None] for e in state.energies[shot:][:1]]
        energies = [*emitted, *arrived] or [None, None]
        one = gather_gradients(problem, image, wavelet[shot, None], *energies)
        given = (one.speed, one.source_illumination, one.receiver_illumination)
        terms = [term for term in given if term is not None]
        for whole, term in zip(found, terms, strict=True):
            whole[shot] = term[0]

    _each_shot(backpropagate, shots, task.most_threads)
    return Gradients(found[0], wavelet, *(found[1:] if problem.illuminate else (None, None)))


class _Task:
    """A problem as the sweeps want it."""

    def __init__(self, problem: Problem) -> None:
        scheme = problem.scheme
        self._scheme, self._interior = make_scheme(problem), make_interior(problem)
        self.dtype = self._scheme.v2dt2.dtype
        grid = self._scheme.grid
        self._sources = make_taps(scheme.sources, grid, self._interior, self.dtype)
        self._receivers = make_taps(scheme.receivers, grid, self._interior, self.dtype)
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
