"""Simulations of shots: the request, its checks, and the object that can be propagated back.

A model, an `Acquisition` and a `Method` become a `Problem`, which an engine solves. `simulate`
returns an object that can be propagated back shot by shot, with illuminations, as an inversion
needs it. The functions for autograd, such as `acoustic`, are in `autograd`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite, prod
from numbers import Integral

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.model import AXES, PARAMETERS
from hpcfwi.survey import EXPLOSIVE, PRESSURE, STRAIN, Components, SourceKinds, Spectrum
from hpcfwi.wave import engines, numerics, staggered
from hpcfwi.wave import history as histories
from hpcfwi.wave.equation import ACOUSTIC, Attenuation, Equation, FirstOrderEquation, find_equation
from hpcfwi.wave.history import Auto, History, Snapshots, memory_at_hand
from hpcfwi.wave.problem import Gradients, Problem

# m/s: no rock is this slow; a slower velocity is probably in km/s.
MISTAKEN = 20.0
# Substeps of a sample of the data. Above the first number a unit is probably wrong, because the
# shortest wave of the data is a hundred cells long. Above the second it is certainly wrong.
UNLIKELY_SUBSTEPS, MOST_SUBSTEPS = 100, 1000
# Fields of an acoustic simulation without a gradient: the waves, the boundary's memory, the speed.
FIELDS = 8
# Fields for each rate of a first-order equation: its coefficient, the rate, the engine's copy, and
# intermediate results.
FIELDS_OF_RATE = 6
# Receivers closer than this share of a cell are probably given in cells.
CLOSEST = 0.25


@dataclass(frozen=True, eq=False)
class Acquisition:
    """The shots: wavelets, sources and receivers. Positions are in m from the grid's first point.

    dt: of the wavelet and of the traces, s; sources: (shot, ndim), or (shot, source, ndim) where
    several act at once; wavelet: (time,) for all, (shot, time), or (shot, source, time); receivers:
    (shot, receiver, ndim), or (receiver, ndim) for all shots; components, source_kinds: of the
    traces and of the sources.
    """

    dt: float
    wavelet: Tensor
    sources: Tensor | NDArray[np.float64]
    receivers: Tensor | NDArray[np.float64]
    components: Components = PRESSURE
    source_kinds: SourceKinds = field(default_factory=lambda: EXPLOSIVE)


@dataclass(frozen=True)
class Method:
    """The method of simulation; `autograd.acoustic` explains the parameters that it shares.

    equation: the name of the wave equation; attenuation: the dependence of its quality factors on
    frequency, or None, which stands for the default; leader: of the ranks that simulate each shot
    together, None for a single rank.
    """

    order: int = 8
    boundary: int = 20
    free_surface: bool = False
    boundary_frequency: float | None = None
    max_velocity: float | None = None
    engine: str = "auto"
    history: str | Auto | History = "auto"
    equation: str = "acoustic"
    attenuation: Attenuation | None = None
    leader: engines.Leader | None = None

    def find_equation(self) -> Equation:
        return find_equation(self.equation, self.attenuation)

    def choose_engine(self, device: torch.device) -> engines.Engine:
        """Return the engine for a device; raise ValueError if it does not solve the equation."""
        engine = engines.choose(self.engine, device, self.find_equation())
        return engine if self.leader is None else self.leader.lead(engine)


@dataclass(frozen=True)
class Task:
    """A problem whose history is not chosen yet, and its engine.

    wavelet: (shot, source, time) in the model's precision; longest: longest stable step, s;
    substeps: steps for each sample of the wavelet; asked: the requested history, with its interval
    resolved.
    """

    problem: Problem
    engine: engines.Engine
    wavelet: Tensor
    longest: float
    substeps: int
    asked: Auto | History

    @property
    def steps(self) -> int:
        return numerics.count_steps(self.wavelet.shape[-1], self.substeps)

    def footprint(self, history: History) -> int:
        """Return the approximate bytes of the engine with this history."""
        return self.engine.footprint(replace(self.problem, history=history), self.steps)

    def footprint_forward(self) -> int:
        """Return the approximate bytes of a simulation without a history."""
        problem = self.problem
        points = 5 * problem.receivers.shape[1] + 3 * problem.sources.shape[1]
        cells, once, fields = prod(problem.padded_shape), 0.0, float(FIELDS)
        if isinstance(problem.equation, FirstOrderEquation):
            system = problem.system
            frame = 1.0 - problem.like.numel() / cells
            fields = len(system.fields) + len(system.derivatives) * (frame + 0.5)
            once = FIELDS_OF_RATE * system.count_rates()
            if system.multiaxial:
                once += 2.0 * len(system.find_places()) * frame
        each = fields * cells + self.steps * points
        return int((once * cells + problem.n_shots * each) * problem.like.element_size())

    def count_updates(self) -> float:
        """Return the approximate number of computed cells, summed over shots and steps."""
        return self.engine.count_updates(self.problem, self.steps)

    def repeat(self, shots: int) -> Task:
        """Return a task of so many copies of the single shot of this task."""
        problem = self.problem.select(np.zeros(shots, dtype=np.int64))
        return replace(self, problem=problem, wavelet=self.wavelet.expand(shots, -1, -1))

    def choose_history(self) -> History:
        """Return the requested history, or the fastest that fits into the memory.

        Raises MemoryError if none fits.
        """
        if not isinstance(self.asked, Auto):
            return self.asked
        memory = self.asked.memory
        if memory is None:
            memory = memory_at_hand(self.problem.like.device) + self.engine.idle()
        return histories.choose(self.asked, self.engine.HISTORIES, memory, self.footprint)


@torch.no_grad()
def set_up(
    model: Mapping[str, Tensor],
    spacing: float | Sequence[float],
    acquisition: Acquisition,
    method: Method,
    *,
    window: tuple[slice, ...] | None = None,
    illuminate: bool = True,
    wanted: Sequence[str] | None = None,
) -> Task:
    """Return the task of simulating shots in a model.

    model: its arrays by name, each (nz, nx) or (nz, ny, nx) in the parameter's unit; spacing: of
    the grid, m; window: the part of the model that is simulated, with absorbing boundaries around
    it, as slices of the axes; None for the whole model; illuminate: True if illuminations will be
    wanted; wanted: names of the arrays whose gradient may be wanted, None for all of the equation's
    parameters. With a window, positions are still from the model's first point, and substeps are
    those of the whole model; gradients have the shape of the window. Raises ValueError as
    `acoustic` does.
    """
    equation = method.find_equation()
    arrays = whole = select_arrays(model, equation)
    like = arrays[equation.parameters[0]]
    chosen = method.choose_engine(like.device)
    steps = _as_spacing(spacing, like.ndim)
    points = [
        as_positions(p, name, like.ndim)
        for p, name in ((acquisition.sources, "sources"), (acquisition.receivers, "receivers"))
    ]
    wavelet, source_points, receiver_points = _align(acquisition.wavelet.detach(), *points)
    samples = wavelet.cpu().numpy()
    if not np.isfinite(samples).all():
        raise ValueError(
            f"wavelet has {np.count_nonzero(~np.isfinite(samples))} values that are not finite; "
            "expected numbers"
        )
    components, source_kinds = acquisition.components, acquisition.source_kinds
    check_kinds(components.names, source_kinds, equation, like.ndim)
    if method.free_surface and equation is ACOUSTIC:
        _check_surface(source_points, receiver_points, steps)
    _warn_of_cells(receiver_points, like.shape, steps)
    frequency, dt = method.boundary_frequency, acquisition.dt
    if frequency is not None and not 0.0 <= frequency < np.inf:
        raise ValueError(f"boundary_frequency is {frequency}; expected a frequency (Hz), 0 or more")
    if method.max_velocity is not None and not MISTAKEN <= method.max_velocity < np.inf:
        raise ValueError(
            f"max_velocity is {method.max_velocity}; expected a positive velocity in m/s, "
            f"{MISTAKEN:g} or more"
        )
    fastest = float(equation.fastest(whole).max())
    tuned_to = fastest if method.max_velocity is None else float(method.max_velocity)
    if window is not None:
        first = np.array([part.start for part in window]) * np.asarray(steps)
        arrays = {name: array[window] for name, array in arrays.items()}
        source_points, receiver_points = source_points - first, receiver_points - first
    shape = next(iter(arrays.values())).shape
    _check_scheme(shape, steps, dt, wavelet, method, (source_points, receiver_points))
    if STRAIN in components.names:
        _check_fibre(components, receiver_points, shape, steps)
    if frequency is None:
        frequency = Spectrum.of(samples, dt).peak
    is_staggered = isinstance(equation, FirstOrderEquation)
    if is_staggered:
        speed, density = equation.fastest(whole), whole["rho"]
        fastest = staggered.equivalent_velocity(method.order, speed, density)
    longest = numerics.longest_step(method.order, steps, max(fastest, tuned_to), is_staggered)
    substeps = numerics.count_substeps(dt, longest)
    _check_substeps(substeps, dt, longest)
    problem = Problem(
        model=arrays,
        spacing=steps,
        dt=dt / substeps,
        sources=source_points,
        receivers=receiver_points,
        order=method.order,
        boundary=method.boundary,
        free_surface=method.free_surface,
        boundary_frequency=frequency,
        max_velocity=tuned_to,
        history=Snapshots(interval=1),
        illuminate=illuminate,
        equation=equation,
        wanted=tuple(n for n in equation.parameters if wanted is None or n in wanted),
        source_kinds=source_kinds,
        components=components,
    )
    if method.free_surface and equation is not ACOUSTIC:
        _check_emissions(problem)
    wavelet = wavelet.to(like)
    asked = _resolve(method.history, problem, chosen, wavelet, dt, substeps)
    return Task(problem, chosen, wavelet, longest, substeps, asked)


def _resolve(
    wanted: str | Auto | History,
    problem: Problem,
    engine: engines.Engine,
    wavelet: Tensor,
    dt: float,
    substeps: int,
) -> Auto | History:
    """Return the history `wanted` with its interval; raise ValueError if the engine lacks it."""
    asked = histories.parse(wanted)
    kind = asked.kind if isinstance(asked, Auto) else histories.kind_of(asked)
    if kind is not None and kind not in engine.HISTORIES:
        raise ValueError(
            f"history is {kind}; this engine has {', '.join(engine.HISTORIES)}: choose one of them"
        )
    interval = histories.sampling_interval(asked, wavelet.cpu().numpy(), dt, substeps)
    if isinstance(asked, Auto) and asked.exact is None:
        is_double = problem.like.dtype == torch.float64
        asked = replace(asked, exact=interval == 1 or is_double)
    return replace(asked, interval=interval)


def select_arrays(model: Mapping[str, Tensor], equation: Equation) -> dict[str, Tensor]:
    """Return the arrays that an equation needs, detached; raise ValueError if one is wrong."""
    missing = [name for name in equation.parameters if name not in model]
    if missing:
        raise ValueError(
            f"the model has no {missing[0]}; expected {', '.join(equation.parameters)} for the "
            f"equation {equation.name!r}"
        )
    arrays = {name: model[name].detach() for name in equation.parameters}
    first = arrays[equation.parameters[0]]
    for name, array in arrays.items():
        _check_array(name, array)
        if (array.shape, array.dtype, array.device) != (first.shape, first.dtype, first.device):
            raise ValueError(
                f"{name} is {array.dtype} {tuple(array.shape)} on {array.device}; expected "
                f"{first.dtype} {tuple(first.shape)} on {first.device}, as the other parameters are"
            )
    fault = equation.find_fault(arrays)
    if fault is not None:
        raise ValueError(fault)
    return arrays


def _check_array(name: str, array: Tensor) -> None:
    parameter = PARAMETERS[name]
    if array.ndim not in (2, 3) or array.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"{name} is {array.dtype} {tuple(array.shape)}; expected float32 or float64 "
            "(nz, nx) or (nz, ny, nx)"
        )
    if min(array.shape) < numerics.FEWEST_POINTS:
        raise ValueError(
            f"{name} is {tuple(array.shape)}; expected at least {numerics.FEWEST_POINTS} points "
            "along each axis"
        )
    smallest, largest = map(float, array.aminmax())  # NaN if a value is
    impossible = smallest <= 0.0 if parameter.positive else smallest < parameter.lowest
    if impossible or not (isfinite(smallest) and isfinite(largest)):
        fault, limit = "not positive", "above 0"
        if not parameter.positive:
            fault, limit = f"below {parameter.lowest:g}", f"of {parameter.lowest:g} or more"
        raise ValueError(
            f"{name} has values that are not finite or {fault}; expected "
            f"{parameter.unit or 'numbers'} {limit}"
        )
    if 0.0 < largest < parameter.mistaken:
        raise ValueError(
            f"the largest {name} is {largest:g}, which looks like "
            f"{parameter.figure_unit}; expected {parameter.unit}: multiply {name} by "
            f"{parameter.figure_scale:g}"
        )


def _as_spacing(spacing: float | Sequence[float], ndim: int) -> tuple[float, ...]:
    # Any kind of number is accepted, also of a tensor or of NumPy.
    each = np.full(ndim, spacing) if np.ndim(spacing) == 0 else np.asarray(spacing)
    steps = tuple(map(float, each))
    if len(steps) != ndim or not all(0.0 < h < np.inf for h in steps):
        raise ValueError(
            f"spacing is {spacing}; expected a positive length (m), or one for each axis"
        )
    return steps


def as_positions(
    positions: Tensor | NDArray[np.float64], name: str, ndim: int
) -> NDArray[np.float64]:
    """Return positions as an array; raise ValueError with their name if they are wrong."""
    if isinstance(positions, Tensor):
        positions = positions.detach().cpu().numpy()
    given = np.asarray(positions)
    if given.dtype.kind not in "iuf":
        raise ValueError(f"{name} is {given.dtype}; expected real numbers, in m")
    array = given.astype(np.float64)
    if array.ndim not in (2, 3) or array.shape[-1] != ndim or not np.isfinite(array).all():
        raise ValueError(
            f"{name} is {array.shape}; expected finite positions (..., {ndim}) in m "
            f"for a {ndim}-D model"
        )
    if array.shape[-2] == 0:
        raise ValueError(f"{name} is {array.shape}; expected one or more for each shot")
    return array


def _align(
    wavelet: Tensor, sources: NDArray[np.float64], receivers: NDArray[np.float64]
) -> tuple[Tensor, NDArray[np.float64], NDArray[np.float64]]:
    """Return arrays as `write_out` does; raise ValueError if their shapes do not fit together."""
    if wavelet.ndim == 0 or wavelet.is_complex():
        raise ValueError(
            f"wavelet is {wavelet.dtype} {tuple(wavelet.shape)}; expected real numbers (time,), "
            "(shot, time) or (shot, source, time)"
        )
    shots, together = len(sources), sources.shape[1] if sources.ndim == 3 else 1
    wavelets = ((), (shots,), (shots, together))
    if receivers.shape[:-2] not in wavelets[:2] or wavelet.shape[:-1] not in wavelets:
        raise ValueError(
            f"sources is {sources.shape}, receivers {receivers.shape} and wavelet "
            f"{tuple(wavelet.shape)}; expected the same number of shots, and of sources where "
            "there is a wavelet for each"
        )
    places = map(torch.from_numpy, (sources, receivers))
    wavelet, source_points, receiver_points = write_out(wavelet, *places)
    return wavelet, source_points.numpy(), receiver_points.numpy()


def write_out(wavelet: Tensor, sources: Tensor, receivers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the arrays of an acquisition in full, so that those of other shots can be appended.

    They are (shot, source, time), (shot, source, ndim) and (shot, receiver, ndim).
    """
    if sources.ndim == 2:
        sources = sources[:, None]
    shots, together = sources.shape[:2]
    if receivers.ndim == 2:
        receivers = receivers.expand(shots, -1, -1)
    if wavelet.ndim == 2:
        wavelet = wavelet[:, None]
    return wavelet.expand(shots, together, -1), sources, receivers


def _check_surface(
    sources: NDArray[np.float64], receivers: NDArray[np.float64], spacing: tuple[float, ...]
) -> None:
    """Raise ValueError for sources at p = 0, which emit nothing, and warn of receivers there."""
    silent, deaf = (points[..., 0] < 1e-6 * spacing[0] for points in (sources, receivers))
    if silent.any():
        raise ValueError(
            f"{silent.sum()} of {silent.size} sources lie on the free surface, z = 0, where the "
            f"pressure is zero and nothing is emitted; expected a depth such as {spacing[0]:g} m, "
            "or free_surface=False"
        )
    if deaf.any():
        warnings.warn(
            f"{deaf.sum()} of {deaf.size} receivers lie on the free surface, z = 0, where the "
            "pressure is zero: so are their traces",
            stacklevel=2,
        )


def check_kinds(
    components: Sequence[str], source_kinds: SourceKinds, equation: Equation, ndim: int
) -> None:
    """Raise ValueError if an equation with `ndim` axes lacks a component or a kind of sources."""
    known, kinds = ["pressure"], ["explosive"]
    if isinstance(equation, FirstOrderEquation):
        system = equation.system(AXES[ndim])
        known, kinds = [*system.components, STRAIN], list(system.sources)
    wrong = [name for name in components if name not in known]
    if wrong or not components:
        raise ValueError(
            f"components has {', '.join(wrong) or 'no names'}; expected some of {', '.join(known)} "
            f"for the equation {equation.name} in {ndim}-D"
        )
    for kind in source_kinds:
        if kind not in kinds:
            named = [name for name in kinds if not name.startswith("moment")]
            tensors = f", or a moment tensor ({ndim}, {ndim})" if len(named) < len(kinds) else ""
            raise ValueError(
                f"the kind of sources is {kind}; expected {', '.join(named)}{tensors} for the "
                f"equation {equation.name} in {ndim}-D"
            )


def _check_fibre(
    components: Components,
    receivers: NDArray[np.float64],
    shape: tuple[int, ...],
    spacing: tuple[float, ...],
) -> None:
    """Raise ValueError if the ends of a gauge lie outside the model."""
    gauge, directions = components.gauge, components.directions
    if gauge is None or directions is None:
        raise ValueError(
            "the component strain has no gauge or no directions; expected the length of the gauge "
            "(m) and the direction of the fibre at each receiver"
        )
    for sign in (-0.5, 0.5):
        check_inside(receivers + sign * gauge * directions, "gauge end", shape, spacing)


def _check_emissions(problem: Problem) -> None:
    """Raise ValueError for sources on the free surface that add only to fields that are 0."""
    on_surface = problem.sources[..., 0] < 1e-6 * problem.spacing[0]
    silent = on_surface.copy()
    for emission in staggered.discretize(problem).emissions if silent.any() else ():
        strength = emission.strength.flatten().cpu().double().numpy()
        largest = np.abs(strength).max()
        for shot, number in np.argwhere(on_surface):
            cells = emission.points.cells[shot, number]
            weights = emission.points.weights[shot, number]
            # Taps above the surface and their images may cancel
            emitted = np.abs(np.bincount(cells, weights * strength[cells])).max()
            if emitted > 1e-6 * np.abs(weights).max() * largest:
                silent[shot, number] = False
    if silent.any():
        raise ValueError(
            f"{silent.sum()} of {silent.size} sources lie on the free surface, z = 0, where they "
            "emit nothing; expected a depth such as "
            f"{problem.spacing[0]:g} m, another kind of source, or free_surface=False"
        )


def _warn_of_cells(
    receivers: NDArray[np.float64], shape: tuple[int, ...], spacing: tuple[float, ...]
) -> None:
    """Warn of positions of receivers that may be indices of cells, as they are in a corner."""
    points = receivers[0]
    if not ((points <= np.asarray(shape) - 1) & (points == np.rint(points))).all():
        return
    places = np.unique(points, axis=0)
    if len(places) < 3:
        return
    # The median distance to the next receiver in a line or an area.
    nearest = float(np.median(np.linalg.norm(np.diff(places, axis=0), axis=1)))
    if nearest <= CLOSEST * min(spacing):
        warnings.warn(
            f"receivers are {nearest:g} m apart in cells of {min(spacing):g} m, and their whole "
            "numbers could be indices of cells; expected m: if these are indices, multiply them "
            "and those of sources by the spacing",
            stacklevel=2,
        )


def _check_substeps(substeps: int, dt: float, longest: float) -> None:
    """Raise ValueError if a step is far too long for the scheme, and warn if it may be."""
    if substeps <= UNLIKELY_SUBSTEPS:
        return
    found = (
        f"dt is {dt:g} s, and on this grid the longest stable step is {longest:.3g} s: each step "
        f"is divided into {substeps} substeps; expected dt in s, spacing in m and velocities in m/s"
    )
    if substeps > MOST_SUBSTEPS:
        raise ValueError(found)
    warnings.warn(f"{found}. Is dt in ms?", stacklevel=2)


def _check_scheme(
    shape: tuple[int, ...],
    spacing: tuple[float, ...],
    dt: float,
    wavelet: Tensor,
    method: Method,
    points: Sequence[NDArray[np.float64]],
) -> None:
    if not isinstance(method.order, Integral) or method.order not in numerics.ORDERS:
        raise ValueError(f"order is {method.order}; expected one of {numerics.ORDERS}")
    if not isinstance(method.boundary, Integral) or method.boundary < 0:
        raise ValueError(f"boundary is {method.boundary}; expected a number of cells, 0 or more")
    if not 0.0 < dt < np.inf:
        raise ValueError(f"dt is {dt}; expected a positive time (s)")
    if wavelet.shape[-1] < 2:
        raise ValueError(f"wavelet has {wavelet.shape[-1]} samples; expected at least 2")
    for positions, name in zip(points, ("source", "receiver"), strict=True):
        check_inside(positions, name, shape, spacing)


def check_inside(
    positions: NDArray[np.float64], name: str, shape: tuple[int, ...], spacing: tuple[float, ...]
) -> None:
    """Raise ValueError with the name of positions (..., ndim), m, if any lies outside a model."""
    last = (np.asarray(shape) - 1) * np.asarray(spacing)
    slack = 1e-6 * np.asarray(spacing)
    outside = ((positions < -slack) | (positions > last + slack)).any(axis=-1)
    if outside.any():
        raise ValueError(
            f"{outside.sum()} {name} positions lie outside the model, the first at "
            f"{positions[outside][0].round(3).tolist()} m; expected 0 to {last.tolist()} m"
        )


class Simulation:
    """Shots that were simulated together, with the derivative of their traces and its transpose.

    data: (shot, receiver, time), sampled as the wavelet is; substeps: steps of the simulation
    for each sample; history: the stored history, if `keep` is True.
    """

    def __init__(self, task: Task, keep: bool) -> None:
        problem, wavelet, substeps = task.problem, task.wavelet, task.substeps
        if keep:
            problem = replace(problem, history=task.choose_history())
        self._problem, self._engine, self._wavelet = problem, task.engine, wavelet
        self.substeps = substeps
        self.history = problem.history
        refined = numerics.upsample(wavelet, substeps)
        traces, self._state = self._engine.forward(problem, refined, keep)
        self._traces_like = traces[..., :1].expand_as(traces)
        self.data = numerics.downsample(traces, substeps, wavelet.shape[-1])

    def backpropagate(self, adjoint_source: Tensor) -> Gradients:
        """Return the gradients, shot by shot, of a misfit whose gradient is known.

        adjoint_source: the misfit's gradient with respect to `data`, (shot, receiver, time). Raises
        RuntimeError if the simulation has kept no history.
        """
        self._require_history()
        n = self._wavelet.shape[-1]
        downsample = partial(numerics.downsample, substeps=self.substeps, n=n)
        fine = numerics.transpose(downsample, self._traces_like, adjoint_source)
        gradients = self._engine.backward(self._problem, self._state, fine)
        wavelet = numerics.transpose(
            partial(numerics.upsample, substeps=self.substeps), self._wavelet, gradients.wavelet
        )
        return replace(gradients, wavelet=wavelet)

    def scatter(self, direction: Mapping[str, Tensor]) -> Tensor:
        """Return the change of the data with the model in a direction: the Born approximation.

        direction: arrays by name, in the shape of the gradients and the parameter's unit. Returns
        (shot, receiver, time): the derivative of `data`, exact if the history samples every step.
        For every history it is the transpose of `backpropagate`, except for the digits that a
        shorter format loses; the engines eager and deepwave use every step. Raises RuntimeError
        if the simulation has kept no history.
        """
        self._require_history()
        like = self._problem.like
        change = {name: array.to(like) for name, array in direction.items()}
        traces = self._engine.scatter(self._problem, self._state, change)
        return numerics.downsample(traces, self.substeps, self._wavelet.shape[-1])

    def _require_history(self) -> None:
        if self._state is None:
            raise RuntimeError("this simulation has no history; simulate with keep=True")


def simulate(
    model: Mapping[str, Tensor],
    spacing: float | Sequence[float],
    acquisition: Acquisition,
    method: Method,
    *,
    keep: bool = True,
    illuminate: bool = True,
    window: tuple[slice, ...] | None = None,
) -> Simulation:
    """Simulate shots; the parameters are those of `set_up`.

    keep: True keeps the history for `Simulation.backpropagate`.
    """
    task = set_up(model, spacing, acquisition, method, window=window, illuminate=illuminate)
    return Simulation(task, keep)


def warm_up(method: Method, model: Mapping[str, Tensor], scatter: bool = False) -> None:
    """Compile the engine of a method, by a tiny simulation and its gradient.

    model: arrays by name, of which the first cell is simulated; scatter: True to compile
    `Simulation.scatter`, too. Compiled code is stored if the engine has a place for it, so that a
    second call is fast. Raises ValueError as `simulate` does.
    """
    small = {}
    for name, array in model.items():
        cell = array[(slice(0, 1),) * array.ndim]
        small[name] = cell.expand((numerics.FEWEST_POINTS,) * array.ndim).contiguous()
    like = next(iter(small.values()))
    origin = np.zeros((1, like.ndim))
    shot = Acquisition(1e-3, torch.ones(4).to(like), origin, origin)
    tiny = replace(method, boundary=1, free_surface=False, history="auto", leader=None)
    simulation = simulate(small, 10.0, shot, tiny)
    simulation.backpropagate(simulation.data)
    if scatter:
        simulation.scatter(small)
