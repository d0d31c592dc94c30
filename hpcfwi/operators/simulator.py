"""The simulation of shots: from a model and a survey to traces, in the memory that a rank has.

A shot may be simulated in a window, which is a part of the model with a part of the receivers, and
on a coarser grid. The inverted model stays on the fine grid. The coarse model is a linear function
of it, so that the gradient is exactly that of the misfit with respect to the fine model.

Frequencies that a history sampled in time cannot represent are removed from adjoint sources
(docs/decisions/033).

The number of shots that a rank simulates at a time, and their history, are chosen for the largest
window of a survey; `inversion.memory` determines how much memory a rank may use. If memory runs out
nevertheless, the same shots are simulated again, fewer at a time.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil, pi
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.errors import InputError, InversionFailure, is_out_of_memory, say_bytes, say_count
from hpcfwi.model import Grid, Model
from hpcfwi.operators.vectors import Coarsening
from hpcfwi.parallel.context import Context
from hpcfwi.survey import Survey
from hpcfwi.system import say_free
from hpcfwi.wave import Acquisition, Method, Simulation
from hpcfwi.wave.engines import release_buffers
from hpcfwi.wave.history import Auto, History, NothingFits, computes_alike, free_on, memory_at_hand
from hpcfwi.wave.numerics import FEWEST_POINTS, ON_GRID, one_thread
from hpcfwi.wave.simulation import Task, set_up

log = logging.getLogger("hpcfwi")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Window:
    """The part of the model and of the receivers with which a shot is simulated.

    cells: first and last + 1 along each axis of the model; receivers: mask of the receivers of the
    shot that are simulated, None for all.
    """

    cells: tuple[tuple[int, int], ...]
    receivers: NDArray[np.bool_] | None = None

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(*ends) for ends in self.cells)

    @property
    def trace_mask(self) -> slice | NDArray[np.bool_]:
        """The index of its receivers in an array of all receivers of the shot."""
        return slice(None) if self.receivers is None else self.receivers


@dataclass(frozen=True)
class Aperture:
    """The extent of the model that a shot is simulated in, and the offsets that count.

    margin: beyond the outermost source, receiver or end of a fibre's gauge along each horizontal
    axis, m, None for the whole model; max_offset: largest horizontal distance of receivers that
    count, m, None for all; min_offset: the smallest, m.
    """

    margin: float | None = None
    max_offset: float | None = None
    min_offset: float = 0.0

    def find_windows(self, grid: Grid, survey: Survey) -> list[Window]:
        """Return the window of each shot, in order; the survey should be a chunk of shots."""
        ends = self.find_cells(grid, survey).tolist()
        cells = [tuple((first, end) for first, end in shot) for shot in ends]
        if self.margin is None:
            return [Window(shot) for shot in cells]
        live = self.within_offsets(survey.sources, survey.receivers)
        masks = np.broadcast_to(live, survey.shape[:2])
        return [Window(c, None if m.all() else m.copy()) for c, m in zip(cells, masks, strict=True)]

    def find_cells(self, grid: Grid, survey: Survey) -> NDArray[np.int64]:
        """Return first cells and last + 1 of each shot's window, (shot, axis, 2)."""
        cells = np.empty((survey.n_shots, grid.ndim, 2), dtype=np.int64)
        cells[:] = [(0, n) for n in grid.shape]
        if self.margin is None:
            return cells
        first = 0
        for block in survey.blocks():
            part = slice(first, first + block.n_shots)
            live = self.within_offsets(block.sources, block.receivers)
            components = block.components
            for axis in range(1, grid.ndim):
                ends = block.sources[..., axis], block.receivers[..., axis]
                half: NDArray[np.float64] | float = 0.0
                if components.gauge is not None and components.directions is not None:
                    half = 0.5 * components.gauge * np.abs(components.directions[..., axis])
                cells[part, axis] = _around(grid, axis, *ends, half, live, self.margin)
            first = part.stop
        return cells

    def costs(self, grid: Grid, survey: Survey) -> NDArray[np.float64]:
        """Return the relative cost of each shot: the number of cells in its window."""
        ends = self.find_cells(grid, survey)
        return np.asarray(np.diff(ends, axis=-1).prod(axis=(1, 2), dtype=np.float64))

    def find_dead_shots(self, survey: Survey) -> NDArray[np.int64]:
        """Return the numbers of the shots without a trace that counts."""
        dead = []
        for block in survey.blocks():
            live = self.within_offsets(block.sources, block.receivers)
            counts = live if block.mask is None else live & block.mask
            dead.append(np.broadcast_to(~counts.any(axis=-1), block.n_shots))
        return np.flatnonzero(np.concatenate(dead))

    def within_offsets(
        self, sources: NDArray[np.float64], receivers: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Return which traces (..., receiver) count, from positions of sources and receivers, m."""
        if self.max_offset is None and self.min_offset == 0.0:
            return np.ones(receivers.shape[:-1], dtype=bool)
        offsets, furthest = find_offsets(sources, receivers), self.max_offset
        near_enough = furthest is None or offsets <= furthest * (1.0 + 1e-9)
        return np.asarray((offsets >= self.min_offset * (1.0 - 1e-9)) & near_enough)


def find_offsets(
    sources: NDArray[np.float64], receivers: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return offsets (..., receiver) from sources (..., ndim) to the receivers of each, m."""
    return np.asarray(np.linalg.norm(receivers[..., 1:] - sources[..., None, 1:], axis=-1))


def _around(
    grid: Grid,
    axis: int,
    sources: NDArray[np.float64],
    receivers: NDArray[np.float64],
    half: NDArray[np.float64] | float,
    live: NDArray[np.bool_],
    margin: float,
) -> NDArray[np.int64]:
    """Return first cells and last + 1 of shots, (shot, 2), with a margin (m) in whole cells.

    sources: (shot,) or (shot, source), receivers: (..., receiver), along the axis, m; half: extent
    of the fibre to each side of the receivers, m.
    """

    def place(points: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray((points - grid.origin[axis]) / grid.spacing[axis])

    at_sources = place(sources).reshape(len(sources), -1)
    nearest = np.where(live, place(receivers - half), np.inf).min(axis=-1)
    furthest = np.where(live, place(receivers + half), -np.inf).max(axis=-1)
    # This is at least the smallest size of a simulation, which exceeds the reach of interpolation.
    reach = max(margin / grid.spacing[axis], FEWEST_POINTS)
    first = np.floor(np.minimum(nearest, at_sources.min(axis=1)) - reach + ON_GRID)
    last = np.ceil(np.maximum(furthest, at_sources.max(axis=1)) + reach - ON_GRID)
    ends = np.maximum(first, 0.0), np.minimum(last + 1.0, grid.shape[axis])
    return np.stack(ends, axis=1).astype(np.int64)


def group_shots(windows: list[Window]) -> list[NDArray[np.int64]]:
    """Return the numbers of the shots of each distinct window."""
    groups: dict[object, list[int]] = {}
    for shot, window in enumerate(windows):
        kept = None if window.receivers is None else window.receivers.tobytes()
        groups.setdefault((window.cells, kept), []).append(shot)
    return [np.array(shots) for shots in groups.values()]


@dataclass(frozen=True)
class Simulator:
    """The settings by which shots are simulated, without a model and without shots.

    grid: that of the waves; method: the same for every shot of the survey, so that the result of a
    shot does not depend on its batch; aperture: the part of the model and of the receivers of a
    shot; coarsening: from the grid of models to this one, None if they are the same; background: a
    model of tensors on this grid at which the traces are linearized, None for the wave equation;
    constants: tensors on this grid that complete models which lack them, None if none does.
    """

    grid: Grid
    method: Method
    aperture: Aperture
    coarsening: Coarsening | None = None
    background: Model | None = None
    constants: Model | None = None

    @property
    def simulations_per_shot(self) -> int:
        """Number of simulations that a shot counts as: 2 if its traces are linearized, else 1."""
        return 1 if self.background is None else 2

    def restrict(self, model: Model) -> Model:
        """Return a model of tensors on the grid of the waves."""
        return model if self.coarsening is None else self.coarsening.restrict(model)

    def medium(self, model: Model) -> Model:
        """Return the model whose waves are simulated for a model of `restrict`.

        It is the background if traces are linearized, because the model then may have any values.
        """
        if self.background is None:
            return model
        return self.background.map(lambda array, like: array.to(like.device), model)

    def transpose(self, gradient: Model) -> Model:
        """Return the gradient with respect to a model, given that on the grid of the waves."""
        return gradient if self.coarsening is None else self.coarsening.transpose(gradient)

    def refine(self, field: Tensor) -> Tensor:
        """Return a field on the model's grid, given one on the grid of the waves."""
        return field if self.coarsening is None else self.coarsening.refine(field)

    def simulate(
        self,
        model: Model,
        survey: Survey,
        keep: bool,
        illuminate: bool = False,
        window: Window | None = None,
    ) -> Simulation:
        """Simulate the shots of a survey, or of a part of it, in a model of `restrict`.

        keep: True keeps the history for the backward pass; illuminate: True if illuminations will
        be wanted; window: the common window of the shots, None for the whole model and all
        receivers.
        """
        background = self.medium(model)
        task = self.set_up(background, survey, window, illuminate)
        if self.background is None:
            return Simulation(task, keep)
        inside = (slice(None),) if window is None else window.slices
        change = background.map(lambda array, given: (given - array)[inside], model).arrays
        changes = any(bool(array.any()) for array in change.values())
        simulation = Simulation(task, keep or changes)
        if changes:
            # The field scattered by the change (Born), to first order at the background.
            simulation.data = simulation.data + simulation.scatter(change)
        return simulation

    def set_up(
        self, model: Model, survey: Survey, window: Window | None, illuminate: bool = True
    ) -> Task:
        """Return the task of the wave engines for `simulate`."""
        origin, receivers = np.asarray(self.grid.origin), survey.receivers
        components = survey.components
        if window is not None:
            receivers = receivers[..., window.trace_mask, :]
            components = components.select_receivers(window.trace_mask)
        wavelet = torch.as_tensor(np.ascontiguousarray(survey.wavelet), device=model.any.device)
        arrays = model.arrays
        if self.constants is not None:
            arrays = {**self.constants.map(lambda array: array.to(model.any)).arrays, **arrays}
        return set_up(
            arrays,
            self.grid.spacing,
            Acquisition(
                survey.dt,
                wavelet,
                survey.sources - origin,
                receivers - origin,
                components,
                survey.source_kinds,
            ),
            self.method,
            window=None if window is None else window.slices,
            illuminate=illuminate,
            wanted=list(model.arrays),
        )

    def with_history(self, history: Auto | History) -> Simulator:
        return replace(self, method=replace(self.method, history=history))


# Share of an adjoint source's energy that may lie above the wavelet's band. It changes the gradient
# by at most 2 % (docs/decisions/033); in residuals of clean data the share is at most 0.001.
TOLERATED = 1e-2
# Number of shortest periods that are tapered at the end of a record when energies are compared,
# because a truncated record has all frequencies, although its waves do not.
FADED = 2.0
# The filter begins to fall at this share of the highest frequency that passes.
CORNER = 0.9


def limit_to_history(
    traces: Tensor, simulation: Simulation, dt: float, tolerated: float | None = None
) -> Tensor:
    """Remove frequencies that the history cannot resolve from traces (shot, receiver, time).

    They are returned unchanged if the history samples every step or the band is not known.
    tolerated: shots with at most this share of their energy above the band are not changed; None
    filters all, so that the operator is linear and symmetric. The result of a shot does not depend
    on other shots. dt: of the samples, s.
    """
    frequency = simulation.history.frequency
    if simulation.history.interval == 1 or frequency is None:
        return traces
    with one_thread():
        are_loud = [
            tolerated is None or share_above(shot, frequency, dt) > tolerated for shot in traces
        ]
        if not any(are_loud):
            return traces
        limited = [
            low_pass(shot, frequency, dt) if is_loud else shot
            for shot, is_loud in zip(traces, are_loud, strict=True)
        ]
    return torch.stack(limited)


def share_above(traces: Tensor, frequency: float, dt: float) -> float:
    """Return the share of the energy of traces (..., time) above a frequency (Hz)."""
    n = traces.shape[-1]
    fading = min(n, ceil(FADED / (frequency * dt)))
    window = torch.ones(n, dtype=traces.dtype, device=traces.device)
    ramp = torch.arange(1, fading + 1, dtype=traces.dtype, device=traces.device) / fading
    window[-fading:] = 0.5 + 0.5 * torch.cos(pi * ramp)
    energy = torch.fft.rfft(traces * window).abs().square().double()
    total = float(energy.sum())
    above = float(energy[..., _frequencies(n, dt, traces) > frequency].sum())
    return above / total if total else 0.0


def low_pass(traces: Tensor, frequency: float, dt: float) -> Tensor:
    """Return low-pass filtered traces (..., time); the operator has zero phase and is symmetric.

    The gain decreases as a cosine, from 1 at `CORNER` times the frequency (Hz) to 0 at the
    frequency. Traces are taken as zero beyond both ends of the record.
    """
    n = traces.shape[-1]
    frequencies = _frequencies(2 * n, dt, traces)
    fall = ((frequencies / frequency - CORNER) / (1.0 - CORNER)).clamp(0.0, 1.0)
    gain = 0.5 + 0.5 * torch.cos(pi * fall)
    return torch.fft.irfft(torch.fft.rfft(traces, 2 * n) * gain, 2 * n)[..., :n]


def _frequencies(n: int, dt: float, like: Tensor) -> Tensor:
    return torch.fft.rfftfreq(n, dt, dtype=like.dtype, device=like.device)


@dataclass(frozen=True)
class MemoryShare:
    """The memory of a rank for simulations.

    memory: bytes for its simulations; most_at_once: shots that it simulates at a time if memory
    suffices; reserved: bytes that it will need for other things; each_shot: bytes of a shot in
    addition to its waves while it is simulated; room: the largest possible memory for simulations;
    free_text: free memory and its limit, for messages; empty if a limit was given, and on a GPU.
    """

    memory: int
    most_at_once: int
    reserved: int = 0
    each_shot: int = 0
    room: int = sys.maxsize
    free_text: str = field(default="", compare=False)

    def shot_of(self, at_once: int) -> int:
        """Return the bytes for the waves of a shot if so many are simulated at once."""
        return self.memory // min(self.most_at_once, at_once) - self.each_shot


@dataclass(frozen=True)
class MemoryPlan:
    """The history and the number of shots at a time that fit into the memory of all ranks.

    history: the same on all ranks; shot: bytes of one shot with it; at_once: number of shots that
    every rank can simulate at a time.
    """

    history: History
    shot: int
    at_once: int


def share_of_rank(
    context: Context,
    most_at_once: int,
    reserved: int = 0,
    each_shot: int = 0,
    limit: int | None = None,
) -> MemoryShare:
    """Return the memory of this rank after the engines have released buffers of earlier batches.

    This is the free memory, less a margin and other needs of ranks, in equal parts for the ranks of
    a GPU or, on CPUs, of a host. most_at_once, reserved, each_shot: see `MemoryShare`; limit: the
    memory for simulations, if it is given. Collective.
    """
    release_buffers()
    ranks = [(context.host, reserved)] * context.sharers
    on_cpu = context.device.type == "cpu"
    if on_cpu:
        ranks = context.all_gather((context.host, reserved))
    here = [otherwise for host, otherwise in ranks if host == context.host]
    free, most = (
        max(0, there - sum(here)) // len(here)
        for there in (memory_at_hand(context.device), free_on(context.device))
    )
    free_text = f"; on {context.host} {say_free()}" if limit is None and on_cpu else ""
    memory = free if limit is None else limit
    return MemoryShare(memory, most_at_once, reserved, each_shot, most, free_text)


def set_up_largest(
    simulator: Simulator, model: Model, survey: Survey, costs: NDArray[np.float64]
) -> Task:
    """Return the task of the engine for the shot of a survey with the largest window.

    costs: of the shots, see `Aperture.costs`. Raises ValueError as `Simulator.set_up` does.
    """
    largest = int(np.argmax(costs))
    shot = survey.select(np.array([largest]))
    seen = simulator.medium(simulator.restrict(model))
    (window,) = simulator.aperture.find_windows(simulator.grid, shot)
    return simulator.set_up(seen, shot, window)


def largest_task(
    simulator: Simulator, model: Model, survey: Survey, costs: NDArray[np.float64]
) -> Task:
    """Return the task of `set_up_largest` for the simulator, model and survey of an input.

    Raises `InputError` if the engine does not have the requested history.
    """
    try:
        return set_up_largest(simulator, model, survey, costs)
    except ValueError as error:
        raise InputError("wave.history", str(error), "Change the value.") from error


def plan_memory(task: Task, shares: Sequence[MemoryShare], reproducible: bool) -> MemoryPlan:
    """Return the fastest history with which each rank simulates its `most_at_once` shots.

    If there is none, fewer shots are simulated at a time. If results must be reproducible, the
    history is the fastest with which each rank can simulate a single shot, with as many shots at a
    time as then fit, because results with another history have other bits.

    task: of the shot with the largest window. Raises `InputError` if not even that shot fits, or if
    a given limit exceeds the memory.
    """
    fastest: History | None = None
    if reproducible:
        with suppress(NothingFits):
            fastest = _choose_history(task, min(share.shot_of(1) for share in shares))
    for at_once in range(max(share.most_at_once for share in shares), 0, -1):
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
            plan = MemoryPlan(history, needed, at_once)
            _check_room(plan, shares)
            return plan
    reserved = max(share.reserved + share.each_shot for share in shares)
    more = f" besides {say_bytes(reserved)} for engine, models, sums and data" if reserved else ""
    free_text = min(shares, key=lambda share: share.shot_of(1)).free_text
    raise InputError(
        "wave.memory",
        f"the simulation of one shot takes {say_bytes(needed)}, but a rank may take only "
        f"{say_bytes(max(0, memory))}{more}{free_text}",
        "Give more memory or start fewer ranks per node, or choose a wave.history that needs less "
        "memory, a wave.aperture or a larger model.spacing.",
    )


def _check_room(plan: MemoryPlan, shares: Sequence[MemoryShare]) -> None:
    """Raise `InputError` if a given limit exceeds the memory."""
    for rank, share in enumerate(shares):
        shots = min(share.most_at_once, plan.at_once)
        needed = shots * (plan.shot + share.each_shot)
        if needed > share.room:
            raise InputError(
                "wave.memory",
                f"{say_count(shots, 'shot')} at a time take {say_bytes(needed)}, but rank "
                f"{rank} has room for {say_bytes(share.room)} besides "
                f"{say_bytes(share.reserved)} for engine, models, sums and data",
                "Give a smaller wave.memory or more memory, or start fewer ranks per node.",
            )


def _choose_history(task: Task, memory: int) -> History:
    """Return the history of a shot; memory: bytes that it may take, unless it is given."""
    if isinstance(task.asked, Auto):
        task = replace(task, asked=replace(task.asked, memory=max(1, memory)))
    return task.choose_history()


Work = Callable[[NDArray[np.int64], Survey, Window], list[T]]
"""A function of the places of some shots, their survey and their common window.

It returns a value for each of the shots.
"""


class Chunks:
    """The chunks in which a rank simulates shots, as large as memory allows.

    size: shots of a chunk, which this rank halves for the rest of the stage whenever memory runs
    out.
    """

    def __init__(self, size: int, context: Context) -> None:
        self.size, self._context = size, context
        self._exhausted: str | None = None

    @property
    def exhausted(self) -> bool:
        """True if memory did not suffice for a single shot on this rank."""
        return self._exhausted is not None

    def for_each_shot(
        self, survey: Survey, simulator: Simulator, work: Work[T]
    ) -> Iterator[tuple[int, T]]:
        """Yield the result of `work` for each shot of a survey, with its place in it.

        Shots of a chunk that have the same window are worked on together. A chunk that runs out of
        memory is tried again after the engines have released their buffers, and then in halves. If
        a single shot runs out of memory, the iteration ends early: call `check` after it.
        """
        first, has_released = 0, False
        while first < survey.n_shots:
            places = np.arange(first, min(first + self.size, survey.n_shots))
            try:
                results = _work_by_window(places, survey, simulator, work)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                complaint = str(error)
            else:
                self._context.heartbeat.beat()
                yield from results
                first, has_released = first + places.size, False
                continue
            # Here the error has been released, with the objects in the frames of its traceback.
            gc.collect()
            held = release_buffers() and not has_released
            if self._context.device.type == "cuda":
                torch.cuda.empty_cache()
            if held:
                has_released = True
            elif places.size > 1:
                self.size = places.size // 2
                log.warning(
                    "Rank %d on %s ran out of memory with %d shots at a time: continuing with %d",
                    self._context.rank,
                    self._context.host,
                    places.size,
                    self.size,
                )
            else:
                self._exhausted = complaint
                return

    def check(self) -> None:
        """Raise `InversionFailure` on all ranks if a single shot did not fit; collective."""
        complaints = self._context.all_gather((self._exhausted, self._context.host))
        for rank, (complaint, host) in enumerate(complaints):
            if complaint is not None:
                raise InversionFailure(
                    f"rank {rank} on {host} ran out of memory with one shot at a time "
                    f"({complaint.splitlines()[0] if complaint else 'no details'}): give it more, "
                    "start fewer ranks per node, or set a smaller wave.memory, which selects a "
                    "history that needs less; then run the same command again"
                )


def _work_by_window(
    places: NDArray[np.int64], survey: Survey, simulator: Simulator, work: Work[T]
) -> list[tuple[int, T]]:
    results: list[tuple[int, T]] = []
    windows = simulator.aperture.find_windows(simulator.grid, survey.select(places))
    for group in group_shots(windows):
        alike = places[group]
        found = work(alike, survey.select(alike), windows[group[0]])
        results += zip(alike.tolist(), found, strict=True)
    return results
