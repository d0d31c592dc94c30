"""The discretization of first-order equations on a staggered grid.

In this order: the velocity that limits the time step; the discrete system; its coefficients on a
free surface, and the points of its sources and receivers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcfwi.model import AXES
from hpcfwi.survey import STRAIN, Components
from hpcfwi.wave.equation import Derivative, FirstOrderEquation, Signal, System, mean
from hpcfwi.wave.numerics import Profile, mix_profiles, staggered_difference, surface_shifts
from hpcfwi.wave.problem import Problem, extend


def equivalent_velocity(order: int, speed: Tensor, density: Tensor) -> float:
    """Return the velocity (m/s) for which `numerics.longest_step` is right in a medium.

    speed: of the fastest wave in each cell, m/s; density: kg/m^3. The squared eigenvalues of the
    acoustic scheme are at most the largest sum of a row of abs(K D b D^T), with the bulk modulus K,
    the buoyancy b between cells and the differences D. In such a row, K is multiplied by a mean of
    the buoyancies around the cell with the weights of the difference. The result is the largest
    speed if the density is constant, and larger where a dense cell lies beside light ones. Tests
    find it sufficient for the other equations.
    """
    modulus = density * speed**2
    weights = np.abs(staggered_difference(order, 1.0))
    largest = 0.0
    for axis in range(speed.ndim):
        buoyancy = 1.0 / mean(density, axis)
        n = speed.shape[axis]
        places = torch.arange(n, device=speed.device)
        total = torch.zeros_like(buoyancy)
        for k, weight in enumerate(weights / (2.0 * weights.sum())):
            for shift in (k, -k - 1):
                total += weight * buoyancy.index_select(axis, (places + shift).clamp(0, n - 1))
        largest = max(largest, float((modulus * total).max()))
    return float(np.sqrt(largest))


@dataclass(frozen=True)
class FieldPoints:
    """Sums over cells of a field of the padded grid, one for each point.

    cells: indices into the flattened grid, (shot, point, tap); weights: of the same shape.
    """

    cells: NDArray[np.int64]
    weights: NDArray[np.float64]

    def times(self, factors: float | NDArray[np.float64]) -> FieldPoints:
        """Return the points with multiplied weights."""
        return FieldPoints(self.cells, factors * self.weights)


@dataclass(frozen=True)
class Emission:
    """Sources that add to a field.

    strength: the factor of their signal in each cell of the padded grid; signal: see
    `equation.Source`.
    """

    field: str
    points: FieldPoints
    strength: Tensor
    signal: Signal


@dataclass(frozen=True)
class Recording:
    """A component of traces: the sum of fields at points, or the integral of that over time.

    traces: mask (shot, receiver) of the traces that record it; points: of each field, whose weights
    include the field's factor, and are 0 for other traces.
    """

    traces: NDArray[np.bool_]
    points: Mapping[str, FieldPoints]
    integrate: bool


@dataclass(frozen=True)
class Relaxation:
    """A memory variable, whose mean before and after a step is added to the field's rate.

    decay: the factor of the memory variable in a step; share: half the step, s. The mean makes it
    accurate to second order (Robertsson, Blanch and Symes 1994, equation 20).
    """

    memory: str
    field: str
    decay: float
    share: float


@dataclass(frozen=True)
class StaggeredScheme:
    """A system on the padded grid, in the precision of the model.

    rates: the change of a field in a step per unit of a derivative in its update, by field and
    derivative, with the free surface; profiles: of the CPML along each axis, for derivatives that
    lie at the grid's points and for those that lie half a cell after them, which are mixed if the
    system says so; dt: the step, s.
    """

    system: System
    axes: str
    shape: tuple[int, ...]
    rates: Mapping[tuple[str, Derivative], Tensor]
    profiles: Mapping[str, tuple[Profile, Profile]]
    dt: float
    emissions: tuple[Emission, ...]
    recordings: tuple[Recording, ...]

    @cached_property
    def distinct_rates(self) -> list[Tensor]:
        """The tensors of its rates, each once."""
        return list({id(rate): rate for rate in self.rates.values()}.values())

    def number_rates(self, stage: int) -> dict[str, dict[Derivative, int]]:
        """Return the numbers in `distinct_rates` of a stage's rates, by field and derivative."""
        numbers = {id(rate): number for number, rate in enumerate(self.distinct_rates)}
        return {
            name: {t.derivative: numbers[id(self.rates[name, t.derivative])] for t in terms}
            for name, terms in self.system.stages[stage].items()
        }

    def pad_profiles(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the values a and b of its profiles, (profile, place), two for each axis."""
        n = max(self.shape)
        profiles = [each for axis in self.axes for each in self.profiles[axis]]
        a, b = (
            np.stack([np.pad(values, (0, n - len(values))) for values in each])
            for each in zip(*((p.a, p.b) for p in profiles), strict=True)
        )
        return a, b

    def mixed_profile(
        self, axis: str, place: str, box: Sequence[tuple[int, int]] | None = None
    ) -> Profile:
        """Return the profile of each cell for derivatives along an axis, see `System.place_of`.

        box: first cell and last + 1 of each axis; by default those of the whole grid.
        """
        profiles = [self.profiles[each][each in place] for each in self.axes]
        if box is not None:
            profiles = [p.between(*ends) for p, ends in zip(profiles, box, strict=True)]
        return mix_profiles(profiles, self.axes.index(axis), self.system.multiaxial)

    @property
    def relaxations(self) -> list[Relaxation]:
        """The memory variables of its fields."""
        found = []
        for name, memory in self.system.memories.items():
            half = 0.5 * self.dt * memory.frequency
            found.append(Relaxation(name, memory.field, (1.0 - half) / (1.0 + half), 0.5 * self.dt))
        return found

    @property
    def signals(self) -> tuple[Signal, ...]:
        """The distinct signals of its emissions."""
        return tuple(dict.fromkeys(emission.signal for emission in self.emissions))

    @property
    def reading_stages(self) -> tuple[int, ...]:
        """The stage before which each recording is read, which does not update its fields."""
        return tuple(1 - self.system.stage_of(next(iter(r.points))) for r in self.recordings)


def discretize(problem: Problem) -> StaggeredScheme:
    """Return the scheme of a problem with a first-order equation.

    Its tensors are differentiable in the problem's model.
    """
    equation = problem.equation
    assert isinstance(equation, FirstOrderEquation), "other equations are of second order"
    axes = AXES[len(problem.spacing)]
    system = equation.system(axes)
    medium = equation.coefficients(
        {name: extend(array, *problem.padding) for name, array in problem.model.items()}, axes
    )

    def value(coefficient: str) -> Tensor:
        name = coefficient.removeprefix("-")
        found = problem.like.new_ones(problem.padded_shape) if name == "1" else medium[name]
        return found if coefficient == name else -found

    def step(name: str) -> float:
        """Return the factor of the rate of change of a field in a step."""
        if name not in system.memories:
            return problem.dt
        half = 0.5 * problem.dt * system.memories[name].frequency
        return -2.0 * half / (1.0 + half)

    # Terms with the same coefficient share a tensor, which engines need only once
    shared = cache(lambda coefficient, factor: factor * value(coefficient))
    rates = {
        (name, term.derivative): shared(term.coefficient, step(name))
        for stage in system.stages
        for name, terms in stage.items()
        for term in terms
    }
    per_cell = problem.dt / float(np.prod(problem.spacing))
    strengths = {
        kind: {
            name: per_cell * value(coefficient)
            for name, coefficient in system.sources[kind].coefficients.items()
        }
        for kind in problem.source_kinds
    }
    if problem.free_surface:
        _free_surface(system, rates, list(strengths.values()))
    return StaggeredScheme(
        system,
        axes,
        problem.padded_shape,
        rates,
        {
            name: (problem.absorbing_profile(axis), problem.absorbing_profile(axis, 0.5))
            for axis, name in enumerate(axes)
        },
        problem.dt,
        tuple(
            Emission(name, _source_points(problem, system, kind, name), strength, signal)
            for kind in strengths
            for signal in [system.sources[kind].signal]
            for name, strength in strengths[kind].items()
        ),
        _make_recordings(problem, system, axes),
    )


def _free_surface(
    system: System,
    rates: dict[tuple[str, Derivative], Tensor],
    strengths: Sequence[dict[str, Tensor]],
) -> None:
    """Change the first row of the rates, and of the strengths of sources, for a free surface there.

    The fields of the surface stay zero. Each of them determines a vertical derivative in its
    update, which is eliminated from the updates of the other fields in the row.
    """

    def set_row(values: dict[Any, Tensor], key: object, row: Tensor) -> None:
        values[key] = torch.cat([row[None], values[key][1:]])

    eliminated = set[Derivative]()
    for surface in system.surface:
        stage = system.stages[system.stage_of(surface)]
        left = [t.derivative for t in stage[surface] if t.derivative not in eliminated]
        vertical = next(derivative for derivative in left if derivative[0] == "z")
        others = [derivative for derivative in left if derivative != vertical]
        eliminated.add(vertical)
        silent = torch.zeros_like(rates[surface, vertical][0])
        held = {n for n, memory in system.memories.items() if memory.field == surface}
        pushing = [each for each in strengths if surface in each]
        for name in stage:
            if name in {surface, *held} or (name, vertical) not in rates:
                continue
            # The coefficients of shear stresses are 0 in fluids
            pivot = rates[surface, vertical][0]
            ratio = rates[name, vertical][0] / torch.where(pivot == 0.0, 1.0, pivot)
            for derivative in others:
                change = ratio * rates[surface, derivative][0]
                set_row(rates, (name, derivative), rates[name, derivative][0] - change)
            for each in pushing:
                each.setdefault(name, torch.zeros_like(each[surface]))
                set_row(each, name, each[name][0] - ratio * each[surface][0])
            set_row(rates, (name, vertical), silent)
        for name in (surface, *held):
            for derivative in (vertical, *others):
                set_row(rates, (name, derivative), silent)
        for each in pushing:
            set_row(each, surface, silent)
    for each in strengths:
        for name in each:
            # A cell that the surface halves has half the mass
            if "z" not in system.fields[name].half:
                set_row(each, name, 2.0 * each[name][0])


def _points(
    problem: Problem, system: System, name: str, positions: NDArray[np.float64]
) -> FieldPoints:
    """Return the points of a field at positions (shot, point, ndim), m from the model's origin."""
    field = system.fields[name]
    shifts = _find_shifts(problem, system, name, positions)
    taps = problem.spread(positions, field.half, field.odd, shifts)
    return FieldPoints(taps.flat(problem.padded_shape), taps.weights)


def _find_shifts(
    problem: Problem, system: System, name: str, positions: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    """Return the shifts (shot, point, row) of a field at positions, see `numerics.surface_shifts`.

    Velocities have a slope at a free surface of a solid, but none at that of a fluid.
    """
    speeds, field = problem.model.get("vs"), system.fields[name]
    if not problem.free_surface or speeds is None:
        return None
    if field.odd or ("z", name) not in system.derivatives:
        return None
    nearest = np.rint(positions / problem.spacing).astype(np.int64)
    columns = np.moveaxis(nearest.clip(0, np.array(speeds.shape) - 1)[..., 1:], -1, 0)
    is_solid = (speeds[0] > 0.0).cpu().numpy()[tuple(columns)]
    shifts = surface_shifts(problem.order, "z" in field.half)
    return np.where(is_solid[..., None], shifts, 0.0)


def _source_points(problem: Problem, system: System, kind: str, name: str) -> FieldPoints:
    """Return the points at which sources of a kind add to a field, weighted by their factors."""
    factors = problem.source_kinds[kind]
    factors = factors.reshape(factors.shape + (1,) * (3 - factors.ndim))
    return _points(problem, system, name, problem.sources).times(factors)


def _make_recordings(problem: Problem, system: System, axes: str) -> tuple[Recording, ...]:
    """Return the recordings of the components that traces of the problem have."""
    components, shape = problem.components, problem.receivers.shape[:2]
    found, kinds = [], components.of_traces(shape)
    for number, name in enumerate(components.names):
        traces = kinds == number
        if not traces.any():
            continue
        if name == STRAIN:
            points = _strain_points(problem, system, axes, components)
        else:
            points = {
                key: _points(problem, system, key, problem.receivers).times(factor)
                for key, factor in system.components[name].items()
            }
        points = {
            key: FieldPoints(each.cells, np.where(traces[..., None], each.weights, 0.0))
            for key, each in points.items()
        }
        found.append(Recording(traces, points, integrate=name == STRAIN))
    return tuple(found)


def _strain_points(
    problem: Problem, system: System, axes: str, components: Components
) -> dict[str, FieldPoints]:
    """Return the points of the particle velocities for the strain along a fibre.

    It is the difference of the displacement along the fibre between the ends of the gauge, divided
    by the gauge.
    """
    assert components.gauge is not None, "checked by simulation.set_up"
    assert components.directions is not None, "checked by simulation.set_up"
    directions = np.broadcast_to(components.directions, problem.receivers.shape)
    half = 0.5 * components.gauge * directions
    found = {}
    for axis, letter in enumerate(axes):
        along = directions[..., axis, None] / components.gauge
        for name, factor in system.components[f"v{letter}"].items():
            ends = [
                (_points(problem, system, name, problem.receivers + sign * half), sign * factor)
                for sign in (-1.0, 1.0)
            ]
            found[name] = FieldPoints(
                np.concatenate([points.cells for points, _ in ends], axis=-1),
                np.concatenate([sign * along * points.weights for points, sign in ends], axis=-1),
            )
    return found


def combine(recorded: Tensor, scheme: StaggeredScheme) -> Tensor:
    """Return traces (shot, receiver, time) at the times of the samples, given the recorded fields.

    Fields of the first stage are read half a step after the sample. Their integral up to a sample
    needs nothing else; otherwise the mean of the values before and after the sample is taken.
    """
    traces = recorded
    for when, recording in zip(scheme.reading_stages, scheme.recordings, strict=True):
        if recording.integrate:
            found = scheme.dt * (recorded.cumsum(dim=-1) - recorded)
        elif when == 0:
            found = recorded
        else:
            before = torch.zeros_like(recorded[..., :1])
            found = 0.5 * (recorded + torch.cat([before, recorded[..., :-1]], dim=-1))
        mask = torch.from_numpy(recording.traces)[..., None].to(recorded.device)
        traces = found if recording.traces.all() else torch.where(mask, found, traces)
    return traces


def sample_signal(signal: Signal, wavelet: Tensor, dt: float) -> Tensor:
    """Return what sources emit in each step of a wavelet (..., time), see `equation.Source`."""
    if signal == "integral":
        return dt * wavelet.cumsum(dim=-1)
    if signal == "sample":
        return wavelet
    later = torch.cat([wavelet[..., 1:], torch.zeros_like(wavelet[..., :1])], dim=-1)
    return 0.5 * (wavelet + later)


def group_terms(used: Mapping[str, Mapping[Derivative, Any]]) -> list[list[str]]:
    """Return the fields that a stage updates, in groups that share no derivative with another one.

    used: the derivatives in the update of each field.
    """
    groups: list[list[str]] = []
    for name, each in used.items():
        shares = [g for g in groups if any(set(each) & set(used[other]) for other in g)]
        groups = [g for g in groups if g not in shares]
        groups.append([*(other for g in shares for other in g), name])
    return groups
