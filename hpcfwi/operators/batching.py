"""Batching: how many shots a rank simulates at a time, with which history, in the memory it has.

Memory is estimated for the largest window of a survey. `inversion.memory` says how much of it a
rank may take. A choice that was too optimistic is corrected when memory runs out: the same shots
are simulated again, fewer at a time. Shots that are simulated together share one window.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from hpcfwi.errors import InputError, InversionFailure, say_bytes
from hpcfwi.model import Model
from hpcfwi.operators.simulator import Simulator, Window, group_shots
from hpcfwi.parallel.context import Context
from hpcfwi.survey import Survey
from hpcfwi.system import say_free
from hpcfwi.wave.engines import let_go
from hpcfwi.wave.history import (
    Auto,
    History,
    NothingFits,
    computes_alike,
    free_on,
    is_out_of_memory,
    memory_at_hand,
)
from hpcfwi.wave.simulation import Task


@dataclass(frozen=True)
class Share:
    """The memory of a rank for simulations.

    memory: bytes that its simulations may take; slots: shots that it simulates at a time if memory
    does not matter; beside: bytes that it will take otherwise; each_shot: bytes of a shot in
    addition to its waves while it is simulated; room: bytes for its simulations at the very most;
    told: free memory and its limit, for messages; empty if a limit was given, and on a GPU.
    """

    memory: int
    slots: int
    beside: int = 0
    each_shot: int = 0
    room: int = sys.maxsize
    told: str = field(default="", compare=False)

    def shot_of(self, at_once: int) -> int:
        """Bytes that the waves of a shot may take where so many are simulated at once."""
        return self.memory // min(self.slots, at_once) - self.each_shot


@dataclass(frozen=True)
class Fit:
    """The history and the number of shots at a time that fit into the memory of all ranks.

    history: the same on all; shot: bytes of one shot with it; at_once: shots at a time that fit
    on every rank.
    """

    history: History
    shot: int
    at_once: int


def share_of_rank(
    context: Context,
    slots: int,
    beside: int = 0,
    each_shot: int = 0,
    limit: int | None = None,
) -> Share:
    """Return the memory of this rank now, after engines have released that of earlier batches.

    This is the free memory, less a margin and what ranks will take otherwise, in equal parts for
    the ranks of a GPU or, on CPUs, of a host. slots, beside, each_shot: see `Share`; limit: memory
    for simulations, in place of that. Collective.
    """
    let_go()
    ranks = [(context.host, beside)] * context.sharers
    on_cpu = context.device.type == "cpu"
    if on_cpu:
        ranks = context.all_gather((context.host, beside))
    here = [otherwise for host, otherwise in ranks if host == context.host]
    free, most = (
        max(0, there - sum(here)) // len(here)
        for there in (memory_at_hand(context.device), free_on(context.device))
    )
    told = f"; on {context.host} {say_free()}" if limit is None and on_cpu else ""
    return Share(free if limit is None else limit, slots, beside, each_shot, most, told)


def largest_task(
    simulator: Simulator, model: Model, survey: Survey, costs: NDArray[np.float64]
) -> Task:
    """Return the task of the engine for the shot of a survey with the largest window.

    costs: of its shots, see `Simulator.costs`. Raises `InputError` if the engine has no such
    history.
    """
    largest = int(np.argmax(costs))
    shot, seen = survey.select(np.array([largest])), simulator.restrict(model)
    (window,) = simulator.aperture.find_windows(simulator.grid, shot)
    try:
        return simulator.set_up(seen, shot, window)
    except ValueError as error:
        raise InputError("wave.history", str(error), "Change the value.") from error


def fit_shots(task: Task, shares: Sequence[Share], reproducible: bool) -> Fit:
    """The fastest history with which each rank can simulate its slots within its memory.

    Fewer at a time than that where no history lets it. Where results are to be reproducible, the
    fastest with which each can simulate a single shot, and as many at a time as then fit, as
    results with another history have other bits.

    task: of the shot that takes most. Raises `InputError` where not even that one fits, or where
    there is no room for what ranks may take.
    """
    fastest: History | None = None
    if reproducible:
        with suppress(NothingFits):
            fastest = _choose_history(task, min(share.shot_of(1) for share in shares))
    for at_once in range(max(share.slots for share in shares), 0, -1):
        memory = min(share.shot_of(at_once) for share in shares)
        try:
            history = _choose_history(task, memory)
        except NothingFits as error:
            needed = error.needed
            continue
        needed = task.footprint(history)
        if fastest is not None and not computes_alike(history, fastest):
            continue
        if needed <= memory:
            fit = Fit(history, needed, at_once)
            _check_room(fit, shares)
            return fit
    beside = max(share.beside + share.each_shot for share in shares)
    more = f" beside the {say_bytes(beside)} of engine, models, sums and data" if beside else ""
    told = min(shares, key=lambda share: share.shot_of(1)).told
    raise InputError(
        "wave.memory",
        f"the simulation of one shot takes {say_bytes(needed)}, and a rank may take "
        f"{say_bytes(max(0, memory))}{more}{told}",
        "Give more memory or start fewer ranks a node, choose a more frugal wave.history, a "
        "wave.aperture or a larger model.spacing.",
    )


def _check_room(fit: Fit, shares: Sequence[Share]) -> None:
    """Raise `InputError` where a limit that was given is more than there is."""
    for rank, share in enumerate(shares):
        shots = min(share.slots, fit.at_once)
        needed = shots * (fit.shot + share.each_shot)
        if needed > share.room:
            raise InputError(
                "wave.memory",
                f"{shots} shot{'s' * (shots > 1)} at a time take {say_bytes(needed)}, and rank "
                f"{rank} has room for {say_bytes(share.room)} beside the "
                f"{say_bytes(share.beside)} of engine, models, sums and data",
                "Give a smaller wave.memory, more memory, or start fewer ranks a node.",
            )


def _choose_history(task: Task, memory: int) -> History:
    """Return the history of a shot; memory limits it, in bytes, if it is to be chosen."""
    if isinstance(task.asked, Auto):
        task = replace(task, asked=replace(task.asked, memory=max(1, memory)))
    return task.choose_history()


log = logging.getLogger("hpcfwi")
T = TypeVar("T")


class Chunks:
    """Cuts a rank's shots into chunks that memory allows.

    size: shots of a chunk; halved whenever memory runs out, for the rest of the run.
    """

    def __init__(self, size: int, context: Context) -> None:
        self.size, self._context = size, context
        self._exhausted: str | None = None

    @property
    def exhausted(self) -> bool:
        """True if memory did not suffice for a single shot on this rank."""
        return self._exhausted is not None

    def each(self, shots: int, work: Callable[[slice], T]) -> Iterator[T]:
        """Yield the results of `work` for the chunks of so many shots, one after the other.

        A chunk that runs out of memory is tried again after engines have released that of earlier
        ones, and then in halves. If it is a single shot, the iteration ends early: call `check`
        after it.
        """
        first, has_let_go = 0, False
        while first < shots:
            part = slice(first, min(first + self.size, shots))
            try:
                result = work(part)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                complaint = str(error)
            else:
                self._context.heartbeat.beat()
                yield result
                first, has_let_go = part.stop, False
                continue
            # Here the error is gone, and with it what the frames of its traceback have held.
            gc.collect()
            held = let_go() and not has_let_go
            self._free()
            if held:
                has_let_go = True
                continue
            if not self._halve(part.stop - part.start):
                self._exhausted = complaint
                return

    def check(self) -> None:
        """Raise `InversionFailure` on all ranks where a single shot was too much; collective."""
        complaints = self._context.all_gather((self._exhausted, self._context.host))
        for rank, (complaint, host) in enumerate(complaints):
            if complaint is not None:
                raise InversionFailure(
                    f"rank {rank} on {host} ran out of memory with one shot at a time "
                    f"({complaint.splitlines()[0] if complaint else 'no details'}): give it more, "
                    "start fewer ranks on a node, or set a smaller wave.memory, for which a more "
                    "frugal history is chosen; then give the same command again"
                )

    def _halve(self, tried: int) -> bool:
        if tried == 1:
            return False
        self.size = tried // 2
        log.warning(
            "Rank %d on %s ran out of memory with %d shots at a time: going on with %d",
            self._context.rank,
            self._context.host,
            tried,
            self.size,
        )
        return True

    def _free(self) -> None:
        if self._context.device.type == "cuda":
            torch.cuda.empty_cache()


WorkAlike = Callable[[NDArray[np.int64], Survey, Window], list[T]]
"""A function of some shots with the same window that returns a value for each."""


def work_by_window(
    survey: Survey, work: WorkAlike[T], simulator: Simulator, chunks: Chunks
) -> Iterator[tuple[int, T]]:
    """Yield the result of `work` for each shot of a survey, with its place in it.

    The iterator ends early if memory does not suffice for a single shot: call `chunks.check` after
    it.
    """

    def work_on(chunk: slice) -> list[tuple[int, T]]:
        results: list[tuple[int, T]] = []
        places = np.arange(survey.n_shots)[chunk]
        windows = simulator.aperture.find_windows(simulator.grid, survey.select(places))
        for group in group_shots(windows):
            alike = places[group]
            found = work(alike, survey.select(alike), windows[group[0]])
            results += zip(alike.tolist(), found, strict=True)
        return results

    for results in chunks.each(survey.n_shots, work_on):
        yield from results
