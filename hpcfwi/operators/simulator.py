"""The simulation of shots: from a model and a survey to what the wave engines are asked.

A shot may be simulated in a window, which is a part of the model with a part of the receivers, and
on a coarser grid. The model that is inverted for stays on its own grid; as waves see a linear
function of it, the gradient is exactly that of the misfit with respect to the finer model.

Residuals are stripped of the frequencies that a history sampled in time does not carry (decision
033). `inversion.memory` chooses a history for the memory of the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, pi

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.model import Grid, Model
from hpcfwi.operators.vectors import AxisMatrix, one_thread
from hpcfwi.survey import Survey
from hpcfwi.wave import Acquisition, Auto, Method, Simulation
from hpcfwi.wave.history import History
from hpcfwi.wave.numerics import FEWEST_POINTS, ON_GRID
from hpcfwi.wave.simulation import Task, set_up


@dataclass(frozen=True, eq=False)
class Window:
    """The part of the model and of the receivers with which a shot is simulated.

    cells: first and last + 1 along each axis of the model; receivers: which receivers of the shot
    are simulated, None for all.
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

    margin: beyond the outermost source or receiver along each horizontal axis, m, None for the
    whole model; max_offset: largest horizontal distance of receivers that count, m, None for all;
    min_offset: the smallest, m.
    """

    margin: float | None = None
    max_offset: float | None = None
    min_offset: float = 0.0

    def find_windows(self, grid: Grid, survey: Survey) -> list[Window]:
        """The window of each shot of a survey, in order; for as many as are simulated together."""
        ends = self.find_cells(grid, survey).tolist()
        cells = [tuple((first, end) for first, end in shot) for shot in ends]
        if self.margin is None:
            return [Window(shot) for shot in cells]
        heard = np.broadcast_to(self.trace_mask(survey.sources, survey.receivers), survey.shape[:2])
        return [Window(c, None if h.all() else h.copy()) for c, h in zip(cells, heard, strict=True)]

    def find_cells(self, grid: Grid, survey: Survey) -> NDArray[np.int64]:
        """The cells of each shot's window, (shot, axis, 2): first and last + 1 along each axis."""
        cells = np.empty((survey.n_shots, grid.ndim, 2), dtype=np.int64)
        cells[:] = [(0, n) for n in grid.shape]
        if self.margin is None:
            return cells
        first = 0
        for block in survey.blocks():
            part = slice(first, first + block.n_shots)
            heard = self.trace_mask(block.sources, block.receivers)
            for axis in range(1, grid.ndim):
                ends = block.sources[..., axis], block.receivers[..., axis]
                cells[part, axis] = _around(grid, axis, *ends, heard, self.margin)
            first = part.stop
        return cells

    def costs(self, grid: Grid, survey: Survey) -> NDArray[np.float64]:
        """Return the relative cost of each shot: the number of cells in its window."""
        ends = self.find_cells(grid, survey)
        return np.asarray(np.diff(ends, axis=-1).prod(axis=(1, 2), dtype=np.float64))

    def find_deaf(self, survey: Survey) -> NDArray[np.int64]:
        """The numbers of the shots of which no trace counts."""
        deaf = []
        for block in survey.blocks():
            heard = self.trace_mask(block.sources, block.receivers)
            counts = heard if block.mask is None else heard & block.mask
            deaf.append(np.broadcast_to(~counts.any(axis=-1), block.n_shots))
        return np.flatnonzero(np.concatenate(deaf))

    def trace_mask(
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
    """Offsets (..., receiver) from sources (..., ndim) to receivers of each, m."""
    return np.asarray(np.linalg.norm(receivers[..., 1:] - sources[..., None, 1:], axis=-1))


def _around(
    grid: Grid,
    axis: int,
    sources: NDArray[np.float64],
    receivers: NDArray[np.float64],
    heard: NDArray[np.bool_],
    margin: float,
) -> NDArray[np.int64]:
    """First cells and last + 1 of shots, (shot, 2): as many whole ones as the margin (m) needs.

    sources: (shot,) or (shot, source), receivers: (..., receiver), along the axis, m.
    """

    def place(points: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray((points - grid.origin[axis]) / grid.spacing[axis])

    there, emitting = place(receivers), place(sources).reshape(len(sources), -1)
    nearest = np.where(heard, there, np.inf).min(axis=-1)
    furthest = np.where(heard, there, -np.inf).max(axis=-1)
    # Never less than a simulation needs, which is more than interpolation reaches.
    reach = max(margin / grid.spacing[axis], FEWEST_POINTS)
    first = np.floor(np.minimum(nearest, emitting.min(axis=1)) - reach + ON_GRID)
    last = np.ceil(np.maximum(furthest, emitting.max(axis=1)) + reach - ON_GRID)
    ends = np.maximum(first, 0.0), np.minimum(last + 1.0, grid.shape[axis])
    return np.stack(ends, axis=1).astype(np.int64)


def group_shots(windows: list[Window]) -> list[NDArray[np.int64]]:
    """The numbers of the shots that have each window, for every different one."""
    groups: dict[object, list[int]] = {}
    for shot, window in enumerate(windows):
        kept = None if window.receivers is None else window.receivers.tobytes()
        groups.setdefault((window.cells, kept), []).append(shot)
    return [np.array(shots) for shots in groups.values()]


@dataclass(frozen=True)
class Coarsening:
    """The map from a grid to a coarser one of the same extent."""

    fine: Grid
    coarse: Grid

    @classmethod
    def to(cls, fine: Grid, spacing: float) -> Coarsening | None:
        """Return the map to a grid of at most this spacing (m), None if that is no coarser."""
        shape = tuple(
            min(n, max(FEWEST_POINTS, ceil((n - 1) * h / spacing - 1e-6) + 1))
            for n, h in zip(fine.shape, fine.spacing, strict=True)
        )
        if shape == fine.shape:
            return None
        apart = tuple(
            (n - 1) * h / (m - 1) for n, m, h in zip(fine.shape, shape, fine.spacing, strict=True)
        )
        return cls(fine, Grid(shape, apart, fine.origin))

    def restrict(self, model: Model[Tensor]) -> Model[Tensor]:
        """A model on the coarser grid: each cell a weighted mean of those around it.

        So that its transpose interpolates, and leaves no pattern of the finer grid in a gradient.
        """
        return Model(self.coarse, model.map(lambda a: _apply(self._means, a)).arrays)

    def transpose(self, gradient: Model[Tensor]) -> Model[Tensor]:
        """A gradient with respect to the finer model, from that on the coarser grid."""
        return Model(self.fine, gradient.map(lambda a: _apply(self._transposes, a)).arrays)

    def refine(self, field: Tensor) -> Tensor:
        """A field on the coarser grid, interpolated linearly on the finer one."""
        return _apply(self._spreads, field)

    @cached_property
    def _means(self) -> list[AxisMatrix]:
        return [AxisMatrix.of(matrix) for matrix in self._matrices]

    @cached_property
    def _transposes(self) -> list[AxisMatrix]:
        return [AxisMatrix.of(matrix.T.tocsr()) for matrix in self._matrices]

    @cached_property
    def _spreads(self) -> list[AxisMatrix]:
        return [AxisMatrix.of(matrix) for matrix in self._interpolations]

    @cached_property
    def _matrices(self) -> list[scipy.sparse.csr_array]:
        """The matrices of each axis: means, weighted as interpolation spreads a coarse value."""
        found = []
        for spread in self._interpolations:
            weights = scipy.sparse.csr_array(spread.T)
            found.append(scipy.sparse.csr_array(weights / weights.sum(axis=1)[:, None]))
        return found

    @cached_property
    def _interpolations(self) -> list[scipy.sparse.csr_array]:
        return [
            _interpolate(np.linspace(0.0, m - 1.0, n), m)
            for n, m in zip(self.fine.shape, self.coarse.shape, strict=True)
        ]


def _interpolate(places: NDArray[np.float64], n: int) -> scipy.sparse.csr_array:
    """Linear interpolation of n values at places counted in them: (place, n)."""
    left = np.minimum(places.astype(int), n - 2)
    share = places - left
    weights, columns = np.stack([1.0 - share, share]), np.stack([left, left + 1])
    rows = np.broadcast_to(np.arange(places.size), columns.shape)
    entries = (weights.ravel(), (rows.ravel(), columns.ravel()))
    return scipy.sparse.csr_array(entries, shape=(places.size, n))


def _apply(matrices: list[AxisMatrix], field: Tensor) -> Tensor:
    """A matrix along each axis, in double precision."""
    values = field.double()
    for axis, matrix in enumerate(matrices):
        values = matrix.apply(values, axis)
    return values.to(field.dtype)


# Of a residual's energy, what may lie above the wavelet's band: what that folds into a gradient is
# some 2 % of it, and the residuals of clean data have a thousandth of it at most.
TOLERATED = 1e-2
# Shortest periods at the end of a record that are faded out where energies are weighed: a residual
# that the record cuts off has all frequencies, though its waves have not.
FADED = 2.0
# Of the highest frequency that passes, where the filter begins to fall.
CORNER = 0.9


def limit_residual(residual: Tensor, simulation: Simulation, dt: float) -> Tensor:
    """A residual (shot, receiver, time) as the history of its simulation can carry it.

    It is returned as it is where the history has every step, or the band is not known, and so is
    each shot that has no more than `TOLERATED` above it. Results of a shot do not depend on others.
    dt: of the residual, s.
    """
    history = simulation.history
    if history.interval == 1 or history.frequency is None:
        return residual
    shots = list(residual)
    with one_thread():
        loud = [share_above(shot, history.frequency, dt) > TOLERATED for shot in shots]
        if not any(loud):
            return residual
        limited = [
            low_pass(shot, history.frequency, dt) if is_loud else shot
            for shot, is_loud in zip(shots, loud, strict=True)
        ]
    return torch.stack(limited)


def carry(traces: Tensor, simulation: Simulation, dt: float) -> Tensor:
    """Traces (shot, receiver, time) as the history of a simulation can carry them.

    A linear operator, and its own transpose, where `limit_residual` leaves alone what is quiet.
    """
    history = simulation.history
    if history.interval == 1 or history.frequency is None:
        return traces
    with one_thread():
        return torch.stack([low_pass(shot, history.frequency, dt) for shot in traces])


def share_above(traces: Tensor, frequency: float, dt: float) -> float:
    """The share of the energy of traces (..., time) above a frequency (Hz); 0 of silence."""
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
    """Traces (..., time) up to a frequency (Hz), with zero phase: a symmetric operator.

    A cosine falls to it from `CORNER` times it. Silence on both sides of the record is assumed.
    """
    n = traces.shape[-1]
    frequencies = _frequencies(2 * n, dt, traces)
    fall = ((frequencies / frequency - CORNER) / (1.0 - CORNER)).clamp(0.0, 1.0)
    gain = 0.5 + 0.5 * torch.cos(pi * fall)
    return torch.fft.irfft(torch.fft.rfft(traces, 2 * n) * gain, 2 * n)[..., :n]


def _frequencies(n: int, dt: float, like: Tensor) -> Tensor:
    return torch.fft.rfftfreq(n, dt, dtype=like.dtype, device=like.device)


class LinearSimulation(Simulation):
    """Shots simulated in a model, and what a change of it scatters, to first order (Born).

    change: of the model's arrays, by name. Derivatives are those at the model, whatever the change.
    """

    def __init__(self, task: Task, keep: bool, change: Mapping[str, Tensor]) -> None:
        changes = any(bool(array.any()) for array in change.values())
        super().__init__(task, keep or changes)
        if changes:
            self.data = self.data + self.scatter(change)


@dataclass(frozen=True)
class Simulator:
    """The simulation of shots, without the values of the model and the shots themselves.

    grid: that of the waves; method: the same for every shot of the survey, so that the result of a
    shot does not depend on its batch; aperture: the part of the model and of the receivers of a
    shot; coarsening: from a model's own grid to this one, None if it is the same; background: a
    model of tensors on this grid around which traces change with models to first order only, None
    for the wave equation.
    """

    grid: Grid
    method: Method
    aperture: Aperture
    coarsening: Coarsening | None = None
    background: Model | None = None

    @property
    def cost(self) -> int:
        """Number of simulations that a shot with its gradient counts for."""
        return 1 if self.background is None else 2

    def restrict(self, model: Model) -> Model:
        """A model, of tensors, as its waves see it: on their grid."""
        return model if self.coarsening is None else self.coarsening.restrict(model)

    def transpose(self, gradient: Model) -> Model:
        """The gradient with respect to a model, from that with respect to what waves see of it."""
        return gradient if self.coarsening is None else self.coarsening.transpose(gradient)

    def refine(self, field: Tensor) -> Tensor:
        """A field of the waves' grid on that of the model."""
        return field if self.coarsening is None else self.coarsening.refine(field)

    def simulate(
        self,
        model: Model,
        survey: Survey,
        keep: bool,
        illuminate: bool = False,
        window: Window | None = None,
    ) -> Simulation:
        """Simulate the shots of a (part of a) survey in a model as `restrict` gives it.

        window: where, and with which of their receivers; everything where None.
        """
        if self.background is None:
            return Simulation(self.set_up(model, survey, window, illuminate), keep)
        background = self.background.map(lambda array, like: array.to(like.device), model)
        task = self.set_up(background, survey, window, illuminate)
        inside = (slice(None),) if window is None else window.slices
        change = {name: array[inside] for name, array in (model - background).arrays.items()}
        return LinearSimulation(task, keep, change)

    def set_up(
        self, model: Model, survey: Survey, window: Window | None, illuminate: bool = True
    ) -> Task:
        """Return the task of the wave engines for `simulate`."""
        origin, receivers = np.asarray(self.grid.origin), survey.receivers
        if window is not None:
            receivers = receivers[..., window.trace_mask, :]
        wavelet = torch.as_tensor(np.ascontiguousarray(survey.wavelet), device=model.any.device)
        return set_up(
            model.arrays,
            self.grid.spacing,
            Acquisition(survey.dt, wavelet, survey.sources - origin, receivers - origin),
            self.method,
            window=None if window is None else window.slices,
            illuminate=illuminate,
        )

    def with_history(self, history: Auto | History) -> Simulator:
        """The same with another history."""
        return replace(self, method=replace(self.method, history=history))

    def costs(self, survey: Survey) -> NDArray[np.float64]:
        """Return the relative cost of each shot: the number of cells in its window."""
        return self.aperture.costs(self.grid, survey)
