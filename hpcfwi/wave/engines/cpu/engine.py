"""The engine for CPUs: compiled sweeps, one shot a thread; threads left over share the last shots.

Shots share nothing while they run, so threads never wait for one another but where several work on
the same shot, and a shot's bits depend neither on its batch nor on the number of threads. What a
shot keeps for the way back is in `histories`, time loops are in `sweeps`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.wave.engines.cpu.buffers import POOL
from hpcfwi.wave.engines.cpu.disk import find_disk, keep_loops
from hpcfwi.wave.engines.cpu.footprint import estimate_bytes, estimate_updates
from hpcfwi.wave.engines.cpu.histories import ShotHistory, make_history
from hpcfwi.wave.engines.cpu.layout import Tables, lay_out, make_tables, make_zeros, take_out
from hpcfwi.wave.engines.cpu.scattering import Scattering
from hpcfwi.wave.engines.cpu.sweeps import Records, WayBack, make_shots, no_records
from hpcfwi.wave.engines.cpu.threads import make_threads
from hpcfwi.wave.history import KINDS, Kind
from hpcfwi.wave.problem import Gradients, Problem, gather_gradients, relative_change

NAME = "cpu"
HISTORIES: tuple[Kind, ...] = KINDS

# A thread that shares a shot gets at least so many planes, or blocks of rows.
LEAST_SHARE = 3


@dataclass(frozen=True, eq=False)
class State:
    """What was kept of each shot, of so many steps.

    energies: (shot, row, column), as the sweeps leave them.
    """

    tables: Tables
    steps: int
    histories: list[ShotHistory]
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
    return POOL.count_bytes()


def clear() -> None:
    """Let go what earlier batches have left for use again."""
    POOL.clear()


def forward(problem: Problem, wavelet: Tensor, keep: bool) -> tuple[Tensor, State | None]:
    """Traces (shot, receiver, time) of wavelets (shot, source, time); what `backward` takes."""
    keep_loops()
    tables = make_tables(problem)
    emitted = wavelet.transpose(1, 2).contiguous().numpy()
    count, steps = emitted.shape[:2]
    traces = np.empty((count, steps, problem.receivers.shape[1]), tables.v2dt2.dtype)
    energies = _make_sums(tables, count if keep and problem.illuminate else 0)
    shots = make_shots(problem, tables, emitted)
    histories = [make_history(problem, shot, keep) for shot in shots]

    def simulate(k: int, threads: int) -> None:
        energy = energies[k] if len(energies) else no_records(shots[k]).energy
        histories[k].simulate(Records(traces[k], energy), threads)

    _each_shot(simulate, count, tables)
    data = torch.from_numpy(traces).transpose(1, 2).contiguous()
    return data, State(tables, steps, histories, energies) if keep else None


def backward(problem: Problem, state: State, residual: Tensor) -> Gradients:
    """Gradients from the one with respect to the traces, (shot, receiver, time)."""
    tables, shape = state.tables, problem.scheme.shape
    arriving = residual.transpose(1, 2).contiguous().numpy()
    shots, steps = arriving.shape[:2]
    sources = problem.sources.shape[1]
    wavelet = torch.zeros((shots, steps, sources), dtype=problem.speed.dtype)
    fields = 3 if problem.illuminate else 1
    found = torch.empty((fields, shots, *problem.speed.shape), dtype=problem.speed.dtype)

    def backpropagate(k: int, threads: int) -> None:
        sums = _make_sums(tables, 2 if problem.illuminate else 1)
        energy = sums[1] if problem.illuminate else sums[0, :0]
        way_back = WayBack(arriving[k], wavelet[k].numpy(), sums[0], energy)
        state.histories[k].backpropagate(way_back, threads)
        image, *arrived = take_out(sums, shape).mul_(problem.interval)[:, None]
        emitted = [problem.interval * take_out(e, shape)[None] for e in state.energies[k:][:1]]
        energies = [*emitted, *arrived] or [None, None]
        one = gather_gradients(problem, image, wavelet[k : k + 1].transpose(1, 2), *energies)
        given = (one.speed, one.source_illumination, one.receiver_illumination)
        terms = [term for term in given if term is not None]
        for whole, term in zip(found, terms, strict=True):
            whole[k] = term[0]

    _each_shot(backpropagate, shots, tables)
    return Gradients(
        found[0], wavelet.transpose(1, 2), *(found[1:] if problem.illuminate else (None, None))
    )


def scatter(problem: Problem, state: State, direction: Tensor) -> Tensor:
    """How the traces (shot, receiver, time) change with the speed, to first order."""
    tables = state.tables
    change = lay_out(problem.interval * relative_change(problem, direction))
    change *= tables.v2dt2
    size = (problem.n_shots, state.steps, problem.receivers.shape[1])
    traces = np.empty(size, tables.v2dt2.dtype)

    def scatter_one(k: int, threads: int) -> None:
        state.histories[k].scatter(Scattering(change, traces[k]), threads)

    _each_shot(scatter_one, len(traces), tables)
    return torch.from_numpy(traces).transpose(1, 2).contiguous()


def _make_sums(tables: Tables, count: int) -> NDArray:
    """Fields of zeros."""
    return make_zeros((count, *tables.v2dt2.shape), tables.v2dt2.dtype)


def _each_shot(work: Callable[[int, int], None], shots: int, tables: Tables) -> None:
    """Do work(shot, threads) for all shots; those left over share the threads of the process."""
    threads = torch.get_num_threads()
    rest = shots % threads
    alone = shots - rest
    parts = tables.grid.planes if tables.grid.planes > 1 else tables.sides.blocks
    together = min(max(1, parts // LEAST_SHARE), threads // rest) if rest else 1
    for numbers, size in ((range(alone), 1), (range(alone, shots), together)):
        if len(numbers):
            with make_threads(min(len(numbers), threads)) as pool:
                list(pool.map(lambda k, size=size: work(k, size), numbers))
