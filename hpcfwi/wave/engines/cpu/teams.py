"""Threads and processes that share a shot of the `cpu` engine: teams, barriers, and halos.

A team is the threads of a process that compute the same shot, each a part of the rows of every
plane. The ranks of a crew compute the same shot too, each a layer of its grid with its own team.

A barrier is a counter, to which every thread adds one when it arrives. The threads continue when
the count is a multiple of their number. A waiting thread reads the counter a few hundred times, and
then yields its core after each read, so that a thread that has lost its core gets it back. Layers
of a grid exchange values in the same way, through memory that their processes share: a layer writes
its values, and then adds one to its counter, for which the others wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import ContextVar
from itertools import pairwise
from math import prod
from threading import Event
from typing import NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from hpcfwi.wave.engines.cpu.jit import within_loops
from hpcfwi.wave.engines.cpu.layout import BLOCK, GridLayout
from hpcfwi.wave.engines.cpu.windows import STEPS_PER_WINDOW
from hpcfwi.wave.history import Span
from hpcfwi.wave.layers import HALO, Crew, Letter

# Number of times that a waiting thread reads the counter before it yields its core.
LOOKS = 300

# Smallest number of blocks of rows of each plane for a thread of a shared shot, in 2-D and in 3-D.
LEAST_SHARES = (3, 1)

# Number of updates of cells after which a sweep can be stopped, a tenth of a second or more. A call
# of a compiled loop takes 30 microseconds.
UPDATES_PER_PIECE = 2**28

# The event that stops the shots which the current thread simulates.
_STOP: ContextVar[Event] = ContextVar("_STOP")

_give_way = types.ExternalFunction("sched_yield", types.intc())


class ThreadTeam(NamedTuple):
    """One of the threads that share a shot.

    rank, size: number of this thread, and number of threads; arrivals: (1,) int64, the counter of
    the barrier, shared by all threads and initially 0.
    """

    rank: int
    size: int
    arrivals: NDArray[np.int64]


def run_team(
    size: int,
    grid: GridLayout,
    span: Span,
    work: Callable[[Span, ThreadTeam], None],
    backwards: bool = False,
) -> None:
    """Call work(piece, team) on `size` threads, for one piece of a span of steps after the other.

    The calling thread is one of them: three threads on two cores would share a core longer at the
    beginning. team: has the rank of the thread; backwards: True if the last piece comes first.
    Raises `CancelledError` between two pieces if `each_shot` has been interrupted.
    """
    arrivals = np.zeros(1, np.int64)
    teams = [ThreadTeam(rank, size, arrivals) for rank in range(size)]
    windows = UPDATES_PER_PIECE // (STEPS_PER_WINDOW * grid.planes * grid.rows * grid.nx)
    (begin, end), steps = span, STEPS_PER_WINDOW * max(1, windows)
    pieces = list(pairwise([begin, *range(begin // steps * steps + steps, end, steps), end]))
    stop = _STOP.get(Event())
    with make_threads(size, stop) as threads:
        for piece in reversed(pieces) if backwards else pieces:
            if stop.is_set():
                raise CancelledError
            others = [threads.submit(work, piece, team) for team in teams[1:]]
            work(piece, teams[0])
            for other in others:
                other.result()


def make_threads(size: int, stop: Event) -> ThreadPoolExecutor:
    """Return a pool of threads that flush numbers below 1e-38 to 0.

    These numbers occur ahead of a wave, and would make its simulation ten times as slow there.
    stop: an event that stops `run_team` in these threads.
    """

    def begin() -> None:
        torch.set_flush_denormal(True)
        _STOP.set(stop)

    return ThreadPoolExecutor(size, initializer=begin)


def each_shot(
    work: Callable[[int, int], None], shots: int, grid: GridLayout, one_at_a_time: bool = False
) -> None:
    """Call work(shot, threads) for all shots; the last ones share the threads of the process.

    An exception such as KeyboardInterrupt stops all shots after the current piece of their sweeps.

    one_at_a_time: True if each shot has all threads, one after the other; an exception then does
    not stop a shot, because the other ranks of its crew would wait for the rest of it.
    """
    threads, stop = torch.get_num_threads(), Event()
    blocks = -(-grid.rows // BLOCK)
    most = max(1, blocks // LEAST_SHARES[grid.planes > 1])
    if one_at_a_time:
        with make_threads(1, stop) as pool:
            for k in range(shots):
                pool.submit(work, k, min(most, threads)).result()
        return
    rest = shots % threads
    alone = shots - rest
    together = min(most, threads // rest) if rest else 1
    for numbers, size in ((range(alone), 1), (range(alone, shots), together)):
        if len(numbers):
            with make_threads(min(len(numbers), threads), stop) as pool:
                try:
                    list(pool.map(lambda k, size=size: work(k, size), numbers))
                except BaseException:
                    stop.set()
                    raise


@intrinsic
def _arrive(typing_context, array):
    """Add one to the array's first element, atomically, and return its previous value."""

    def generate(context, builder, signature, args):
        one = ir.Constant(ir.IntType(64), 1)
        place = context.make_array(signature.args[0])(context, builder, value=args[0]).data
        return builder.atomic_rmw("add", place, one, "acq_rel")

    return types.int64(array), generate


@intrinsic
def _look(typing_context, array):
    """Return the array's first element, including changes by other threads."""

    def generate(context, builder, signature, args):
        place = context.make_array(signature.args[0])(context, builder, value=args[0]).data
        return builder.load_atomic(place, "acquire", 8)

    return types.int64(array), generate


@intrinsic
def _call(typing_context, function, letters, number):
    """Call the function at an address with an array (letter, field), its length, and a number."""

    def generate(context, builder, signature, args):
        word = ir.IntType(64)
        array = context.make_array(signature.args[1])(context, builder, value=args[1])
        length = builder.extract_value(array.shape, 0)
        kind = ir.FunctionType(ir.VoidType(), [array.data.type, word, word])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [array.data, length, args[2]])
        return context.get_dummy_value()

    return types.none(function, letters, types.int64), generate


@within_loops
def barrier(team):
    """Wait until all threads of the team have called this function."""
    if team.size > 1:
        arrived: int = _arrive(team.arrivals)  # type: ignore[call-arg]
        target = (arrived // team.size + 1) * team.size
        looks = 0
        while _look(team.arrivals) < target:
            looks += 1
            if looks > LOOKS:
                _give_way()


class Neighbours(NamedTuple):
    """The memory through which the layers of a grid exchange values.

    number, size: number of this layer, and of all; failed: (1,), 1 if a rank has failed, for which
    the others then no longer wait; sent: (way, layer, entry), in entry 0 the number of halos that
    a layer has given so far to the layer before it (way 0) or after it (way 1); posted: (layer,
    entry), in entry 0 the number of its faces so far; faces: (layer, slot, entry), in entry 0 the
    faces of a window that the wave in a layer is about to reach; halos: (way, layer, slot, row,
    column), the first and the last planes of each layer, of one or several fields. Two slots
    suffice, because a layer writes message n + 2 after all of its neighbours have sent n + 1, and
    hence read n.

    courier: as in `Crew`; halo_mail, face_mail: the `Letter` of each message to or from layers on
    other hosts, (letter, field); counts: all of the counters, (counter, entry).
    """

    number: int
    size: int
    failed: NDArray[np.int64]
    counts: NDArray[np.int64]
    sent: NDArray[np.int64]
    posted: NDArray[np.int64]
    faces: NDArray[np.int64]
    halos: NDArray
    courier: int
    halo_mail: NDArray[np.int64]
    face_mail: NDArray[np.int64]


def make_neighbours(crew: Crew, dtype: np.dtype, rows: int, columns: int) -> Neighbours:
    """Return the memory that the layers of a crew share, which is the same in each call.

    rows, columns: shape of the planes that a layer gives to a neighbour, those of all fields of the
    largest message.
    """
    size = crew.size
    shape = (2, size if size > 1 else 0, 2, rows, columns)
    # Counters of different processes lie in different cache lines.
    words = (5 * size, 8)
    begin = 8 * prod(words)
    end = begin + prod(shape) * dtype.itemsize
    memory = crew.share(end)
    lines = memory[:begin].view(np.int64).reshape(words)
    faces = lines[3 * size :].reshape(size, 2, 8)
    halos = memory[begin:end].view(dtype).reshape(shape)
    return Neighbours(
        crew.number,
        size,
        crew.failed,
        counts=lines[: 3 * size],
        sent=lines[: 2 * size].reshape(2, size, 8),
        posted=lines[2 * size : 3 * size],
        faces=faces,
        halos=halos,
        courier=crew.courier,
        halo_mail=_pack(_address_halos(crew, halos)),
        face_mail=_pack(_address_faces(crew, faces)),
    )


def _address_halos(crew: Crew, halos: NDArray) -> Iterator[Letter]:
    """Yield the letters between a layer and those before and after it, if on other hosts."""
    number, size, hosts = crew.number, crew.size, crew.hosts
    for way, other in enumerate((number - 1, number + 1)):
        if 0 <= other < size and hosts[other] != hosts[number]:
            yield _make_letter(other, True, halos[way, number], way * size + number)
            yield _make_letter(other, False, halos[1 - way, other], (1 - way) * size + other)


def _address_faces(crew: Crew, faces: NDArray) -> Iterator[Letter]:
    """Yield the letters from each layer to the first rank of each other host."""
    number, size, hosts = crew.number, crew.size, crew.hosts
    for first in sorted(set(hosts) - {hosts[number]}):
        yield _make_letter(first, True, faces[number], 2 * size + number)
    for other in range(size):
        if number == hosts[number] != hosts[other]:
            yield _make_letter(other, False, faces[other], 2 * size + other)


def _make_letter(rank: int, sent: bool, slots: NDArray, counter: int) -> Letter:
    return Letter(rank, sent, slots.ctypes.data, slots[0].nbytes, counter)


def _pack(letters: Iterable[Letter]) -> NDArray[np.int64]:
    return np.array(list(letters), np.int64).reshape(-1, len(Letter._fields))


@within_loops
def await_count(neighbours, counter, target):
    """Wait until another process has increased a counter (entry,) to at least `target`."""
    looks = 0
    while (
        _look(counter) < target  # type: ignore[call-arg]
        and _look(neighbours.failed) == 0  # type: ignore[call-arg]
    ):
        looks += 1
        if looks > LOOKS:
            _give_way()


@within_loops
def carry(neighbours, mail, message):
    """Exchange messages with the layers on other hosts."""
    if len(mail) > 0:
        _call(neighbours.courier, mail, message)  # type: ignore[call-arg]
        for k in range(len(mail)):
            if mail[k, 1] == 0:
                _arrive(neighbours.counts[mail[k, 4]])


@within_loops
def copy_depths(grid, cut, fields, numbers, depth, planes, leaves):
    """Copy HALO planes of some fields from one depth on to an array, or back if not `leaves`.

    They are rows of a grid of one plane. planes: (row, column), field after field.
    """
    for i in range(len(numbers)):
        for k in range(HALO):
            for row in range(cut.rows):
                r = grid.base + (depth + k) * cut.stride + row
                t = (i * HALO + k) * cut.rows + row
                for j in range(fields.shape[2]):
                    if leaves:
                        planes[t, j] = fields[numbers[i], r, j]
                    else:
                        fields[numbers[i], r, j] = planes[t, j]


ONLY = np.zeros(1, np.int64)


@within_loops
def exchange(neighbours, grid, cut, p, team):
    """Replace the values of p around the layer by those of its neighbours."""
    if neighbours.size > 1:
        fields = p.reshape((1, p.shape[0], p.shape[1]))
        exchange_fields(neighbours, grid, cut, fields, ONLY, team)


@within_loops
def exchange_fields(neighbours, grid, cut, fields, numbers, team):
    """Replace the values of some fields around the layer by those of its neighbours.

    All threads must have computed them. The first one sends and receives, one message each way.
    fields: (field, row, column); numbers: of those that are exchanged.
    """
    number, halos = neighbours.number, neighbours.halos
    if neighbours.size > 1 and len(numbers) > 0:
        if team.rank == 0:
            depths = grid.planes if grid.planes > 1 else grid.rows
            message = neighbours.sent[0, number, 0] + 1
            slot = message % 2
            last = depths - HALO
            copy_depths(grid, cut, fields, numbers, 0, halos[0, number, slot], True)
            copy_depths(grid, cut, fields, numbers, last, halos[1, number, slot], True)
            _arrive(neighbours.sent[0, number])  # type: ignore[call-arg]
            _arrive(neighbours.sent[1, number])
            carry(neighbours, neighbours.halo_mail, message)
            if number > 0:
                await_count(neighbours, neighbours.sent[1, number - 1], message)
                planes = halos[1, number - 1, slot]
                copy_depths(grid, cut, fields, numbers, -HALO, planes, False)
            if number + 1 < neighbours.size:
                await_count(neighbours, neighbours.sent[0, number + 1], message)
                planes = halos[0, number + 1, slot]
                copy_depths(grid, cut, fields, numbers, depths, planes, False)
        barrier(team)


@within_loops
def unite_faces(neighbours, faces, team):
    """Return the faces of a window that the wave is about to reach in any layer.

    faces: those that it is about to reach in this one.
    """
    if neighbours.size > 1:
        number = neighbours.number
        if team.rank == 0:
            message = neighbours.posted[number, 0] + 1
            neighbours.faces[number, message % 2, 0] = faces
            _arrive(neighbours.posted[number])  # type: ignore[call-arg]
            carry(neighbours, neighbours.face_mail, message)
            for k in range(neighbours.size):
                await_count(neighbours, neighbours.posted[k], message)
        barrier(team)
        slot = neighbours.posted[number, 0] % 2
        for k in range(neighbours.size):
            faces |= neighbours.faces[k, slot, 0]
    return faces
