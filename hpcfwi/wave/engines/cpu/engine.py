"""The engine for CPUs: compiled sweeps, one thread per shot; spare threads share the last shots.

Shots share nothing while they run, so that threads wait for one another only if several work on the
same shot, and the bits of a shot depend neither on its batch nor on the number of threads.
`histories` has the data that a shot stores for the backward pass, `sweeps` the time loops.

After the engine come estimates of the bytes and of the computed cells: cells that a wave has not
reached are left out (docs/decisions/012-windows.md). At the end of the module, compiled loops are
stored on disk, so that they are compiled once on a machine and again when they change. If several
ranks need the same loop, one of them compiles it. `hpcfwi.system` decides where compiled loops may
be stored.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numba
import numpy as np
import torch
from numba import config
from numba.core.caching import FunctionCache
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hpcfwi.system import Place, find_place
from hpcfwi.wave.engines.cpu import kernels, layout, sweeps, windows
from hpcfwi.wave.engines.cpu.histories import SAMPLES_PER_STATE, ShotHistory, grown, make_history
from hpcfwi.wave.engines.cpu.kernels import make_threads
from hpcfwi.wave.engines.cpu.layout import (
    POOL,
    Tables,
    field_shape,
    lay_out,
    make_grid,
    make_interior,
    make_tables,
    make_zeros,
    take_out,
)
from hpcfwi.wave.engines.cpu.sweeps import Records, Scattering, WayBack, make_shots, no_records
from hpcfwi.wave.engines.cpu.windows import Frame, count_bytes, count_cells, count_scales, whole_of
from hpcfwi.wave.history import KINDS, Boundary, Kind, Recompute, sampled_steps
from hpcfwi.wave.problem import Gradients, Problem, make_gradients, relative_change

log = logging.getLogger(__name__)

NAME = "cpu"
HISTORIES: tuple[Kind, ...] = KINDS

# Smallest number of blocks of rows of each plane for a thread of a shared shot, in 2-D and in 3-D.
LEAST_SHARES = (3, 1)


@dataclass(frozen=True, eq=False)
class State:
    """The stored histories of the shots, and the number of their steps.

    energies: (shot, row, column), in the layout of the sweeps.
    """

    tables: Tables
    steps: int
    histories: list[ShotHistory]
    energies: NDArray


def available() -> str | None:
    """Return why this engine cannot be used here, or None if it can be used.

    Raises `InputError` if NUMBA_CACHE_DIR names a directory in which others may write.
    """
    find_disk()
    return None


def footprint(problem: Problem, steps: int) -> int:
    """Return the approximate bytes of `forward` and `backward` for so many steps."""
    return estimate_bytes(problem, steps, torch.get_num_threads())


def count_updates(problem: Problem, steps: int) -> float:
    """Return the approximate number of cells with a wave, summed over shots and steps."""
    return estimate_updates(problem, steps)


def idle() -> int:
    """Return the bytes of buffers from earlier batches."""
    return POOL.count_bytes()


def clear() -> None:
    """Release these buffers."""
    POOL.clear()


def forward(problem: Problem, wavelet: Tensor, keep: bool) -> tuple[Tensor, State | None]:
    """Return the traces (shot, receiver, time) of wavelets (shot, source, time), and a state."""
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


def backward(problem: Problem, state: State, adjoint_source: Tensor) -> Gradients:
    """Return the gradients, given the one with respect to the traces, (shot, receiver, time)."""
    tables, shape = state.tables, problem.scheme.shape
    arriving = adjoint_source.transpose(1, 2).contiguous().numpy()
    shots, steps = arriving.shape[:2]
    sources = problem.sources.shape[1]
    wavelet = torch.zeros((shots, steps, sources), dtype=problem.like.dtype)
    fields = 3 if problem.illuminate else 1
    found = torch.empty((fields, shots, *problem.like.shape), dtype=problem.like.dtype)

    def backpropagate(k: int, threads: int) -> None:
        sums = _make_sums(tables, 2 if problem.illuminate else 1)
        energy = sums[1] if problem.illuminate else sums[0, :0]
        way_back = WayBack(arriving[k], wavelet[k].numpy(), sums[0], energy)
        state.histories[k].backpropagate(way_back, threads)
        # Each sampled step stands for so many steps in the sums over time.
        weight = problem.interval
        image = weight * take_out(sums[:1], shape)
        forward_energy = adjoint_energy = None
        if problem.illuminate:
            forward_energy = weight * take_out(state.energies[k : k + 1], shape)
            adjoint_energy = weight * take_out(sums[1:], shape)
        emitted = wavelet[k : k + 1].transpose(1, 2)
        one = make_gradients(problem, image, emitted, forward_energy, adjoint_energy)
        terms = (one.model["vp"], one.source_illumination, one.receiver_illumination)
        for whole, term in zip(found, terms[:fields], strict=True):
            assert term is not None, "illuminations are wanted"
            whole[k] = term[0]

    _each_shot(backpropagate, shots, tables)
    energies = found[1:] if problem.illuminate else (None, None)
    return Gradients({"vp": found[0]}, wavelet.transpose(1, 2), *energies)


def scatter(problem: Problem, state: State, direction: Mapping[str, Tensor]) -> Tensor:
    """Return the first-order change of the traces (shot, receiver, time) with the model."""
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
    """Return fields of zeros in the layout of the sweeps."""
    return make_zeros((count, *tables.v2dt2.shape), tables.v2dt2.dtype)


def _each_shot(work: Callable[[int, int], None], shots: int, tables: Tables) -> None:
    """Call work(shot, threads) for all shots; the last ones share the threads of the process."""
    threads = torch.get_num_threads()
    rest = shots % threads
    alone = shots - rest
    blocks = -(-tables.grid.rows // layout.BLOCK)
    most = max(1, blocks // LEAST_SHARES[tables.grid.planes > 1])
    together = min(most, threads // rest) if rest else 1
    for numbers, size in ((range(alone), 1), (range(alone, shots), together)):
        if len(numbers):
            with make_threads(min(len(numbers), threads)) as pool:
                list(pool.map(lambda k, size=size: work(k, size), numbers))


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
        cells: NDArray[np.float64] = np.maximum(widths, 0.0).prod(axis=-1)
        return cells


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


def estimate_bytes(problem: Problem, steps: int, threads: int) -> int:
    """Estimate the bytes of the forward and the backward pass of a batch.

    Every shot counts as if it were in the middle of the model. Shots at the ends of a line store
    less, but in buffers that other shots have filled before.
    """
    shots, size = problem.n_shots, problem.like.element_size()
    rows, columns = field_shape(problem.padded_shape)
    # Memory, in fields: the waves and the memory variables; for a running shot, also u, the image
    # and its intermediate results; for a waiting shot, its gradients and illuminations.
    state = 2.0 + 2.0 * float(np.sum(1.0 - np.divide(problem.like.shape, problem.padded_shape)))
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
    """Estimate the number of cells that waves have reached, summed over shots and steps."""
    whole = [np.subtract(edge, problem.padding[0]) for edge in (0, problem.padded_shape)]
    medium = (problem.model["vp"].numpy(), problem.spacing, problem.dt)
    shots = problem.sources / problem.spacing

    def count(some: NDArray[np.int64]) -> NDArray[np.float64]:
        fronts = (unite(follow_wave(*medium, s, some) for s in sources) for sources in shots)
        return np.sum([front.count_cells(*whole) for front in fronts], axis=0)

    return sum_over(range(steps), count) if len(shots) else 0.0


def _count_cells(problem: Problem, steps: range) -> float:
    """Return the number of cells of its wave that a shot stores, summed over some steps."""
    medium = (problem.model["vp"].numpy(), problem.spacing, problem.dt)
    sources = problem.sources[0] / problem.spacing
    sources += np.divide(problem.like.shape, 2) - sources.mean(axis=0)
    sources[:, 0] = float(problem.sources[..., 0].max()) / problem.spacing[0]
    whole = [np.subtract(edge, problem.padding[0]) for edge in (0, problem.padded_shape)]
    interior = [np.subtract(edge, problem.padding[0]) for edge in problem.interior]

    def count(some: NDArray[np.int64]) -> NDArray[np.float64]:
        front = unite(follow_wave(*medium, source, some) for source in sources)
        rebuilt = isinstance(problem.history, Boundary)
        return front.count_cells(*whole) - rebuilt * front.count_cells(*interior)

    return sum_over(steps, count)


def _count_rim(problem: Problem) -> int:
    """Return the number of cells around the interior that its stencils reach."""
    interior = make_interior(problem)
    whole = whole_of.py_func(make_grid(problem.padded_shape))
    return count_cells(Frame(grown(interior, problem.order // 2, whole), interior))


LOCK_WAIT = 300.0  # s, several times the time to compile a loop
POLL = 0.1  # s

# The modules that the loops are compiled from: the functions that they call and the types of their
# arguments.
SOURCES = (layout, kernels, windows, sweeps)


def find_disk() -> Place:
    """Return the directory of compiled loops; raises `InputError` as `find_place` does."""
    return find_place("NUMBA_CACHE_DIR", "numba")


@cache
def keep_loops() -> None:
    """Enable the on-disk cache of compiled loops; warn once if that is impossible."""
    disk = find_disk()
    if disk.path is None:
        _say_not_kept(disk.problem)
        return
    settings: Any = config
    loops: tuple[Any, ...] = (
        sweeps.sweep_forward,
        sweeps.sweep_backward,
        sweeps.sweep_scattered,
    )
    # Numba reads this setting when a cache is made; other code in this process keeps the old one.
    given, settings.CACHE_DIR = settings.CACHE_DIR, str(disk.path)
    try:
        for loop in loops:
            loop._cache = _Cache(loop.py_func)
    finally:
        settings.CACHE_DIR = given


def edition() -> str:
    """Return a hash of all sources of the loops, because Numba checks only the file of a loop."""
    files = (Path(str(module.__file__)) for module in SOURCES)
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@contextmanager
def taking_turns(path: Path) -> Iterator[bool]:
    """Hold a lock on a file; yield True if this process had to wait for another one.

    It waits for at most `LOCK_WAIT`, in case the other process hangs, and not at all if the file
    system has no locks.
    """
    until, waited = time.monotonic() + LOCK_WAIT, False
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context(path.open("w"))
            while time.monotonic() < until:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    waited = True
                    time.sleep(POLL)
                else:
                    break
        yield waited


class _Cache(FunctionCache):
    """Numba's cache for one edition of the sources, which ignores errors of writing."""

    def __init__(self, py_func: Any) -> None:
        super().__init__(py_func)
        # This is not the stamp of the source, which Numba compares only after it has unpickled
        # types that another edition may not have.
        self._cache_file._version = f"{numba.__version__} {edition()}"
        self._turn = ExitStack()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return a loop from disk, perhaps after another process has compiled it, or None."""
        found = super().load_overload(sig, target_context)
        if found is None:
            name = f"{self._py_func.__name__} {sig}"
            if self._turn.enter_context(self._taking_turns(f"{crc32(name.encode()):08x}")):
                found = super().load_overload(sig, target_context)
        if found is not None:
            self._turn.close()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            # Numba may give the same name to two loops that are saved at the same time.
            with self._taking_turns("saving"):
                super().save_overload(sig, data)
        except OSError as error:
            self.disable()
            _say_not_kept(f"{self.cache_path} cannot be written ({error.strerror})")
        finally:
            self._turn.close()

    def _taking_turns(self, name: str) -> AbstractContextManager[bool]:
        return taking_turns(Path(self.cache_path) / f"{name}.lock")


@cache
def _say_not_kept(problem: str) -> None:
    log.warning(
        "The cpu engine is compiled for this process only, because %s; "
        "NUMBA_CACHE_DIR may name a directory that only you can access",
        problem,
    )
